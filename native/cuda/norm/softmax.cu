/* norm/softmax.cu: softmax, log_softmax and their gradients along one axis; x is (outer, size,
 * inner).
 *
 *   softmax           y = e^(x - m) / s      m = max x, s = sum e^(x - m)
 *   softmax_grad      dx = y (dy - sum dy y)
 *   log_softmax       y = x - m - log s
 *   log_softmax_grad  dx = dy - e^y sum dy
 *
 * Outputs may overwrite inputs: a thread writes the elements that it has read itself. Operands are
 * read once when a row fits into its group's registers (8192 elements), else a second time.
 */
#include "norm/softmax.h"

/* ---- What the four ops do: state of a row, result of an element ----------------------------- */

struct softmax_op {
  static constexpr int inputs = 1;
  static constexpr float nothing = -INFINITY;
  df_exp_sum state;
  __device__ void clear() { state.clear(); }
  template <int HELD> __device__ void add(const float (&x)[HELD], const float (&)[HELD]) {
    state.add(x);
  }
  template <typename J> __device__ void join(J j) { state.join(j); }
  __device__ float2 get() const { return make_float2(state.m, state.s); }
  __device__ void set(float2 v) { state = {v.x, v.y}; }
  __device__ void close() { state.s = 1.0f / state.s; }
  __device__ float operator()(float x, float) const { return expf(x - state.m) * state.s; }
};

struct log_softmax_op : softmax_op {
  __device__ void close() { state.s = logf(state.s); }
  __device__ float operator()(float x, float) const { return x - state.m - state.s; }
};

struct sum_op {
  static constexpr int inputs = 2;
  static constexpr float nothing = 0.0f;
  float sum;
  __device__ void clear() { sum = 0.0f; }
  template <typename J> __device__ void join(J j) { sum = j(sum, 0.0f, df_add{}); }
  __device__ float2 get() const { return make_float2(sum, 0.0f); }
  __device__ void set(float2 v) { sum = v.x; }
  __device__ void close() {}
};

struct softmax_grad_op : sum_op {
  template <int HELD> __device__ void add(const float (&dy)[HELD], const float (&y)[HELD]) {
    float few = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      few = fmaf(dy[k], y[k], few);
    sum += few;
  }
  __device__ float operator()(float dy, float y) const { return y * (dy - sum); }
};

struct log_softmax_grad_op : sum_op {
  template <int HELD> __device__ void add(const float (&dy)[HELD], const float (&)[HELD]) {
    float few = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      few += dy[k];
    sum += few;
  }
  __device__ float operator()(float dy, float y) const { return dy - expf(y) * sum; }
};

/* ---- Rows ----------------------------------------------------------------------------------- */

template <typename Op>
__global__ void __launch_bounds__(DF_ROW_BLOCK)
    softmax_rows(float *out, const float *a, const float *b, float2 *states, df_rows plan,
                 int what) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const int64_t round = df_row_round(plan), origin = at.row * plan.n;
  float x[DF_HELD], y[DF_HELD] = {};
  Op op;
  op.clear();
  if (what == DF_ROW_RESULTS) {
    if (at.row < plan.rows && at.lane < plan.splits)
      op.set(states[at.row * plan.splits + at.lane]);
  } else {
    for (int64_t base = at.begin; base < at.end; base += round) {
      df_row_load(x, a + origin, plan, base, at.end, at.lane, Op::nothing);
      if (Op::inputs == 2)
        df_row_load(y, b + origin, plan, base, at.end, at.lane, 0.0f);
      op.add(x, y);
    }
  }
  op.join(df_row_join{scratch, plan.group});
  if (what == DF_ROW_STATES) {
    if (at.lane == 0 && at.row < plan.rows)
      states[at.row * plan.splits + blockIdx.y] = op.get();
    return;
  }
  op.close();
  const bool held = what == DF_ROW_COMPLETE && plan.length <= round;
  for (int64_t base = at.begin; base < at.end; base += round) {
    if (!held) {
      df_row_load(x, a + origin, plan, base, at.end, at.lane, Op::nothing);
      if (Op::inputs == 2)
        df_row_load(y, b + origin, plan, base, at.end, at.lane, 0.0f);
    }
    float result[DF_HELD];
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      result[k] = op(x[k], y[k]);
    df_row_store(out + origin, result, plan, base, at.end, at.lane);
  }
}

/* What a thread's elements add to the state, and their results, where they are all that it has. */
template <typename Op, int HELD> struct held_row {
  Op op;
  __device__ void add(float (&x)[HELD], const float (&y)[HELD]) {
    op.clear();
    op.add(x, y);
  }
  __device__ void close() { op.close(); }
  __device__ float operator()(float x, float y) const { return op(x, y); }
};

/* Each exponential is computed once: about the thread's maximum, then scaled. */
template <int HELD> struct held_row<softmax_op, HELD> {
  softmax_op op;
  float own;
  __device__ void add(float (&x)[HELD], const float (&)[HELD]) {
    op.state.hold(x);
    own = op.state.m;
  }
  __device__ void close() { own = expf(own - op.state.m) / op.state.s; }
  __device__ float operator()(float x, float) const { return x * own; }
};

/* Rows that groups hold by vectors, see df_rows_are_held. */
template <typename Op, int HELD>
__global__ void __launch_bounds__(df_rows_block(HELD), HELD / (2 * DF_HELD) + 2 - Op::inputs)
    softmax_rows_held(float *out, const float *a, const float *b, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const int64_t origin = at.row * plan.n;
  float x[HELD], y[HELD] = {};
  held_row<Op, HELD> row;
  df_row_load<true>(x, a + origin, plan, 0, at.end, at.lane, Op::nothing);
  if (Op::inputs == 2)
    df_row_load<true>(y, b + origin, plan, 0, at.end, at.lane, 0.0f);
  row.add(x, y);
  row.op.join(df_row_join{scratch, plan.group});
  row.close();
#pragma unroll
  for (int k = 0; k < HELD; k++)
    x[k] = row(x[k], y[k]);
  df_row_store<true>(out + origin, x, plan, 0, at.end, at.lane);
}

/* ---- Columns: inner > 1 --------------------------------------------------------------------- */

template <typename Op>
__global__ void __launch_bounds__(DF_COLUMN_BLOCK)
    softmax_columns(float *out, const float *a, const float *b, df_columns plan) {
  DF_SHARED_ARRAY(float, shared, [DF_COLUMN_BLOCK]);
  const df_column_position at = df_column_of_thread(plan);
  const int64_t round = static_cast<int64_t>(at.step) * DF_HELD;
  float x[DF_HELD], y[DF_HELD] = {};
  Op op;
  op.clear();
  for (int64_t base = 0; base < plan.size; base += round) {
    df_column_load(x, a, plan, at, base, Op::nothing);
    if (Op::inputs == 2)
      df_column_load(y, b, plan, at, base, 0.0f);
    op.add(x, y);
  }
  op.join(df_column_join{shared, plan.across});
  op.close();
  for (int64_t base = 0; base < plan.size; base += round) {
    if (plan.size > round) {
      df_column_load(x, a, plan, at, base, Op::nothing);
      if (Op::inputs == 2)
        df_column_load(y, b, plan, at, base, 0.0f);
    }
#pragma unroll
    for (int k = 0; k < DF_HELD; k++) {
      const int64_t i = base + at.first + k * at.step;
      if (at.live && i < plan.size)
        out[at.origin + i * plan.inner] = op(x[k], y[k]);
    }
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename Op> static df_status run(const df_call *call) {
  const df_tensor *y = call->outputs[0];
  if (df_elements(y) == 0)
    return DF_OK;
  const int64_t axis = df_axis(call, DF_SOFTMAX_AXIS, y->rank);
  const int64_t outer = df_product(y->shape, 0, axis), size = y->rank ? y->shape[axis] : 1;
  const int64_t inner = df_product(y->shape, axis + 1, y->rank);
  float *out = df_out<float>(call, 0);
  const float *a = df_in<const float>(call, 0);
  const float *b = Op::inputs == 2 ? df_in<const float>(call, 1) : nullptr;
  if (inner > 1) {
    const df_columns plan = df_columns_plan(outer, size, inner);
    return DF_LAUNCH(call, (softmax_columns<Op>), df_blocks(outer * plan.chunks, 1),
                     DF_COLUMN_BLOCK, 0, out, a, b, plan);
  }
  df_rows plan = df_rows_plan(outer, size, true);
  df_rows_vectors(&plan, out, a, b);
  const bool held = df_rows_are_held(&plan);
  const dim3 grid = df_rows_grid(plan);
  if (held)
    return df_by_held(plan, [&]<int HELD>() {
      return DF_LAUNCH(call, (softmax_rows_held<Op, HELD>), grid, plan.block, 0, out, a, b, plan);
    });
  float2 *states = static_cast<float2 *>(call->workspace);
  if (plan.splits > 1) {
    const df_status status = DF_LAUNCH(call, (softmax_rows<Op>), grid, plan.block, 0, out, a, b,
                                       states, plan, int{DF_ROW_STATES});
    if (status)
      return status;
  }
  return DF_LAUNCH(call, (softmax_rows<Op>), grid, plan.block, 0, out, a, b, states, plan,
                   plan.splits > 1 ? int{DF_ROW_RESULTS} : int{DF_ROW_COMPLETE});
}

/* Workspace for the states of splits. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *y = node->outputs[0];
  if (df_operand_elements(y) == 0 || y->rank == 0)
    return DF_OK;
  const int64_t axis = df_axis(node, DF_SOFTMAX_AXIS, y->rank);
  const df_rows plan = df_rows_plan(df_product(y->shape, 0, axis), y->shape[axis], true);
  if (df_product(y->shape, axis + 1, y->rank) == 1 && plan.splits > 1)
    out->workspace = plan.rows * plan.splits * static_cast<int64_t>(sizeof(float2));
  return DF_OK;
}

#define RECORD(name, operands, inplace)                                                            \
  DF_CUDA_KERNEL(#name, "f32", operands, inplace, .prepare = prepare, .run = run<name##_op>,       \
                 .capturable = 1)

static const df_kernel records[] = {RECORD(softmax, "f32->f32", "0<0"),
                                    RECORD(log_softmax, "f32->f32", "0<0"),
                                    RECORD(softmax_grad, "f32,f32->f32", "0<0,0<1"),
                                    RECORD(log_softmax_grad, "f32,f32->f32", "0<0,0<1")};
DF_CUDA_FAMILY(softmax, records);
