/* attention/tensor.cu: attention on tensor cores, see attention/attention.cu. Operands of both
 * products are rounded by attention/prepack.cu, the weights when they become words; scores, sums
 * and results are float32.
 *
 * Weights aren't divided by the sum so far but by a power of two that is at least the number of
 * keys, which rounds nothing and as little overflows; the sum divides results at the end. */
#include "attention/fragments.h"
#include "attention/prepack.h"
#include "attention/tensor.h"

enum { ROWS = DF_FRAGMENT_TILE_ROWS, NOTED = DF_ATTENTION_NOTED };

/* The number format, what each head is padded to, and the keys of a tile. */
template <typename F_, int HEAD_> struct tiles {
  typedef F_ F;
  static constexpr int HEAD = HEAD_, KEYS = HEAD / F::PER_WORD > 64 ? 32 : 64;
  static constexpr bool KEPT = HEAD / F::PER_WORD <= 64; /* q in registers */
  static constexpr int RESIDENT = HEAD / F::PER_WORD == 32 ? 4 : HEAD == 64 ? 3 : 2; /* blocks */
  static constexpr int ACROSS = KEYS / DF_FRAGMENT_COLUMNS, COLUMNS = HEAD / DF_FRAGMENT_COLUMNS;
  typedef df_fragment_tile<F, ROWS, HEAD> q_tile;
  typedef df_fragment_tile<F, KEYS, HEAD> tile;
  static constexpr int WORDS = q_tile::WORDS + 4 * tile::WORDS;
};

/* Which tiles a block passes over: what is known of the next NOTED lies in shared memory, below
 * which maximum of a row a tile is closed to it (infinity: to none) and whether the mask is 0. */
struct passing {
  const df_attention_prepacked &a;
  float2 *noted;
  int64_t entry;
  int32_t first, last, end;  /* rows of the block, all keys */
  int32_t noted_from, until; /* keys that were looked up */
  bool adds;                 /* whether the mask does something in the tile that was found */

  /* |in| and |number| are the entry's matrices and mask. */
  __device__ __forceinline__ void
  note(int32_t key, const df_attention_matrix (&in)[DF_ATTENTION_OPERANDS], int64_t number) {
    const df_attention_summary &known = a.known;
    const int32_t row = first / DF_ATTENTION_SIDE;
    const float *of_k = known.most[DF_ATTENTION_K] + a.tile_of(in[DF_ATTENTION_K], DF_ATTENTION_K);
    const float *of_v = known.most[DF_ATTENTION_V] + a.tile_of(in[DF_ATTENTION_V], DF_ATTENTION_V);
    const float *of_q = known.most[DF_ATTENTION_Q] + a.tile_of(in[DF_ATTENTION_Q], DF_ATTENTION_Q);
    noted_from = key;
    until = key + NOTED * int{DF_ATTENTION_SIDE};
    for (int i = static_cast<int>(threadIdx.x); i < NOTED; i += DF_FRAGMENT_THREADS) {
      const int32_t tile = key / DF_ATTENTION_SIDE + i;
      if (tile * DF_ATTENTION_SIDE >= end)
        return;
      /* All are read before the first is looked at. */
      const float2 range = known.mask_tile(number, row, tile);
      const float bound = df_attention_bound(a.p, of_q[row], of_k[tile]), most_v = of_v[tile];
      const int closes = (range.y < 0.0f) & (most_v < INFINITY);
      noted[i] = make_float2(closes ? range.y + bound : INFINITY,
                             df_attention_is_open(range) ? 0.0f : 1.0f);
    }
  }

  /* The first of the tiles of KEYS keys from |key| on that is not closed, as far as those that were
   * looked up show. |is_below|(limit): whether one of this limit is closed to the thread's rows. */
  template <int KEYS, typename F>
  __device__ __forceinline__ int32_t next_noted(int32_t key, F is_below) {
    for (; a.known.used && key < end; key += KEYS) {
      adds = true;
      if (key >= until)
        break;
      const float2 found = noted[(key - noted_from) / DF_ATTENTION_SIDE];
      adds = found.y != 0.0f;
      if (!(found.x < INFINITY) || __syncthreads_or(!is_below(found.x)))
        break;
    }
    return key;
  }

  /* The same as far as all show. */
  template <int KEYS, typename F> __device__ __forceinline__ int32_t next(int32_t key, F is_below) {
    for (;;) {
      key = next_noted<KEYS>(key, is_below);
      if (!a.known.used || key >= end || key < until)
        return key;
      df_attention_matrix in[DF_ATTENTION_OPERANDS];
      const int64_t number = a.p.entry(entry, in);
      __syncthreads();
      note(key, in, number);
      __syncthreads();
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(DF_FRAGMENT_THREADS, T::RESIDENT)
    attend_by_fragments(const __grid_constant__ df_attention original,
                        const __grid_constant__ df_attention_prepacked a,
                        const __grid_constant__ df_attention_results r) {
  typedef typename T::tile tile;
  constexpr float LOG2_E = 1.4426950408889634f;
  DF_SHARED(uint32_t, q);
  DF_SHARED_ARRAY(float2, noted, [NOTED]);
  uint32_t *stages = q + T::q_tile::WORDS;
  const df_attention &p = a.p;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP * DF_FRAGMENT_ROWS;
  const int group = df_fragment_group(), pair = df_fragment_in_group() * 2;
  /* The last rows first: with a causal mask they have the most keys. */
  df_attention_results::task task{};
  task.entry = a.entry_of(blockIdx.x, static_cast<uint32_t>(r.tiles * r.splits), &task.tile);
  task.split = task.tile % r.splits;
  task.tile = r.tiles - 1 - task.tile / r.splits;
  task.begin = task.split * r.split_keys;
  task.end = static_cast<int32_t>(df_min(p.n, static_cast<int64_t>(task.begin) + r.split_keys));
  const int32_t first = task.tile * ROWS;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  const int64_t number = p.entry(task.entry, in);
  const df_attention_matrix &mask = in[DF_ATTENTION_MASK];
  const float *keys = in[DF_ATTENTION_K].at, *values = in[DF_ATTENTION_V].at;

  float y[T::COLUMNS][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  T::q_tile::load(q, in[DF_ATTENTION_Q].at + static_cast<int64_t>(first) * T::q_tile::WIDTH);
  const int32_t last = static_cast<int32_t>(df_min(p.m, first + ROWS));
  passing over{a,          noted,      task.entry,
               first,      last,       task.end,
               task.begin, task.begin, p.matrices[DF_ATTENTION_MASK].at != nullptr};
  if (a.known.used) {
    over.note(task.begin, in, number);
    __syncthreads();
  }
  const auto is_below = [&](float limit) {
    bool below = true;
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (first + warp + half * 8 + group < last)
        below = below && df_attention_is_below(limit, 0.0f, most[half]);
    return below;
  };
  /* k and v of a tile are copied while the one before is computed. */
  const auto load = [&](int stage, int32_t key) {
    uint32_t *to = stages + stage * 2 * tile::WORDS;
    tile::load(to, keys + static_cast<int64_t>(key) * tile::WIDTH);
    tile::load(to + tile::WORDS, values + static_cast<int64_t>(key) * tile::WIDTH);
  };
  df_fragment_left<typename T::q_tile, T::KEPT> rows(q + warp * tile::PITCH);
  int stage = 1;
  int32_t from = -1; /* the tile that is there; none at first */
  for (bool adds = false;;) {
    const int32_t after = from < 0 ? task.begin : from + T::KEYS;
    const int32_t following = over.template next<T::KEYS>(after, is_below);
    if (following < task.end)
      load(stage ^ 1, following);
    if (from >= 0) {
      const uint32_t *k = stages + stage * 2 * tile::WORDS, *v = k + tile::WORDS;
      float s[T::ACROSS][4] = {};
      df_fragment_rows(s, rows, k);
      if (adds)
        df_fragment_add(s, mask, mask.fours, first + warp + group, p.m, from + pair, task.end);
      if (from + T::KEYS > task.end) {
#pragma unroll
        for (int j = 0; j < T::ACROSS; j++)
#pragma unroll
          for (int c = 0; c < 4; c++)
            if (from + j * DF_FRAGMENT_COLUMNS + pair + c % 2 >= task.end)
              s[j][c] = -INFINITY;
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float largest = most[half];
#pragma unroll
        for (int j = 0; j < T::ACROSS; j++)
          largest = fmaxf(largest, fmaxf(s[j][half * 2], s[j][half * 2 + 1]));
        largest = df_fragment_join(largest, df_attention_larger{});
        const float base = largest == -INFINITY ? 0.0f : largest;
        const float factor = df_exp2((most[half] - base) * LOG2_E);
        most[half] = largest;
        float total = 0.0f;
#pragma unroll
        for (int j = 0; j < T::ACROSS; j++)
#pragma unroll
          for (int c = half * 2; c < half * 2 + 2; c++) {
            s[j][c] = df_exp2(fmaf(s[j][c] - base, LOG2_E, -r.shift));
            total += s[j][c];
          }
        sum[half] = fmaf(sum[half], factor, total);
#pragma unroll
        for (int j = 0; j < T::COLUMNS; j++) {
          y[j][half * 2] *= factor;
          y[j][half * 2 + 1] *= factor;
        }
      }
      df_fragment_columns<tile>(y, s, v);
    }
    df_async_wait();
    stage ^= 1;
    const bool begins = from < 0;
    from = over.template next_noted<T::KEYS>(following, is_below); /* now the rows may close it */
    if (from != following && from < task.end) {
      __syncthreads();
      load(stage, from);
      df_async_wait();
    }
    __syncthreads();
    if (from >= task.end)
      break;
    adds = over.adds;
    if (begins)
      rows.keep();
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int32_t row = first + warp + half * 8 + group;
    const float total = df_fragment_join(sum[half], df_add{});
    if (row >= p.m)
      continue;
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
    const df_attention_state state{most[half], total * exp2f(r.shift)};
    const df_attention_row own = r.end_row(task, state, p, row, pair == 0);
    if (own.cleared) { /* seldom, so once in the code for all columns */
      const df_attention_matrix v = original.matrices[DF_ATTENTION_V].behind(
          df_attention_offset(original, DF_ATTENTION_V, task.entry));
#pragma unroll 1
      for (int column = pair / 2; column < p.e; column += 4) {
        const float one[1] = {df_attention_of_nothing(v, p.n, column)};
        own.put(column, one, p.e, false);
      }
      continue;
    }
#pragma unroll
    for (int j = 0; j < T::COLUMNS; j++) {
      const int column = j * DF_FRAGMENT_COLUMNS + pair;
      const float result[2] = {fmaf(y[j][half * 2], inverse, own.closed),
                               fmaf(y[j][half * 2 + 1], inverse, own.closed)};
      own.put(column, result, p.e, r.fours);
    }
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T>
static df_status launch(const df_call *call, const df_attention &p, const df_attention_prepacked &a,
                        const df_attention_results &r, int64_t blocks) {
  constexpr int BYTES = T::WORDS * static_cast<int>(sizeof(uint32_t));
  const df_status status = df_attention_allow(call, attend_by_fragments<T>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend_by_fragments<T>), static_cast<unsigned>(blocks),
                   DF_FRAGMENT_THREADS, BYTES, p, a, r);
}

template <typename F>
static df_status launch_format(const df_call *call, const df_attention &p,
                               const df_attention_prepacked &a, const df_attention_results &r,
                               int64_t blocks) {
  return df_max(p.d, p.e) > 64 ? launch<tiles<F, 128>>(call, p, a, r, blocks)
                               : launch<tiles<F, 64>>(call, p, a, r, blocks);
}

df_status df_attention_tensor_run(const df_call *call, const df_attention &p,
                                  const df_attention_prepacked &a, const df_attention_results &r,
                                  int64_t blocks, int32_t precision) {
  return precision == DF_BF16 ? launch_format<df_bf16>(call, p, a, r, blocks)
                              : launch_format<df_tf32>(call, p, a, r, blocks);
}
