/* quantized/images.c: see quantized/images.h. */
#include "quantized/images.h"
#include "conv/gather.h"
#include "quantized/pack.h"

df_byte_images DF_NAME(df_byte_images_of)(const df_conv *conv) {
  df_byte_images c = {.conv = *conv, .padded = conv->window};
  df_window *p = &c.padded;
  p->in_size = 1;
  for (int axis = 0; axis < DF_AXES; axis++) {
    p->in[axis] = df_window_span(&conv->window, axis);
    p->pad[axis] = p->pad_end[axis] = 0;
    p->in_size = df_times(p->in_size, p->in[axis]);
  }
  c.fours = df_divide_up(conv->channels, DF_BYTE_STEP);
  c.steps = c.fours * p->taps;
  const int64_t planes = conv->batch * conv->groups;
  const df_window *w = &conv->window;
  c.sampled = w->taps == 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    if (w->pad[axis] != 0 || (w->out[axis] - 1) * w->stride[axis] >= w->in[axis])
      c.sampled = 0;
  if (c.sampled && !df_conv_is_plain(w))
    c.bytes = planes * conv->channels * w->out_size;
  else if (!c.sampled)
    c.bytes = planes * c.fours * p->in_size * DF_BYTE_STEP;
  return c;
}

/* ---- Interleaving ---------------------------------------------------------------------------- */

/* Writes |count| steps of padding of a four with |lanes| channels. */
static void fill_padding(const df_byte_images *c, uint8_t *to, int64_t lanes, int64_t count) {
  const uint32_t step = c->zero * (0x01010101u >> 8 * (DF_BYTE_STEP - lanes));
  for (int64_t i = 0; i < count; i++)
    memcpy(to + DF_BYTE_STEP * i, &step, sizeof step);
}

/* Four |index| of all images and groups, with padding around. */
static void interleave_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count, (void)worker;
  const df_byte_images *c = context;
  const df_conv *conv = &c->conv;
  const df_window *in = &conv->window, *out = &c->padded;
  const int64_t four = index % c->fours * DF_BYTE_STEP;
  const int64_t lanes = df_min(DF_BYTE_STEP, conv->channels - four);
  const uint8_t *x = c->x + (index / c->fours * conv->channels + four) * in->in_size;
  uint8_t *to = c->interleaved + index * out->in_size * DF_BYTE_STEP;
  const int64_t length = out->in[2], before = df_min(length, in->pad[2]);
  const int64_t inside = df_min(in->in[2], length - before);
  for (int64_t z = 0; z < out->in[0]; z++)
    for (int64_t y = 0; y < out->in[1]; y++, to += length * DF_BYTE_STEP) {
      const int64_t row = y - in->pad[1], slice = z - in->pad[0];
      if (row < 0 || row >= in->in[1] || slice < 0 || slice >= in->in[0]) {
        fill_padding(c, to, lanes, length);
        continue;
      }
      const uint8_t *from[DF_BYTE_STEP] = {0};
      for (int64_t lane = 0; lane < lanes; lane++)
        from[lane] = x + lane * in->in_size + (slice * in->in[1] + row) * in->in[2];
      fill_padding(c, to, lanes, before);
      df_byte_interleave(to + before * DF_BYTE_STEP, from, lanes, inside, c->sign);
      fill_padding(c, to + (before + inside) * DF_BYTE_STEP, lanes, length - before - inside);
    }
}

/* ---- Samples --------------------------------------------------------------------------------- */

/* out[i] = from[i * step]; |step| is a constant at the commonest uses. */
static inline __attribute__((always_inline)) void sample_row(uint8_t *out, const uint8_t *from,
                                                             int64_t step, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    out[i] = from[i * step];
}

/* Channel |index| of all images: the elements that single taps read, position by position. */
static void sample_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count, (void)worker;
  const df_byte_images *c = context;
  const df_window *w = &c->conv.window;
  const uint8_t *x = c->x + index * w->in_size;
  uint8_t *to = c->interleaved + index * w->out_size;
  for (int64_t z = 0; z < w->out[0]; z++)
    for (int64_t y = 0; y < w->out[1]; y++, to += w->out[2]) {
      const int64_t row = z * w->stride[0] * w->in[1] + y * w->stride[1];
      const uint8_t *from = x + row * w->in[2];
      if (w->stride[2] == 2)
        sample_row(to, from, 2, w->out[2]);
      else
        sample_row(to, from, w->stride[2], w->out[2]);
    }
}

/* ---- Panels of positions --------------------------------------------------------------------- */

/* Positions [position, position + count) of a group of an image, |unit|, read by no taps but their
 * own. */
static void pack_plain(const df_byte_images *c, uint8_t *to, int64_t unit, int64_t position,
                       int64_t count) {
  const df_conv *conv = &c->conv;
  const int64_t plane = conv->window.out_size, line = df_byte_line(count);
  const uint8_t *x = c->bytes ? c->interleaved : c->x;
  x += unit * conv->channels * plane + position;
  for (int64_t channel = 0; channel < conv->channels; channel += DF_BYTE_STEP, to += line) {
    const int64_t lanes = df_min(DF_BYTE_STEP, conv->channels - channel);
    const uint8_t *from[DF_BYTE_STEP] = {0};
    for (int64_t lane = 0; lane < lanes; lane++)
      from[lane] = x + (channel + lane) * plane;
    df_byte_interleave(to, from, lanes, count, c->sign);
    memset(to + count * DF_BYTE_STEP, 0, (size_t)(line - count * DF_BYTE_STEP));
  }
}

/* The same for any window, of interleaved channels, which are read as floats of the same bits. */
static void pack_window(const df_byte_images *c, uint8_t *to, int64_t unit, int64_t position,
                        int64_t count) {
  const int64_t line = df_byte_line(count);
  const uint8_t *image = c->interleaved + unit * c->fours * c->padded.in_size * DF_BYTE_STEP;
  int32_t offset[DF_MOST_TAPS] = {0}; /* as many are set as are read, which the window knows */
  df_tap_offsets(&c->padded, offset);
  for (int64_t j = 0; j < line / DF_BYTE_LEAST_LINE; j++) {
    df_lane_reads reads;
    df_find_lane_reads(&reads, &c->padded, position + j * DF_LANES,
                       df_min(DF_LANES, count - j * DF_LANES));
    df_gather((float *)(void *)(to + j * DF_BYTE_LEAST_LINE), line / DF_BYTE_STEP, &reads,
              &c->padded, offset, (const float *)(const void *)image, 0, c->steps);
  }
}

void DF_NAME(df_byte_interleave_images)(const df_call *call, df_byte_images *images) {
  const df_conv *conv = &images->conv;
  const int64_t units = conv->batch * conv->groups;
  if (images->bytes && images->sampled)
    df_parallel(call, sample_task, images, units * conv->channels);
  else if (images->bytes)
    df_parallel(call, interleave_task, images, units * images->fours);
}

void DF_NAME(df_byte_pack_positions)(const df_byte_images *images, uint8_t *to, int64_t unit,
                                     int64_t position, int64_t count) {
  (images->sampled ? pack_plain : pack_window)(images, to, unit, position, count);
}
