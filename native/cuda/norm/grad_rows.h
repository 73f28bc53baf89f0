/* norm/grad_rows.h: the kernels of layer_norm_grad, see norm/layer_norm_grad.cu. */
#ifndef DF_CUDA_NORM_GRAD_ROWS_H
#define DF_CUDA_NORM_GRAD_ROWS_H
#include "norm/layer_norm.h"

enum {
  GRAD_BLOCK = 512, /* threads, but for the longest rows */
  GRAD_ROWS = 4,    /* that a group does at least, where two blocks per processor have so many */
  PROCESSORS = 132, /* of an H100: blocks that it holds at one time do all rows */
  GRAD_RESIDENT = 1024, /* threads on each of them, where a block does a row */
  WARP_BLOCK = 128,     /* threads, where a warp or less does a row */
  BAND = 32,            /* rows of a partial sum, when rows are too long for a group */
  MOST_BANDS = 512
};

struct row_norm_grad {
  void *dx;                            /* may be null, dy, x or the addend */
  const void *x, *dy;                  /* float or bfloat16 each */
  const void *addend;                  /* of dx; may be null; as dy and dx are stored */
  const float *scale, *mean, *inverse; /* the scale may be null */
  float *sums; /* [partial][kinds][n]: dscale, dbias, sums of dx; null when nobody wants them */
  int64_t partials;
  int32_t kinds; /* 3 where sums of dx are wanted, else 2 */
  int32_t center;
};

/* Sums of dx over the rows that a thread does, of its columns: in shared memory, which nobody else
 * reads, as registers are short. */
template <int HELD, int THREADS> struct row_totals {
  float (&shared)[HELD][THREADS];

  __device__ __forceinline__ void clear() const {
#pragma unroll
    for (int k = 0; k < HELD; k++)
      shared[k][threadIdx.x] = 0.0f;
  }
  __device__ __forceinline__ void add(const float (&dx)[HELD]) const {
#pragma unroll
    for (int k = 0; k < HELD; k++)
      shared[k][threadIdx.x] += dx[k];
  }
};

/* Rows that a warp holds get one or less where there are many of them, longer ones a block. */
static df_rows plan_of(const df_norm_extent &e) {
  const bool held = e.n <= int64_t{DF_HELD_MOST} * DF_WARP;
  df_rows plan = df_rows_plan(e.rows, e.n, false, held ? DF_HELD_MOST : DF_HELD);
  if (plan.group <= DF_WARP)
    plan.block = WARP_BLOCK;
  return plan;
}

/* Blocks of groups up to a warp that a processor's registers suffice for. */
static constexpr int warp_blocks(int held) {
  return held == DF_HELD ? 6 : held < DF_HELD_FEWER ? 4 : held < DF_HELD_MOST ? 3 : 2;
}

static bool in_warps(const df_rows &plan) { return plan.group <= DF_WARP; }

/* A group's row fits into its registers, so the sums over its rows do too. */
static bool fits(const df_rows &plan) {
  return plan.n <= static_cast<int64_t>(plan.group) * plan.held;
}

/* Of the rows that a block does: the sums of its groups meet in shared memory. */
static int64_t partial_count(const df_rows &plan) {
  if (in_warps(plan)) {
    const int64_t blocks = df_divide_up(plan.rows, plan.block / plan.group); /* of a row a group */
    const int64_t rows = df_max(1, df_min(blocks / (2 * PROCESSORS), GRAD_ROWS));
    return df_max(1,
                  df_min(int64_t{PROCESSORS} * warp_blocks(plan.held), df_divide_up(blocks, rows)));
  }
  if (!fits(plan))
    return df_max(1, df_min(MOST_BANDS, df_divide_up(plan.rows, BAND)));
  const int64_t most = df_max(1, int64_t{PROCESSORS} * GRAD_RESIDENT / plan.group);
  return df_max(1, df_min(most, df_divide_up(plan.rows, GRAD_ROWS)));
}

/* dy of a round times the scale. */
template <bool VECTOR>
static __device__ __forceinline__ void scale_slopes(float (&dy)[DF_HELD], const row_norm_grad &s,
                                                    const df_rows &plan, int64_t base, int lane) {
  float scale[DF_HELD];
  if (!s.scale)
    return;
  df_row_load<VECTOR>(scale, s.scale, plan, base, plan.n, lane, 0.0f);
#pragma unroll
  for (int k = 0; k < DF_HELD; k++)
    dy[k] *= scale[k];
}

/* dx of the rows of a block: its number, partials behind that, ...; elements beyond the row are 0
 * in dy and x^. Blocks of at most |most| threads: what is held takes more registers than the
 * largest blocks have. */
template <typename S, typename G, int most, bool held, bool VECTOR = false>
__global__ void __launch_bounds__(most, VECTOR ? GRAD_RESIDENT / most : 1)
    grad_rows(row_norm_grad s, df_rows plan) {
  DF_SHARED_ARRAY(float, scratch, [DF_WARP]);
  DF_SHARED_ARRAY(float, totals, [DF_HELD][GRAD_BLOCK]); /* the longest rows have none */
  const row_totals<DF_HELD, GRAD_BLOCK> total{totals};
  const bool totaled = most == GRAD_BLOCK && held && s.kinds > 2;
  if (totaled)
    total.clear();
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t round = df_row_round(plan);
  float dscale[DF_HELD] = {}, dbias[DF_HELD] = {};
  for (int64_t row = blockIdx.x; row < plan.rows; row += s.partials) {
    const float mean = s.mean[row], inverse = s.inverse[row];
    const int64_t end = plan.n, rounds = held ? 1 : plan.n, origin = row * plan.n;
    float dy[DF_HELD], x[DF_HELD], sum = 0.0f, with_x = 0.0f;
    for (int64_t base = 0; base < rounds; base += round) {
      df_row_load<VECTOR>(dy, static_cast<const G *>(s.dy) + origin, plan, base, end, lane, 0.0f);
      df_row_load<VECTOR>(x, static_cast<const S *>(s.x) + origin, plan, base, end, lane, mean);
#pragma unroll
      for (int k = 0; k < DF_HELD; k++) {
        x[k] = (x[k] - mean) * inverse;
        if (held) {
          dscale[k] = fmaf(dy[k], x[k], dscale[k]);
          dbias[k] += dy[k];
        }
      }
      scale_slopes<VECTOR>(dy, s, plan, base, lane);
      float few = 0.0f, few_x = 0.0f;
#pragma unroll
      for (int k = 0; k < DF_HELD; k++) {
        few += dy[k];
        few_x = fmaf(dy[k], x[k], few_x);
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
    for (int64_t base = 0; base < rounds; base += round) {
      if (!held) {
        df_row_load<VECTOR>(dy, static_cast<const G *>(s.dy) + origin, plan, base, end, lane, 0.0f);
        df_row_load<VECTOR>(x, static_cast<const S *>(s.x) + origin, plan, base, end, lane, mean);
        scale_slopes<VECTOR>(dy, s, plan, base, lane);
#pragma unroll
        for (int k = 0; k < DF_HELD; k++)
          x[k] = (x[k] - mean) * inverse;
      }
#pragma unroll
      for (int k = 0; k < DF_HELD; k++)
        dy[k] = inverse * (dy[k] - middle - x[k] * slope);
      if (most == GRAD_BLOCK && s.addend) { /* the longest rows have no registers for it */
        df_row_load<VECTOR>(x, static_cast<const G *>(s.addend) + origin, plan, base, end, lane,
                            0.0f);
#pragma unroll
        for (int k = 0; k < DF_HELD; k++)
          dy[k] += x[k];
      }
      if (totaled)
        total.add(dy);
      df_row_store<VECTOR>(static_cast<G *>(s.dx) + origin, dy, plan, base, end, lane);
    }
  }
  if (!held || !s.sums)
    return;
  float *sums = s.sums + blockIdx.x * s.kinds * plan.n;
  df_row_store<VECTOR>(sums, dscale, plan, 0, plan.n, lane);
  df_row_store<VECTOR>(sums + plan.n, dbias, plan, 0, plan.n, lane);
  if (totaled) {
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      dbias[k] = totals[k][threadIdx.x];
    df_row_store<VECTOR>(sums + 2 * plan.n, dbias, plan, 0, plan.n, lane);
  }
}

/* Four elements of the scale, 1 where there is none. */
template <bool VECTOR>
static __device__ __forceinline__ float4 slopes(const row_norm_grad &s, const df_rows &plan,
                                                int left, int lane, int k) {
  return s.scale ? df_row_four<VECTOR>(s.scale, plan, left, lane, k, 0.0f)
                 : float4{1.0f, 1.0f, 1.0f, 1.0f};
}

/* The same by groups of up to a warp, which hold their rows and need no barriers. */
template <typename S, typename G, bool VECTOR, int HELD>
__global__ void __launch_bounds__(WARP_BLOCK, VECTOR ? warp_blocks(HELD) : 1)
    grad_rows_in_warps(row_norm_grad s, df_rows plan) {
  DF_SHARED_ARRAY(float, joined, [3][HELD * DF_WARP]);
  DF_SHARED_ARRAY(float, totals, [HELD][WARP_BLOCK]);
  const row_totals<HELD, WARP_BLOCK> total{totals};
  const bool totaled = s.kinds > 2;
  if (totaled)
    total.clear();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % plan.group;
  const int per_block = WARP_BLOCK / plan.group;
  const float count = static_cast<float>(plan.n);
  float dscale[HELD] = {}, dbias[HELD] = {};
  /* All groups go round equally often. */
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * per_block; first < plan.rows;
       first += s.partials * per_block) {
    const int64_t row = first + thread / plan.group, origin = row * plan.n;
    const bool live = row < plan.rows;
    const float mean = live ? s.mean[row] : 0.0f, inverse = live ? s.inverse[row] : 0.0f;
    const int64_t end = live ? plan.n : 0;
    const int left = live ? static_cast<int>(plan.n) : 0;
    float dy[HELD], x[HELD], sum = 0.0f, with_x = 0.0f;
    df_row_load<VECTOR>(dy, static_cast<const G *>(s.dy) + origin, plan, 0, end, lane, 0.0f);
    df_row_load<VECTOR>(x, static_cast<const S *>(s.x) + origin, plan, 0, end, lane, mean);
#pragma unroll
    for (int k = 0; k < HELD; k += 4) {
      const float4 scale = slopes<VECTOR>(s, plan, left, lane, k);
      const float by[] = {scale.x, scale.y, scale.z, scale.w};
#pragma unroll
      for (int e = k; e < k + 4; e++) {
        x[e] = (x[e] - mean) * inverse;
        dscale[e] = fmaf(dy[e], x[e], dscale[e]);
        dbias[e] += dy[e];
        dy[e] *= by[e - k];
        sum += dy[e];
        with_x = fmaf(dy[e], x[e], with_x);
      }
    }
    if (!s.dx)
      continue;
    sum = df_group_join(sum, 0.0f, joined[0], df_add{}, plan.group);
    const float middle = s.center ? sum / count : 0.0f;
    const float slope = df_group_join(with_x, 0.0f, joined[0], df_add{}, plan.group) / count;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      dy[k] = inverse * (dy[k] - middle - x[k] * slope);
    if (s.addend) {
      df_row_load<VECTOR>(x, static_cast<const G *>(s.addend) + origin, plan, 0, end, lane, 0.0f);
#pragma unroll
      for (int k = 0; k < HELD; k++)
        dy[k] += x[k];
    }
    if (totaled && live)
      total.add(dy);
    df_row_store<VECTOR>(static_cast<G *>(s.dx) + origin, dy, plan, 0, end, lane);
  }
  if (!s.sums)
    return;
  float last[HELD] = {};
  if (totaled)
#pragma unroll
    for (int k = 0; k < HELD; k++)
      last[k] = totals[k][thread];
#pragma unroll
  for (int k = 0; k < HELD; k++)
    for (int mask = plan.group; mask < DF_WARP; mask *= 2) {
      dscale[k] += __shfl_xor_sync(0xffffffffu, dscale[k], mask);
      dbias[k] += __shfl_xor_sync(0xffffffffu, dbias[k], mask);
      last[k] += __shfl_xor_sync(0xffffffffu, last[k], mask);
    }
  for (int warp = 0; warp < WARP_BLOCK / int{DF_WARP}; warp++) { /* one after the other */
    if (thread / DF_WARP == warp && thread % DF_WARP < plan.group)
#pragma unroll
      for (int k = 0; k < HELD; k++) {
        const int i = df_row_index<VECTOR>(plan, lane, k);
        joined[0][i] = warp ? joined[0][i] + dscale[k] : dscale[k];
        joined[1][i] = warp ? joined[1][i] + dbias[k] : dbias[k];
        joined[2][i] = warp ? joined[2][i] + last[k] : last[k];
      }
    __syncthreads();
  }
  float *sums = s.sums + blockIdx.x * s.kinds * plan.n;
  for (int i = thread; i < plan.n; i += WARP_BLOCK)
    for (int kind = 0; kind < s.kinds; kind++)
      sums[kind * plan.n + i] = joined[kind][i];
}

/* Sums over the rows of a band, a thread per column: for rows that no group holds. */
template <typename S, typename G>
__global__ void __launch_bounds__(DF_BLOCK) grad_bands(row_norm_grad s, df_rows plan) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * DF_BLOCK + threadIdx.x;
  const int64_t partial = blockIdx.y, per = df_divide_up(plan.rows, s.partials);
  const int64_t end = df_min(plan.rows, (partial + 1) * per);
  if (column >= plan.n)
    return;
  float dscale = 0.0f, dbias = 0.0f;
#pragma unroll 4
  for (int64_t row = partial * per; row < end; row++) {
    const float dy = df_fetch(static_cast<const G *>(s.dy) + row * plan.n + column);
    const float x = df_fetch(static_cast<const S *>(s.x) + row * plan.n + column);
    dscale = fmaf(dy, (x - s.mean[row]) * s.inverse[row], dscale);
    dbias += dy;
  }
  s.sums[partial * 2 * plan.n + column] = dscale;
  s.sums[partial * 2 * plan.n + plan.n + column] = dbias;
}

#endif
