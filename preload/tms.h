/* The C interface of libtms.so. Link with $(tms --cflags --libs) -lcudart, or preload the library and look the names up
 * with dlsym; docs/examples has a program for each. Later versions add functions, and change and remove none: a program
 * runs with any libtms.so that is as new as the tms.h it was compiled with.
 *
 * Codes are cudaError_t numbers, so that CUDA programs need no second table:
 *   0 success; 1 invalid value; 2 out of device memory; 3 used in a child after fork;
 *   100 no usable driver or device; 304 the operating system refused (host memory, threads, files);
 *   301 contents are lost: the file of a disk backup is gone, cut or unreadable (see tms_resume);
 *   401 contents differ after a resume or before an attach (TMS_VERIFY), or the driver has lost the process for good
 *   (tms_pause_everything);
 *   500 the keeper has no such set;
 *   801 not supported; 900 a stream is being captured; 999 an internal error (a defect: report it);
 *   any other: the CUDA driver's.
 * tms_last_error() has the text. Any thread may call any function at any time, unless its comment says otherwise.
 * Settings of a region belong to the calling thread. */
#ifndef TMS_H
#define TMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Region of the calling thread: while on, its cudaMalloc makes pausable memory. */
void tms_set_interesting_region(bool on);
bool tms_get_interesting_region(void);

/* While on, the calling thread's allocations are CUDA's own, whatever regions it enters: for calls into libraries that
 * must keep their buffers. TMS_EXCLUDE excludes whole libraries. */
void tms_set_excluded(bool on);
bool tms_get_excluded(void);

/* Tag of the calling thread's next segments. NULL or "" means the first tag of a thread: TMS_INIT_TAG, or "default".
 * The result of get stays valid for the life of the process. */
void tms_set_current_tag(const char *tag);
const char *tms_get_current_tag(void);

/* Where contents of the calling thread's next segments wait while paused:
 *   "none", or NULL: nowhere, so they are lost;
 *   "host": in host memory;
 *   "sparse": in host memory, but for blocks of 2 MiB that are zero, such as those of a cache that were never written:
 *   the device finds them by their hash, and the resume fills them with zeros;
 *   "disk": in files (tms_set_disk_backup_dir);
 *   "peer": in the free memory of another device, "peer:3": of device 3. Without peer access or room they go to
 *   host memory, and a line on stderr says so.
 * Returns 1 for any other word, which changes nothing. */
int tms_set_backup(const char *kind);
const char *tms_get_backup(void);

/* Older names for tms_set_backup. Turning one kind on turns the other off, and tms_last_error then says so; turning off
 * a kind that is not on changes nothing. */
void tms_set_enable_cpu_backup(bool on);
bool tms_get_enable_cpu_backup(void);
void tms_set_enable_disk_backup(bool on);
bool tms_get_enable_disk_backup(void);

/* Whether a pause copies only what has changed since the last one. This is for segments with a host backup, whose host
 * copy then stays while they are active. The library compares blocks of 2 MiB by a 128-bit hash. */
void tms_set_enable_incremental_backup(bool on);
bool tms_get_enable_incremental_backup(void);

/* Kind of host memory for the calling thread's next segments: "pinned" or "mmap". Both are mapped and registered
 * memory, copied at the speed of the link. A resume, or the free of a segment, gives host memory that is not retained
 * back to the system before it returns. With "pinned" it waits for that at most a tenth of the resume's time or 20 ms,
 * whichever is more, and gives the rest back in the background. Another name changes nothing; tms_last_error says
 * so. */
void tms_set_cpu_backup_backend(const char *backend);
const char *tms_get_cpu_backup_backend(void);

/* Sets the process's directory of disk backups. NULL or "" is TMPDIR, or /tmp. Files have no name there, and end with
 * the process. A thread of the library keeps them, in a table of descriptors of its own. If that thread cannot start, a
 * pause fails with 304. */
void tms_set_disk_backup_dir(const char *path);

/* Pause releases the physical memory of every active segment with this tag, or of all if it is NULL, on all devices.
 * Resume maps it again. Addresses stay. Both do all or nothing: an error changes nothing, and the call can be repeated.
 * There is one exception: if the driver refuses to take memory back at the very end of a pause, all is paused, and
 * another pause releases the memory that is still held. No-ops succeed.
 *
 * 301 from a resume: contents on disk cannot be read back; tms_last_error names the tag, the address and the file.
 * Everything that the call was for stays paused. The same resume fails in the same way until that very file can be read
 * again, or the segment is freed; then the rest can be resumed.
 *
 * While others keep the memory paused (tms pause), a resume waits for their tms resume. 800: they kept it for longer
 * than tms_resume_within allows; tms_last_error names them. */
int tms_pause(const char *tag);
int tms_resume(const char *tag);

/* Pauses as tms_pause does, while the program goes on giving its devices work. The library stops threads at a
 * safepoint, before their next launch, copy, fill, or other call that gives a device work. It waits for the work that
 * they have submitted, and lets them go on when everything that gated pauses have paused is resumed or freed. It also
 * waits for streams that are being captured, and keeps threads from beginning a capture. They still allocate, free and
 * synchronize. The call needs libtms_reach.so, preloaded behind libtms.so (tms run does that). The waiting threads keep
 * their locks, such as Python's GIL, so the thread that resumes must need none of those.
 *
 * timeout is in seconds, for everything that comes before contents are saved. Within it the library tries several
 * moments, and lets the threads go on in between: a host function may wait for a stopped thread. After that time the
 * threads go on, nothing has changed, the result is 909 (cudaErrorTimeout), and tms_last_error names the thread and
 * call that did not finish, or the streams to which threads gave work last. 801: there is no gate, the kernel has no
 * membarrier, or the gate could not stop all work. It cannot with NVSHMEM, with pausable memory that was exported or is
 * registered with NCCL (then for any pause), or with a function of the driver that this library does not know.
 * TMS_PAUSE_FORCE=1 in the environment pauses anyway. */
int tms_pause_gated(const char *tag, double timeout);

/* Pauses all tags, as tms_pause_gated if there is a gate and as tms_pause otherwise. Then the driver takes the rest of
 * this process on its devices: contexts, code, graphs, CUDA's own memory (cuCheckpointProcessLock and Checkpoint, of
 * driver 570 or later). After the call all CUDA calls of the process wait until tms_resume (of any tag) or tms resume
 * PID brings everything back. No process can do this to itself, so the library starts the command tms, which talks to
 * the process's socket (tms_serve). TMS_COMMAND names it; else it is beside the library or on the path.
 *
 * timeout is in seconds, for the program's threads and the work on the devices to finish. After an error everything is
 * as before, or tms_last_error says what is not. 909: it took too long. 801: the driver cannot do it, or would lose the
 * process: managed memory, multicast, memory shared with other processes, a part of a GPU (MIG).
 *
 * The resume finds room for the driver's part first, or returns 2, and everything stays paused. If another program
 * takes that room in the same moment, the driver loses the process: 401, also from every later resume. */
int tms_pause_everything(double timeout);

/* Makes the process listen on a Unix socket, as TMS_CONTROL=1 does, for tms ps, tms pause and tms resume of the same
 * user. It starts the library's threads, and returns when the process listens; a second call does nothing. 304: the
 * socket cannot be made, and tms_last_error says why. */
int tms_serve(void);

/* As tms_pause, but loses contents whatever backup the segments have: it copies nothing, and gives up host memory kept
 * or prepared for them. After the resume they read as fresh memory (unspecified bytes). Segments that are paused
 * already keep their contents. */
int tms_discard(const char *tag);

/* Returns how many bytes of device memory the calling thread's last pause (tms_pause and its like) freed, or its last
 * resume mapped; 0 if there was nothing to do. */
uint64_t tms_last_bytes(void);

/* As tms_resume, but while device memory is short the call waits up to this time for other processes to free some, and
 * as long for those who keep this process paused. It
 * takes no memory during the wait. One line on stderr says which processes have how much. After that time the call
 * fails, and can be repeated. */
int tms_resume_within(const char *tag, double seconds);

/* How many seconds tms_resume and every other resume that names no time of its own waits for memory. The default is
 * TMS_RESUME_WAIT, or 0. Returns 1 for what is no number of seconds, which changes nothing. For the process. */
int tms_set_resume_wait(double seconds);
double tms_get_resume_wait(void);

/* As tms_resume_tags, but the call may return while contents are still on their way, where the gate can hold the
 * program (tms run). They come back in an order: what the order does not name, then step by step from 0 on. An
 * allocation of which the order leaves a byte unnamed comes first, with all that shares its 2 MiB. The call returns when
 * step 0 is back. From then until all is back, calls that give a device work wait, except those of threads between
 * tms_order_enter and tms_order_leave. CUDA graphs wait always, and so do copies of memory that is not back. NULL tags
 * are all tags.
 *
 * tms_order_enter waits until a step is back, and lets the calling thread in. It returns at once where the order with
 * this number is over. Enters nest: the same thread makes as many leaves. A kernel of a thread that was let in which
 * uses memory of a later step ends the context (700), because memory is mapped only when it has its contents.
 *
 * Where there is no gate, or the resume would have to wait, all is back when the call returns; a line on stderr says
 * so. If a later step fails, what is back stays, and the rest is paused with its contents: from then on
 * tms_order_enter, and the calls that wait, fail, until a resume brings the rest back. tms_order_is_over returns
 * whether the order is neither in progress nor failed. */
typedef struct tms_ordered {
	const void *address;
	size_t size;
	int step;
} tms_ordered;
int tms_resume_in_order(const char *const *tags, double seconds, const tms_ordered *order, size_t count,
			uint64_t *number);
int tms_order_enter(uint64_t number, int step);
void tms_order_leave(uint64_t number);
bool tms_order_is_over(uint64_t number);

/* Pauses some tags as tms_pause does and discards others as tms_discard does, or resumes tags as tms_resume_within
 * does, in one transaction: after an error each tag is as before, with its contents. A list ends with NULL; NULL in
 * its place is an empty list. A tag in both lists keeps its contents. */
int tms_pause_tags(const char *const *tags, const char *const *discarded);
int tms_resume_tags(const char *const *tags, double seconds);

/* As tms_pause, with another time than its 10 seconds for other processes that have opened memory of the tag
 * (cudaIpcOpenMemHandle, cuMemImportFromShareableHandle). They unmap it when they pause the same tag. 600: they did not
 * do so in time, nothing has changed, and tms_last_error names them.
 *
 * Memory that this process has opened belongs to the tag that it has in its own process. A pause unmaps it without
 * waiting. A resume maps it again when it is back there, within 60 seconds or those of tms_resume_within. 600: it did
 * not come back in time, but this process's own memory is resumed. */
int tms_pause_within(const char *tag, double seconds);

/* Returns the number of the pause that last took memory of a tag, or 0 if none of the tag is paused. Later pauses have
 * higher numbers. What a sub-allocator kept of the tag before that pause is paused, and must not be handed out. */
uint64_t tms_paused_by(const char *tag);

/* How a program takes back a pause or resume that other processes did not make, whatever else was paused before:
 * tms_transitions returns how many there have been in this process, the other two pause what resumes since then have
 * brought back, and resume what pauses since then have taken. */
uint64_t tms_transitions(void);
int tms_pause_since(uint64_t transition);
int tms_resume_since(uint64_t transition);

/* Returns whether the program has made memory by handle (cuMemCreate) to map it itself, as PyTorch does for expandable
 * segments. */
bool tms_maps_memory(void);

/* Says which of size bytes at an address have contents that the next pause is to keep: these ranges, in any order, in
 * bytes from the address. The pause copies and keeps exactly these. The other bytes are unspecified after the resume,
 * as in fresh memory. The call counts for the next pause of the memory alone, even one that fails: so say it before
 * each pause, and give no other byte a meaning in between. A later call replaces what an earlier one said about the
 * same bytes, which may lie in several segments or be a part of one. An address of NULL takes back all that was said,
 * for a program that goes on without a pause.
 *
 * It makes no difference to memory whose contents do not go to host memory, to allocations below 2 MiB, and in a pause
 * to disk. Returns 1 if some of the bytes are in no segment, or paused, or a range is not within them; then nothing has
 * changed. */
typedef struct tms_range {
	size_t offset, size;
} tms_range;
int tms_live(const void *address, size_t size, const tms_range *ranges, size_t count);

/* Pins host memory ahead for the active segments with this tag, or all if it is NULL, that have a host backup, so that
 * their next pause runs at the speed of the link. Without wait the call returns at once, and pinning goes on in the
 * background. A pause waits until that has ended. A failure is one line on stderr. */
int tms_prepare(const char *tag, bool wait);

/* Gives back host memory that no paused segment needs: prepared or retained. Returns when the operating system has
 * it. */
int tms_trim(void);

/* A cudaMalloc in a region that would leave less than this many bytes free on its device fails
 * with cudaErrorMemoryAllocation. 0, the default: no margin. For the process. */
void set_memory_margin_bytes(uint64_t bytes);

/* Whether host backups stay after a resume, so that the next pause has its memory ready and tms_get_cpu_backup_pointer
 * works for active segments. For the process. */
void tms_set_retain_cpu_backup(bool on);
bool tms_get_retain_cpu_backup(void);

/* Returns the host copy of size bytes at a device address inside one segment, as of its last pause, or NULL if there is
 * none (active and not retained, no backup, only parts kept, unknown address: tms_last_error says which). */
uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size);

/* Allocation functions for torch.cuda.memory.CUDAPluggableAllocator: their memory is always pausable, with the calling
 * thread's tag and backup. tms_torch_malloc returns NULL if memory is short. stream is a cudaStream_t. */
void *tms_torch_malloc(ssize_t size, int device, void *stream);
void tms_torch_free(void *address, ssize_t size, int device, void *stream);

/* Pools: sub-allocators that split a few segments into many allocations. kind is "naive", "freelist", "buddy", "slab",
 * "caching", "bfc" or "paddle"; options are that kind's settings, k=v separated by commas, NULL for none (vmm/pool/KIND
 * documents them). A pool created in a region takes pausable segments with the region's tag and backup. It is paused
 * with its tag, and memory that is allocated during the pause is usable after the resume. A pool created outside takes
 * CUDA's own memory. With the option memory=pinned or memory=host it takes host memory, which is never paused. device
 * -1 is the current one.
 *
 * "caching" orders reuse by stream. Pools of other kinds ignore streams: free only memory that the device no longer
 * uses. Codes are as above: 1 also for an unknown kind, option, pool or address; 2 if neither the pool nor the device
 * has room, or the pool's options allow no allocation of the size (tms_last_error names the option, and lists the
 * pool's blocks by size). An error changes nothing. A function that a stream runs (cudaLaunchHostFunc) may call no
 * pool, as it may call no CUDA function. */
typedef struct tms_pool tms_pool;
int tms_pool_create(tms_pool **pool, const char *kind, const char *options, int device);

/* For size 0 the address is NULL, and a free of NULL does nothing. stream is a cudaStream_t. */
int tms_pool_malloc(tms_pool *pool, void **address, size_t size, void *stream);
int tms_pool_free(tms_pool *pool, void *address);

/* Notes that another stream uses an allocation, which is then not reused before that stream is done. "caching" only:
 * 801 for other kinds. */
int tms_pool_record_stream(tms_pool *pool, void *address, void *stream);

/* Gives back every segment in which nothing is live, and stores the bytes in *released, unless NULL. */
int tms_pool_trim(tms_pool *pool, size_t *released);

/* Writes the pool's statistics as JSON, like tms_stats_json. Returns 0 if there is no such pool. */
size_t tms_pool_stats_json(tms_pool *pool, char *buffer, size_t capacity);

/* Writes the use of every byte that the pool holds as JSON, like tms_stats_json: segments with their blocks, as
 * torch.cuda.memory_snapshot lists them. Returns 0 if there is no such pool. */
size_t tms_pool_snapshot_json(tms_pool *pool, char *buffer, size_t capacity);

/* Sets the peaks in the statistics to the current values (torch.cuda.reset_peak_memory_stats). */
int tms_pool_reset_peak_stats(tms_pool *pool);

/* Gives back all segments, even with live allocations, and ends the pool. Other threads may be calling the pool: their
 * allocations are gone, and from now on they get 1 and "the pool was destroyed". After an error the pool is still there
 * and empty, and keeps the segments that could not be given back. */
int tms_pool_destroy(tms_pool *pool);

/* A pool for PyTorch, on every device, for torch.cuda.memory.CUDAPluggableAllocator. use chooses the kind once, before
 * the first allocation (a later choice of another: 1). It returns 801 if PyTorch is loaded (libc10.so) without the
 * function by which malloc_or_throw raises its errors, because PyTorch would then use address 0 after a failure. Memory
 * allocated in a region is pausable, with the thread's tag and backup. Kinds that ignore streams have a pool for each
 * stream and each graph, so any kind is safe for programs with several. */
int tms_torch_pool_use(const char *kind, const char *options);

/* malloc and free are PyTorch's two functions. malloc returns NULL when out of memory, but PyTorch checks for that only
 * in a torch.cuda.MemPool. For the current allocator use malloc_or_throw, which raises PyTorch's RuntimeError with a
 * text that begins "CUDA out of memory". In a program without PyTorch it returns NULL and writes that text to
 * stderr. */
void *tms_torch_pool_malloc(ssize_t size, int device, void *stream);
void *tms_torch_pool_malloc_or_throw(ssize_t size, int device, void *stream);
void tms_torch_pool_free(void *address, ssize_t size, int device, void *stream);

/* For set_init_fn, set_reset_fn (torch.cuda.empty_cache), set_memory_fraction_fn, set_record_stream_fn,
 * set_begin_allocate_to_pool, set_end_allocate_to_pool_fn and set_release_pool of PyTorch 2.2 or later. id is a
 * MempoolId_t, a pair of numbers passed by value. filter is a C++ std::function, which C cannot call: the library takes
 * it to accept the streams that are being captured into a graph. So graphs have private pools, and a torch.cuda.MemPool
 * uses the common pool. Failures are one line on stderr, because these functions return nothing. */
struct tms_torch_pool_id {
	uint64_t first, second;
};
void tms_torch_pool_init(int devices);
void tms_torch_pool_reset(void);
void tms_torch_pool_memory_fraction(double fraction, int device);
void tms_torch_pool_record_stream(void *address, void *stream);
void tms_torch_pool_begin_allocate_to_pool(int device, struct tms_torch_pool_id id, void *filter);
void tms_torch_pool_end_allocate_to_pool(int device, struct tms_torch_pool_id id);
void tms_torch_pool_release_pool(int device, struct tms_torch_pool_id id);

/* Writes the statistics of PyTorch's pools as JSON, like tms_stats_json: a list of objects with device, tag (null: not
 * pausable) and stats. */
size_t tms_torch_pool_stats_json(char *buffer, size_t capacity);

/* Writes a list like that of tms_torch_pool_stats_json, of objects with device, tag and segments, which are as
 * tms_pool_snapshot_json has them. */
size_t tms_torch_pool_snapshot_json(char *buffer, size_t capacity);

/* As tms_pool_reset_peak_stats, for PyTorch's pools. */
int tms_torch_pool_reset_peak_stats(void);

/* Sets of device memory that no process owns (docs/kept.md). A process makes a set chunk by chunk, fills it, and seals
 * it with a manifest of any bytes. From then on any process of the user can open and attach the set, read-only, also
 * when its maker has ended. The keeper holds it (tms keeper), which the first call starts; TMS_COMMAND names the
 * command. A set that is not sealed when its process ends, or closes it, is gone. A sealed set takes its name over from
 * an earlier set, which its users keep.
 *
 * Attached memory has the calling thread's tag. A pause unmaps it, and a resume maps it again, without a copy. It
 * cannot be written: cudaMemcpy and cudaMemset return 1, and a kernel that does it ends the context (700).
 *
 * Codes are as above: 500 if no complete set has the name, or the keeper no longer has such a set. Any thread
 * may call; calls for one set take turns. An error changes nothing, except that a set that could not be given a chunk
 * (other than by 2) cannot be sealed. */
typedef struct tms_kept tms_kept;

/* device -1 is the current one. name has 1 to 255 bytes of UTF-8. */
int tms_kept_create(tms_kept **set, const char *name, int device);

/* Makes one more chunk, mapped to be written until the set is sealed or closed. Its contents are undefined. */
int tms_kept_add(tms_kept *set, size_t size, void **address);

/* Waits for the device, makes the chunks read-only here, at the same addresses, hashes them for tms kept verify and
 * TMS_VERIFY, and makes the set complete. */
int tms_kept_seal(tms_kept *set, const void *manifest, size_t size);

/* Opens a set, and first brings it back to its device if it was demoted (tms kept demote). Returns 2 if there is no
 * room. */
int tms_kept_open(tms_kept **set, const char *name);

/* Copies at most capacity bytes of the manifest, and stores its size. buffer and size may be NULL. */
int tms_kept_manifest(tms_kept *set, void *buffer, size_t capacity, size_t *size);

/* Maps all chunks of an open set, on the device where they lie: all or none. 801: this process does not see it; 401,
 * with TMS_VERIFY: the contents are not those that were sealed. */
int tms_kept_attach(tms_kept *set);

/* Each set that takes over a name is a later version of it. These map another version at the addresses of the attached
 * one, read-only, and store its number: the newest complete version of the name, which may be the one that is attached;
 * or the one before. No byte is copied, and CUDA graphs stay valid. All chunks move, or none: after an error, what the
 * driver did not map again is paused, and a resume maps it. Both wait for the work that the devices have. Until they
 * return, the caller gives the devices no work that uses the set. What is paused stays paused, and its resume maps the
 * other version.
 *
 * moved becomes 1 if another version is mapped than was attached, else 0. Both pointers may be NULL.
 *
 * The version that was attached then is the one before. It stays this process's until the next advance that maps
 * another version, settle or close: its memory is not free until then. 801: the newest version has another layout, or
 * lies on another device; 900: a stream is being captured; 1: the set is not attached, is attached twice in this
 * process, was exported, or has no version before. */
int tms_kept_advance(tms_kept *set, uint64_t *version, int *moved);
int tms_kept_back(tms_kept *set, uint64_t *version, int *moved);

/* Lets the version before go, if there is one. */
int tms_kept_settle(tms_kept *set);

/* Lets others (tms kept advance) move an attached set, between two steps of the program. keeps: such an
 * advance keeps the version before. All work on the set then lies between a begin and an end, in any thread. A begin
 * waits while a set is moved, unless it lies within a step of its thread, and a move waits until no step is in progress
 * and the devices have done their work. A thread may end another one's step, but not within a step of its own: that step
 * counts as ended then, so a begin within it waits for the move, and the move for it, until the move's timeout. */
int tms_kept_follow(tms_kept *set, int keeps);
void tms_kept_step_begin(void);
void tms_kept_step_end(void);

/* Stores the number of the set's version, from 1 on; 0 while the set is not sealed. */
int tms_kept_version(tms_kept *set, uint64_t *version);

/* Stores the number of the version before, to which back goes. 1: there is none. */
int tms_kept_before(tms_kept *set, uint64_t *version);

/* Stores the address of a chunk, in the order of the adds, its size, which is whole granules, and its device; each may
 * be NULL. 1: the set has no such chunk mapped here. */
int tms_kept_chunk(tms_kept *set, size_t index, void **address, size_t *size, int *device);

/* Waits for the device, unmaps the chunks and forgets the set. Afterwards set is no set any longer. */
int tms_kept_close(tms_kept *set);

/* Returns the text of the calling thread's last failure in this library, or "". It is valid until the thread's next
 * call to the library. */
const char *tms_last_error(void);

/* Writes statistics as JSON, at most capacity bytes with the terminating NUL, and returns the length of the whole text
 * without it. buffer may be NULL. Sizes are in bytes, times in seconds.
 *
 * The list has the tags with memory; a tag whose last segment was freed leaves no entry. JSON is UTF-8: in the name of
 * a tag that is not, or that contains \x, each byte at fault is \xNN and each backslash is doubled, so that no two tags
 * look the same. */
size_t tms_stats_json(char *buffer, size_t capacity);

const char *tms_version(void);

#ifdef __cplusplus
}
#endif
#endif
