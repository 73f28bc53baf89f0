/* gemm/gemm.cu: see gemm/gemm.h. A block per tile of the result, split of k and product of the
 * batch. */
#include "gemm/gemm.h"
#include "gemm/tile.h"

enum {
  FILL = 264,          /* blocks that keep a large card busy: two for each of 132 multiprocessors */
  LEAST_SPLIT_K = 128, /* of k, worth a block */
  MOST_SPLITS = FILL,
  FEW_SPLITS = 4,
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
 * splits if need be, and little of them lies outside. */
df_gemm_tiling df_gemm_tiling_of(int64_t m, int64_t n, int64_t k, int64_t products) {
  df_gemm_tiling tiling{DF_TILE_SMALL, 1, df_max(k, 1)};
  const int64_t large = tiles_of(DF_TILE_LARGE, m, n);
  const int64_t few = df_max(1, df_min(FEW_SPLITS, k / (2 * LEAST_SPLIT_K)));
  if (m <= THIN)
    tiling.tile = DF_TILE_THIN;
  else if (large * products * few >= FILL / 2 && m * n * 4 >= large * 128 * 128 * 3)
    tiling.tile = DF_TILE_LARGE;
  const int64_t blocks = df_max(1, tiles_of(tiling.tile, m, n) * products);
  if (blocks * 2 <= FILL) {
    int64_t splits = df_min(df_min(FILL / blocks, MOST_SPLITS), k / LEAST_SPLIT_K);
    if (splits > 1) {
      tiling.split_k = df_divide_up(df_divide_up(k, splits), DF_TILE_DEPTH) * DF_TILE_DEPTH;
      tiling.splits = static_cast<int32_t>(df_divide_up(k, tiling.split_k));
    }
  }
  return tiling;
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
static void swap_operands(df_gemm *g) {
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
    swap_operands(g);
  const df_gemm_tiling tiling = df_gemm_tiling_of(g->m, g->n, g->k, g->products);
  g->tile = tiling.tile;
  g->splits = tiling.splits;
  g->split_k = tiling.split_k;
}

int64_t df_gemm_workspace(const df_gemm *g) {
  return g->splits > 1 ? g->splits * g->products * g->m * g->n * static_cast<int64_t>(sizeof(float))
                       : 0;
}

/* ---- The kernels ---------------------------------------------------------------------------- */

/* What of a df_gemm depends on where its matrices lie. */
struct placement {
  bool a_along_k, b_along_k, c_fours;
  uint32_t tiles_down, tiles_across;
  float *partials; /* null: the sums are ended and stored in c */
};

template <typename T, bool FOURS> struct matrices {
  df_factor<T, T::ROWS, FOURS> a;
  df_factor<T, T::COLUMNS, FOURS> b;
  __device__ __forceinline__ void fetch_a(float (&v)[df_share<T, T::ROWS>::CAPACITY], int64_t k) {
    a.fetch(v, k);
  }
  __device__ __forceinline__ void fetch_b(float (&v)[df_share<T, T::COLUMNS>::CAPACITY],
                                          int64_t k) {
    b.fetch(v, k);
  }
  __device__ __forceinline__ void store_a(float *to,
                                          const float (&v)[df_share<T, T::ROWS>::CAPACITY]) const {
    a.store(to, v);
  }
  __device__ __forceinline__ void
  store_b(float *to, const float (&v)[df_share<T, T::COLUMNS>::CAPACITY]) const {
    b.store(to, v);
  }
};

template <typename T, bool FOURS>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT)
    multiply(const __grid_constant__ df_gemm g, const __grid_constant__ placement at) {
  const uint32_t tiles = at.tiles_down * at.tiles_across;
  const uint32_t tile = blockIdx.x % tiles, rest = blockIdx.x / tiles;
  const uint32_t split = rest % static_cast<uint32_t>(g.splits);
  const int64_t product = rest / static_cast<uint32_t>(g.splits);
  const uint32_t stretch = tile / (STRETCH * at.tiles_across);
  const uint32_t down = at.tiles_down - stretch * STRETCH;
  const uint32_t high = down < STRETCH ? down : static_cast<uint32_t>(STRETCH);
  const uint32_t inside = tile - stretch * STRETCH * at.tiles_across;
  const int64_t row = static_cast<int64_t>(stretch * STRETCH + inside % high) * T::ROWS;
  const int64_t column = static_cast<int64_t>(inside / high) * T::COLUMNS;
  int64_t from[2];
  g.batch.offsets(product, from);

  matrices<T, FOURS> load;
  const int64_t begin = split * g.split_k;
  const int32_t depth = static_cast<int32_t>(df_min(g.k - begin, g.split_k));
  load.a.begin(g.a + from[0] + row * g.a_row + begin * g.a_col, g.a_row, g.a_col, g.m - row, depth,
               at.a_along_k);
  load.b.begin(g.b + from[1] + column * g.b_col + begin * g.b_row, g.b_col, g.b_row, g.n - column,
               depth, at.b_along_k);
  float sums[T::DOWN][T::ACROSS] = {};
  df_tile_sum<T>(sums, load, 0, depth);

  const int64_t first_row = row + df_tile_row<T>(), first_column = column + df_tile_column<T>();
  float *partials =
      at.partials ? at.partials + (split * g.products + product) * g.m * g.n : nullptr;
#pragma unroll
  for (int x = 0; x < T::DOWN; x++) {
    const int64_t i = first_row + df_tile_down(x);
#pragma unroll
    for (int y = 0; y < T::ACROSS; y += 4) {
      const int64_t j = first_column + df_tile_across(y);
      if (i >= g.m || j >= g.n)
        continue;
      const int64_t offset =
          partials ? i * g.n + j : product * g.c_batch + i * g.c_row + j * g.c_col;
      float *to = partials ? partials + offset : g.c + offset;
      if (at.c_fours) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
          v[e] = partials ? sums[x][y + e] : g.end(sums[x][y + e], i, j + e, offset + e);
        *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
        continue;
      }
      const int64_t step = partials ? 1 : g.c_col;
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (j + e < g.n)
          to[e * step] =
              partials ? sums[x][y + e] : g.end(sums[x][y + e], i, j + e, offset + e * step);
    }
  }
}

/* A thread per sum: adds its partial sums, in their order, and ends it. */
__global__ void __launch_bounds__(DF_BLOCK)
    sum_partials(const __grid_constant__ df_gemm g, const float *partials, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count)
    return;
  float sum = 0.0f;
#pragma unroll 8 /* loaded together, added in order */
  for (int32_t split = 0; split < g.splits; split++)
    sum += partials[split * count + at];
  const int64_t row = at / g.n, j = at - row * g.n;
  const int64_t product = row / g.m, i = row - product * g.m;
  const int64_t offset = product * g.c_batch + i * g.c_row + j * g.c_col;
  g.c[offset] = g.end(sum, i, j, offset);
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
static df_status launch_tile(const df_call *call, const df_gemm *g, float *partials) {
  const int64_t down = df_divide_up(g->m, T::ROWS), across = df_divide_up(g->n, T::COLUMNS);
  const int64_t blocks = down * across * g->splits * g->products;
  if (blocks > INT32_MAX || g->split_k > INT32_MAX - DF_TILE_DEPTH)
    return df_fail(call, DF_UNSUPPORTED, "a product of %lld tiles, k %lld, is too large",
                   static_cast<long long>(blocks), static_cast<long long>(g->split_k));
  placement at{};
  at.a_along_k = g->a_col == 1 || (g->a_row != 1 && g->a_col < g->a_row);
  at.b_along_k = g->b_col != 1 && (g->b_row == 1 || g->b_row < g->b_col);
  const bool a_fours = at.a_along_k ? is_fours(g->a, g->a_col, g->k, g->a_row, g->batch, 0)
                                    : is_fours(g->a, g->a_row, g->m, g->a_col, g->batch, 0);
  const bool b_fours = at.b_along_k ? is_fours(g->b, g->b_row, g->k, g->b_col, g->batch, 1)
                                    : is_fours(g->b, g->b_col, g->n, g->b_row, g->batch, 1);
  at.c_fours = partials
                   ? g->n % 4 == 0 && df_is_aligned<4>(partials)
                   : is_fours(g->c, g->c_col, g->n, g->c_row, g->batch, -1) && g->c_batch % 4 == 0;
  at.tiles_down = static_cast<uint32_t>(down);
  at.tiles_across = static_cast<uint32_t>(across);
  at.partials = partials;
  const unsigned grid = static_cast<unsigned>(blocks);
  if (a_fours && b_fours)
    return DF_LAUNCH(call, (multiply<T, true>), grid, T::THREADS, 0, *g, at);
  return DF_LAUNCH(call, (multiply<T, false>), grid, T::THREADS, 0, *g, at);
}

static df_status launch(const df_call *call, const df_gemm *g, float *partials) {
  switch (g->tile) {
  case DF_TILE_LARGE:
    return launch_tile<df_tile_large>(call, g, partials);
  case DF_TILE_SMALL:
    return launch_tile<df_tile_small>(call, g, partials);
  default:
    return launch_tile<df_tile_thin>(call, g, partials);
  }
}

df_status df_gemm_run_partials(const df_call *call, const df_gemm *g, float *partials) {
  return g->m * g->n * g->products == 0 ? df_status(DF_OK) : launch(call, g, partials);
}

df_status df_gemm_run(const df_call *call, const df_gemm *g, void *workspace) {
  const int64_t count = g->products * g->m * g->n;
  if (count == 0)
    return DF_OK;
  if (g->splits == 1)
    return launch(call, g, nullptr);
  float *partials = static_cast<float *>(workspace);
  df_status status = launch(call, g, partials);
  if (status)
    return status;
  return DF_LAUNCH(call, sum_partials, df_blocks(count, DF_BLOCK), DF_BLOCK, 0, *g, partials,
                   count);
}

df_status df_gemm_join(const df_call *call, float *out, const float *partials, int32_t splits,
                       int64_t count) {
  if (count == 0)
    return DF_OK;
  df_gemm g = df_gemm_of(out, nullptr, nullptr, 1, count, 0);
  g.splits = splits;
  return DF_LAUNCH(call, sum_partials, df_blocks(count, DF_BLOCK), DF_BLOCK, 0, g, partials, count);
}
