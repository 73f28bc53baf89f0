/* conv/amx/grid.c: see conv/amx/grid.h. Per pair of elements 2 loads, 4 operations for the largest
 * magnitude, and for each term a store and about 5 operations, 16 pairs at a time. */
#include "conv/amx/grid.h"
#include "gemm/amx/pack_row.h"

int DF_NAME(df_grid_make)(df_grid *grid, const df_conv *conv, int terms) {
  const df_window *w = &conv->window;
  const int plain = df_conv_is_plain(w);
  *grid = (df_grid){.terms = terms,
                    .blocks = df_divide_up(conv->channels, DF_AMX_STEPS),
                    .taps = w->taps,
                    .height = plain ? 1 : w->out[1],
                    .width = plain ? w->out_size : w->out[2],
                    .in_rows = plain ? 1 : w->in[1],
                    .in_span = plain ? w->in_size : w->in[2],
                    .stride = {w->stride[1], w->stride[2]},
                    .pad = {w->pad[1], w->pad[2]}};
  if (w->taps > DF_GRID_TAPS || w->stride[1] * w->stride[2] > DF_GRID_PHASES)
    return 0;
  int64_t reach[2] = {0, 0}, shift[DF_GRID_TAPS][2];
  for (int64_t tap = 0; tap < w->taps; tap++) {
    const int64_t at[2] = {tap / w->kernel[2] * w->dilation[1],
                           tap % w->kernel[2] * w->dilation[2]};
    int64_t phase = 0;
    for (int axis = 0; axis < 2; axis++) {
      shift[tap][axis] = at[axis] / grid->stride[axis];
      reach[axis] = df_max(reach[axis], shift[tap][axis]);
    }
    const int32_t y = (int32_t)(at[0] % grid->stride[0]), x = (int32_t)(at[1] % grid->stride[1]);
    while (phase < grid->phases && (grid->phase_at[phase][0] != y || grid->phase_at[phase][1] != x))
      phase++;
    grid->phase_at[phase][0] = y;
    grid->phase_at[phase][1] = x;
    grid->phases = df_max(grid->phases, phase + 1);
    grid->tap_phase[tap] = (int32_t)phase;
  }
  grid->rows = grid->height + reach[0];
  grid->span = grid->width + reach[1];
  grid->positions = (grid->height - 1) * grid->span + grid->width;
  grid->plane = (df_divide_up(grid->rows * grid->span, 16) | 1) * 16;
  grid->block_words = terms * grid->phases * 16 * grid->plane * 2;
  grid->image_words = grid->blocks * grid->block_words + 4 * DF_AMX_PANEL;
  if (grid->image_words > INT32_MAX)
    return 0;
  for (int64_t tap = 0; tap < w->taps; tap++)
    grid->tap_shift[tap] = (int32_t)(shift[tap][0] * grid->span + shift[tap][1]);
  return 1;
}

/* 16 floats |stride| apart. */
DF_AMX_INLINE __m512 load(const float *from, int64_t stride, __m512i at, __mmask16 mask) {
  return stride == 1 ? _mm512_maskz_loadu_ps(mask, from)
                     : _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, at, from, 4);
}

DF_AMX_INLINE __m512i offsets_of(int64_t stride) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)stride));
}

DF_AMX_INLINE __mmask16 first_of(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1);
}

/* |count| pairs from |low| and |high|, |stride| apart; |high| is null where there is no channel. */
DF_AMX_INLINE __m512i pack_run(uint16_t *out, int64_t apart, const float *low, const float *high,
                               int64_t stride, int64_t count, int terms, __m512i largest) {
  const __m512i at = offsets_of(stride);
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_of(count - i);
    const __m512 first = load(low + i * stride, stride, at, mask);
    const __m512 second = high ? load(high + i * stride, stride, at, mask) : _mm512_setzero_ps();
    largest = df_amx_larger(df_amx_larger(largest, first), second);
    __m512i words[3];
    df_amx_split(words, first, second, 1, terms);
#pragma GCC unroll 3
    for (int term = 0; term < terms; term++)
      _mm512_mask_storeu_epi32(out + term * apart + 2 * i, mask, words[term]);
  }
  return largest;
}

static void clear(uint16_t *out, int64_t apart, int64_t count, int64_t terms) {
  for (int64_t term = 0; term < terms && count > 0; term++)
    memset(out + term * apart, 0, (size_t)count * sizeof *out);
}

/* Columns [begin, end) of a plane of |phase| that lie in the image, the first at column |from|. */
typedef struct inside {
  int64_t begin, end, from;
} inside;

static inside columns_of(const df_grid *g, const int32_t *phase) {
  const int64_t s = g->stride[1], first = phase[1] - g->pad[1], span = g->in_span - first;
  inside in = {.begin = df_min(g->span, first < 0 ? df_divide_up(-first, s) : 0)};
  in.end = span <= 0 ? in.begin : df_max(in.begin, df_min(g->span, df_divide_up(span, s)));
  in.from = first + in.begin * s;
  return in;
}

/* The row of the image that row |row| of a plane is; -1 for none. */
static int64_t row_of(const df_grid *g, const int32_t *phase, int64_t row) {
  const int64_t y = row * g->stride[0] + phase[0] - g->pad[0];
  return y < g->in_rows ? df_max(y, -1) : -1;
}

/* One plane of a pair of channels. */
DF_AMX_INLINE __m512i pack_plane(uint16_t *out, const df_grid *g, const float *low,
                                 const float *high, const int32_t *phase, int terms,
                                 __m512i largest) {
  const int64_t apart = g->block_words / g->terms, s = g->stride[1];
  const inside in = columns_of(g, phase);
  for (int64_t row = 0; row < g->rows; row++, out += 2 * g->span) {
    const int64_t y = row_of(g, phase, row), at = y * g->in_span + in.from;
    if (y < 0 || !low) {
      clear(out, apart, 2 * g->span, g->terms);
      continue;
    }
    clear(out, apart, 2 * in.begin, g->terms);
    clear(out + 2 * in.end, apart, 2 * (g->span - in.end), g->terms);
    if (s == 1)
      largest = pack_run(out + 2 * in.begin, apart, low + at, high ? high + at : NULL, 1,
                         in.end - in.begin, terms, largest);
    else
      largest = pack_run(out + 2 * in.begin, apart, low + at, high ? high + at : NULL, s,
                         in.end - in.begin, terms, largest);
  }
  return largest;
}

uint32_t DF_NAME(df_grid_pack)(uint16_t *out, const df_grid *g, const float *image,
                               int64_t channels, int64_t block) {
  const int64_t size = g->in_rows * g->in_span;
  DF_ASSUME(image);
  __m512i largest = _mm512_setzero_si512();
  out += block * g->block_words;
  for (int64_t phase = 0; phase < g->phases; phase++)
    for (int64_t pair = 0; pair < 16; pair++, out += 2 * g->plane) {
      const int64_t channel = block * DF_AMX_STEPS + 2 * pair;
      const float *low = channel < channels ? image + channel * size : NULL;
      const float *high = low && channel + 1 < channels ? low + size : NULL;
      const int32_t *at = g->phase_at[phase];
      if (g->terms == 1)
        largest = pack_plane(out, g, low, high, at, 1, largest);
      else if (g->terms == 2)
        largest = pack_plane(out, g, low, high, at, 2, largest);
      else
        largest = pack_plane(out, g, low, high, at, 3, largest);
    }
  return _mm512_reduce_max_epu32(largest);
}

/* |count| words, |stride| apart. */
DF_AMX_INLINE __m512i pack_line(uint16_t *out, int64_t apart, const float *from, int64_t stride,
                                int64_t count, int terms, __m512i largest) {
  const __m512i at = offsets_of(stride);
  for (int64_t i = 0; i < count; i += 32) {
    const __mmask16 low = first_of(count - i), high = first_of(count - i - 16);
    const __m512 first = load(from + i * stride, stride, at, low);
    const __m512 second = load(from + (i + 16) * stride, stride, at, high);
    largest = df_amx_larger(df_amx_larger(largest, first), second);
    __m512i words[3];
    df_amx_split(words, first, second, 0, terms);
#pragma GCC unroll 3
    for (int term = 0; term < terms; term++)
      _mm512_mask_storeu_epi16(out + term * apart + i, (__mmask32)high << 16 | low, words[term]);
  }
  return largest;
}

static __m512i pack_channel(uint16_t *out, const df_grid *g, const float *from,
                            const int32_t *phase, __m512i largest) {
  const int64_t apart = g->block_words / g->terms, s = g->stride[1];
  const inside in = columns_of(g, phase);
  for (int64_t row = 0; row < g->rows; row++) {
    const int64_t y = row_of(g, phase, row), count = in.end - in.begin;
    if (y < 0)
      continue;
    uint16_t *to = out + row * g->span + in.begin;
    const float *at = from + y * g->in_span + in.from;
    if (g->terms == 1)
      largest = pack_line(to, apart, at, s, count, 1, largest);
    else if (g->terms == 2)
      largest = pack_line(to, apart, at, s, count, 2, largest);
    else
      largest = pack_line(to, apart, at, s, count, 3, largest);
  }
  return largest;
}

uint32_t DF_NAME(df_grid_pack_lines)(uint16_t *out, const df_grid *g, const float *image,
                                     int64_t channels, int64_t block) {
  const int64_t size = g->in_rows * g->in_span, first = block * DF_AMX_STEPS;
  const int64_t behind = g->image_words - g->blocks * g->block_words;
  __m512i largest = _mm512_setzero_si512();
  out += block * g->block_words;
  memset(out, 0, (size_t)(g->block_words + (block + 1 == g->blocks ? behind : 0)) * sizeof *out);
  for (int64_t phase = 0; phase < g->phases; phase++)
    for (int64_t channel = first; channel < first + DF_AMX_STEPS; channel++, out += g->plane)
      if (channel < channels)
        largest = pack_channel(out, g, image + channel * size, g->phase_at[phase], largest);
  return _mm512_reduce_max_epu32(largest);
}
