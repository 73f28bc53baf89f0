/* norm/loss.cu: softmax cross entropy over class labels and its gradient.
 *
 * logits x: (outer, C, inner), the classes along |axis|; labels l, loss, lse: (outer, inner).
 *   lse = log sum_c e^x_c
 *   loss = lse - (1 - a) x_l - (a / C) sum_c x_c         a = label_smoothing
 *   dx_c = dloss (e^(x_c - lse) - (1 - a) [c = l] - a / C)
 * Where l is ignore_index, loss and dx are 0. A label outside [0, C) is a fault and then treated as
 * if it were ignored. The logits are read once, and dx written once.
 */
#include "map/map.h"
#include "map/stored.h"
#include "norm/softmax.h"

/* Labels of either type. */
struct labels {
  const void *data;
  int64_t classes, ignored;
  int32_t is_int64;

  __device__ int64_t at(int64_t i) const {
    return is_int64 ? static_cast<const int64_t *>(data)[i] : static_cast<const int32_t *>(data)[i];
  }
};

struct shape {
  int64_t outer, classes, inner;
};

static shape shape_of(const df_call *call, const df_tensor *logits) {
  const int64_t axis = df_axis(call, DF_SOFTMAX_CROSS_ENTROPY_AXIS, logits->rank);
  return {df_product(logits->shape, 0, axis), logits->shape[axis],
          df_product(logits->shape, axis + 1, logits->rank)};
}

static labels labels_of(const df_call *call, int32_t input, int64_t classes) {
  const df_tensor *given = call->inputs[input];
  return {given->data, classes, df_attr_int(call, DF_SOFTMAX_CROSS_ENTROPY_IGNORE_INDEX),
          given->dtype == DF_INT64};
}

/* ---- Forward -------------------------------------------------------------------------------- */

struct forward {
  float *loss, *lse; /* lse may be null */
  const float *x;
  labels labels_;
  float smoothing;
  df_fault *fault;
  int32_t step;
};

/* State of a row: what softmax needs, and the sum of x when labels are smoothed. */
struct row_state {
  df_exp_sum exps;
  float sum;

  __device__ void clear() {
    exps.clear();
    sum = 0.0f;
  }
  /* |there|: which elements are, as bits; the sum is wanted with |smooth|. */
  template <int HELD> __device__ void add(const float (&x)[HELD], unsigned there, bool smooth) {
    exps.add(x);
    if (!smooth)
      return;
    float few = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      few += there >> k & 1 ? x[k] : 0.0f;
    sum += few;
  }
  template <typename J> __device__ void join(J j) {
    exps.join(j);
    sum = j(sum, 0.0f, df_add{});
  }
};

/* The loss at index |i|, whose element c lies at x[c * apart]. */
static __device__ __forceinline__ void store_loss(const forward &f, int64_t i, const float *x,
                                                  int64_t apart, const row_state &state) {
  const float m = state.exps.m, log_sum = logf(state.exps.s);
  const int64_t label = f.labels_.at(i), classes = f.labels_.classes;
  if (f.lse)
    f.lse[i] = m + log_sum;
  const bool good = label >= 0 && label < classes;
  if (label == f.labels_.ignored || !good) {
    if (label != f.labels_.ignored)
      df_fault_note(f.fault, f.step, label, classes);
    f.loss[i] = 0.0f;
    return;
  }
  float loss = log_sum + (1.0f - f.smoothing) * (m - x[label * apart]);
  if (f.smoothing != 0.0f)
    loss += f.smoothing * (m - state.sum / static_cast<float>(classes));
  f.loss[i] = loss;
}

template <int HELD>
__global__ void __launch_bounds__(df_rows_block(HELD), HELD / (2 * DF_HELD) + 1)
    loss_rows(forward f, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const float *row = f.x + at.row * plan.n;
  row_state state;
  state.clear();
  for (int64_t base = at.begin; base < at.end; base += df_row_round<HELD>(plan)) {
    float x[HELD];
    df_row_load(x, row, plan, base, at.end, at.lane, -INFINITY);
    const int left = df_row_left<HELD>(plan, base, at.end);
    unsigned there = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      there |= unsigned{df_row_index(plan, at.lane, k) < left} << k;
    state.add(x, there, f.smoothing != 0.0f);
  }
  state.join(df_row_join{scratch, plan.group});
  if (at.lane == 0 && at.row < plan.rows)
    store_loss(f, at.row, row, 1, state);
}

__global__ void __launch_bounds__(DF_COLUMN_BLOCK) loss_columns(forward f, df_columns plan) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const df_column_position at = df_column_of_thread(plan);
  row_state state;
  state.clear();
  for (int64_t base = 0; base < plan.size; base += static_cast<int64_t>(at.step) * DF_HELD) {
    float x[DF_HELD];
    df_column_load(x, f.x, plan, at, base, -INFINITY);
    unsigned there = 0;
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      there |= unsigned{at.live && base + at.first + k * at.step < plan.size} << k;
    state.add(x, there, f.smoothing != 0.0f);
  }
  state.join(df_column_join{shared, plan.across});
  if (at.first == 0 && at.live)
    store_loss(f, at.column, f.x + at.origin, plan.inner, state);
}

/* softmax_cross_entropy(logits, labels; axis, ignore_index, label_smoothing) -> loss, lse? */
static df_status forward_run(const df_call *call) {
  const shape s = shape_of(call, call->inputs[0]);
  if (s.outer * s.inner == 0)
    return DF_OK;
  const forward f{df_out<float>(call, 0),
                  df_out<float>(call, 1),
                  df_in<const float>(call, 0),
                  labels_of(call, 1, s.classes),
                  static_cast<float>(df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING)),
                  call->fault,
                  call->step};
  if (s.inner > 1) {
    const df_columns plan = df_columns_plan(s.outer, s.classes, s.inner);
    return DF_LAUNCH(call, loss_columns, df_blocks(s.outer * plan.chunks, 1), DF_COLUMN_BLOCK, 0, f,
                     plan);
  }
  df_rows plan = df_rows_plan(s.outer, s.classes, false, DF_HELD_MOST);
  df_rows_vectors(&plan, f.x);
  return df_by_held(plan, [&]<int HELD>() {
    return DF_LAUNCH(call, loss_rows<HELD>, df_rows_grid(plan), plan.block, 0, f, plan);
  });
}

/* ---- Gradient: an element of dx from one of x and the numbers of its row -------------------- */

struct gradient {
  void *dx; /* float, may be x; or bfloat16 */
  const float *dloss, *x, *lse;
  labels labels_;
  int64_t inner, count;
  df_divisor by_inner, by_classes;
  int32_t index64;
  float uniform, hit;
  df_fault *fault;
  int32_t step;

  __device__ int64_t divide(int64_t i, int64_t by, df_divisor divisor) const {
    return index64 ? i / by : static_cast<int64_t>(df_divide(static_cast<uint32_t>(i), divisor));
  }
};

/* What all elements of a row have in common, and where one of them lies. */
struct row_gradient {
  float scale, lse;
  int64_t label, c; /* of the element, which is class c */

  __device__ row_gradient(const gradient &g, int64_t i) {
    const int64_t classes = g.labels_.classes;
    const int64_t row = g.divide(i, g.inner, g.by_inner); /* of outer * C */
    const int64_t outer = g.divide(row, classes, g.by_classes);
    c = row - outer * classes;
    const int64_t at = outer * g.inner + (i - row * g.inner);
    label = g.labels_.at(at);
    const bool inside = label >= 0 && label < classes;
    if (!inside && label != g.labels_.ignored && c == 0)
      df_fault_note(g.fault, g.step, label, classes);
    scale = inside && label != g.labels_.ignored ? g.dloss[at] : 0.0f;
    lse = g.lse[at];
  }
  /* dx of the element that lies |k| behind, in the same row. */
  __device__ float operator()(const gradient &g, float x, int k) const {
    const float other = scale == 0.0f ? 0.0f : scale * (expf(x - lse) - g.uniform);
    return c + k == label ? other - g.hit * scale : other;
  }
};

template <typename T> __global__ void __launch_bounds__(DF_BLOCK) loss_gradient(gradient g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i < g.count)
    df_store(static_cast<T *>(g.dx) + i, row_gradient(g, i)(g, g.x[i], 0));
}

/* Four elements at a time, classes side by side; where a row ends among them each by itself. */
template <typename T> __global__ void __launch_bounds__(DF_BLOCK) loss_gradient_fours(gradient g) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x) * 4;
  if (i >= g.count)
    return;
  T *dx = static_cast<T *>(g.dx);
  const row_gradient first(g, i);
  if (first.c + 4 > g.labels_.classes) {
    for (int64_t k = i; k < df_min(i + 4, g.count); k++)
      df_store(dx + k, row_gradient(g, k)(g, g.x[k], 0));
    return;
  }
  const float4 x = *reinterpret_cast<const float4 *>(g.x + i);
  const float v[4] = {first(g, x.x, 0), first(g, x.y, 1), first(g, x.z, 2), first(g, x.w, 3)};
  df_store_together(dx + i, v);
}

/* softmax_cross_entropy_grad(dloss, logits, labels, lse; ...) -> dlogits */
template <typename T> static df_status gradient_to(const df_call *call) {
  const shape s = shape_of(call, call->inputs[1]);
  const int64_t count = s.outer * s.classes * s.inner;
  if (count == 0)
    return DF_OK;
  gradient g{};
  g.dx = df_out<T>(call, 0);
  g.dloss = df_in<const float>(call, 0);
  g.x = df_in<const float>(call, 1);
  g.labels_ = labels_of(call, 2, s.classes);
  g.lse = df_in<const float>(call, 3);
  g.inner = s.inner;
  g.count = count;
  g.index64 = count > INT32_MAX;
  if (!g.index64) {
    g.by_inner = df_divisor_of(s.inner);
    g.by_classes = df_divisor_of(s.classes);
  }
  const float smoothing =
      static_cast<float>(df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING));
  g.uniform = smoothing / static_cast<float>(s.classes);
  g.hit = 1.0f - smoothing;
  g.fault = call->fault;
  g.step = call->step;
  if (s.inner == 1 && df_aligned_16(g.x) && df_aligned_16(g.dx))
    return DF_LAUNCH(call, (loss_gradient_fours<T>), df_blocks(count, DF_BLOCK * 4), DF_BLOCK, 0,
                     g);
  return DF_LAUNCH(call, (loss_gradient<T>), df_blocks(count, DF_BLOCK), DF_BLOCK, 0, g);
}

static df_status gradient_run(const df_call *call) {
  return call->outputs[0]->dtype == DF_BFLOAT16 ? gradient_to<uint16_t>(call)
                                                : gradient_to<float>(call);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("softmax_cross_entropy", "f32", "f32,i32|i64->f32,f32?", nullptr,
                   .run = forward_run, .capturable = 1),
    DF_CUDA_KERNEL("softmax_cross_entropy_grad", "f32", "f32,f32,i32|i64,f32->f32|bf16", "0<1",
                   .run = gradient_run, .capturable = 1)};
DF_CUDA_FAMILY(loss, records);
