/* norm/layer_norm.cu: normalization of rows. x is seen as (rows, n).
 *
 *   layer_norm       y = (x - mean) inverse scale + bias, inverse = 1 / sqrt(variance + epsilon)
 *   layer_norm_grad  g = dy scale, x^ = (x - mean) inverse
 *                    dx = inverse (g - mean(g) - x^ mean(g x^))
 *                    dscale = sum over rows of dy x^, dbias = sum over rows of dy
 *
 * Without centering mean and mean(g) are 0. y may overwrite x, dx both dy and x. Rows of up to 8192
 * elements are read once, longer ones a second time. A group of threads does several rows of the
 * gradient and keeps sums over them of its columns in registers; those sums meet in the workspace
 * and are joined in order.
 */
#include "norm/moments.h"

/* ---- Forward -------------------------------------------------------------------------------- */

struct row_norm {
  float *y, *mean, *inverse; /* mean and inverse may be null */
  const float *x, *scale, *bias;
  float2 *states; /* of splits: mean, sum of squares about it */
  double epsilon;
  int32_t center;
};

/* Writes mean and squares of all of the group's elements, |n| of them, into every thread. */
static __device__ __forceinline__ void join_moments(df_moments *m, double *double_scratch,
                                                    float *scratch, const df_rows &plan,
                                                    int64_t n) {
  const double sum = df_group_join(static_cast<double>(m->mean) * static_cast<double>(m->count),
                                   0.0, double_scratch, df_add{}, plan.group);
  const float mean = static_cast<float>(sum / static_cast<double>(n)), apart = m->mean - mean;
  m->squares =
      df_group_join(m->squares + m->count * apart * apart, 0.0f, scratch, df_add{}, plan.group);
  m->mean = mean;
}

/* x^ scale + bias from |base| on. */
static __device__ __forceinline__ void put_norm(const row_norm &s, float (&x)[DF_HELD], float *y,
                                                float mean, float inverse, const df_rows &plan,
                                                int64_t base, int64_t end, int lane) {
  float other[DF_HELD];
#pragma unroll
  for (int k = 0; k < DF_HELD; k++)
    x[k] = (x[k] - mean) * inverse;
  if (s.scale) {
    df_row_load(other, s.scale, plan, base, end, lane, 0.0f);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      x[k] *= other[k];
  }
  if (s.bias) {
    df_row_load(other, s.bias, plan, base, end, lane, 0.0f);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      x[k] += other[k];
  }
  df_row_store(y, x, plan, base, end, lane);
}

__global__ void __launch_bounds__(DF_ROW_BLOCK) norm_rows(row_norm s, df_rows plan, int what) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(double, double_scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const int64_t round = df_row_round(plan), origin = at.row * plan.n;
  float x[DF_HELD];
  df_moments m{0.0f, 0.0f, 0.0f};
  if (what == DF_ROW_RESULTS) {
    if (at.row < plan.rows && at.lane < plan.splits) {
      const float2 state = s.states[at.row * plan.splits + at.lane];
      const int64_t begin = at.lane * plan.length;
      m = {static_cast<float>(df_min(plan.length, plan.n - begin)), state.x, state.y};
    }
  } else {
    for (int64_t base = at.begin; base < at.end; base += round) {
      df_row_load(x, s.x + origin, plan, base, at.end, at.lane, 0.0f);
      m.add(x, df_held_count(plan, at.lane, df_row_left(plan, base, at.end)), s.center);
    }
  }
  join_moments(&m, double_scratch, scratch, plan,
               what == DF_ROW_STATES ? at.end - at.begin : plan.n);
  if (what == DF_ROW_STATES) {
    if (at.lane == 0 && at.row < plan.rows)
      s.states[at.row * plan.splits + blockIdx.y] = make_float2(m.mean, m.squares);
    return;
  }
  const double variance = static_cast<double>(m.squares) / static_cast<double>(plan.n);
  const float inverse = static_cast<float>(1.0 / sqrt(variance + s.epsilon));
  if (at.lane == 0 && at.row < plan.rows && blockIdx.y == 0) {
    if (s.mean)
      s.mean[at.row] = m.mean;
    if (s.inverse)
      s.inverse[at.row] = inverse;
  }
  const bool held = what == DF_ROW_COMPLETE && plan.length <= round;
  for (int64_t base = at.begin; base < at.end; base += round) {
    if (!held)
      df_row_load(x, s.x + origin, plan, base, at.end, at.lane, 0.0f);
    put_norm(s, x, s.y + origin, m.mean, inverse, plan, base, at.end, at.lane);
  }
}

/* Rows and columns of |shape| when rows begin at the axis of the attribute. */
struct extent {
  int64_t rows, n;
};
template <typename N> static extent extent_of(const N *of, const int64_t *shape, int32_t rank) {
  const int64_t axis = df_axis(of, DF_LAYER_NORM_AXIS, rank);
  return {df_product(shape, 0, axis), df_product(shape, axis, rank)};
}

static df_status norm_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0];
  const extent e = extent_of(node, x->shape, x->rank);
  const df_rows plan = df_rows_plan(e.rows, e.n, true);
  if (plan.splits > 1)
    out->workspace = plan.rows * plan.splits * static_cast<int64_t>(sizeof(float2));
  return DF_OK;
}

/* Rows of no elements have no mean: zeros. */
static df_status clear(const df_call *call, float *at, int64_t count) {
  if (!at || count == 0)
    return DF_OK;
  const cudaError_t status = cudaMemsetAsync(at, 0, static_cast<size_t>(count) * sizeof(float),
                                             static_cast<cudaStream_t>(call->stream));
  return status ? df_fail(call, DF_DEVICE, "clearing: %s", cudaGetErrorString(status)) : DF_OK;
}

static df_status norm_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const extent e = extent_of(call, x->shape, x->rank);
  row_norm s{};
  s.y = df_out<float>(call, 0);
  s.mean = df_out<float>(call, 1);
  s.inverse = df_out<float>(call, 2);
  if (e.rows * e.n == 0) {
    const df_status status = clear(call, s.mean, e.rows);
    return status ? status : clear(call, s.inverse, e.rows);
  }
  s.x = df_in<const float>(call, 0);
  s.scale = df_in<const float>(call, 1);
  s.bias = df_in<const float>(call, 2);
  s.states = static_cast<float2 *>(call->workspace);
  s.epsilon = df_attr_float(call, DF_LAYER_NORM_EPSILON);
  s.center = df_attr_int(call, DF_LAYER_NORM_CENTER) != 0;
  df_rows plan = df_rows_plan(e.rows, e.n, true);
  df_rows_vectors(&plan, s.y, s.x, s.scale, s.bias);
  const dim3 grid = df_rows_grid(plan);
  if (plan.splits > 1) {
    const df_status status =
        DF_LAUNCH(call, norm_rows, grid, plan.block, 0, s, plan, int{DF_ROW_STATES});
    if (status)
      return status;
  }
  return DF_LAUNCH(call, norm_rows, grid, plan.block, 0, s, plan,
                   plan.splits > 1 ? int{DF_ROW_RESULTS} : int{DF_ROW_COMPLETE});
}

/* ---- Gradient ------------------------------------------------------------------------------- */

enum {
  GRAD_BLOCK = 512,       /* threads, but for the longest rows */
  GRAD_ROWS = 4,          /* that a group does at least */
  GRAD_THREADS = 1 << 17, /* of all groups together */
  BAND = 32,              /* rows of a partial sum, when rows are too long for a group */
  MOST_BANDS = 512
};

struct row_norm_grad {
  float *dx;                                             /* may be null, dy, x or the addend */
  const float *dy, *x, *scale, *mean, *inverse, *addend; /* of dx; may be null */
  float *sums; /* [partial][2][n]: dscale, dbias; null when nobody wants them */
  int64_t partials;
  int32_t center;
};

/* A group's row fits into its registers, so the sums over its rows do too. */
static bool fits(const df_rows &plan) {
  return plan.n <= static_cast<int64_t>(plan.group) * DF_HELD;
}

static int64_t partial_count(const df_rows &plan) {
  if (!fits(plan))
    return df_max(1, df_min(MOST_BANDS, df_divide_up(plan.rows, BAND)));
  const int64_t most = df_max(1, GRAD_THREADS / plan.group);
  return df_max(1, df_min(most, df_divide_up(plan.rows, GRAD_ROWS)));
}

/* g of a round. */
static __device__ __forceinline__ void load_slopes(float (&g)[DF_HELD], const row_norm_grad &s,
                                                   const float (&dy)[DF_HELD], const df_rows &plan,
                                                   int64_t base, int lane) {
  if (s.scale) {
    df_row_load(g, s.scale, plan, base, plan.n, lane, 0.0f);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      g[k] *= dy[k];
  } else {
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      g[k] = dy[k];
  }
}

/* dx of the rows group, group + partials, ...; elements beyond the row are 0 in dy and x^. Blocks
 * of at most |most| threads: what is held takes more registers than the largest blocks have. */
template <int most>
__global__ void __launch_bounds__(most) grad_rows(row_norm_grad s, df_rows plan, int held) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  const int lane = static_cast<int>(threadIdx.x) % plan.group;
  const int per_block = plan.block / plan.group;
  const int64_t group = static_cast<int64_t>(blockIdx.x) * per_block + threadIdx.x / plan.group;
  const int64_t round = df_row_round(plan);
  float dscale[DF_HELD] = {}, dbias[DF_HELD] = {};
  /* All groups of a block go round equally often. */
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * per_block; first < plan.rows;
       first += s.partials) {
    const int64_t row = first + threadIdx.x / plan.group;
    const bool live = row < plan.rows && group < s.partials;
    const float mean = live ? s.mean[row] : 0.0f, inverse = live ? s.inverse[row] : 0.0f;
    const int64_t end = live ? plan.n : 0, origin = row * plan.n;
    float dy[DF_HELD], x[DF_HELD], g[DF_HELD], sum = 0.0f, with_x = 0.0f;
    for (int64_t base = 0; base < plan.n; base += round) {
      df_row_load(dy, s.dy + origin, plan, base, end, lane, 0.0f);
      df_row_load(x, s.x + origin, plan, base, end, lane, mean);
      load_slopes(g, s, dy, plan, base, lane);
      float few = 0.0f, few_x = 0.0f;
#pragma unroll
      for (int k = 0; k < DF_HELD; k++) {
        x[k] = (x[k] - mean) * inverse;
        few += g[k];
        few_x = fmaf(g[k], x[k], few_x);
        if (held) {
          dscale[k] = fmaf(dy[k], x[k], dscale[k]);
          dbias[k] += dy[k];
        }
      }
      sum += few;
      with_x += few_x;
    }
    if (!s.dx)
      continue;
    const float count = static_cast<float>(plan.n);
    sum = df_group_join(sum, 0.0f, scratch, df_add{}, plan.group);
    const float middle = s.center ? sum / count : 0.0f;
    const float slope = df_group_join(with_x, 0.0f, scratch, df_add{}, plan.group) / count;
    for (int64_t base = 0; base < plan.n; base += round) {
      if (!held) {
        df_row_load(dy, s.dy + origin, plan, base, end, lane, 0.0f);
        df_row_load(x, s.x + origin, plan, base, end, lane, mean);
        load_slopes(g, s, dy, plan, base, lane);
#pragma unroll
        for (int k = 0; k < DF_HELD; k++)
          x[k] = (x[k] - mean) * inverse;
      }
#pragma unroll
      for (int k = 0; k < DF_HELD; k++)
        g[k] = inverse * (g[k] - middle - x[k] * slope);
      if (most == GRAD_BLOCK && s.addend) { /* the longest rows have no registers for it */
        df_row_load(x, s.addend + origin, plan, base, end, lane, 0.0f);
#pragma unroll
        for (int k = 0; k < DF_HELD; k++)
          g[k] += x[k];
      }
      df_row_store(s.dx + origin, g, plan, base, end, lane);
    }
  }
  if (!held || !s.sums || group >= s.partials)
    return;
  float *sums = s.sums + group * 2 * plan.n;
  df_row_store(sums, dscale, plan, 0, plan.n, lane);
  df_row_store(sums + plan.n, dbias, plan, 0, plan.n, lane);
}

/* Sums over the rows of a band, a thread per column: for rows that no group holds. */
__global__ void __launch_bounds__(DF_BLOCK) grad_bands(row_norm_grad s, df_rows plan) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  const int64_t partial = blockIdx.y, per = df_divide_up(plan.rows, s.partials);
  const int64_t end = df_min(plan.rows, (partial + 1) * per);
  if (column >= plan.n)
    return;
  float dscale = 0.0f, dbias = 0.0f;
#pragma unroll 4
  for (int64_t row = partial * per; row < end; row++) {
    const float dy = s.dy[row * plan.n + column];
    dscale = fmaf(dy, (s.x[row * plan.n + column] - s.mean[row]) * s.inverse[row], dscale);
    dbias += dy;
  }
  s.sums[partial * 2 * plan.n + column] = dscale;
  s.sums[partial * 2 * plan.n + plan.n + column] = dbias;
}

enum { SIDE = 32, MOST_BELOW = 32 }; /* columns of a block, threads below one another */

/* dscale and dbias: the partial sums joined in double. */
__global__ void __launch_bounds__(SIDE *MOST_BELOW)
    join_partials(float *dscale, float *dbias, const float *sums, int64_t n, int64_t partials) {
  DF_SHARED_ARRAY(double, shared, [MOST_BELOW][SIDE + 1]);
  const int side = static_cast<int>(threadIdx.x) % SIDE, own = static_cast<int>(threadIdx.x) / SIDE;
  const int below = static_cast<int>(blockDim.x) / SIDE;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * SIDE;
  double sum = 0.0;
  if (first + side < 2 * n)
#pragma unroll 4
    for (int64_t partial = own; partial < partials; partial += below)
      sum += static_cast<double>(sums[partial * 2 * n + first + side]);
  shared[own][side] = sum;
  __syncthreads();
  for (int column = own; column < SIDE; column += below) { /* a warp joins a column */
    sum = df_warp_join(side < below ? shared[side][column] : 0.0, df_add{});
    const int64_t at = first + column;
    float *to = at < n ? dscale : dbias;
    if (side == 0 && at < 2 * n && to)
      to[at < n ? at : at - n] = static_cast<float>(sum);
  }
}

static const char *grad_accepts(const df_node *node) {
  const df_operand *x = node->inputs[1];
  const extent e = extent_of(node, x->shape, x->rank);
  const bool adds = node->n_inputs > 5 && node->inputs[5]->dtype != DF_NONE;
  return adds && df_rows_plan(e.rows, e.n, false).block > GRAD_BLOCK
             ? "an addend is not supported of rows that are so long"
             : nullptr;
}

static df_status grad_prepare(const df_node *node, df_prepared *out, df_error *) {
  if (node->outputs[1]->dtype == DF_NONE && node->outputs[2]->dtype == DF_NONE)
    return DF_OK;
  const df_operand *x = node->inputs[1];
  const extent e = extent_of(node, x->shape, x->rank);
  out->workspace = partial_count(df_rows_plan(e.rows, e.n, false)) * 2 * e.n *
                   static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

static df_status grad_run(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  const extent e = extent_of(call, x->shape, x->rank);
  float *dscale = df_out<float>(call, 1), *dbias = df_out<float>(call, 2);
  if (e.rows * e.n == 0) {
    const df_status status = clear(call, dscale, e.n);
    return status ? status : clear(call, dbias, e.n);
  }
  df_rows plan = df_rows_plan(e.rows, e.n, false);
  row_norm_grad s{};
  s.dx = df_out<float>(call, 0);
  s.dy = df_in<const float>(call, 0);
  s.x = df_in<const float>(call, 1);
  s.scale = df_in<const float>(call, 2);
  s.mean = df_in<const float>(call, 3);
  s.inverse = df_in<const float>(call, 4);
  s.addend = df_in<const float>(call, 5);
  s.sums = dscale || dbias ? static_cast<float *>(call->workspace) : nullptr;
  s.partials = partial_count(plan);
  s.center = df_attr_int(call, DF_LAYER_NORM_CENTER) != 0;
  df_rows_vectors(&plan, s.dx, s.dy, s.x, s.scale, s.addend);
  df_status status = DF_OK;
  const bool held = fits(plan);
  if (s.sums && !held) { /* before dx overwrites what it reads */
    const dim3 grid(df_blocks(e.n, DF_BLOCK), static_cast<unsigned>(s.partials));
    status = DF_LAUNCH(call, grad_bands, grid, DF_BLOCK, 0, s, plan);
  }
  if (!held)
    s.partials = e.rows;
  if (!status && (s.dx || held)) {
    const unsigned blocks = df_blocks(s.partials, plan.block / plan.group);
    status =
        plan.block > GRAD_BLOCK
            ? DF_LAUNCH(call, (grad_rows<DF_ROW_BLOCK>), blocks, plan.block, 0, s, plan, int{held})
            : DF_LAUNCH(call, (grad_rows<GRAD_BLOCK>), blocks, plan.block, 0, s, plan, int{held});
  }
  if (status || !s.sums)
    return status;
  const int64_t partials = partial_count(plan);
  const unsigned below = static_cast<unsigned>(df_power_of_two(partials, MOST_BELOW));
  return DF_LAUNCH(call, join_partials, df_blocks(2 * e.n, SIDE), SIDE * below, 0, dscale, dbias,
                   static_cast<const float *>(s.sums), e.n, partials);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("layer_norm", "f32", "f32,f32?,f32?->f32,f32?,f32?", "0<0",
                   .prepare = norm_prepare, .run = norm_run, .capturable = 1),
    DF_CUDA_KERNEL("layer_norm_grad", "f32", "f32,f32,f32?,f32,f32,f32?->f32?,f32?,f32?",
                   "0<0,0<1,0<5", .accepts = grad_accepts, .prepare = grad_prepare, .run = grad_run,
                   .capturable = 1)};
DF_CUDA_FAMILY(layer_norm, records);
