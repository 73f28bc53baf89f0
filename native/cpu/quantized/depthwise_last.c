/* quantized/depthwise_last.c: vectors are of channels, which lie together at each position.
 *
 * The rows that a row of results reads become lines, four rows to one, in which the four elements
 * of a column are beside each other: an instruction adds the products of four taps of a position.
 * Padding is the zero point, and rows behind the last of a window meet weights of zero. */
#include "quantized/depthwise.h"
#include "quantized/pack.h"
#include "quantized/pairs.h"
#include "quantized/round.h"
#include "quantized/taps.h"

#define DEPTHWISE_INLINE static inline __attribute__((always_inline))

enum {
  CHANNELS = DF_TAP_CHANNELS,
  BYTES = DF_TAP_BYTES,
  VECTORS = 3 /* the epilogue's arrays by channel */
};

/* Offsets of a thread's buffers in bytes; those of all threads lie behind |vectors|. */
typedef struct layout {
  int64_t blocks;        /* of channels */
  int64_t groups;        /* of four rows of a window */
  int64_t columns, line; /* of a line with its padding, and its bytes */
  int64_t vector, panel; /* bytes of an array by channel, and of the weights of a block */
  int64_t vectors, weights;
  int64_t sums, inner, bytes;
} layout;

static layout layout_of(const df_conv *conv) {
  const df_window *w = &conv->window;
  layout l = {.blocks = df_divide_up(conv->groups, CHANNELS)};
  l.groups = df_divide_up(w->kernel[0] * w->kernel[1], DF_BYTE_STEP);
  l.columns = df_max(df_window_span(w, 2), w->pad[2] + w->in[2]);
  l.line = l.columns * BYTES;
  l.vector = df_byte_sum_bytes(l.blocks * CHANNELS);
  l.panel = l.groups * w->kernel[2] * BYTES;
  l.vectors = VECTORS * l.vector;
  l.weights = conv->uses ? l.vector + l.blocks * l.panel : 0;
  l.sums = l.groups * l.line;
  l.inner = l.sums + w->out[2] * BYTES;
  l.bytes = l.inner + w->out[2] * BYTES;
  return l;
}

int64_t DF_NAME(df_byte_depthwise_last_workspace)(const df_conv *conv, int32_t threads) {
  const layout l = layout_of(conv);
  return l.vectors + l.weights + l.bytes * threads;
}

/* ---- Weights: sums of all channels, then a panel per block ------------------------------------
 */

int64_t DF_NAME(df_byte_depthwise_last_prepack_bytes)(const df_conv *conv) {
  const layout l = layout_of(conv);
  return l.vector + l.blocks * l.panel;
}

void DF_NAME(df_byte_depthwise_last_prepack)(const df_conv *conv, const uint8_t *weight,
                                             uint8_t sign, uint8_t *prepacked) {
  const df_window *w = &conv->window;
  const layout l = layout_of(conv);
  int32_t *sums = (int32_t *)(void *)prepacked;
  memset(prepacked, 0, (size_t)(l.vector + l.blocks * l.panel));
  for (int64_t c = 0; c < conv->groups; c++) {
    uint8_t *to = prepacked + l.vector + c / CHANNELS * l.panel + c % CHANNELS * DF_BYTE_STEP;
    for (int64_t row = 0; row < w->kernel[0] * w->kernel[1]; row++)
      for (int64_t x = 0; x < w->kernel[2]; x++) {
        const uint8_t value = *weight++ ^ sign;
        to[(row / DF_BYTE_STEP * w->kernel[2] + x) * BYTES + row % DF_BYTE_STEP] = value;
        sums[c] += (int8_t)value;
      }
  }
  df_byte_note_narrow(sums, l.vector, prepacked + l.vector, l.blocks * l.panel);
}

/* ---- Lines ------------------------------------------------------------------------------------
 */

typedef struct depthwise {
  const df_conv *conv;
  const df_byte_operands *o;
  df_byte_epilogue epilogue; /* of all channels */
  layout l;
  const uint8_t *packed, *end; /* weights; the end of x */
  uint8_t *scratches;
  uint8_t sign, zero;
} depthwise;

/* Four rows, of which those that are padding repeat one column. */
typedef struct rows {
  const uint8_t *from[DF_BYTE_STEP];
  int64_t pitch[DF_BYTE_STEP];
} rows;

/* Columns [begin, end) of the first |count| of four rows; |count| is a constant at every use. */
DEPTHWISE_INLINE void join_rows(int count, const rows *r, uint8_t *to, int64_t begin, int64_t end,
                                uint8_t sign) {
  const df_ivec signs = (int32_t)(sign * 0x01010101u) - (df_ivec){0};
  for (int64_t i = begin; i < end; i++)
#pragma GCC unroll 4
    for (int c = 0; c < CHANNELS; c += DF_LANES) {
      df_uvec four = {0};
#pragma GCC unroll 4
      for (int row = 0; row < count; row++)
        four |= df_load_bytes(r->from[row] + i * r->pitch[row] + c) << 8 * row;
      df_store_ints((int32_t *)(void *)(to + i * BYTES + c * DF_BYTE_STEP), (df_ivec)four ^ signs);
    }
}

static void join_columns(int64_t count, const rows *r, uint8_t *to, int64_t begin, int64_t end,
                         uint8_t sign) {
  if (count == 1)
    join_rows(1, r, to, begin, end, sign);
  else if (count == 2)
    join_rows(2, r, to, begin, end, sign);
  else if (count == 3)
    join_rows(3, r, to, begin, end, sign);
  else
    join_rows(4, r, to, begin, end, sign);
}

/* Line of rows [first, first + count) of the windows at (z, y) of the channels at |x|. */
static void make_line(const depthwise *d, uint8_t *to, const uint8_t *x, int64_t z, int64_t y,
                      int64_t first, int64_t count) {
  const df_window *w = &d->conv->window;
  const int64_t pitch = d->conv->groups, behind = d->l.columns - w->pad[2] - w->in[2];
  uint8_t padding[CHANNELS], last[DF_BYTE_STEP][CHANNELS];
  int64_t complete = w->in[2]; /* columns whose vectors end inside x */
  rows r;
  memset(padding, d->zero ^ d->sign, sizeof padding);
  for (int64_t i = 0; i < count; i++) {
    const int64_t a = (first + i) / w->kernel[1], b = (first + i) % w->kernel[1];
    const int64_t slice = z * w->stride[0] - w->pad[0] + a * w->dilation[0];
    const int64_t row = y * w->stride[1] - w->pad[1] + b * w->dilation[1];
    const int inside = slice >= 0 && slice < w->in[0] && row >= 0 && row < w->in[1];
    r.from[i] = inside ? x + (slice * w->in[1] + row) * w->in[2] * pitch : padding;
    r.pitch[i] = inside ? pitch : 0;
    while (inside && complete > 0 && d->end - r.from[i] < (complete - 1) * pitch + CHANNELS)
      complete--;
  }
  memset(to, d->zero, (size_t)(w->pad[2] * BYTES));
  to += w->pad[2] * BYTES;
  join_columns(count, &r, to, 0, complete, d->sign);
  for (; complete < w->in[2]; complete++) {
    rows one = {.pitch = {0}};
    for (int64_t i = 0; i < count; i++) {
      const uint8_t *from = r.from[i] + complete * r.pitch[i];
      const int64_t left = r.pitch[i] ? df_min(CHANNELS, d->end - from) : CHANNELS;
      memcpy(last[i], from, (size_t)left);
      memset(last[i] + left, 0, (size_t)(CHANNELS - left));
      one.from[i] = last[i];
    }
    join_columns(count, &one, to + complete * BYTES, 0, 1, d->sign);
  }
  memset(to + w->in[2] * BYTES, d->zero, (size_t)(behind * BYTES));
}

/* ---- Results ----------------------------------------------------------------------------------
 */

/* Stores a row of results of |channels| channels from |channel| on. */
static void finish(const depthwise *d, uint8_t *out, const int32_t *sums, const int32_t *inner,
                   int64_t channel, int64_t channels) {
  const df_byte_epilogue *e = &d->epilogue;
  const df_rounding r = df_rounding_of(e->zero, e->least, e->most);
  const int64_t pitch = d->conv->groups;
  for (int64_t c = 0; c < channels; c += DF_LANES) {
    const df_uvec add = (df_uvec)df_load_ints(e->column_add + channel + c);
    const df_vec scale = vec_load(e->column_scale + channel + c);
    const df_uvec zero =
        e->column_zero ? (df_uvec)df_load_ints(e->column_zero + channel + c) : (df_uvec){0};
    const int64_t count = df_min(DF_LANES, channels - c);
    for (int64_t i = 0; i < d->conv->window.out[2]; i++) {
      df_uvec sum = (df_uvec)df_load_ints(sums + i * CHANNELS + c) + add;
      if (e->column_zero)
        sum -= zero * (df_uvec)df_load_ints(inner + i * CHANNELS + c);
      const df_bytes steps =
          df_round_steps(__builtin_convertvector((df_ivec)sum, df_vec) * scale, &r);
      df_store_bytes(out + i * pitch + c, (const uint8_t *)&steps, DF_LANES, count);
    }
  }
}

/* A row of results of a block of channels. */
static void run_row(const depthwise *d, int64_t image, int64_t row, int64_t block,
                    uint8_t *scratch) {
  const df_conv *conv = d->conv;
  const df_window *w = &conv->window;
  const layout *l = &d->l;
  const int64_t channel = block * CHANNELS, height = w->kernel[0] * w->kernel[1];
  const uint8_t *x = (const uint8_t *)d->o->left->data + image * w->in_size * conv->groups;
  uint8_t *out = (uint8_t *)d->epilogue.out;
  out += ((image * w->out[0] * w->out[1] + row) * w->out[2]) * conv->groups + channel;
  DF_ASSUME(scratch);
  for (int64_t group = 0; group < l->groups; group++)
    make_line(d, scratch + group * l->line, x + channel, row / w->out[1], row % w->out[1],
              group * DF_BYTE_STEP, df_min(DF_BYTE_STEP, height - group * DF_BYTE_STEP));
  int32_t *sums = (int32_t *)(void *)(scratch + l->sums);
  int32_t *inner = (int32_t *)(void *)(scratch + l->inner);
  df_byte_taps taps = {.lines = scratch,
                       .weights = d->packed + l->vector + block * l->panel,
                       .line = l->line,
                       .step = w->stride[2] * BYTES,
                       .tap = w->dilation[2] * BYTES,
                       .groups = l->groups,
                       .taps = w->kernel[2],
                       .count = w->out[2],
                       .narrow = df_byte_noted_narrow(d->packed, l->vector),
                       .sums = sums};
  df_byte_sum_taps(&taps);
  if (d->epilogue.column_zero) {
    memset(inner, 0, (size_t)(w->out[2] * BYTES));
    for (int64_t i = 0; i < w->out[2]; i++)
      for (int64_t tap = 0; tap < height * w->kernel[2]; tap++) {
        const int64_t at = tap / w->kernel[2], x_tap = tap % w->kernel[2];
        const uint8_t *from = scratch + at / DF_BYTE_STEP * l->line + at % DF_BYTE_STEP +
                              i * taps.step + x_tap * taps.tap;
        for (int64_t c = 0; c < CHANNELS; c++)
          inner[i * CHANNELS + c] += from[c * DF_BYTE_STEP];
      }
  }
  finish(d, out, sums, inner, channel, df_min(CHANNELS, conv->groups - channel));
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const depthwise *d = context;
  const df_window *w = &d->conv->window;
  const int64_t height = w->out[0] * w->out[1];
  int64_t begin, end;
  df_task_range(index, count, d->conv->batch * height, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++)
    for (int64_t block = 0; block < d->l.blocks; block++)
      run_row(d, i / height, i % height, block, d->scratches + worker * d->l.bytes);
}

void DF_NAME(df_byte_depthwise_last_run)(const df_call *call, const df_conv *conv,
                                         const uint8_t *prepacked, const df_byte_operands *operands,
                                         const df_byte_epilogue *epilogue) {
  const df_tensor *x = operands->left, *weight = operands->right;
  depthwise d = {.conv = conv,
                 .o = operands,
                 .epilogue = *epilogue,
                 .l = layout_of(conv),
                 .packed = prepacked,
                 .end = (const uint8_t *)x->data + df_elements(x),
                 .sign = df_byte_sign(x->dtype, 1)};
  d.zero = (uint8_t)df_byte_zero(operands->left_zero, 0, x->dtype, 1);
  uint8_t *vectors = call->workspace;
  d.scratches = vectors + d.l.vectors + d.l.weights;
  if (!prepacked) {
    DF_NAME(df_byte_depthwise_last_prepack)(conv, weight->data, df_byte_sign(weight->dtype, 0),
                                            vectors + d.l.vectors);
    d.packed = vectors + d.l.vectors;
  }
  df_byte_fill_columns(operands, &d.epilogue, vectors, d.l.vector, d.packed, conv->groups,
                       conv->window.taps);
  const int64_t rows = conv->batch * conv->window.out[0] * conv->window.out[1];
  const int64_t work = df_times(conv->batch * conv->groups * conv->window.out_size, 4);
  df_parallel(call, run_task, &d, df_min(rows, df_task_count(call, work, DF_GRAIN)));
}
