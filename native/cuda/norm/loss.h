/* norm/loss.h: softmax cross entropy over class labels, what norm/loss.cu and
 * norm/loss_with_grad.cu share.
 *
 * logits x: (outer, size, inner), the first C of |size| are classes; labels l, loss, m, s: (outer,
 * inner).
 *   m = max_c x_c, s = log sum_c e^(x_c - m)         their sum, rounded, would lose digits of s
 *   loss = m + s - (1 - a) x_l - (a / C) sum_c x_c   a = label_smoothing
 *   dx_c = dloss (e^(x_c - m - s) - (1 - a) [c = l] - a / C)
 * Where l is ignore_index, loss and dx are 0. A label outside [0, C) is a fault and then treated as
 * if it were ignored. dx is 0 behind the classes.
 */
#ifndef DF_CUDA_NORM_LOSS_H
#define DF_CUDA_NORM_LOSS_H
#include "map/map.h"
#include "map/stored.h"
#include "norm/softmax.h"

/* Labels of either type. */
struct labels {
  const void *data;
  int64_t classes, ignored;
  int32_t is_int64;

  __device__ int64_t at(int64_t i) const {
    return is_int64 ? static_cast<const int64_t *>(data)[i] : static_cast<const int32_t *>(data)[i];
  }
  /* Whether a label is that of an element that counts. */
  __device__ bool counts(int64_t label) const {
    return label >= 0 && label < classes && label != ignored;
  }
  __device__ bool is_fault(int64_t label) const { return !counts(label) && label != ignored; }
};

struct shape {
  int64_t outer, size, inner;
};

static shape shape_of(const df_call *call, const df_tensor *logits) {
  const int64_t axis = df_axis(call, DF_SOFTMAX_CROSS_ENTROPY_AXIS, logits->rank);
  return {df_product(logits->shape, 0, axis), logits->shape[axis],
          df_product(logits->shape, axis + 1, logits->rank)};
}

static labels labels_of(const df_call *call, int32_t input, int64_t size) {
  const df_tensor *given = call->inputs[input];
  const int64_t classes = df_attr_int(call, DF_SOFTMAX_CROSS_ENTROPY_CLASSES);
  return {given->data, classes ? classes : size,
          df_attr_int(call, DF_SOFTMAX_CROSS_ENTROPY_IGNORE_INDEX), given->dtype == DF_INT64};
}

struct forward {
  float *loss, *top, *log_sum; /* the latter may be null */
  const float *x;
  labels labels_;
  float smoothing;
  df_fault *fault;
  int32_t step;
};

static forward forward_of(const df_call *call, int32_t logits, int64_t size) {
  return {df_out<float>(call, 0),
          nullptr,
          nullptr,
          df_in<const float>(call, logits),
          labels_of(call, logits + 1, size),
          static_cast<float>(df_attr_float(call, DF_SOFTMAX_CROSS_ENTROPY_LABEL_SMOOTHING)),
          call->fault,
          call->step};
}

/* One of the logits of a row, or 0. */
static __device__ __forceinline__ float finite(float x) { return fabsf(x) < INFINITY ? x : 0.0f; }

/* State of a row: what softmax needs, and the sum of x - |near| when labels are smoothed. |near| is
 * one of them, since the sum of what is far from 0 would be rounded. */
struct row_state {
  df_exp_sum exps;
  float sum;

  __device__ void clear() {
    exps.clear();
    sum = 0.0f;
  }
  /* is_there(k): whether element k is one; the others are -infinity. The sum is wanted with
   * |smooth|. near(): read again each time, which is a register less. */
  template <int HELD, typename F, typename N>
  __device__ void add(const float (&x)[HELD], bool smooth, F is_there, N near) {
    exps.add(x);
    if (!smooth)
      return;
    const float from = finite(near());
    float few = 0.0f;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      few += is_there(k) ? x[k] - from : 0.0f;
    sum += few;
  }
  template <typename J> __device__ void join(J j) {
    exps.join(j);
    sum = j(sum, 0.0f, df_add{});
  }
};

/* Adds the elements of the round from |base| on that are before |stop|. */
template <int HELD, typename N>
static __device__ __forceinline__ void
add_round(row_state &state, float (&x)[HELD], const forward &f, const float *row,
          const df_rows &plan, int64_t base, int64_t stop, int lane, N near) {
  df_row_load(x, row, plan, base, stop, lane, -INFINITY);
  const int left = df_row_left<HELD>(plan, base, stop);
  const auto is_there = [&](int k) { return df_row_index(plan, lane, k) < left; };
  if (plan.vector && left % 4 != 0) { /* the last class has others beside it */
#pragma unroll
    for (int k = 0; k < HELD; k++)
      x[k] = is_there(k) ? x[k] : -INFINITY;
  }
  state.add(x, HELD < DF_HELD_MOST && f.smoothing != 0.0f, is_there, near);
}

/* Adds the elements of a column, from |at.first| on. */
template <typename N>
static __device__ __forceinline__ void add_column(row_state &state, const forward &f,
                                                  const df_columns &plan,
                                                  const df_column_position &at, N near) {
  for (int64_t base = 0; base < f.labels_.classes;
       base += static_cast<int64_t>(at.step) * DF_HELD) {
    const auto is_there = [&](int k) {
      return at.live && base + at.first + k * at.step < f.labels_.classes;
    };
    float x[DF_HELD];
    df_column_load(x, f.x, plan, at, base, -INFINITY);
#pragma unroll
    for (int k = 0; k < DF_HELD; k++)
      x[k] = is_there(k) ? x[k] : -INFINITY;
    state.add(x, f.smoothing != 0.0f, is_there, near);
  }
}

/* The loss at index |i|; |own|: the logit of its label, where it counts. */
template <typename N>
static __device__ __forceinline__ void store_loss(const forward &f, int64_t i, int64_t label,
                                                  float own, const row_state &state, N near) {
  const float m = state.exps.m, log_sum = logf(state.exps.s);
  if (f.top)
    f.top[i] = m;
  if (f.log_sum)
    f.log_sum[i] = log_sum;
  if (!f.labels_.counts(label)) {
    if (f.labels_.is_fault(label))
      df_fault_note(f.fault, f.step, label, f.labels_.classes);
    f.loss[i] = 0.0f;
    return;
  }
  float loss = log_sum + (1.0f - f.smoothing) * (m - own);
  if (f.smoothing != 0.0f)
    loss +=
        f.smoothing * ((m - finite(near())) - state.sum / static_cast<float>(f.labels_.classes));
  f.loss[i] = loss;
}

/* What all elements of a row have in common for the gradient. */
struct row_scale {
  float scale, top, log_sum, uniform, hit;

  __device__ row_scale(float dloss, float given_top, float given_log_sum, float smoothing,
                       int64_t classes)
      : scale(dloss), top(given_top), log_sum(given_log_sum),
        uniform(smoothing / static_cast<float>(classes)), hit(1.0f - smoothing) {}
  __device__ float operator()(float x, bool is_label) const {
    const float other = scale == 0.0f ? 0.0f : scale * (expf((x - top) - log_sum) - uniform);
    return is_label ? other - hit * scale : other;
  }
};

#endif
