/* attention/tensor_grad.cu: the gradients of attention on tensor cores, see attention/grad.cu.
 * Operands of products are rounded by attention/prepack.cu, weights when they become words; all
 * else is float32. One launch has the blocks of both kernels, those of keys first: they have four
 * of the seven products. */
#include "attention/fragments.h"
#include "attention/prepack.h"
#include "attention/tensor.h"

enum { ROWS = DF_FRAGMENT_TILE_ROWS, NOTED = DF_ATTENTION_NOTED };
static_assert(int{ROWS} == int{df_attention_sums::ROWS},
              "sums are of the rows of a warp of such a tile");
enum : uint8_t { CLOSED, OPEN, ADDS }; /* what a mask does to a tile */

/* The number format, what each head is padded to, and the rows of a tile of those that a block
 * passes over. */
template <typename F_, int HEAD_> struct tiles {
  typedef F_ F;
  static constexpr int HEAD = HEAD_, WIDTH = HEAD / F::PER_WORD;
  static constexpr int PASSING = WIDTH > 64 ? 16 : WIDTH > 32 ? 32 : 64;
  static constexpr int RESIDENT = WIDTH == 32 ? 3 : WIDTH == 64 ? 2 : 1; /* blocks */
  static constexpr int ACROSS = PASSING / DF_FRAGMENT_COLUMNS, COLUMNS = HEAD / DF_FRAGMENT_COLUMNS;
  typedef df_fragment_tile<F, ROWS, HEAD> own;
  typedef df_fragment_tile<F, PASSING, HEAD> passing;
  static constexpr int STAGE = 2 * passing::WORDS + 2 * PASSING; /* with a float2 per row */
  static constexpr int WORDS = 2 * own::WORDS + 2 * STAGE;
};

/* Writes what the calling warp has of a result, times |scale|: rows from |first| on, as far as
 * there are |rows|; and their sum to |sum|, if somebody wants it. It goes through shared memory,
 * behind which both are loops of little code: each block runs it once, and what isn't in the cache
 * of instructions takes longer to come than to run. */
template <typename T>
static __device__ __forceinline__ void finish_rows(const df_attention_result &to, float *sum,
                                                   const float (&sums)[T::COLUMNS][4], float scale,
                                                   int32_t first, int32_t rows, uint32_t *shared) {
  constexpr int FOURS = T::HEAD / 4, PITCH = T::HEAD + 8; /* for other banks of each row */
  static_assert(DF_FRAGMENT_TILE_ROWS * PITCH <= T::WORDS, "a tile of floats fits");
  const int lane = df_fragment_lane(), warp = static_cast<int>(threadIdx.x) / DF_WARP;
  float *staged = reinterpret_cast<float *>(shared) + warp * DF_FRAGMENT_ROWS * PITCH;
  float *at = staged + df_fragment_group() * PITCH + df_fragment_in_group() * 2;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < T::COLUMNS; j++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<float2 *>(at + half * 8 * PITCH + j * DF_FRAGMENT_COLUMNS) =
          make_float2(sums[j][half * 2] * scale, sums[j][half * 2 + 1] * scale);
  __syncwarp();
  const int32_t there = rows - first < DF_FRAGMENT_ROWS ? rows - first : int{DF_FRAGMENT_ROWS};
  const bool groups = to.has_groups<4>();
#pragma unroll 2
  for (int i = lane; i < DF_FRAGMENT_ROWS * FOURS; i += DF_WARP) {
    const int row = i / FOURS, column = i % FOURS * 4;
    const float4 own = *reinterpret_cast<const float4 *>(staged + row * PITCH + column);
    const float four[4] = {own.x, own.y, own.z, own.w};
    if (row < there)
      to.put(first + row, column, four, groups);
  }
  for (int column = lane; sum && column < to.width; column += DF_WARP) {
    float total = 0.0f;
#pragma unroll 4
    for (int row = 0; row < DF_FRAGMENT_ROWS; row++)
      total += row < there ? staged[row * PITCH + column] : 0.0f;
    sum[column] = total;
  }
}

/* What a mask does to the tiles that a block passes over, of queries (KEYS) or of keys; what is
 * known of the next NOTED lies in shared memory. */
template <bool KEYS> struct passing {
  const df_attention_prepacked &a;
  uint8_t *noted;
  int64_t entry;
  int32_t own, columns, from, until; /* the block's tile; all columns, those that were looked up */

  /* |in| and |number| are the entry's matrices and mask. */
  __device__ __forceinline__ void
  note(int32_t first, const df_attention_matrix (&in)[DF_ATTENTION_OPERANDS], int64_t number) {
    constexpr float FINITE = 1e38f; /* for sums of so many products */
    const df_attention_summary &known = a.known;
    const int64_t of_q = a.tile_of(in[DF_ATTENTION_Q], DF_ATTENTION_Q);
    const int64_t of_k = a.tile_of(in[DF_ATTENTION_K], DF_ATTENTION_K);
    const int64_t of_v = a.tile_of(in[DF_ATTENTION_V], DF_ATTENTION_V);
    const int64_t of_dy = a.tile_of(in[DF_ATTENTION_DY], DF_ATTENTION_DY);
    from = first;
    until = first + NOTED * int{DF_ATTENTION_SIDE};
    for (int i = static_cast<int>(threadIdx.x); i < NOTED; i += DF_FRAGMENT_THREADS) {
      const int32_t other = first / DF_ATTENTION_SIDE + i;
      if (other * DF_ATTENTION_SIDE >= columns)
        return;
      const int32_t query = KEYS ? other : own, key = KEYS ? own : other;
      /* All are read before the first is looked at. */
      const float2 range = known.mask_tile(number, query, key);
      const int64_t row = of_dy + query;
      const float most_q = known.most[DF_ATTENTION_Q][of_q + query];
      const float most_k = known.most[DF_ATTENTION_K][of_k + key];
      const float most_v = known.most[DF_ATTENTION_V][of_v + key];
      const float most_dy = known.most[DF_ATTENTION_DY][row] * static_cast<float>(a.p.e);
      const float most_delta = known.most[DF_ATTENTION_Y][row], least = known.least[row];
      const float bound = df_attention_bound(a.p, most_q, most_k);
      const int closed = (range.y < 0.0f) & (most_dy * most_v < FINITE) & (most_delta < FINITE) &
                         df_attention_is_below(range.y, bound, least);
      noted[i] = closed ? CLOSED : df_attention_is_open(range) ? OPEN : ADDS;
    }
  }

  __device__ __forceinline__ uint8_t found(int32_t column) const {
    return noted[(column - from) / DF_ATTENTION_SIDE];
  }

  /* The first of the tiles of STEP columns from |column| on that is not closed. */
  template <int STEP> __device__ __forceinline__ int32_t next(int32_t column) {
    for (; a.known.used && column < columns; column += STEP) {
      if (column >= until) {
        df_attention_matrix in[DF_ATTENTION_OPERANDS];
        const int64_t number = a.p.entry(entry, in);
        __syncthreads();
        note(column, in, number);
        __syncthreads();
      }
      if (found(column) != CLOSED)
        break;
    }
    return column;
  }
};

/* Tile |tile| of keys (KEYS) or of queries of a batch entry. */
template <typename T, bool KEYS>
static __device__ __forceinline__ void
gradients_of(const df_attention_prepacked &a, const df_attention_gradients &g, int64_t entry,
             int32_t own_tile, uint32_t *own, uint8_t *noted) {
  typedef typename T::passing tile;
  constexpr float LOG2_E = 1.4426950408889634f;
  const df_attention &p = a.p;
  uint32_t *own_2 = own + T::own::WORDS, *stages = own_2 + T::own::WORDS;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP * DF_FRAGMENT_ROWS;
  const int group = df_fragment_group(), pair = df_fragment_in_group() * 2;
  const int32_t rows = KEYS ? p.n : p.m, columns = KEYS ? p.m : p.n, first = own_tile * ROWS;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  const int64_t number = p.entry(entry, in);
  df_attention_matrix mask = in[DF_ATTENTION_MASK];
  const float2 *queries =
      a.queries + a.tile_of(in[DF_ATTENTION_DY], DF_ATTENTION_DY) * DF_ATTENTION_SIDE;
  const float *left = in[KEYS ? DF_ATTENTION_K : DF_ATTENTION_Q].at;
  const float *left_2 = in[KEYS ? DF_ATTENTION_V : DF_ATTENTION_DY].at;
  const float *right = in[KEYS ? DF_ATTENTION_Q : DF_ATTENTION_K].at;
  const float *right_2 = in[KEYS ? DF_ATTENTION_DY : DF_ATTENTION_V].at;
  if (KEYS) { /* the transpose */
    mask.row = in[DF_ATTENTION_MASK].column;
    mask.column = in[DF_ATTENTION_MASK].row;
  }

  T::own::load(own, left + static_cast<int64_t>(first) * T::WIDTH);
  T::own::load(own_2, left_2 + static_cast<int64_t>(first) * T::WIDTH);
  const auto load = [&](int stage, int32_t from) {
    uint32_t *to = stages + stage * T::STAGE;
    tile::load(to, right + static_cast<int64_t>(from) * T::WIDTH);
    tile::load(to + tile::WORDS, right_2 + static_cast<int64_t>(from) * T::WIDTH);
    const int thread = static_cast<int>(threadIdx.x);
    if (KEYS && thread < T::PASSING / 2)
      df_async_four(reinterpret_cast<float *>(to + 2 * tile::WORDS) + thread * 4,
                    reinterpret_cast<const float *>(queries + from) + thread * 4, true);
  };
  passing<KEYS> over{a, noted, entry, own_tile, columns, 0, 0};
  if (a.known.used) {
    over.note(0, in, number);
    __syncthreads();
  }
  float2 row_of[2] = {}; /* logsum and delta of queries */
  if constexpr (!KEYS)
    for (int half = 0; half < 2; half++)
      row_of[half] = queries[first + warp + half * 8 + group];

  float sums[T::COLUMNS][4] = {}, sums_2[KEYS ? T::COLUMNS : 1][4] = {};
  df_fragment_left<typename T::own, false> lefts(own + warp * tile::PITCH);
  df_fragment_left<typename T::own, false> lefts_2(own_2 + warp * tile::PITCH);
  int stage = 1;
  int32_t from = -1; /* the tile that is there; none at first */
  for (bool adds = false;;) {
    const int32_t following = over.template next<T::PASSING>(from < 0 ? 0 : from + T::PASSING);
    if (following < columns)
      load(stage ^ 1, following);
    if (from >= 0) {
      const uint32_t *b_tile = stages + stage * T::STAGE, *b_tile_2 = b_tile + tile::WORDS;
      const float4 *of_queries = reinterpret_cast<const float4 *>(b_tile_2 + tile::WORDS);
      const bool edge = first + ROWS > rows || from + T::PASSING > columns;
      float s[T::ACROSS][4] = {}, ds[T::ACROSS][4] = {};
      df_fragment_rows(s, lefts, b_tile);
      df_fragment_rows(ds, lefts_2, b_tile_2);
      const int32_t row = first + warp + group, column = from + pair;
      if (adds)
        df_fragment_add(s, mask, !KEYS && mask.fours, row, rows, column, columns);
#pragma unroll
      for (int j = 0; j < T::ACROSS; j++) {
        float4 two = {}; /* queries */
        if constexpr (KEYS)
          two = of_queries[pair / 2 + j * DF_FRAGMENT_COLUMNS / 2];
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const float base = !KEYS ? row_of[c / 2].x : c % 2 ? two.z : two.x;
          const float mean = !KEYS ? row_of[c / 2].y : c % 2 ? two.w : two.y;
          float &weight = s[j][c], &error = ds[j][c];
          weight = df_exp2((weight - base) * LOG2_E);
          if (p.safe)
            weight = fmaxf(weight, 0.0f); /* which leaves a NaN out */
          error = weight * (error - mean);
        }
      }
      if (edge) {
#pragma unroll
        for (int j = 0; j < T::ACROSS; j++)
#pragma unroll
          for (int c = 0; c < 4; c++)
            if (row + c / 2 * 8 >= rows || column + j * DF_FRAGMENT_COLUMNS + c % 2 >= columns)
              s[j][c] = ds[j][c] = 0.0f;
      }
      if constexpr (KEYS)
        df_fragment_columns<tile>(sums_2, s, b_tile_2);
      df_fragment_columns<tile>(sums, ds, b_tile);
    }
    df_async_wait();
    __syncthreads();
    if (following >= columns)
      break;
    adds = a.known.used ? over.found(following) == ADDS : mask.at != nullptr;
    stage ^= 1;
    from = following;
  }
  df_attention_result out[3];
  g.entry(entry, out);
  const auto sum_of = [&](int result) {
    return g.sums.at ? g.sums.of(entry, own_tile, result) : nullptr;
  };
  /* q has the scale in it. */
  finish_rows<T>(out[KEYS ? 1 : 0], sum_of(KEYS ? 1 : 0), sums, KEYS ? 1.0f : a.scale, first + warp,
                 rows, own);
  if constexpr (KEYS)
    finish_rows<T>(out[2], sum_of(2), sums_2, 1.0f, first + warp, rows, own);
}

/* Blocks of keys first, and of both those which a causal mask leaves the most. */
template <typename T>
__global__ void __launch_bounds__(DF_FRAGMENT_THREADS, T::RESIDENT)
    attend_grad_by_fragments(const __grid_constant__ df_attention_prepacked a,
                             const __grid_constant__ df_attention_gradients g) {
  DF_SHARED(uint32_t, own);
  DF_SHARED_ARRAY(uint8_t, noted, [NOTED]);
  const int32_t down = (a.p.m + ROWS - 1) / ROWS, across = (a.p.n + ROWS - 1) / ROWS;
  const uint32_t of_keys = static_cast<uint32_t>(across) * a.batch;
  int32_t tile;
  if (blockIdx.x < of_keys) {
    const int64_t entry = a.entry_of(blockIdx.x, static_cast<uint32_t>(across), &tile);
    gradients_of<T, true>(a, g, entry, tile, own, noted);
  } else {
    const int64_t entry = a.entry_of(blockIdx.x - of_keys, static_cast<uint32_t>(down), &tile);
    gradients_of<T, false>(a, g, entry, down - 1 - tile, own, noted);
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T>
static df_status launch(const df_call *call, const df_attention_prepacked &a,
                        const df_attention_gradients &g) {
  constexpr int BYTES = T::WORDS * static_cast<int>(sizeof(uint32_t));
  const int64_t blocks = (df_divide_up(a.p.n, ROWS) + df_divide_up(a.p.m, ROWS)) * int64_t(a.batch);
  if (blocks == 0)
    return DF_OK;
  const df_status status = df_attention_allow(call, attend_grad_by_fragments<T>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend_grad_by_fragments<T>), static_cast<unsigned>(blocks),
                   DF_FRAGMENT_THREADS, BYTES, a, g);
}

template <typename F>
static df_status launch_format(const df_call *call, const df_attention_prepacked &a,
                               const df_attention_gradients &g) {
  return df_max(a.p.d, a.p.e) > 64 ? launch<tiles<F, 128>>(call, a, g)
                                   : launch<tiles<F, 64>>(call, a, g);
}

df_status df_attention_tensor_grad_run(const df_call *call, const df_attention_prepacked &a,
                                       const df_attention_gradients &g, int32_t precision) {
  return precision == DF_BF16 ? launch_format<df_bf16>(call, a, g)
                              : launch_format<df_tf32>(call, a, g);
}
