/* recurrent/recurrent.cu: all steps of a recurrent layer. x: (T, N, gates * H), r: (gates * H, H),
 * states and y: (N, H) and (T, N, H). q = h r' (+ bias); the gates that are kept are activated.
 *
 *   lstm  i, o, f = sigmoid, g = tanh of x[t] + q; c = f c + i g; h = o tanh(c)
 *   gru   z, s = sigmoid of x[t] + q; n = tanh(x[t] + s q); h = n + z (h - n)
 *   rnn   h = tanh(x[t] + q), or its positive part
 *
 * A sequence that has ended keeps its state, with zeros for its gates. */
#include "recurrent/recurrent.h"

/* One step; null for what is absent. The state before the first step may be absent: zeros. */
struct moment {
  df_recurrent_position position;
  df_recurrent_sums q;
  const float *x, *bias, *before, *cell_before;
  float *y, *last, *cell; /* |last|: y again, after the last step; |cell|: LSTM, the running one */
  float *gates, *cells;
  int relu;
};

static __device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* Stores the state, and COUNT gates when they are kept. */
template <int COUNT>
static __device__ __forceinline__ void keep(const moment &m, int64_t index, int64_t row,
                                            int64_t unit, float state,
                                            const float (&gates)[COUNT]) {
  m.y[index] = state;
  if (m.last)
    m.last[index] = state;
  if (m.gates)
#pragma unroll
    for (int gate = 0; gate < COUNT; gate++)
      m.gates[(row * COUNT + gate) * m.position.hidden + unit] = gates[gate];
}

__global__ void __launch_bounds__(DF_BLOCK) lstm_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  const int64_t n = m.position.hidden;
  const float *x = m.x + row * 4 * n + unit;
  float gates[4] = {}, state = m.before ? m.before[index] : 0.0f;
  float cell = m.cell_before ? m.cell_before[index] : 0.0f;
  if (m.position.goes_on(row)) {
    gates[0] = sigmoid(x[0] + m.q.at(row, unit));
    gates[1] = sigmoid(x[n] + m.q.at(row, n + unit));
    gates[2] = sigmoid(x[2 * n] + m.q.at(row, 2 * n + unit));
    gates[3] = tanhf(x[3 * n] + m.q.at(row, 3 * n + unit));
    cell = gates[2] * cell + gates[0] * gates[3];
    state = gates[1] * tanhf(cell);
  }
  m.cell[index] = cell;
  if (m.cells)
    m.cells[index] = cell;
  keep(m, index, row, unit, state, gates);
}

/* The fourth thing that is kept is what s multiplies. */
__global__ void __launch_bounds__(DF_BLOCK) gru_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  const int64_t n = m.position.hidden;
  const float *x = m.x + row * 3 * n + unit;
  float gates[4] = {}, state = m.before ? m.before[index] : 0.0f;
  if (m.position.goes_on(row)) {
    float q[3];
#pragma unroll
    for (int gate = 0; gate < 3; gate++)
      q[gate] = m.q.at(row, gate * n + unit) + (m.bias ? m.bias[gate * n + unit] : 0.0f);
    gates[0] = sigmoid(x[0] + q[0]);
    gates[1] = sigmoid(x[n] + q[1]);
    gates[2] = tanhf(x[2 * n] + gates[1] * q[2]);
    gates[3] = q[2];
    state = (1.0f - gates[0]) * gates[2] + gates[0] * state;
  }
  keep(m, index, row, unit, state, gates);
}

__global__ void __launch_bounds__(DF_BLOCK) rnn_step(const __grid_constant__ moment m) {
  int64_t index, row, unit;
  if (!m.position.find(&index, &row, &unit))
    return;
  float state = m.before ? m.before[index] : 0.0f;
  if (m.position.goes_on(row)) {
    const float sum = m.x[index] + m.q.at(row, unit);
    state = m.relu ? (sum < 0.0f ? 0.0f : sum) : tanhf(sum);
  }
  m.y[index] = state;
  if (m.last)
    m.last[index] = state;
}

/* ---- The loop ------------------------------------------------------------------------------- */

/* Of complete operands. */
struct forward {
  df_recurrent sizes;
  const float *x, *r, *bias, *h, *c;
  float *y, *last, *cell, *gates, *cells;
  int64_t gates_row;
  int relu;
};

static df_status launch_step(const df_call *call, const moment &m, int64_t gates) {
  const unsigned blocks = df_blocks(m.position.count, DF_BLOCK);
  if (gates == 4)
    return DF_LAUNCH(call, lstm_step, blocks, DF_BLOCK, 0, m);
  if (gates == 3)
    return DF_LAUNCH(call, gru_step, blocks, DF_BLOCK, 0, m);
  return DF_LAUNCH(call, rnn_step, blocks, DF_BLOCK, 0, m);
}

static df_status run(const df_call *call, const forward &f) {
  const df_recurrent &s = f.sizes;
  const int64_t count = s.batch * s.hidden;
  if (count == 0)
    return DF_OK;
  if (s.steps == 0) {
    df_status status = df_recurrent_pass_on(call, f.last, f.h, count);
    return status ? status : df_recurrent_pass_on(call, f.cell, f.c, count);
  }
  const df_gemm product = df_recurrent_product(s, f.r, false);
  moment m{};
  m.bias = f.bias;
  m.before = f.h;
  m.cell = f.cell;
  m.cell_before = f.c;
  m.relu = f.relu;
  for (int64_t i = 0; i < s.steps; i++) {
    const int64_t t = df_recurrent_time(s, i);
    m.position = df_recurrent_position_of(s, t);
    m.x = f.x + t * count * s.gates;
    m.y = f.y + t * count;
    m.last = i == s.steps - 1 ? f.last : nullptr;
    m.gates = f.gates ? f.gates + t * s.batch * f.gates_row : nullptr;
    m.cells = f.cells ? f.cells + t * count : nullptr;
    df_status status = DF_OK;
    if (m.before)
      status = df_recurrent_multiply(call, product, m.before, static_cast<float *>(call->workspace),
                                     &m.q);
    if (!status)
      status = launch_step(call, m, s.gates);
    if (status)
      return status;
    m.before = m.y;
    m.cell_before = m.cell;
  }
  return DF_OK;
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts(const df_node *node) {
  return df_recurrent_accepts(node->inputs[0], node->inputs[1]);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_recurrent s = df_recurrent_of(node->inputs[0]->shape, node->inputs[1]->shape);
  out->workspace = df_recurrent_floats(df_recurrent_product(s, nullptr, false)) *
                   static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

/* What all three share: x, r, the first state, the lengths; y and the last state. */
static forward forward_of(const df_call *call, int64_t gates, int32_t h, int32_t lengths) {
  forward f{};
  f.sizes = df_recurrent_of(call->inputs[0]->shape, call->inputs[1]->shape);
  f.sizes.gates = gates;
  f.sizes.reverse = df_attr_int(call, DF_LSTM_REVERSE) != 0;
  df_recurrent_lengths(&f.sizes, call, lengths);
  f.x = df_in<const float>(call, 0);
  f.r = df_in<const float>(call, 1);
  f.h = df_in<const float>(call, h);
  f.y = df_out<float>(call, 0);
  f.last = df_out<float>(call, 1);
  f.gates_row = (gates == 3 ? 4 : gates) * f.sizes.hidden;
  return f;
}

static df_status lstm_run(const df_call *call) {
  forward f = forward_of(call, 4, 2, 4);
  f.c = df_in<const float>(call, 3);
  f.cell = df_out<float>(call, 2);
  f.gates = df_out<float>(call, 3);
  f.cells = df_out<float>(call, 4);
  return run(call, f);
}

static df_status gru_run(const df_call *call) {
  forward f = forward_of(call, 3, 3, 4);
  f.bias = df_in<const float>(call, 2);
  f.gates = df_out<float>(call, 2);
  return run(call, f);
}

static df_status rnn_run(const df_call *call) {
  forward f = forward_of(call, 1, 2, 3);
  f.relu = df_attr_int(call, DF_RNN_RELU) != 0;
  return run(call, f);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("lstm", "f32", "f32,f32,f32?,f32?,i32|i64?->f32,f32,f32,f32?,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = lstm_run, .capturable = 1),
    DF_CUDA_KERNEL("gru", "f32", "f32,f32,f32?,f32?,i32|i64?->f32,f32,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = gru_run, .capturable = 1),
    DF_CUDA_KERNEL("rnn", "f32", "f32,f32,f32?,i32|i64?->f32,f32", nullptr, .accepts = accepts,
                   .prepare = prepare, .run = rnn_run, .capturable = 1)};
DF_CUDA_FAMILY(recurrent, records);
