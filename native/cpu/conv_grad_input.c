/* conv_grad_input.c: dx[n, c, i] = sum over f, t of dy[n, f, o] * w[f, c, t] where o * stride - pad
 * + t * dilation = i.
 *
 * dy: (N, G * F, out...), w: (G * F, C, kernel...), dx: (N, G * C, in...). Every dx is a sum of its
 * own, so nothing is scattered and the order of the sums is fixed. As many operations as conv. */
#include "conv_apply.h"
#include "conv_depth.h"
#include "conv_shape.h"

enum { FIRST_ATTRIBUTE = 1 }; /* after input_shape */

static df_apply apply_of(const df_conv *conv) {
  return (df_apply){.window = conv->window,
                    .batch = conv->batch,
                    .groups = conv->groups,
                    .rows = conv->channels,
                    .channels = conv->filters,
                    .weight_row = conv->window.taps,
                    .weight_channel = conv->channels * conv->window.taps,
                    .weight_group = conv->filters * conv->channels * conv->window.taps,
                    .backward = 1};
}

static const char *accepts(const df_node *node) {
  return df_conv_accepts_rank(node->inputs[0].rank);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const df_operand *dy = &node->inputs[0], *w = &node->inputs[1], *dx = &node->outputs[0];
  df_conv conv = df_conv_make(dx->shape, w->shape, dy->shape, dx->rank, node->attributes,
                              node->n_attributes, FIRST_ATTRIBUTE);
  if (DF_NAME(df_depth_takes)(&conv))
    return DF_OK;
  df_apply apply = apply_of(&conv);
  out->workspace = DF_NAME(df_apply_workspace)(&apply, node->threads);
  return DF_OK;
}

static df_status run(const df_call *call) {
  const df_tensor *dy = &call->inputs[0], *w = &call->inputs[1], *dx = &call->outputs[0];
  df_conv conv = df_conv_make(dx->shape, w->shape, dy->shape, dx->rank, call->attributes,
                              call->n_attributes, FIRST_ATTRIBUTE);
  if (DF_NAME(df_depth_takes)(&conv)) {
    df_depth depth = {.conv = conv, .out = dx->data, .source = dy->data, .weight = w->data};
    DF_NAME(df_depth_run_dx)(call, &depth);
    return DF_OK;
  }
  df_apply apply = apply_of(&conv);
  apply.out = dx->data;
  apply.source = dy->data;
  apply.weight = w->data;
  DF_NAME(df_apply_run)(call, &apply);
  return DF_OK;
}

DF_KERNELS(conv_grad_input) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                  .op = "conv_grad_input",
                                                  .name = "conv_grad_input f32 " DF_TEXT(DF_ISA),
                                                  .operands = "f32,f32->f32",
                                                  .accepts = accepts,
                                                  .prepare = prepare,
                                                  .run = run},
                               NULL};
