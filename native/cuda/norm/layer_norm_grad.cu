/* norm/layer_norm_grad.cu: the gradient of the normalization of rows. x is seen as (rows, n).
 *
 *   g = dy scale, x^ = (x - mean) inverse
 *   dx = inverse (g - mean(g) - x^ mean(g x^)) + addend
 *   dscale = sum over rows of dy x^, dbias = sum over rows of dy
 *
 * layer_norm_grad_sums also has sum over rows of dx: the gradient of a bias that was added to x.
 *
 * Without centering mean and mean(g) are 0. dx may overwrite dy, x and the addend. Rows of up to
 * 8192 elements are read once, longer ones a second time. A group of threads does several rows and
 * keeps sums over them of its columns in registers; those sums meet in the workspace and are joined
 * in order.
 */
#include "norm/grad_rows.h"
#include "reduce/partials.h"

/* Whether sums of dx are wanted: behind dx. */
template <typename N> static bool totaled(const N *of) { return of->n_outputs > 3; }

static const char *grad_accepts(const df_node *node) {
  const df_operand *x = node->inputs[1];
  const df_norm_extent e = df_norm_extent_of(node, x->shape, x->rank);
  const bool adds = node->n_inputs > 5 && node->inputs[5]->dtype != DF_NONE;
  const int32_t stored = node->inputs[0]->dtype, dx = node->outputs[0]->dtype;
  if ((dx != DF_NONE && dx != stored) || (adds && node->inputs[5]->dtype != stored))
    return "dy, the addend and dx must be stored alike";
  return (adds || totaled(node)) && plan_of(e).block > GRAD_BLOCK
             ? "neither an addend nor sums of dx are supported of rows that are so long"
             : nullptr;
}

static df_status grad_prepare(const df_node *node, df_prepared *out, df_error *) {
  const int32_t kinds = totaled(node) ? 3 : 2, first = node->n_outputs - 2;
  if (kinds == 2 && node->outputs[first]->dtype == DF_NONE &&
      node->outputs[first + 1]->dtype == DF_NONE)
    return DF_OK;
  const df_operand *x = node->inputs[1];
  const df_norm_extent e = df_norm_extent_of(node, x->shape, x->rank);
  out->workspace = partial_count(plan_of(e)) * kinds * e.n * static_cast<int64_t>(sizeof(float));
  return DF_OK;
}

template <typename S, typename G> static df_status grad_to(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  const df_norm_extent e = df_norm_extent_of(call, x->shape, x->rank);
  const bool total = totaled(call);
  df_partial_sums to{{df_out<float>(call, total ? 2 : 1), df_out<float>(call, total ? 3 : 2),
                      total ? df_out<float>(call, 1) : nullptr}};
  if (e.rows * e.n == 0) {
    df_status status = DF_OK;
    for (float *sums : to.at)
      status = status ? status : df_norm_clear(call, sums, e.n);
    return status;
  }
  df_rows plan = plan_of(e);
  row_norm_grad s{};
  s.dx = df_out<G>(call, 0);
  s.dy = df_in<const G>(call, 0);
  s.x = df_in<const S>(call, 1);
  s.scale = df_in<const float>(call, 2);
  s.mean = df_in<const float>(call, 3);
  s.inverse = df_in<const float>(call, 4);
  s.addend = df_in<const G>(call, 5);
  s.sums = to.at[0] || to.at[1] || total ? static_cast<float *>(call->workspace) : nullptr;
  s.kinds = total ? 3 : 2;
  s.partials = partial_count(plan);
  s.center = df_attr_int(call, DF_LAYER_NORM_CENTER) != 0;
  df_rows_vectors(&plan, static_cast<const char *>(s.dx), static_cast<const char *>(s.dy),
                  static_cast<const char *>(s.x), s.scale, static_cast<const char *>(s.addend));
  df_status status = DF_OK;
  const bool held = fits(plan);
  if (s.sums && !held) { /* before dx overwrites what it reads */
    const dim3 grid(df_blocks(e.n, DF_BLOCK), static_cast<unsigned>(s.partials));
    status = DF_LAUNCH(call, (grad_bands<S, G>), grid, DF_BLOCK, 0, s, plan);
  }
  if (!held)
    s.partials = e.rows;
  const unsigned blocks = static_cast<unsigned>(s.partials);
  if (!status && in_warps(plan)) {
    status = df_by_held(plan, [&]<int HELD>() {
      return plan.vector ? DF_LAUNCH(call, (grad_rows_in_warps<S, G, true, HELD>), blocks,
                                     plan.block, 0, s, plan)
                         : DF_LAUNCH(call, (grad_rows_in_warps<S, G, false, HELD>), blocks,
                                     plan.block, 0, s, plan);
    });
  } else if (!status && (s.dx || held)) {
    status =
        !held ? DF_LAUNCH(call, (grad_rows<S, G, DF_ROW_BLOCK, false>), blocks, plan.block, 0, s,
                          plan)
        : plan.block > GRAD_BLOCK
            ? DF_LAUNCH(call, (grad_rows<S, G, DF_ROW_BLOCK, true>), blocks, plan.block, 0, s, plan)
        : plan.vector
            ? DF_LAUNCH(call, (grad_rows<S, G, GRAD_BLOCK, true, true>), blocks, plan.block, 0, s,
                        plan)
            : DF_LAUNCH(call, (grad_rows<S, G, GRAD_BLOCK, true>), blocks, plan.block, 0, s, plan);
  }
  if (status || !s.sums)
    return status;
  return df_join_partials(call, to, s.sums, e.n, s.kinds, partial_count(plan));
}

template <typename S> static df_status grad_of(const df_call *call) {
  return call->inputs[0]->dtype == DF_BFLOAT16 ? grad_to<S, uint16_t>(call)
                                               : grad_to<S, float>(call);
}

static df_status grad_run(const df_call *call) {
  return call->inputs[1]->dtype == DF_BFLOAT16 ? grad_of<uint16_t>(call) : grad_of<float>(call);
}

#define INPUTS "f32|bf16,f32|bf16,f32?,f32,f32,f32|bf16?"
static const df_kernel records[] = {
    DF_CUDA_KERNEL("layer_norm_grad", "f32", INPUTS "->f32|bf16?,f32?,f32?", "0<0,0<1,0<5",
                   .accepts = grad_accepts, .prepare = grad_prepare, .run = grad_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("layer_norm_grad_sums", "f32", INPUTS "->f32|bf16,f32,f32?,f32?", "0<0,0<1,0<5",
                   .accepts = grad_accepts, .prepare = grad_prepare, .run = grad_run,
                   .capturable = 1)};
DF_CUDA_FAMILY(layer_norm_grad, records);
