/* conv/grad_weight.c: dw[f, c, t...] = sum over n, o... of dy[n, f, o] * x[n, c, o * stride - pad +
 * t * dilation].
 *
 * x: (N, G * C, in...), dy: (N, G * F, out...), dw: (G * F, C, kernel...). As many operations as
 * conv. Four algorithms: channel by channel (conv/depthwise.h); on AMX tiles, where less than
 * float32 is wanted (conv/amx/outer.h); as outer products, whose lanes are filters (conv/outer.h);
 * and where these would leave many of the lanes empty, as dot products, whose lanes are positions
 * (conv/dot.h). */
#include "conv/amx/outer.h"
#include "conv/depthwise.h"
#include "conv/dot.h"
#include "conv/outer.h"
#include "conv/outer_plan.h"

/* Bytes of the algorithms in float32. */
static int64_t workspace_of(const df_conv *conv, int32_t threads) {
  return (DF_NAME(df_outer_takes)(conv) ? DF_NAME(df_outer_floats)(conv, threads)
                                        : DF_NAME(df_dot_floats)(conv, threads)) *
         (int64_t)sizeof(float);
}

#ifdef DF_AMX
static int amx_takes(const df_conv *conv) { return DF_NAME(df_amx_outer_takes)(conv); }

static int64_t amx_workspace(const df_conv *conv, int32_t threads) {
  return DF_NAME(df_amx_outer_workspace)(conv, threads);
}

static int run_amx(const df_call *call, const df_conv *conv, float *dw, const float *x,
                   const float *dy) {
  return DF_NAME(df_amx_outer_run)(call, conv, dw, x, dy);
}
#else
static int amx_takes(const df_conv *conv) {
  (void)conv;
  return 0;
}

static int64_t amx_workspace(const df_conv *conv, int32_t threads) {
  (void)conv, (void)threads;
  return 0;
}

static int run_amx(const df_call *call, const df_conv *conv, float *dw, const float *x,
                   const float *dy) {
  (void)call, (void)conv, (void)dw, (void)x, (void)dy;
  return 0;
}
#endif

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *x = node->inputs[0], *dy = node->inputs[1], *dw = node->outputs[0];
  df_conv conv = df_conv_make(x->shape, dw->shape, dy->shape, x->rank, node->attributes,
                              node->n_attributes, DF_CONV_GRAD_WEIGHT_STRIDES);
  conv.precision = node->precision;
  out->state = df_conv_state(&conv);
  if (DF_NAME(df_depthwise_takes)(&conv))
    return DF_OK;
  out->workspace = workspace_of(&conv, node->threads);
  const df_conv row = df_conv_as_row(conv);
  if (amx_takes(&row))
    out->workspace = df_max(out->workspace, amx_workspace(&row, node->threads));
  return DF_OK;
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *dy = call->inputs[1], *dw = call->outputs[0];
  df_conv conv = df_conv_make(x->shape, dw->shape, dy->shape, x->rank, call->attributes,
                              call->n_attributes, DF_CONV_GRAD_WEIGHT_STRIDES);
  df_conv_from_state(&conv, call->state);
  if (DF_NAME(df_depthwise_takes)(&conv)) {
    df_depthwise depthwise = {.conv = conv, .out = dw->data, .source = x->data, .weight = dy->data};
    DF_NAME(df_depthwise_run_dw)(call, &depthwise);
    return DF_OK;
  }
  const df_conv row = df_conv_as_row(conv);
  if (amx_takes(&row) && run_amx(call, &row, dw->data, x->data, dy->data))
    return DF_OK;
  if (DF_NAME(df_outer_takes)(&conv))
    DF_NAME(df_outer_run)(call, &conv, dw->data, x->data, dy->data);
  else
    DF_NAME(df_dot_run)(call, &conv, dw->data, x->data, dy->data);
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  return df_conv_accepts_shape(node, node->inputs[0], node->outputs[0], node->inputs[1],
                               DF_CONV_GRAD_WEIGHT_STRIDES);
}

DF_KERNELS(conv_grad_weight) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                   .op = "conv_grad_weight",
                                                   .name = "conv_grad_weight f32 " DF_TEXT(DF_ISA),
                                                   .operands = "f32,f32->f32",
                                                   .accepts = accepts,
                                                   .prepare = prepare,
                                                   .run = run},
                                NULL};
