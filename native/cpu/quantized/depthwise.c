/* quantized/depthwise.c: vectors are of channels, full on every map and for every stride.
 *
 * Sixteen planes are transposed by squares of 16 x 16 bytes, so that the channels of a position lie
 * together. Rows of positions then become pairs of 16-bit differences to the zero point, an element
 * beside the one below it by the dilation of rows, with zeros for the padding: two taps are one
 * instruction for a position, without saturation. Some rows of results at a time, whose sums are
 * transposed back. */
#include "quantized/depthwise.h"
#include "quantized/pack.h"
#include "quantized/pairs.h"
#include "quantized/round.h"
#include "simd/squares.h"

#define DEPTHWISE_INLINE static inline __attribute__((always_inline))

enum {
  CHANNELS = DF_SQUARE,
  VECTORS = CHANNELS / DF_LANES, /* of a position */
  TOGETHER = 8 / VECTORS,        /* positions whose sums are in registers */
  HELD = 1024 /* positions of pairs that are held where a row of results doesn't need more */
};

/* Positions of a row with its padding; rows of pairs that a row of results and a band of rows read;
 * offsets of buffers in bytes. */
typedef struct layout {
  int64_t line, reach, band, rows;
  int64_t pairs, source, weights, sums, steps, bytes;
} layout;

typedef struct depthwise {
  const df_conv *conv;
  const df_byte_operands *o;
  const df_byte_epilogue *epilogue;
  layout l;
  uint8_t *workspace;
} depthwise;

/* The channels from |first| on, of one image, and what is the same for all their positions. */
typedef struct block {
  const depthwise *d;
  int64_t count;          /* of channels */
  const uint8_t *x, *end; /* their planes; the end of all planes */
  char *out;
  int32_t add[CHANNELS];
  float scale[CHANNELS], bias[CHANNELS];
  uint8_t sign;
  int32_t zero; /* of unsigned elements */
  int32_t *pairs, *weights, *sums;
  uint8_t *source, *steps;
} block;

static layout layout_of(const df_conv *conv) {
  const df_window *w = &conv->window;
  layout l = {.line = df_max(df_window_span(w, 2), w->pad[2] + w->in[2])};
  l.reach = (w->kernel[1] - 1) * w->dilation[1] + 1;
  const int64_t more = df_max(0, HELD / l.line - l.reach) / w->stride[1];
  l.band = df_min(w->out[1], df_min(1 + more, HELD / df_max(1, w->out[2])));
  l.band = df_max(1, l.band);
  l.rows = (l.band - 1) * w->stride[1] + l.reach;
  const int64_t position = CHANNELS * (int64_t)sizeof(int32_t);
  const int64_t read = df_min(w->in[1], l.rows + w->dilation[1]);
  l.source = l.rows * l.line * position;
  l.weights = l.source + (df_round_up(read * w->in[2], CHANNELS) + 1) * CHANNELS;
  l.weights = df_round_up(l.weights, 64);
  l.sums = l.weights + w->kernel[0] * df_divide_up(w->kernel[1], 2) * w->kernel[2] * position;
  const int64_t results = df_round_up(l.band * w->out[2], CHANNELS);
  l.steps = l.sums + results * position;
  l.bytes = l.steps + results * CHANNELS;
  return l;
}

int64_t DF_NAME(df_byte_depthwise_workspace)(const df_conv *conv) { return layout_of(conv).bytes; }

/* ---- Squares of bytes ------------------------------------------------------------------------ */

/* Elements [at, at + count) of the planes, position by position; the last square is whole. */
static void load_positions(const block *b, int64_t at, int64_t count) {
  const int64_t plane = b->d->conv->window.in_size;
  uint8_t *to = b->source;
  for (int64_t i = 0; i < count; i += CHANNELS, to += CHANNELS * CHANNELS) {
    const uint8_t *from = b->x + at + i;
    uint8_t last[CHANNELS * CHANNELS];
    int64_t pitch = plane;
    if (b->end - from < (b->count - 1) * plane + CHANNELS) { /* nothing is read behind the end */
      for (int64_t c = 0; c < b->count; c++)
        memcpy(last + c * CHANNELS, from + c * plane, (size_t)df_min(CHANNELS, count - i));
      from = last;
      pitch = CHANNELS;
    }
    df_square_row row[CHANNELS];
#pragma GCC unroll 16
    for (int c = 0; c < CHANNELS; c++)
      row[c] = c < b->count ? df_load_square_row(from + c * pitch) : (df_square_row){0};
    df_transpose_bytes(row);
#pragma GCC unroll 16
    for (int c = 0; c < CHANNELS; c++)
      memcpy(to + c * CHANNELS, &row[c], CHANNELS);
  }
}

/* Results [at, at + count) of the planes from |steps|. */
static void store_steps(const block *b, int64_t at, int64_t count) {
  const int64_t plane = b->d->conv->window.out_size;
  for (int64_t i = 0; i < count; i += CHANNELS) {
    df_square_row row[CHANNELS];
#pragma GCC unroll 16
    for (int c = 0; c < CHANNELS; c++)
      row[c] = df_load_square_row(b->steps + (i + c) * CHANNELS);
    df_transpose_bytes(row);
    for (int64_t c = 0; c < b->count; c++)
      df_store_bytes((uint8_t *)b->out + c * plane + at + i, (const uint8_t *)&row[c], CHANNELS,
                     df_min(CHANNELS, count - i));
  }
}

/* The same for results of four bytes, from |sums|. */
static void store_words(const block *b, int64_t at, int64_t count) {
  const int64_t plane = b->d->conv->window.out_size;
  for (int64_t c = 0; c < b->count; c++) {
    int32_t *to = (int32_t *)(void *)b->out + c * plane + at;
    for (int64_t i = 0; i < count; i++)
      to[i] = b->sums[i * CHANNELS + c];
  }
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

DEPTHWISE_INLINE void store_zeros(int32_t *to, int64_t positions) {
  for (int64_t i = 0; i < positions * VECTORS; i++)
    df_store_ints(to + i * DF_LANES, (df_ivec){0});
}

/* A row of pairs from two rows of |source|; null for one of padding. */
static void pair_row(const block *b, int32_t *to, const uint8_t *upper, const uint8_t *lower) {
  const df_window *w = &b->d->conv->window;
  const int64_t before = w->pad[2], after = b->d->l.line - before - w->in[2];
  const df_uvec sign = (df_uvec)(b->sign - (df_ivec){0}), zero = (df_uvec)(b->zero - (df_ivec){0});
  store_zeros(to, before);
  to += before * CHANNELS;
  for (int64_t i = 0; i < w->in[2] * VECTORS; i++, to += DF_LANES) {
    df_uvec pair = {0};
    if (upper)
      pair = ((df_load_bytes(upper + i * DF_LANES) ^ sign) - zero) & 0xffff;
    if (lower)
      pair |= ((df_load_bytes(lower + i * DF_LANES) ^ sign) - zero) << 16;
    df_store_ints(to, (df_ivec)pair);
  }
  store_zeros(to, after);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* The pairs of rows that |rows| rows of results read, from padded row |first| on, of slice |slice|
 * of the images. */
static void pair_rows(const block *b, int64_t slice, int64_t first, int64_t rows) {
  const df_window *w = &b->d->conv->window;
  const layout *l = &b->d->l;
  const int64_t lines = (rows - 1) * w->stride[1] + l->reach, start = first - w->pad[1];
  const int64_t top = df_max(0, start), end = df_min(w->in[1], start + lines + w->dilation[1]);
  const int64_t read = common_divisor(w->stride[1], w->kernel[1] > 2 ? 2 * w->dilation[1] : 0);
  if (top < end)
    load_positions(b, (slice * w->in[1] + top) * w->in[2], (end - top) * w->in[2]);
  for (int64_t y = 0; y < lines; y += read) {
    const uint8_t *row[2];
    for (int64_t i = 0; i < 2; i++) {
      const int64_t at = start + y + i * w->dilation[1];
      row[i] = at >= top && at < end ? b->source + (at - top) * w->in[2] * CHANNELS : NULL;
    }
    pair_row(b, b->pairs + y * l->line * CHANNELS, row[0], row[1]);
  }
}

/* ---- Sums ------------------------------------------------------------------------------------ */

/* The weights of pairs of taps, channels together. */
static void load_weights(const block *b, int64_t channel) {
  const df_window *w = &b->d->conv->window;
  const df_byte_operands *o = b->d->o;
  const uint8_t sign = df_byte_sign(o->right->dtype, 0);
  const int64_t width = w->kernel[2], plane = w->kernel[1] * width;
  memset(b->weights, 0, (size_t)(b->d->l.sums - b->d->l.weights));
  for (int64_t c = 0; c < b->count; c++) {
    const uint8_t *from = (const uint8_t *)o->right->data + (channel + c) * w->taps;
    const int32_t zero = df_byte_zero(o->right_zero, channel + c, o->right->dtype, 0);
    int32_t *to = b->weights + c;
    for (int64_t slice = 0; slice < w->kernel[0]; slice++, from += plane)
      for (int64_t y = 0; y < w->kernel[1]; y += 2)
        for (int64_t x = 0; x < width; x++, to += CHANNELS) {
          const uint8_t *tap = from + y * width + x;
          const int32_t lower = y + 1 < w->kernel[1] ? (int8_t)(tap[width] ^ sign) - zero : 0;
          *to = df_pair((int8_t)(*tap ^ sign) - zero, lower);
        }
  }
}

/* Sums of |count| positions of a row, added to those that are there unless |fresh|. */
DEPTHWISE_INLINE void sum_positions(int count, const df_window *w, int64_t line,
                                    const int32_t *pairs, const int32_t *weights, int32_t *sums,
                                    int fresh) {
  const int64_t step = w->stride[2] * CHANNELS, across = w->dilation[2] * CHANNELS;
  df_ivec sum[TOGETHER * VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < count * VECTORS; i++)
    sum[i] = fresh ? (df_ivec){0} : df_load_ints(sums + i * DF_LANES);
  for (int64_t y = 0; y < w->kernel[1]; y += 2, pairs += 2 * w->dilation[1] * line * CHANNELS)
    for (int64_t x = 0; x < w->kernel[2]; x++, weights += CHANNELS) {
      const int32_t *from = pairs + x * across;
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) {
        const df_ivec factor = df_load_ints(weights + v * DF_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
          sum[i * VECTORS + v] =
              (df_ivec)((df_uvec)sum[i * VECTORS + v] +
                        (df_uvec)df_pair_sums(df_load_ints(from + i * step + v * DF_LANES),
                                              factor));
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < count * VECTORS; i++)
    df_store_ints(sums + i * DF_LANES, sum[i]);
}

static void sum_row(const block *b, const int32_t *pairs, const int32_t *weights, int32_t *sums,
                    int fresh) {
  const df_window *w = &b->d->conv->window;
  const int64_t line = b->d->l.line;
  int64_t left = w->out[2];
  for (int64_t count; left > 0; left -= count) {
    count = df_divide_up(left, df_divide_up(left, TOGETHER));
    switch (count) {
#define CASE(n)                                                                                    \
  case n:                                                                                          \
    sum_positions(n, w, line, pairs, weights, sums, fresh);                                        \
    break
      CASE(1);
      CASE(2);
#if DF_LANES >= 8
      CASE(3);
      CASE(4);
#endif
#if DF_LANES >= 16
      CASE(5);
      CASE(6);
      CASE(7);
      CASE(8);
#endif
#undef CASE
    default:
      break;
    }
    pairs += count * w->stride[2] * CHANNELS;
    sums += count * CHANNELS;
  }
}

/* ---- Results --------------------------------------------------------------------------------- */

/* |count| sums as what the form says: in place, or as steps. */
static void finish(const block *b, int64_t count) {
  const df_byte_epilogue *e = b->d->epilogue;
  if (e->form == DF_BYTE_SUMS)
    return;
  const df_rounding r = df_rounding_of(e->zero, e->least, e->most);
  for (int64_t i = 0; i < count; i++)
#pragma GCC unroll 4
    for (int64_t c = 0; c < CHANNELS; c += DF_LANES) {
      int32_t *at = b->sums + i * CHANNELS + c;
      const df_uvec sum = (df_uvec)df_load_ints(at) + (df_uvec)df_load_ints(b->add + c);
      const df_vec value = __builtin_convertvector((df_ivec)sum, df_vec) * vec_load(b->scale + c);
      if (e->form == DF_BYTE_STEPS) {
        const df_bytes steps = df_round_steps(value, &r);
        memcpy(b->steps + i * CHANNELS + c, &steps, sizeof steps);
      } else {
        df_store_ints(at, (df_ivec)(value + vec_load(b->bias + c)));
      }
    }
}

static void run_block(const depthwise *d, int64_t image, int64_t channel, uint8_t *workspace) {
  const df_conv *conv = d->conv;
  const df_window *w = &conv->window;
  const df_byte_operands *o = d->o;
  const layout *l = &d->l;
  const int64_t planes = conv->batch * conv->groups, plane = image * conv->groups + channel;
  const int64_t item = o->form == DF_BYTE_STEPS ? 1 : 4;
  DF_ASSUME(workspace);
  block b = {.d = d,
             .count = df_min(CHANNELS, conv->groups - channel),
             .x = (const uint8_t *)o->left->data + plane * w->in_size,
             .end = (const uint8_t *)o->left->data + planes * w->in_size,
             .out = (char *)d->epilogue->out + plane * w->out_size * item,
             .sign = df_byte_sign(o->left->dtype, 1),
             .zero = df_byte_zero(o->left_zero, 0, o->left->dtype, 1),
             .pairs = (int32_t *)(void *)(workspace + l->pairs),
             .source = workspace + l->source,
             .weights = (int32_t *)(void *)(workspace + l->weights),
             .sums = (int32_t *)(void *)(workspace + l->sums),
             .steps = workspace + l->steps};
  for (int64_t c = 0; c < b.count; c++) {
    b.add[c] = df_byte_bias(o, channel + c);
    b.scale[c] = o->form == DF_BYTE_SUMS ? 0.0f : df_byte_scale(o, channel + c);
    if (o->bias && o->form == DF_BYTE_FLOATS)
      b.bias[c] = df_byte_float(o->bias, channel + c);
  }
  load_weights(&b, channel);
  const int64_t taps = df_divide_up(w->kernel[1], 2) * w->kernel[2] * CHANNELS;
  const int64_t width = w->out[2], pitch = w->stride[1] * l->line * CHANNELS;
  for (int64_t z = 0; z < w->out[0]; z++)
    for (int64_t first = 0; first < w->out[1]; first += l->band) {
      const int64_t rows = df_min(l->band, w->out[1] - first), count = rows * width;
      int fresh = 1;
      for (int64_t a = 0; a < w->kernel[0]; a++) {
        const int64_t slice = z * w->stride[0] + a * w->dilation[0] - w->pad[0];
        if (slice < 0 || slice >= w->in[0])
          continue;
        pair_rows(&b, slice, first * w->stride[1], rows);
        for (int64_t y = 0; y < rows; y++)
          sum_row(&b, b.pairs + y * pitch, b.weights + a * taps, b.sums + y * width * CHANNELS,
                  fresh);
        fresh = 0;
      }
      if (fresh)
        memset(b.sums, 0, (size_t)(count * CHANNELS) * sizeof *b.sums);
      finish(&b, count);
      (item == 1 ? store_steps : store_words)(&b, (z * w->out[1] + first) * width, count);
    }
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const depthwise *d = context;
  const int64_t blocks = df_divide_up(d->conv->groups, CHANNELS);
  int64_t begin, end;
  df_task_range(index, count, d->conv->batch * blocks, 1, &begin, &end);
  for (int64_t i = begin; i < end; i++)
    run_block(d, i / blocks, i % blocks * CHANNELS, d->workspace + worker * d->l.bytes);
}

void DF_NAME(df_byte_depthwise_run)(const df_call *call, const df_conv *conv,
                                    const df_byte_operands *operands,
                                    const df_byte_epilogue *epilogue) {
  depthwise d = {.conv = conv,
                 .o = operands,
                 .epilogue = epilogue,
                 .l = layout_of(conv),
                 .workspace = call->workspace};
  const int64_t units = conv->batch * df_divide_up(conv->groups, CHANNELS);
  const int64_t work = df_times(conv->batch * conv->groups * conv->window.out_size, 4);
  df_parallel(call, run_task, &d, df_min(units, df_task_count(call, work, DF_GRAIN)));
}
