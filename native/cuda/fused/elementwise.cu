/* fused/elementwise.cu: fused_elementwise, programs of elementwise ops in one pass over memory:
 * each input is read once, the result is written once; a reduction at the end is computed in the
 * order of reduce/reduce.h, and what it reads is never in memory. */
#include "fused/chunks.h"
#include "reduce/reduce.h"

#include <new>

static_assert(int{DF_FUSED_MANY} == int{DF_REDUCE_ROUND} * DF_FUSED_VECTOR,
              "many elements are a round of vectors");

struct prepared_program {
  df_fused_program of;
  int32_t rank;
  int64_t shape[DF_WALK_RANK]; /* of what the steps compute */
};

/* ---- A result per element ------------------------------------------------------------------- */

template <int ELEMENTS>
__global__ void __launch_bounds__(DF_BLOCK, 4)
    compute_program(float *out, int64_t n, const __grid_constant__ df_fused f) {
  df_fused_chunks<ELEMENTS>(n, f, [&](const df_fused_span &span, const float (&v)[ELEMENTS]) {
    df_fused_store(out, n, f, span, v);
  });
}

/* Each thread does |ELEMENTS| at a time. */
template <int ELEMENTS>
static df_status launch_program(const df_call *call, float *out, int64_t n, df_fused *f) {
  const unsigned threads = df_fused_threads(*f, ELEMENTS);
  const unsigned blocks = df_fused_blocks(f, n, threads, ELEMENTS);
  return DF_LAUNCH(call, compute_program<ELEMENTS>, blocks, threads,
                   static_cast<size_t>(df_fused_bytes(*f, threads, ELEMENTS)), out, n, *f);
}

static df_status run_program(const df_call *call) {
  df_fused f;
  const df_tensor *to = call->outputs[0];
  float *out = df_out<float>(call, 0);
  const int64_t n = df_elements(to);
  if (n == 0)
    return DF_OK;
  const df_status status =
      df_fused_bind(&f, call, static_cast<const prepared_program *>(call->state)->of, to->shape,
                    to->rank, df_is_aligned<DF_FUSED_VECTOR>(out));
  if (status)
    return status;
  return df_fused_many(f, DF_FUSED_LONG, DF_FUSED_SHARED)
             ? launch_program<DF_FUSED_MANY>(call, out, n, &f)
             : launch_program<DF_FUSED_ELEMENTS>(call, out, n, &f);
}

/* ---- A reduction at the end ----------------------------------------------------------------- */

/* The rows of what the steps compute, for df_reduce_rows; of vectors many elements are a round. */
template <int ELEMENTS> struct computed {
  static constexpr int blocks = 3;
  df_fused f;

  /* Elements begin + V lane, ... of [begin, end) in the order of rows in memory: a round's are
   * joined in float, these results in Op::W. */
  template <typename Op>
  __device__ typename Op::W join(const df_reduction &p, int64_t output, int64_t begin, int64_t end,
                                 int lane) const {
    using W = typename Op::W;
    DF_SHARED(float, shared);
    float *own = shared + threadIdx.x * DF_FUSED_VECTOR,
          *numbers = df_fused_numbers<ELEMENTS>(f, shared);
    const int together = p.vector ? DF_FUSED_VECTOR : 1;
    const int64_t apart = static_cast<int64_t>(p.group) * together, row = output * p.count;
    const int64_t chunk = ELEMENTS / together * apart;
    df_fused_span span{row + begin + lane * together - chunk, apart, row + end, together};
    df_fused_fetch_numbers(f, numbers);
    const Op op;
    W total = static_cast<W>(Op::first);
    float few = Op::first;
    bool first = true; /* there is nothing to compute yet */
    bool half = false; /* rows by vectors: the chunk before was half of a round */
    int shift = f.slots;
#pragma unroll 1
    while (first || span.at < span.end || half) {
      df_fused_span next = span;
      next.at += chunk;
      df_fused_fetch<ELEMENTS>(f, next, f.slots - shift, own);
      __pipeline_commit();
      if (!first) {
        __pipeline_wait_prior(1);
        float v[ELEMENTS] = {};
        if (span.at < span.end)
          df_fused_run(f, shift, own, numbers, v);
        if (span.index(ELEMENTS - 1) >= span.end)
#pragma unroll
          for (int e = 0; e < ELEMENTS; e++)
            v[e] = span.index(e) < span.end ? v[e] : Op::first;
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
          few = op(few, v[e]);
          const bool ends = together == 1
                                ? e % DF_REDUCE_ROUND == DF_REDUCE_ROUND - 1
                                : (half || ELEMENTS == DF_FUSED_MANY) && e == ELEMENTS - 1;
          if (ends) {
            total = op(total, static_cast<W>(few));
            few = Op::first;
          }
        }
        half = ELEMENTS < DF_FUSED_MANY && together != 1 && !half;
      }
      first = false;
      span = next;
      shift = f.slots - shift;
    }
    return total;
  }
};

/* Of a block, which joins in some. */
static constexpr int64_t MOST_SHARED = DF_FUSED_SHARED - DF_WARP * int64_t{sizeof(double)};

static df_reduction reduction_of(const prepared_program &state) {
  int64_t strides[DF_WALK_RANK], axes[DF_WALK_RANK], behind = 1;
  for (int32_t axis = state.rank - 1; axis >= 0; behind *= state.shape[axis--])
    strides[axis] = behind;
  for (int32_t i = 0; i < state.of.program.trailing; i++)
    axes[i] = state.rank - 1 - i;
  df_reduction p =
      df_reduction_of(state.shape, strides, state.rank, axes, state.of.program.trailing);
  p.vector = df_reduce_vectors(p, nullptr, DF_FUSED_VECTOR);
  p.mean = state.of.program.reduction == DF_STEP_reduce_mean;
  return p;
}

template <int ELEMENTS>
static df_status launch_reduction(const df_call *call, const df_fused &f, const df_reduction &p,
                                  int32_t op) {
  const computed<ELEMENTS> source{f};
  const size_t shared = static_cast<size_t>(df_fused_bytes(f, DF_BLOCK, ELEMENTS));
  switch (op) {
  case DF_STEP_reduce_max:
    return df_reduce_by_rows<df_max_of<float>>(call, source, shared, p);
  case DF_STEP_reduce_min:
    return df_reduce_by_rows<df_min_of<float>>(call, source, shared, p);
  case DF_STEP_reduce_prod:
    return df_reduce_by_rows<df_prod_of<float, float, double>>(call, source, shared, p);
  default:
    return df_reduce_by_rows<df_sum_of<float, float, double>>(call, source, shared, p);
  }
}

static df_status run_reduction(const df_call *call) {
  const prepared_program &state = *static_cast<const prepared_program *>(call->state);
  df_fused f;
  const df_reduction p = reduction_of(state);
  if (p.outputs == 0)
    return DF_OK;
  const df_status status =
      df_fused_bind(&f, call, state.of, state.shape, state.rank, p.vector != 0);
  if (status)
    return status;
  return df_fused_many(f, 0, MOST_SHARED)
             ? launch_reduction<DF_FUSED_MANY>(call, f, p, state.of.program.reduction)
             : launch_reduction<DF_FUSED_ELEMENTS>(call, f, p, state.of.program.reduction);
}

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts_program(const df_node *node) {
  prepared_program state{};
  const char *reason = df_fused_read(node, &state.of);
  if (reason)
    return reason;
  return state.of.program.trailing ? "it ends with a reduction" : nullptr;
}

static const char *accepts_reduction(const df_node *node) {
  prepared_program state{};
  const char *reason = df_fused_read(node, &state.of);
  if (reason)
    return reason;
  switch (state.of.program.reduction) {
  case DF_STEP_reduce_sum:
  case DF_STEP_reduce_mean:
  case DF_STEP_reduce_max:
  case DF_STEP_reduce_min:
  case DF_STEP_reduce_prod:
    break;
  default:
    return "it doesn't end with a reduction";
  }
  return df_fused_bytes(df_fused_of(state.of.program, state.of.single, 0), DF_BLOCK) > MOST_SHARED
             ? "too many values are read by later steps for a block that reduces"
             : nullptr;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  prepared_program *state = new (std::nothrow) prepared_program{};
  if (!state)
    return DF_OUT_OF_MEMORY;
  df_fused_read(node, &state->of); /* accepts has done it before */
  state->rank = df_program_shape(node, state->shape);
  out->state = state;
  if (state->of.program.trailing)
    out->workspace = df_reduce_workspace(reduction_of(*state));
  return DF_OK;
}

static void release(void *state) { delete static_cast<prepared_program *>(state); }

static const df_kernel records[] = {
    DF_CUDA_KERNEL("fused_elementwise", "f32", "~f32*->f32", "0<0,0<1,0<2,0<3,0<4,0<5",
                   .accepts = accepts_program, .prepare = prepare, .run = run_program,
                   .release = release, .capturable = 1),
    DF_CUDA_KERNEL("fused_elementwise", "and reduction f32", "~f32*->f32", nullptr,
                   .accepts = accepts_reduction, .prepare = prepare, .run = run_reduction,
                   .release = release, .capturable = 1)};
DF_CUDA_FAMILY(fused_elementwise, records);
