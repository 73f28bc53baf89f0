/* shape/shape.cu: ops that only move elements: copy, concat, pad, slice_grad.
 *
 * Each reads and writes every element once. Rows that are dense on both sides move 16 bytes at a
 * time; where the two sides are dense along different axes, squares of 32 by 32 elements go through
 * shared memory, so that both are read and written in full lines.
 */
#include "shape/copy.h"

enum { TILE = 32, TILE_ROWS = 8 };

/* ---- A box of elements ---------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK)
    copy_strided(T *to, const T *from, int64_t n, df_walk<2> walk) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset[2];
  walk.offsets(i, offset);
  to[offset[1]] = from[offset[0]];
}

/* Four elements of 4 bytes that lie side by side on both sides; 16 bytes at a time on a side where
 * each four is aligned. */
template <bool FROM_ALIGNED, bool TO_ALIGNED>
__global__ void __launch_bounds__(DF_BLOCK)
    copy_fours(uint32_t *to, const uint32_t *from, int64_t n, df_walk<2> walk) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset[2];
  walk.offsets(i, offset);
  from += offset[0];
  to += offset[1];
  const uint4 four = FROM_ALIGNED ? *reinterpret_cast<const uint4 *>(from)
                                  : uint4{from[0], from[1], from[2], from[3]};
  if (TO_ALIGNED) {
    *reinterpret_cast<uint4 *>(to) = four;
  } else {
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
  }
}

/* The axes |a|, along which the source is dense, and |b|, along which the target is. */
struct transpose_shape {
  int64_t a, b;         /* sizes */
  int64_t from_b, to_a; /* strides of the other axis */
  int64_t tiles_a, tiles_b;
};

template <typename T>
__global__ void __launch_bounds__(TILE *TILE_ROWS)
    copy_transposed(T *to, const T *from, transpose_shape s, df_walk<2> outer) {
  DF_SHARED_ARRAY(T, square, [TILE][TILE + 1]);
  int64_t tile = blockIdx.x;
  const int64_t b0 = tile % s.tiles_b * TILE;
  tile /= s.tiles_b;
  const int64_t a0 = tile % s.tiles_a * TILE;
  int64_t offset[2];
  outer.offsets(tile / s.tiles_a, offset);
  const int x = threadIdx.x, y = threadIdx.y;
  for (int r = y; r < TILE; r += TILE_ROWS)
    if (a0 + x < s.a && b0 + r < s.b)
      square[r][x] = from[offset[0] + (b0 + r) * s.from_b + a0 + x];
  __syncthreads();
  for (int r = y; r < TILE; r += TILE_ROWS)
    if (b0 + x < s.b && a0 + r < s.a)
      to[offset[1] + (a0 + r) * s.to_a + b0 + x] = square[x][r];
}

/* Twice the item while both sides, their strides and the rows allow it, up to 16 bytes. */
static int64_t widen(df_walk<2> *walk, const void *to, const void *from, int64_t item) {
  const int32_t last = walk->rank - 1;
  while (item < 16 && walk->strides[0][last] == 1 && walk->strides[1][last] == 1 &&
         walk->shape[last] % 2 == 0 && reinterpret_cast<uintptr_t>(to) % (2 * item) == 0 &&
         reinterpret_cast<uintptr_t>(from) % (2 * item) == 0) {
    for (int32_t axis = 0; axis < last; axis++)
      if (walk->strides[0][axis] % 2 || walk->strides[1][axis] % 2)
        return item;
    for (int32_t axis = 0; axis < last; axis++) {
      walk->strides[0][axis] /= 2;
      walk->strides[1][axis] /= 2;
    }
    walk->shape[last] /= 2;
    walk->divisor[last] = df_divisor_of(walk->shape[last]);
    item *= 2;
  }
  return item;
}

/* Whether each four of the last axis, of 4 bytes an element, begins at 16 bytes. */
static bool is_fours(const df_walk<2> &walk, int side, const void *at) {
  bool even = reinterpret_cast<uintptr_t>(at) % 16 == 0;
  for (int32_t axis = 0; axis < walk.rank - 1; axis++)
    even = even && walk.strides[side][axis] % 4 == 0;
  return even;
}

/* Rows of fours of which one side at most is aligned: |n| elements of 4 bytes. */
static df_status launch_fours(const df_call *call, void *to, const void *from, int64_t n,
                              df_walk<2> walk) {
  const bool from_aligned = is_fours(walk, 0, from), to_aligned = is_fours(walk, 1, to);
  const int32_t last = walk.rank - 1;
  walk.shape[last] /= 4;
  walk.divisor[last] = df_divisor_of(walk.shape[last]);
  walk.strides[0][last] = walk.strides[1][last] = 4;
  uint32_t *target = static_cast<uint32_t *>(to);
  const uint32_t *source = static_cast<const uint32_t *>(from);
  const unsigned blocks = df_blocks(n / 4, DF_BLOCK);
  if (from_aligned)
    return DF_LAUNCH(call, (copy_fours<true, false>), blocks, DF_BLOCK, 0, target, source, n / 4,
                     walk);
  if (to_aligned)
    return DF_LAUNCH(call, (copy_fours<false, true>), blocks, DF_BLOCK, 0, target, source, n / 4,
                     walk);
  return DF_LAUNCH(call, (copy_fours<false, false>), blocks, DF_BLOCK, 0, target, source, n / 4,
                   walk);
}

/* The axis along which the source is dense while the target is dense along the last one; -1. */
static int32_t across_axis(const df_walk<2> &walk, int64_t item) {
  const int32_t last = walk.rank - 1;
  if (item > 8 || walk.strides[1][last] != 1 || walk.strides[0][last] == 1 ||
      walk.shape[last] < TILE / 2)
    return -1;
  for (int32_t axis = 0; axis < last; axis++)
    if (walk.strides[0][axis] == 1 && walk.shape[axis] >= TILE / 2)
      return axis;
  return -1;
}

template <typename T>
static df_status launch_transposed(const df_call *call, T *to, const T *from,
                                   const df_walk<2> &walk, int32_t across) {
  const int32_t last = walk.rank - 1;
  transpose_shape s{walk.shape[across],
                    walk.shape[last],
                    walk.strides[0][last],
                    walk.strides[1][across],
                    df_divide_up(walk.shape[across], TILE),
                    df_divide_up(walk.shape[last], TILE)};
  df_walk<2> outer{};
  int64_t copies = 1;
  outer.index64 = walk.index64;
  for (int32_t axis = 0; axis < last; axis++) {
    if (axis == across)
      continue;
    const int32_t own = outer.rank++;
    outer.shape[own] = walk.shape[axis];
    outer.divisor[own] = walk.divisor[axis];
    outer.strides[0][own] = walk.strides[0][axis];
    outer.strides[1][own] = walk.strides[1][axis];
    copies *= walk.shape[axis];
  }
  return DF_LAUNCH(call, (copy_transposed<T>), df_blocks(copies * s.tiles_a * s.tiles_b, 1),
                   dim3(TILE, TILE_ROWS), 0, to, from, s, outer);
}

df_status df_copy_box(const df_call *call, void *to, const int64_t *to_strides, const void *from,
                      const int64_t *from_strides, const int64_t *shape, int32_t rank,
                      int64_t item) {
  int64_t n = df_product(shape, 0, rank);
  if (n == 0)
    return DF_OK;
  df_tensor sides[2] = {};
  sides[0].shape = sides[1].shape = shape;
  sides[0].rank = sides[1].rank = rank;
  sides[0].strides = from_strides;
  sides[1].strides = to_strides;
  const df_tensor *const operands[2] = {&sides[0], &sides[1]};
  df_walk<2> walk;
  if (!df_walk_plan(&walk, shape, rank, operands))
    return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
  if (walk.rank == 0) { /* one element */
    walk.rank = 1;
    walk.shape[0] = 1;
    walk.divisor[0] = df_divisor_of(1);
  }
  const int32_t across = across_axis(walk, item);
  const int64_t unit = across >= 0 ? item : widen(&walk, to, from, item);
  const int32_t last = walk.rank - 1;
  if (across < 0 && unit == 4 && item == 4 && walk.strides[0][last] == 1 &&
      walk.strides[1][last] == 1 && walk.shape[last] % 4 == 0)
    return launch_fours(call, to, from, n, walk);
  n /= unit / item;
  return df_by_item(unit, [&]<typename T>() {
    T *target = static_cast<T *>(to);
    const T *source = static_cast<const T *>(from);
    if (across >= 0)
      return launch_transposed(call, target, source, walk, across);
    return DF_LAUNCH(call, (copy_strided<T>), df_blocks(n, DF_BLOCK), DF_BLOCK, 0, target, source,
                     n, walk);
  });
}

/* ---- copy: y = x, x with any strides, y contiguous ------------------------------------------ */

static df_status copy_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  if (y->data == x->data && df_contiguous(x) && df_contiguous(y))
    return DF_OK;
  return df_copy_box(call, y->data, y->strides, x->data, x->strides, y->shape, y->rank,
                     df_item_bytes(y->dtype));
}

/* ---- concat(xs...; axis): the inputs one behind another along |axis| ------------------------ */

static df_status concat_run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  const int64_t axis = df_axis(call, DF_CONCAT_AXIS, y->rank), item = df_item_bytes(y->dtype);
  char *to = static_cast<char *>(y->data);
  df_status status = DF_OK;
  for (int32_t i = 0; i < call->n_inputs && !status; i++) {
    const df_tensor *x = call->inputs[i];
    status = df_copy_box(call, to, y->strides, x->data, x->strides, x->shape, x->rank, item);
    to += x->shape[axis] * y->strides[axis] * item;
  }
  return status;
}

/* ---- slice_grad(dy; shape, starts, stops, steps) -> dx ----------------------------------------
 * Zeros of |shape| with dy written where the slice read. */

static df_status slice_grad_run(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *dx = call->outputs[0];
  const int64_t item = df_item_bytes(dx->dtype), bytes = df_elements(dx) * item;
  int32_t n_starts, n_steps;
  const int64_t *starts = df_attr_ints(call, DF_SLICE_GRAD_STARTS, &n_starts);
  const int64_t *steps = df_attr_ints(call, DF_SLICE_GRAD_STEPS, &n_steps);
  if (n_starts != dx->rank || n_steps != dx->rank || dx->rank > DF_WALK_RANK)
    return df_fail(call, DF_INVALID, "slice_grad: %d starts and %d steps for %d axes", n_starts,
                   n_steps, dx->rank);
  if (bytes == 0)
    return DF_OK;
  const cudaError_t status = cudaMemsetAsync(dx->data, 0, static_cast<size_t>(bytes),
                                             static_cast<cudaStream_t>(call->stream));
  if (status)
    return df_fail(call, DF_DEVICE, "slice_grad: %s", cudaGetErrorString(status));
  int64_t strides[DF_WALK_RANK], first = 0;
  for (int32_t axis = 0; axis < dx->rank; axis++) {
    first += starts[axis] * dx->strides[axis];
    /* One element has no next: its step may be one that no distance holds. */
    strides[axis] = dy->shape[axis] > 1 ? steps[axis] * dx->strides[axis] : 0;
  }
  return df_copy_box(call, static_cast<char *>(dx->data) + first * item, strides, dy->data,
                     dy->strides, dy->shape, dy->rank, item);
}

/* ---- pad(x, value?; pads, mode) -> y ----------------------------------------------------------
 * pads: what is added before each axis, then after each; negative crops x first. Along an axis of n
 * elements, position i outside 0..n-1 is filled with |value| ("constant"), the nearest end
 * ("edge"), the mirror image about the ends ("reflect") or the axis again ("wrap"). */

enum pad_mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_WRAP };

struct pad_shape {
  int32_t rank;
  int32_t mode;
  int64_t first; /* the element of x at which what is kept begins */
  int64_t kept[DF_WALK_RANK], strides[DF_WALK_RANK], to[DF_WALK_RANK], before[DF_WALK_RANK];
};

/* The source of position i, -1 when it is filled. */
static __device__ __forceinline__ int64_t pad_source(int64_t i, int64_t n, int32_t mode) {
  if (i >= 0 && i < n)
    return i;
  if (mode == PAD_CONSTANT)
    return -1;
  if (mode == PAD_EDGE)
    return i < 0 ? 0 : n - 1;
  if (mode == PAD_WRAP)
    return (i % n + n) % n;
  const int64_t period = 2 * (n - 1);
  if (period == 0)
    return 0;
  i = (i % period + period) % period;
  return i < n ? i : period - i;
}

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK)
    pad_elements(T *y, const T *x, const T *value, int64_t n, pad_shape s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  int64_t offset = s.first, rest = i;
  bool outside = false;
  for (int32_t axis = s.rank - 1; axis >= 0; axis--) {
    const int64_t source = pad_source(rest % s.to[axis] - s.before[axis], s.kept[axis], s.mode);
    rest /= s.to[axis];
    outside |= source < 0;
    offset += source * s.strides[axis];
  }
  y[i] = !outside ? x[offset] : value ? *value : T{};
}

static df_status pad_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  int32_t n_pads;
  const int64_t *pads = df_attr_ints(call, DF_PAD_PADS, &n_pads);
  pad_shape s{x->rank, PAD_CONSTANT, 0, {}, {}, {}, {}};
  if (n_pads != 2 * x->rank || x->rank > DF_WALK_RANK)
    return df_fail(call, DF_INVALID, "pad: %d pads for %d axes", n_pads, x->rank);
  if (df_attr_is(call, DF_PAD_MODE, "edge"))
    s.mode = PAD_EDGE;
  else if (df_attr_is(call, DF_PAD_MODE, "reflect"))
    s.mode = PAD_REFLECT;
  else if (df_attr_is(call, DF_PAD_MODE, "wrap"))
    s.mode = PAD_WRAP;
  else if (!df_attr_is(call, DF_PAD_MODE, "constant"))
    return df_fail(call, DF_UNSUPPORTED, "pad: mode \"%s\" is not known",
                   df_attr_text(call, DF_PAD_MODE));
  const int64_t n = df_elements(y);
  if (n == 0)
    return DF_OK;
  if (df_elements(x) == 0 && s.mode != PAD_CONSTANT)
    return df_fail(call, DF_INVALID, "pad: x has no elements to repeat");
  int64_t stride = 1;
  for (int32_t axis = x->rank - 1; axis >= 0; axis--) {
    const int64_t before = pads[axis], after = pads[axis + x->rank];
    const int64_t cropped = before < 0 ? -before : 0;
    s.kept[axis] = x->shape[axis] - cropped + (after < 0 ? after : 0);
    s.to[axis] = y->shape[axis];
    s.before[axis] = before > 0 ? before : 0;
    s.strides[axis] = stride;
    s.first += cropped * stride;
    stride *= x->shape[axis];
  }
  return df_by_item(df_item_bytes(y->dtype), [&]<typename T>() {
    return DF_LAUNCH(call, (pad_elements<T>), df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                     df_out<T>(call, 0), df_in<const T>(call, 0), df_in<const T>(call, 1), n, s);
  });
}

/* ---- Records -------------------------------------------------------------------------------- */

#define MOVES(op, operands, function)                                                              \
  DF_CUDA_KERNEL(op, "any", operands, nullptr, .accepts = df_accepts_rank, .run = function,        \
                 .capturable = 1)
static const df_kernel records[] = {
    MOVES("copy", "~any->~any", copy_run), MOVES("concat", "~any*->~any", concat_run),
    MOVES("slice_grad", "~any->any", slice_grad_run), MOVES("pad", "any,any?->any", pad_run)};
DF_CUDA_FAMILY(shape, records);
