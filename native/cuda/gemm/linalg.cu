/* gemm/linalg.cu: c[..., i, j] = sum over p of a[..., i, p] b[..., p, j], with a bias per column,
 * an addend like c, and relu where the pattern has them.
 *
 * a: (..., M, K), b: (..., K, N) with any strides, leading axes broadcast; c: (..., M, N)
 * contiguous. */
#include "gemm/linalg.h"
#include "map/floats.h"

/* ---- Sizes and strides of a node or a call -------------------------------------------------- */

static df_tensor without_data(const df_operand *operand) {
  df_tensor t{};
  t.shape = operand->shape;
  t.strides = operand->strides;
  t.dtype = operand->dtype;
  t.rank = operand->rank;
  return t;
}

/* True when all leading axes and the rows of x together are one axis of even stride, |stride|. */
static bool rows_are_even(const df_tensor *x, int64_t *stride) {
  int64_t expected = 0;
  *stride = x->strides[x->rank - 2];
  bool first = true;
  for (int32_t axis = x->rank - 2; axis >= 0; axis--) {
    if (x->shape[axis] == 1)
      continue;
    if (first)
      *stride = x->strides[axis];
    else if (x->strides[axis] != expected)
      return false;
    first = false;
    expected = x->strides[axis] * x->shape[axis];
  }
  return true;
}

/* A batch of a that meets one single b is a product with more rows. */
static df_gemm make(const df_tensor *a, const df_tensor *b, const df_tensor *c) {
  df_gemm g = df_gemm_of(static_cast<float *>(c->data), static_cast<const float *>(a->data),
                         static_cast<const float *>(b->data), a->shape[a->rank - 2],
                         b->shape[b->rank - 1], a->shape[a->rank - 1]);
  g.a_row = a->strides[a->rank - 2];
  g.a_col = a->strides[a->rank - 1];
  g.b_row = b->strides[b->rank - 2];
  g.b_col = b->strides[b->rank - 1];
  g.products = df_product(c->shape, 0, c->rank - 2);
  int64_t stride;
  if (g.products > 1 && df_product(b->shape, 0, b->rank - 2) == 1 &&
      df_product(a->shape, 0, a->rank - 2) == g.products && rows_are_even(a, &stride)) {
    g.m *= g.products;
    g.products = 1;
    g.a_row = stride;
  } else {
    df_tensor outer_a = *a, outer_b = *b;
    outer_a.rank -= 2;
    outer_b.rank -= 2;
    const df_tensor *const operands[2] = {&outer_a, &outer_b};
    df_walk_plan(&g.batch, c->shape, c->rank - 2,
                 operands); /* can't fail: accepts looks at ranks */
  }
  return g;
}

df_gemm df_matmul_of_node(const df_node *node) {
  const df_tensor a = without_data(node->inputs[0]), b = without_data(node->inputs[1]),
                  c = without_data(node->outputs[0]);
  return make(&a, &b, &c);
}

df_gemm df_matmul_of_call(const df_call *call) {
  return make(call->inputs[0], call->inputs[1], call->outputs[0]);
}

/* ---- Factors of 16 bits --------------------------------------------------------------------- */

int64_t df_matmul_float_node(const df_node *node, df_gemm *out) {
  const df_tensor a = without_data(node->inputs[0]), b = without_data(node->inputs[1]),
                  c = without_data(node->outputs[0]);
  int64_t strides[2][DF_WALK_RANK];
  const df_tensor floats[2] = {df_floats_of(a, nullptr, strides[0]),
                               df_floats_of(b, nullptr, strides[1])};
  const df_gemm_end end = out->end;
  *out = make(&floats[0], &floats[1], &c);
  out->end = end;
  return df_floats_bytes(df_elements(&a)) + df_floats_bytes(df_elements(&b)) +
         (c.dtype == DF_BFLOAT16 ? df_floats_bytes(df_elements(&c)) : 0);
}

/* Of a result of bfloat16 float32 is made behind the factors, to which an addend is converted. */
df_status df_matmul_run_as_floats(const df_call *call, df_gemm *out, float *floats) {
  const df_gemm_end end = out->end;
  const df_tensor *y = call->outputs[0];
  int64_t strides[2][DF_WALK_RANK], result_strides[DF_WALK_RANK];
  df_tensor made[2];
  for (int i = 0; i < 2; i++) {
    const df_tensor *from = call->inputs[i];
    made[i] = df_floats_of(*from, floats, strides[i]);
    floats += df_floats_bytes(df_elements(from)) / static_cast<int64_t>(sizeof(float));
    const df_status status = df_fill_floats(call, *from, made[i]);
    if (status)
      return status;
  }
  *out = make(&made[0], &made[1], y);
  out->end = end;
  const bool halves = y->dtype == DF_BFLOAT16;
  df_status status = DF_OK;
  if (halves)
    out->c = floats;
  if (halves && end.add) {
    out->end.add = floats;
    status = df_fill_floats(call, *call->inputs[3], df_floats_of(*y, floats, result_strides));
  }
  df_gemm_plan(out);
  if (!status)
    status = df_gemm_run(call, out, call->workspace);
  return status || !halves
             ? status
             : df_round_floats(call, static_cast<uint16_t *>(y->data), floats, df_elements(y));
}

const char *df_matmul_accepts(const df_node *node) {
  if (node->inputs[0]->rank < 2 || node->inputs[1]->rank < 2)
    return "both operands must have at least two axes";
  return df_accepts_rank(node);
}

const char *df_matmul_bias_accepts(const df_node *node) {
  const char *reason = df_matmul_accepts(node);
  if (reason)
    return reason;
  const df_operand *w = node->inputs[1], *bias = node->inputs[2];
  const int64_t columns = w->shape[w->rank - 1];
  if (bias->rank < 1 || bias->shape[bias->rank - 1] != columns ||
      df_operand_elements(bias) != columns)
    return "the bias must have one element per column";
  return nullptr;
}

/* ---- Records -------------------------------------------------------------------------------- */

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  df_gemm g = df_matmul_of_node(node);
  df_gemm_plan(&g);
  out->workspace = df_gemm_workspace(&g);
  return DF_OK;
}

static df_status run(const df_call *call, const float *bias, int relu) {
  df_gemm g = df_matmul_of_call(call);
  g.end.column_bias = bias;
  g.end.add = df_in<const float>(call, 3);
  g.end.relu = relu;
  df_gemm_plan(&g);
  return df_gemm_run(call, &g, call->workspace);
}

static df_status matmul_run(const df_call *call) { return run(call, nullptr, 0); }
static df_status matmul_bias_run(const df_call *call) {
  return run(call, df_in<const float>(call, 2), 0);
}
static df_status matmul_bias_relu_run(const df_call *call) {
  return run(call, df_in<const float>(call, 2), 1);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("matmul", "f32", "~f32,~f32->f32", nullptr, .accepts = df_matmul_accepts,
                   .prepare = prepare, .run = matmul_run, .capturable = 1),
    DF_CUDA_KERNEL("matmul_bias", "f32", "~f32,~f32,f32,f32?->f32", "0<3",
                   .accepts = df_matmul_bias_accepts, .prepare = prepare, .run = matmul_bias_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("matmul_bias_relu", "f32", "~f32,~f32,f32->f32", nullptr,
                   .accepts = df_matmul_bias_accepts, .prepare = prepare,
                   .run = matmul_bias_relu_run, .capturable = 1)};
DF_CUDA_FAMILY(linalg, records);
