/* conv_phase.c: cutting an input gradient into phases, and joining what they give: a load and a
 * store per element of dx. */
#include "conv_phase.h"
#include "vector.h"

int64_t DF_NAME(df_phase_count)(const df_conv *conv) {
  const int64_t *stride = conv->window.stride;
  return stride[0] * stride[1] * stride[2];
}

static int64_t round_down(int64_t a, int64_t b) { return a >= 0 ? a / b : -df_divide_up(-a, b); }

/* One axis of phase |r|: the window's sizes, where the phase begins, and which taps it has: from
 * |*last| on every |*tap_step|-th, downwards. */
static void cut_axis(df_phase *phase, const df_window *w, int axis, int64_t r, int64_t *last,
                     int64_t *tap_step) {
  int64_t stride = w->stride[axis], dilation = w->dilation[axis], kernel = w->kernel[axis];
  int64_t tap = 0;
  while (tap < kernel && tap * dilation % stride != r)
    tap++;
  int64_t step = 1;
  while (step * dilation % stride != 0)
    step++;
  int64_t taps = tap < kernel ? (kernel - 1 - tap) / step + 1 : 0;
  int64_t a = -round_down(r - w->pad[axis], stride); /* of the first input */
  df_window *to = &phase->conv.window;
  phase->first[axis] = a * stride + r - w->pad[axis];
  to->in[axis] = w->out[axis];
  to->out[axis] = df_max(0, df_divide_up(w->in[axis] - phase->first[axis], stride));
  to->kernel[axis] = taps;
  to->stride[axis] = 1;
  to->dilation[axis] = step * dilation / stride;
  to->pad[axis] = (taps - 1) * to->dilation[axis] + (tap * dilation - r) / stride - a;
  to->pad_end[axis] =
      to->out[axis] - 1 + (taps - 1) * to->dilation[axis] - to->pad[axis] - (to->in[axis] - 1);
  *last = tap + (taps - 1) * step;
  *tap_step = step;
}

df_phase DF_NAME(df_phase_make)(const df_conv *conv, const float *weight, int64_t index) {
  const df_window *w = &conv->window;
  df_phase phase = {.conv = *conv, .weight = df_weight_make(conv, weight)};
  df_window *to = &phase.conv.window;
  df_weight *from = &phase.weight;
  phase.conv.channels = conv->filters;
  phase.conv.filters = conv->channels;
  from->filter = phase.weight.channel;
  from->channel = conv->channels * w->taps;
  to->in_size = to->out_size = to->taps = 1;
  for (int axis = DF_AXES - 1; axis >= 0; index /= w->stride[axis--]) {
    int64_t last, step;
    cut_axis(&phase, w, axis, index % w->stride[axis], &last, &step);
    to->in_size *= to->in[axis];
    to->out_size *= to->out[axis];
    to->taps *= to->kernel[axis];
    from->data += to->kernel[axis] > 0 ? last * from->tap[axis] : 0;
    from->tap[axis] *= -step;
  }
  return phase;
}

/* ---- Joining ----------------------------------------------------------------------------------
 */

typedef struct job {
  const df_conv *conv;
  const df_phase *phases;
  float *dx;
  int across, down; /* axes: rows of dx run along the one */
} job;

/* One row of dx: from[c] has its elements first[c] + i * stride, or is null where they are zeros.
 */
static void join_row(float *out, int64_t count, int64_t stride, const float *const *from,
                     const int64_t *first) {
  int64_t i = 0;
  if (stride == 2) {
    df_ivec low, high;
    for (int lane = 0; lane < DF_LANES; lane++) {
      low[lane] = lane / 2 + lane % 2 * DF_LANES;
      high[lane] = low[lane] + DF_LANES / 2;
    }
    const float *even = from[first[0]], *odd = from[first[1]]; /* first: 0 and 1, or 1 and 0 */
    for (; i + 2 * DF_LANES <= count; i += 2 * DF_LANES) {
      df_vec a = even ? vec_load(even + i / 2) : vec_zero();
      df_vec b = odd ? vec_load(odd + i / 2) : vec_zero();
      vec_store(out + i, __builtin_shuffle(a, b, low));
      vec_store(out + i + DF_LANES, __builtin_shuffle(a, b, high));
    }
  }
  for (int64_t c = 0; c < stride; c++) {
    int64_t at = i / stride;
    for (int64_t j = i + first[c]; j < count; j += stride, at++)
      out[j] = from[c] ? from[c][at] : 0.0f;
  }
}

/* Some rows of dx. */
static void join_rows(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const job *job = context;
  const df_conv *conv = job->conv;
  const df_window *w = &conv->window;
  int across = job->across, down = job->down;
  int64_t per_plane = w->in[0] * w->in[down], begin, end;
  df_piece(index, count, conv->batch * conv->groups * conv->channels * per_plane, 1, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    int64_t plane = row / per_plane, at[DF_AXES] = {0}, order = 0;
    at[0] = row % per_plane / w->in[down];
    at[down] = row % w->in[down];
    const float *from[DF_MOST_PHASES];
    int64_t first[DF_MOST_PHASES], phase[DF_AXES];
    for (int axis = 0; axis < DF_AXES; axis++)
      phase[axis] = (at[axis] + w->pad[axis]) % w->stride[axis];
    for (int64_t c = 0; c < w->stride[across]; c++) {
      phase[across] = c;
      order = (phase[0] * w->stride[1] + phase[1]) * w->stride[2] + phase[2];
      const df_phase *p = &job->phases[order];
      const df_window *of = &p->conv.window;
      int64_t place[DF_AXES];
      for (int axis = 0; axis < DF_AXES; axis++)
        place[axis] = axis == across ? 0 : at[axis] / w->stride[axis];
      first[c] = p->first[across];
      from[c] = p->sums ? p->sums + plane * of->out_size +
                              (place[0] * of->out[1] + place[1]) * of->out[2] + place[2]
                        : NULL;
    }
    join_row(job->dx + row * w->in[across], w->in[across], w->stride[across], from, first);
  }
}

void DF_NAME(df_phase_join)(const df_call *call, const df_conv *conv, const df_phase *phases,
                            float *dx) {
  /* A single long axis stands where rows are. */
  int across = conv->window.in[2] == 1 ? 1 : 2;
  job job = {.conv = conv, .phases = phases, .dx = dx, .across = across, .down = 3 - across};
  int64_t work = conv->batch * conv->groups * conv->channels * conv->window.in_size;
  df_parallel(call, join_rows, &job, df_pieces(call, work, DF_GRAIN));
}
