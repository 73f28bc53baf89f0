/* vendor/strips.cu: where the strips of a product lie, and their copies. */
#include "vendor/strips.h"

#include "shape/copy.h"

/* Tests make these smaller. */
#ifndef DF_STRIP_BYTES
#define DF_STRIP_BYTES (256 << 20)  /* staged at once, at most */
#define DF_STRIP_ELEMENTS (1 << 20) /* of a matrix, below which launches cost more */
#define DF_STRIP_DEPTH 256          /* sums that a staged element is block of, at least */
#endif

enum {
  LINE = 4, /* floats in 16 bytes */
  ROUND = 8 /* rows of a strip are a multiple of it, so that each begins at 16 bytes */
};

static int64_t size_of(const df_gemm &g, df_gemm_axis axis) {
  return axis == DF_M ? g.m : axis == DF_N ? g.n : g.k;
}

/* The matrix as it lies: rows along |row| at a distance of |pitch|. */
struct lying {
  df_gemm_matrix matrix;
  df_gemm_axis rows, row, other;
  int64_t pitch;
};

static lying lying_of(df_gemm_matrix matrix, df_gemm_axis down, df_gemm_axis right,
                      df_gemm_axis other, int64_t down_stride, int64_t right_stride) {
  if (right_stride == 1)
    return {matrix, down, right, other, down_stride};
  return {matrix, right, down, other, right_stride};
}

df_strips df_strips_of(const df_gemm &g) {
  const lying all[] = {lying_of(DF_A, DF_M, DF_K, DF_N, g.a_row, g.a_col),
                       lying_of(DF_B, DF_K, DF_N, DF_M, g.b_row, g.b_col),
                       lying_of(DF_C, DF_M, DF_N, DF_K, g.c_row, g.c_col)};
  const lying *found = nullptr;
  int uneven = 0;
  for (const lying &one : all)
    if (one.pitch % LINE != 0) {
      uneven++;
      found = &one;
    }
  df_strips s{};
  if (uneven != 1 || g.products != 1 || g.end.add) /* it lies as c does, which a strip may not */
    return s;
  const bool ends = g.end.column_bias || g.end.row_bias || g.end.relu;
  if (ends && (found->rows == DF_K || found->row == DF_K))
    return s; /* the end comes after the last sum */
  const int64_t rows = size_of(g, found->rows), length = size_of(g, found->row);
  if (rows * length < DF_STRIP_ELEMENTS || length < LINE ||
      size_of(g, found->other) < DF_STRIP_DEPTH)
    return s;
  s.staged = found->matrix;
  s.rows = found->rows;
  s.row = found->row;
  s.even = length / LINE * LINE;
  s.pitch = s.even;
  const int64_t most = df_max(ROUND, DF_STRIP_BYTES / (s.pitch * int64_t{sizeof(float)}));
  s.count = df_divide_up(rows, most);
  s.size = df_divide_up(df_divide_up(rows, s.count), ROUND) * ROUND;
  s.count = df_divide_up(rows, s.size);
  return s;
}

int64_t df_strips_bytes(const df_strips &s) {
  return s.count ? s.size * s.pitch * static_cast<int64_t>(sizeof(float)) : 0;
}

df_gemm df_gemm_block(df_gemm g, df_gemm_axis axis, int64_t begin, int64_t size) {
  if (axis == DF_M) {
    g.m = size;
    g.a += begin * g.a_row;
    g.c += begin * g.c_row;
    if (g.end.row_bias)
      g.end.row_bias += begin;
  } else if (axis == DF_N) {
    g.n = size;
    g.b += begin * g.b_col;
    g.c += begin * g.c_col;
    if (g.end.column_bias)
      g.end.column_bias += begin;
  } else {
    g.k = size;
    g.a += begin * g.a_col;
    g.b += begin * g.b_row;
  }
  return g;
}

/* Rows [begin, end) of strip |i|. */
static int64_t begin_of(const df_strips &s, int64_t i) { return i * s.size; }
static int64_t size_of(const df_gemm &g, const df_strips &s, int64_t i) {
  return df_min(s.size, size_of(g, s.rows) - begin_of(s, i));
}

/* Strip |i| where it lies in the operands. */
static df_gemm block_of(const df_gemm &g, const df_strips &s, int64_t i) {
  return df_gemm_block(df_gemm_block(g, s.row, 0, s.even), s.rows, begin_of(s, i),
                       size_of(g, s, i));
}

df_gemm df_strip_of(const df_gemm &g, const df_strips &s, int64_t i, float *stage) {
  df_gemm block = block_of(g, s, i);
  if (s.staged == DF_A) {
    block.a = stage;
    (s.rows == DF_M ? block.a_row : block.a_col) = s.pitch;
  } else if (s.staged == DF_B) {
    block.b = stage;
    (s.rows == DF_K ? block.b_row : block.b_col) = s.pitch;
  } else {
    block.c = stage;
    block.c_row = s.pitch;
  }
  return block;
}

df_gemm df_strips_rest(const df_gemm &g, const df_strips &s) {
  return df_gemm_block(g, s.row, s.even, size_of(g, s.row) - s.even);
}

bool df_strip_adds(const df_strips &s, int64_t i) {
  return i == s.count ? s.row == DF_K : s.rows == DF_K && i > 0;
}

static df_status copy(const df_call *call, const df_gemm &g, const df_strips &s, int64_t i,
                      float *to, int64_t to_pitch, const float *from, int64_t from_pitch) {
  const int64_t to_strides[] = {to_pitch, 1}, from_strides[] = {from_pitch, 1};
  const int64_t shape[] = {size_of(g, s, i), s.even};
  return df_copy_box(call, to, to_strides, from, from_strides, shape, 2, sizeof(float));
}

df_status df_strip_load(const df_call *call, const df_gemm &g, const df_strips &s, int64_t i,
                        float *stage) {
  if (s.staged == DF_C)
    return DF_OK;
  const df_gemm block = block_of(g, s, i);
  const int64_t pitch = s.staged == DF_A ? (s.rows == DF_M ? g.a_row : g.a_col)
                                         : (s.rows == DF_K ? g.b_row : g.b_col);
  return copy(call, g, s, i, stage, s.pitch, s.staged == DF_A ? block.a : block.b, pitch);
}

df_status df_strip_store(const df_call *call, const df_gemm &g, const df_strips &s, int64_t i,
                         const float *stage) {
  if (s.staged != DF_C)
    return DF_OK;
  return copy(call, g, s, i, block_of(g, s, i).c, g.c_row, stage, s.pitch);
}
