/* map/optimizer.cu: one optimizer step over one parameter or over many, in one pass, and the sum of
 * squares that the norm of gradients is made of. hyper holds what changes from step to step;
 * |scale| multiplies the gradient; both are read on the card. All tensors are contiguous; outputs
 * may overwrite their inputs.
 *
 * Many parameters are one launch: a table of their addresses and sizes is the kernel's parameter.
 * There are two sizes of it, since a launch copies all of it.
 * Blocks of CHUNK elements are numbered through, and a block finds its parameter in the table. An
 * element of sgd reads 2 or 3 numbers and writes 1 or 2, one of adamw reads 4 and writes 3.
 */
#include "kernels.h"
#include "kernels/optimizer.h"

#include <algorithm>

enum {
  CHUNK = DF_BLOCK * 8, /* elements of a block */
  SQUARED = CHUNK * 4,  /* elements of a block that sums their squares, at least */
  FEW = 36,             /* parameters of a table of 4 KB */
  MANY = 292            /* of one of 32 KB, the most that CUDA 12.1 and later give a kernel */
};

struct parameter {
  float *param, *first, *second; /* outputs: parameter; velocity, or moments m and v */
  const float *old_param, *grad, *old_first, *old_second;
  const float *hyper, *scale;
  int64_t count;
  int64_t end;       /* blocks up to the end of this one */
  df_adamw_betas of; /* sgd: beta1 is the momentum */
  int16_t nesterov;
  int16_t vector; /* 16 bytes at a time */
};

template <int MOST> struct table {
  int32_t count;
  int32_t reserved;
  parameter parameters[MOST];
};
static_assert(sizeof(table<FEW>) <= 4096, "a kernel's parameters have 4 KB");
static_assert(sizeof(table<MANY>) <= 32764, "a kernel's parameters have 32 KB");

struct sgd {
  df_sgd rule;
  bool moves, nesterov;

  __device__ explicit sgd(const parameter &p)
      : rule{*p.scale, p.hyper[0], p.hyper[1], p.of.beta1}, moves(p.first != nullptr),
        nesterov(p.nesterov != 0) {}
  __device__ void operator()(float &p, float grad, float &v, float &) const {
    const float g = df_sgd_gradient(&rule, p, grad);
    if (!moves) {
      p = df_sgd_parameter(&rule, p, g);
      return;
    }
    v = df_sgd_velocity(&rule, v, g);
    p = df_sgd_parameter(&rule, p, nesterov ? df_sgd_nesterov(&rule, g, v) : v);
  }
};

struct adamw {
  df_adamw rule;

  __device__ explicit adamw(const parameter &p) : rule(df_adamw_make(p.of, p.hyper, *p.scale)) {}
  __device__ void operator()(float &p, float grad, float &m, float &v) const {
    const float g = rule.scale * grad;
    m = df_adamw_first(&rule, m, g);
    v = df_adamw_second(&rule, v, g);
    p = df_adamw_parameter(&rule, p, m, v);
  }
};

static __device__ __forceinline__ float4 load_four(const float *from, int64_t i) {
  return from ? *reinterpret_cast<const float4 *>(from + i) : float4{0.0f, 0.0f, 0.0f, 0.0f};
}

/* Elements [begin, end) of one parameter, by all threads of a block. */
template <typename Step>
static __device__ __forceinline__ void walk_chunk(const parameter &p, int64_t begin, int64_t end) {
  const Step step(p);
  const int thread = static_cast<int>(threadIdx.x);
  if (p.vector) {
#pragma unroll 2
    for (int64_t i = begin + thread * 4; i < end; i += DF_BLOCK * 4) {
      float4 value = load_four(p.old_param, i), first = load_four(p.old_first, i);
      float4 second = load_four(p.old_second, i);
      const float4 grad = load_four(p.grad, i);
      step(value.x, grad.x, first.x, second.x);
      step(value.y, grad.y, first.y, second.y);
      step(value.z, grad.z, first.z, second.z);
      step(value.w, grad.w, first.w, second.w);
      *reinterpret_cast<float4 *>(p.param + i) = value;
      if (p.first)
        *reinterpret_cast<float4 *>(p.first + i) = first;
      if (p.second)
        *reinterpret_cast<float4 *>(p.second + i) = second;
    }
    return;
  }
  for (int64_t i = begin + thread; i < end; i += DF_BLOCK) {
    float value = p.old_param[i], first = p.old_first ? p.old_first[i] : 0.0f;
    float second = p.old_second ? p.old_second[i] : 0.0f;
    step(value, p.grad[i], first, second);
    p.param[i] = value;
    if (p.first)
      p.first[i] = first;
    if (p.second)
      p.second[i] = second;
  }
}

template <typename Step, int MOST>
__global__ void __launch_bounds__(DF_BLOCK) step_many(const __grid_constant__ table<MOST> t) {
  int low = 0, high = t.count - 1; /* the first whose end lies behind this block */
  while (low < high) {
    const int middle = (low + high) / 2;
    if (t.parameters[middle].end <= blockIdx.x)
      low = middle + 1;
    else
      high = middle;
  }
  const parameter &p = t.parameters[low];
  const int64_t before = low > 0 ? t.parameters[low - 1].end : 0;
  const int64_t begin = (blockIdx.x - before) * CHUNK;
  walk_chunk<Step>(p, begin, df_min(p.count, begin + CHUNK));
}

/* ---- Running -------------------------------------------------------------------------------- */

static bool fits_vectors(const parameter &p) {
  uintptr_t all = 0;
  for (const void *at :
       {static_cast<const void *>(p.param), static_cast<const void *>(p.first),
        static_cast<const void *>(p.second), static_cast<const void *>(p.old_param),
        static_cast<const void *>(p.grad), static_cast<const void *>(p.old_first),
        static_cast<const void *>(p.old_second)})
    all |= reinterpret_cast<uintptr_t>(at);
  return all % 16 == 0 && p.count % 4 == 0;
}

/* sgd_step(param, grad, velocity?, hyper, scale; momentum, nesterov) -> param', velocity'? */
static df_status describe(const df_call *call, parameter *p, const sgd *) {
  p->param = df_out<float>(call, 0);
  p->first = df_out<float>(call, 1);
  p->old_param = df_in<const float>(call, 0);
  p->grad = df_in<const float>(call, 1);
  p->old_first = df_in<const float>(call, 2);
  p->hyper = df_in<const float>(call, 3);
  p->scale = df_in<const float>(call, 4);
  p->of.beta1 = static_cast<float>(df_attr_float(call, DF_SGD_STEP_MOMENTUM));
  p->nesterov = df_attr_int(call, DF_SGD_STEP_NESTEROV) != 0;
  if (p->count > 0 && (p->first != nullptr) != (p->old_first != nullptr))
    return df_fail(call, DF_INVALID,
                   "sgd_step: velocity must be both input and output, or neither");
  return DF_OK;
}

/* adamw_step(param, grad, m, v, hyper, scale; beta1, beta2, epsilon) -> param', m', v' */
static df_status describe(const df_call *call, parameter *p, const adamw *) {
  p->param = df_out<float>(call, 0);
  p->first = df_out<float>(call, 1);
  p->second = df_out<float>(call, 2);
  p->old_param = df_in<const float>(call, 0);
  p->grad = df_in<const float>(call, 1);
  p->old_first = df_in<const float>(call, 2);
  p->old_second = df_in<const float>(call, 3);
  p->hyper = df_in<const float>(call, 4);
  p->scale = df_in<const float>(call, 5);
  p->of = df_adamw_read(call);
  return DF_OK;
}

template <typename Step, int MOST> static df_status launch(const df_call *call, table<MOST> *t) {
  if (t->count == 0)
    return DF_OK;
  const unsigned blocks = df_blocks(t->parameters[t->count - 1].end, 1);
  const df_status status = DF_LAUNCH(call, (step_many<Step, MOST>), blocks, DF_BLOCK, 0, *t);
  t->count = 0;
  return status;
}

template <typename Step, int MOST>
static df_status run_by_tables(const df_call *const *calls, int64_t count) {
  table<MOST> t{};
  for (int64_t i = 0; i < count; i++) {
    parameter p{};
    p.count = df_elements(calls[i]->inputs[0]);
    df_status status = describe(calls[i], &p, static_cast<const Step *>(nullptr));
    if (!status && t.count == MOST)
      status = launch<Step>(calls[i], &t);
    if (status)
      return status;
    if (p.count == 0)
      continue;
    p.vector = fits_vectors(p);
    p.end = (t.count > 0 ? t.parameters[t.count - 1].end : 0) + df_divide_up(p.count, CHUNK);
    t.parameters[t.count++] = p;
  }
  return launch<Step>(calls[0], &t);
}

template <typename Step> static df_status run_many(const df_call *const *calls, int64_t count) {
  return count <= FEW ? run_by_tables<Step, FEW>(calls, count)
                      : run_by_tables<Step, MANY>(calls, count);
}

template <typename Step> static df_status run(const df_call *call) {
  return run_many<Step>(&call, 1);
}

/* ---- The sum of squares --------------------------------------------------------------------- */

/* The squares of a chunk per block: floats per thread, joined in double in an order that depends on
 * the shape only. With one block, |partials| is null and the block writes the result. */
__global__ void __launch_bounds__(DF_BLOCK)
    square_partials(float *out, double *partials, const float *x, const float *before,
                    int64_t count) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  const int64_t share = df_divide_up(count, gridDim.x);
  const int64_t begin = blockIdx.x * share, end = df_min(count, begin + share);
  float total = 0.0f;
  for (int64_t i = begin + threadIdx.x; i < end; i += DF_BLOCK)
    total += x[i] * x[i];
  const double joined = df_block_join(static_cast<double>(total), 0.0, scratch, df_add{});
  if (threadIdx.x == 0 && partials)
    partials[blockIdx.x] = joined;
  else if (threadIdx.x == 0)
    *out = static_cast<float>(joined + (before ? static_cast<double>(*before) : 0.0));
}

/* One block joins the partial sums. */
__global__ void __launch_bounds__(DF_BLOCK)
    square_join(float *out, const double *partials, const float *before, int64_t n_partials) {
  DF_SHARED_ARRAY(double, scratch, [DF_WARP]);
  const double partial = threadIdx.x < n_partials ? partials[threadIdx.x] : 0.0;
  const double joined = df_block_join(partial, 0.0, scratch, df_add{});
  if (threadIdx.x == 0)
    *out = static_cast<float>(joined + (before ? static_cast<double>(*before) : 0.0));
}

/* At most one per thread of the block that joins them. */
static int64_t partials_of(int64_t count) { return df_max(1, df_min(DF_BLOCK, count / SQUARED)); }

/* square_sum(x, before?) -> before + the sum of x^2 */
static df_status square_run(const df_call *call) {
  const int64_t count = df_elements(call->inputs[0]), n_partials = partials_of(count);
  const float *before = df_in<const float>(call, 1);
  float *out = df_out<float>(call, 0);
  double *partials = n_partials > 1 ? static_cast<double *>(call->workspace) : nullptr;
  const df_status status = DF_LAUNCH(call, square_partials, df_blocks(n_partials, 1), DF_BLOCK, 0,
                                     out, partials, df_in<const float>(call, 0), before, count);
  if (status || n_partials == 1)
    return status;
  return DF_LAUNCH(call, square_join, 1u, DF_BLOCK, 0, out, partials, before, n_partials);
}

static df_status square_prepare(const df_node *node, df_prepared *out, df_error *) {
  const int64_t n_partials =
      partials_of(df_product(node->inputs[0]->shape, 0, node->inputs[0]->rank));
  if (n_partials > 1)
    out->workspace = n_partials * static_cast<int64_t>(sizeof(double));
  return DF_OK;
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("sgd_step", "f32", "f32,f32,f32?,f32,f32->f32,f32?", "0<0,1<2", .run = run<sgd>,
                   .capturable = 1, .run_many = run_many<sgd>),
    DF_CUDA_KERNEL("adamw_step", "f32", "f32,f32,f32,f32,f32,f32->f32,f32,f32", "0<0,1<2,2<3",
                   .run = run<adamw>, .capturable = 1, .run_many = run_many<adamw>),
    DF_CUDA_KERNEL("square_sum", "f32", "f32,f32?->f32", nullptr, .prepare = square_prepare,
                   .run = square_run, .capturable = 1)};
DF_CUDA_FAMILY(optimizer, records);
