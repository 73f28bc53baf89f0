/* recurrent/grad.cu: the gradient of a recurrent layer by its inputs, from the last step back.
 * Shapes as in recurrent/recurrent.cu. At each step d = dh + dy[t]; then, with e = dc + d o (1 -
 * tanh(c)^2):
 *
 *   lstm  di = e g i (1 - i), do = d tanh(c) o (1 - o), df = e c' f (1 - f), dg = e i (1 - g^2)
 *         dx[t] = (di, do, df, dg); dh = dx[t] r, dc = e f; c' is c before the step
 *   gru   dn = d (1 - z) (1 - n^2), ds = dn q s (1 - s), dz = d (h' - n) z (1 - z)
 *         dx[t] = (dz, ds, dn), dq[t] = (dz, ds, dn s); dh = dq[t] r + z d; h' is h before the step
 *   rnn   dx[t] = d (1 - y[t]^2), or d where y[t] > 0; dh = dx[t] r
 *
 * Where a sequence has ended d goes on to the step before, and dx is zero. */
#include "recurrent/recurrent.h"

/* One step. The cotangent of the state is what the product gives, and what went straight to it. */
struct moment {
  df_recurrent_position position;
  df_recurrent_sums product;
  const float *straight_before; /* null: zeros */
  float *straight;              /* may be the same */
  const float *dc_before;
  float *dc;
  const float *dy, *gates;
  const float *now, *before; /* the kept state (LSTM: cell) after and before the step */
  float *dx, *dq;
  int relu;
};

static __device__ __forceinline__ float or_zero(const float *from, int64_t i) {
  return from ? from[i] : 0.0f;
}

static __device__ __forceinline__ float cotangent(const moment &m, int64_t index, int64_t row,
                                                  int64_t unit) {
  return m.product.at(row, unit) + or_zero(m.straight_before, index) + or_zero(m.dy, index);
}

__global__ void __launch_bounds__(DF_BLOCK) lstm_grad_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  const int64_t n = m.position.hidden, first = row * 4 * n + unit;
  const float d = cotangent(m, index, row, unit);
  float dx[4] = {}, straight = d, dc = or_zero(m.dc_before, index);
  if (m.position.goes_on(row)) {
    const float *gates = m.gates + first;
    const float in = gates[0], out = gates[n], forget = gates[2 * n], g = gates[3 * n];
    const float bent = tanhf(m.now[index]);
    const float e = dc + d * out * (1.0f - bent * bent);
    dx[0] = e * g * (in * (1.0f - in));
    dx[1] = d * bent * (out * (1.0f - out));
    dx[2] = e * or_zero(m.before, index) * (forget * (1.0f - forget));
    dx[3] = e * in * (1.0f - g * g);
    dc = e * forget;
    straight = 0.0f;
  }
#pragma unroll
  for (int gate = 0; gate < 4; gate++)
    m.dx[first + gate * n] = dx[gate];
  m.dc[index] = dc;
  m.straight[index] = straight;
}

__global__ void __launch_bounds__(DF_BLOCK) gru_grad_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  const int64_t n = m.position.hidden, first = row * 3 * n + unit;
  const float d = cotangent(m, index, row, unit);
  float dz = 0.0f, ds = 0.0f, dn = 0.0f, s = 0.0f, straight = d;
  if (m.position.goes_on(row)) {
    const float *gates = m.gates + row * 4 * n + unit;
    const float z = gates[0], fresh = gates[2 * n], q = gates[3 * n];
    s = gates[n];
    dn = d * (1.0f - z) * (1.0f - fresh * fresh);
    dz = d * (or_zero(m.before, index) - fresh) * (z * (1.0f - z));
    ds = dn * q * (s * (1.0f - s));
    straight = d * z;
  }
  m.dx[first] = dz;
  m.dx[first + n] = ds;
  m.dx[first + 2 * n] = dn;
  m.dq[first] = dz;
  m.dq[first + n] = ds;
  m.dq[first + 2 * n] = dn * s;
  m.straight[index] = straight;
}

__global__ void __launch_bounds__(DF_BLOCK) rnn_grad_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  const float d = cotangent(m, index, row, unit), y = m.now[index];
  const bool on = m.position.goes_on(row);
  const float slope = m.relu ? (y > 0.0f ? 1.0f : 0.0f) : 1.0f - y * y;
  m.dx[index] = on ? d * slope : 0.0f;
  m.straight[index] = on ? 0.0f : d;
}

/* The cotangent of the first state, when the last product is done. */
__global__ void __launch_bounds__(DF_BLOCK) finish_state(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (m.position.find(&index, &row, &unit))
    m.straight[index] = cotangent(m, index, row, unit);
}

/* ---- The loop ------------------------------------------------------------------------------- */

/* Of complete operands; null for what is absent. */
struct backward {
  df_recurrent sizes;
  const float *r, *gates, *kept, *dy, *start; /* |start|: the first of the kept states */
  const float *dh, *dc;                       /* cotangents of the last states */
  float *dx, *dq;                             /* |dq|: what is multiplied by r */
  float *dh_first, *dc_first;
  int64_t gates_row;
  int relu;
};

/* Floats of the workspace: the product's partial sums, and dh and dc where nobody wants them. */
struct layout {
  int64_t dh, dc, end;
};
static layout layout_of(const df_recurrent &s) {
  layout at;
  const int64_t state = df_divide_up(s.batch * s.hidden, 16) * 16;
  at.dh = df_divide_up(df_recurrent_floats(df_recurrent_product(s, nullptr, true)), 16) * 16;
  at.dc = at.dh + state;
  at.end = at.dc + state;
  return at;
}

static df_status launch_step(const df_call *call, const moment &m, int64_t gates) {
  const unsigned blocks = df_blocks(m.position.count, DF_BLOCK);
  if (gates == 4)
    return DF_LAUNCH(call, lstm_grad_step, blocks, DF_BLOCK, 0, m);
  if (gates == 3)
    return DF_LAUNCH(call, gru_grad_step, blocks, DF_BLOCK, 0, m);
  return DF_LAUNCH(call, rnn_grad_step, blocks, DF_BLOCK, 0, m);
}

static df_status run_steps(const df_call *call, const backward &b, float *partials, moment &m) {
  const df_recurrent &s = b.sizes;
  const int64_t count = s.batch * s.hidden, back = s.reverse ? 1 : -1; /* the step before */
  const df_gemm product = df_recurrent_product(s, b.r, true);
  for (int64_t i = 0; i < s.steps; i++) {
    const int64_t t = df_recurrent_time(s, s.steps - 1 - i);
    m.position = df_recurrent_position_of(s, t);
    m.dy = b.dy ? b.dy + t * count : nullptr;
    m.gates = b.gates ? b.gates + t * s.batch * b.gates_row : nullptr;
    m.now = b.kept + t * count;
    m.before = i == s.steps - 1 ? b.start : b.kept + (t + back) * count;
    m.dx = b.dx + t * count * s.gates;
    m.dq = b.dq + t * count * s.gates;
    df_status status = launch_step(call, m, s.gates);
    m.straight_before = m.straight;
    m.dc_before = m.dc;
    if (!status && (i < s.steps - 1 || b.dh_first)) /* the last one is only for the first state */
      status = df_recurrent_multiply(call, product, m.dq, partials, &m.product);
    if (status)
      return status;
  }
  return DF_OK;
}

static df_status run(const df_call *call, const backward &b) {
  const int64_t count = b.sizes.batch * b.sizes.hidden;
  if (count == 0)
    return DF_OK;
  if (b.sizes.steps == 0) {
    df_status status = df_recurrent_pass_on(call, b.dh_first, b.dh, count);
    return status ? status : df_recurrent_pass_on(call, b.dc_first, b.dc, count);
  }
  const layout at = layout_of(b.sizes);
  float *workspace = static_cast<float *>(call->workspace);
  moment m{};
  m.relu = b.relu;
  m.straight_before = b.dh;
  m.straight = b.dh_first ? b.dh_first : workspace + at.dh;
  m.dc_before = b.dc;
  m.dc = b.dc_first ? b.dc_first : workspace + at.dc;
  df_status status = run_steps(call, b, workspace, m);
  if (status || !b.dh_first)
    return status;
  m.dy = nullptr;
  return DF_LAUNCH(call, finish_state, df_blocks(count, DF_BLOCK), DF_BLOCK, 0, m);
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Input 0 is r, output 0 is dx. */
static const char *accepts(const df_node *node) {
  return df_recurrent_accepts(node->outputs[0], node->inputs[0]);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_recurrent s = df_recurrent_of(node->outputs[0]->shape, node->inputs[0]->shape);
  out->workspace = layout_of(s).end * static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

/* |kept|: the input that is the kept state; cotangents of y and of the last state follow it. */
static backward backward_of(const df_call *call, int64_t gates, int32_t kept, int32_t lengths) {
  backward b{};
  b.sizes = df_recurrent_of(call->outputs[0]->shape, call->inputs[0]->shape);
  b.sizes.gates = gates;
  b.sizes.reverse = df_attr_int(call, DF_LSTM_REVERSE) != 0;
  df_recurrent_lengths(&b.sizes, call, lengths);
  b.r = df_in<const float>(call, 0);
  b.gates = kept == 2 ? df_in<const float>(call, 1) : nullptr;
  b.kept = df_in<const float>(call, kept);
  b.dy = df_in<const float>(call, kept + 1);
  b.dh = df_in<const float>(call, kept + 2);
  b.dx = df_out<float>(call, 0);
  b.dq = b.dx;
  b.gates_row = 4 * b.sizes.hidden;
  return b;
}

static df_status lstm_run(const df_call *call) {
  backward b = backward_of(call, 4, 2, 7);
  b.dc = df_in<const float>(call, 5);
  b.start = df_in<const float>(call, 6);
  b.dh_first = df_out<float>(call, 1);
  b.dc_first = df_out<float>(call, 2);
  return run(call, b);
}

static df_status gru_run(const df_call *call) {
  backward b = backward_of(call, 3, 2, 6);
  b.start = df_in<const float>(call, 5);
  b.dq = df_out<float>(call, 1);
  b.dh_first = df_out<float>(call, 2);
  return run(call, b);
}

static df_status rnn_run(const df_call *call) {
  backward b = backward_of(call, 1, 1, 4);
  b.relu = df_attr_int(call, DF_RNN_RELU) != 0;
  b.dh_first = df_out<float>(call, 1);
  return run(call, b);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("lstm_grad", "f32", "f32,f32,f32,f32?,f32?,f32?,f32?,i32|i64?->f32,f32?,f32?",
                   nullptr, .accepts = accepts, .prepare = prepare, .run = lstm_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("gru_grad", "f32", "f32,f32,f32,f32?,f32?,f32?,i32|i64?->f32,f32,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = gru_run, .capturable = 1),
    DF_CUDA_KERNEL("rnn_grad", "f32", "f32,f32,f32?,f32?,i32|i64?->f32,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = rnn_run, .capturable = 1)};
DF_CUDA_FAMILY(recurrent_grad, records);
