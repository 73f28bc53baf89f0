/* norm/loss_with_grad.cu: softmax cross entropy and its gradient in one kernel, see norm/loss.h.
 *
 * Memory gives the logits once: rows of up to 8192 stay in registers, and longer ones are read
 * again from the caches, since a block has a whole multiprocessor and few rows are in flight. The
 * gradient may lie over the logits: a thread writes the elements that it has read itself, and the
 * logit of the label is read before any of them.
 */
#include "map/instructions.h"
#include "norm/loss.h"

static constexpr float LOG2_E = 1.4426950409f;

/* e^x to a few units of its last place and |x| 2^-24 of itself, 0 below 2^-126: what is far below
 * the maximum, where that is more, adds little. */
static __device__ __forceinline__ float fast_exp(float x) { return df_exp2(x * LOG2_E); }

/* The larger one, NaN if there is one. */
static __device__ __forceinline__ float larger(float a, float b) {
#ifdef __CUDACC__
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return df_larger{}(a, b);
#endif
}

/* Adds elements that are all there: m and s of df_exp_sum. */
static __device__ __forceinline__ void add_all(df_exp_sum &state, const float (&x)[DF_HELD]) {
  float most = state.m;
#pragma unroll
  for (int k = 0; k < DF_HELD; k++)
    most = larger(most, x[k]);
  if (most == -INFINITY)
    return;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < DF_HELD; k++)
    sum += fast_exp(x[k] - most);
  state.s = state.s * fast_exp(state.m - most) + sum;
  state.m = most;
}

/* What loss and gradient of a row have in common beside its logits. */
struct own {
  int64_t label;
  float logit, dloss;

  /* |x|: of a label. */
  __device__ own(const forward &f, const float *dlosses, int64_t i, const float *x, int64_t apart,
                 bool live)
      : label(live ? f.labels_.at(i) : -1), logit(0.0f), dloss(0.0f) {
    if (f.labels_.counts(label)) {
      logit = x[label * apart];
      dloss = dlosses[i];
    }
  }
  __device__ row_scale scale(const forward &f, const row_state &state) const {
    return {dloss, state.exps.m, logf(state.exps.s), f.smoothing, f.labels_.classes};
  }
};

template <typename T>
__global__ void __launch_bounds__(DF_ROW_BLOCK)
    both_rows(forward f, T *dx, const float *dloss, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const int64_t origin = at.row * plan.n, round = df_row_round(plan);
  const int64_t stop = df_min(at.end, f.labels_.classes);
  const own of_row(f, dloss, at.row, f.x + origin, 1, at.row < plan.rows);
  float x[DF_HELD];
  row_state state;
  state.clear();
  const auto near = [&] { return of_row.logit; };
  int64_t base = 0;
  for (; f.smoothing == 0.0f && base + round <= stop; base += round) {
    df_row_load(x, f.x + origin, plan, base, stop, at.lane, -INFINITY);
    add_all(state.exps, x);
  }
  for (; base < stop; base += round)
    add_round(state, x, f, f.x + origin, plan, base, stop, at.lane, near);
  state.join(df_row_join{scratch, plan.group});
  __syncwarp(); /* the label's logit is read before another lane writes over it */
  if (at.lane == 0 && at.row < plan.rows)
    store_loss(f, at.row, of_row.label, of_row.logit, state, near);
  const row_scale row = of_row.scale(f, state);
  const float constant = -row.scale * row.uniform, power = -row.log_sum * LOG2_E;
  const int64_t live = row.scale == 0.0f ? 0 : stop;
  for (base = 0; base < at.end; base += round) {
    if (plan.n > round)
      df_row_load(x, f.x + origin, plan, base, stop, at.lane, -INFINITY);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      x[k] = fmaf(row.scale, df_exp2(fmaf(x[k] - row.top, LOG2_E, power)), constant);
    const int64_t label = of_row.label - base;
    const int left = df_row_left(plan, base, live);
    if (left < round || (label >= 0 && label < round)) { /* not in most rounds */
#pragma unroll
      for (int k = 0; k < DF_HELD; k++) {
        const int i = df_row_index(plan, at.lane, k);
        x[k] = i < left ? x[k] - (i == label ? row.hit * row.scale : 0.0f) : 0.0f;
      }
    }
    df_row_store(dx + origin, x, plan, base, at.end, at.lane);
  }
}

template <typename T>
__global__ void __launch_bounds__(DF_COLUMN_BLOCK)
    both_columns(forward f, T *dx, const float *dloss, df_columns plan) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const df_column_position at = df_column_of_thread(plan);
  const own of_column(f, dloss, at.column, f.x + at.origin, plan.inner, at.live);
  row_state state;
  state.clear();
  const auto near = [&] { return of_column.logit; };
  add_column(state, f, plan, at, near);
  state.join(df_column_join{shared, plan.across});
  if (!at.live)
    return;
  if (at.first == 0)
    store_loss(f, at.column, of_column.label, of_column.logit, state, near);
  const row_scale scale = of_column.scale(f, state);
  for (int64_t c = at.first; c < plan.size; c += at.step) {
    const int64_t i = at.origin + c * plan.inner;
    df_store(dx + i, c < f.labels_.classes ? scale(f.x[i], c == of_column.label) : 0.0f);
  }
}

/* softmax_cross_entropy_with_grad(dloss, logits, labels; ...) -> loss, dlogits */
template <typename T> static df_status run_to(const df_call *call) {
  const shape s = shape_of(call, call->inputs[1]);
  if (s.outer * s.inner == 0)
    return DF_OK;
  const forward f = forward_of(call, 1, s.size);
  const float *dloss = df_in<const float>(call, 0);
  T *dx = df_out<T>(call, 1);
  if (s.inner > 1) {
    const df_columns plan = df_columns_plan(s.outer, s.size, s.inner);
    return DF_LAUNCH(call, both_columns<T>, df_blocks(s.outer * plan.chunks, 1), DF_COLUMN_BLOCK, 0,
                     f, dx, dloss, plan);
  }
  df_rows plan = df_rows_plan(s.outer, s.size, false); /* more elements of a thread would spill */
  df_rows_vectors(&plan, f.x, dx);
  return DF_LAUNCH(call, both_rows<T>, df_rows_grid(plan), plan.block, 0, f, dx, dloss, plan);
}

static df_status run(const df_call *call) {
  return call->outputs[1]->dtype == DF_BFLOAT16 ? run_to<uint16_t>(call) : run_to<float>(call);
}

static const df_kernel records[] = {DF_CUDA_KERNEL("softmax_cross_entropy_with_grad", "f32",
                                                   "f32,f32,i32|i64->f32,f32|bf16", "1<1",
                                                   .run = run, .capturable = 1)};
DF_CUDA_FAMILY(loss_with_grad, records);
