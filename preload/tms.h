/* The C interface of libtms.so. Link with -ltms before -lcudart, or preload the library and look the names up with
 * dlsym; docs/examples has a program for each.
 *
 * Codes are cudaError_t numbers, so that CUDA programs need no second table:
 *   0 success; 1 invalid value; 2 out of device memory; 3 used in a child after fork;
 *   100 no usable driver or device; 304 the operating system refused (host memory, threads, files);
 *   301 contents are lost: the file of a disk backup is gone, cut or unreadable (see tms_resume);
 *   401 contents differ after a resume (TMS_VERIFY);
 *   801 not supported; 900 a stream is being captured; 999 an internal error (a defect: report it);
 *   any other: what the CUDA driver returned.
 * tms_last_error() has the words. Unless said otherwise every function may be called from any
 * thread at any time; settings of a region belong to the calling thread. */
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

/* Excluded, the calling thread's allocations are CUDA's own, whatever regions it enters meanwhile: for
 * calls into libraries that must keep their buffers. See TMS_EXCLUDE for whole libraries. */
void tms_set_excluded(bool on);
bool tms_get_excluded(void);

/* Tag of the calling thread's next segments. NULL or "" is what threads begin with: TMS_INIT_TAG, or
 * "default". The answer of get stays valid for the life of the process. */
void tms_set_current_tag(const char *tag);
const char *tms_get_current_tag(void);

/* Where contents of the calling thread's next segments wait while paused:
 *   "none", or NULL: nowhere, they are lost;
 *   "host": in host memory;
 *   "disk": in files (tms_set_disk_backup_dir);
 *   "peer": in the free memory of another device, "peer:3": of device 3. Where peer access or room is wanting
 *   they go to host memory, and a line on stderr says so.
 * 1, and all as before, for another word. */
int tms_set_backup(const char *kind);
const char *tms_get_backup(void);

/* Older names for that. To turn one kind on turns off what was on, and tms_last_error then says so; to turn off a
 * kind that is not on changes nothing. The device of a peer is an ordinal, or -1 for any; get fills it in unless
 * device is NULL or the answer is false. */
void tms_set_enable_cpu_backup(bool on);
bool tms_get_enable_cpu_backup(void);
void tms_set_enable_disk_backup(bool on);
bool tms_get_enable_disk_backup(void);
void tms_set_enable_peer_backup(bool on, int device);
bool tms_get_enable_peer_backup(int *device);

/* Whether a pause copies only what has changed since the one before, of segments with a host backup: the
 * host copy is then kept while they are active. Blocks of 2 MiB are compared by a 128-bit hash. */
void tms_set_enable_incremental_backup(bool on);
bool tms_get_enable_incremental_backup(void);

/* Kind of host memory for the calling thread's next segments: "pinned" or "mmap". Both are mapped memory
 * that is registered and copied at the speed of the link. When a resume, or the free of a segment, returns,
 * the system has what is not retained of it back: with "mmap" however long that takes, with "pinned" unless
 * it takes longer than a tenth of the resume's time, or 20 ms, whichever is more; it then goes on in the
 * background. Another name is refused and changes nothing; see tms_last_error. */
void tms_set_cpu_backup_backend(const char *backend);
const char *tms_get_cpu_backup_backend(void);

/* Directory of disk backups, for the process; NULL or "": TMPDIR, or /tmp. No file is kept open while a
 * segment is paused: a process that gives up its user (setuid) meanwhile cannot read it back, nor remove it
 * (the next process of that user that uses the directory does). Resume first. */
void tms_set_disk_backup_dir(const char *path);

/* Releases, or maps again, the physical memory of every active segment with this tag, NULL: of
 * all, on all devices. Addresses stay. All or nothing: after an error everything is as before and
 * the same call can be made again; only when the driver refuses to take memory back, at the very
 * end of a pause, all is paused, and another pause releases what is still held. No-ops succeed.
 *
 * 301 from a resume: contents that waited on disk cannot be read back; tms_last_error names the tag, the
 * address and the file. All that the call was for stays paused. The same resume fails with the same words
 * until that very file can be read again, or the segment is freed; then the rest can be resumed. */
int tms_pause(const char *tag);
int tms_resume(const char *tag);

/* As tms_pause, of a program that goes on giving its devices work meanwhile: its threads are held up before their
 * next launch, copy, fill, or whatever else gives a device work, what they have given is waited for, and they go on
 * when all that gated pauses have paused is resumed or freed. Streams that are being captured are waited for, too,
 * and nobody begins a capture meanwhile. Allocating, freeing and synchronizing go on. Needs libtms_reach.so, preloaded
 * behind libtms.so (tms run does). A progress callback is not called while threads are held up. They keep what locks
 * they hold, so the thread that is to resume must need none of those; in Python that is the interpreter's.
 *
 * timeout is in seconds, for all that comes before contents are saved. Within it several moments are tried, and the
 * threads go on in between: a host function may wait for one that is held up. When it is over they go on, nothing has
 * changed, and tms_last_error names the thread and call, or the stream, that was waited for.
 * 909 (cudaErrorTimeout) then; 801 where there is no gate, where the kernel has no membarrier, and where the gate could
 * not hold all work: NVSHMEM is in use, pausable memory was exported, or is registered with NCCL (this in any
 * pause), or the program was given a function of the driver that this library does not know. TMS_PAUSE_FORCE=1 in the
 * environment makes the pause all the same. */
int tms_pause_gated(const char *tag, double timeout);

/* Pauses all, as tms_pause_gated where there is a gate and as tms_pause where there is none, and then has the driver take
 * what is left of this process on its devices: contexts, code, graphs, CUDA's own memory (cuCheckpointProcessLock and
 * Checkpoint, of driver 570 or later). When it returns, all CUDA calls of the process wait until tms_resume (of any tag)
 * or tms resume PID has brought that back. No process can do this to itself: the command tms is started, which is
 * looked for beside the library and on the path, or named by TMS_COMMAND, and which the process serves (tms_serve).
 *
 * timeout is in seconds, for the program's threads and for work on the devices to come to an end. After an error all is
 * as before, or tms_last_error says what is not. 909 when it is late; 801 where the driver cannot do it, or could not
 * but would lose the process: managed memory, multicast, memory shared with other processes, a part of a GPU (MIG). */
int tms_pause_everything(double timeout);

/* Has the process listen on a Unix socket, as TMS_CONTROL=1 does, for tms ps, tms pause and tms resume of the same
 * user. Starts the library's threads, and returns when it listens; a second call does nothing. 304: the socket
 * cannot be made, and tms_last_error says why. */
int tms_serve(void);

/* As tms_pause, but contents are lost whatever backup the segments have: nothing is copied, and the host memory
 * that is kept or prepared for them is given up. After the resume they read as fresh memory (unspecified bytes).
 * What is paused already stays as it is, with its contents. */
int tms_discard(const char *tag);

/* How many bytes of device memory the calling thread's last tms_pause or tms_discard freed, or tms_resume mapped; 0 when
 * there was nothing to do. */
uint64_t tms_last_bytes(void);

/* As tms_resume, but while device memory is short it tries again, for so many seconds, until others have
 * given some up. */
int tms_resume_within(const char *tag, double seconds);

/* As tms_pause, but waits so many seconds, where tms_pause waits 10, for other processes to unmap memory of the tag that
 * they have opened (cudaIpcOpenMemHandle, cuMemImportFromShareableHandle): they do as they pause the same tag. 600 when they
 * have not: all is as before, and tms_last_error names them. What this process has opened of others belongs to the tag that
 * it has there, is unmapped without waiting, and mapped again by a resume when it is back there: within 60 seconds, or those
 * of tms_resume_within; 600 when it is not, and what is this process's own is resumed all the same. */
int tms_pause_within(const char *tag, double seconds);

/* Pins host memory ahead for the active segments with this tag, NULL: of all, that have a cpu backup:
 * their next pause then runs at the speed of the link. Without wait it goes on in the background, and
 * a failure is one line on stderr; a pause that comes meanwhile waits for it. */
int tms_prepare(const char *tag, bool wait);

/* Has callback told, until it is NULL again, how a pause ("pause") or resume ("resume") comes on with
 * the contents of a device: bytes done of total, about 20 times a second and once at the end. It comes
 * from a thread of this library, never after tms_pause or tms_resume has returned. Called from it, what
 * would wait for a pause or resume is refused (801). For the process. */
typedef void (*tms_progress_callback)(int device, const char *operation, uint64_t done, uint64_t total, void *user);
void tms_set_progress_callback(tms_progress_callback callback, void *user);

/* Gives back host memory that holds nothing a paused segment needs: prepared, retained, or kept
 * under TMS_HOST_POOL_BYTES. Returns when the operating system has it. */
int tms_trim(void);

/* A cudaMalloc in a region that would leave less than this many bytes free on its device fails
 * with cudaErrorMemoryAllocation. 0, the default: no margin. For the process. */
void set_memory_margin_bytes(uint64_t bytes);

/* Whether host backups are kept after resume, so that the next pause has its memory ready and
 * tms_get_cpu_backup_pointer answers while active. For the process. */
void tms_set_retain_cpu_backup(bool on);
bool tms_get_retain_cpu_backup(void);

/* Host copy of size bytes at a device address inside one segment, as of its last pause. NULL when
 * there is none (active and not retained, no backup, unknown address: tms_last_error tells). */
uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size);

/* Allocation functions for torch.cuda.memory.CUDAPluggableAllocator; always pausable, with the
 * calling thread's tag and backup. NULL when out of memory. stream is a cudaStream_t. */
void *tms_torch_malloc(ssize_t size, int device, void *stream);
void tms_torch_free(void *address, ssize_t size, int device, void *stream);

/* Pools: sub-allocators that split few segments into many allocations. kind is "naive", "freelist",
 * "buddy", "slab", "caching", "bfc" or "paddle"; options are that kind's settings, k=v separated by
 * commas, NULL for none (vmm/pool/KIND documents them). A pool that is made while the calling thread is
 * in a region takes pausable segments, with the tag and backup that hold then: it is paused with its
 * tag, and what it hands out while that is paused can be used after the resume. Outside regions it
 * takes CUDA's own memory. With the option memory=pinned or memory=host it takes host memory, which is never
 * paused. device -1 is the current one.
 *
 * "caching" orders reuse by stream; a pool of any other kind ignores streams, and what is freed must not
 * be in use by the device any more. Codes are as above: 1 also for an unknown kind, option, pool or
 * address, 2 when neither the pool nor the device has room, or the pool's options allow no allocation
 * of the size (tms_last_error names the option); after any error all is as it was. A function that a stream
 * runs (cudaLaunchHostFunc) may call no pool, as it may call no CUDA function. */
typedef struct tms_pool tms_pool;
int tms_pool_create(tms_pool **pool, const char *kind, const char *options, int device);

/* Of size 0 the address is NULL, and a free of NULL does nothing. stream is a cudaStream_t. */
int tms_pool_malloc(tms_pool *pool, void **address, size_t size, void *stream);
int tms_pool_free(tms_pool *pool, void *address);

/* Says that another stream uses an allocation, so that a free holds it back until that is done.
 * "caching" only: 801 for other kinds. */
int tms_pool_record_stream(tms_pool *pool, void *address, void *stream);

/* Gives back every segment in which nothing is live; *released, unless NULL, is how many bytes. */
int tms_pool_trim(tms_pool *pool, size_t *released);

/* The pool's statistics as JSON, in the manner of tms_stats_json; 0 for a pool that there is not. */
size_t tms_pool_stats_json(tms_pool *pool, char *buffer, size_t capacity);

/* What every byte that the pool holds is used for, as JSON in the manner of tms_stats_json: of "caching" the list
 * that torch.cuda.memory_snapshot returns, of "bfc" the fields of TensorFlow's bfc_memory_map.proto. 0 for other
 * kinds and for a pool that there is not (tms_last_error tells). */
size_t tms_pool_snapshot_json(tms_pool *pool, char *buffer, size_t capacity);

/* Makes the peaks in the statistics what is there now (torch.cuda.reset_peak_memory_stats); or the sums of all there
 * ever was in those of "caching" start again from 0 (torch.cuda.reset_accumulated_memory_stats), 801 for other kinds. */
int tms_pool_reset_peak_stats(tms_pool *pool);
int tms_pool_reset_accumulated_stats(tms_pool *pool);

/* Gives back all segments, with what is still live in them, and ends the pool. Other threads may be
 * calling the pool: what they had of it is gone, and from here on they get 1 and "the pool was
 * destroyed". After an error the pool is there, empty, with what could not be given back. */
int tms_pool_destroy(tms_pool *pool);

/* A pool for PyTorch, on every device, as torch.cuda.memory.CUDAPluggableAllocator takes it: use
 * chooses the kind, once, before the first allocation (another choice after it: 1). Where PyTorch is
 * loaded (libc10.so), but not the function by which malloc_or_throw raises its errors, use refuses
 * with 801, as PyTorch would take the NULL of a failure for memory. Memory that is
 * allocated in a region is pausable, with the tag and backup of the thread. Kinds that ignore streams
 * have a pool for each stream and for each graph, so any kind is safe for programs that use several. */
int tms_torch_pool_use(const char *kind, const char *options);

/* malloc and free are PyTorch's two functions. malloc returns NULL when out of memory, which PyTorch
 * looks at in a torch.cuda.MemPool only: as the current allocator it uses what it gets, so
 * malloc_or_throw raises PyTorch's RuntimeError, with words that begin "CUDA out of memory". In a
 * program without PyTorch it returns NULL and writes these words to stderr. */
void *tms_torch_pool_malloc(ssize_t size, int device, void *stream);
void *tms_torch_pool_malloc_or_throw(ssize_t size, int device, void *stream);
void tms_torch_pool_free(void *address, ssize_t size, int device, void *stream);

/* For set_init_fn, set_reset_fn (torch.cuda.empty_cache), set_memory_fraction_fn, set_record_stream_fn,
 * set_begin_allocate_to_pool, set_end_allocate_to_pool_fn and set_release_pool of PyTorch 2.2 or later.
 * id is a MempoolId_t, a pair of numbers passed by value. filter is a C++ std::function, which C
 * cannot call: streams that are being captured into a graph are taken for what it accepts. So graphs
 * have private pools, and a torch.cuda.MemPool is served from the pool that serves all. Failures are
 * one line on stderr, as these functions return nothing. */
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

/* The statistics of what serves PyTorch, as JSON in the manner of tms_stats_json: a list of objects with
 * device, tag (null: not pausable) and stats. */
size_t tms_torch_pool_stats_json(char *buffer, size_t capacity);

/* As tms_pool_snapshot_json and tms_pool_reset_peak_stats, for what serves PyTorch: the snapshot is a list of objects
 * with device, tag and segments, and 0 for kinds other than "caching". */
size_t tms_torch_pool_snapshot_json(char *buffer, size_t capacity);
int tms_torch_pool_reset_peak_stats(void);

/* Words for the calling thread's last failure in this library; "" if there was none. Valid until
 * the thread's next call of the library. */
const char *tms_last_error(void);

/* Writes statistics as JSON, at most capacity bytes with the ending NUL, and returns the length
 * that the whole text has, without it. buffer may be NULL. Sizes are in bytes, times in seconds.
 *
 * A tag is listed as long as it has memory: of one whose last segment was freed nothing is kept. JSON is
 * UTF-8: in the name of a tag that is not, or that contains \x, each byte at fault is shown as \xNN and
 * each backslash as two, so that no two tags look the same. */
size_t tms_stats_json(char *buffer, size_t capacity);

const char *tms_version(void);

#ifdef __cplusplus
}
#endif
#endif
