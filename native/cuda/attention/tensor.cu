/* attention/tensor.cu: attention on tensor cores, see attention/attention.cu. Operands of both
 * products are rounded once, when their tiles are written to shared memory, the weights when they
 * become words; scores, sums and results are float32. */
#include "attention/fragments.h"
#include "attention/mask.h"
#include "attention/tensor.h"

enum { ROWS = DF_FRAGMENT_TILE_ROWS };

/* The number format, what each head is padded to, and the keys of a tile: few for heads that let
 * more blocks run, so that one computes while another one waits. */
template <typename F_, int HEAD_> struct tiles {
  typedef F_ F;
  static constexpr int HEAD = HEAD_, KEYS = HEAD == 64 ? 32 : 64;
  static constexpr int RESIDENT = HEAD == 64 ? 4 : 2; /* blocks that a multiprocessor shall hold */
  static constexpr int ACROSS = KEYS / DF_FRAGMENT_COLUMNS, COLUMNS = HEAD / DF_FRAGMENT_COLUMNS;
  typedef df_fragment_tile<F, ROWS, HEAD> q_tile;
  typedef df_fragment_tile<F, KEYS, HEAD> tile;
  static constexpr int V_WORDS = tile::SAME ? tile::ROW_WORDS : tile::COLUMN_WORDS;
  typedef df_attention_mask_tile<ROWS, KEYS> mask_tile;
  static constexpr int WORDS = q_tile::ROW_WORDS + tile::ROW_WORDS + V_WORDS + mask_tile::FLOATS;
};

template <typename T>
__global__ void __launch_bounds__(DF_FRAGMENT_THREADS, T::RESIDENT)
    attend_by_fragments(const __grid_constant__ df_attention p,
                        const __grid_constant__ df_attention_results r,
                        const __grid_constant__ df_attention_summary known) {
  typedef typename T::F F;
  typedef typename T::tile tile;
  DF_SHARED(uint32_t, q);
  uint32_t *k = q + T::q_tile::ROW_WORDS, *v = k + tile::ROW_WORDS;
  const int warp = static_cast<int>(threadIdx.x) / DF_WARP * DF_FRAGMENT_ROWS;
  const int group = df_fragment_group(), pair = df_fragment_in_group() * 2;
  const df_attention_results::task task = r.of(blockIdx.x, p.n);
  const int32_t first = task.tile * ROWS;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  const int64_t number = p.entry(task.entry, in);
  const df_attention_matrix &mask = in[DF_ATTENTION_MASK];
  const bool masked = p.matrices[DF_ATTENTION_MASK].at != nullptr;
  float *added_to = reinterpret_cast<float *>(v + T::V_WORDS); /* a tile of the mask */
  const int words = df_fragment_words<F>(p.d);

  float y[T::COLUMNS][4] = {};
  df_attention_state state[2];
  state[0].clear();
  state[1].clear();
  df_fragment_load<F, ROWS, T::HEAD>(q, nullptr, in[DF_ATTENTION_Q], first, p.m);
  const int32_t last = static_cast<int32_t>(df_min(p.m, first + ROWS));
  const float most_q = known.used ? known.most_of(DF_ATTENTION_Q, task.entry, first, last) : 0.0f;
  df_attention_passing passing{p,    known,    task.entry, number, first,
                               last, task.end, most_q,     !masked};
  const auto is_below = [&](float most, float bound) {
    bool below = true;
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (first + warp + half * 8 + group < last)
        below = below && df_attention_is_below(most, bound, state[half].most);
    return below;
  };
  /* A tile is fetched during the product before the one that needs it: v during that of q and k,
   * the next k during that with v. */
  df_fragment_share<F, T::KEYS, T::HEAD> share;
  int32_t from = passing.template next<T::KEYS>(task.begin, is_below); /* the first */
  if (from < task.end) {
    share.fetch(in[DF_ATTENTION_K], from, task.end);
    share.put(k, nullptr, in[DF_ATTENTION_K]);
  }
  __syncthreads();
  while (from < task.end) {
    share.fetch(in[DF_ATTENTION_V], from, task.end);
    const bool adds = !passing.open;
    if (adds)
      T::mask_tile::load(added_to, mask, first, p.m, from, task.end);
    float s[T::ACROSS][4] = {};
    df_fragment_rows<F, tile::ROW_PITCH>(s, q + warp * tile::ROW_PITCH, k, words);
    if (adds) {
      df_async_wait();
      __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float *own = added_to + pair + (warp + half * 8 + group) * T::mask_tile::PITCH;
      float largest = -INFINITY, total = 0.0f;
#pragma unroll
      for (int j = 0; j < T::ACROSS; j++) {
        const int32_t key = from + j * DF_FRAGMENT_COLUMNS + pair;
        float *score = &s[j][half * 2];
        float2 added = make_float2(0.0f, 0.0f);
        if (adds)
          added = *reinterpret_cast<const float2 *>(own + j * DF_FRAGMENT_COLUMNS);
        score[0] = fmaf(score[0], p.scale, added.x);
        score[1] = fmaf(score[1], p.scale, added.y);
        if (from + T::KEYS > task.end) {
          score[0] = key < task.end ? score[0] : -INFINITY;
          score[1] = key + 1 < task.end ? score[1] : -INFINITY;
        }
        largest = fmaxf(largest, fmaxf(score[0], score[1]));
      }
      const float base = state[half].begin(df_fragment_join(largest, df_attention_larger{}));
#pragma unroll
      for (int j = 0; j < T::ACROSS; j++)
#pragma unroll
        for (int c = half * 2; c < half * 2 + 2; c++) {
          s[j][c] = __expf(s[j][c] - base);
          total += s[j][c];
        }
      const float2 factor = state[half].end(df_fragment_join(total, df_add{}));
#pragma unroll
      for (int c = half * 2; c < half * 2 + 2; c++) {
#pragma unroll
        for (int j = 0; j < T::ACROSS; j++)
          s[j][c] *= factor.x;
#pragma unroll
        for (int j = 0; j < T::COLUMNS; j++)
          y[j][c] *= factor.y;
      }
    }
    share.put(nullptr, v, in[DF_ATTENTION_V]);
    from = passing.template next<T::KEYS>(from + T::KEYS, is_below);
    if (from < task.end)
      share.fetch(in[DF_ATTENTION_K], from, task.end);
    __syncthreads();
    df_fragment_columns<F, tile::COLUMN_PITCH>(y, s, v);
    if (from < task.end)
      share.put(k, nullptr, in[DF_ATTENTION_K]);
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int32_t row = first + warp + half * 8 + group;
    if (row >= p.m)
      continue;
    const df_attention_row own = r.end_row(task, state[half], p, row, pair == 0);
    const auto result = [&](float sum, int column) {
      return own.result(sum, in[DF_ATTENTION_V], p.n, column);
    };
#pragma unroll
    for (int j = 0; j < T::COLUMNS; j++) {
      const int column = j * DF_FRAGMENT_COLUMNS + pair;
      const float *sums = &y[j][half * 2];
      if (r.fours && column < p.e)
        *reinterpret_cast<float2 *>(own.to + column) =
            make_float2(result(sums[0], column), result(sums[1], column + 1));
#pragma unroll
      for (int f = 0; f < 2; f++)
        if (!r.fours && column + f < p.e)
          own.to[column + f] = result(sums[f], column + f);
    }
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T>
static df_status launch(const df_call *call, const df_attention &p, const df_attention_results &r,
                        const df_attention_summary &known, int64_t blocks) {
  constexpr int BYTES = T::WORDS * static_cast<int>(sizeof(uint32_t));
  const df_status status = df_attention_allow(call, attend_by_fragments<T>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend_by_fragments<T>), static_cast<unsigned>(blocks),
                   DF_FRAGMENT_THREADS, BYTES, p, r, known);
}

template <typename F>
static df_status launch_format(const df_call *call, const df_attention &p,
                               const df_attention_results &r, const df_attention_summary &known,
                               int64_t blocks) {
  return df_max(p.d, p.e) > 64 ? launch<tiles<F, 128>>(call, p, r, known, blocks)
                               : launch<tiles<F, 64>>(call, p, r, known, blocks);
}

df_status df_attention_tensor_run(const df_call *call, const df_attention &p,
                                  const df_attention_results &r, const df_attention_summary &known,
                                  int64_t blocks, int32_t precision) {
  return precision == DF_BF16 ? launch_format<df_bf16>(call, p, r, known, blocks)
                              : launch_format<df_tf32>(call, p, r, known, blocks);
}
