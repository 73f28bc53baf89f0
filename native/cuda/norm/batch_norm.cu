/* norm/batch_norm.cu: normalization per channel, channels on axis 1 of (N, C, inner).
 *
 *   batch_norm             y = (x - mean) scale / sqrt(var + epsilon) + bias
 *   batch_norm_grad        dx = scale dy / sqrt(var + epsilon), dbias = sum dy, and dscale =
 *                          sum dy (x - mean) / sqrt(var + epsilon)
 *   batch_norm_train       the same as batch_norm with the batch's mean and biased variance
 *   batch_norm_train_grad  dx = scale inv_std (dy - (dbias + x^ dscale) / M)
 *                          x^ = (x - mean) inv_std, dbias = sum dy, dscale = sum dy x^, M = N inner
 *
 * Training takes two launches: the sums of the splits of a channel, whose number depends on the
 * shape alone, go to the workspace; then each block joins those of its channel, always in the same
 * order, and normalizes its split. Elements are read twice and written once; by batch_norm_grad
 * they are read once, since dx needs no sum. A block has one channel, or 32 of them side by side
 * when inner is 1.
 */
#include "map/map.h"
#include "norm/moments.h"
#include "reduce/columns.h"

enum {
  ACROSS = 32,          /* channels of a block when inner is 1 */
  WANTED_BLOCKS = 1024, /* that fill a card */
  RESIDENT = 3,         /* blocks that a processor shall hold at least: bounds the registers */
  MOST_SPLITS = 128,
  ROUNDS = 4 /* of a block in a split, at least */
};

struct layout {
  df_rows plan; /* rows: channels; n: elements of one; group: threads of a channel */
  int64_t inner;
  df_divisor by_inner;
  int32_t index64;
  int32_t across; /* channels of a block */
};

static layout layout_of(const int64_t *shape, int32_t rank) {
  layout l{};
  l.inner = df_product(shape, 2, rank);
  l.plan.rows = shape[1];
  l.plan.n = shape[0] * l.inner;
  l.across = l.inner == 1 ? int{ACROSS} : 1;
  l.plan.group = DF_COLUMN_BLOCK / l.across;
  l.plan.block = DF_COLUMN_BLOCK;
  l.index64 = l.plan.n > INT32_MAX;
  if (l.inner > 0 && !l.index64)
    l.by_inner = df_divisor_of(l.inner);
  return l;
}

static int64_t blocks_across(const layout &l) { return df_divide_up(l.plan.rows, l.across); }

/* Splits the elements of channels into |most| splits or fewer. */
static void choose_splits(layout *l, int64_t most) {
  const int64_t least = static_cast<int64_t>(l->plan.group) * DF_HELD * ROUNDS;
  const int64_t wanted = df_divide_up(WANTED_BLOCKS, df_max(1, blocks_across(*l)));
  const int64_t splits = df_max(1, df_min(df_min(most, wanted), df_divide_up(l->plan.n, least)));
  l->plan.length = df_max(4, df_divide_up(df_divide_up(l->plan.n, splits), 4) * 4);
  l->plan.splits = static_cast<int32_t>(df_max(1, df_divide_up(l->plan.n, l->plan.length)));
}

static dim3 grid_of(const layout &l) {
  return dim3(df_blocks(l.plan.rows, l.across), static_cast<unsigned>(l.plan.splits));
}

static bool takes_vectors(const layout &l, const void *a, const void *b, const void *c) {
  return l.inner % 4 == 0 && df_aligned_16(a) && df_aligned_16(b) && df_aligned_16(c);
}

/* ---- A thread's channel and elements -------------------------------------------------------- */

struct position {
  int64_t channel, begin, end;
  int lane;
  bool live;
};

static __device__ __forceinline__ position position_of_thread(const layout &l) {
  const int thread = static_cast<int>(threadIdx.x);
  position at;
  at.channel = static_cast<int64_t>(blockIdx.x) * l.across + thread % l.across;
  at.lane = thread / l.across;
  at.live = at.channel < l.plan.rows;
  at.begin = blockIdx.y * l.plan.length;
  at.end = df_min(l.plan.n, at.begin + l.plan.length);
  return at;
}

/* Offset of element |e| of a channel. */
static __device__ __forceinline__ int64_t offset_of(const layout &l, int64_t channel, int64_t e) {
  const int64_t n = l.index64
                        ? e / l.inner
                        : static_cast<int64_t>(df_divide(static_cast<uint32_t>(e), l.by_inner));
  return (n * l.plan.rows + channel) * l.inner + (e - n * l.inner);
}

/* v[k] = the element that the thread holds in the round from |base| on, 0 beyond the end. */
static __device__ __forceinline__ void load(float (&v)[DF_HELD], const float *x, const layout &l,
                                            const position &at, int64_t base) {
  const int left = at.live ? df_row_left(l.plan, base, at.end) : 0;
  if (l.plan.vector) {
#pragma unroll
    for (int k = 0; k < DF_HELD; k += 4) {
      const int i = df_row_index(l.plan, at.lane, k);
      float4 four{0.0f, 0.0f, 0.0f, 0.0f};
      if (i < left)
        four = *reinterpret_cast<const float4 *>(x + offset_of(l, at.channel, base + i));
      v[k] = four.x;
      v[k + 1] = four.y;
      v[k + 2] = four.z;
      v[k + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < DF_HELD; k++) {
    const int i = df_row_index(l.plan, at.lane, k);
    v[k] = i < left ? x[offset_of(l, at.channel, base + i)] : 0.0f;
  }
}

static __device__ __forceinline__ void store(float *y, const float (&v)[DF_HELD], const layout &l,
                                             const position &at, int64_t base) {
  const int left = at.live ? df_row_left(l.plan, base, at.end) : 0;
  if (l.plan.vector) {
#pragma unroll
    for (int k = 0; k < DF_HELD; k += 4) {
      const int i = df_row_index(l.plan, at.lane, k);
      if (i < left)
        *reinterpret_cast<float4 *>(y + offset_of(l, at.channel, base + i)) =
            float4{v[k], v[k + 1], v[k + 2], v[k + 3]};
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < DF_HELD; k++) {
    const int i = df_row_index(l.plan, at.lane, k);
    if (i < left)
      y[offset_of(l, at.channel, base + i)] = v[k];
  }
}

/* ---- batch_norm and batch_norm_train -------------------------------------------------------- */

struct forward {
  float *y;
  const float *x, *scale, *bias, *old_mean, *old_variance;
  float epsilon;
  /* Training alone. */
  float *mean, *variance, *saved_mean, *saved_inverse; /* the last two may be null */
  float2 *states;                                      /* [channel][split]: mean, squares */
  double momentum;
  int64_t split_length; /* of the states */
  int32_t splits;
};

/* Mean and squares of all that the threads of a channel have, |n| elements. */
static __device__ __forceinline__ void join_moments(df_moments *m, float *shared, int across,
                                                    int64_t n) {
  const df_column_join join{shared, across};
  const float mean = join(m->mean * m->count, 0.0f, df_add{}) / static_cast<float>(df_max(n, 1));
  const float apart = m->mean - mean;
  m->squares = join(m->squares + m->count * apart * apart, 0.0f, df_add{});
  m->mean = mean;
}

__global__ void __launch_bounds__(DF_COLUMN_BLOCK, RESIDENT) forward_states(forward f, layout l) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const position at = position_of_thread(l);
  df_moments m{0.0f, 0.0f, 0.0f};
  for (int64_t base = at.begin; base < at.end; base += df_row_round(l.plan)) {
    float x[DF_HELD];
    load(x, f.x, l, at, base);
    m.add(x, df_held_count(l.plan, at.lane, df_row_left(l.plan, base, at.end)), true);
  }
  join_moments(&m, shared, l.across, at.end - at.begin);
  if (at.live && at.lane == 0)
    f.states[at.channel * l.plan.splits + blockIdx.y] = make_float2(m.mean, m.squares);
}

/* Mean and variance of the thread's channel from the states of its splits. */
static __device__ __forceinline__ df_moments join_states(const forward &f, const layout &l,
                                                         const position &at, float *shared) {
  df_moments m{0.0f, 0.0f, 0.0f};
  for (int split = at.lane; split < f.splits && at.live; split += l.plan.group) {
    const float2 state = f.states[at.channel * f.splits + split];
    const int64_t some = df_min(f.split_length, l.plan.n - split * f.split_length);
    if (some > 0)
      m.join(static_cast<float>(some), state.x, state.y);
  }
  join_moments(&m, shared, l.across, l.plan.n);
  return m;
}

/* The running values, times momentum, and the batch's. */
static __device__ __forceinline__ void keep(const forward &f, int64_t c, float mean,
                                            double variance, float inverse) {
  const double rest = 1.0 - f.momentum;
  f.mean[c] = static_cast<float>(f.old_mean[c] * f.momentum + static_cast<double>(mean) * rest);
  f.variance[c] = static_cast<float>(f.old_variance[c] * f.momentum + variance * rest);
  if (f.saved_mean)
    f.saved_mean[c] = mean;
  if (f.saved_inverse)
    f.saved_inverse[c] = inverse;
}

template <bool train>
__global__ void __launch_bounds__(DF_COLUMN_BLOCK, RESIDENT) normalize(forward f, layout l) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const position at = position_of_thread(l);
  const int64_t c = at.live ? at.channel : 0;
  float mean, inverse;
  if constexpr (train) {
    const df_moments m = join_states(f, l, at, shared);
    const double variance = static_cast<double>(m.squares) / static_cast<double>(l.plan.n);
    mean = m.mean;
    inverse = 1.0f / sqrtf(static_cast<float>(variance) + f.epsilon);
    if (at.live && at.lane == 0 && blockIdx.y == 0)
      keep(f, c, mean, variance, inverse);
  } else {
    mean = f.old_mean[c];
    inverse = 1.0f / sqrtf(f.old_variance[c] + f.epsilon);
  }
  const float factor = f.scale[c] * inverse, bias = f.bias[c];
  for (int64_t base = at.begin; base < at.end; base += df_row_round(l.plan)) {
    float x[DF_HELD];
    load(x, f.x, l, at, base);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      x[k] = (x[k] - mean) * factor + bias;
    store(f.y, x, l, at, base);
  }
}

static forward forward_of(const df_call *call) {
  forward f{};
  f.y = df_out<float>(call, 0);
  f.x = df_in<const float>(call, 0);
  f.scale = df_in<const float>(call, 1);
  f.bias = df_in<const float>(call, 2);
  f.old_mean = df_in<const float>(call, 3);
  f.old_variance = df_in<const float>(call, 4);
  f.epsilon = static_cast<float>(df_attr_float(call, DF_BATCH_NORM_EPSILON));
  return f;
}

static df_status inference_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  if (df_elements(x) == 0)
    return DF_OK;
  const forward f = forward_of(call);
  layout l = layout_of(x->shape, x->rank);
  choose_splits(&l, INT16_MAX);
  l.plan.vector = takes_vectors(l, f.x, f.y, nullptr);
  return DF_LAUNCH(call, (normalize<false>), grid_of(l), DF_COLUMN_BLOCK, 0, f, l);
}

static df_status train_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  layout l = layout_of(x->shape, x->rank);
  if (l.plan.rows == 0)
    return DF_OK;
  forward f = forward_of(call);
  f.mean = df_out<float>(call, 1);
  f.variance = df_out<float>(call, 2);
  f.saved_mean = df_out<float>(call, 3);
  f.saved_inverse = df_out<float>(call, 4);
  f.states = static_cast<float2 *>(call->workspace);
  f.momentum = df_attr_float(call, DF_BATCH_NORM_TRAIN_MOMENTUM);
  l.plan.vector = takes_vectors(l, f.x, f.y, nullptr);
  choose_splits(&l, MOST_SPLITS);
  f.split_length = l.plan.length;
  f.splits = l.plan.splits;
  const df_status status = DF_LAUNCH(call, forward_states, grid_of(l), DF_COLUMN_BLOCK, 0, f, l);
  if (status)
    return status;
  return DF_LAUNCH(call, (normalize<true>), grid_of(l), DF_COLUMN_BLOCK, 0, f, l);
}

/* ---- batch_norm_grad and batch_norm_train_grad ---------------------------------------------- */

struct backward {
  float *dx, *dscale, *dbias; /* each may be null */
  const float *dy, *x, *scale, *mean;
  const float *inverse;  /* of the batch's deviation; null where the statistics are fixed */
  const float *variance; /* that is fixed */
  float epsilon;
  float2 *states; /* [channel][split]: sums of dy and of dy (x - mean) */

  __device__ float inverse_of(int64_t channel) const {
    return inverse ? inverse[channel] : 1.0f / sqrtf(variance[channel] + epsilon);
  }
};

/* Sums of a split; with fixed statistics its part of dx too. */
template <bool fixed>
__global__ void __launch_bounds__(DF_COLUMN_BLOCK, RESIDENT) backward_states(backward b, layout l) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const position at = position_of_thread(l);
  const int64_t c = at.live ? at.channel : 0;
  const float mean = b.mean[c];
  [[maybe_unused]] const float factor = fixed ? b.scale[c] * b.inverse_of(c) : 0.0f;
  float plain = 0.0f, weighted = 0.0f;
  for (int64_t base = at.begin; base < at.end; base += df_row_round(l.plan)) {
    float dy[DF_HELD], x[DF_HELD], few = 0.0f, few_x = 0.0f;
    load(dy, b.dy, l, at, base); /* 0 beyond the end */
    load(x, b.x, l, at, base);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++) {
      few += dy[k];
      few_x = fmaf(dy[k], x[k] - mean, few_x);
    }
    plain += few;
    weighted += few_x;
    if constexpr (fixed)
      if (b.dx) {
#pragma unroll
        for (int k = 0; k < DF_HELD; k++)
          dy[k] *= factor;
        store(b.dx, dy, l, at, base);
      }
  }
  const df_column_join join{shared, l.across};
  plain = join(plain, 0.0f, df_add{});
  weighted = join(weighted, 0.0f, df_add{});
  if (at.live && at.lane == 0)
    b.states[at.channel * l.plan.splits + blockIdx.y] = make_float2(plain, weighted);
}

/* The sums of all splits; with the batch's statistics dx too. */
template <bool fixed>
__global__ void __launch_bounds__(DF_COLUMN_BLOCK, RESIDENT)
    backward_results(backward b, layout l) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const position at = position_of_thread(l);
  const int64_t c = at.live ? at.channel : 0;
  float plain = 0.0f, weighted = 0.0f;
  for (int split = at.lane; split < l.plan.splits && at.live; split += l.plan.group) {
    const float2 state = b.states[c * l.plan.splits + split];
    plain += state.x;
    weighted += state.y;
  }
  const df_column_join join{shared, l.across};
  const float mean = b.mean[c], inverse = b.inverse_of(c);
  plain = join(plain, 0.0f, df_add{});
  weighted = join(weighted, 0.0f, df_add{}) * inverse;
  if (at.live && at.lane == 0 && blockIdx.y == 0) {
    if (b.dbias)
      b.dbias[c] = plain;
    if (b.dscale)
      b.dscale[c] = weighted;
  }
  if (fixed || !b.dx)
    return;
  const float factor = b.scale[c] * inverse, count = static_cast<float>(l.plan.n);
  const float slope = -factor * inverse * weighted / count, shift = -factor * plain / count;
  for (int64_t base = at.begin; base < at.end; base += df_row_round(l.plan)) {
    float dy[DF_HELD], x[DF_HELD];
    load(dy, b.dy, l, at, base);
    load(x, b.x, l, at, base);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      dy[k] = factor * dy[k] + slope * (x[k] - mean) + shift;
    store(b.dx, dy, l, at, base);
  }
}

template <bool fixed> static df_status grad_run(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  layout l = layout_of(x->shape, x->rank);
  if (l.plan.rows == 0)
    return DF_OK;
  backward b{};
  b.dx = df_out<float>(call, 0);
  b.dscale = df_out<float>(call, 1);
  b.dbias = df_out<float>(call, 2);
  b.dy = df_in<const float>(call, 0);
  b.x = df_in<const float>(call, 1);
  b.scale = df_in<const float>(call, 2);
  b.mean = df_in<const float>(call, 3);
  (fixed ? b.variance : b.inverse) = df_in<const float>(call, 4);
  if (fixed)
    b.epsilon = static_cast<float>(df_attr_float(call, DF_BATCH_NORM_EPSILON));
  b.states = static_cast<float2 *>(call->workspace);
  choose_splits(&l, MOST_SPLITS);
  l.plan.vector = takes_vectors(l, b.x, b.dy, b.dx);
  const dim3 grid = grid_of(l);
  const df_status status =
      DF_LAUNCH(call, (backward_states<fixed>), grid, DF_COLUMN_BLOCK, 0, b, l);
  if (status)
    return status;
  return DF_LAUNCH(call, (backward_results<fixed>), dim3(grid.x, fixed ? 1u : grid.y),
                   DF_COLUMN_BLOCK, 0, b, l);
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Workspace for the states of splits; x is input |index|. */
static df_status prepare(const df_operand *x, df_prepared *out) {
  layout l = layout_of(x->shape, x->rank);
  choose_splits(&l, MOST_SPLITS);
  out->workspace = l.plan.rows * l.plan.splits * static_cast<int64_t>(sizeof(float2));
  return DF_OK;
}
static df_status train_prepare(const df_node *node, df_prepared *out, df_error *) {
  return prepare(node->inputs[0], out);
}
static df_status grad_prepare(const df_node *node, df_prepared *out, df_error *) {
  return prepare(node->inputs[1], out);
}

static const char *accepts(const df_node *node) {
  return node->inputs[0]->rank < 2 ? "x must have a batch and a channel axis" : nullptr;
}
static const char *grad_accepts(const df_node *node) {
  return node->inputs[1]->rank < 2 ? "x must have a batch and a channel axis" : nullptr;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("batch_norm", "f32", "f32,f32,f32,f32,f32->f32", "0<0", .accepts = accepts,
                   .run = inference_run, .capturable = 1),
    DF_CUDA_KERNEL("batch_norm_train", "f32", "f32,f32,f32,f32,f32->f32,f32,f32,f32?,f32?",
                   "0<0,1<3,2<4", .accepts = accepts, .prepare = train_prepare, .run = train_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("batch_norm_train_grad", "f32", "f32,f32,f32,f32,f32->f32,f32,f32", "0<0,0<1",
                   .accepts = grad_accepts, .prepare = grad_prepare, .run = grad_run<false>,
                   .capturable = 1),
    DF_CUDA_KERNEL("batch_norm_grad", "f32", "f32,f32,f32,f32,f32->f32,f32,f32", "0<0,0<1",
                   .accepts = grad_accepts, .prepare = grad_prepare, .run = grad_run<true>,
                   .capturable = 1)};
DF_CUDA_FAMILY(batch_norm, records);
