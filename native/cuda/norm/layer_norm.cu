/* norm/layer_norm.cu: normalization of rows. x is seen as (rows, n).
 *
 *   y = (x - mean) inverse scale + bias, inverse = 1 / sqrt(variance + epsilon)
 *
 * Without centering mean is 0. y may overwrite x. Rows of up to 8192 elements are read once, longer
 * ones a second time.
 */
#include "norm/layer_norm.h"
#include "norm/moments.h"

struct row_norm {
  void *y;               /* float or bfloat16 */
  const void *x;         /* likewise */
  float *mean, *inverse; /* may be null */
  const float *scale, *bias;
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
template <bool VECTOR = false, int HELD, typename T>
static __device__ __forceinline__ void put_norm(const row_norm &s, float (&x)[HELD], T *y,
                                                float mean, float inverse, const df_rows &plan,
                                                int64_t base, int64_t end, int lane) {
  const int left = df_row_left<HELD>(plan, base, end);
#pragma unroll
  for (int k = 0; k < HELD; k += 4) {
    float4 scale{1.0f, 1.0f, 1.0f, 1.0f}, bias{0.0f, 0.0f, 0.0f, 0.0f};
    if (s.scale)
      scale = df_row_four<VECTOR>(s.scale + base, plan, left, lane, k, 0.0f);
    if (s.bias)
      bias = df_row_four<VECTOR>(s.bias + base, plan, left, lane, k, 0.0f);
    const float by[] = {scale.x, scale.y, scale.z, scale.w};
    const float plus[] = {bias.x, bias.y, bias.z, bias.w};
#pragma unroll
    for (int e = k; e < k + 4; e++) {
      x[e] = (x[e] - mean) * inverse;
      x[e] = s.scale ? x[e] * by[e - k] : x[e];
      x[e] = s.bias ? x[e] + plus[e - k] : x[e];
    }
  }
  df_row_store<VECTOR>(y, x, plan, base, end, lane);
}

/* Writes what is wanted of mean and inverse of a row; returns inverse. */
static __device__ __forceinline__ float put_moments(const row_norm &s, const df_moments &m,
                                                    const df_rows &plan,
                                                    const df_row_position &at) {
  const double variance = static_cast<double>(m.squares) / static_cast<double>(plan.n);
  const float inverse = static_cast<float>(1.0 / sqrt(variance + s.epsilon));
  if (at.lane == 0 && at.row < plan.rows && blockIdx.y == 0) {
    if (s.mean)
      s.mean[at.row] = m.mean;
    if (s.inverse)
      s.inverse[at.row] = inverse;
  }
  return inverse;
}

/* Of rows of S, written as T. */
template <typename S, typename T>
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
      df_row_load(x, static_cast<const S *>(s.x) + origin, plan, base, at.end, at.lane, 0.0f);
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
  const float inverse = put_moments(s, m, plan, at);
  const bool held = what == DF_ROW_COMPLETE && plan.length <= round;
  for (int64_t base = at.begin; base < at.end; base += round) {
    if (!held)
      df_row_load(x, static_cast<const S *>(s.x) + origin, plan, base, at.end, at.lane, 0.0f);
    put_norm(s, x, static_cast<T *>(s.y) + origin, m.mean, inverse, plan, base, at.end, at.lane);
  }
}

/* Blocks of a multiprocessor: one less where the registers that 16 bits take would be spilled. */
static constexpr int df_held_resident(int held, size_t source, size_t result) {
  const bool less = held == 2 * DF_HELD
                        ? source + result < 2 * sizeof(float)
                        : held < DF_HELD_MOST && held > DF_HELD && source < sizeof(float);
  return held < DF_HELD_MOST ? held / DF_HELD - less : 2;
}

/* Rows that groups hold by vectors, see df_rows_are_held. */
template <int HELD, typename S, typename T>
__global__ void __launch_bounds__(df_rows_block(HELD), df_held_resident(HELD, sizeof(S), sizeof(T)))
    norm_rows_held(row_norm s, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(double, double_scratch, [DF_WARP]);
  const df_row_position at = df_row_of_thread(plan);
  const int64_t origin = at.row * plan.n;
  float x[HELD];
  df_moments m{0.0f, 0.0f, 0.0f};
  df_row_load<true>(x, static_cast<const S *>(s.x) + origin, plan, 0, at.end, at.lane, 0.0f);
  m.add(x, df_held_count<true, HELD>(plan, at.lane, static_cast<int>(at.end)), s.center);
  join_moments(&m, double_scratch, scratch, plan, plan.n);
  const float inverse = put_moments(s, m, plan, at);
  put_norm<true>(s, x, static_cast<T *>(s.y) + origin, m.mean, inverse, plan, 0, at.end, at.lane);
}

static df_status norm_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *x = node->inputs[0];
  const df_norm_extent e = df_norm_extent_of(node, x->shape, x->rank);
  const df_rows plan = df_rows_plan(e.rows, e.n, true);
  if (plan.splits > 1)
    out->workspace = plan.rows * plan.splits * static_cast<int64_t>(sizeof(float2));
  return DF_OK;
}

template <typename S, typename T> static df_status norm_to(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const df_norm_extent e = df_norm_extent_of(call, x->shape, x->rank);
  row_norm s{};
  s.y = df_out<T>(call, 0);
  s.mean = df_out<float>(call, 1);
  s.inverse = df_out<float>(call, 2);
  if (e.rows * e.n == 0) {
    const df_status status = df_norm_clear(call, s.mean, e.rows);
    return status ? status : df_norm_clear(call, s.inverse, e.rows);
  }
  s.x = df_in<const S>(call, 0);
  s.scale = df_in<const float>(call, 1);
  s.bias = df_in<const float>(call, 2);
  s.states = static_cast<float2 *>(call->workspace);
  s.epsilon = df_attr_float(call, DF_LAYER_NORM_EPSILON);
  s.center = df_attr_int(call, DF_LAYER_NORM_CENTER) != 0;
  df_rows plan = df_rows_plan(e.rows, e.n, true);
  df_rows_vectors(&plan, static_cast<const char *>(s.y), static_cast<const char *>(s.x), s.scale,
                  s.bias);
  const bool held = df_rows_are_held(&plan);
  const dim3 grid = df_rows_grid(plan);
  if (held)
    return df_by_held(plan, [&]<int HELD>() {
      return DF_LAUNCH(call, (norm_rows_held<HELD, S, T>), grid, plan.block, 0, s, plan);
    });
  if (plan.splits > 1) {
    const df_status status =
        DF_LAUNCH(call, (norm_rows<S, T>), grid, plan.block, 0, s, plan, int{DF_ROW_STATES});
    if (status)
      return status;
  }
  return DF_LAUNCH(call, (norm_rows<S, T>), grid, plan.block, 0, s, plan,
                   plan.splits > 1 ? int{DF_ROW_RESULTS} : int{DF_ROW_COMPLETE});
}

template <typename S> static df_status norm_of(const df_call *call) {
  return call->outputs[0]->dtype == DF_BFLOAT16 ? norm_to<S, uint16_t>(call)
                                                : norm_to<S, float>(call);
}

static df_status norm_run(const df_call *call) {
  return call->inputs[0]->dtype == DF_BFLOAT16 ? norm_of<uint16_t>(call) : norm_of<float>(call);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("layer_norm", "f32", "f32|bf16,f32?,f32?->f32|bf16,f32?,f32?", "0<0",
                   .prepare = norm_prepare, .run = norm_run, .capturable = 1)};
DF_CUDA_FAMILY(layer_norm, records);
