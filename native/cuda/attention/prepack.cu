/* attention/prepack.cu: see attention/prepack.h. */
#include "attention/prepack.h"
#include "attention/summary.h"
#include "gemm/mma.h"

enum {
  ROWS = DF_ATTENTION_SIDE,
  L2 = 16 << 20, /* bytes of keys and values that stay in L2 */
  MOST_SPLITS = 64
};

/* Columns that each head is padded to. */
static inline int32_t head_of(int64_t d, int64_t e) { return df_max(d, e) > 64 ? 128 : 64; }

/* ---- The kernel ----------------------------------------------------------------------------- */

struct sources {
  df_attention_source of[DF_ATTENTION_OPERANDS];
  df_attention_matrix y; /* beside dy */
  const float *logsum;
  float2 *queries;
  int64_t masks; /* tiles of masks to summarize */
};

/* What a thread has of a tile: four neighbours in each of |PASSES| rows. */
template <int HEAD, bool HALVES> struct share {
  static constexpr int ACROSS = HEAD / 4, STEP = DF_ATTENTION_BLOCK / ACROSS, PASSES = ROWS / STEP;

  static __device__ __forceinline__ void position(bool down, int pass, int *row, int *column) {
    const int index = static_cast<int>(threadIdx.x) + pass * DF_ATTENTION_BLOCK;
    *row = down ? index % ROWS : index / ACROSS;
    *column = (down ? index / ROWS : index % ACROSS) * 4;
  }

  /* Rows of |x|, which begins with the first, zeros behind the last of |rows| and behind each. */
  static __device__ __forceinline__ void fetch(float (&v)[PASSES][4], const df_attention_matrix &x,
                                               bool down, int32_t rows) {
    if (HALVES && x.halves)
      fetch_from(v, reinterpret_cast<const uint16_t *>(x.at), x, down, rows);
    else
      fetch_from(v, x.at, x, down, rows);
  }

  template <typename T>
  static __device__ __forceinline__ void fetch_from(float (&v)[PASSES][4], const T *at,
                                                    const df_attention_matrix &x, bool down,
                                                    int32_t rows) {
    if (x.fours) { /* no branch for each, so that no load waits for another */
      int row, column;
      position(false, 0, &row, &column);
      const int32_t valid = column < x.width ? rows : 0;
      const T *from = at + row * x.row + column;
#pragma unroll
      for (int pass = 0; pass < PASSES; pass++) {
        const bool there = row + pass * STEP < valid;
        const float4 four = df_fetch_four(there ? from : at);
        v[pass][0] = there ? four.x : 0.0f;
        v[pass][1] = there ? four.y : 0.0f;
        v[pass][2] = there ? four.z : 0.0f;
        v[pass][3] = there ? four.w : 0.0f;
        from += STEP * x.row;
      }
      return;
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
      int row, column;
      position(down, pass, &row, &column);
#pragma unroll
      for (int f = 0; f < 4; f++)
        v[pass][f] = row < rows && column + f < x.width
                         ? df_fetch(at + row * x.row + (column + f) * x.column)
                         : 0.0f;
    }
  }
};

template <bool HALVES>
static __device__ __forceinline__ df_attention_matrix from_element(df_attention_matrix x,
                                                                   int64_t element) {
  if constexpr (HALVES)
    return x.behind(element);
  x.at += element;
  return x;
}

/* A block per tile: of masks first, then of q, k, v and dy. HALVES: some are bfloat16; how those
 * are read takes registers that the others need. */
template <typename F, int HEAD, bool HALVES>
__global__ void __launch_bounds__(DF_ATTENTION_BLOCK, (HEAD == 64 ? 6 : 4) - HALVES)
    prepack(const __grid_constant__ df_attention p, const __grid_constant__ sources s,
            const __grid_constant__ df_attention_summary known) {
  typedef share<HEAD, HALVES> share;
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(int32_t, entries, [DF_WARP]);
  int64_t index = blockIdx.x;
  if (index < s.masks) {
    df_attention_summarize_mask(p, known, index, scratch, entries);
    return;
  }
  index -= s.masks;
  int operand = DF_ATTENTION_Q;
  for (; operand < DF_ATTENTION_DY; operand++) {
    const int64_t tiles = s.of[operand].matrices * s.of[operand].tiles;
    if (index < tiles)
      break;
    index -= tiles;
  }
  const df_attention_source &source = s.of[operand];
  const int64_t number = static_cast<uint32_t>(index) / static_cast<uint32_t>(source.tiles);
  const int32_t first = static_cast<int32_t>(index - number * source.tiles) * ROWS;
  const int32_t rows = static_cast<int32_t>(df_min(ROWS, source.rows - first));
  int64_t offset[2];
  source.walk.offsets_in_short(static_cast<uint32_t>(number), offset);
  const df_attention_matrix x = from_element<HALVES>(source.x, offset[0] + first * source.x.row);
  /* Threads side by side read rows that lie so; of dy they have rows, for sums along them. */
  const bool gradient = operand == DF_ATTENTION_DY;
  const bool down = !x.fours && x.column != 1 && !gradient;

  float v[share::PASSES][4], most = 0.0f;
  share::fetch(v, x, down, rows);
  constexpr int WIDTH = HEAD / F::PER_WORD;
  float *tile = source.to + index * ROWS * WIDTH;
#pragma unroll
  for (int pass = 0; pass < share::PASSES; pass++) {
    int row, column;
    share::position(down, pass, &row, &column);
    float own[4];
#pragma unroll
    for (int f = 0; f < 4; f++) {
      own[f] = v[pass][f] * source.scale;
      most = df_larger{}(most, fabsf(own[f]));
    }
    float *to = tile + row * WIDTH + column / F::PER_WORD;
    if constexpr (F::PER_WORD == 1)
      *reinterpret_cast<uint4 *>(to) =
          make_uint4(F::word(own[0]), F::word(own[1]), F::word(own[2]), F::word(own[3]));
    else
      *reinterpret_cast<uint2 *>(to) = make_uint2(F::word(own[0], own[1]), F::word(own[2], own[3]));
  }
  most = df_block_join(most, 0.0f, scratch, df_larger{});
  if (threadIdx.x == 0)
    source.most[index] = most;
  if (!gradient)
    return;

  /* delta, the sum of dy y along a row, and with it what is known of the tile's queries. */
  float y[share::PASSES][4], most_delta = 0.0f, least = INFINITY;
  const df_attention_matrix other = from_element<HALVES>(s.y, offset[1] + first * s.y.row);
  share::fetch(y, other, false, rows);
#pragma unroll
  for (int pass = 0; pass < share::PASSES; pass++) {
    int row, column;
    share::position(false, pass, &row, &column);
    float delta = 0.0f;
#pragma unroll
    for (int f = 0; f < 4; f++)
      delta = fmaf(v[pass][f], y[pass][f], delta);
#pragma unroll
    for (int mask = share::ACROSS / 2; mask > 0; mask /= 2)
      delta += __shfl_xor_sync(0xffffffffu, delta, mask);
    most_delta = df_larger{}(most_delta, fabsf(delta));
    if (column == 0) {
      const float logsum = row < rows ? s.logsum[number * source.rows + first + row] : INFINITY;
      least = df_attention_smaller{}(least, logsum);
      s.queries[index * ROWS + row] = make_float2(logsum, delta);
    }
  }
  most_delta = df_block_join(most_delta, 0.0f, scratch, df_larger{});
  least = df_block_join(least, INFINITY, scratch, df_attention_smaller{});
  if (threadIdx.x == 0) {
    known.most[DF_ATTENTION_Y][index] = most_delta;
    known.least[index] = least;
  }
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Tiles of |matrices| of |rows|. */
static int64_t tiles_of(int64_t matrices, int64_t rows) {
  return matrices * df_divide_up(rows, ROWS);
}

static int64_t bytes_of(int64_t tiles, int64_t tile_words) {
  return tiles * tile_words * static_cast<int64_t>(sizeof(float));
}

/* Bytes of the maxima of so many tiles, after which anything is aligned. */
static int64_t known_bytes(int64_t tiles) { return df_divide_up(tiles, 64) * 256; }

static int32_t tile_log_of(int64_t d, int64_t e, int32_t precision) {
  int32_t log = 0;
  while ((int{ROWS} * head_of(d, e) / (precision == DF_BF16 ? int{df_bf16::PER_WORD} : 1)) >> log >
         1)
    log++;
  return log;
}

int64_t df_attention_prepacked_bytes(const df_operand *q, const df_operand *kt, const df_operand *v,
                                     int64_t batch, bool gradients, int32_t precision) {
  const int64_t m = q->shape[q->rank - 2], d = q->shape[q->rank - 1];
  const int64_t n = v->shape[v->rank - 2], e = v->shape[v->rank - 1];
  const int64_t queries = tiles_of(batch, m);
  const int64_t tiles = tiles_of(df_product(q->shape, 0, q->rank - 2), m) +
                        tiles_of(df_product(kt->shape, 0, kt->rank - 2), n) +
                        tiles_of(df_product(v->shape, 0, v->rank - 2), n) +
                        (gradients ? queries : 0);
  const int64_t masks = batch * df_divide_up(m, ROWS) * df_divide_up(n, ROWS);
  return bytes_of(tiles, int64_t(1) << tile_log_of(d, e, precision)) +
         (gradients ? queries * ROWS * static_cast<int64_t>(sizeof(float2)) : 0) +
         known_bytes(tiles + 2 * queries) + known_bytes(2 * masks);
}

/* Lays |operand| at |*next|: where it comes from, and as what kernels see it. */
static df_tensor lay(const df_attention &p, const df_attention_prepacking &from, int operand,
                     int64_t tile_words, char **next, int64_t (&axes)[2][DF_WALK_RANK],
                     df_attention_source *source) {
  const df_tensor &x = *from.operands[operand];
  const bool transposed = operand == DF_ATTENTION_K, gradient = operand == DF_ATTENTION_DY;
  const int32_t lead = x.rank - 2;
  const int64_t rows = x.shape[x.rank - (transposed ? 1 : 2)];
  const int64_t width = x.shape[x.rank - (transposed ? 2 : 1)];
  source->x = p.matrices[operand];
  source->rows = static_cast<int32_t>(rows);
  source->tiles = static_cast<int32_t>(df_divide_up(rows, ROWS));
  source->scale = operand == DF_ATTENTION_Q ? p.scale : 1.0f;
  source->matrices = 1;
  source->to = reinterpret_cast<float *>(*next);
  for (int32_t axis = lead - 1; axis >= 0; axis--) {
    const bool same = !gradient && x.strides[axis] == 0; /* one matrix for all */
    axes[0][axis] = same ? 1 : x.shape[axis];
    axes[1][axis] = source->matrices * source->tiles * tile_words;
    source->matrices *= axes[0][axis];
  }
  const int32_t row = transposed ? x.rank - 1 : x.rank - 2, column = transposed ? row - 1 : row + 1;
  axes[0][row] = rows;
  axes[0][column] = width;
  axes[1][row] = tile_words / ROWS;
  axes[1][column] = 1;
  df_tensor outer = x, y{};
  outer.rank = lead;
  if (gradient) {
    y = *from.operands[DF_ATTENTION_Y];
    y.rank = lead;
  }
  df_walk_plan<2>(&source->walk, axes[0], lead, {&outer, &y});
  *next += bytes_of(source->matrices * source->tiles, tile_words);
  df_tensor out = x;
  out.dtype = DF_FLOAT32; /* words of a format */
  out.data = source->to;
  out.shape = axes[0];
  out.strides = axes[1];
  return out;
}

template <typename F, bool HALVES>
static df_status launch_as(const df_call *call, const df_attention &p, const sources &s,
                           const df_attention_summary &known, int64_t blocks) {
  if (head_of(p.d, p.e) > 64)
    return DF_LAUNCH(call, (prepack<F, 128, HALVES>), static_cast<unsigned>(blocks),
                     DF_ATTENTION_BLOCK, 0, p, s, known);
  return DF_LAUNCH(call, (prepack<F, 64, HALVES>), static_cast<unsigned>(blocks),
                   DF_ATTENTION_BLOCK, 0, p, s, known);
}

template <typename F>
static df_status launch(const df_call *call, const df_attention &p, const sources &s,
                        const df_attention_summary &known, int64_t blocks) {
  bool halves = false;
  for (const df_attention_matrix &x : p.matrices)
    halves = halves || (x.at && x.halves);
  return halves ? launch_as<F, true>(call, p, s, known, blocks)
                : launch_as<F, false>(call, p, s, known, blocks);
}

df_status df_attention_prepack(const df_call *call, const df_attention &p,
                               const df_attention_prepacking &from, char **workspace,
                               df_attention_prepacked *out) {
  sources s{};
  char *next = *workspace;
  df_attention_summary &known = out->known;
  const int64_t batch = df_product(from.lead, 0, from.n_lead);
  s.masks = df_attention_begin_summary(p, batch, next, &known);
  next += known_bytes(2 * s.masks);
  out->tile_log = tile_log_of(p.d, p.e, from.precision);
  const int64_t tile_words = int64_t(1) << out->tile_log;
  out->scale = p.scale;
  out->batch = static_cast<uint32_t>(batch);
  /* As many entries as have keys and values that stay in L2, and index with 32 bits. */
  const int64_t tiles = df_divide_up(p.n, ROWS) + df_divide_up(p.m, ROWS);
  const int64_t run = L2 / df_max(1, bytes_of(2 * tiles_of(1, p.n), tile_words));
  out->run = static_cast<uint32_t>(
      df_max(1, df_min(df_min(run, batch), INT32_MAX / df_max(1, tiles * MOST_SPLITS))));
  int64_t axes[DF_ATTENTION_OPERANDS][2][DF_WALK_RANK];
  df_tensor laid[DF_ATTENTION_OPERANDS];
  const df_tensor *operands[DF_ATTENTION_OPERANDS] = {};
  operands[DF_ATTENTION_MASK] = from.operands[DF_ATTENTION_MASK];
  int64_t blocks = s.masks;
  for (int operand : {DF_ATTENTION_Q, DF_ATTENTION_K, DF_ATTENTION_V, DF_ATTENTION_DY}) {
    if (!from.operands[operand])
      continue;
    laid[operand] = lay(p, from, operand, tile_words, &next, axes[operand], &s.of[operand]);
    operands[operand] = &laid[operand];
    blocks += s.of[operand].matrices * s.of[operand].tiles;
  }
  const int64_t queries = s.of[DF_ATTENTION_DY].matrices * s.of[DF_ATTENTION_DY].tiles;
  if (from.logsum) {
    s.y = p.matrices[DF_ATTENTION_Y];
    s.logsum = from.logsum;
    s.queries = out->queries = reinterpret_cast<float2 *>(next);
    next += queries * ROWS * static_cast<int64_t>(sizeof(float2));
  }
  float *most = reinterpret_cast<float *>(next);
  for (int operand = 0; operand < DF_ATTENTION_OPERANDS; operand++) {
    known.most[operand] = s.of[operand].most = most;
    most += operand == DF_ATTENTION_Y ? queries : s.of[operand].matrices * s.of[operand].tiles;
  }
  known.least = most;
  *workspace = next + known_bytes(most + queries - reinterpret_cast<float *>(next));
  out->p = df_attention_of(operands, from.lead, from.n_lead, 1.0, p.safe);
  if (blocks > INT32_MAX)
    return df_fail(call, DF_UNSUPPORTED, "attention of %lld tiles is too large",
                   static_cast<long long>(blocks));
  if (blocks == 0)
    return DF_OK;
  return from.precision == DF_BF16 ? launch<df_bf16>(call, p, s, known, blocks)
                                   : launch<df_tf32>(call, p, s, known, blocks);
}
