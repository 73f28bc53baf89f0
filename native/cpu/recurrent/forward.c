/* recurrent/forward.c: all steps of a recurrent layer. x: (T, N, gates * H), r: (gates * H, H),
 * states and y: (N, H) and (T, N, H). q = h r' (+ bias); gates are activated in place.
 *
 *   lstm  i, o, f = sigmoid, g = tanh of x[t] + q; c = f c + i g; h = o tanh(c)
 *   gru   z, s = sigmoid of x[t] + q; n = tanh(x[t] + s q); h = n + z (h - n)
 *   rnn   h = tanh(x[t] + q), or its positive part
 *
 * A sequence that has ended keeps its state, with zeros for its gates. x of a step is read before
 * anything of its size is written, which may therefore replace it: gates of an LSTM, y of rnn. */
#include "recurrent/recurrent.h"
#include "simd/vmath.h"

typedef struct forward forward;

/* Units [begin, end) of one sequence: x and q to gates and the new state. |before| is the state
 * before, c the cell, in place. |gates| may be |q|. */
typedef void (*cell)(const forward *f, float *y, float *gates, const float *x, const float *q,
                     const float *before, float *c, int64_t begin, int64_t end);

struct forward {
  df_recurrent sizes;
  df_recurrent_weight weight;
  cell cell;
  const float *x, *bias, *h;
  const float *zeros; /* H */
  float *y, *c;
  float *gates, *cells; /* may be null */
  float *q;             /* (N, q_row) */
  int64_t q_row, gates_row;
  int relu;
};

static void lstm_cell(const forward *f, float *y, float *gates, const float *x, const float *q,
                      const float *before, float *c, int64_t begin, int64_t end) {
  (void)before;
  const int64_t n = f->sizes.hidden;
  DF_IVDEP
  for (int64_t u = begin; u < end; u++) {
    const float in = df_sigmoid(x[u] + q[u]), out = df_sigmoid(x[n + u] + q[n + u]);
    const float forget = df_sigmoid(x[2 * n + u] + q[2 * n + u]);
    const float g = df_tanh(x[3 * n + u] + q[3 * n + u]);
    const float now = forget * c[u] + in * g;
    c[u] = now;
    y[u] = out * df_tanh(now);
    gates[u] = in;
    gates[n + u] = out;
    gates[2 * n + u] = forget;
    gates[3 * n + u] = g;
  }
}

static void gru_cell(const forward *f, float *y, float *gates, const float *x, const float *q,
                     const float *before, float *c, int64_t begin, int64_t end) {
  (void)c;
  const int64_t n = f->sizes.hidden;
  DF_IVDEP
  for (int64_t u = begin; u < end; u++) {
    const float z = df_sigmoid(x[u] + q[u]), s = df_sigmoid(x[n + u] + q[n + u]);
    const float inner = q[2 * n + u];
    const float new = df_tanh(x[2 * n + u] + s * inner);
    y[u] = (1.0f - z) * new + z * before[u];
    gates[u] = z;
    gates[n + u] = s;
    gates[2 * n + u] = new;
    gates[3 * n + u] = inner;
  }
}

static void rnn_cell(const forward *f, float *y, float *gates, const float *x, const float *q,
                     const float *before, float *c, int64_t begin, int64_t end) {
  (void)gates, (void)before, (void)c;
  if (f->relu) {
    for (int64_t u = begin; u < end; u++) {
      const float a = x[u] + q[u];
      y[u] = a > 0.0f || a != a ? a : 0.0f;
    }
  } else {
    DF_IVDEP
    for (int64_t u = begin; u < end; u++)
      y[u] = df_tanh(x[u] + q[u]);
  }
}

/* The state of a sequence that has ended. */
static void hold(const forward *f, float *y, float *gates, const float *before, int64_t begin,
                 int64_t end) {
  const size_t bytes = (size_t)(end - begin) * sizeof(float);
  memcpy(y + begin, before + begin, bytes);
  if (f->gates)
    for (int64_t group = 0; group < f->gates_row / f->sizes.hidden; group++)
      memset(gates + group * f->sizes.hidden + begin, 0, bytes);
}

static void forward_step(const void *context, int64_t index, const df_recurrent_range *range) {
  const forward *f = context;
  const df_recurrent *s = &f->sizes;
  const int64_t n = s->hidden, t = df_recurrent_time(s, index), at = t * s->batch;
  const float *before = f->h ? f->h : f->zeros;
  int64_t stride = f->h ? n : 0;
  if (index > 0) {
    before = f->y + (s->reverse ? at + s->batch : at - s->batch) * n;
    stride = n;
  }
  DF_NAME(df_recurrent_multiply)(&f->weight, f->q, f->q_row, before, stride, f->bias, 0, range);
  for (int64_t row = range->row; row < range->rows_end; row++) {
    float *y = f->y + (at + row) * n, *q = f->q + row * f->q_row;
    float *gates = f->gates ? f->gates + (at + row) * f->gates_row : q;
    float *c = f->c ? f->c + row * n : NULL;
    const float *x = f->x + (at + row) * s->gates * n, *h = before + row * stride;
    if (df_recurrent_goes_on(s, row, t))
      f->cell(f, y, gates, x, q, h, c, range->unit, range->units_end);
    else
      hold(f, y, gates, h, range->unit, range->units_end);
    DF_ASSUME(c || !f->cells);
    if (f->cells)
      memcpy(f->cells + (at + row) * n + range->unit, c + range->unit,
             (size_t)(range->units_end - range->unit) * sizeof(float));
  }
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Floats of the workspace: packed weight, q, zeros, a panel per thread. */
typedef struct layout {
  int64_t q, zeros, panels;
} layout;

static layout layout_of(int64_t batch, int64_t hidden, int64_t gates, int64_t q_row) {
  layout at;
  at.q = DF_NAME(df_recurrent_weight_floats)(hidden, gates, hidden);
  at.zeros = at.q + df_recurrent_floats(batch * q_row);
  at.panels = at.zeros + df_recurrent_floats(hidden);
  return at;
}

/* Room for q: what is activated in place, with a quarter of GRU's that is q itself. */
static int64_t q_row_of(int64_t gates, int64_t hidden) { return (gates == 3 ? 4 : gates) * hidden; }

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = node->inputs[0], *r = node->inputs[1];
  const int64_t hidden = r->shape[1], gates = hidden ? r->shape[0] / hidden : 1;
  const layout at = layout_of(x->shape[1], hidden, gates, q_row_of(gates, hidden));
  out->workspace =
      (at.panels + node->threads * DF_NAME(df_recurrent_scratch_floats)(hidden, x->shape[1])) *
      (int64_t)sizeof(float);
  return DF_OK;
}

/* Fills what all three share and runs the steps. Inputs: x, r, then bias (GRU), h, ... */
static void run(const df_call *call, forward *f, int64_t gates, int32_t lengths) {
  const df_tensor *x = call->inputs[0], *r = call->inputs[1];
  const int64_t hidden = r->shape[1], batch = x->shape[1];
  f->sizes = (df_recurrent){.steps = x->shape[0],
                            .batch = batch,
                            .hidden = hidden,
                            .gates = gates,
                            .reverse = df_attr_int(call, DF_LSTM_REVERSE),
                            .lengths = df_recurrent_present(call, lengths)};
  f->q_row = q_row_of(gates, hidden);
  f->gates_row = f->q_row;
  f->x = x->data;
  f->y = call->outputs[0]->data;
  float *last = call->outputs[1]->data;
  const size_t bytes = (size_t)(batch * hidden) * sizeof(float);
  if (!bytes)
    return;
  if (f->sizes.steps) {
    const layout at = layout_of(batch, hidden, gates, f->q_row);
    float *workspace = call->workspace, *zeros = workspace + at.zeros;
    memset(zeros, 0, (size_t)hidden * sizeof(float));
    f->zeros = zeros;
    f->q = workspace + at.q;
    f->weight = (df_recurrent_weight){workspace, hidden, gates, hidden, 1};
    DF_NAME(df_recurrent_pack)(call, &f->weight, r->data);
    DF_NAME(df_recurrent_run)
    (call, &f->sizes, f->sizes.steps, forward_step, f, workspace + at.panels, hidden);
    memcpy(last, f->y + df_recurrent_time(&f->sizes, f->sizes.steps - 1) * batch * hidden, bytes);
  } else if (f->h) {
    memcpy(last, f->h, bytes);
  } else {
    memset(last, 0, bytes);
  }
}

static df_status lstm_run(const df_call *call) {
  forward f = {.cell = lstm_cell,
               .h = df_recurrent_input(call, 2),
               .c = call->outputs[2]->data,
               .gates = call->outputs[3]->data,
               .cells = call->outputs[4]->data};
  const float *c = df_recurrent_input(call, 3);
  const size_t bytes = (size_t)df_elements(call->outputs[2]) * sizeof(float);
  if (bytes && c)
    memcpy(f.c, c, bytes);
  else if (bytes)
    memset(f.c, 0, bytes);
  run(call, &f, 4, 4);
  return DF_OK;
}

static df_status gru_run(const df_call *call) {
  forward f = {.cell = gru_cell,
               .bias = df_recurrent_input(call, 2),
               .h = df_recurrent_input(call, 3),
               .gates = call->outputs[2]->data};
  run(call, &f, 3, 4);
  return DF_OK;
}

static df_status rnn_run(const df_call *call) {
  forward f = {.cell = rnn_cell,
               .h = df_recurrent_input(call, 2),
               .relu = df_attr_int(call, DF_RNN_RELU) != 0};
  run(call, &f, 1, 3);
  return DF_OK;
}

DF_KERNELS(recurrent) = {
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "lstm",
                       .name = "lstm f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32?,f32?,i32|i64?->f32,f32,f32,f32?,f32?",
                       .inplace = "3<0",
                       .prepare = prepare,
                       .run = lstm_run},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "gru",
                       .name = "gru f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32?,f32?,i32|i64?->f32,f32,f32?",
                       .prepare = prepare,
                       .run = gru_run},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "rnn",
                       .name = "rnn f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32?,i32|i64?->f32,f32",
                       .inplace = "0<0",
                       .prepare = prepare,
                       .run = rnn_run},
    NULL};
