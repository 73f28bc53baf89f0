/* vendor/cublaslt.cu: matrix products by the vendor's library, when it is installed. Bias and relu
 * are its epilogues, an addend is its matrix c, the algorithm is chosen when a plan is made: of the
 * precision that is asked for, or the next one that is more exact. What it can't express (a matrix
 * with neither stride 1, a batch of many axes) our own kernel does, of bfloat16 once it is float32.
 * A result of bfloat16 is rounded once, from sums of float32 and an addend of bfloat16; the library
 * then takes a bias of bfloat16 alone, which is rounded in the workspace.
 */
#include "gemm/linalg.h"
#include "map/floats.h"
#include "vendor/cublaslt_product.h"
#include "vendor/paths.h"
#include "vendor/strips.h"

#include <algorithm>
#include <new>

enum { WORKSPACE = 32 << 20 }; /* bytes that an algorithm may use; what the vendor advises */

namespace {

using namespace df_lt;

/* ---- Choosing ------------------------------------------------------------------------------- */

/* The fastest path that a precision allows. */
df_path first_path(int32_t precision) {
  return precision == DF_BF16 ? DF_BY_BF16 : precision == DF_TF32 ? DF_BY_TF32 : DF_BY_FLOAT32;
}

struct choice {
  df_path by; /* DF_BY_OWN: the library has no algorithm */
  algorithm algo;
  size_t workspace;
  int32_t rank, suggestions; /* which one of how many */
};

/* The library's suggestion |rank|, or its first one, for addresses that are multiples of
 * |alignment| bytes; false when it has none. Partial sums go through the workspace, so that their
 * order is fixed. */
bool ask(handle own, described *d, uint32_t alignment, int32_t rank, choice *out) {
  preference wish;
  const uint32_t reduction = REDUCTION_COMPUTE_TYPE;
  int status = lt().cublasLtMatmulPreferenceInit_internal(&wish, sizeof wish);
  auto set = [&](int attribute, const void *value, size_t bytes) {
    if (!status)
      status = lt().cublasLtMatmulPreferenceSetAttribute(&wish, attribute, value, bytes);
  };
  const uint64_t most = WORKSPACE;
  set(PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
  set(PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
  for (int side = PREF_MIN_ALIGNMENT_A_BYTES; side <= PREF_MIN_ALIGNMENT_D_BYTES; side++)
    set(side, &alignment, sizeof alignment);
  heuristic answers[DF_SUGGESTIONS] = {};
  int found = 0;
  if (!status)
    status =
        lt().cublasLtMatmulAlgoGetHeuristic(own, &d->product, &d->first, &d->second, &d->result,
                                            &d->result, &wish, DF_SUGGESTIONS, answers, &found);
  out->suggestions = 0;
  for (int i = 0; i < found && !status; i++) {
    if (answers[i].status)
      continue;
    if (out->suggestions == 0 || out->suggestions == rank) {
      out->algo = answers[i].algo;
      out->workspace = answers[i].workspace;
      out->rank = out->suggestions;
    }
    out->suggestions++;
  }
  return out->suggestions > 0;
}

/* What prepare found for the queue that will run the product. |workspace| is the library's and our
 * kernel's; a strip is staged behind it, or bfloat16 as float32 for our kernel. */
struct product_state {
  handle own;
  int32_t type, stored; /* of factors, and of the result */
  bool relu;
  cudaStream_t stream;
  size_t workspace;
  int64_t bias; /* bytes of a rounded one, behind the workspace */
  choice aligned, unaligned;
  df_strips strips;
  choice strip, last_strip, rest;
};

/* The address of a bias that has this alignment, for a choice before there is one. */
const void *some_address(uint32_t alignment) {
  return reinterpret_cast<const void *>(static_cast<uintptr_t>(alignment));
}

int compute_of(df_path by, int32_t type) {
  return type == REAL_16BF  ? int(COMPUTE_32F)
         : by == DF_BY_BF16 ? int(COMPUTE_32F_FAST_16BF)
         : by == DF_BY_TF32 ? int(COMPUTE_32F_FAST_TF32)
                            : int(COMPUTE_32F);
}

/* By the first path from |fastest| on that the library has an algorithm for; of its suggestions the
 * one of the number |wanted|. */
choice choose(handle own, const df_gemm &g, const problem &p, df_path fastest, uint32_t alignment,
              int32_t wanted) {
  choice out{};
  described d;
  const int last = p.type == REAL_16BF ? fastest : DF_BY_FLOAT32;
  for (int by = fastest; by <= last; by++) {
    out.by = static_cast<df_path>(by);
    if (!describe(g, p, compute_of(out.by, p.type), some_address(alignment), &d) &&
        ask(own, &d, alignment, df_path_rank(wanted, out.by), &out))
      return out;
  }
  out = {};
  out.by = DF_BY_OWN;
  return out;
}

/* Whether all matrices that the library is given but those of |except| begin at 16 bytes. */
bool is_aligned_beside(const df_gemm &g, df_gemm_matrix except) {
  return (except == DF_A || df_is_aligned<4>(g.a)) && (except == DF_B || df_is_aligned<4>(g.b)) &&
         (except == DF_C || df_is_aligned<4>(g.c)) && df_is_aligned<4>(g.end.column_bias);
}

/* The library's choices for the strips of a product, or none: float32 by its own arithmetic gains
 * nothing by them. */
void choose_strips(const df_gemm &g, df_path fastest, int32_t wanted, product_state *state) {
  if (fastest == DF_BY_FLOAT32 || state->type != REAL_32F)
    return;
  const df_strips s = df_strips_of(g);
  auto choice_of = [&](const df_gemm &block, uint32_t alignment) {
    problem p;
    choice none{};
    none.by = DF_BY_OWN;
    return problem_of(block, REAL_32F, REAL_32F, &p)
               ? choose(state->own, block, p, fastest, alignment, wanted)
               : none;
  };
  if (!s.count)
    return;
  const df_gemm rest = df_strips_rest(g, s);
  const bool all_even = rest.m * rest.n * rest.k == 0;
  state->strip = choice_of(df_strip_of(g, s, 0, nullptr), ALIGNED);
  state->last_strip = choice_of(df_strip_of(g, s, s.count - 1, nullptr), ALIGNED);
  state->rest = all_even ? state->strip : choice_of(rest, sizeof(float));
  if (std::max({state->strip.by, state->last_strip.by, state->rest.by}) < DF_BY_FLOAT32)
    state->strips = s;
}

df_gemm with_end(df_gemm g, const void *bias, const void *addend, bool relu) {
  g.end.column_bias = static_cast<const float *>(bias);
  g.end.add = static_cast<const float *>(addend);
  g.end.relu = relu;
  return g;
}

/* An address for an optional operand of the node, or null where it is absent. */
const void *some_operand(const df_node *node, int32_t index) {
  const bool there = node->n_inputs > index && node->inputs[index]->dtype != DF_NONE;
  return there ? some_address(ALIGNED) : nullptr;
}

/* The path that a plan names is that of aligned operands, which those of a plan are but for views.
 */
template <bool RELU> df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  df_queue *queue = df_vendor_queue(node, error);
  if (!queue)
    return DF_UNSUPPORTED;
  const bool rounded = node->inputs[0]->dtype == DF_BFLOAT16;
  const bool halves = node->outputs[0]->dtype == DF_BFLOAT16;
  const bool relu = RELU || (rounded && df_attr_int(node, DF_MATMUL_ROUNDED_RELU));
  df_gemm g = with_end(df_matmul_of_node(node), some_operand(node, 2), some_operand(node, 3), relu);
  product_state *state = new (std::nothrow) product_state{};
  if (!state)
    return DF_OUT_OF_MEMORY;
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  state->own = df_vendor_handle(queue, lt().cublasLtCreate, lt().cublasLtDestroy);
  state->stream = queue->stream;
  state->type = rounded ? int32_t{REAL_16BF} : int32_t{REAL_32F};
  state->stored = halves ? int32_t{REAL_16BF} : int32_t{REAL_32F};
  state->bias = halves && g.end.column_bias ? df_floats_bytes(g.n) : 0;
  state->relu = relu;
  state->aligned.by = state->unaligned.by = DF_BY_OWN;
  const int32_t wanted = node->algorithm - 1;
  choice named = state->aligned;
  problem p;
  if (state->own && problem_of(g, state->type, state->stored, &p)) {
    const df_path fastest = rounded ? DF_BY_BF16 : first_path(node->precision);
    const uint32_t element = static_cast<uint32_t>(bytes_of(state->type));
    state->aligned = choose(state->own, g, p, fastest, ALIGNED, wanted);
    choose_strips(g, fastest, wanted, state);
    named = state->strips.count ? state->strip : state->aligned;
    if (wanted == DF_BY_OWN) {
      state->aligned.by = DF_BY_OWN;
      state->strips = {};
    } else {
      state->unaligned = choose(state->own, g, p, fastest, element, 0);
    }
  }
  df_path_report(out, named.by, named.suggestions,
                 wanted == DF_BY_OWN ? wanted : df_path_number(named.by, named.rank));
  int64_t converted = 0;
  if (rounded && (state->aligned.by == DF_BY_OWN || state->unaligned.by == DF_BY_OWN))
    converted = df_matmul_float_node(node, &g);
  df_gemm_plan(&g);
  state->workspace = std::max({state->unaligned.workspace, state->aligned.workspace,
                               state->strip.workspace, state->last_strip.workspace,
                               state->rest.workspace, static_cast<size_t>(df_gemm_workspace(&g))});
  state->workspace = (state->workspace + 255) / 256 * 256;
  out->workspace = static_cast<int64_t>(state->workspace) + state->bias +
                   df_strips_bytes(state->strips) + converted;
  out->state = state;
  return DF_OK;
}

/* c = products + the addend, or + beta c where there is none. */
df_status launch_all(const df_call *call, const df_gemm &g, const problem &p,
                     const product_state &state, const choice &chosen, float beta) {
  const float one = 1.0f;
  described d;
  int status = describe(g, p, compute_of(chosen.by, p.type), g.end.column_bias, &d);
  for (int64_t i = 0; i < p.launches && !status; i++) {
    df_gemm at;
    find_launch(g, p, i, &at);
    status = lt().cublasLtMatmul(state.own, &d.product, &one, at.b, &d.first, at.a, &d.second,
                                 at.end.add ? &one : &beta, at.end.add ? at.end.add : at.c,
                                 &d.result, at.c, &d.result, &chosen.algo, call->workspace,
                                 state.workspace, static_cast<cudaStream_t>(call->stream));
  }
  return status ? df_fail(call, DF_DEVICE, "cuBLASLt: %s", lt().cublasLtGetStatusString(status))
                : df_status(DF_OK);
}

/* The product of strip |i|, or of the rest, which is the last one; nothing where that is empty. */
df_status launch_block(const df_call *call, const df_gemm &block, const product_state &state,
                       int64_t i) {
  const df_strips &s = state.strips;
  problem p;
  if (block.m * block.n * block.k == 0)
    return DF_OK;
  if (!problem_of(block, REAL_32F, REAL_32F, &p))
    return df_fail(call, DF_DEVICE, "a strip of a product has no stride of 1");
  const choice &chosen = i == s.count       ? state.rest
                         : i == s.count - 1 ? state.last_strip
                                            : state.strip;
  return launch_all(call, block, p, state, chosen, df_strip_adds(s, i) ? 1.0f : 0.0f);
}

float *behind_workspace(const df_call *call, const product_state &state) {
  return reinterpret_cast<float *>(static_cast<char *>(call->workspace) + state.workspace);
}

df_status launch_strips(const df_call *call, const df_gemm &g, const product_state &state) {
  const df_strips &s = state.strips;
  float *stage = behind_workspace(call, state);
  df_status status = DF_OK;
  for (int64_t i = 0; i < s.count && !status; i++) {
    status = df_strip_load(call, g, s, i, stage);
    if (!status)
      status = launch_block(call, df_strip_of(g, s, i, stage), state, i);
    if (!status)
      status = df_strip_store(call, g, s, i, stage);
  }
  return status ? status : launch_block(call, df_strips_rest(g, s), state, s.count);
}

df_status run_own(const df_call *call, df_gemm *g) {
  df_gemm_plan(g);
  return df_gemm_run(call, g, call->workspace);
}

df_status run(const df_call *call) {
  const product_state &state = *static_cast<const product_state *>(call->state);
  const float *bias = df_in<const float>(call, 2), *addend = df_in<const float>(call, 3);
  df_gemm g = with_end(df_matmul_of_call(call), bias, addend, state.relu);
  problem p;
  if (call->stream != state.stream)
    return df_fail(call, DF_INTERNAL, "prepared for another session");
  if (state.strips.count && is_aligned_beside(g, state.strips.staged))
    return launch_strips(call, g, state);
  float *beyond = behind_workspace(call, state);
  if (problem_of(g, state.type, state.stored, &p)) {
    const choice &chosen =
        state.aligned.by != DF_BY_OWN && is_aligned(g, p) ? state.aligned : state.unaligned;
    df_status status = DF_OK;
    if (chosen.by != DF_BY_OWN && state.bias) {
      status = df_round_floats(call, reinterpret_cast<uint16_t *>(beyond), bias, g.n);
      g.end.column_bias = beyond;
    }
    if (chosen.by != DF_BY_OWN)
      return status ? status : launch_all(call, g, p, state, chosen, 0.0f);
  }
  return state.type == REAL_16BF
             ? df_matmul_run_as_floats(call, &g, beyond + state.bias / int64_t{sizeof(float)})
             : run_own(call, &g);
}

void release(void *state) { delete static_cast<product_state *>(state); }

const char *accepts(const df_node *node) {
  const char *reason = df_matmul_accepts(node);
  if (!reason && !lt().loaded)
    reason = "cuBLASLt was not found: pip install 'dataflow-engine[cuda]'";
  return reason;
}

const char *bias_accepts(const df_node *node) {
  const bool absent = node->n_inputs < 3 || node->inputs[2]->dtype == DF_NONE;
  const char *reason = absent ? nullptr : df_matmul_bias_accepts(node);
  const bool adds = node->n_inputs > 3 && node->inputs[3]->dtype != DF_NONE;
  if (!reason && adds && node->inputs[3]->dtype != node->outputs[0]->dtype)
    reason = "an addend must be stored as the result is";
  return reason ? reason : accepts(node);
}

} // namespace

/* ---- Records -------------------------------------------------------------------------------- */

static constexpr df_kernel record(const char *op, const char *name, const char *operands,
                                  const char *inplace, const char *(*takes)(const df_node *),
                                  df_status (*prepares)(const df_node *, df_prepared *,
                                                        df_error *)) {
  df_kernel k{};
  k.struct_size = sizeof k;
  k.priority = 10;
  k.op = op;
  k.name = name;
  k.operands = operands;
  k.inplace = inplace;
  k.accepts = takes;
  k.prepare = prepares;
  k.run = run;
  k.release = release;
  k.capturable = 1;
  return k;
}

static const df_kernel records[] = {
    record("matmul", "matmul f32 cublaslt", "~f32,~f32->f32", nullptr, accepts, prepare<false>),
    record("matmul_bias", "matmul_bias f32 cublaslt", "~f32,~f32,f32,f32?->f32", "0<3",
           bias_accepts, prepare<false>),
    record("matmul_bias_relu", "matmul_bias_relu f32 cublaslt", "~f32,~f32,f32->f32", nullptr,
           bias_accepts, prepare<true>),
    record("matmul_rounded", "matmul_rounded bf16 cublaslt", "~bf16,~bf16,f32?,f32|bf16?->f32|bf16",
           "0<3", bias_accepts, prepare<false>)};
DF_CUDA_FAMILY(cublaslt, records);
