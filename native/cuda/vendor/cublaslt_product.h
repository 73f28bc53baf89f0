/* vendor/cublaslt_product.h: a product in the words of cuBLASLt, and its functions; for
 * vendor/cublaslt.cu. */
#ifndef DF_CUDA_VENDOR_CUBLASLT_PRODUCT_H
#define DF_CUDA_VENDOR_CUBLASLT_PRODUCT_H
#include "gemm/gemm.h"
#include "vendor/cublaslt_api.h"
#include "vendor/library.h"

/* ---- The library ---------------------------------------------------------------------------- */

enum {
  MOST_LAUNCHES = 64, /* for a batch that is no single axis */
  ALIGNED = 16        /* bytes; addresses are looked at when the product runs */
};

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
  int32_t type;   /* of the factors' elements: REAL_32F or REAL_16BF */
  int32_t stored; /* of the result's, an addend's and a bias' elements, likewise */
  int64_t m, n, k;
  int32_t inside; /* axis of the batch, or -1 */
  int64_t launches;
  int32_t epilogue;
};

bool problem_of(const df_gemm &g, int32_t type, int32_t stored, problem *out) {
  *out = {};
  out->type = type;
  out->stored = stored;
  out->m = g.m;
  out->n = g.n;
  out->k = g.k;
  out->inside = -1;
  out->epilogue = int(EPILOGUE_DEFAULT);
  if (g.end.column_bias)
    out->epilogue = g.end.relu ? int(EPILOGUE_RELU_BIAS) : int(EPILOGUE_BIAS);
  else if (g.end.relu)
    out->epilogue = int(EPILOGUE_RELU);
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

int64_t bytes_of(int32_t type) { return type == REAL_16BF ? 2 : 4; }

/* |elements| of a matrix behind |from|. */
const float *behind(const float *from, int64_t elements, int32_t type) {
  return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) +
                                         elements * bytes_of(type));
}

/* The library's descriptions of a problem. */
struct described {
  description product;
  layout first, second, result;
};

int describe_matrix(layout *out, int32_t type, uint64_t rows, uint64_t columns, int64_t ld,
                    int32_t count, int64_t stride) {
  int status = lt().cublasLtMatrixLayoutInit_internal(out, sizeof *out, type, rows, columns, ld);
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
  if (p.epilogue & EPILOGUE_BIAS)
    set(DESC_BIAS_POINTER, &bias, sizeof bias);
  const bool batched = p.inside >= 0;
  const int32_t count = batched ? static_cast<int32_t>(g.batch.shape[p.inside]) : 1;
  const int64_t first_stride = batched ? g.batch.strides[1][p.inside] : 0;
  const int64_t second_stride = batched ? g.batch.strides[0][p.inside] : 0;
  const int64_t result_stride = batched ? products_inside(g, p.inside) * g.c_batch : 0;
  if (!status)
    status = describe_matrix(&out->first, p.type, p.first.rows, p.first.columns, p.first.ld, count,
                             first_stride);
  if (!status)
    status = describe_matrix(&out->second, p.type, p.second.rows, p.second.columns, p.second.ld,
                             count, second_stride);
  if (!status)
    status = describe_matrix(&out->result, p.stored, static_cast<uint64_t>(p.n),
                             static_cast<uint64_t>(p.m), g.c_row, count, result_stride);
  return status;
}

/* Whether every matrix of the batch begins at a multiple of 16 bytes. */
bool is_aligned(const df_gemm &g, const problem &p) {
  bool even = df_is_aligned<4>(g.a) && df_is_aligned<4>(g.b) && df_is_aligned<4>(g.c) &&
              df_is_aligned<4>(g.end.column_bias) && df_is_aligned<4>(g.end.add);
  const int64_t line = ALIGNED / bytes_of(p.type), result_line = ALIGNED / bytes_of(p.stored);
  for (int32_t axis = 0; axis < g.batch.rank; axis++)
    if (axis != p.inside)
      even = even && g.batch.strides[0][axis] % line == 0 && g.batch.strides[1][axis] % line == 0 &&
             products_inside(g, axis) * g.c_batch % result_line == 0;
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
    out->a = behind(out->a, at * g.batch.strides[0][axis], p.type);
    out->b = behind(out->b, at * g.batch.strides[1][axis], p.type);
    const int64_t result = at * products_inside(g, axis) * g.c_batch;
    out->c = const_cast<float *>(behind(out->c, result, p.stored));
    if (out->end.add)
      out->end.add = behind(out->end.add, result, p.stored);
  }
}

} // namespace

#endif
