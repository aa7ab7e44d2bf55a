/* nvml has the records of NVML that its stand-in fills in and its client reads: nvmlMemory_v2_t, nvmlProcessInfo_v1_t and
 * _v2_t, and nvmlProcessDetailList_v1_t. */
#ifndef NVML_H
#define NVML_H

struct memory {
	unsigned version;
	unsigned long long total, reserved, available, used;
};
struct older_process {
	unsigned pid;
	unsigned long long used;
};
struct process {
	unsigned pid;
	unsigned long long used;
	unsigned parts[2];
};
struct detail {
	unsigned pid;
	unsigned long long used;
	unsigned parts[2];
	unsigned long long protected;
};
struct details {
	unsigned version, mode, count;
	struct detail *list;
};

#endif
