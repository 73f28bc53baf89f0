/* gemm.c: packing and the loops around the tiles.
 *
 * A block of b, up to K_BLOCK x N_BLOCK, is packed once into panels of DF_TILE_COLUMNS columns and
 * stays in the second cache; a panel of a, DF_TILE_ROWS rows, is packed into the first and passes
 * over all panels of b. Per multiply-add the packing costs 1/n of a load and store for a, 1/m for
 * b. */
#include "gemm.h"
#include "gemm_tile.h"
#include "pack.h"

enum {
  K_BLOCK = 384,     /* a panel of a is 21 KiB, a panel of b 48 */
  N_BLOCK = 512,     /* a block of b is 768 KiB */
  SMALL = 64 * 1024, /* multiply-adds below which a second thread does not pay */
  ALIGN = 16
};

static int64_t round_up(int64_t a, int64_t b) { return df_divide_up(a, b) * b; }

/* Size of the parts when |total| is cut into the fewest parts of at most |most|, all about equal.
 */
static int64_t even_part(int64_t total, int64_t most) {
  return total <= most ? total : df_divide_up(total, df_divide_up(total, most));
}

/* ---- Packing -------------------------------------------------------------------------------- */

/* A panel of a: out[p * DF_TILE_ROWS + i] = a[i][p] for |rows| rows. The slack behind it is
 * DF_LANES floats. */
static void pack_a(float *out, const float *a, int64_t a_row, int64_t a_col, int64_t rows,
                   int64_t k) {
  if (a_col == 1 && DF_TILE_ROWS <= DF_LANES) {
    df_pack_turned(out, a, a_row, rows, k, DF_TILE_ROWS);
  } else if (a_row == 1 && DF_TILE_ROWS <= DF_LANES) {
    for (int64_t p = 0; p < k; p++)
      vec_store(out + p * DF_TILE_ROWS, vec_load_part(a + p * a_col, rows));
  } else {
    for (int64_t p = 0; p < k; p++)
      for (int64_t i = 0; i < rows; i++)
        out[p * DF_TILE_ROWS + i] = a[i * a_row + p * a_col];
  }
}

/* One panel of b: out[p * width + j] = b[p][j] for |columns| columns, zeros up to |width|, which is
 * 1 or 2 vectors. */
static void pack_b(float *out, const float *b, int64_t b_row, int64_t b_col, int64_t columns,
                   int64_t width, int64_t k) {
  for (int64_t j = 0; j < width; j += DF_LANES) {
    int64_t count = df_max(0, df_min(DF_LANES, columns - j));
    const float *from = b + j * b_col;
    if (b_col == 1) {
      for (int64_t p = 0; p < k; p++)
        vec_store(out + p * width + j, count == DF_LANES ? vec_load(from + p * b_row)
                                                         : vec_load_part(from + p * b_row, count));
    } else if (b_row == 1) {
      df_pack_turned(out + j, from, b_col, count, k, width);
    } else {
      for (int64_t p = 0; p < k; p++)
        for (int64_t lane = 0; lane < DF_LANES; lane++)
          out[p * width + j + lane] = lane < count ? from[p * b_row + lane * b_col] : 0.0f;
    }
  }
}

/* ---- Blocks --------------------------------------------------------------------------------- */

static int64_t panel_width(int64_t columns) {
  return columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES;
}

/* All rows of c, the columns of one packed block of b: the panels of b lie k * DF_TILE_COLUMNS
 * apart. */
static void multiply_block(const df_gemm *gemm, float *panel, const float *block, int64_t k,
                           const df_gemm_end *end) {
  for (int64_t i = 0; i < gemm->m; i += DF_TILE_ROWS) {
    int64_t rows = df_min(DF_TILE_ROWS, gemm->m - i);
    pack_a(panel, gemm->a + i * gemm->a_row, gemm->a_row, gemm->a_col, rows, k);
    df_gemm_end here = *end;
    if (here.row_bias)
      here.row_bias += i;
    for (int64_t j = 0; j < gemm->n; j += DF_TILE_COLUMNS) {
      int64_t columns = df_min(DF_TILE_COLUMNS, gemm->n - j);
      here.column_bias = end->column_bias ? end->column_bias + j : NULL;
      df_tile tile = DF_NAME(df_tiles)[rows - 1][panel_width(columns) / DF_LANES - 1];
      tile(k, panel, block + j * k, gemm->c + i * gemm->c_row + j, gemm->c_row, columns, &here);
    }
  }
}

/* The part of |gemm| in columns [j, j + columns). */
static df_gemm columns_of(const df_gemm *gemm, int64_t j, int64_t columns) {
  df_gemm part = *gemm;
  part.n = columns;
  part.b += j * gemm->b_col;
  part.c += j;
  if (part.end.column_bias)
    part.end.column_bias += j;
  return part;
}

static df_gemm rows_of(const df_gemm *gemm, int64_t i, int64_t rows) {
  df_gemm part = *gemm;
  part.m = rows;
  part.a += i * gemm->a_row;
  part.c += i * gemm->c_row;
  if (part.end.row_bias)
    part.end.row_bias += i;
  return part;
}

/* One block of columns, k in parts: the first may overwrite c, the last adds the biases. */
static void multiply_columns(const df_gemm *gemm, int64_t k_part, float *panel, float *block) {
  for (int64_t p = 0; p < gemm->k || p == 0; p += k_part) {
    int64_t k = df_min(k_part, gemm->k - p);
    df_gemm part = *gemm;
    part.a += p * gemm->a_col;
    part.b += p * gemm->b_row;
    for (int64_t j = 0; j < gemm->n; j += DF_TILE_COLUMNS) {
      int64_t columns = df_min(DF_TILE_COLUMNS, gemm->n - j);
      pack_b(block + j * k, part.b + j * gemm->b_col, gemm->b_row, gemm->b_col, columns,
             panel_width(columns), k);
    }
    df_gemm_end end = {.accumulate = gemm->end.accumulate || p > 0};
    if (p + k >= gemm->k) {
      end = gemm->end;
      end.accumulate |= p > 0;
    }
    multiply_block(&part, panel, block, k, &end);
    if (k_part == 0)
      break;
  }
}

/* ---- Cutting -------------------------------------------------------------------------------- */

/* Time of the longest row of pieces, in steps of one vector: work of a tile, and packing. */
static double cut_cost(int64_t tiles_down, int64_t tiles_across, int64_t down, int64_t across,
                       int64_t batch, int32_t threads) {
  int64_t rounds = df_divide_up(down * across * batch, threads);
  double high = (double)df_divide_up(tiles_down, down);
  double wide = (double)df_divide_up(tiles_across, across);
  double tile = DF_TILE_ROWS * DF_TILE_VECTORS * 0.5;
  return (double)rounds * (high * wide * tile + high * 6.0 + wide * 12.0);
}

df_gemm_cut DF_NAME(df_gemm_cut)(int64_t m, int64_t n, int64_t k, int64_t batch, int32_t threads) {
  df_gemm_cut cut = {m, n, 1, 1, 0};
  int64_t tiles_down = df_divide_up(m, DF_TILE_ROWS);
  int64_t tiles_across = df_divide_up(n, DF_TILE_COLUMNS);
  if (threads > 1 && m * n * k > SMALL) {
    double best = 0.0;
    for (int64_t down = 1; down <= df_min(tiles_down, 2 * threads); down++)
      for (int64_t across = 1; across <= df_min(tiles_across, 2 * threads); across++) {
        double cost = cut_cost(tiles_down, tiles_across, down, across, batch, threads);
        if (best == 0.0 || cost < best) {
          best = cost;
          cut.down = down;
          cut.across = across;
        }
      }
  }
  cut.rows = df_divide_up(tiles_down, cut.down) * DF_TILE_ROWS;
  cut.columns = df_divide_up(tiles_across, cut.across) * DF_TILE_COLUMNS;
  cut.down = df_divide_up(m, cut.rows);
  cut.across = df_divide_up(n, cut.columns);
  int64_t k_part = even_part(k, K_BLOCK);
  int64_t n_part = round_up(even_part(cut.columns, N_BLOCK), DF_TILE_COLUMNS);
  cut.scratch = round_up(k_part * DF_TILE_ROWS + DF_LANES, ALIGN) +
                round_up(k_part * n_part + DF_LANES, ALIGN);
  return cut;
}

void DF_NAME(df_gemm_piece)(const df_gemm *gemm, const df_gemm_cut *cut, int64_t index,
                            float *scratch) {
  int64_t i = index / cut->across * cut->rows;
  int64_t j = index % cut->across * cut->columns;
  df_gemm rows = rows_of(gemm, i, df_min(cut->rows, gemm->m - i));
  df_gemm piece = columns_of(&rows, j, df_min(cut->columns, gemm->n - j));
  int64_t k_part = even_part(gemm->k, K_BLOCK);
  int64_t n_part = round_up(even_part(cut->columns, N_BLOCK), DF_TILE_COLUMNS);
  float *block = scratch + round_up(k_part * DF_TILE_ROWS + DF_LANES, ALIGN);
  for (int64_t from = 0; from < piece.n; from += n_part) {
    df_gemm part = columns_of(&piece, from, df_min(n_part, piece.n - from));
    multiply_columns(&part, k_part, scratch, block);
  }
}
