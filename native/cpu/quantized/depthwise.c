/* quantized/depthwise.c: planes are independent. One becomes 16-bit differences to its zero point,
 * with its padding of zeros and, where windows are |stride| apart, columns of each remainder by
 * |stride| together: then every tap of neighbouring outputs reads neighbours. */
#include "quantized/depthwise.h"
#include "quantized/pack.h"
#include "simd/vector.h"

enum { TOGETHER = 4 }; /* vectors of sums in registers: of a row, or of so many short rows */

typedef int16_t differences __attribute__((vector_size(DF_LANES * 2)));

typedef struct depthwise {
  const df_conv *conv;
  const df_byte_operands *o;
  const df_byte_epilogue *epilogue;
  df_byte_depthwise_layout layout;
  uint8_t *workspace;
} depthwise;

df_byte_depthwise_layout DF_NAME(df_byte_depthwise_layout_of)(const df_conv *conv) {
  const df_window *w = &conv->window;
  /* What the last vectors read beyond the last output lies in the row too. */
  const int64_t reach = (w->kernel[2] - 1) * w->dilation[2] / w->stride[2];
  df_byte_depthwise_layout l = {.short_rows = w->out[2] <= DF_LANES};
  l.phase = df_round_up(w->out[2], l.short_rows ? DF_LANES : TOGETHER * DF_LANES) + reach;
  const int64_t rows = df_window_span(w, 0) * df_window_span(w, 1) + TOGETHER * w->stride[1];
  l.bytes = df_round_up(rows * l.phase * w->stride[2] * (int64_t)sizeof(int16_t), 64);
  return l;
}

/* Row |row| of the padded plane, from a row of the image or null: element i goes to phase i %
 * stride, position i / stride. */
static void widen_row(const depthwise *d, int16_t *to, const uint8_t *from) {
  const df_window *w = &d->conv->window;
  const uint8_t sign = df_byte_sign(d->o->left->dtype, 1);
  const int32_t zero = df_byte_zero(d->o->left_zero, 0, d->o->left->dtype, 1);
  const int64_t phase = d->layout.phase, step = w->stride[2];
  memset(to, 0, (size_t)(phase * step) * sizeof *to);
  if (!from)
    return;
  for (int64_t p = 0; p < step; p++) {
    /* The first position of the phase inside the image, and that of the image there. */
    const int64_t first = df_divide_up(df_max(0, w->pad[2] - p), step),
                  at = first * step + p - w->pad[2];
    const int64_t count = df_min(phase - first, df_divide_up(w->in[2] - at, step));
    int16_t *line = to + p * phase + first;
    if (step == 1) {
      for (int64_t i = 0; i < count; i++)
        line[i] = (int16_t)((from[at + i] ^ sign) - zero);
    } else if (step == 2) {
      for (int64_t i = 0; i < count; i++)
        line[i] = (int16_t)((from[at + 2 * i] ^ sign) - zero);
    } else {
      for (int64_t i = 0; i < count; i++)
        line[i] = (int16_t)((from[at + i * step] ^ sign) - zero);
    }
  }
}

static void widen_plane(const depthwise *d, int16_t *to, const uint8_t *x) {
  const df_window *w = &d->conv->window;
  const int64_t slices = df_window_span(w, 0), rows = df_window_span(w, 1);
  for (int64_t z = 0; z < slices; z++)
    for (int64_t y = 0; y < rows; y++, to += d->layout.phase * w->stride[2]) {
      const int64_t slice = z - w->pad[0], row = y - w->pad[1];
      const int inside = slice >= 0 && slice < w->in[0] && row >= 0 && row < w->in[1];
      widen_row(d, to, inside ? x + (slice * w->in[1] + row) * w->in[2] : NULL);
    }
}

/* Sums of TOGETHER vectors of outputs, whose first tap reads |step| elements apart, and which go
 * |pitch| elements apart. */
static inline void sum_taps(int32_t *sums, int64_t pitch, const df_window *w, const int16_t *from,
                            int64_t step, const int64_t *offset, const int32_t *weight) {
  df_ivec sum[TOGETHER];
#pragma GCC unroll 4
  for (int v = 0; v < TOGETHER; v++)
    sum[v] = (df_ivec){0};
  for (int64_t tap = 0; tap < w->taps; tap++) {
    const df_ivec factor = weight[tap] - (df_ivec){0};
#pragma GCC unroll 4
    for (int v = 0; v < TOGETHER; v++) {
      differences x;
      memcpy(&x, from + offset[tap] + v * step, sizeof x);
      sum[v] += __builtin_convertvector(x, df_ivec) * factor;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < TOGETHER; v++)
    memcpy(sums + v * pitch, &sum[v], sizeof sum[v]);
}

/* Where each tap reads, from that of the first on, and its weight. */
static void find_taps(const depthwise *d, int64_t filter, int64_t *offset, int32_t *weight) {
  const df_window *w = &d->conv->window;
  const df_byte_operands *o = d->o;
  const uint8_t *from = (const uint8_t *)o->right->data + filter * w->taps;
  const uint8_t sign = df_byte_sign(o->right->dtype, 0);
  const int32_t zero = df_byte_zero(o->right_zero, filter, o->right->dtype, 0);
  const int64_t row = d->layout.phase * w->stride[2], slice = df_window_span(w, 1) * row;
  for (int64_t a = 0; a < w->kernel[0]; a++)
    for (int64_t b = 0; b < w->kernel[1]; b++)
      for (int64_t c = 0; c < w->kernel[2]; c++) {
        const int64_t at = c * w->dilation[2];
        *offset++ = a * w->dilation[0] * slice + b * w->dilation[1] * row +
                    at % w->stride[2] * d->layout.phase + at / w->stride[2];
        *weight++ = (int8_t)(*from++ ^ sign) - zero;
      }
}

static void run_plane(const depthwise *d, int64_t plane, int16_t *padded) {
  const df_window *w = &d->conv->window;
  const df_byte_operands *o = d->o;
  const int64_t filter = plane % d->conv->groups;
  int64_t offset[DF_MOST_TAPS];
  int32_t weight[DF_MOST_TAPS];
  _Alignas(64) int32_t sums[TOGETHER * DF_BYTE_COLUMNS];
  int32_t add[TOGETHER];
  float scale[TOGETHER], bias[TOGETHER];
  const int has_bias = o->bias && o->form == DF_BYTE_FLOATS;
  for (int i = 0; i < TOGETHER; i++) {
    add[i] = df_byte_bias(o, filter);
    scale[i] = o->form == DF_BYTE_SUMS ? 0.0f : df_byte_scale(o, filter);
    bias[i] = has_bias ? df_byte_float(o->bias, filter) : 0.0f;
  }
  df_byte_epilogue e = *d->epilogue;
  const int64_t item = e.form == DF_BYTE_STEPS ? 1 : 4;
  const int64_t row = d->layout.phase * w->stride[2], slice = df_window_span(w, 1) * row;
  find_taps(d, filter, offset, weight);
  widen_plane(d, padded, (const uint8_t *)o->left->data + plane * w->in_size);
  e.row_add = add;
  e.row_scale = o->form == DF_BYTE_SUMS ? NULL : scale;
  e.row_bias = has_bias ? bias : NULL;
  e.out_row = w->out[2];
  e.out = (char *)e.out + plane * w->out_size * item;
  const int64_t together = d->layout.short_rows ? TOGETHER : 1;
  for (int64_t z = 0; z < w->out[0]; z++)
    for (int64_t y = 0, rows; y < w->out[1]; y += rows) {
      const int16_t *from = padded + z * w->stride[0] * slice + y * w->stride[1] * row;
      rows = df_min(together, w->out[1] - y);
      if (d->layout.short_rows) {
        sum_taps(sums, DF_BYTE_COLUMNS, w, from, w->stride[1] * row, offset, weight);
        DF_NAME(df_byte_finish)(&e, sums, 0, rows, 0, w->out[2]);
      } else {
        for (int64_t x = 0; x < w->out[2]; x += TOGETHER * DF_LANES) {
          sum_taps(sums, DF_LANES, w, from + x, DF_LANES, offset, weight);
          DF_NAME(df_byte_finish)(&e, sums, 0, 1, x, df_min(TOGETHER * DF_LANES, w->out[2] - x));
        }
      }
      e.out = (char *)e.out + rows * w->out[2] * item;
    }
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const depthwise *d = context;
  int64_t begin, end;
  df_task_range(index, count, d->conv->batch * d->conv->groups, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++)
    run_plane(d, plane, (int16_t *)(void *)(d->workspace + worker * d->layout.bytes));
}

void DF_NAME(df_byte_depthwise_run)(const df_call *call, const df_conv *conv,
                                    const df_byte_operands *operands,
                                    const df_byte_epilogue *epilogue) {
  depthwise d = {.conv = conv,
                 .o = operands,
                 .epilogue = epilogue,
                 .layout = DF_NAME(df_byte_depthwise_layout_of)(conv),
                 .workspace = call->workspace};
  const int64_t planes = conv->batch * conv->groups;
  const int64_t work = df_times(planes * conv->window.out_size, conv->window.taps);
  df_parallel(call, run_task, &d, df_min(planes, df_task_count(call, work, DF_GRAIN)));
}
