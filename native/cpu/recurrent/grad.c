/* recurrent/grad.c: the gradient of a recurrent layer by its inputs, from the last step back.
 * Shapes as in recurrent/forward.c. At each step d = dh + dy[t]; then, with e = dc + d o (1 -
 * tanh(c)^2):
 *
 *   lstm  di = e g i (1 - i), do = d tanh(c) o (1 - o), df = e c' f (1 - f), dg = e i (1 - g^2)
 *         dx[t] = (di, do, df, dg); dh = dx[t] r, dc = e f; c' is c before the step
 *   gru   dn = d (1 - z) (1 - n^2), ds = dn q s (1 - s), dz = d (h' - n) z (1 - z)
 *         dx[t] = (dz, ds, dn), dq[t] = (dz, ds, dn s); dh = dq[t] r + z d; h' is h before the step
 *   rnn   dx[t] = d (1 - y[t]^2), or d where y[t] > 0; dh = dx[t] r
 *
 * The gates of a step are read before its dx is written, which an LSTM's may therefore replace.
 * Where a sequence has ended d goes on to the step before, and dx is zero. */
#include "recurrent/recurrent.h"
#include "simd/vmath.h"

typedef struct backward backward;

/* One sequence at one step. */
typedef struct moment {
  float *dx, *dq;
  float *dh; /* in: the cotangent of the state; out: what goes straight to the state before */
  float *dc;
  const float *dy, *gates;
  const float *now, *before; /* the kept state (LSTM: cell) after and before the step */
} moment;

typedef void (*cell)(const backward *b, const moment *m, int64_t begin, int64_t end);

struct backward {
  df_recurrent sizes;
  df_recurrent_weight weight;
  cell cell;
  const float *gates, *kept, *start; /* |kept|: states, of LSTM cells; |start|: the first one */
  const df_tensor *dy;               /* of any strides; null for zeros */
  const float *zeros;
  float *dx, *dq; /* |dq|: what is multiplied by r; |dx| itself but for GRU */
  float *dh, *dc;
  int64_t gates_row;
  int relu;
};

/* Zero instead of a gradient that has faded: through many steps it would become a
 * denormal number, and with those a processor is a hundred times slower, also in the products that
 * follow. */
static inline float kept(float x) { return fabsf(x) < 0x1p-100f ? 0.0f : x; }

static void lstm_cell(const backward *b, const moment *m, int64_t begin, int64_t end) {
  const int64_t n = b->sizes.hidden;
  const float *gates = m->gates, *now = m->now, *before = m->before, *dy = m->dy;
  float *dx = m->dx, *dh = m->dh, *dc = m->dc;
  DF_IVDEP
  for (int64_t u = begin; u < end; u++) {
    const float in = gates[u], out = gates[n + u], forget = gates[2 * n + u], g = gates[3 * n + u];
    const float d = kept(dh[u] + dy[u]), bent = df_tanh(now[u]);
    const float e = dc[u] + d * out * (1.0f - bent * bent);
    dx[u] = kept(e * g * (in * (1.0f - in)));
    dx[n + u] = kept(d * bent * (out * (1.0f - out)));
    dx[2 * n + u] = kept(e * before[u] * (forget * (1.0f - forget)));
    dx[3 * n + u] = kept(e * in * (1.0f - g * g));
    dc[u] = kept(e * forget);
    dh[u] = 0.0f;
  }
}

static void gru_cell(const backward *b, const moment *m, int64_t begin, int64_t end) {
  const int64_t n = b->sizes.hidden;
  const float *gates = m->gates, *before = m->before, *dy = m->dy;
  float *dx = m->dx, *dq = m->dq, *dh = m->dh;
  DF_IVDEP
  for (int64_t u = begin; u < end; u++) {
    const float z = gates[u], s = gates[n + u], new = gates[2 * n + u], q = gates[3 * n + u];
    const float d = kept(dh[u] + dy[u]), dn = kept(d * (1.0f - z) * (1.0f - new * new));
    const float dz = kept(d * (before[u] - new) * (z * (1.0f - z)));
    const float ds = kept(dn * q * (s * (1.0f - s)));
    dx[u] = dz;
    dx[n + u] = ds;
    dx[2 * n + u] = dn;
    dq[u] = dz;
    dq[n + u] = ds;
    dq[2 * n + u] = kept(dn * s);
    dh[u] = d * z;
  }
}

static void rnn_cell(const backward *b, const moment *m, int64_t begin, int64_t end) {
  const float *y = m->now, *dy = m->dy;
  float *dx = m->dx, *dh = m->dh;
  const int relu = b->relu;
  DF_IVDEP
  for (int64_t u = begin; u < end; u++) {
    const float d = kept(dh[u] + dy[u]),
                slope = relu ? (y[u] > 0.0f ? 1.0f : 0.0f) : 1.0f - y[u] * y[u];
    dx[u] = kept(d * slope);
    dh[u] = 0.0f;
  }
}

/* A sequence that has ended. */
static void pass_on(const backward *b, const moment *m, int64_t begin, int64_t end) {
  const int64_t n = b->sizes.hidden;
  const size_t bytes = (size_t)(end - begin) * sizeof(float);
  for (int64_t u = begin; u < end; u++)
    m->dh[u] += m->dy[u];
  for (int64_t gate = 0; gate < b->sizes.gates; gate++) {
    memset(m->dx + gate * n + begin, 0, bytes);
    if (m->dq != m->dx)
      memset(m->dq + gate * n + begin, 0, bytes);
  }
}

/* Row |row| of dy at time |t|, units one behind another. Where they lie apart, those of the range
 * are added to |dh|, whose sum with dy is all that a cell reads, and zeros stand for the row. */
static const float *cotangent(const backward *b, int64_t t, const df_recurrent_range *range,
                              int64_t row, float *dh) {
  const df_tensor *dy = b->dy;
  if (!dy)
    return b->zeros;
  const float *first = (const float *)dy->data + t * dy->strides[0] + row * dy->strides[1];
  const int64_t apart = dy->strides[2];
  if (apart == 1 || b->sizes.hidden == 1)
    return first;
  for (int64_t u = range->unit; u < range->units_end; u++)
    dh[u] += first[u * apart];
  return b->zeros;
}

/* Step |index| from the end; the one behind the last only finishes dh. */
static void backward_step(const void *context, int64_t index, const df_recurrent_range *range) {
  const backward *b = context;
  const df_recurrent *s = &b->sizes;
  const int64_t n = s->hidden, width = s->gates * n;
  const int64_t back = s->reverse ? 1 : -1; /* the step before, in time */
  const int64_t t = df_recurrent_time(s, s->steps - 1 - index), at = t * s->batch;
  if (index > 0)
    DF_NAME(df_recurrent_multiply)
  (&b->weight, b->dh, n, b->dq + (at - back * s->batch) * width, width, NULL, 1, range);
  if (index == s->steps)
    return;
  for (int64_t row = range->row; row < range->rows_end; row++) {
    const int64_t i = at + row;
    const float *first = b->start ? b->start + row * n : b->zeros;
    const moment m = {
        .dx = b->dx + i * width,
        .dq = b->dq + i * width,
        .dh = b->dh + row * n,
        .dc = b->dc ? b->dc + row * n : NULL,
        .dy = cotangent(b, t, range, row, b->dh + row * n),
        .gates = b->gates ? b->gates + i * b->gates_row : NULL,
        .now = b->kept + i * n,
        .before = index == s->steps - 1 ? first : b->kept + (i + back * s->batch) * n,
    };
    if (df_recurrent_goes_on(s, row, t))
      b->cell(b, &m, range->unit, range->units_end);
    else
      pass_on(b, &m, range->unit, range->units_end);
  }
}

/* ---- Records -------------------------------------------------------------------------------- */

/* Floats of the workspace: packed weight, zeros, dh and dc where nobody wants them, panels. */
typedef struct layout {
  int64_t zeros, dh, dc, panels;
} layout;

static layout layout_of(int64_t batch, int64_t hidden, int64_t gates) {
  layout at;
  at.zeros = DF_NAME(df_recurrent_weight_floats)(gates * hidden, 1, hidden);
  at.dh = at.zeros + df_recurrent_floats(hidden);
  at.dc = at.dh + df_recurrent_floats(batch * hidden);
  at.panels = at.dc + df_recurrent_floats(batch * hidden);
  return at;
}

/* Input 0 is r, output 0 is dx. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *r = node->inputs[0], *dx = node->outputs[0];
  const int64_t hidden = r->shape[1], gates = hidden ? r->shape[0] / hidden : 1;
  const layout at = layout_of(dx->shape[1], hidden, gates);
  out->workspace = (at.panels + node->threads * DF_NAME(df_recurrent_scratch_floats)(
                                                    gates * hidden, dx->shape[1])) *
                   (int64_t)sizeof(float);
  return DF_OK;
}

static float *started(float *wanted, float *otherwise, const float *from, size_t bytes) {
  float *state = wanted ? wanted : otherwise;
  if (from)
    memcpy(state, from, bytes);
  else
    memset(state, 0, bytes);
  return state;
}

/* Fills what all three share and runs the steps. |dh|, |dc|: cotangents of the last states. */
static void run(const df_call *call, backward *b, int64_t gates, int32_t lengths, const float *dh,
                const float *dc, float *dh_first, float *dc_first) {
  const df_tensor *r = call->inputs[0], *dx = call->outputs[0];
  const int64_t hidden = r->shape[1], batch = dx->shape[1];
  const size_t bytes = (size_t)(batch * hidden) * sizeof(float);
  if (!bytes)
    return;
  b->sizes = (df_recurrent){.steps = dx->shape[0],
                            .batch = batch,
                            .hidden = hidden,
                            .gates = gates,
                            .reverse = df_attr_int(call, DF_LSTM_REVERSE),
                            .lengths = df_recurrent_present(call, lengths)};
  const layout at = layout_of(batch, hidden, gates);
  float *workspace = call->workspace, *zeros = workspace + at.zeros;
  memset(zeros, 0, (size_t)hidden * sizeof(float));
  b->zeros = zeros;
  b->dx = dx->data;
  b->dq = b->dq ? b->dq : b->dx;
  b->dh = started(dh_first, workspace + at.dh, dh, bytes);
  b->dc = gates == 4 ? started(dc_first, workspace + at.dc, dc, bytes) : NULL;
  if (!b->sizes.steps)
    return;
  b->weight = (df_recurrent_weight){workspace, gates * hidden, 1, hidden, 0};
  DF_NAME(df_recurrent_pack)(call, &b->weight, r->data);
  /* The last product is only for dh before the first step. */
  DF_NAME(df_recurrent_run)
  (call, &b->sizes, b->sizes.steps + (dh_first != NULL), backward_step, b, workspace + at.panels,
   gates * hidden);
}

static df_status lstm_run(const df_call *call) {
  backward b = {.cell = lstm_cell,
                .gates = call->inputs[1]->data,
                .kept = call->inputs[2]->data,
                .dy = df_recurrent_present(call, 3),
                .start = df_recurrent_input(call, 6),
                .gates_row = 4 * call->inputs[0]->shape[1]};
  run(call, &b, 4, 7, df_recurrent_input(call, 4), df_recurrent_input(call, 5),
      call->outputs[1]->data, call->outputs[2]->data);
  return DF_OK;
}

static df_status gru_run(const df_call *call) {
  backward b = {.cell = gru_cell,
                .gates = call->inputs[1]->data,
                .kept = call->inputs[2]->data,
                .dy = df_recurrent_present(call, 3),
                .start = df_recurrent_input(call, 5),
                .dq = call->outputs[1]->data,
                .gates_row = 4 * call->inputs[0]->shape[1]};
  run(call, &b, 3, 6, df_recurrent_input(call, 4), NULL, call->outputs[2]->data, NULL);
  return DF_OK;
}

static df_status rnn_run(const df_call *call) {
  backward b = {.cell = rnn_cell,
                .kept = call->inputs[1]->data,
                .dy = df_recurrent_present(call, 2),
                .relu = df_attr_int(call, DF_RNN_RELU) != 0};
  run(call, &b, 1, 4, df_recurrent_input(call, 3), NULL, call->outputs[1]->data, NULL);
  return DF_OK;
}

DF_KERNELS(recurrent_grad) = {
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "lstm_grad",
                       .name = "lstm_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,~f32?,f32?,f32?,f32?,i32|i64?->f32,f32?,f32?",
                       .inplace = "0<1",
                       .prepare = prepare,
                       .run = lstm_run},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "gru_grad",
                       .name = "gru_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,f32,~f32?,f32?,f32?,i32|i64?->f32,f32,f32?",
                       .prepare = prepare,
                       .run = gru_run},
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "rnn_grad",
                       .name = "rnn_grad f32 " DF_TEXT(DF_ISA),
                       .operands = "f32,f32,~f32?,f32?,i32|i64?->f32,f32?",
                       .prepare = prepare,
                       .run = rnn_run},
    NULL};
