/* conv/gather.h: what some positions of a convolution's output read, gathered in lines.
 *
 * Position q reads source[base(q) + offset(tap)] of each channel; the offset is the same for all
 * positions, and a mask per tap tells which of them it takes into the padding. */
#ifndef DF_CPU_CONV_GATHER_H
#define DF_CPU_CONV_GATHER_H

#include "conv/shape.h"
#include "simd/vector.h"

enum { DF_MOST_RUNS = 6 }; /* with more, loads one by one take no longer */

/* Up to DF_LANES positions. */
typedef struct df_lane_reads {
  int64_t step; /* distance in the source of neighbouring positions, 0 when it is not the same */
  int32_t runs; /* rows of the output that they lie in */
  int32_t begin[DF_LANES];   /* the first position of a run */
  uint32_t within[DF_LANES]; /* its positions */
  int32_t unpadded;          /* no tap is in the padding */
  int32_t base[DF_LANES];
  uint32_t mask[DF_MOST_TAPS]; /* per tap; with step 2 bit 2 i is position i */
} df_lane_reads;

/* offset[tap] for all taps. */
static inline void df_tap_offsets(const df_window *w, int32_t *offset) {
  for (int64_t a = 0; a < w->kernel[0]; a++)
    for (int64_t b = 0; b < w->kernel[1]; b++)
      for (int64_t c = 0; c < w->kernel[2]; c++)
        *offset++ = (int32_t)((a * w->dilation[0] * w->in[1] + b * w->dilation[1]) * w->in[2] +
                              c * w->dilation[2]);
}

#if defined(__AVX512F__) || defined(__AVX2__)
#define DF_MASKED_LOADS

#if defined(__AVX512F__)
static inline df_vec df_load_masked(const float *from, uint32_t mask) {
  return (df_vec)_mm512_maskz_loadu_ps((__mmask16)mask, from);
}
/* Elements 0, 2, ... of two vectors. */
static inline df_vec df_even_elements(df_vec low, df_vec high) {
  __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return (df_vec)_mm512_permutex2var_ps((__m512)low, even, (__m512)high);
}
static inline df_vec df_load_any(const float *from, const int32_t *base, uint32_t mask) {
  __m512i index = _mm512_loadu_si512(base);
  return (df_vec)_mm512_mask_i32gather_ps(_mm512_setzero_ps(), (__mmask16)mask, index, from, 4);
}
#else
/* All bits of lane i where bit i of the mask is set. */
static inline __m256i df_lanes_of(uint32_t mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)mask), bits), bits);
}
static inline df_vec df_load_masked(const float *from, uint32_t mask) {
  return (df_vec)_mm256_maskload_ps(from, df_lanes_of(mask));
}
static inline df_vec df_even_elements(df_vec low, df_vec high) {
  const __m256 even = _mm256_shuffle_ps((__m256)low, (__m256)high, 0x88); /* by halves of both */
  return (df_vec)_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8);
}
static inline df_vec df_load_any(const float *from, const int32_t *base, uint32_t mask) {
  const __m256i index = _mm256_loadu_si256((const __m256i *)(const void *)base);
  const __m256 lanes = _mm256_castsi256_ps(df_lanes_of(mask));
  return (df_vec)_mm256_mask_i32gather_ps(_mm256_setzero_ps(), from, index, lanes, 4);
}
#endif

/* Element 2 i where bit 2 i of the mask is set. */
static inline df_vec df_load_even(const float *from, uint32_t mask) {
  return df_even_elements(df_load_masked(from, mask),
                          df_load_masked(from + DF_LANES, mask >> DF_LANES));
}
/* Positions of a few rows, which lie together in each: a load per row. */
static inline df_vec df_load_runs(const float *from, const df_lane_reads *t, uint32_t mask) {
  df_ivec value = {0};
  for (int32_t i = 0; i < t->runs; i++)
    value |=
        (df_ivec)df_load_masked(from + t->base[t->begin[i]] - t->begin[i], mask & t->within[i]);
  return (df_vec)value;
}
/* Bit i of 16 goes to bit 2 i. */
static inline uint32_t df_even_bits(uint32_t mask) {
  mask = (mask | mask << 8) & 0x00ff00ff;
  mask = (mask | mask << 4) & 0x0f0f0f0f;
  mask = (mask | mask << 2) & 0x33333333;
  return (mask | mask << 1) & 0x55555555;
}
#else
static inline df_vec df_load_any(const float *from, const int32_t *base, uint32_t mask) {
  df_vec value = vec_zero();
  for (int i = 0; i < DF_LANES; i++)
    if (mask >> i & 1)
      value[i] = from[base[i]];
  return value;
}
#endif

/* How many steps it takes to cover |distance|; a division takes longer than a tap. */
static inline int64_t df_steps_to(int64_t distance, int64_t step) {
  return step == 1 ? distance : step == 2 ? (distance + 1) >> 1 : df_divide_up(distance, step);
}

/* Bits of the positions i < count that lie in [0, size), |step| apart from |first| on; step 0: all
 * at |first|. */
static inline uint32_t df_inside(int64_t first, int64_t step, int64_t size, int64_t count) {
  if (step == 0)
    return first >= 0 && first < size ? (1u << count) - 1 : 0;
  int64_t low = first >= 0 ? 0 : df_min(count, df_steps_to(-first, step));
  int64_t high = first >= size ? 0 : df_min(count, df_steps_to(size - first, step));
  return high > low ? ((1u << high) - 1) & ~((1u << low) - 1) : 0;
}

/* Positions [position, position + count) of the output. */
static inline void df_find_lane_reads(df_lane_reads *t, const df_window *w, int64_t position,
                                      int64_t count) {
  DF_ASSUME(count > 0 && count <= DF_LANES);
  uint32_t along[DF_AXES][DF_MOST_TAPS], all = (1u << count) - 1;
  for (int axis = 0; axis < DF_AXES; axis++)
    for (int64_t tap = 0; tap < w->kernel[axis]; tap++)
      along[axis][tap] = 0;
  /* Row by row: in one they are |stride| apart, on one line of the source. */
  t->runs = 0;
  for (int64_t done = 0, some; done < count; done += some) {
    int64_t at = position + done, row = at / w->out[2];
    const int64_t o[DF_AXES] = {row / w->out[1], row % w->out[1], at % w->out[2]};
    int64_t first[DF_AXES];
    some = df_min(count - done, w->out[2] - o[2]);
    DF_ASSUME(some > 0);
    for (int axis = 0; axis < DF_AXES; axis++) {
      first[axis] = o[axis] * w->stride[axis] - w->pad[axis];
      for (int64_t tap = 0; tap < w->kernel[axis]; tap++)
        along[axis][tap] |= df_inside(first[axis] + tap * w->dilation[axis],
                                      axis == 2 ? w->stride[2] : 0, w->in[axis], some)
                            << done;
    }
    int64_t base = (first[0] * w->in[1] + first[1]) * w->in[2] + first[2];
    for (int64_t i = 0; i < some; i++)
      t->base[done + i] = (int32_t)(base + i * w->stride[2]);
    t->begin[t->runs] = (int32_t)done;
    t->within[t->runs++] = ((1u << some) - 1) << done;
  }
  for (int64_t i = count; i < DF_LANES; i++)
    t->base[i] = t->base[0];
  t->step = count > 1 ? t->base[1] - t->base[0] : 1;
  for (int64_t i = 2; i < count; i++)
    if (t->base[i] - t->base[i - 1] != t->step)
      t->step = 0;
#ifdef DF_MASKED_LOADS
  if (t->step == 2) {
    all = df_even_bits(all);
    for (int axis = 0; axis < DF_AXES; axis++)
      for (int64_t tap = 0; tap < w->kernel[axis]; tap++)
        along[axis][tap] = df_even_bits(along[axis][tap]);
  }
#endif
  int64_t tap = 0;
  t->unpadded = 1;
  for (int64_t a = 0; a < w->kernel[0]; a++)
    for (int64_t b = 0; b < w->kernel[1]; b++) {
      uint32_t rows = along[0][a] & along[1][b];
      for (int64_t c = 0; c < w->kernel[2]; c++) {
        uint32_t mask = rows & along[2][c];
        t->unpadded &= mask == all;
        t->mask[tap++] = mask;
      }
    }
}

/* lines[p * pitch + i] of the steps p = (channel, tap) from |begin| to |end| for position i. */
static inline void df_gather(float *lines, int64_t pitch, const df_lane_reads *t,
                             const df_window *w, const int32_t *offset, const float *source,
                             int64_t begin, int64_t end) {
  const float *channel = source + begin / w->taps * w->in_size;
  int64_t tap = begin % w->taps;
  for (int64_t p = begin; p < end; p++, lines += pitch) {
    const float *from = channel + offset[tap];
#ifdef DF_MASKED_LOADS
    if (t->step == 1)
      vec_store(lines, df_load_masked(from + t->base[0], t->mask[tap]));
    else if (t->step == 2)
      vec_store(lines, df_load_even(from + t->base[0], t->mask[tap]));
    else if (t->runs <= DF_MOST_RUNS && w->stride[2] == 1)
      vec_store(lines, df_load_runs(from, t, t->mask[tap]));
    else
#endif
      vec_store(lines, df_load_any(from, t->base, t->mask[tap]));
    if (++tap == w->taps) {
      tap = 0;
      channel += w->in_size;
    }
  }
}

#endif
