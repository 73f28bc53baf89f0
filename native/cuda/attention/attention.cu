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
#include "attention/tile.h"

enum {
  FILL = 264,      /* blocks that keep a large card busy: two for each of 132 multiprocessors */
  LEAST_KEYS = 64, /* of a split */
  MOST_SPLITS = 64,
  RESIDENT = 2 /* blocks that a multiprocessor shall hold */
};

/* ---- The kernel ----------------------------------------------------------------------------- */

/* Rows per thread, keys per tile, and what each head is padded to. */
template <int HEAD_, int DOWN_, int KEYS_> struct tiles {
  static constexpr int HEAD = HEAD_, DOWN = DOWN_, KEYS = KEYS_;
  static constexpr int ROWS = DOWN * DF_ATTENTION_DOWN, COLUMNS = HEAD / DF_ATTENTION_ACROSS;
  static constexpr int PITCH = HEAD + DF_ATTENTION_GAP;
  static constexpr int WEIGHTS_PITCH = KEYS + DF_ATTENTION_WEIGHTS_GAP;
  static constexpr int FLOATS = (ROWS + 2 * KEYS) * PITCH + ROWS * WEIGHTS_PITCH;
};
typedef tiles<64, 8, 64> tall;
typedef tiles<64, 4, 64> medium;
typedef tiles<64, 1, 64> few;
typedef tiles<128, 4, 32> large;
typedef tiles<128, 1, 32> large_few;

/* Where results go. */
struct results {
  float *y, *logsum;              /* logsum null where nobody wants it */
  int64_t y_row, y_head, y_entry; /* distances: of rows, of heads, of groups of |heads| entries */
  int32_t heads;
  bool fours;
  int32_t tiles, splits, split_keys; /* blocks of a batch entry; keys of all splits but the last */
  int64_t rows;                      /* of all batch entries */
  float *partials;                   /* per split y contiguous; null for one split */
  float2 *states;                    /* per split and row: maximum and sum */
};

/* e^(x - most) where nothing may have been seen: most is -infinity then. */
static __device__ __forceinline__ float carried_over(float sum, float before, float most) {
  return sum == 0.0f ? 0.0f : sum * expf(before - most);
}

template <typename T>
__global__ void __launch_bounds__(DF_ATTENTION_THREADS, RESIDENT)
    attend(const __grid_constant__ df_attention p, const __grid_constant__ results r) {
  DF_SHARED(float, q);
  float *k = q + T::ROWS * T::PITCH, *v = k + T::KEYS * T::PITCH, *weights = v + T::KEYS * T::PITCH;
  const int down = df_attention_down(), across = df_attention_across();
  const uint32_t blocks = static_cast<uint32_t>(r.tiles) * static_cast<uint32_t>(r.splits);
  const int64_t entry = blockIdx.x / blocks;
  const int32_t block = static_cast<int32_t>(blockIdx.x % blocks);
  const int32_t split = block / r.tiles, first = block % r.tiles * T::ROWS;
  const int32_t begin = split * r.split_keys;
  const int32_t end = static_cast<int32_t>(df_min(p.n, static_cast<int64_t>(begin) + r.split_keys));
  df_attention_matrix in[DF_ATTENTION_OPERANDS];
  p.entry(entry, in);
  const df_attention_matrix &mask = in[DF_ATTENTION_MASK];
  const bool masked = p.matrices[DF_ATTENTION_MASK].at != nullptr;
  const int depth = (p.d + 3) / 4 * 4;

  float y[T::DOWN][T::COLUMNS] = {}, most[T::DOWN], sum[T::DOWN];
#pragma unroll
  for (int i = 0; i < T::DOWN; i++) {
    most[i] = -INFINITY;
    sum[i] = 0.0f;
  }
  df_attention_load<T::ROWS, T::HEAD>(q, in[DF_ATTENTION_Q], first, p.m);
  for (int32_t tile = begin; tile < end; tile += T::KEYS) {
    df_attention_load<T::KEYS, T::HEAD>(k, in[DF_ATTENTION_K], tile, end);
    df_attention_load<T::KEYS, T::HEAD>(v, in[DF_ATTENTION_V], tile, end);
    __syncthreads();
    constexpr int ACROSS = T::KEYS / DF_ATTENTION_ACROSS;
    float s[T::DOWN][ACROSS] = {};
    df_product_rows<T::DOWN, ACROSS, T::PITCH>(s, q + down * T::PITCH, k + across * T::PITCH,
                                               depth);
#pragma unroll
    for (int i = 0; i < T::DOWN; i++) {
      const int32_t row = first + down + i * DF_ATTENTION_DOWN;
      const float *added = mask.at + row * mask.row;
      float largest = most[i];
#pragma unroll
      for (int j = 0; j < ACROSS; j++) {
        const int32_t key = tile + across + j * DF_ATTENTION_ACROSS;
        const bool there = key < end && row < p.m;
        s[i][j] =
            there ? fmaf(s[i][j], p.scale, masked ? added[key * mask.column] : 0.0f) : -INFINITY;
        largest = fmaxf(largest, s[i][j]); /* without a NaN, which the sum will have */
      }
      largest = df_attention_join(largest, [](float a, float b) { return fmaxf(a, b); });
      const float base = largest == -INFINITY ? 0.0f : largest;
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < ACROSS; j++) {
        s[i][j] = expf(s[i][j] - base);
        total += s[i][j];
      }
      const float carried = carried_over(sum[i], most[i], base);
      sum[i] = carried + df_attention_join(total, df_add{});
      most[i] = largest;
      const float inverse = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i], kept = carried * inverse;
      float *to = weights + (down + i * DF_ATTENTION_DOWN) * T::WEIGHTS_PITCH + across;
#pragma unroll
      for (int j = 0; j < ACROSS; j++)
        to[j * DF_ATTENTION_ACROSS] = s[i][j] * inverse;
#pragma unroll
      for (int j = 0; j < T::COLUMNS; j++)
        y[i][j] *= kept;
    }
    __syncwarp();
    df_product_columns<T::DOWN, T::COLUMNS, T::KEYS, T::WEIGHTS_PITCH, T::PITCH>(
        y, weights + down * T::WEIGHTS_PITCH, v + across * 4);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < T::DOWN; i++) {
    const int32_t row = first + down + i * DF_ATTENTION_DOWN;
    if (row >= p.m)
      continue;
    const int64_t at = entry * p.m + row;
    float *to = r.y + entry / r.heads * r.y_entry + entry % r.heads * r.y_head + row * r.y_row;
    float closed = 0.0f; /* rows that are -infinity throughout give NaN, as softmax does */
    if (r.partials) {
      to = r.partials + (split * r.rows + at) * p.e;
      if (across == 0)
        r.states[split * r.rows + at] = make_float2(most[i], sum[i]);
    } else {
      closed = most[i] == -INFINITY && p.n > 0 ? NAN : 0.0f;
      if (across == 0 && r.logsum)
        r.logsum[at] = most[i] + logf(sum[i]) + closed;
    }
#pragma unroll
    for (int g = 0; g < T::COLUMNS; g += 4) {
      const int column = g * DF_ATTENTION_ACROSS + across * 4;
      if (r.fours && column < p.e)
        *reinterpret_cast<float4 *>(to + column) = make_float4(
            y[i][g] + closed, y[i][g + 1] + closed, y[i][g + 2] + closed, y[i][g + 3] + closed);
#pragma unroll
      for (int f = 0; f < 4; f++)
        if (!r.fours && column + f < p.e)
          to[column + f] = y[i][g + f] + closed;
    }
  }
}

/* A thread per result: the mean of those of the splits, weighted by their sums. */
__global__ void __launch_bounds__(DF_BLOCK)
    join_splits(const __grid_constant__ df_attention p, const __grid_constant__ results r) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t columns = df_max(1, p.e); /* e may be 0: sums are wanted then too */
  if (index >= r.rows * columns)
    return;
  const int64_t at = index / columns, column = index - at * columns;
  const int64_t entry = at / p.m, row = at - entry * p.m;
  float most = -INFINITY, sum = 0.0f, y = 0.0f;
  for (int32_t split = 0; split < r.splits; split++)
    most = fmaxf(most, r.states[split * r.rows + at].x);
  for (int32_t split = 0; split < r.splits; split++) {
    const float2 state = r.states[split * r.rows + at];
    sum += carried_over(state.y, state.x, most);
  }
  const float closed = most == -INFINITY ? NAN : 0.0f;
  if (column == 0 && r.logsum)
    r.logsum[at] = most + logf(sum) + closed;
  if (p.e == 0)
    return;
  for (int32_t split = 0; split < r.splits; split++) {
    const float2 state = r.states[split * r.rows + at];
    const float weight = carried_over(state.y, state.x, most) / sum;
    y = fmaf(weight, r.partials[(split * r.rows + at) * p.e + column], y);
  }
  r.y[entry / r.heads * r.y_entry + entry % r.heads * r.y_head + row * r.y_row + column] =
      y + closed;
}

/* ---- Choosing ------------------------------------------------------------------------------- */

enum { TALL, MEDIUM, FEW, LARGE, LARGE_FEW };

struct choice {
  int32_t tiles, rows, splits, split_keys;
};

/* From the sizes alone, so that the bits are the same on every card. */
static choice choose(int64_t m, int64_t n, int64_t d, int64_t e, int64_t batch) {
  const bool big = df_max(d, e) > 64;
  choice c{big ? int{LARGE} : int{MEDIUM}, 64, 1, static_cast<int32_t>(df_max(1, n))};
  if (m <= DF_ATTENTION_DOWN) {
    c.tiles = big ? LARGE_FEW : FEW;
    c.rows = DF_ATTENTION_DOWN;
  } else if (!big && df_divide_up(m, tall::ROWS) * batch >= FILL &&
             df_divide_up(m, tall::ROWS) * 2 == df_divide_up(m, medium::ROWS)) {
    c.tiles = TALL;
    c.rows = tall::ROWS;
  }
  const int64_t blocks = df_max(1, df_divide_up(m, c.rows) * batch);
  const int64_t splits = df_min(df_min(FILL / blocks, MOST_SPLITS), n / LEAST_KEYS);
  if (blocks * 2 <= FILL && splits > 1) {
    const int64_t keys = df_divide_up(df_divide_up(n, splits), LEAST_KEYS) * LEAST_KEYS;
    c.split_keys = static_cast<int32_t>(keys);
    c.splits = static_cast<int32_t>(df_divide_up(n, keys));
  }
  return c;
}

/* ---- Running -------------------------------------------------------------------------------- */

template <typename T>
static df_status launch(const df_call *call, const df_attention &p, const results &r,
                        int64_t blocks) {
  constexpr int BYTES = T::FLOATS * static_cast<int>(sizeof(float));
  const df_status status = df_attention_allow(call, attend<T>, blocks, BYTES);
  if (status)
    return status;
  return DF_LAUNCH(call, (attend<T>), static_cast<unsigned>(blocks), DF_ATTENTION_THREADS, BYTES, p,
                   r);
}

static df_status launch_tiles(const df_call *call, const df_attention &p, const results &r,
                              int32_t tiles, int64_t blocks) {
  switch (tiles) {
  case TALL:
    return launch<tall>(call, p, r, blocks);
  case MEDIUM:
    return launch<medium>(call, p, r, blocks);
  case FEW:
    return launch<few>(call, p, r, blocks);
  case LARGE:
    return launch<large>(call, p, r, blocks);
  default:
    return launch<large_few>(call, p, r, blocks);
  }
}

/* The shape of the batch, |y|'s but for its last two axes, and y's distances. */
static int32_t lead_of(const int64_t *y, int32_t rank, bool transposed, int64_t *lead) {
  for (int32_t axis = 0; axis < rank - 2; axis++)
    lead[axis] = y[axis];
  if (transposed)
    lead[1] = y[2];
  return rank - 2;
}

static df_status run(const df_call *call) {
  const df_tensor *in = call->inputs, *y = &call->outputs[0];
  const bool transposed = df_attr_int(call, DF_ATTENTION_TRANSPOSED) != 0;
  int64_t lead[DF_WALK_RANK];
  const int32_t n_lead = lead_of(y->shape, y->rank, transposed, lead);
  const bool masked = call->n_inputs > 3 && in[3].dtype != DF_NONE;
  const df_attention p =
      df_attention_of({&in[0], &in[1], &in[2], masked ? &in[3] : nullptr, nullptr, nullptr}, lead,
                      n_lead, df_attr_float(call, DF_ATTENTION_SCALE));
  const int64_t batch = df_product(lead, 0, n_lead);
  if (batch * p.m == 0)
    return DF_OK;
  const choice c = choose(p.m, p.n, p.d, p.e, batch);
  results r{};
  r.y = static_cast<float *>(y->data);
  r.logsum = df_out<float>(call, 1);
  r.heads = static_cast<int32_t>(transposed ? lead[1] : 1);
  r.y_row = static_cast<int64_t>(r.heads) * p.e;
  r.y_head = p.e;
  r.y_entry = p.m * r.y_row;
  r.tiles = static_cast<int32_t>(df_divide_up(p.m, c.rows));
  r.splits = c.splits;
  r.split_keys = c.split_keys;
  r.rows = batch * p.m;
  if (c.splits > 1) {
    r.states = static_cast<float2 *>(call->workspace);
    r.partials = reinterpret_cast<float *>(r.states + c.splits * r.rows);
  }
  r.fours = p.e % 4 == 0 && df_is_aligned<4>(r.splits > 1 ? r.partials : r.y);
  const df_status status = launch_tiles(call, p, r, c.tiles, r.tiles * batch * c.splits);
  if (status || c.splits == 1)
    return status;
  return DF_LAUNCH(call, join_splits, df_blocks(r.rows * df_max(1, p.e), DF_BLOCK), DF_BLOCK, 0, p,
                   r);
}

/* Workspace for the results of splits. */
static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *q = &node->inputs[0], *v = &node->inputs[2], *y = &node->outputs[0];
  int64_t lead[DF_WALK_RANK];
  const int32_t n_lead =
      lead_of(y->shape, y->rank, df_attr_int(node, DF_ATTENTION_TRANSPOSED) != 0, lead);
  const int64_t batch = df_product(lead, 0, n_lead), m = q->shape[q->rank - 2];
  const int64_t e = v->shape[v->rank - 1];
  const choice c = choose(m, v->shape[v->rank - 2], q->shape[q->rank - 1], e, batch);
  if (c.splits > 1)
    out->workspace = c.splits * batch * m * (e + 2) * static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  return df_attention_accepts(node, &node->inputs[0], &node->inputs[1], &node->inputs[2]);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("attention", "f32", "~f32,~f32,~f32,~f32?->f32,f32?", nullptr,
                   .accepts = accepts, .prepare = prepare, .run = run, .capturable = 1)};
DF_CUDA_FAMILY(attention, records);
