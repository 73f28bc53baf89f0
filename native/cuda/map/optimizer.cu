/* map/optimizer.cu: one optimizer step over one parameter or over many, in one pass. hyper holds
 * what changes from step to step; |scale| multiplies the gradient; both are read on the card. All
 * tensors are contiguous; outputs may overwrite their inputs.
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
  const df_fault *fault; /* of the segment: a step behind one changes nothing */
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

/* What a step that changes nothing leaves of [begin, end). */
static __device__ void keep_chunk(const parameter &p, int64_t begin, int64_t end) {
  for (int64_t i = begin + static_cast<int>(threadIdx.x); i < end; i += DF_BLOCK) {
    p.param[i] = p.old_param[i];
    if (p.first)
      p.first[i] = p.old_first[i];
    if (p.second)
      p.second[i] = p.old_second[i];
  }
}

/* Elements [begin, end) of one parameter, by all threads of a block. */
template <typename Step>
static __device__ __forceinline__ void walk_chunk(const parameter &p, const df_fault *fault,
                                                  int64_t begin, int64_t end) {
  if (df_step_holds(*p.scale) || (fault && fault->code)) {
    keep_chunk(p, begin, end);
    return;
  }
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
  walk_chunk<Step>(p, t.fault, begin, df_min(p.count, begin + CHUNK));
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
  t->fault = call->fault;
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

/* ---- Records -------------------------------------------------------------------------------- */

static const df_kernel records[] = {
    DF_CUDA_KERNEL("sgd_step", "f32", "f32,f32,f32?,f32,f32->f32,f32?", "0<0,1<2", .run = run<sgd>,
                   .capturable = 1, .run_many = run_many<sgd>),
    DF_CUDA_KERNEL("adamw_step", "f32", "f32,f32,f32,f32,f32,f32->f32,f32,f32", "0<0,1<2,2<3",
                   .run = run<adamw>, .capturable = 1, .run_many = run_many<adamw>)};
DF_CUDA_FAMILY(optimizer, records);
