/* conv/phase.c: splitting an input gradient into phases, and joining what they give: a load and a
 * store per element of dx. */
#include "conv/phase.h"
#include "conv/common.h"
#include "simd/vector.h"

int64_t DF_NAME(df_phase_count)(const df_conv *conv) {
  const int64_t *stride = conv->window.stride;
  return df_times(df_times(stride[0], stride[1]), stride[2]);
}

static int64_t round_down(int64_t a, int64_t b) { return a >= 0 ? a / b : -df_divide_up(-a, b); }

/* One axis of phase |r|: the window's sizes, where the phase begins, and which taps it has: from
 * |*last| on every |*tap_step|-th, downwards. */
static void split_axis(df_phase *phase, const df_window *w, int axis, int64_t r, int64_t *last,
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
    split_axis(&phase, w, axis, index % w->stride[axis], &last, &step);
    to->in_size *= to->in[axis];
    to->out_size *= to->out[axis];
    to->taps *= to->kernel[axis];
    from->start += to->kernel[axis] > 0 ? last * from->tap[axis] : 0;
    from->tap[axis] *= -step;
  }
  return phase;
}

/* ---- Joining -------------------------------------------------------------------------------- */

typedef struct join {
  const df_conv *conv;
  const df_phase *phases;
  float *dx;
} join;

/* Elements 2 i of |out| are even[i], elements 2 i + 1 are odd[i]; null for zeros. */
static void interleave(float *out, int64_t count, const float *even, const float *odd) {
  for (int64_t i = 0; i < count; i += 2 * DF_LANES) {
    int64_t left = df_min(2 * DF_LANES, count - i);
    df_vec a = even ? vec_load_partial(even + i / 2, (left + 1) / 2) : vec_zero();
    df_vec b = odd ? vec_load_partial(odd + i / 2, left / 2) : vec_zero();
    vec_store_partial(out + i, vec_zip_low(a, b), df_min(DF_LANES, left));
    if (left > DF_LANES)
      vec_store_partial(out + i + DF_LANES, vec_zip_high(a, b), left - DF_LANES);
  }
}

/* A row of dx: the elements of phase |c| of it come from phases[c], each at |plane| and row |z|,
 * |y| of them. */
static void join_row(float *out, const df_window *w, const df_phase *phases, int64_t plane,
                     int64_t z, int64_t y) {
  const float *from[DF_MOST_PHASES]; /* by the element of dx where they begin */
  int64_t stride = w->stride[2];
  for (int64_t c = 0; c < stride; c++) {
    const df_phase *p = &phases[c];
    const df_window *of = &p->conv.window;
    from[p->first[2]] =
        p->sums ? p->sums + plane * of->out_size + (z * of->out[1] + y) * of->out[2] : NULL;
  }
  if (stride == 2) {
    interleave(out, w->in[2], from[0], from[1]);
    return;
  }
  for (int64_t c = 0; c < stride; c++)
    for (int64_t i = c, at = 0; i < w->in[2]; i += stride, at++)
      out[i] = from[c] ? from[c][at] : 0.0f;
}

/* Planes [begin, end) of dx, row by row. */
static void join_planes(const void *context, int64_t begin, int64_t end) {
  const join *j = context;
  const df_window *w = &j->conv->window;
  for (int64_t plane = begin; plane < end; plane++)
    for (int64_t z = 0; z < w->in[0]; z++)
      for (int64_t y = 0; y < w->in[1]; y++) {
        int64_t phase =
            (z + w->pad[0]) % w->stride[0] * w->stride[1] + (y + w->pad[1]) % w->stride[1];
        join_row(j->dx + ((plane * w->in[0] + z) * w->in[1] + y) * w->in[2], w,
                 j->phases + phase * w->stride[2], plane, z / w->stride[0], y / w->stride[1]);
      }
}

void DF_NAME(df_phase_join)(const df_call *call, const df_conv *conv, const df_phase *phases,
                            float *dx) {
  const join j = {.conv = conv, .phases = phases, .dx = dx};
  int64_t planes = conv->batch * conv->groups * conv->channels;
  DF_NAME(df_run_units)(call, planes, planes * conv->window.in_size, join_planes, &j);
}
