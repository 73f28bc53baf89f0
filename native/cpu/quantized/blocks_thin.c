/* quantized/blocks_thin.c: products of a few rows with a weight that is quantized in blocks.
 *
 * Per element of the weight there is a conversion and a multiply-add for each row of a, so that
 * reading 4 bits is what counts: the weight is read once and where it lies. Rows of a are copied so
 * that what meets the same bits of a vector of the weight lies together. */
#include "quantized/blocks_thin.h"

enum {
  MOST_ROWS = 16,     /* beyond, panels of floats pay */
  ROWS = 4,           /* of a at a time */
  COLUMNS = 4,        /* rows of the weight at a time: as many streams from memory */
  WORD = 8,           /* elements of 4 bits in the 32 of a lane */
  GRAIN = 128 * 1024, /* multiply-adds of the smallest task worth a thread's while */
};

/* How the rows of a weight are read against those of a. */
typedef enum form {
  BYTES,  /* 8 bits, one after the other */
  HALVES, /* 4 bits, one after the other */
  PAIRS,  /* 4 bits, the lower halves of a vector of bytes, then the upper ones */
  WORDS   /* 4 bits, the first of every WORD, then the second and so on */
} form;

typedef struct thin {
  df_block_weight weight;
  df_gemm gemm;
  const float *rows; /* of a */
} thin;

int DF_NAME(df_blocks_thin_takes)(int64_t m) { return m <= MOST_ROWS; }

int64_t DF_NAME(df_blocks_thin_bytes)(int64_t m, int64_t row) {
  return m * df_round_up(row, WORD * DF_LANES) * (int64_t)sizeof(float);
}

static form form_of(const df_block_weight *w) {
  if (w->bits == 8)
    return BYTES;
  if (!w->zero)
    return WORDS;
  return INT64_C(1) << w->shift < 2 * DF_LANES ? HALVES : PAIRS;
}

/* Elements of a row of a, padded to what is read at a time. */
static int64_t padded_row(const df_block_weight *w) {
  return df_round_up(w->count << w->shift, form_of(w) == WORDS ? WORD * DF_LANES : 1);
}

/* Where element |p| of a row goes: what meets the same bits of a vector lies together. */
static int64_t position_of(int64_t p, form form) {
  const int64_t group = form == WORDS ? WORD * DF_LANES : form == PAIRS ? 2 * DF_LANES : 1;
  const int64_t each = group / DF_LANES, lane = p % group;
  return group == 1 ? p : p - lane + lane % each * DF_LANES + lane / each;
}

/* Copies rows of a, padded with zeros. */
static void copy_rows(float *to, const df_gemm *g, int64_t padded, form form) {
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t p = 0; p < padded; p++)
      to[i * padded + position_of(p, form)] = p < g->k ? g->a[i * g->a_row + p * g->a_col] : 0.0f;
}

/* sums += the products of one block of |columns| rows of the weight, from row |n| on. */
DF_BLOCKS_INLINE void add_block(int rows, int columns, form form, const df_block_weight *w,
                                const float *a, int64_t padded, int64_t n, int64_t index,
                                df_vec sums[ROWS][COLUMNS]) {
  const int32_t bits = form == BYTES ? 8 : 4;
  const int64_t begin = index << w->shift, end = begin + (INT64_C(1) << w->shift);
  for (int c = 0; c < columns; c++) {
    const uint8_t *from = w->bytes + (n + c) * w->row;
    const int32_t zero = df_block_zero(w, n + c, index, bits);
    df_vec block[ROWS];
    for (int i = 0; i < rows; i++)
      block[i] = vec_zero();
#if defined(__AVX512F__)
    const df_ivec steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const __m512 table = (__m512) __builtin_convertvector(steps - zero, df_vec);
#endif
    for (int64_t p = begin; p < end; p += form == PAIRS ? 2 * DF_LANES : DF_LANES) {
      if (form == PAIRS) {
        const df_ivec both = df_block_bytes(from + p / 2);
#if defined(__AVX512F__)
        /* The lower four bits of an index count. */
        const df_vec low = (df_vec)_mm512_permutexvar_ps((__m512i)both, table);
        const df_vec high = (df_vec)_mm512_permutexvar_ps((__m512i)(both >> 4), table);
#else
        const df_vec low = __builtin_convertvector((both & 15) - zero, df_vec);
        const df_vec high = __builtin_convertvector((both >> 4) - zero, df_vec);
#endif
        for (int i = 0; i < rows; i++)
          block[i] +=
              low * vec_load(a + i * padded + p) + high * vec_load(a + i * padded + p + DF_LANES);
      } else {
        const df_ivec integers = df_block_integers(from, p, bits) - zero;
        const df_vec floats = __builtin_convertvector(integers, df_vec);
        for (int i = 0; i < rows; i++)
          block[i] += floats * vec_load(a + i * padded + p);
      }
    }
    const df_vec scale = vec_splat(w->scale[(n + c) * w->count + index]);
    for (int i = 0; i < rows; i++)
      sums[i][c] += block[i] * scale;
  }
}

/* Lane |lane| of the result is of block lane * WORD >> shift of those from |scale| on. */
DF_BLOCKS_INLINE df_vec word_scales(const float *scale, int64_t count, int32_t shift) {
#if defined(__AVX512F__)
  const __m512i lanes = (__m512i)(__v16si){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const __m512i index = _mm512_srl_epi32(lanes, _mm_cvtsi32_si128(shift - 3));
  return (df_vec)_mm512_permutexvar_ps(index, (__m512)vec_load_partial(scale, count));
#elif defined(__AVX2__)
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i index = _mm256_srl_epi32(lanes, _mm_cvtsi32_si128(shift - 3));
  return (df_vec)_mm256_permutevar8x32_ps((__m256)vec_load_partial(scale, count), index);
#else
  df_vec found = vec_zero();
  for (int64_t lane = 0; lane < DF_LANES; lane++)
    found[lane] = scale[df_min(count - 1, lane * WORD >> shift)];
  return found;
#endif
}

/* sums += the products of a vector of words of |columns| rows of the weight: of element |p| on. */
DF_BLOCKS_INLINE void add_words(int rows, int columns, const df_block_weight *w, const float *a,
                                int64_t padded, int64_t n, int64_t p, df_vec sums[ROWS][COLUMNS]) {
  const int64_t index = p >> w->shift, bytes = df_min(4 * DF_LANES, w->row - p / 2);
  const int64_t blocks = df_min(df_max(1, WORD * DF_LANES >> w->shift), w->count - index);
  for (int c = 0; c < columns; c++) {
    const uint8_t *from = w->bytes + (n + c) * w->row + p / 2;
    df_uvec words = {0};
    if (bytes == 4 * DF_LANES)
      memcpy(&words, from, sizeof words);
    else
      memcpy(&words, from, (size_t)bytes);
#if defined(__AVX512F__)
    /* The lower four bits of an index count. */
    const __m512 table = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
#else
    words ^= UINT32_C(0x88888888); /* the difference to 8 as a signed number */
#endif
    df_vec block[ROWS];
    for (int i = 0; i < rows; i++)
      block[i] = vec_zero();
#pragma GCC unroll 8
    for (int element = 0; element < WORD; element++) {
#if defined(__AVX512F__)
      const df_vec floats = (df_vec)_mm512_permutexvar_ps((__m512i)(words >> 4 * element), table);
#else
      const df_vec floats =
          __builtin_convertvector((df_ivec)(words << (28 - 4 * element)) >> 28, df_vec);
#endif
      for (int i = 0; i < rows; i++)
        block[i] += floats * vec_load(a + i * padded + p + element * DF_LANES);
    }
    const float *first = w->scale + (n + c) * w->count + index;
    const df_vec scale = blocks == 1 ? vec_splat(*first) : word_scales(first, blocks, w->shift);
    for (int i = 0; i < rows; i++)
      sums[i][c] += block[i] * scale;
  }
}

DF_BLOCKS_INLINE void dot_columns(int rows, int columns, form form, const thin *c, int64_t row,
                                  int64_t n) {
  const df_block_weight *w = &c->weight;
  const int64_t padded = padded_row(w);
  const float *a = c->rows + row * padded;
  df_vec sums[ROWS][COLUMNS];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++)
      sums[i][j] = vec_zero();
  if (form == WORDS)
    for (int64_t p = 0; p < padded; p += WORD * DF_LANES)
      add_words(rows, columns, w, a, padded, n, p, sums);
  else
    for (int64_t index = 0; index < w->count; index++)
      add_block(rows, columns, form, w, a, padded, n, index, sums);
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < columns; j++)
      c->gemm.c[(row + i) * c->gemm.c_row + n + j] = vec_sum(sums[i][j]);
}

DF_BLOCKS_INLINE void dot_form(int rows, int columns, const thin *c, int64_t row, int64_t n) {
  switch (form_of(&c->weight)) {
  case BYTES:
    dot_columns(rows, columns, BYTES, c, row, n);
    break;
  case HALVES:
    dot_columns(rows, columns, HALVES, c, row, n);
    break;
  case PAIRS:
    dot_columns(rows, columns, PAIRS, c, row, n);
    break;
  case WORDS:
    dot_columns(rows, columns, WORDS, c, row, n);
    break;
  }
}

/* All rows by |columns| columns from |n| on; what is read of the weight stays in the first cache.
 */
DF_BLOCKS_INLINE void dot_all(int columns, const thin *c, int64_t n) {
  int64_t row = 0;
  for (; row + ROWS <= c->gemm.m; row += ROWS)
    dot_form(ROWS, columns, c, row, n);
  switch (c->gemm.m - row) {
  case 1:
    dot_form(1, columns, c, row, n);
    break;
  case 2:
    dot_form(2, columns, c, row, n);
    break;
  case 3:
    dot_form(3, columns, c, row, n);
    break;
  default:
    break;
  }
}

static void run_thin(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const thin *c = context;
  int64_t n, end;
  df_task_range(index, count, c->gemm.n, COLUMNS, &n, &end);
  for (; n + COLUMNS <= end; n += COLUMNS)
    dot_all(COLUMNS, c, n);
  for (; n < end; n++)
    dot_all(1, c, n);
}

void DF_NAME(df_blocks_thin_run)(const df_call *call, const df_gemm *gemm, float *workspace) {
  thin c = {.weight = *gemm->blocks, .gemm = *gemm, .rows = workspace};
  copy_rows(workspace, gemm, padded_row(&c.weight), form_of(&c.weight));
  df_parallel(call, run_thin, &c, df_task_count(call, gemm->m * gemm->n * gemm->k, GRAIN));
}
