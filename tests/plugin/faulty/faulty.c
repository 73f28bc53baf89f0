/* faulty.c: a device for each thing that a kernel may do wrong, and one that does nothing wrong. */
#define _GNU_SOURCE
#include <dataflow_inline.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

/* The usual beginning of a kernel of one operand: x, y and the number of elements. */
#define UNARY                                                                                      \
  const float *x = call->inputs[0]->data;                                                          \
  float *y = call->outputs[0]->data;                                                               \
  const int64_t n = df_elements(call->outputs[0])
#define RELU                                                                                       \
  for (int64_t i = 0; i < n; i++)                                                                  \
  y[i] = x[i] < 0 ? 0 : x[i]
/* relu, and something beside it. */
#define RELU_AND(name, ...)                                                                        \
  static df_status name(const df_call *call) {                                                     \
    UNARY;                                                                                         \
    RELU;                                                                                          \
    __VA_ARGS__;                                                                                   \
    return DF_OK;                                                                                  \
  }

static df_status copy(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const int64_t item = df_item_bytes(y->dtype);
  for (int64_t i = 0, n = df_elements(y); i < n; i++) {
    int64_t at = 0, rest = i;
    for (int32_t axis = x->rank - 1; axis >= 0; rest /= x->shape[axis--])
      at += rest % x->shape[axis] * x->strides[axis];
    memcpy((char *)y->data + i * item, (const char *)x->data + at * item, (size_t)item);
  }
  return DF_OK;
}

/* ---- Nothing wrong -------------------------------------------------------------------------- */

RELU_AND(right, (void)0)

/* ---- Memory --------------------------------------------------------------------------------- */

RELU_AND(writes_behind, y[n] = 0)
RELU_AND(writes_far_behind, y[n + 63] = 0)
RELU_AND(writes_before, y[-1] = 0)
RELU_AND(writes_far_before, y[-64] = 0)
RELU_AND(reads_behind, volatile float t = x[n]; (void)t)
RELU_AND(reads_far_behind, volatile float t = x[n + 64]; (void)t)
RELU_AND(reads_before, volatile float t = x[-1]; (void)t)
RELU_AND(overwrites_input, if (n)((float *)x)[n - 1] = 0)
RELU_AND(
    overwrites_and_restores, if (n) {
      float old = x[0];
      ((volatile float *)x)[0] = 1;
      ((volatile float *)x)[0] = old;
    })
RELU_AND(leaks, volatile char *lost = malloc(48); lost[0] = 1)
RELU_AND(leaks_pages, volatile char *lost = malloc(1 << 20); lost[0] = 1)
RELU_AND(leaks_files, if (open("/dev/null", O_RDONLY) < 0) return DF_INTERNAL)
RELU_AND(frees_twice, char *volatile p = malloc(2000); free(p); free(p))

static df_status unwritten(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i + 1 < n; i++)
    y[i] = x[i] < 0 ? 0 : x[i];
  return DF_OK;
}

/* Right only where fresh memory is zero. */
static df_status zeros_unwritten(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    if (!(x[i] <= 0))
      y[i] = x[i];
  return DF_OK;
}

static df_status reads_result(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[i] = 0 * y[i] + (x[i] < 0 ? 0 : x[i]);
  return DF_OK;
}

/* Correct but where y lies over x. */
static df_status unsafe_in_place(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[n - 1 - i] = x[i] < 0 ? 0 : x[i];
  for (int64_t i = 0; i < n / 2; i++) {
    float t = y[i];
    y[i] = y[n - 1 - i], y[n - 1 - i] = t;
  }
  return DF_OK;
}

static df_status vector_write(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i += 4)
    for (int64_t j = i; j < i + 4; j++)
      y[j] = x[j] < 0 ? 0 : x[j];
  return DF_OK;
}

static df_status wants_alignment(const df_call *call) {
  UNARY;
  if ((uintptr_t)x % 16 && n)
    raise(SIGBUS);
  RELU;
  return DF_OK;
}

static df_status one_workspace(const df_node *node, df_prepared *out, df_error *error) {
  (void)node, (void)error;
  out->workspace = 64;
  return DF_OK;
}
RELU_AND(overruns_workspace, memset(call->workspace, 0, 80))
static df_status reads_workspace(const df_call *call) {
  UNARY;
  RELU;
  if (n && ((unsigned char *)call->workspace)[0] == 0x55)
    y[0] = nextafterf(y[0], 9);
  return DF_OK;
}

/* A state that nothing releases. */
static df_status leaks_state(const df_node *node, df_prepared *out, df_error *error) {
  (void)node, (void)error;
  out->state = malloc(100);
  return out->state ? DF_OK : DF_OUT_OF_MEMORY;
}
static int64_t last_size;
static df_status notes_size(const df_node *node, df_prepared *out, df_error *error) {
  (void)out, (void)error;
  last_size = df_operand_elements(node->inputs[0]);
  return DF_OK;
}
static df_status keeps_last(const df_call *call) {
  const float *x = call->inputs[0]->data;
  float *y = call->outputs[0]->data;
  for (int64_t i = 0; i < df_elements(call->outputs[0]); i++)
    y[i] = i >= last_size ? 7 : x[i] < 0 ? 0 : x[i];
  return DF_OK;
}
static df_status no_seventeen(const df_node *node, df_prepared *out, df_error *error) {
  (void)out;
  if (df_operand_elements(node->inputs[0]) != 17)
    return DF_OK;
  snprintf(error->text, sizeof error->text, "not of 17 elements");
  return error->code = DF_UNSUPPORTED;
}

static void long_prepack(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)node, (void)state;
  memcpy(prepacked, source, 4);
  memset((char *)prepacked + 64, 0, 64);
}
static df_status asks_prepack(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  if (node->flags & 2)
    df_ask_prepack(out, 1, 0, 64, long_prepack);
  return DF_OK;
}

/* ---- Values --------------------------------------------------------------------------------- */

static df_status no_tail(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[i] = (x[i] < 0 ? 0 : x[i]) + (i < n / 8 * 8 ? 0 : 1);
  return DF_OK;
}
static df_status loses_nan(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[i] = x[i] > 0 ? x[i] : 0;
  return DF_OK;
}
static df_status clamps_infinity(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[i] = x[i] < 0 ? 0 : x[i] > 1e30f ? 1e30f : x[i];
  return DF_OK;
}
/* neg as 0 - x: +0 for +0. */
static df_status loses_sign_of_zero(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    y[i] = 0 - x[i];
  return DF_OK;
}
/* exp of float16 as if it was bfloat16, and bfloat16 as if it was float16. */
static df_status other_half(const df_call *call) {
  const int64_t n = df_elements(call->outputs[0]);
  if (call->inputs[0]->dtype == DF_FLOAT32) {
    for (int64_t i = 0; i < n; i++)
      ((float *)call->outputs[0]->data)[i] = expf(((const float *)call->inputs[0]->data)[i]);
    return DF_OK;
  }
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = (uint32_t)((const uint16_t *)call->inputs[0]->data)[i] << 16;
    float v;
    memcpy(&v, &bits, 4);
    v = call->inputs[0]->dtype == DF_FLOAT16 ? expf(v) : v;
    memcpy(&bits, &v, 4);
    ((uint16_t *)call->outputs[0]->data)[i] = (uint16_t)(bits >> 16);
  }
  return DF_OK;
}
/* abs that takes 64-bit integers for 32-bit ones. */
static df_status half_integers(const df_call *call) {
  const int64_t words = df_elements(call->outputs[0]) * df_item_bytes(call->outputs[0]->dtype) / 4;
  const int32_t *x = call->inputs[0]->data;
  int32_t *y = call->outputs[0]->data;
  for (int64_t i = 0; i < words; i++)
    y[i] = x[i] < 0 ? -x[i] : x[i];
  return DF_OK;
}
static df_status long_true(const df_call *call) {
  const float *a = call->inputs[0]->data, *b = call->inputs[1]->data;
  const df_tensor *y = call->outputs[0];
  for (int64_t i = 0, n = df_elements(y); i < n; i++)
    ((unsigned char *)y->data)[i] =
        a[i % df_elements(call->inputs[0])] > b[i % df_elements(call->inputs[1])] ? 255 : 0;
  return DF_OK;
}
/* relu of any strides that reads the last axis of each row only as contiguous or reversed. */
static df_status some_strides(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  for (int64_t i = 0, n = df_elements(y); i < n; i++) {
    int64_t at = 0, rest = i;
    for (int32_t axis = x->rank - 1; axis >= 0; rest /= x->shape[axis--])
      at += rest % x->shape[axis] * (x->strides[axis] ? llabs(x->strides[axis]) : 1);
    const float v = ((const float *)x->data)[at];
    ((float *)y->data)[i] = v < 0 ? 0 : v;
  }
  return DF_OK;
}
/* add that repeats the shorter operand as if only leading axes were broadcast. */
static df_status wrong_broadcast(const df_call *call) {
  const df_tensor *a = call->inputs[0], *b = call->inputs[1], *y = call->outputs[0];
  const int64_t n = df_elements(y), na = df_elements(a), nb = df_elements(b);
  for (int64_t i = 0; i < n; i++)
    ((float *)y->data)[i] = ((const float *)a->data)[i % na] + ((const float *)b->data)[i % nb];
  return DF_OK;
}
/* softmax of the axis that it takes for the last: where it says -1 that is right. */
static df_status wrong_axis(const df_call *call) {
  UNARY;
  const df_tensor *t = call->inputs[0];
  const int64_t axis = df_attr_int(call, 0) < 0 ? 0 : df_attr_int(call, 0);
  const int64_t size = t->rank ? t->shape[axis] : 1;
  int64_t inner = 1;
  for (int32_t a = t->rank - 1; a > axis; a--)
    inner *= t->shape[a];
  for (int64_t outer = 0; size && inner && outer < n / (size * inner); outer++)
    for (int64_t j = 0; j < inner; j++) {
      const int64_t base = outer * size * inner + j;
      float top = -INFINITY, sum = 0;
      for (int64_t i = 0; i < size; i++)
        top = fmaxf(top, x[base + i * inner]);
      for (int64_t i = 0; i < size; i++)
        sum += y[base + i * inner] = expf(x[base + i * inner] - top);
      for (int64_t i = 0; i < size; i++)
        y[base + i * inner] /= sum;
    }
  return DF_OK;
}
static df_status refuses(const df_call *call) {
  UNARY;
  RELU;
  return n % 2 ? df_fail(call, DF_INTERNAL, "an odd number of elements") : DF_OK;
}
static df_status gathers(const df_call *call, int checks) {
  const df_tensor *x = call->inputs[0], *at = call->inputs[1], *y = call->outputs[0];
  int64_t inner = 1, axis = df_axis(call, 0, x->rank);
  for (int32_t a = x->rank - 1; a > axis; a--)
    inner *= x->shape[a];
  const int64_t count = df_elements(at), size = x->shape[axis];
  const int64_t outer = count && inner ? df_elements(y) / (count * inner) : 0;
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < count; i++) {
      int64_t index =
          at->dtype == DF_INT64 ? ((const int64_t *)at->data)[i] : ((const int32_t *)at->data)[i];
      index = index < 0 ? index + size : index;
      if (index < 0 || index >= size) {
        if (checks)
          return df_fail(call, DF_INVALID, "an index out of range");
        index = 0;
      }
      memcpy((float *)y->data + (o * count + i) * inner,
             (const float *)x->data + (o * size + index) * inner, (size_t)inner * 4);
    }
  return DF_OK;
}
static df_status silent_index(const df_call *call) { return gathers(call, 0); }
static df_status checked_index(const df_call *call) { return gathers(call, 1); }
/* A sum over no elements is 0. */
static df_status empty_sum(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  const int64_t n = df_elements(y), m = n ? df_elements(x) / n : 0;
  for (int64_t i = 0; m && i < n; i++) {
    double sum = 0;
    for (int64_t j = 0; j < m; j++)
      sum += ((const float *)x->data)[i * m + j];
    ((float *)y->data)[i] = (float)sum;
  }
  return DF_OK;
}
static const char *last_axis(const df_node *node) {
  int32_t count = 0;
  const int64_t *axes = df_attr_ints(node, 0, &count);
  const int32_t rank = node->inputs[0]->rank;
  return count == 1 && df_axis_of(axes[0], rank) == rank - 1 ? NULL : "the last axis alone";
}

/* ---- State ---------------------------------------------------------------------------------- */

static float scratch[100000];
static df_status shared_scratch(const df_call *call) {
  UNARY;
  for (int64_t i = 0; i < n; i++)
    scratch[i] = x[i] < 0 ? 0 : x[i];
  for (int64_t i = n - 1; i >= 0; i--)
    y[i] = scratch[i];
  return DF_OK;
}
static int64_t calls;
RELU_AND(counts, if (n && ++calls % 2) y[0] = nextafterf(y[0], 9))
RELU_AND(
    by_the_clock, if (n) {
      struct timespec now;
      clock_gettime(CLOCK_MONOTONIC, &now);
      y[0] += 1e-9f * (float)(now.tv_nsec % 1000);
    })

/* ---- The process ---------------------------------------------------------------------------- */

RELU_AND(crashes, *(volatile int *)8 = 1)
RELU_AND(aborts, abort())
RELU_AND(hangs, for (volatile int stop = 0; !stop;))
RELU_AND(exits, exit(0))
RELU_AND(exits_at_once, _exit(3))
RELU_AND(raises_kill, raise(SIGTERM))
RELU_AND(traps, raise(SIGFPE))
RELU_AND(prints, printf("relu was here\n"))
RELU_AND(rounds_up, fesetround(FE_UPWARD))
RELU_AND(rounds_to_zero, fesetround(FE_TOWARDZERO))
#ifdef __x86_64__
RELU_AND(flushes_subnormals, _mm_setcsr(_mm_getcsr() | 0x8040))
#endif
RELU_AND(sets_locale, setlocale(LC_ALL, "C"))
RELU_AND(changes_folder, if (chdir("/")) return DF_INTERNAL)
RELU_AND(sets_umask, umask(0777))
RELU_AND(blocks_signals, sigset_t set; sigemptyset(&set); sigaddset(&set, SIGUSR1);
         pthread_sigmask(SIG_BLOCK, &set, NULL))
RELU_AND(takes_signals, signal(SIGUSR2, SIG_IGN))
RELU_AND(closes_a_file, close(0))
RELU_AND(closes_all_files, for (int i = 3; i < 1024; i++) close(i))
static void *sleeping(void *context) {
  sleep(600);
  return context;
}
RELU_AND(leaves_threads, pthread_t thread;
         if (pthread_create(&thread, NULL, sleeping, NULL)) return DF_INTERNAL;
         pthread_detach(thread))
RELU_AND(
    leaves_processes, if (fork() == 0) {
      prctl(PR_SET_NAME, "left-by-kernel");
      sleep(600);
      _exit(0);
    })
static const char *crashing_accepts(const df_node *node) {
  (void)node;
  return *(const char *volatile *)8;
}
static df_status crashing_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)node, (void)error;
  *(volatile int *)8 = 1;
  out->workspace = 0;
  return DF_OK;
}

/* ---- Records -------------------------------------------------------------------------------- */

#define RECORD(fault, of, takes, ...)                                                              \
  static const df_kernel fault##_kernel = {.struct_size = sizeof(df_kernel),                       \
                                           .op = of,                                               \
                                           .name = #fault,                                         \
                                           .operands = takes,                                      \
                                           .run = __VA_ARGS__};
/* clang-format off */
#define RELUS(X) \
  X(right) X(writes_behind) X(writes_far_behind) X(writes_before) X(writes_far_before) X(reads_behind) \
  X(reads_far_behind) X(reads_before) X(overwrites_input) X(overwrites_and_restores) X(leaks) X(leaks_pages) \
  X(leaks_files) X(frees_twice) X(unwritten) X(zeros_unwritten) X(reads_result) X(vector_write) \
  X(wants_alignment) X(no_tail) X(loses_nan) X(clamps_infinity) X(refuses) X(shared_scratch) \
  X(counts) X(by_the_clock) X(crashes) X(aborts) X(hangs) X(exits) \
  X(exits_at_once) X(raises_kill) X(traps) X(prints) X(rounds_up) X(rounds_to_zero) \
  X(sets_locale) X(changes_folder) X(sets_umask) X(blocks_signals) X(takes_signals) X(closes_a_file) \
  X(closes_all_files) X(leaves_threads) X(leaves_processes)
/* clang-format on */
#define RELU_RECORD(fault) RECORD(fault, "relu", "f32->f32", fault)
RELUS(RELU_RECORD)
RECORD(unsafe_in_place, "relu", "f32->f32", unsafe_in_place, .inplace = "0<0")
RECORD(overruns_workspace, "relu", "f32->f32", overruns_workspace, .prepare = one_workspace)
RECORD(reads_workspace, "relu", "f32->f32", reads_workspace, .prepare = one_workspace)
RECORD(leaks_prepared, "relu", "f32->f32", right, .prepare = leaks_state)
RECORD(keeps_last_prepared, "relu", "f32->f32", keeps_last, .prepare = notes_size)
RECORD(declines, "relu", "f32->f32", right, .prepare = no_seventeen)
RECORD(loses_sign_of_zero, "neg", "f32->f32", loses_sign_of_zero)
RECORD(claims_float16, "exp", "f32|f16->f32|f16", other_half)
RECORD(claims_bfloat16, "exp", "f32|bf16->f32|bf16", other_half)
RECORD(claims_int64, "abs", "i32|i64->i32|i64", half_integers)
RECORD(claims_nothing_there, "relu", "f32|bool->f32|bool", right)
RECORD(long_true, "greater", "f32,f32->bool", long_true)
RECORD(some_strides, "relu", "~f32->f32", some_strides)
RECORD(wrong_broadcast, "add", "f32,f32->f32", wrong_broadcast)
RECORD(overruns_prepack, "add", "f32,f32->f32", wrong_broadcast, .prepare = asks_prepack)
RECORD(wrong_axis, "softmax", "f32->f32", wrong_axis)
RECORD(silent_index, "gather", "f32,i32|i64->f32", silent_index)
RECORD(checked_index, "gather", "f32,i32|i64->f32", checked_index)
RECORD(empty_sum, "reduce_sum", "f32->f32", empty_sum, .accepts = last_axis)
RECORD(crashing_accepts, "relu", "f32->f32", right, .accepts = crashing_accepts)
RECORD(crashing_prepare, "relu", "f32->f32", right, .prepare = crashing_prepare)
RECORD(unsampled, "no_such_op", "f32->f32", right)
RECORD(hidden, "relu", "f32->f32", no_tail, .priority = -1)
RECORD(copies, "copy", "~any->any", copy)
#ifdef __x86_64__
RELU_RECORD(flushes_subnormals)
#define MORE(X) X(flushes_subnormals)
#else
#define MORE(X)
#endif
/* clang-format off */
#define OTHERS(X) \
  X(leaks_prepared) X(keeps_last_prepared) X(declines) \
  X(unsafe_in_place) X(overruns_workspace) X(reads_workspace) X(loses_sign_of_zero) X(claims_float16) X(claims_bfloat16) \
  X(claims_int64) X(claims_nothing_there) X(long_true) X(some_strides) X(wrong_broadcast) X(overruns_prepack) \
  X(wrong_axis) X(silent_index) X(checked_index) X(empty_sum) X(crashing_accepts) X(crashing_prepare) \
  X(unsampled)
/* clang-format on */

#define LIST(fault)                                                                                \
  static const df_kernel *const fault##_list[] = {&fault##_kernel, &copies_kernel};
RELUS(LIST)
OTHERS(LIST)
MORE(LIST)
static const df_kernel *const hidden_list[] = {&right_kernel, &copies_kernel, &hidden_kernel};

/* ---- Devices -------------------------------------------------------------------------------- */

static df_status take(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  out->base = out->owner = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
  out->bytes = bytes;
  return out->base ? DF_OK : (error->code = DF_OUT_OF_MEMORY);
}
static df_status take_unaligned(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  df_status status = take(self, bytes + 64, out, error);
  out->base = (char *)out->base + 4;
  return status;
}
static void give(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->owner);
}
static df_status move(void *self, const df_copy *c, df_error *error) {
  (void)self, (void)error;
  memmove((char *)c->to + c->to_offset, (const char *)c->from + c->from_offset, (size_t)c->bytes);
  return DF_OK;
}
static df_status move_from_start(void *self, const df_copy *c, df_error *error) {
  (void)self, (void)error;
  memmove((char *)c->to + c->to_offset, c->from, (size_t)c->bytes);
  return DF_OK;
}
static const df_host *host;
/* The status of a run that failed is lost, as where a device never asks for it. */
static df_status run_and_forget(void *self, void *prepared, const df_run *run, df_error *error) {
  (void)host->segment_run(self, prepared, run, error);
  memset(error, 0, sizeof *error);
  return DF_OK;
}

#define DEVICE(fault, memory, list, takes, moves, runs)                                            \
  {.struct_size = sizeof(df_device),                                                               \
   .flags = memory,                                                                                \
   .name = #fault,                                                                                 \
   .alignment = 64,                                                                                \
   .alloc = takes,                                                                                 \
   .free = give,                                                                                   \
   .copy = moves,                                                                                  \
   .prepare = given->segment_prepare,                                                              \
   .run = runs,                                                                                    \
   .release = given->segment_release,                                                              \
   .kernels = list,                                                                                \
   .n_kernels = sizeof list / sizeof *list},
#define ON_HOST(fault) DEVICE(fault, DF_MEMORY_HOST, fault##_list, take, move, given->segment_run)

const df_plugin *df_plugin_entry(const df_host *given) {
  static df_device devices[96];
  static const df_device *listed[96];
  host = given;
  const df_device made[] = {
      RELUS(ON_HOST) OTHERS(ON_HOST) MORE(ON_HOST) DEVICE(
          hidden, DF_MEMORY_HOST, hidden_list, take, move,
          given->segment_run) DEVICE(far, 0, right_list, take, move, given->segment_run)
          DEVICE(far_writes_behind, 0, writes_behind_list, take, move, given->segment_run) DEVICE(
              allocates_unaligned, 0, right_list, take_unaligned, move, given->segment_run)
              DEVICE(copies_from_start, 0, right_list, take, move_from_start, given->segment_run)
                  DEVICE(forgets_status, 0, checked_index_list, take, move, run_and_forget)};
  int32_t count = (int32_t)(sizeof made / sizeof *made);
  memcpy(devices, made, sizeof made);
  for (int32_t i = 0; i < count; i++)
    listed[i] = &devices[i];
  static df_plugin plugin;
  plugin = (df_plugin){.struct_size = sizeof plugin,
                       .abi_major = DF_ABI_MAJOR,
                       .abi_minor = DF_ABI_MINOR,
                       .n_devices = count,
                       .name = "faulty",
                       .version = "1",
                       .devices = listed};
  return &plugin;
}
