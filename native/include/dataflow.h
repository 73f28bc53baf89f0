/* dataflow.h: the whole contract between dataflow and a device or kernel written in C.
 *
 * This text is read twice: by a C compiler and by cffi, which generates the Python side from it. So
 * it holds plain declarations only; the lines that begin with '#' are the guards and the includes.
 * Accessors and helpers for authors of kernels are in dataflow_inline.h.
 *
 * Growth. The majors of both sides must match; minors need not: plugins that are older and newer
 * than the host are loaded. Within a major a struct grows at its end alone, and its members keep
 * their meaning.
 *
 * (1) Each struct begins with struct_size, which whoever makes it sets to the sizeof that it was
 * compiled with. None is shorter than in 2.0; a df_error that is all zeros counts as one of 2.0.
 *
 * (2) A member of a later minor (its comment says which) that lies beyond struct_size is not looked
 * at: it stands for 0 or null. DF_HAS of dataflow_inline.h asks; df_take makes a copy that has all.
 *
 * (3) A struct that the other side made and that is to be filled is filled member by member, as far
 * as it goes; its struct_size stays.
 *
 * (4) What there are several of comes as an array of pointers: each may be longer than the reader
 * knows.
 *
 * Threads. df_plugin_entry is called once. Of one open device, prepare, release, alloc, free, copy,
 * run, sync and the like may come from any thread, several at a time; but a prepared segment is run
 * by one thread at a time, and released when none runs it. Of a kernel, accepts, prepare and
 * release may come from any thread, several at a time; run is called with one state by one thread
 * at a time.
 *
 * Errors. A df_error belongs to the caller, who has set it to zeros; it is filled before a status
 * other than DF_OK is returned, its text is copied into it, and it is read before the next call.
 * Strings and records in tables (names, operands, reasons of accepts) live as long as the process.
 */
#ifndef DATAFLOW_H
#define DATAFLOW_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Version of this contract: major * 65536 + minor. */
enum { DF_ABI_MAJOR = 2, DF_ABI_MINOR = 2 };

/* Element types. An element of a 4-bit or 2-bit type is the low bits of a byte of its own; the bits
 * above are written as zeros and not looked at. A later minor may add types: a kernel is given
 * those that its record names, and |item_bytes| says how long an element is, for records of "any".
 */
enum {
  DF_NONE = 0, /* an optional operand that is absent */
  DF_FLOAT32 = 1,
  DF_FLOAT64 = 2,
  DF_FLOAT16 = 3,
  DF_BFLOAT16 = 4,
  DF_INT8 = 5,
  DF_INT16 = 6,
  DF_INT32 = 7,
  DF_INT64 = 8,
  DF_UINT8 = 9,
  DF_UINT16 = 10,
  DF_UINT32 = 11,
  DF_UINT64 = 12,
  DF_BOOL = 13,
  DF_COMPLEX64 = 14,
  DF_COMPLEX128 = 15,
  DF_FLOAT8E4M3FN = 16,
  DF_FLOAT8E4M3FNUZ = 17,
  DF_FLOAT8E5M2 = 18,
  DF_FLOAT8E5M2FNUZ = 19,
  DF_FLOAT8E8M0 = 20,
  DF_FLOAT4E2M1 = 21,
  DF_INT4 = 22,
  DF_UINT4 = 23,
  DF_INT2 = 24,
  DF_UINT2 = 25,
  DF_STRING = 26 /* in an arena 64-bit numbers of a table; never seen by a C kernel */
};

/* What went wrong. Every function that can fail returns one of these and fills a df_error. */
typedef int32_t df_status;
enum {
  DF_OK = 0,
  DF_INVALID = 1, /* the caller's arguments or data: an index out of range, a bad label */
  /* The device or kernel cannot do this. Where a kernel's prepare, or a device's compile, says so,
   * the next device is asked for the node: that of df_error.step, or all of the segment where it is
   * -1. */
  DF_UNSUPPORTED = 2,
  DF_OUT_OF_MEMORY = 3,
  DF_DEVICE = 4,    /* the device failed; it may not be usable any more */
  DF_CANCELLED = 5, /* the cancel word was set */
  DF_INTERNAL = 6
};

/* Filled by the side that fails. |step| is the index of the step in its segment, -1 if none; |text|
 * is UTF-8 and ends with a zero. */
typedef struct df_error {
  uint32_t struct_size;
  df_status code;
  int32_t step;
  char text[500];
} df_error;

/* What a kernel found wrong on a device that the host can't watch: an index from a tensor that is
 * out of range, say. It lies in the device's memory; the first kernel to find |code| zero fills it,
 * goes on with a harmless value, and the error surfaces at the next synchronization. */
typedef struct df_fault {
  uint32_t struct_size; /* set by the device, which zeroes the rest */
  int32_t code;         /* a df_status */
  int32_t step;         /* df_call.step */
  int64_t value;
  int64_t limit; /* |value| should have been in [-limit, limit) */
} df_fault;

/* ---- Tensors and operands ------------------------------------------------------------------- */

/* A tensor as a kernel sees it. |shape| and |strides| have |rank| entries, strides count elements
 * and may be zero (a broadcast) or negative. |data| is null when the operand is absent
 * (dtype == DF_NONE) or has no elements; otherwise it is a multiple of the element's alignment in
 * C, and nothing more is promised: a view begins wherever its first element lies. |bytes| spans the
 * first to the last element. On a device with DF_HANDLES |data| is the base of a df_buffer, and the
 * first element lies |offset| bytes behind its begin; elsewhere |offset| is 0.
 */
typedef struct df_tensor {
  uint32_t struct_size;
  int32_t dtype;
  int32_t rank;
  int32_t item_bytes; /* of an element; 0 when the operand is absent */
  void *data;
  const int64_t *shape;
  const int64_t *strides;
  int64_t bytes;
  int64_t offset;
} df_tensor;

/* A tensor as a plan names it: an offset in an arena, not a pointer. |arena| is an index into the
 * segment's arena table, -1 when the operand is absent. In the body of a loop the operand of
 * iteration t lies at offset + t * iteration_stride. |value| names the value whose bytes these are
 * (workspaces and prepacked copies have numbers below 0): a view has the number of its base tensor,
 * and |origin| is where in that one it begins, in bytes.
 * Kernels don't see these two; a device that compiles a segment, and the plan checker, read them.
 */
typedef struct df_operand {
  uint32_t struct_size;
  int32_t arena;
  int32_t dtype;
  int32_t rank;
  int32_t item_bytes;       /* of an element; 0 when the operand is absent */
  int32_t flags;            /* DF_LIVE_OUT */
  int64_t offset;           /* bytes */
  int64_t bytes;            /* first to last element */
  int64_t iteration_stride; /* bytes */
  int64_t value;
  int64_t origin;
  const int64_t *shape;
  const int64_t *strides; /* elements */
} df_operand;

/* Of an output of a step: something other than the steps of this segment reads it, or may. Outputs
 * without it need not be written where nothing else of the segment needs their bytes: nobody looks
 * there. */
enum { DF_LIVE_OUT = 1 };

/* Attributes come in the order of the op's declaration. */
enum {
  DF_ATTR_ABSENT = 0,
  DF_ATTR_INT = 1,
  DF_ATTR_FLOAT = 2,
  DF_ATTR_STRING = 3,
  DF_ATTR_INTS = 4,
  DF_ATTR_FLOATS = 5
};

/* One attribute: |i| for int, bool and dtype; |f| for float; |ints|, |floats| with |count| entries;
 * |s| a terminated UTF-8 string with |count| bytes. */
typedef struct df_attribute {
  uint32_t struct_size;
  int32_t kind;
  int32_t count;
  int64_t i;
  double f;
  const int64_t *ints;
  const double *floats;
  const char *s;
} df_attribute;

/* ---- The host: what dataflow offers to a plugin --------------------------------------------- */

/* Parallel work: do task |index| of |count|. |worker| is below the number of threads asked for and
 * below |count|, and unique among the tasks that run at one time, so it can select a slice of the
 * workspace; in a loop inside of a task it is that task's. Tasks don't wait for each other: one
 * thread may do them all, in any order. */
typedef void (*df_task)(void *context, int64_t index, int64_t count, int32_t worker);

typedef struct df_segment df_segment;
typedef struct df_run df_run;

/* Given to df_plugin_entry; lives as long as the process. */
typedef struct df_host {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  /* Runs task(context, 0..count-1) on the pool and returns when all are done. |threads| is the most
   * threads to use (a call's |threads|). Tasks never start once the cancel word of the current run
   * is set; the run then ends with DF_CANCELLED. May be called inside a task: it then runs there.
   */
  void (*parallel_for)(df_task task, void *context, int64_t count, int32_t threads);
  /* Severity as in Python's logging: 10 debug, 20 info, 30 warning, 40 error. */
  void (*log)(int32_t severity, const char *text);
  /* The default executor for a device whose memory the host can address and whose kernels run on
   * the calling thread: a device may put these three into its own table. */
  df_status (*segment_prepare)(void *device, const df_segment *segment, void **prepared,
                               df_error *error);
  df_status (*segment_run)(void *device, void *prepared, const df_run *run, df_error *error);
  void (*segment_release)(void *device, void *prepared);
} df_host;

/* ---- Kernels -------------------------------------------------------------------------------- */

/* How a product of float32 may be computed: as float32; with operands rounded to 10 bits of
 * mantissa (TF32) or better; with operands rounded to bfloat16; with operands split in three
 * bfloat16, which is as exact as float32 but for its rounding. Sums are float32 in each.
 * A device computes as float32 where it has no such algorithm. */
enum { DF_EXACT = 0, DF_TF32 = 1, DF_BF16 = 2, DF_BF16X6 = 3 };

/* A node at plan time: shapes, dtypes, strides and attributes, no data. */
typedef struct df_node {
  uint32_t struct_size;
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_attributes;
  const df_operand *const *inputs;
  const df_operand *const *outputs;
  const df_attribute *const *attributes;
  int32_t threads;   /* the session's thread count: work is split by shape and by this */
  int32_t flags;     /* bit i: input i is constant: what df_prepack asks of it is kept */
  int32_t precision; /* the least that float32 products may be computed with, e.g. DF_TF32 */
  int32_t algorithm; /* which of the kernel's algorithms is wanted: 1 + its number, or 0 for what
                      * the kernel finds best; see df_prepared */
  void *device;      /* the handle of the open device that will run it, as its functions get it;
                      * null where that isn't known, as in accepts */
} df_node;

/* A prepacked copy of one constant input that a kernel wants kept. The planner gives it persistent
 * memory, fills it by calling |prepack| when the operand's data changes, and passes it in
 * df_call.prepacked. It does so for the inputs that df_node.flags names; for others a kernel that
 * asks gets a null there. What |prepack| writes is a matter of the operand, the attributes, |kind|
 * and |bytes| alone: nodes of one kernel that agree in these share one copy, whatever their other
 * operands are. */
typedef struct df_prepack {
  uint32_t struct_size;
  int32_t input;
  int32_t kind; /* the kernel's own number of the form of the copy */
  int64_t bytes;
  void (*prepack)(const df_node *node, void *state, const void *source, void *prepacked);
} df_prepack;

enum { DF_MOST_PREPACKS = 4 };

/* What a kernel's prepare answers. The caller sets every struct_size, has memory for each prepack,
 * and zeroes the rest; df_ask_prepack of dataflow_inline.h asks for one. */
typedef struct df_prepared {
  uint32_t struct_size;
  int32_t n_prepacks;
  int64_t workspace; /* bytes, aligned to 64, contents unspecified at each run */
  void *state;       /* opaque, passed to run and to release */
  df_prepack *prepacks[4];
  int64_t replaced; /* bit i: a run that gets input i prepacked doesn't read the input, which may
                     * then have no memory; its address is not to be looked at */
  /* For a kernel that has several algorithms: their names, n_algorithms of them, the same for every
   * node; bit i of |possible|: number i can compute this node; the one that it will use, which is
   * the wanted one where that is possible. Plans avoid algorithms by name and try which is the
   * fastest. */
  const char *const *algorithms;
  int64_t possible;
  int32_t n_algorithms;
  int32_t algorithm;
} df_prepared;

/* One call of a kernel. */
typedef struct df_call {
  uint32_t struct_size;
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_attributes;
  const df_tensor *const *inputs;
  const df_tensor *const *outputs;
  const df_attribute *const *attributes;
  void *workspace;
  void *state;
  void *const *prepacked; /* by number of the prepack; null when there are none, or not this one */
  void *stream;           /* the device's own; null on a CPU */
  const df_host *host;
  df_error *error; /* text goes here before a status other than DF_OK is returned */
  int32_t threads;
  int32_t step;    /* index in the segment */
  df_fault *fault; /* in the device's memory, for what the host can't check; null on a CPU */
  /* On a device with DF_HANDLES the workspace and the prepacked copies begin so many bytes behind
   * the begin of the buffers that are named above; elsewhere 0 and null. */
  int64_t workspace_offset;
  const int64_t *prepacked_offsets;
} df_call;

/* Computes the outputs. Allocates nothing, keeps no global state, does not synchronize a device.
 * An index read from a tensor is checked before it is used. */
typedef df_status (*df_kernel_run)(const df_call *call);

/* |count| calls of one kernel that don't depend on each other, as one: for kernels that are called
 * many times in a row with little to do, like the step of an optimizer for each parameter. The
 * calls agree in dtypes and in which operands are absent; the status is that of the first that
 * fails. */
typedef df_status (*df_kernel_run_many)(const df_call *const *calls, int64_t count);

/* A kernel record: what it takes and its code. |operands| lists the dtypes it takes, inputs before
 * "->", outputs after it, separated by commas: "f32,f32->f32". One operand may have several,
 * "i32|i64"; "any" is every type that fits in an arena, those of later minors too, and each operand
 * has its own. A trailing "?" marks an operand that may be absent, a trailing "*" the last operand
 * repeated any number of times. "~" before the types says that the operand may have any strides:
 * zero along any of its axes or all, negative, with gaps, and a first element at any address of its
 * type; strides of axes of size 1 say nothing. Otherwise it must be contiguous, and the planner
 * makes it so. Of a result with any strides no two elements lie in one place. |inplace| lists which
 * outputs may overwrite which inputs, "0<0,0<1": same shape, dtype and strides. */
typedef struct df_kernel {
  uint32_t struct_size;
  int32_t priority; /* higher wins; a tie is an error */
  const char *op;   /* name of the op or of a pattern */
  const char *name; /* for messages */
  const char *operands;
  const char *inplace; /* may be null */
  /* Null when the kernel takes the node, else the reason why not: a static string. May be null. */
  const char *(*accepts)(const df_node *node);
  /* Chooses the algorithm at plan time. May be null: no workspace, no state. */
  df_status (*prepare)(const df_node *node, df_prepared *out, df_error *error);
  df_kernel_run run;
  void (*release)(void *state); /* may be null */
  int32_t capturable;           /* non-zero: may run inside a graph capture */
  df_kernel_run_many run_many;  /* may be null */
} df_kernel;

/* ---- Segments ------------------------------------------------------------------------------- */

typedef struct df_body df_body;

/* One step. Its operands are operands[first_operand ...]: inputs, outputs, then the workspace (one,
 * with arena -1 when there is none), then the prepacked copies. A step with a body has no kernel;
 * its operands say how often it runs. */
typedef struct df_step {
  uint32_t struct_size;
  int32_t first_operand;
  int32_t n_inputs;
  int32_t n_outputs;
  int32_t n_attributes;
  int32_t n_prepacks;
  const df_kernel *kernel;
  void *state;
  const df_attribute *const *attributes;
  const df_body *body;
} df_step;

/* One allocation. |base| is that of its df_buffer; a slot has none until a run gives it. */
typedef struct df_arena {
  uint32_t struct_size;
  int32_t slot; /* number of the slot, or -1 for memory that stays */
  void *base;
  int64_t bytes;
} df_arena;

/* A run of steps on one device. All that it points to stays alive until it is released. */
struct df_segment {
  uint32_t struct_size;
  int32_t n_steps;
  int32_t n_operands;
  int32_t n_arenas;
  const df_step *const *steps;
  const df_operand *const *operands;
  const df_arena *const *arenas;
  int32_t threads;
  int32_t flags;     /* DF_HANDLES of its device, or 0 */
  int32_t precision; /* the least that float32 products may be computed with, e.g. DF_TF32 */
  /* For a device with compile; else null. |key|: equal where all is that the steps compute with
   * (ops, kernels, attributes, types, strides, arenas and offsets, live outputs, threads), in other
   * processes too; not base and size of arenas, and states. |compiled|: what compile made. */
  const char *key;
  void *compiled;
};

/* A loop or branch in a segment: the steps of |segment| run |iterations| times, operands moving by
 * their iteration stride. A carried value is double-buffered: operands that belong to it are given
 * for even iterations and move by their buffer stride for odd ones. */
typedef struct df_buffer_stride {
  uint32_t struct_size;
  int32_t operand;  /* index into the body's operands */
  int64_t distance; /* bytes, added on odd iterations */
} df_buffer_stride;

/* How often a body runs.
 * DF_REPEAT: |iterations| times.
 * DF_WHEN: once when the step's input 0, a bool, is |when|, else not at all.
 * DF_WHILE: while the step's input 1, a bool, is true, and at most as often as its input 0, an
 * int64, says; one iteration more than |iterations| is an error. Before each iteration its number
 * is put into the step's output 0, an int64 that may be absent, and at the end the number of
 * iterations into output 1.
 */
enum { DF_REPEAT = 0, DF_WHEN = 1, DF_WHILE = 2 };

struct df_body {
  uint32_t struct_size;
  int32_t kind;
  int32_t when;
  int32_t n_buffer_strides;
  const df_segment *segment;
  int64_t iterations;
  const df_buffer_stride *const *buffer_strides;
};

/* What changes between runs. |slots| has an address per slot. |cancel| is polled between steps,
 * iterations and tasks; |calls| counts kernel calls. Either may be null. A device that runs
 * segments by the host's executor gives in |stream| and |fault| what kernels shall find in their
 * calls; |before| each call of a kernel, or loop, it learns which |count| steps of the segment,
 * from |first| on, that one runs. */
struct df_run {
  uint32_t struct_size;
  int32_t n_slots;
  void *const *slots;
  const volatile int32_t *cancel;
  int64_t *calls;
  void *stream;
  df_fault *fault;
  void (*before)(void *context, int32_t first, int32_t count); /* may be null */
  void *context;
};

/* ---- Devices -------------------------------------------------------------------------------- */

/* Memory of a device. |base| is an address, to which offsets are added, or with DF_HANDLES what the
 * device knows it by. It is never null. */
typedef struct df_buffer {
  uint32_t struct_size;
  void *base;
  int64_t bytes; /* as asked for; the caller sets it */
  void *owner;   /* the device's own */
} df_buffer;

enum { DF_COPY_TO_DEVICE = 1, DF_COPY_TO_HOST = 2, DF_COPY_WITHIN = 3 };

/* A contiguous copy of |bytes|. The host side is a plain address with offset 0. */
typedef struct df_copy {
  uint32_t struct_size;
  int32_t direction;
  void *to;
  int64_t to_offset;
  const void *from;
  int64_t from_offset;
  int64_t bytes;
} df_copy;

enum {
  /* the host can read and write it: shares the host's memory, needs no copies */
  DF_MEMORY_HOST = 1,
  /* run and copy may return before they are done; sync waits */
  DF_ASYNCHRONOUS = 2,
  /* segments may hold steps with bodies: loops run without coming back to the host */
  DF_BODIES = 4,
  /* copies within may come from the memory of another device of the same name */
  DF_PEERS = 8,
  /* the base of a buffer is a handle, to which nothing may be added: the host's executor gives
   * kernels base and offset apart */
  DF_HANDLES = 16,
  /* prepacked copies are made in the host's memory, and copied to the device's */
  DF_HOST_PREPACKS = 32,
  /* bodies may hold steps with bodies too; since 2.2 */
  DF_NESTED_BODIES = 64
};

/* A device. |self| comes first in every call. Those from alloc to release are required but for
 * sync; each that follows them may be null or 0. */
typedef struct df_device {
  uint32_t struct_size;
  int32_t flags;
  const char *name; /* "cpu", "cuda", ... as users type it */
  int32_t ordinal;
  int32_t alignment; /* bytes, of every value in an arena and of buffers; 0: 64. Views of values
                      * and users' arrays have their element's */
  const char *unavailable; /* null, or the reason why it can't be used */
  void *self;
  df_status (*alloc)(void *self, int64_t bytes, df_buffer *out, df_error *error);
  void (*free)(void *self, df_buffer *buffer);
  df_status (*copy)(void *self, const df_copy *copy, df_error *error);
  df_status (*sync)(void *self, df_error *error); /* null: nothing is ever pending */
  df_status (*prepare)(void *self, const df_segment *segment, void **prepared, df_error *error);
  df_status (*run)(void *self, void *prepared, const df_run *run, df_error *error);
  void (*release)(void *self, void *prepared);
  const df_kernel *const *kernels; /* n_kernels records */
  int64_t n_kernels;
  /* The names that open takes, "capture,device", all whole numbers. */
  const char *options;
  /* A handle for one session, which replaces |self| in every call from alloc to release;
   * |values| has a number per option, INT64_MIN for one that was not given. */
  df_status (*open)(void *self, const int64_t *values, void **opened, df_error *error);
  void (*close)(void *opened);
  /* Bytes that can still be allocated, and all that the device has. */
  df_status (*memory)(void *self, int64_t *available, int64_t *total, df_error *error);
  /* The prepared segment to which the step in the last error of sync belongs; null: not known. */
  void *(*failed)(void *self);
  /* What can be made of a segment without its addresses, once for all that are bound with one key,
   * by whichever thread is first; prepare finds it in df_segment.compiled. Base of arenas and state
   * of steps are not to be looked at. discard is called when no prepared segment uses it any more.
   */
  df_status (*compile)(void *self, const df_segment *segment, void **compiled, df_error *error);
  void (*discard)(void *self, void *compiled);
  /* Bytes of the largest buffer that alloc can make; 0: any. */
  int64_t largest_buffer;
  /* Memory of the host from which and to which copies are fast: for what plans transfer. |base| is
   * an address. */
  df_status (*alloc_staging)(void *self, int64_t bytes, df_buffer *out, df_error *error);
  void (*free_staging)(void *self, df_buffer *buffer);
  /* Nanoseconds that the last run of a prepared segment took by the device's own clock, after a
   * sync; for profiles. */
  df_status (*elapsed)(void *self, void *prepared, int64_t *nanoseconds, df_error *error);
} df_device;

/* What df_plugin_entry returns; static. A library may offer kernels for devices of other plugins;
 * its Python side says for which. The first three members are the same in every major. */
typedef struct df_plugin {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  int32_t n_devices;
  const char *name;
  const char *version;
  const df_device *const *devices;
  const df_kernel *const *kernels; /* n_kernels records; null: none */
  int64_t n_kernels;
} df_plugin;

/* The one symbol that a plugin library exports: const df_plugin *df_plugin_entry(const df_host
 * *host). */
typedef const df_plugin *(*df_plugin_entry_fn)(const df_host *host);

#ifdef __cplusplus
}
#endif
#endif
