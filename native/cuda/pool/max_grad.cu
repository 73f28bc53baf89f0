/* pool/max_grad.cu: dx = 0, then dx[indices] += dy in the order of y, plane by plane.
 *
 * The op knows indices, not windows, and several windows may have found the same element. A block
 * keeps a strip of dx in registers and goes round: each element takes, of the outputs that name
 * it, the first one that it has not had yet. So sums have the order of y, whatever the timing, and
 * there is one round where windows don't overlap. A strip is some complete planes or a section of
 * one; to skip what does not concern a section, a launch before finds the least and largest index
 * of each run of outputs, and a block finds the first and the last run that may concern its own.
 */
#include "map/map.h"

enum {
  HELD = 16,               /* elements of a strip that a thread sums up */
  STRIP = HELD * DF_BLOCK, /* elements of a strip */
  RUN = 1024,              /* outputs whose least and largest index are known */
  NOWHERE = -1,            /* index of a window that lies entirely in the padding */
  NONE = INT32_MAX
};

struct job {
  float *dx;
  const float *dy;
  const int32_t *indices;
  int2 *bounds; /* [plane][run]: least and largest index; null when strips are complete planes */
  int64_t planes, in_size, out_size;
  int64_t planes_each;  /* of a strip */
  int64_t strips, runs; /* of a plane */
  int64_t length;       /* elements of a strip */
  df_fault *fault;
  int32_t step;
};

static int64_t strip_count(int64_t in_size) { return df_max(1, df_divide_up(in_size, STRIP)); }

static __device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }
static __device__ __forceinline__ int larger(int a, int b) { return a > b ? a : b; }

struct least {
  __device__ int operator()(int a, int b) const { return smaller(a, b); }
};
struct largest {
  __device__ int operator()(int a, int b) const { return larger(a, b); }
};

__global__ void __launch_bounds__(DF_BLOCK) find_bounds(job j) {
  DF_SHARED_ARRAY(int, scratch, [DF_WARP]);
  const int64_t plane = blockIdx.x / j.runs, run = blockIdx.x % j.runs;
  const int64_t end = df_min(j.out_size, (run + 1) * RUN);
  int low = NONE, high = NOWHERE;
  for (int64_t o = run * RUN + threadIdx.x; o < end; o += DF_BLOCK) {
    const int index = j.indices[plane * j.out_size + o];
    if (index == NOWHERE)
      continue;
    low = smaller(low, index);
    high = larger(high, index);
  }
  low = df_block_join(low, int{NONE}, scratch, least{});
  high = df_block_join(high, int{NOWHERE}, scratch, largest{});
  if (threadIdx.x == 0)
    j.bounds[blockIdx.x] = int2{low, high};
}

/* Of the outputs |o|, |o| + DF_BLOCK, ... before |end|, counted from the strip's first: offers each
 * to the element that it names, if that has not had it. Returns whether one had two offers. */
static __device__ __forceinline__ int offer(const job &j, const int32_t *indices, int o, int end,
                                            int64_t first, int length, const int *had, int *next) {
  int again = 0;
  for (; o < end; o += DF_BLOCK) {
    const int64_t index = indices[o];
    if (index < 0 || index >= j.in_size)
      continue;
    /* Several planes have no more outputs than a strip has elements. */
    const int plane = j.planes_each > 1 ? o / static_cast<int>(j.out_size) : 0;
    const int64_t at = plane * j.in_size + index - first;
    if (at >= 0 && at < length && o > had[at])
      again |= atomicMin(&next[at], o) != NONE;
  }
  return again;
}

/* Whether a run of outputs may name one of |length| elements from |first| on. */
static __device__ __forceinline__ bool concerns(const int2 &bounds, int64_t first, int length) {
  return bounds.x < first + length && bounds.y >= first;
}

__global__ void __launch_bounds__(DF_BLOCK, 4) add_up(job j) {
  DF_SHARED_ARRAY(int, had, [STRIP]);
  DF_SHARED_ARRAY(int, next, [STRIP]); /* the last output that was added; the one to add */
  DF_SHARED_ARRAY(int, scratch, [DF_WARP]);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t plane = blockIdx.x / j.strips * j.planes_each, strip = blockIdx.x % j.strips;
  const int64_t some = df_min(j.planes_each, j.planes - plane);
  const int64_t first = strip * j.length; /* of the plane */
  const int length = static_cast<int>(df_min(j.length, some * j.in_size - first));
  const int outputs = static_cast<int>(some * j.out_size);
  const int32_t *indices = j.indices + plane * j.out_size;
  const float *dy = j.dy + plane * j.out_size;
  if (strip == 0)
    for (int o = thread; o < outputs; o += DF_BLOCK)
      if (indices[o] != NOWHERE && (indices[o] < 0 || indices[o] >= j.in_size))
        df_fault_note(j.fault, j.step, indices[o], j.in_size);
  float sums[HELD] = {};
  for (int at = thread; at < length; at += DF_BLOCK) {
    had[at] = -1;
    next[at] = NONE;
  }
  int first_run = NONE, last_run = -1;
  for (int run = thread; j.bounds && run < j.runs; run += DF_BLOCK)
    if (concerns(j.bounds[plane * j.runs + run], first, length)) {
      first_run = smaller(first_run, run);
      last_run = run;
    }
  first_run = df_block_join(first_run, int{NONE}, scratch, least{});
  last_run = df_block_join(last_run, -1, scratch, largest{});
  __syncthreads();
  for (;;) {
    int more = 0;
    if (j.bounds) {
      for (int64_t run = first_run; run <= last_run; run++) {
        if (concerns(j.bounds[plane * j.runs + run], first, length))
          more |=
              offer(j, indices, static_cast<int>(run * RUN) + thread,
                    static_cast<int>(df_min(outputs, (run + 1) * RUN)), first, length, had, next);
      }
    } else {
      more = offer(j, indices, thread, outputs, first, length, had, next);
    }
    const int rest = __syncthreads_or(more);
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const int at = thread + k * DF_BLOCK, o = at < length ? next[at] : int{NONE};
      if (o == NONE)
        continue;
      sums[k] += dy[o];
      had[at] = o;
      next[at] = NONE;
    }
    __syncthreads();
    if (!rest)
      break;
  }
  float *dx = j.dx + plane * j.in_size + first;
#pragma unroll
  for (int k = 0; k < HELD; k++)
    if (thread + k * DF_BLOCK < length)
      dx[thread + k * DF_BLOCK] = sums[k];
}

static int64_t run_count(int64_t out_size) { return df_max(1, df_divide_up(out_size, RUN)); }

/* Workspace for the bounds. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *dy = node->inputs[0], *dx = node->outputs[0];
  const int64_t in_size = df_product(dx->shape, 2, dx->rank);
  const int64_t out_size = df_product(dy->shape, 2, dy->rank);
  if (strip_count(in_size) > 1)
    out->workspace =
        dx->shape[0] * dx->shape[1] * run_count(out_size) * static_cast<int64_t>(sizeof(int2));
  return DF_OK;
}

static df_status run(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  if (df_elements(dx) == 0)
    return DF_OK;
  job j{};
  j.dx = df_out<float>(call, 0);
  j.dy = df_in<const float>(call, 0);
  j.indices = df_in<const int32_t>(call, 1);
  j.planes = dx->shape[0] * dx->shape[1];
  j.in_size = df_product(dx->shape, 2, dx->rank);
  j.out_size = df_product(dy->shape, 2, dy->rank);
  j.strips = strip_count(j.in_size);
  j.runs = run_count(j.out_size);
  /* Planes of a strip: their outputs are counted by an int. */
  j.planes_each =
      j.strips > 1 ? 1 : df_max(1, df_min(STRIP / j.in_size, STRIP / df_max(1, j.out_size)));
  j.length = j.strips > 1 ? df_divide_up(j.in_size, j.strips) : j.planes_each * j.in_size;
  j.fault = call->fault;
  j.step = call->step;
  if (j.strips > 1 && j.out_size > 0) {
    j.bounds = static_cast<int2 *>(call->workspace);
    const df_status status =
        DF_LAUNCH(call, find_bounds, df_blocks(j.planes * j.runs, 1), DF_BLOCK, 0, j);
    if (status)
      return status;
  }
  const int64_t blocks = df_divide_up(j.planes, j.planes_each) * j.strips;
  return DF_LAUNCH(call, add_up, df_blocks(blocks, 1), DF_BLOCK, 0, j);
}

static const char *accepts(const df_node *node) {
  const df_operand *dy = node->inputs[0], *dx = node->outputs[0];
  if (dx->rank < 3)
    return "there is no spatial axis";
  /* An int counts a block beyond the last output. */
  if (df_product(dx->shape, 2, dx->rank) > INT32_MAX ||
      df_product(dy->shape, 2, dy->rank) > INT32_MAX - RUN)
    return "a plane has more elements than an int32 index can name";
  return nullptr;
}

static const df_kernel records[] = {DF_CUDA_KERNEL("max_pool_grad", "f32", "f32,i32->f32", nullptr,
                                                   .accepts = accepts, .prepare = prepare,
                                                   .run = run, .capturable = 1)};
DF_CUDA_FAMILY(pool_max_grad, records);
