/* cublaslt.cpp: a stand-in for cuBLASLt: the functions that the plugin uses, as strict with their
 * arguments as the real ones, computed in double precision by work that is put into the stream.
 *
 * An algorithm holds the card, the problem, the alignment and the workspace that it was asked for;
 * a product with other ones is refused. Factors are rounded as the compute type allows. */
#include "../../../native/cuda/vendor/cublaslt_api.h"
#include "standin.h"

#include <cstring>

using namespace df_lt;

namespace df_lt {

struct context {
  int card;
};

} // namespace df_lt

namespace {

enum { EXECUTION_FAILED = 13 };

/* What the opaque structures hold. */
#define MAY_ALIAS __attribute__((may_alias))
struct MAY_ALIAS product_content {
  uint64_t tag;
  int32_t compute, scale, turn_a, turn_b, epilogue;
  const void *bias;
};
struct MAY_ALIAS layout_content {
  uint64_t tag;
  int32_t type, count;
  uint64_t rows, columns;
  int64_t ld, stride;
};
struct MAY_ALIAS preference_content {
  uint64_t tag;
  uint64_t workspace;
  uint32_t reduction, alignment[4];
};
struct MAY_ALIAS algorithm_content {
  uint64_t tag, problem, workspace;
  uint32_t alignment[4];
};
static_assert(sizeof(product_content) <= sizeof(description));
static_assert(sizeof(layout_content) <= sizeof(layout));
static_assert(sizeof(preference_content) <= sizeof(preference));
static_assert(sizeof(algorithm_content) <= sizeof(algorithm));

enum : uint64_t {
  PRODUCT = 0x70726f64,
  LAYOUT = 0x6c61796f,
  WISH = 0x77697368,
  CHOSEN = 0x63686f73
};

template <typename C, typename T> C *content(T *opaque, uint64_t tag) {
  C *found = reinterpret_cast<C *>(opaque);
  return found && found->tag == tag ? found : nullptr;
}

template <typename T> int put(T *to, const void *from, size_t bytes) {
  if (!from || bytes != sizeof *to)
    return INVALID_VALUE;
  memcpy(to, from, bytes);
  return SUCCESS;
}

std::set<handle> handles;

/* Whether it is one, and of the card that the thread has chosen. */
bool is_real(handle h) {
  guard g(standin_lock);
  return handles.count(h) && h->card == current_card();
}

/* ---- What can be computed ------------------------------------------------------------------- */

struct problem {
  product_content product;
  layout_content a, b, c, d;
  uint64_t m, n, k;
};

bool is_matrix(const layout_content &l, int32_t type) {
  return l.type == type && l.rows > 0 && l.columns > 0 && l.count > 0 &&
         l.ld >= static_cast<int64_t>(l.rows) && l.stride >= 0;
}

/* Whether the results of a batch lie apart. */
bool is_apart(const layout_content &l) {
  return l.count == 1 || l.stride >= static_cast<int64_t>(l.ld * (l.columns - 1) + l.rows) ||
         l.ld >= l.stride * l.count;
}

int read_problem(description *product, layout *a, layout *b, layout *c, layout *d, problem *out) {
  const auto *p = content<product_content>(product, PRODUCT);
  const auto *la = content<layout_content>(a, LAYOUT), *lb = content<layout_content>(b, LAYOUT),
             *lc = content<layout_content>(c, LAYOUT), *ld = content<layout_content>(d, LAYOUT);
  if (!p || !la || !lb || !lc || !ld)
    return INVALID_VALUE;
  *out = {*p,  *la,      *lb,         *lc,
          *ld, ld->rows, ld->columns, p->turn_a == OP_N ? la->columns : la->rows};
  const uint64_t m = p->turn_a == OP_N ? la->rows : la->columns;
  const uint64_t n = p->turn_b == OP_N ? lb->columns : lb->rows;
  const uint64_t k = p->turn_b == OP_N ? lb->rows : lb->columns;
  const bool halves = la->type == REAL_16BF; /* factors; the result may be then, as what is added */
  const int32_t factors = halves ? REAL_16BF : REAL_32F;
  const int32_t stored = halves && ld->type == REAL_16BF ? REAL_16BF : REAL_32F;
  if (!is_matrix(*la, factors) || !is_matrix(*lb, factors) || !is_matrix(*lc, stored) ||
      !is_matrix(*ld, stored) || (halves && p->compute != COMPUTE_32F))
    return INVALID_VALUE;
  if (m != out->m || n != out->n || k != out->k || lc->rows != ld->rows ||
      lc->columns != ld->columns || lc->ld != ld->ld || la->count != lb->count ||
      la->count != lc->count || la->count != ld->count || !is_apart(*ld))
    return INVALID_VALUE;
  return SUCCESS;
}

/* A number that tells problems and cards apart; where matrices and bias lie is no part of it. */
uint64_t number_of(const problem &p) {
  uint64_t hash = 1469598103934665603u;
  auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  mix(static_cast<uint64_t>(current_card()));
  for (int32_t value :
       {p.product.compute, p.product.scale, p.product.turn_a, p.product.turn_b, p.product.epilogue})
    mix(static_cast<uint64_t>(value));
  for (const layout_content &l : {p.a, p.b, p.c, p.d})
    for (uint64_t value : {static_cast<uint64_t>(l.type), static_cast<uint64_t>(l.count), l.rows,
                           l.columns, static_cast<uint64_t>(l.ld), static_cast<uint64_t>(l.stride)})
      mix(value);
  return hash;
}

/* |x| with |bits| of mantissa, ties to even. */
double rounded(float x, int bits) {
  uint32_t raw;
  memcpy(&raw, &x, sizeof raw);
  const uint32_t dropped = 23 - bits, half = (1u << dropped) >> 1;
  if (dropped && (raw & 0x7f800000u) != 0x7f800000u) {
    raw += half - 1 + (raw >> dropped & 1);
    raw &= ~((1u << dropped) - 1);
  }
  memcpy(&x, &raw, sizeof x);
  return x;
}

/* An element of a factor. */
double element(const void *factor, int64_t at, int32_t type, int bits) {
  if (type == REAL_32F)
    return rounded(static_cast<const float *>(factor)[at], bits);
  const uint32_t raw = uint32_t{static_cast<const uint16_t *>(factor)[at]} << 16;
  float x;
  memcpy(&x, &raw, sizeof x);
  return x;
}

/* |x| in the matrix |to|, rounded once where that is of bfloat16. */
void store(void *to, int64_t at, int32_t type, double x) {
  const float once = static_cast<float>(x);
  if (type == REAL_32F) {
    static_cast<float *>(to)[at] = once;
    return;
  }
  const float half = static_cast<float>(rounded(once, 7));
  uint32_t raw;
  memcpy(&raw, &half, sizeof raw);
  static_cast<uint16_t *>(to)[at] = static_cast<uint16_t>(raw >> 16);
}

/* d = a b + beta c; c may be d. A bias is of the type of d. */
void multiply(const problem &p, const void *a, const void *b, float beta, const void *c, void *d) {
  const int bits = p.product.compute == COMPUTE_32F_FAST_TF32   ? 10
                   : p.product.compute == COMPUTE_32F_FAST_16BF ? 7
                                                                : 23;
  for (int64_t s = 0; s < p.d.count; s++)
    for (uint64_t j = 0; j < p.n; j++)
      for (uint64_t i = 0; i < p.m; i++) {
        const int64_t at_a = s * p.a.stride, at_b = s * p.b.stride;
        double sum = 0;
        for (uint64_t q = 0; q < p.k; q++) {
          const int64_t x = p.product.turn_a == OP_N ? i + q * p.a.ld : q + i * p.a.ld;
          const int64_t y = p.product.turn_b == OP_N ? q + j * p.b.ld : j + q * p.b.ld;
          sum += element(a, at_a + x, p.a.type, bits) * element(b, at_b + y, p.b.type, bits);
        }
        if (p.product.epilogue & EPILOGUE_BIAS)
          sum += element(p.product.bias, static_cast<int64_t>(i), p.d.type, 23);
        const int64_t at = s * p.d.stride + i + j * p.d.ld; /* in c too */
        sum += beta != 0 ? beta * element(c, at, p.c.type, 23) : 0;
        if (p.product.epilogue & EPILOGUE_RELU)
          sum = sum < 0 ? 0 : sum;
        store(d, at, p.d.type, sum);
      }
}

bool is_at(const void *address, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

} // namespace

/* ---- The functions -------------------------------------------------------------------------- */

extern "C" {

size_t cublasLtGetVersion(void) { return 130000; }

const char *cublasLtGetStatusString(int status) {
  switch (status) {
  case SUCCESS:
    return "success";
  case INVALID_VALUE:
    return "an invalid value";
  case EXECUTION_FAILED:
    return "the execution failed";
  default:
    return "a failure";
  }
}

int cublasLtCreate(handle *out) {
  if (!out)
    return INVALID_VALUE;
  guard g(standin_lock);
  *out = new context{current_card()};
  handles.insert(*out);
  note_handle(1);
  return SUCCESS;
}

int cublasLtDestroy(handle h) {
  if (!is_real(h))
    return NOT_INITIALIZED;
  guard g(standin_lock);
  handles.erase(h);
  note_handle(-1);
  delete h;
  return SUCCESS;
}

int cublasLtMatmulDescInit_internal(description *out, size_t bytes, int compute, int scale) {
  if (!out || bytes != sizeof *out || scale != REAL_32F ||
      (compute != COMPUTE_32F && compute != COMPUTE_32F_FAST_TF32 &&
       compute != COMPUTE_32F_FAST_16BF))
    return INVALID_VALUE;
  *out = {};
  *reinterpret_cast<product_content *>(out) = {PRODUCT, compute,          scale,  OP_N,
                                               OP_N,    EPILOGUE_DEFAULT, nullptr};
  return SUCCESS;
}

int cublasLtMatmulDescSetAttribute(description *product, int attribute, const void *value,
                                   size_t bytes) {
  auto *p = content<product_content>(product, PRODUCT);
  if (!p)
    return INVALID_VALUE;
  switch (attribute) {
  case DESC_TRANSA:
    return put(&p->turn_a, value, bytes);
  case DESC_TRANSB:
    return put(&p->turn_b, value, bytes);
  case DESC_EPILOGUE:
    return put(&p->epilogue, value, bytes);
  case DESC_BIAS_POINTER:
    return put(&p->bias, value, bytes);
  default:
    return INVALID_VALUE;
  }
}

int cublasLtMatrixLayoutInit_internal(layout *out, size_t bytes, int type, uint64_t rows,
                                      uint64_t columns, int64_t ld) {
  if (!out || bytes != sizeof *out)
    return INVALID_VALUE;
  *out = {};
  *reinterpret_cast<layout_content *>(out) = {LAYOUT, type, 1, rows, columns, ld, 0};
  return SUCCESS;
}

int cublasLtMatrixLayoutSetAttribute(layout *matrix, int attribute, const void *value,
                                     size_t bytes) {
  auto *l = content<layout_content>(matrix, LAYOUT);
  if (!l)
    return INVALID_VALUE;
  if (attribute == LAYOUT_BATCH_COUNT)
    return put(&l->count, value, bytes);
  return attribute == LAYOUT_STRIDED_BATCH_OFFSET ? put(&l->stride, value, bytes)
                                                  : int(INVALID_VALUE);
}

int cublasLtMatmulPreferenceInit_internal(preference *out, size_t bytes) {
  if (!out || bytes != sizeof *out)
    return INVALID_VALUE;
  *out = {};
  *reinterpret_cast<preference_content *>(out) = {WISH, 0, 7, {256, 256, 256, 256}};
  return SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(preference *wish, int attribute, const void *value,
                                         size_t bytes) {
  auto *w = content<preference_content>(wish, WISH);
  if (!w)
    return INVALID_VALUE;
  if (attribute == PREF_MAX_WORKSPACE_BYTES)
    return put(&w->workspace, value, bytes);
  if (attribute == PREF_REDUCTION_SCHEME_MASK)
    return put(&w->reduction, value, bytes);
  if (attribute >= PREF_MIN_ALIGNMENT_A_BYTES && attribute <= PREF_MIN_ALIGNMENT_D_BYTES)
    return put(&w->alignment[attribute - PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  return INVALID_VALUE;
}

/* Long sums of aligned operands want a workspace. */
int cublasLtMatmulAlgoGetHeuristic(handle h, description *product, layout *a, layout *b, layout *c,
                                   layout *d, preference *wish, int wanted, heuristic *out,
                                   int *found) {
  const auto *w = content<preference_content>(wish, WISH);
  if (!is_real(h))
    return NOT_INITIALIZED;
  if (!w || !out || !found || wanted < 1)
    return INVALID_VALUE;
  *found = 0;
  note_question(h->card);
  problem p;
  int status = read_problem(product, a, b, c, d, &p);
  if (status)
    return status;
  if ((p.product.epilogue & EPILOGUE_BIAS) && !p.product.bias)
    return INVALID_VALUE;
  if (refuses_precision(p.product.compute == COMPUTE_32F_FAST_16BF || p.a.type == REAL_16BF ? "bf16"
                        : p.product.compute == COMPUTE_32F_FAST_TF32 ? "tf32"
                                                                     : "float32"))
    return NOT_SUPPORTED;
  const uint64_t workspace = p.k >= 8 && w->alignment[0] >= 16 ? 4 * p.m * p.n : 0;
  if (workspace > w->workspace)
    return NOT_SUPPORTED;
  *found = wanted > 1 && workspace ? 2 : 1; /* the second one needs no workspace */
  for (int i = 0; i < *found; i++) {
    out[i] = {};
    out[i].workspace = i ? 0 : workspace;
    *reinterpret_cast<algorithm_content *>(&out[i].algo) = {
        CHOSEN,
        number_of(p),
        out[i].workspace,
        {w->alignment[0], w->alignment[1], w->alignment[2], w->alignment[3]}};
  }
  return SUCCESS;
}

int cublasLtMatmul(handle h, description *product, const void *alpha, const void *a, layout *la,
                   const void *b, layout *lb, const void *beta, const void *c, layout *lc, void *d,
                   layout *ld, const algorithm *algo, void *workspace, size_t workspace_bytes,
                   cudaStream_t stream) {
  const auto *chosen = content<const algorithm_content>(algo, CHOSEN);
  if (!is_real(h))
    return NOT_INITIALIZED;
  problem p;
  int status = read_problem(product, la, lb, lc, ld, &p);
  if (status)
    return status;
  if (!chosen || chosen->problem != number_of(p) || !alpha || !beta || !a || !b || !c || !d ||
      *static_cast<const float *>(alpha) != 1.0f)
    return INVALID_VALUE;
  const float factor = *static_cast<const float *>(beta); /* of what c has */
  if ((p.product.epilogue & EPILOGUE_BIAS) &&
      (!p.product.bias || !is_at(p.product.bias, chosen->alignment[0])))
    return INVALID_VALUE;
  if (workspace_bytes < chosen->workspace || (chosen->workspace && !workspace) ||
      !is_at(workspace, 16) || !is_at(a, chosen->alignment[0]) || !is_at(b, chosen->alignment[1]) ||
      !is_at(c, chosen->alignment[2]) || !is_at(d, chosen->alignment[3]))
    return INVALID_VALUE;
  const size_t used = chosen->workspace;
  standin_enqueue("cublasLtMatmul", 1, 1, 0, stream, [=] {
    memset(workspace, 0x5a, used); /* as a product in parts would */
    multiply(p, a, b, factor, c, d);
  });
  return cudaGetLastError() ? int(EXECUTION_FAILED) : int(SUCCESS);
}
}
