/* attention/attention.cu: y = softmax(scale * q kt + mask) v, without the scores in memory.
 *
 * A block has a tile of rows of q of a batch entry and passes over the keys tile by tile: scores
 * become weights in registers by the online softmax (Milakov and Gimelshein 2018; its use for tiles
 * is Dao et al., "FlashAttention", 2022) and lie in shared memory for the product with v alone.
 * Weights are divided by the sum so far, so that nothing overflows that the complete row would not.
 *
 * 2 m n (d + e) operations and m n exponentials on 4 (m d + n d + n e + m e) bytes and the mask;
 * k and v are read once per tile of rows, by L2 where they fit there. Where the rows are too few
 * for the card the keys are split, and the results of splits are joined in their order. */
#include "attention/mask.h"
#include "attention/tensor.h"
#include "attention/tile.h"

enum {
  FILL = 264,      /* blocks that keep a large card busy: two for each of 132 multiprocessors */
  LEAST_KEYS = 64, /* of a split */
  /* On tensor cores, where joining two results takes as long as some tiles of 64 keys: 6 us on an
   * H100. */
  LEAST_TENSOR_KEYS = 256,
  MOST_SPLITS = 64
};

/* ---- The kernel ----------------------------------------------------------------------------- */

/* Rows per thread, keys per tile, and what each head is padded to. */
template <int HEAD_, int DOWN_, int KEYS_, int RESIDENT_> struct tiles {
  static constexpr int HEAD = HEAD_, DOWN = DOWN_, KEYS = KEYS_;
  static constexpr int RESIDENT = RESIDENT_; /* blocks that a multiprocessor shall hold */
  static constexpr int ROWS = DOWN * DF_ATTENTION_DOWN, COLUMNS = HEAD / DF_ATTENTION_ACROSS;
  static constexpr int PITCH = HEAD + DF_ATTENTION_GAP;
  static constexpr int WEIGHTS_PITCH = KEYS + DF_ATTENTION_WEIGHTS_GAP;
  static constexpr int FLOATS = (ROWS + 2 * KEYS) * PITCH + ROWS * WEIGHTS_PITCH;
};
typedef tiles<64, 4, 64, 3> medium;
typedef tiles<64, 1, 64, 3> few;
typedef tiles<128, 4, 32, 2> large;
typedef tiles<128, 1, 32, 3> large_few;

template <typename T>
__global__ void __launch_bounds__(DF_ATTENTION_THREADS, T::RESIDENT)
    attend(const __grid_constant__ df_attention p, const __grid_constant__ df_attention_results r,
           const __grid_constant__ df_attention_summary known) {
  DF_SHARED(float, q);
  float *k = q + T::ROWS * T::PITCH, *v = k + T::KEYS * T::PITCH, *weights = v + T::KEYS * T::PITCH;
  const int down = df_attention_down(), across = df_attention_across();
  const df_attention_results::task task = r.of(blockIdx.x, p.n);
  const int32_t first = task.tile * T::ROWS;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  const int64_t number = p.entry(task.entry, in);
  const df_attention_matrix &mask = in[DF_ATTENTION_MASK];
  const bool masked = p.matrices[DF_ATTENTION_MASK].at != nullptr;
  typedef df_attention_mask_tile<T::ROWS, T::KEYS> mask_tile;
  static_assert(mask_tile::PITCH == T::WEIGHTS_PITCH, "a mask lies where the weights will");
  const int depth = (p.d + 3) / 4 * 4;

  float y[T::DOWN][T::COLUMNS] = {};
  df_attention_state state[T::DOWN];
#pragma unroll
  for (int i = 0; i < T::DOWN; i++)
    state[i].clear();
  df_attention_load<T::ROWS, T::HEAD>(q, in[DF_ATTENTION_Q], first, p.m);
  const int32_t last = static_cast<int32_t>(df_min(p.m, first + T::ROWS));
  const float most_q = known.used ? known.most_of(DF_ATTENTION_Q, task.entry, first, last) : 0.0f;
  df_attention_passing passing{p,    known,    task.entry, number, first,
                               last, task.end, most_q,     !masked};
  const auto is_below = [&](float most, float bound) {
    bool below = true;
#pragma unroll
    for (int i = 0; i < T::DOWN; i++)
      if (first + down + i * DF_ATTENTION_DOWN < last)
        below = below && df_attention_is_below(most, bound, state[i].most);
    return below;
  };
  /* A tile is copied during the product before the one that needs it: v during that of q and k,
   * the next k during that with v. */
  int32_t tile = passing.template next<T::KEYS>(task.begin, is_below); /* the first */
  if (tile < task.end)
    df_attention_load<T::KEYS, T::HEAD>(k, in[DF_ATTENTION_K], tile, task.end);
  df_async_wait();
  __syncthreads();
  while (tile < task.end) {
    df_attention_load<T::KEYS, T::HEAD>(v, in[DF_ATTENTION_V], tile, task.end);
    const bool adds = !passing.open;
    if (adds) /* the mask lies where the weights will, element by element */
      mask_tile::load(weights, mask, first, p.m, tile, task.end);
    constexpr int ACROSS = T::KEYS / DF_ATTENTION_ACROSS;
    float s[T::DOWN][ACROSS] = {};
    df_product_rows<T::DOWN, ACROSS, T::PITCH>(s, q + down * T::PITCH, k + across * T::PITCH,
                                               depth);
    if (adds) {
      df_async_wait();
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < T::DOWN; i++) {
      float *own = weights + (down + i * DF_ATTENTION_DOWN) * T::WEIGHTS_PITCH + across;
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < ACROSS; j++) {
        const int32_t key = tile + across + j * DF_ATTENTION_ACROSS;
        const float added = adds ? own[j * DF_ATTENTION_ACROSS] : 0.0f;
        s[i][j] = fmaf(s[i][j], p.scale, added);
        if (tile + T::KEYS > task.end && key >= task.end)
          s[i][j] = -INFINITY;
        largest = fmaxf(largest, s[i][j]);
      }
      const float base = state[i].begin(df_attention_join(largest, df_attention_larger{}));
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < ACROSS; j++) {
        s[i][j] = expf(s[i][j] - base);
        total += s[i][j];
      }
      const float2 factor = state[i].end(df_attention_join(total, df_add{}));
#pragma unroll
      for (int j = 0; j < ACROSS; j++)
        own[j * DF_ATTENTION_ACROSS] = s[i][j] * factor.x;
#pragma unroll
      for (int j = 0; j < T::COLUMNS; j++)
        y[i][j] *= factor.y;
    }
    tile = passing.template next<T::KEYS>(tile + T::KEYS, is_below);
    df_async_wait();
    __syncthreads();
    if (tile < task.end)
      df_attention_load<T::KEYS, T::HEAD>(k, in[DF_ATTENTION_K], tile, task.end);
    df_product_columns<T::DOWN, T::COLUMNS, T::KEYS, T::WEIGHTS_PITCH, T::PITCH>(
        y, weights + down * T::WEIGHTS_PITCH, v + across * 4);
    df_async_wait();
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < T::DOWN; i++) {
    const int32_t row = first + down + i * DF_ATTENTION_DOWN;
    if (row >= p.m)
      continue;
    const df_attention_row own = r.end_row(task, state[i], p, row, across == 0);
    const auto result = [&](float sum, int column) {
      return own.result(sum, in[DF_ATTENTION_V], p.n, column);
    };
#pragma unroll
    for (int g = 0; g < T::COLUMNS; g += 4) {
      const int column = g * DF_ATTENTION_ACROSS + across * 4;
      if (column >= p.e)
        continue;
      float four[4];
#pragma unroll
      for (int f = 0; f < 4; f++)
        four[f] = column + f < p.e ? result(y[i][g + f], column + f) : 0.0f;
      own.put(column, four, p.e, r.fours);
    }
  }
}

/* A thread per result: the mean of those of the splits, weighted by their sums. */
__global__ void __launch_bounds__(DF_BLOCK)
    join_splits(const __grid_constant__ df_attention p,
                const __grid_constant__ df_attention_results r) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t columns = df_max(1, p.e); /* e may be 0: sums are wanted then too */
  if (index >= r.rows * columns)
    return;
  const int64_t at = index / columns, column = index - at * columns;
  df_attention_state state;
  state.clear();
  float y = 0.0f;
  for (int32_t split = 0; split < r.splits; split++) {
    const df_attention_state own = r.states[split * r.rows + at];
    const float base = state.begin(own.most);
    const float sum = own.sum == 0.0f ? 0.0f : own.sum * expf(own.most - base);
    const float2 factor = state.end(sum);
    if (p.e > 0)
      y = fmaf(sum * factor.x, r.partials[(split * r.rows + at) * p.e + column], y * factor.y);
  }
  if (column == 0 && r.logsum)
    r.logsum[at] = state.logsum(p.safe);
  if (p.e == 0)
    return;
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  p.entry(at / p.m, in);
  const df_attention_row own{r.row_of_y(at / p.m, at % p.m), r.rounded, state.closed(),
                             state.cleared(p.safe)};
  const int32_t of = static_cast<int32_t>(column);
  const float one[1] = {own.result(y, in[DF_ATTENTION_V], p.n, of)};
  own.put(of, one, p.e, false);
}

/* ---- Choosing ------------------------------------------------------------------------------- */

enum { MEDIUM, FEW, LARGE, LARGE_FEW, TENSOR };

struct choice {
  int32_t tiles, rows, splits, split_keys;
};

/* From the sizes alone, so that the bits are the same on every card. */
static choice choose(int64_t m, int64_t n, int64_t d, int64_t e, int64_t batch, int32_t precision) {
  const bool large_head = df_max(d, e) > 64;
  choice c{large_head ? int{LARGE} : int{MEDIUM}, 64, 1, static_cast<int32_t>(df_max(1, n))};
  if (m <= DF_ATTENTION_DOWN) {
    c.tiles = large_head ? LARGE_FEW : FEW;
    c.rows = DF_ATTENTION_DOWN;
  } else if (df_attention_has_format(precision)) {
    c.tiles = TENSOR;
    c.rows = DF_ATTENTION_TENSOR_ROWS;
  }
  const int64_t blocks = df_max(1, df_divide_up(m, c.rows) * batch);
  const int64_t least = c.tiles == TENSOR ? LEAST_TENSOR_KEYS : LEAST_KEYS;
  const int64_t splits = df_min(df_min(FILL / blocks, MOST_SPLITS), n / least);
  if (blocks * 2 <= FILL && splits > 1) {
    const int64_t keys = df_divide_up(df_divide_up(n, splits), LEAST_KEYS) * LEAST_KEYS;
    c.split_keys = static_cast<int32_t>(keys);
    c.splits = static_cast<int32_t>(df_divide_up(n, keys));
  }
  return c;
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T>
static df_status launch(const df_call *call, const df_attention &p, const df_attention_results &r,
                        const df_attention_summary &known, int64_t blocks) {
  constexpr int BYTES = T::FLOATS * static_cast<int>(sizeof(float));
  const df_status status = df_attention_allow(call, attend<T>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend<T>), static_cast<unsigned>(blocks), DF_ATTENTION_THREADS, BYTES, p,
                   r, known);
}

static df_status launch_tiles(const df_call *call, const df_attention &p,
                              const df_attention_results &r, const df_attention_summary &known,
                              const choice &c, int64_t blocks) {
  switch (c.tiles) {
  case MEDIUM:
    return launch<medium>(call, p, r, known, blocks);
  case FEW:
    return launch<few>(call, p, r, known, blocks);
  case LARGE:
    return launch<large>(call, p, r, known, blocks);
  default:
    return launch<large_few>(call, p, r, known, blocks);
  }
}

/* The shape of the batch, |y|'s but for its last two axes, and y's distances. */
static int32_t lead_of(const int64_t *y, int32_t rank, bool transposed, int64_t *lead) {
  for (int32_t axis = 0; axis < rank - 2; axis++)
    lead[axis] = y[axis + (transposed && axis ? 1 : 0)];
  return rank - 2;
}

static df_status run(const df_call *call) {
  const df_tensor *const *in = call->inputs;
  const df_tensor *y = call->outputs[0];
  const bool transposed = df_attr_int(call, DF_ATTENTION_TRANSPOSED) != 0;
  int64_t lead[DF_WALK_RANK];
  const int32_t n_lead = lead_of(y->shape, y->rank, transposed, lead);
  const bool masked = call->n_inputs > 3 && in[3]->dtype != DF_NONE;
  const int32_t precision = static_cast<int32_t>(reinterpret_cast<intptr_t>(call->state));
  df_attention_prepacking operands{
      {in[0], in[1], in[2], masked ? in[3] : nullptr, nullptr, nullptr}, lead, n_lead, precision};
  const df_tensor &q = *in[0], &v = *in[2];
  const int64_t batch = df_product(lead, 0, n_lead);
  if (batch * q.shape[q.rank - 2] == 0)
    return DF_OK;
  const choice c = choose(q.shape[q.rank - 2], v.shape[v.rank - 2], q.shape[q.rank - 1],
                          v.shape[v.rank - 1], batch, precision);
  char *workspace = static_cast<char *>(call->workspace);
  df_attention_floats floats;
  const df_status filled =
      c.tiles == TENSOR ? df_status(DF_OK) : floats.fill(call, operands.operands, &workspace);
  if (filled)
    return filled;
  const df_attention p =
      df_attention_of(operands.operands, lead, n_lead, df_attr_float(call, DF_ATTENTION_SCALE),
                      df_attr_int(call, DF_ATTENTION_SAFE) != 0);
  df_attention_results r{};
  r.y = y->data;
  r.rounded = y->dtype == DF_BFLOAT16;
  r.logsum = df_out<float>(call, 1);
  r.heads = static_cast<int32_t>(transposed ? df_product(lead, 1, n_lead) : 1);
  r.y_row = static_cast<int64_t>(r.heads) * p.e;
  r.y_head = p.e;
  r.y_entry = p.m * r.y_row;
  r.tiles = static_cast<int32_t>(df_divide_up(p.m, c.rows));
  r.splits = c.splits;
  r.split_keys = c.split_keys;
  r.rows = batch * p.m;
  for (int64_t keys = 1; keys < c.split_keys; keys *= 2)
    r.shift += 1.0f;
  df_attention_summary known{};
  df_attention_prepacked prepacked{};
  const df_status found = c.tiles == TENSOR
                              ? df_attention_prepack(call, p, operands, &workspace, &prepacked)
                              : df_attention_summarize(call, p, batch, nullptr, workspace, &known);
  if (found)
    return found;
  if (c.tiles != TENSOR && masked)
    workspace += df_attention_summary_bytes(batch, p.m, p.n);
  if (c.splits > 1) {
    r.states = reinterpret_cast<df_attention_state *>(workspace);
    r.partials = reinterpret_cast<float *>(r.states + c.splits * r.rows);
  }
  const void *rows = r.splits > 1 ? r.partials : r.y;
  r.fours = p.e % 4 == 0 && reinterpret_cast<uintptr_t>(rows) % 16 == 0;
  const int64_t blocks = r.tiles * batch * c.splits;
  const df_status status = c.tiles == TENSOR
                               ? df_attention_tensor_run(call, p, prepacked, r, blocks, precision)
                               : launch_tiles(call, p, r, known, c, blocks);
  if (status || c.splits == 1)
    return status;
  return DF_LAUNCH(call, join_splits, df_blocks(r.rows * df_max(1, p.e), DF_BLOCK), DF_BLOCK, 0, p,
                   r);
}

/* Workspace for the summary of tiles or prepacked operands, and the results of splits. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *q = node->inputs[0], *v = node->inputs[2], *y = node->outputs[0];
  int64_t lead[DF_WALK_RANK];
  const int32_t n_lead =
      lead_of(y->shape, y->rank, df_attr_int(node, DF_ATTENTION_TRANSPOSED) != 0, lead);
  const int64_t batch = df_product(lead, 0, n_lead), m = q->shape[q->rank - 2];
  const int64_t e = v->shape[v->rank - 1];
  const choice c =
      choose(m, v->shape[v->rank - 2], q->shape[q->rank - 1], e, batch, node->precision);
  if (c.tiles == TENSOR)
    out->workspace =
        df_attention_prepacked_bytes(q, node->inputs[1], v, batch, false, node->precision);
  else
    out->workspace = df_attention_floats::bytes(node);
  if (c.tiles != TENSOR && node->n_inputs > 3 && node->inputs[3]->dtype != DF_NONE)
    out->workspace += df_attention_summary_bytes(batch, m, v->shape[v->rank - 2]);
  if (c.splits > 1)
    out->workspace += c.splits * batch * m * (e + 2) * static_cast<int64_t>(sizeof(float));
  out->state = reinterpret_cast<void *>(intptr_t(node->precision)); /* nothing to release */
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  return df_attention_accepts(node, node->inputs[0], node->inputs[1], node->inputs[2]);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("attention", "f32", "~f32|bf16,~f32|bf16,~f32|bf16,~f32?->f32|bf16,f32?",
                   nullptr, .accepts = accepts, .prepare = prepare, .run = run, .capturable = 1)};
DF_CUDA_FAMILY(attention, records);
