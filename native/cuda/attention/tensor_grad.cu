/* attention/tensor_grad.cu: the gradient of attention on tensor cores, see attention/grad.cu.
 * Operands of the five products are rounded once, when their tiles are written to shared memory,
 * the weights and their gradients when they become words; all else is float32. */
#include "attention/fragments.h"
#include "attention/mask.h"
#include "attention/tensor.h"

enum { ROWS = DF_FRAGMENT_TILE_ROWS };

/* The number format, what each head is padded to, and the rows of a tile of those that a block
 * passes over: few, so that more blocks run and one computes while another one waits. */
template <typename F_, int HEAD_> struct tiles {
  typedef F_ F;
  static constexpr int HEAD = HEAD_, PASSING = 32;
  static constexpr int RESIDENT = HEAD == 64 ? 3 : 2; /* blocks that a multiprocessor shall hold */
  static constexpr int ACROSS = PASSING / DF_FRAGMENT_COLUMNS;
  static constexpr int COLUMNS = HEAD / DF_FRAGMENT_COLUMNS;
  typedef df_fragment_tile<F, ROWS, HEAD> own;
  typedef df_fragment_tile<F, PASSING, HEAD> passing;
  static constexpr int TILES = 2 * (own::ROW_WORDS + passing::ROW_WORDS + passing::COLUMN_WORDS);
  template <bool KEYS>
  using mask_tile = df_attention_mask_tile<KEYS ? PASSING : ROWS, KEYS ? ROWS : PASSING>;
};

/* Rows of a result of |width| columns, as far as there are |rows|. */
template <int COLUMNS>
static __device__ __forceinline__ void put_rows(float *to, const float (&sums)[COLUMNS][4],
                                                int32_t first, int32_t rows, int32_t width) {
  const bool pairs = width % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 8 == 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int64_t row = first + half * 8 + df_fragment_group();
    if (row >= rows)
      continue;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const int column = j * DF_FRAGMENT_COLUMNS + df_fragment_in_group() * 2;
      const float *result = &sums[j][half * 2];
      float *at = to + row * width + column;
      if (pairs && column < width)
        *reinterpret_cast<float2 *>(at) = make_float2(result[0], result[1]);
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (!pairs && column + f < width)
          at[f] = result[f];
    }
  }
}

/* As attend_grad: a block per tile of keys (KEYS) or of queries of a batch entry. */
template <typename T, bool KEYS>
__global__ void __launch_bounds__(DF_FRAGMENT_THREADS, T::RESIDENT)
    attend_grad_by_fragments(const __grid_constant__ df_attention p,
                             const __grid_constant__ df_attention_gradients g) {
  typedef typename T::F F;
  typedef typename T::passing tile;
  DF_SHARED(uint32_t, own); /* q and dy, or k and v, of the tile */
  uint32_t *own_2 = own + T::own::ROW_WORDS, *passing = own_2 + T::own::ROW_WORDS;
  uint32_t *passing_2 = passing + tile::ROW_WORDS, *columns_of = passing_2 + tile::ROW_WORDS;
  uint32_t *columns_of_2 = columns_of + tile::COLUMN_WORDS;
  if (tile::SAME) {
    columns_of = passing;
    columns_of_2 = passing_2;
  }
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP * DF_FRAGMENT_ROWS;
  const int group = df_fragment_group(), pair = df_fragment_in_group() * 2;
  const int32_t rows = KEYS ? p.n : p.m, columns = KEYS ? p.m : p.n;
  const uint32_t blocks = static_cast<uint32_t>((rows + ROWS - 1) / ROWS);
  const int64_t entry = blockIdx.x / blocks;
  const int32_t first = static_cast<int32_t>(blockIdx.x % blocks) * ROWS;
  const float *logsum = g.logsum + entry * p.m;
  float *delta = g.delta + entry * p.m;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  const int64_t number = p.entry(entry, in);
  const df_attention_matrix &q = in[DF_ATTENTION_Q], &k = in[DF_ATTENTION_K];
  const df_attention_matrix &v = in[DF_ATTENTION_V], &dy = in[DF_ATTENTION_DY];
  const df_attention_matrix &y = in[DF_ATTENTION_Y], &mask = in[DF_ATTENTION_MASK];
  const bool masked = p.matrices[DF_ATTENTION_MASK].at != nullptr;
  typedef typename T::template mask_tile<KEYS> mask_tile;
  float *added_to = reinterpret_cast<float *>(own + T::TILES); /* a tile of the mask */
  const int d = df_fragment_words<F>(p.d), e = df_fragment_words<F>(p.e);

  df_fragment_load<F, ROWS, T::HEAD>(own, nullptr, KEYS ? k : q, first, rows);
  df_fragment_load<F, ROWS, T::HEAD>(own_2, nullptr, KEYS ? v : dy, first, rows);
  float row_sum[2] = {}, row_delta[2] = {}; /* of queries */
  if constexpr (!KEYS) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int32_t row = first + warp + half * 8 + group;
      if (row < rows) {
        for (int c = df_fragment_in_group(); c < p.e; c += 4)
          row_delta[half] = fmaf(dy.at[row * dy.row + c * dy.column],
                                 y.at[row * y.row + c * y.column], row_delta[half]);
        row_sum[half] = logsum[row];
      }
      row_delta[half] = df_fragment_join(row_delta[half], df_add{});
      if (row < rows && pair == 0)
        delta[row] = row_delta[half];
    }
  }

  float sums[T::COLUMNS][4] = {}, sums_2[KEYS ? T::COLUMNS : 1][4] = {};
  for (int32_t from = 0; from < columns; from += T::PASSING) {
    bool adds = masked;
    if (g.tiles.used) {
      const int32_t query = KEYS ? from : first, key = KEYS ? first : from;
      const int32_t query_end =
          static_cast<int32_t>(df_min(p.m, query + (KEYS ? int{T::PASSING} : int{ROWS})));
      const int32_t key_end =
          static_cast<int32_t>(df_min(p.n, key + (KEYS ? int{ROWS} : int{T::PASSING})));
      const float2 range = g.tiles.mask_of(number, query, query_end, key, key_end);
      adds = !df_attention_is_open(range);
      if (range.y < 0.0f && g.is_closed(p, entry, range.y, query, query_end, key, key_end))
        continue;
    }
    df_fragment_load<F, T::PASSING, T::HEAD>(passing, columns_of, KEYS ? q : k, from, columns);
    df_fragment_load<F, T::PASSING, T::HEAD>(passing_2, KEYS ? columns_of_2 : nullptr,
                                             KEYS ? dy : v, from, columns);
    if (adds)
      mask_tile::load(added_to, mask, KEYS ? from : first, p.m, KEYS ? first : from, p.n);
    df_async_wait();
    __syncthreads();
    float s[T::ACROSS][4] = {}, ds[T::ACROSS][4] = {};
    df_fragment_rows<F, tile::ROW_PITCH>(s, own + warp * tile::ROW_PITCH, passing, d);
    df_fragment_rows<F, tile::ROW_PITCH>(ds, own_2 + warp * tile::ROW_PITCH, passing_2, e);
    const bool edge = first + ROWS > rows || from + T::PASSING > columns;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp + half * 8 + group;
#pragma unroll
      for (int j = 0; j < T::ACROSS; j++)
#pragma unroll
        for (int f = 0; f < 2; f++) {
          const int column = j * DF_FRAGMENT_COLUMNS + pair + f;
          const int query = KEYS ? column : row, key = KEYS ? row : column;
          const bool there = !edge || (first + row < rows && from + column < columns);
          const float added = adds ? added_to[query * mask_tile::PITCH + key] : 0.0f;
          const float base = !KEYS ? row_sum[half] : there ? logsum[from + column] : 0.0f;
          const float mean = !KEYS ? row_delta[half] : there ? delta[from + column] : 0.0f;
          float &weight = s[j][half * 2 + f], &error = ds[j][half * 2 + f];
          weight = there ? __expf(fmaf(weight, p.scale, added) - base) : 0.0f;
          if (p.safe)
            weight = fmaxf(weight, 0.0f); /* which leaves a NaN out */
          error = there ? weight * (error - mean) * p.scale : 0.0f;
        }
    }
    if constexpr (KEYS)
      df_fragment_columns<F, tile::COLUMN_PITCH>(sums_2, s, columns_of_2);
    df_fragment_columns<F, tile::COLUMN_PITCH>(sums, ds, columns_of);
    __syncthreads();
  }
  put_rows(KEYS ? g.dk + entry * p.n * p.d : g.dq + entry * p.m * p.d, sums, first + warp, rows,
           p.d);
  if constexpr (KEYS)
    put_rows(g.dv + entry * p.n * p.e, sums_2, first + warp, rows, p.e);
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T, bool KEYS>
static df_status launch(const df_call *call, const df_attention &p, const df_attention_gradients &g,
                        int64_t batch) {
  constexpr int BYTES =
      (T::TILES + T::template mask_tile<KEYS>::FLOATS) * static_cast<int>(sizeof(uint32_t));
  const int64_t blocks = df_divide_up(KEYS ? p.n : p.m, ROWS) * batch;
  if (blocks == 0)
    return DF_OK;
  const df_status status =
      df_attention_allow(call, attend_grad_by_fragments<T, KEYS>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend_grad_by_fragments<T, KEYS>), static_cast<unsigned>(blocks),
                   DF_FRAGMENT_THREADS, BYTES, p, g);
}

template <typename T>
static df_status launch_both(const df_call *call, const df_attention &p,
                             const df_attention_gradients &g, int64_t batch) {
  const df_status status = launch<T, false>(call, p, g, batch);
  return status ? status : launch<T, true>(call, p, g, batch);
}

template <typename F>
static df_status launch_format(const df_call *call, const df_attention &p,
                               const df_attention_gradients &g, int64_t batch) {
  return df_max(p.d, p.e) > 64 ? launch_both<tiles<F, 128>>(call, p, g, batch)
                               : launch_both<tiles<F, 64>>(call, p, g, batch);
}

df_status df_attention_tensor_grad_run(const df_call *call, const df_attention &p,
                                       const df_attention_gradients &g, int64_t batch,
                                       int32_t precision) {
  return precision == DF_BF16 ? launch_format<df_bf16>(call, p, g, batch)
                              : launch_format<df_tf32>(call, p, g, batch);
}
