/* vendor/cublaslt.cu: matrix products by the vendor's library, when it is installed. Bias and relu
 * are its epilogues, the algorithm is chosen when a plan is made: of the precision that is asked
 * for, or the next one that is more exact. What it can't express (a matrix with neither stride 1, a
 * batch of many axes) our own kernel does. */
#include "gemm/linalg.h"
#include "vendor/cublaslt_api.h"
#include "vendor/library.h"
#include "vendor/strips.h"

#include <algorithm>
#include <new>

enum {
  WORKSPACE = 32 << 20, /* bytes that an algorithm may use; what the vendor advises */
  ALIGNED = 16,         /* bytes; addresses are looked at when the product runs */
  UNALIGNED = 4,
  MOST_LAUNCHES = 64 /* for a batch that is no single axis */
};

/* ---- The library ---------------------------------------------------------------------------- */

namespace {

using namespace df_lt;

struct functions {
  bool loaded;
#define MEMBER(result, name, arguments) result(*name) arguments;
  DF_LT_FUNCTIONS(MEMBER)
#undef MEMBER
};

const df_vendor_library location("DATAFLOW_CUBLASLT", "libcublasLt.so.13");

functions load() {
  functions f{};
  void *library = location.open();
  if (!library)
    return f;
  f.loaded = true;
#define FIND(result, name, arguments)                                                              \
  f.name = reinterpret_cast<result(*) arguments>(dlsym(library, #name));                           \
  f.loaded = f.loaded && f.name;
  DF_LT_FUNCTIONS(FIND)
#undef FIND
  f.loaded = f.loaded && f.cublasLtGetVersion() / 10000 == VERSION;
  return f;
}

const functions &lt() {
  static const functions found = load();
  return found;
}

/* ---- A product in the library's words ------------------------------------------------------- */

/* A factor as the library sees it, transposed or not: it has columns one after another. */
struct factor {
  bool transposed;
  uint64_t rows, columns;
  int64_t ld;
};

/* The factor of |size| x |k|, or false. */
bool factor_of(int64_t size, int64_t k, int64_t stride, int64_t k_stride, factor *out) {
  if (size == 1 || (stride == 1 && k == 1))
    stride = 1, k_stride = k == 1 ? size : k_stride;
  if (stride == 1 && k_stride >= size) {
    *out = {false, static_cast<uint64_t>(size), static_cast<uint64_t>(k), k_stride};
    return true;
  }
  if ((k == 1 || k_stride == 1) && stride >= k) {
    *out = {true, static_cast<uint64_t>(k), static_cast<uint64_t>(size), stride};
    return true;
  }
  return false;
}

/* c' = b' a': what is row after row for us is column after column for the library, transposed. So
 * its first factor is our b. One axis of the batch is the library's; the others are launches. */
struct problem {
  factor first, second;
  int64_t m, n, k;
  int32_t inside; /* axis of the batch, or -1 */
  int64_t launches;
  int32_t epilogue;
};

bool problem_of(const df_gemm &g, problem *out) {
  *out = {};
  out->m = g.m;
  out->n = g.n;
  out->k = g.k;
  out->inside = -1;
  out->epilogue = g.end.relu          ? int(EPILOGUE_RELU_BIAS)
                  : g.end.column_bias ? int(EPILOGUE_BIAS)
                                      : int(EPILOGUE_DEFAULT);
  for (int32_t axis = 0; axis < g.batch.rank; axis++) {
    if (g.batch.strides[0][axis] < 0 || g.batch.strides[1][axis] < 0)
      return false;
    if (out->inside < 0 || g.batch.shape[axis] > g.batch.shape[out->inside])
      out->inside = axis;
  }
  out->launches = out->inside < 0 ? 1 : g.products / df_max(1, g.batch.shape[out->inside]);
  return g.m > 0 && g.n > 0 && g.k > 0 && g.products > 0 && out->launches <= MOST_LAUNCHES &&
         factor_of(g.n, g.k, g.b_col, g.b_row, &out->first) &&
         factor_of(g.m, g.k, g.a_row, g.a_col, &out->second);
}

/* The library's descriptions of a problem. */
struct described {
  description product;
  layout first, second, result;
};

int describe_matrix(layout *out, uint64_t rows, uint64_t columns, int64_t ld, int32_t count,
                    int64_t stride) {
  int status =
      lt().cublasLtMatrixLayoutInit_internal(out, sizeof *out, REAL_32F, rows, columns, ld);
  if (!status && count > 1)
    status = lt().cublasLtMatrixLayoutSetAttribute(out, LAYOUT_BATCH_COUNT, &count, sizeof count);
  if (!status && count > 1)
    status = lt().cublasLtMatrixLayoutSetAttribute(out, LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                   sizeof stride);
  return status;
}

/* Products between two neighbours along |axis| of the batch. */
int64_t products_inside(const df_gemm &g, int32_t axis) {
  int64_t count = 1;
  for (int32_t i = axis + 1; i < g.batch.rank; i++)
    count *= g.batch.shape[i];
  return count;
}

int describe(const df_gemm &g, const problem &p, int compute, const void *bias, described *out) {
  const int32_t first_op = p.first.transposed ? OP_T : OP_N;
  const int32_t second_op = p.second.transposed ? OP_N : OP_T;
  description *product = &out->product;
  int status = lt().cublasLtMatmulDescInit_internal(product, sizeof *product, compute, REAL_32F);
  auto set = [&](int attribute, const void *value, size_t bytes) {
    if (!status)
      status = lt().cublasLtMatmulDescSetAttribute(product, attribute, value, bytes);
  };
  set(DESC_TRANSA, &first_op, sizeof first_op);
  set(DESC_TRANSB, &second_op, sizeof second_op);
  set(DESC_EPILOGUE, &p.epilogue, sizeof p.epilogue);
  if (p.epilogue != EPILOGUE_DEFAULT)
    set(DESC_BIAS_POINTER, &bias, sizeof bias);
  const bool batched = p.inside >= 0;
  const int32_t count = batched ? static_cast<int32_t>(g.batch.shape[p.inside]) : 1;
  const int64_t first_stride = batched ? g.batch.strides[1][p.inside] : 0;
  const int64_t second_stride = batched ? g.batch.strides[0][p.inside] : 0;
  const int64_t result_stride = batched ? products_inside(g, p.inside) * g.c_batch : 0;
  if (!status)
    status = describe_matrix(&out->first, p.first.rows, p.first.columns, p.first.ld, count,
                             first_stride);
  if (!status)
    status = describe_matrix(&out->second, p.second.rows, p.second.columns, p.second.ld, count,
                             second_stride);
  if (!status)
    status = describe_matrix(&out->result, static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.m),
                             g.c_row, count, result_stride);
  return status;
}

/* ---- Choosing ------------------------------------------------------------------------------- */

/* The paths of a product, the fastest one first; a plan names them. */
enum path { BY_BF16, BY_TF32, BY_FLOAT32, BY_OWN, PATHS };
const char *const path_names[PATHS] = {"bf16", "tf32", "float32", "own"};

/* The fastest path that a precision allows. */
path first_path(int32_t precision) {
  return precision == DF_BF16 ? BY_BF16 : precision == DF_TF32 ? BY_TF32 : BY_FLOAT32;
}

struct choice {
  path by; /* BY_OWN: the library has no algorithm */
  algorithm algo;
  size_t workspace;
};

/* The library's first choice for addresses that are multiples of |alignment| bytes; false when it
 * has none. Partial sums go through the workspace, so that their order is fixed. */
bool ask(handle own, described *d, uint32_t alignment, choice *out) {
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
  heuristic answer{};
  int found = 0;
  if (!status)
    status = lt().cublasLtMatmulAlgoGetHeuristic(own, &d->product, &d->first, &d->second,
                                                 &d->result, &d->result, &wish, 1, &answer, &found);
  if (status || found < 1 || answer.status)
    return false;
  out->algo = answer.algo;
  out->workspace = answer.workspace;
  return true;
}

/* What prepare found for the queue that will run the product. |workspace| is the library's and our
 * kernel's; a strip is staged behind it. */
struct product_state {
  handle own;
  cudaStream_t stream;
  size_t workspace;
  choice aligned, unaligned;
  df_strips strips;
  choice strip, last_strip, rest;
};

/* The address of a bias that has this alignment, for a choice before there is one. */
const void *some_address(uint32_t alignment) {
  return reinterpret_cast<const void *>(static_cast<uintptr_t>(alignment));
}

int compute_of(path by) {
  return by == BY_BF16   ? int(COMPUTE_32F_FAST_16BF)
         : by == BY_TF32 ? int(COMPUTE_32F_FAST_TF32)
                         : int(COMPUTE_32F);
}

/* By the first path from |fastest| on that the library has an algorithm for. */
choice choose(handle own, const df_gemm &g, const problem &p, path fastest, uint32_t alignment) {
  choice out{};
  described d;
  for (int by = fastest; by < BY_OWN; by++) {
    out.by = static_cast<path>(by);
    if (!describe(g, p, compute_of(out.by), some_address(alignment), &d) &&
        ask(own, &d, alignment, &out))
      return out;
  }
  out = {};
  out.by = BY_OWN;
  return out;
}

/* Whether all matrices that the library is given but those of |except| begin at 16 bytes. */
bool is_aligned_beside(const df_gemm &g, df_gemm_matrix except) {
  return (except == DF_A || df_is_aligned<4>(g.a)) && (except == DF_B || df_is_aligned<4>(g.b)) &&
         (except == DF_C || df_is_aligned<4>(g.c)) && df_is_aligned<4>(g.end.column_bias);
}

/* The library's choices for the strips of a product, or none: float32 by its own arithmetic gains
 * nothing by them. */
void choose_strips(const df_gemm &g, path fastest, product_state *state) {
  if (fastest == BY_FLOAT32)
    return;
  const df_strips s = df_strips_of(g);
  auto choice_of = [&](const df_gemm &block, uint32_t alignment) {
    problem p;
    choice none{};
    none.by = BY_OWN;
    return problem_of(block, &p) ? choose(state->own, block, p, fastest, alignment) : none;
  };
  if (!s.count)
    return;
  const df_gemm rest = df_strips_rest(g, s);
  const bool all_even = rest.m * rest.n * rest.k == 0;
  state->strip = choice_of(df_strip_of(g, s, 0, nullptr), ALIGNED);
  state->last_strip = choice_of(df_strip_of(g, s, s.count - 1, nullptr), ALIGNED);
  state->rest = all_even ? state->strip : choice_of(rest, UNALIGNED);
  if (std::max({state->strip.by, state->last_strip.by, state->rest.by}) < BY_FLOAT32)
    state->strips = s;
}

/* What the plan gives: BIAS is input 2. */
template <bool BIAS, bool RELU> df_gemm with_end(df_gemm g, const void *bias) {
  g.end.column_bias = BIAS ? static_cast<const float *>(bias) : nullptr;
  g.end.relu = RELU;
  return g;
}

/* The path that a plan names is that of aligned operands, which those of a plan are but for views.
 */
template <bool BIAS, bool RELU>
df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  df_queue *queue = df_vendor_queue(node, error);
  if (!queue)
    return DF_UNSUPPORTED;
  df_gemm g = with_end<BIAS, RELU>(df_matmul_of_node(node), some_address(ALIGNED));
  product_state *state = new (std::nothrow) product_state{};
  if (!state)
    return DF_OUT_OF_MEMORY;
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  state->own = df_vendor_handle(queue, lt().cublasLtCreate, lt().cublasLtDestroy);
  state->stream = queue->stream;
  state->aligned.by = state->unaligned.by = BY_OWN;
  problem p;
  if (state->own && problem_of(g, &p)) {
    state->aligned = choose(state->own, g, p, first_path(node->precision), ALIGNED);
    out->possible = int64_t{1} << state->aligned.by;
    if (node->algorithm - 1 == BY_OWN) {
      state->aligned.by = BY_OWN;
    } else {
      state->unaligned = choose(state->own, g, p, first_path(node->precision), UNALIGNED);
      choose_strips(g, first_path(node->precision), state);
    }
  }
  out->algorithms = path_names;
  out->n_algorithms = PATHS;
  out->algorithm = state->aligned.by;
  out->possible |= int64_t{1} << BY_OWN;
  df_gemm_plan(&g);
  state->workspace = std::max({state->unaligned.workspace, state->aligned.workspace,
                               state->strip.workspace, state->last_strip.workspace,
                               state->rest.workspace, static_cast<size_t>(df_gemm_workspace(&g))});
  state->workspace = (state->workspace + 255) / 256 * 256;
  out->workspace = static_cast<int64_t>(state->workspace) + df_strips_bytes(state->strips);
  out->state = state;
  return DF_OK;
}

/* Whether every matrix of the batch begins at a multiple of 16 bytes. */
bool is_aligned(const df_gemm &g, const problem &p) {
  bool even = df_is_aligned<4>(g.a) && df_is_aligned<4>(g.b) && df_is_aligned<4>(g.c) &&
              df_is_aligned<4>(g.end.column_bias);
  for (int32_t axis = 0; axis < g.batch.rank; axis++)
    if (axis != p.inside)
      even = even && g.batch.strides[0][axis] % 4 == 0 && g.batch.strides[1][axis] % 4 == 0 &&
             products_inside(g, axis) * g.c_batch % 4 == 0;
  return even;
}

/* Where the product |launch| of those that the library doesn't see as one batch begins. */
void find_launch(const df_gemm &g, const problem &p, int64_t launch, df_gemm *out) {
  *out = g;
  for (int32_t axis = g.batch.rank - 1; axis >= 0; axis--) {
    if (axis == p.inside)
      continue;
    const int64_t at = launch % g.batch.shape[axis];
    launch /= g.batch.shape[axis];
    out->a += at * g.batch.strides[0][axis];
    out->b += at * g.batch.strides[1][axis];
    out->c += at * products_inside(g, axis) * g.c_batch;
  }
}

/* c = products + beta c. */
df_status launch_all(const df_call *call, const df_gemm &g, const problem &p,
                     const product_state &state, const choice &chosen, float beta) {
  const float one = 1.0f;
  described d;
  int status = describe(g, p, compute_of(chosen.by), g.end.column_bias, &d);
  for (int64_t i = 0; i < p.launches && !status; i++) {
    df_gemm at;
    find_launch(g, p, i, &at);
    status =
        lt().cublasLtMatmul(state.own, &d.product, &one, at.b, &d.first, at.a, &d.second, &beta,
                            at.c, &d.result, at.c, &d.result, &chosen.algo, call->workspace,
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
  if (!problem_of(block, &p))
    return df_fail(call, DF_DEVICE, "a strip of a product has no stride of 1");
  const choice &chosen = i == s.count       ? state.rest
                         : i == s.count - 1 ? state.last_strip
                                            : state.strip;
  return launch_all(call, block, p, state, chosen, df_strip_adds(s, i) ? 1.0f : 0.0f);
}

df_status launch_strips(const df_call *call, const df_gemm &g, const product_state &state) {
  const df_strips &s = state.strips;
  float *stage = reinterpret_cast<float *>(static_cast<char *>(call->workspace) + state.workspace);
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

template <bool BIAS, bool RELU> df_status run(const df_call *call) {
  const product_state &state = *static_cast<const product_state *>(call->state);
  df_gemm g = with_end<BIAS, RELU>(df_matmul_of_call(call), df_in<const float>(call, 2));
  problem p;
  if (call->stream != state.stream)
    return df_fail(call, DF_INTERNAL, "prepared for another session");
  if (state.strips.count && is_aligned_beside(g, state.strips.staged))
    return launch_strips(call, g, state);
  if (problem_of(g, &p)) {
    const choice &chosen =
        state.aligned.by != BY_OWN && is_aligned(g, p) ? state.aligned : state.unaligned;
    if (chosen.by != BY_OWN)
      return launch_all(call, g, p, state, chosen, 0.0f);
  }
  df_gemm_plan(&g);
  return df_gemm_run(call, &g, call->workspace);
}

void release(void *state) { delete static_cast<product_state *>(state); }

const char *accepts(const df_node *node) {
  const char *reason = df_matmul_accepts(node);
  if (!reason && !lt().loaded)
    reason = "cuBLASLt was not found: pip install 'dataflow-engine[cuda]'";
  return reason;
}

const char *bias_accepts(const df_node *node) {
  const char *reason = df_matmul_bias_accepts(node);
  return reason ? reason : accepts(node);
}

} // namespace

/* ---- Records -------------------------------------------------------------------------------- */

static constexpr df_kernel record(const char *op, const char *name, const char *operands,
                                  const char *(*takes)(const df_node *),
                                  df_status (*prepares)(const df_node *, df_prepared *, df_error *),
                                  df_kernel_run runs) {
  df_kernel k{};
  k.struct_size = sizeof k;
  k.priority = 10;
  k.op = op;
  k.name = name;
  k.operands = operands;
  k.accepts = takes;
  k.prepare = prepares;
  k.run = runs;
  k.release = release;
  k.capturable = 1;
  return k;
}

static const df_kernel records[] = {
    record("matmul", "matmul f32 cublaslt", "~f32,~f32->f32", accepts, prepare<false, false>,
           run<false, false>),
    record("matmul_bias", "matmul_bias f32 cublaslt", "~f32,~f32,f32->f32", bias_accepts,
           prepare<true, false>, run<true, false>),
    record("matmul_bias_relu", "matmul_bias_relu f32 cublaslt", "~f32,~f32,f32->f32", bias_accepts,
           prepare<true, true>, run<true, true>)};
DF_CUDA_FAMILY(cublaslt, records);
