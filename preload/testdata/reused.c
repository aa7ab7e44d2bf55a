/* A device whose context has ended, and that is used again, can reach the other device's segments as before: the
 * earlier ones and those made meanwhile. Called as: reused runtime|driver|release, with two devices. */
#include "host.h"

int cudaDeviceReset(void);

static void reaches(void *segment)
{
	char bytes[64];
	EXPECT(cudaMemcpy(bytes, segment, sizeof bytes, 2), 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	EXPECT(cudaSetDevice(0), 0);
	void *first = pausable(2 * MIB, "reached", true);
	for (int i = 0; i < 3; i++) {
		EXPECT(cudaSetDevice(1), 0);
		reaches(first);
		if (strcmp(argv[1], "runtime") == 0) {
			EXPECT(cudaDeviceReset(), 0);
		} else {
			bool release = strcmp(argv[1], "release") == 0;
			const char *name = release ? "cuDevicePrimaryCtxRelease_v2" : "cuDevicePrimaryCtxReset_v2";
			int (*end)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, name);
			EXPECT((end ? end : (int (*)(int))simulator(name))(1), 0);
		}
		EXPECT(cudaSetDevice(0), 0);
		void *second = pausable(2 * MIB, "reached", true);
		EXPECT(cudaSetDevice(1), 0);
		reaches(first);
		reaches(second);
	}
	return 0;
}
