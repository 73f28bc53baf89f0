/* norm/loss.cu: softmax cross entropy over class labels and its gradient, see norm/loss.h. The
 * logits are read once by each, and dx written once.
 */
#include "norm/loss.h"

/* ---- Forward -------------------------------------------------------------------------------- */

template <int HELD>
__global__ void __launch_bounds__(df_rows_block(HELD), HELD / (2 * DF_HELD) + 1)
    loss_rows(forward f, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const float *row = f.x + at.row * plan.n;
  const int64_t stop = df_min(at.end, f.labels_.classes);
  row_state state;
  state.clear();
  const auto near = [&] { return HELD < DF_HELD_MOST ? *row : 0.0f; };
  for (int64_t base = at.begin; base < stop; base += df_row_round<HELD>(plan)) {
    float x[HELD];
    add_round(state, x, f, row, plan, base, stop, at.lane, near);
  }
  state.join(df_row_join{scratch, plan.group});
  if (at.lane != 0 || at.row >= plan.rows)
    return;
  const int64_t label = f.labels_.at(at.row);
  store_loss(f, at.row, label, f.labels_.counts(label) ? row[label] : 0.0f, state, near);
}

__global__ void __launch_bounds__(DF_COLUMN_BLOCK) loss_columns(forward f, df_columns plan) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const df_column_position at = df_column_of_thread(plan);
  row_state state;
  state.clear();
  const auto near = [&] { return at.live ? f.x[at.origin] : 0.0f; };
  add_column(state, f, plan, at, near);
  state.join(df_column_join{shared, plan.across});
  if (at.first != 0 || !at.live)
    return;
  const int64_t label = f.labels_.at(at.column);
  const float *own = f.x + at.origin + label * plan.inner;
  store_loss(f, at.column, label, f.labels_.counts(label) ? *own : 0.0f, state, near);
}

/* softmax_cross_entropy(logits, labels; axis, ignore_index, label_smoothing, classes) -> loss,
 * top?, log_sum? */
static df_status forward_run(const df_call *call) {
  const shape s = shape_of(call, call->inputs[0]);
  if (s.outer * s.inner == 0)
    return DF_OK;
  forward f = forward_of(call, 0, s.size);
  f.top = df_out<float>(call, 1);
  f.log_sum = df_out<float>(call, 2);
  if (s.inner > 1) {
    const df_columns plan = df_columns_plan(s.outer, s.size, s.inner);
    return DF_LAUNCH(call, loss_columns, df_blocks(s.outer * plan.chunks, 1), DF_COLUMN_BLOCK, 0, f,
                     plan);
  }
  /* With the most elements the sum for smoothing would not fit into registers: there is none. */
  const int32_t most = f.smoothing != 0.0f ? 2 * DF_HELD : DF_HELD_MOST;
  df_rows plan = df_rows_plan(s.outer, s.size, false, most);
  df_rows_vectors(&plan, f.x);
  return df_by_held(plan, [&]<int HELD>() {
    return DF_LAUNCH(call, loss_rows<HELD>, df_rows_grid(plan), plan.block, 0, f, plan);
  });
}

/* ---- Gradient: an element of dx from one of x and the numbers of its row -------------------- */

struct gradient {
  void *dx; /* float, may be x; or bfloat16 */
  const float *dloss, *x, *top, *log_sum;
  labels labels_;
  int64_t size, inner, count;
  df_divisor by_inner, by_size;
  int32_t index64;
  float smoothing;
  df_fault *fault;
  int32_t step;

  __device__ int64_t divide(int64_t i, int64_t by, df_divisor divisor) const {
    return index64 ? i / by : static_cast<int64_t>(df_divide(static_cast<uint32_t>(i), divisor));
  }
};

/* The row of an element, and which of its classes that is. */
struct element {
  row_scale scale;
  int64_t label, c;

  /* Element |c| of row |at| of outer * inner. */
  __device__ element(const gradient &g, int64_t at, int64_t of_row)
      : scale(0.0f, g.top[at], g.log_sum[at], g.smoothing, g.labels_.classes),
        label(g.labels_.at(at)), c(of_row) {
    if (g.labels_.counts(label))
      scale.scale = g.dloss[at];
    else if (g.labels_.is_fault(label) && c == 0)
      df_fault_note(g.fault, g.step, label, g.labels_.classes);
  }
  static __device__ element at(const gradient &g, int64_t i) {
    const int64_t row = g.divide(i, g.inner, g.by_inner); /* of outer * size */
    const int64_t outer = g.divide(row, g.size, g.by_size);
    return {g, outer * g.inner + (i - row * g.inner), row - outer * g.size};
  }
  /* dx of the element that lies |k| behind, in the same row. */
  __device__ float operator()(const gradient &g, float x, int k) const {
    return c + k < g.labels_.classes ? scale(x, c + k == label) : 0.0f;
  }
};

template <typename T> __global__ void __launch_bounds__(DF_BLOCK) loss_gradient(gradient g) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  if (i < g.count)
    df_store(static_cast<T *>(g.dx) + i, element::at(g, i)(g, g.x[i], 0));
}

/* Four elements at a time, classes side by side; where a row ends among them each by itself. */
template <typename T> __global__ void __launch_bounds__(DF_BLOCK) loss_gradient_fours(gradient g) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x) * 4;
  if (i >= g.count)
    return;
  T *dx = static_cast<T *>(g.dx);
  const element first = element::at(g, i);
  if (first.c + 4 > g.size) {
    for (int64_t k = i; k < df_min(i + 4, g.count); k++)
      df_store(dx + k, element::at(g, k)(g, g.x[k], 0));
    return;
  }
  const float4 x = *reinterpret_cast<const float4 *>(g.x + i);
  const float v[4] = {first(g, x.x, 0), first(g, x.y, 1), first(g, x.z, 2), first(g, x.w, 3)};
  df_store_together(dx + i, v);
}

/* softmax_cross_entropy_grad(dloss, logits, labels, top, log_sum; ...) -> dlogits */
template <typename T> static df_status gradient_to(const df_call *call) {
  const shape s = shape_of(call, call->inputs[1]);
  const int64_t count = s.outer * s.size * s.inner;
  if (count == 0)
    return DF_OK;
  gradient g{};
  g.dx = df_out<T>(call, 0);
  g.dloss = df_in<const float>(call, 0);
  g.x = df_in<const float>(call, 1);
  g.labels_ = labels_of(call, 2, s.size);
  g.top = df_in<const float>(call, 3);
  g.log_sum = df_in<const float>(call, 4);
  g.size = s.size;
  g.inner = s.inner;
  g.count = count;
  g.index64 = count > INT32_MAX;
  if (!g.index64) {
    g.by_inner = df_divisor_of(s.inner);
    g.by_size = df_divisor_of(s.size);
  }
  g.smoothing = static_cast<float>(df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING));
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
    DF_CUDA_KERNEL("softmax_cross_entropy", "f32", "f32,i32|i64->f32,f32?,f32?", nullptr,
                   .run = forward_run, .capturable = 1),
    DF_CUDA_KERNEL("softmax_cross_entropy_grad", "f32", "f32,f32,i32|i64,f32,f32->f32|bf16", "0<1",
                   .run = gradient_run, .capturable = 1)};
DF_CUDA_FAMILY(loss, records);
