/* gemm/gemm.cu: see gemm/gemm.h. A block per tile of the result, part of k and product of the
 * batch. */
#include "gemm/gemm.h"
#include "gemm/tile.h"

enum {
  FILL = 264,       /* blocks that keep a large card busy: two for each of 132 multiprocessors */
  LEAST_PART = 128, /* of k, worth a block */
  MOST_PARTS = 64,
  FEW_PARTS = 4,
  THIN = 16,  /* rows of the thin tile */
  STRETCH = 8 /* rows of tiles that run close to each other, so that they share columns of b */
};

/* ---- Choosing ------------------------------------------------------------------------------- */

template <typename T> static void sides(int64_t *rows, int64_t *columns) {
  *rows = T::ROWS;
  *columns = T::COLUMNS;
}

static void sides_of(int32_t tile, int64_t *rows, int64_t *columns) {
  if (tile == DF_TILE_LARGE)
    sides<df_tile_large>(rows, columns);
  else if (tile == DF_TILE_SMALL)
    sides<df_tile_small>(rows, columns);
  else
    sides<df_tile_thin>(rows, columns);
}

static int64_t tiles_of(int32_t tile, int64_t m, int64_t n) {
  int64_t rows, columns;
  sides_of(tile, &rows, &columns);
  return df_divide_up(m, rows) * df_divide_up(n, columns);
}

/* Large tiles, which read shared memory half as often, where there are enough of them, in a few
 * parts if need be, and little of them lies outside. */
df_gemm_cut df_gemm_cut_of(int64_t m, int64_t n, int64_t k, int64_t products) {
  df_gemm_cut cut{DF_TILE_SMALL, 1, df_max(k, 1)};
  const int64_t large = tiles_of(DF_TILE_LARGE, m, n);
  const int64_t few = df_max(1, df_min(FEW_PARTS, k / (2 * LEAST_PART)));
  if (m <= THIN)
    cut.tile = DF_TILE_THIN;
  else if (large * products * few >= FILL / 2 && m * n * 4 >= large * 128 * 128 * 3)
    cut.tile = DF_TILE_LARGE;
  const int64_t blocks = df_max(1, tiles_of(cut.tile, m, n) * products);
  if (blocks * 2 <= FILL) {
    int64_t parts = df_min(df_min(FILL / blocks, MOST_PARTS), k / LEAST_PART);
    if (parts > 1) {
      cut.part = df_divide_up(df_divide_up(k, parts), DF_TILE_DEPTH) * DF_TILE_DEPTH;
      cut.parts = static_cast<int32_t>(df_divide_up(k, cut.part));
    }
  }
  return cut;
}

df_gemm df_gemm_of(float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k) {
  df_gemm g{};
  g.c = c;
  g.a = a;
  g.b = b;
  g.m = m;
  g.n = n;
  g.k = k;
  g.a_row = k;
  g.a_col = 1;
  g.b_row = n;
  g.b_col = 1;
  g.c_row = n;
  g.c_col = 1;
  g.products = 1;
  g.c_batch = m * n;
  return g;
}

/* c' = b' a'. */
static void turn(df_gemm *g) {
  std::swap(g->a, g->b);
  std::swap(g->m, g->n);
  std::swap(g->a_row, g->b_col);
  std::swap(g->a_col, g->b_row);
  std::swap(g->c_row, g->c_col);
  std::swap(g->end.row_bias, g->end.column_bias);
  for (int axis = 0; axis < g->batch.rank; axis++)
    std::swap(g->batch.strides[0][axis], g->batch.strides[1][axis]);
}

void df_gemm_plan(df_gemm *g) {
  if (g->n <= THIN && g->m > THIN)
    turn(g);
  const df_gemm_cut cut = df_gemm_cut_of(g->m, g->n, g->k, g->products);
  g->tile = cut.tile;
  g->parts = cut.parts;
  g->part = cut.part;
}

int64_t df_gemm_workspace(const df_gemm *g) {
  return g->parts > 1 ? g->parts * g->products * g->m * g->n * static_cast<int64_t>(sizeof(float))
                      : 0;
}

/* ---- The kernels ---------------------------------------------------------------------------- */

/* What of a df_gemm depends on where its matrices lie. */
struct placement {
  bool a_along_k, b_along_k, c_fours;
  uint32_t tiles_down, tiles_across;
  float *parts; /* null: the sums are ended and stored in c */
};

template <typename T, bool FOURS> struct matrices {
  df_factor<T, T::ROWS, FOURS> a;
  df_factor<T, T::COLUMNS, FOURS> b;
  __device__ __forceinline__ void fetch_a(float (&v)[df_share<T, T::ROWS>::ROOM], int64_t k) {
    a.fetch(v, k);
  }
  __device__ __forceinline__ void fetch_b(float (&v)[df_share<T, T::COLUMNS>::ROOM], int64_t k) {
    b.fetch(v, k);
  }
  __device__ __forceinline__ void store_a(float *to,
                                          const float (&v)[df_share<T, T::ROWS>::ROOM]) const {
    a.store(to, v);
  }
  __device__ __forceinline__ void store_b(float *to,
                                          const float (&v)[df_share<T, T::COLUMNS>::ROOM]) const {
    b.store(to, v);
  }
};

template <typename T, bool FOURS>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT)
    multiply(const __grid_constant__ df_gemm g, const __grid_constant__ placement at) {
  const uint32_t tiles = at.tiles_down * at.tiles_across;
  const uint32_t tile = blockIdx.x % tiles, rest = blockIdx.x / tiles;
  const uint32_t part = rest % static_cast<uint32_t>(g.parts);
  const int64_t product = rest / static_cast<uint32_t>(g.parts);
  const uint32_t stretch = tile / (STRETCH * at.tiles_across);
  const uint32_t down = at.tiles_down - stretch * STRETCH;
  const uint32_t high = down < STRETCH ? down : static_cast<uint32_t>(STRETCH);
  const uint32_t inside = tile - stretch * STRETCH * at.tiles_across;
  const int64_t row = static_cast<int64_t>(stretch * STRETCH + inside % high) * T::ROWS;
  const int64_t column = static_cast<int64_t>(inside / high) * T::COLUMNS;
  int64_t from[2];
  g.batch.place(product, from);

  matrices<T, FOURS> load;
  const int64_t begin = part * g.part;
  const int32_t depth = static_cast<int32_t>(df_min(g.k - begin, g.part));
  load.a.begin(g.a + from[0] + row * g.a_row + begin * g.a_col, g.a_row, g.a_col, g.m - row, depth,
               at.a_along_k);
  load.b.begin(g.b + from[1] + column * g.b_col + begin * g.b_row, g.b_col, g.b_row, g.n - column,
               depth, at.b_along_k);
  float sums[T::DOWN][T::ACROSS] = {};
  df_tile_sum<T>(sums, load, 0, depth);

  const int64_t first_row = row + df_tile_row<T>(), first_column = column + df_tile_column<T>();
  float *parts = at.parts ? at.parts + (part * g.products + product) * g.m * g.n : nullptr;
#pragma unroll
  for (int x = 0; x < T::DOWN; x++) {
    const int64_t i = first_row + df_tile_down(x);
#pragma unroll
    for (int y = 0; y < T::ACROSS; y += 4) {
      const int64_t j = first_column + df_tile_across(y);
      if (i >= g.m || j >= g.n)
        continue;
      const int64_t place = parts ? i * g.n + j : product * g.c_batch + i * g.c_row + j * g.c_col;
      float *to = parts ? parts + place : g.c + place;
      if (at.c_fours) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
          v[e] = parts ? sums[x][y + e] : g.end(sums[x][y + e], i, j + e, place + e);
        *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
        continue;
      }
      const int64_t step = parts ? 1 : g.c_col;
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (j + e < g.n)
          to[e * step] = parts ? sums[x][y + e] : g.end(sums[x][y + e], i, j + e, place + e * step);
    }
  }
}

/* A thread per sum: adds its parts, in their order, and ends it. */
__global__ void __launch_bounds__(DF_BLOCK)
    join_parts(const __grid_constant__ df_gemm g, const float *parts, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count)
    return;
  float sum = 0.0f;
  for (int32_t part = 0; part < g.parts; part++)
    sum += parts[part * count + at];
  const int64_t row = at / g.n, j = at - row * g.n;
  const int64_t product = row / g.m, i = row - product * g.m;
  const int64_t place = product * g.c_batch + i * g.c_row + j * g.c_col;
  g.c[place] = g.end(sum, i, j, place);
}

/* ---- Launching ------------------------------------------------------------------------------ */

/* True when every group of four along the axis of stride 1 lies in 16 aligned bytes. */
static bool is_fours(const float *data, int64_t one, int64_t size, int64_t other,
                     const df_walk<2> &batch, int side) {
  bool even = one == 1 && size % 4 == 0 && other % 4 == 0 && df_is_aligned<4>(data);
  for (int axis = 0; side >= 0 && axis < batch.rank; axis++)
    even = even && batch.strides[side][axis] % 4 == 0;
  return even;
}

template <typename T>
static df_status launch_tile(const df_call *call, const df_gemm *g, float *parts) {
  const int64_t down = df_divide_up(g->m, T::ROWS), across = df_divide_up(g->n, T::COLUMNS);
  const int64_t blocks = down * across * g->parts * g->products;
  if (blocks > INT32_MAX || g->part > INT32_MAX - DF_TILE_DEPTH)
    return df_fail(call, DF_UNSUPPORTED, "a product of %lld tiles, k %lld, is too large",
                   static_cast<long long>(blocks), static_cast<long long>(g->part));
  placement at{};
  at.a_along_k = g->a_col == 1 || (g->a_row != 1 && g->a_col < g->a_row);
  at.b_along_k = g->b_col != 1 && (g->b_row == 1 || g->b_row < g->b_col);
  const bool a_fours = at.a_along_k ? is_fours(g->a, g->a_col, g->k, g->a_row, g->batch, 0)
                                    : is_fours(g->a, g->a_row, g->m, g->a_col, g->batch, 0);
  const bool b_fours = at.b_along_k ? is_fours(g->b, g->b_row, g->k, g->b_col, g->batch, 1)
                                    : is_fours(g->b, g->b_col, g->n, g->b_row, g->batch, 1);
  at.c_fours = parts
                   ? g->n % 4 == 0 && df_is_aligned<4>(parts)
                   : is_fours(g->c, g->c_col, g->n, g->c_row, g->batch, -1) && g->c_batch % 4 == 0;
  at.tiles_down = static_cast<uint32_t>(down);
  at.tiles_across = static_cast<uint32_t>(across);
  at.parts = parts;
  const unsigned grid = static_cast<unsigned>(blocks);
  if (a_fours && b_fours)
    return DF_LAUNCH(call, (multiply<T, true>), grid, T::THREADS, 0, *g, at);
  return DF_LAUNCH(call, (multiply<T, false>), grid, T::THREADS, 0, *g, at);
}

static df_status launch(const df_call *call, const df_gemm *g, float *parts) {
  switch (g->tile) {
  case DF_TILE_LARGE:
    return launch_tile<df_tile_large>(call, g, parts);
  case DF_TILE_SMALL:
    return launch_tile<df_tile_small>(call, g, parts);
  default:
    return launch_tile<df_tile_thin>(call, g, parts);
  }
}

df_status df_gemm_run_parts(const df_call *call, const df_gemm *g, float *parts) {
  return g->m * g->n * g->products == 0 ? df_status(DF_OK) : launch(call, g, parts);
}

df_status df_gemm_run(const df_call *call, const df_gemm *g, void *workspace) {
  const int64_t count = g->products * g->m * g->n;
  if (count == 0)
    return DF_OK;
  if (g->parts == 1)
    return launch(call, g, nullptr);
  float *parts = static_cast<float *>(workspace);
  df_status status = launch(call, g, parts);
  if (status)
    return status;
  return DF_LAUNCH(call, join_parts, df_blocks(count, DF_BLOCK), DF_BLOCK, 0, *g, parts, count);
}

df_status df_gemm_join(const df_call *call, float *out, const float *parts, int32_t n_parts,
                       int64_t count) {
  if (count == 0)
    return DF_OK;
  df_gemm g = df_gemm_of(out, nullptr, nullptr, 1, count, 0);
  g.parts = n_parts;
  return DF_LAUNCH(call, join_parts, df_blocks(count, DF_BLOCK), DF_BLOCK, 0, g, parts, count);
}
