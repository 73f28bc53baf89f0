/* attention/grad.cu: the gradients of y = softmax(scale * q kt + mask) v, from y and the logarithm
 * of the sum of e^scores, so that no scores were kept.
 *
 * Per batch entry, with the weights p recomputed tile by tile:
 *   p[i][j] = e^(scale * (q kt)[i][j] + mask[i][j] - logsum[i])
 *   ds = scale * p * (dy v' - delta), delta[i] = sum over c of dy[i][c] y[i][c]
 *   dq = ds k, dk = ds' q, dv = p' dy
 *
 * One kernel has a tile of queries and passes over the keys, for dq and delta; another a tile of
 * keys and passes over the queries, for dk and dv. Each recomputes p and dy v', which costs two of
 * seven products; in exchange every sum has one owner and one order, so the same inputs give the
 * same bits, and nothing of the size of the scores is written. (Dao et al., "FlashAttention", 2022,
 * adds dq from all blocks of keys by atomics.) */
#include "attention/gradients.h"
#include "attention/tensor.h"
#include "attention/tile.h"

enum { DY, Y, LOGSUM, Q, KT, V, MASK }; /* operands of attention_grad, in order */
enum { DOWN = 4, ROWS = DOWN * DF_ATTENTION_DOWN, RESIDENT = 2 };

static_assert(int{ROWS} == int{df_attention_sums::ROWS},
              "sums are of the rows of a warp of such a tile");

/* What each head is padded to, and the rows of a tile of those that a block passes over. */
template <int HEAD_, int PASSING_> struct tiles {
  static constexpr int HEAD = HEAD_, PASSING = PASSING_;
  static constexpr int COLUMNS = HEAD / DF_ATTENTION_ACROSS;
  static constexpr int PITCH = HEAD + DF_ATTENTION_GAP;
  static constexpr int WEIGHTS_PITCH = PASSING + DF_ATTENTION_WEIGHTS_GAP;
  static constexpr int FLOATS = 2 * (ROWS + PASSING) * PITCH + ROWS * WEIGHTS_PITCH;
};
typedef tiles<64, 64> small;
typedef tiles<128, 32> large;

/* Rows [first, first + ROWS) of a result, as far as there are |rows|. */
template <int COLUMNS>
static __device__ __forceinline__ void put_rows(const df_attention_result &to,
                                                const float (&sums)[DOWN][COLUMNS], int32_t first,
                                                int32_t rows) {
  const int across = df_attention_across();
  const bool fours = to.has_groups<4>();
#pragma unroll
  for (int i = 0; i < DOWN; i++) {
    const int64_t row = first + df_attention_down() + i * DF_ATTENTION_DOWN;
    if (row >= rows)
      continue;
#pragma unroll
    for (int g = 0; g < COLUMNS; g += 4) {
      const float four[4] = {sums[i][g], sums[i][g + 1], sums[i][g + 2], sums[i][g + 3]};
      to.put(row, g * DF_ATTENTION_ACROSS + across * 4, four, fours);
    }
  }
}

/* The sums of the same rows: the threads of a warp that have the same columns join theirs. */
template <int COLUMNS>
static __device__ __forceinline__ void sum_rows(float *to, int32_t width,
                                                const float (&sums)[DOWN][COLUMNS], int32_t first,
                                                int32_t rows) {
#pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < DOWN; i++)
      sum += first + df_attention_down() + i * DF_ATTENTION_DOWN < rows ? sums[i][c] : 0.0f;
#pragma unroll
    for (int mask = DF_ATTENTION_ACROSS; mask < DF_WARP; mask *= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    const int32_t column = c / 4 * 4 * DF_ATTENTION_ACROSS + df_attention_across() * 4 + c % 4;
    if (static_cast<int>(threadIdx.x) % DF_WARP < DF_ATTENTION_ACROSS && column < width)
      to[column] = sum;
  }
}

/* Writes weights for a product with them, by threads of the same warp. */
template <int PITCH, int ACROSS>
static __device__ __forceinline__ void put_weights(float *to,
                                                   const float (&weights)[DOWN][ACROSS]) {
  to += df_attention_down() * PITCH + df_attention_across();
  __syncwarp();
#pragma unroll
  for (int i = 0; i < DOWN; i++)
#pragma unroll
    for (int j = 0; j < ACROSS; j++)
      to[i * DF_ATTENTION_DOWN * PITCH + j * DF_ATTENTION_ACROSS] = weights[i][j];
  __syncwarp();
}

/* A block per tile of keys (KEYS) or of queries of a batch entry. Rows are those of its tile,
 * columns those that it passes over. */
template <typename T, bool KEYS>
__global__ void __launch_bounds__(DF_ATTENTION_THREADS, RESIDENT)
    attend_grad(const __grid_constant__ df_attention p,
                const __grid_constant__ df_attention_gradients g) {
  constexpr int ACROSS = T::PASSING / DF_ATTENTION_ACROSS, PITCH = T::PITCH;
  DF_SHARED(float, own); /* q and dy, or k and v, of the tile */
  float *own_2 = own + ROWS * PITCH, *passing = own_2 + ROWS * PITCH;
  float *passing_2 = passing + T::PASSING * PITCH, *weights = passing_2 + T::PASSING * PITCH;
  const int down = df_attention_down(), across = df_attention_across();
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
  const df_attention_matrix &mask = in[DF_ATTENTION_MASK];
  const bool masked = p.matrices[DF_ATTENTION_MASK].at != nullptr;
  typedef df_attention_mask_tile<KEYS ? T::PASSING : ROWS, KEYS ? ROWS : T::PASSING> mask_tile;
  static_assert(mask_tile::FLOATS <= ROWS * T::WEIGHTS_PITCH, "a mask lies where weights will");
  const int d = (p.d + 3) / 4 * 4, e = (p.e + 3) / 4 * 4;

  df_attention_load<ROWS, T::HEAD>(own, KEYS ? k : q, first, rows);
  df_attention_load<ROWS, T::HEAD>(own_2, KEYS ? v : dy, first, rows);
  float row_sum[DOWN] = {}, row_delta[DOWN] = {}; /* of queries */
  if constexpr (!KEYS) {
    df_async_wait();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
      const int32_t row = first + down + i * DF_ATTENTION_DOWN;
      if (row < rows) {
        const float *y = in[DF_ATTENTION_Y].at + row * in[DF_ATTENTION_Y].row;
        const float *cotangent = own_2 + (down + i * DF_ATTENTION_DOWN) * PITCH;
        for (int c = across; c < p.e; c += DF_ATTENTION_ACROSS)
          row_delta[i] = fmaf(cotangent[c], y[c * in[DF_ATTENTION_Y].column], row_delta[i]);
        row_sum[i] = logsum[row];
      }
      row_delta[i] = df_attention_join(row_delta[i], df_add{});
      if (row < rows && across == 0)
        delta[row] = row_delta[i];
    }
  }

  float sums[DOWN][T::COLUMNS] = {}, sums_2[KEYS ? DOWN : 1][T::COLUMNS] = {};
  for (int32_t tile = 0; tile < columns; tile += T::PASSING) {
    bool adds = masked;
    if (g.tiles.used) {
      const int32_t query = KEYS ? tile : first, key = KEYS ? first : tile;
      const int32_t query_end =
          static_cast<int32_t>(df_min(p.m, query + (KEYS ? int{T::PASSING} : int{ROWS})));
      const int32_t key_end =
          static_cast<int32_t>(df_min(p.n, key + (KEYS ? int{ROWS} : int{T::PASSING})));
      const float2 range = g.tiles.mask_of(number, query, query_end, key, key_end);
      adds = !df_attention_is_open(range);
      if (range.y < 0.0f && g.is_closed(p, entry, range.y, query, query_end, key, key_end))
        continue;
    }
    df_attention_load<T::PASSING, T::HEAD>(passing, KEYS ? q : k, tile, columns);
    df_attention_load<T::PASSING, T::HEAD>(passing_2, KEYS ? dy : v, tile, columns);
    if (adds)
      mask_tile::load(weights, mask, KEYS ? tile : first, p.m, KEYS ? first : tile, p.n);
    float column_sum[ACROSS], column_delta[ACROSS];
#pragma unroll
    for (int j = 0; j < ACROSS; j++) {
      const int32_t column = tile + across + j * DF_ATTENTION_ACROSS;
      column_sum[j] = KEYS && column < columns ? logsum[column] : 0.0f;
      column_delta[j] = KEYS && column < columns ? delta[column] : 0.0f;
    }
    df_async_wait();
    __syncthreads();
    float s[DOWN][ACROSS] = {}, ds[DOWN][ACROSS] = {};
    df_product_rows<DOWN, ACROSS, PITCH>(s, own + down * PITCH, passing + across * PITCH, d);
    df_product_rows<DOWN, ACROSS, PITCH>(ds, own_2 + down * PITCH, passing_2 + across * PITCH, e);
    const bool edge = first + ROWS > rows || tile + T::PASSING > columns;
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
      const int row = down + i * DF_ATTENTION_DOWN;
#pragma unroll
      for (int j = 0; j < ACROSS; j++) {
        const int column = across + j * DF_ATTENTION_ACROSS;
        const int query = KEYS ? column : row, key = KEYS ? row : column;
        const bool there = !edge || (first + row < rows && tile + column < columns);
        const float added = adds ? weights[query * mask_tile::PITCH + key] : 0.0f;
        const float base = KEYS ? column_sum[j] : row_sum[i];
        const float mean = KEYS ? column_delta[j] : row_delta[i];
        s[i][j] = there ? expf(fmaf(s[i][j], p.scale, added) - base) : 0.0f;
        if (p.safe)
          s[i][j] = fmaxf(s[i][j], 0.0f); /* which leaves a NaN out */
        ds[i][j] = there ? s[i][j] * (ds[i][j] - mean) * p.scale : 0.0f;
      }
    }
    if (adds) /* the mask has been read */
      __syncthreads();
    const float *left = weights + down * T::WEIGHTS_PITCH;
    if constexpr (KEYS) {
      put_weights<T::WEIGHTS_PITCH>(weights, s);
      df_product_columns<DOWN, T::COLUMNS, T::PASSING, T::WEIGHTS_PITCH, PITCH>(
          sums_2, left, passing_2 + across * 4);
    }
    put_weights<T::WEIGHTS_PITCH>(weights, ds);
    df_product_columns<DOWN, T::COLUMNS, T::PASSING, T::WEIGHTS_PITCH, PITCH>(sums, left,
                                                                              passing + across * 4);
    __syncthreads();
  }
  df_attention_result out[3];
  g.entry(entry, out);
  put_rows(out[KEYS ? 1 : 0], sums, first, rows);
  if constexpr (KEYS)
    put_rows(out[2], sums_2, first, rows);
  if (!g.sums.at)
    return;
  sum_rows(g.sums.of(entry, first / ROWS, KEYS ? 1 : 0), g.sums.width, sums, first, rows);
  if constexpr (KEYS)
    sum_rows(g.sums.of(entry, first / ROWS, 2), g.sums.width, sums_2, first, rows);
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T, bool KEYS>
static df_status launch(const df_call *call, const df_attention &p, const df_attention_gradients &g,
                        int64_t batch) {
  constexpr int BYTES = T::FLOATS * static_cast<int>(sizeof(float));
  const int64_t blocks = df_divide_up(KEYS ? p.n : p.m, ROWS) * batch;
  if (blocks == 0)
    return DF_OK;
  const df_status status = df_attention_allow(call, attend_grad<T, KEYS>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend_grad<T, KEYS>), static_cast<unsigned>(blocks),
                   DF_ATTENTION_THREADS, BYTES, p, g);
}

template <typename T>
static df_status launch_both(const df_call *call, const df_attention &p,
                             const df_attention_gradients &g, int64_t batch) {
  const df_status status = launch<T, false>(call, p, g, batch);
  return status ? status : launch<T, true>(call, p, g, batch);
}

/* (batch, rows, heads..., size) with heads before rows; |axes| holds shape and strides. */
static df_tensor transposed_heads(const df_tensor &x, int64_t (&axes)[2][DF_WALK_RANK]) {
  df_tensor out = x;
  for (int32_t i = 0; i < x.rank; i++) {
    const int32_t axis = i == 0 || i == x.rank - 1 ? i : i == x.rank - 2 ? 1 : i + 1;
    axes[0][i] = x.shape[axis];
    axes[1][i] = x.strides[axis];
  }
  out.shape = axes[0];
  out.strides = axes[1];
  return out;
}

template <typename N> static bool sums_wanted(const N *of) {
  return of->n_outputs > int{df_attention_sums::RESULTS};
}

static df_status gradients(const df_call *call, const df_attention_sums &sums, char *workspace) {
  const df_tensor *const *in = call->inputs;
  const bool masked = call->n_inputs > MASK && in[MASK]->dtype != DF_NONE;
  df_tensor dy = *in[DY], y = *in[Y];
  int64_t axes[2][2][DF_WALK_RANK];
  if (df_attr_int(call, DF_ATTENTION_TRANSPOSED)) {
    dy = transposed_heads(dy, axes[0]);
    y = transposed_heads(y, axes[1]);
  }
  const int32_t n_lead = dy.rank - 2;
  const int32_t precision = static_cast<int32_t>(reinterpret_cast<intptr_t>(call->state));
  const df_tensor *const *out = call->outputs;
  df_attention_gradients g{df_attention_result_of(*out[0]), df_attention_result_of(*out[1]),
                           df_attention_result_of(*out[2])};
  g.logsum = df_in<const float>(call, LOGSUM);
  g.sums = sums;
  df_tensor outer[3] = {*out[0], *out[1], *out[2]};
  for (df_tensor &x : outer)
    x.rank = n_lead;
  if (!df_walk_plan<3>(&g.walk, dy.shape, n_lead, {&outer[0], &outer[1], &outer[2]}))
    return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
  df_attention_prepacking operands{{in[Q], in[KT], in[V], masked ? in[MASK] : nullptr, &dy, &y},
                                   dy.shape,
                                   n_lead,
                                   precision,
                                   g.logsum};
  df_attention_floats floats;
  const df_status filled = df_attention_has_format(precision)
                               ? df_status(DF_OK)
                               : floats.fill(call, operands.operands, &workspace);
  if (filled)
    return filled;
  const df_attention p =
      df_attention_of(operands.operands, dy.shape, n_lead, df_attr_float(call, DF_ATTENTION_SCALE),
                      df_attr_int(call, DF_ATTENTION_SAFE) != 0);
  if (df_attention_has_format(precision)) {
    df_attention_prepacked prepacked{};
    const df_status status = df_attention_prepack(call, p, operands, &workspace, &prepacked);
    return status ? status : df_attention_tensor_grad_run(call, prepacked, g, precision);
  }
  const int64_t batch = df_product(dy.shape, 0, n_lead);
  const df_status found = df_attention_summarize(call, p, batch, g.logsum, workspace, &g.tiles);
  if (found)
    return found;
  if (masked)
    workspace += df_attention_summary_bytes(batch, p.m, p.n);
  g.delta = reinterpret_cast<float *>(workspace);
  return df_max(p.d, p.e) > small::HEAD ? launch_both<large>(call, p, g, batch)
                                        : launch_both<small>(call, p, g, batch);
}

static df_status run(const df_call *call) {
  char *workspace = static_cast<char *>(call->workspace);
  if (!sums_wanted(call))
    return gradients(call, {}, workspace);
  const df_tensor *v = call->inputs[V];
  df_attention_sums sums = df_attention_sums::sized(*call->inputs[LOGSUM], v->shape[v->rank - 1]);
  sums.at = reinterpret_cast<float *>(workspace);
  const df_status status = gradients(call, sums, workspace + sums.bytes());
  return status ? status : sums.join(call);
}

/* Workspace for prepacked operands, or for the summary of tiles and delta; behind sums. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *logsum = node->inputs[LOGSUM], *v = node->inputs[V];
  const int64_t batch = df_product(logsum->shape, 0, logsum->rank - 1);
  if (df_attention_has_format(node->precision)) {
    out->workspace = df_attention_prepacked_bytes(node->inputs[Q], node->inputs[KT], v, batch, true,
                                                  node->precision);
  } else {
    out->workspace = df_attention_floats::bytes(node);
    if (node->n_inputs > MASK && node->inputs[MASK]->dtype != DF_NONE)
      out->workspace +=
          df_attention_summary_bytes(batch, logsum->shape[logsum->rank - 1], v->shape[v->rank - 2]);
    out->workspace += df_operand_elements(logsum) * static_cast<int64_t>(sizeof(float));
  }
  if (sums_wanted(node))
    out->workspace += df_attention_sums::sized(*logsum, v->shape[v->rank - 1]).bytes();
  out->state = reinterpret_cast<void *>(intptr_t(node->precision)); /* nothing to release */
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  const df_operand *q = node->inputs[Q], *kt = node->inputs[KT], *v = node->inputs[V];
  if (sums_wanted(node) && (q->shape[q->rank - 2] != kt->shape[kt->rank - 1] ||
                            q->shape[q->rank - 1] != v->shape[v->rank - 1]))
    return "sums are of as many keys as queries, and of columns of v as of k";
  return df_attention_accepts(node, q, kt, v);
}

#define INPUTS "~f32|bf16,~f32|bf16,f32,~f32|bf16,~f32|bf16,~f32|bf16,~f32?"
#define RESULTS "->~f32|bf16,~f32|bf16,~f32|bf16"
static const df_kernel records[] = {
    DF_CUDA_KERNEL("attention_grad", "f32", INPUTS RESULTS, nullptr, .accepts = accepts,
                   .prepare = prepare, .run = run, .capturable = 1),
    DF_CUDA_KERNEL("attention_grad_sums", "f32", INPUTS RESULTS ",f32?,f32?,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = run, .capturable = 1)};
DF_CUDA_FAMILY(attention_grad, records);
