/* conv/conv.c: y[n, f, o...] = bias[f] + sum over c, t... of x[n, c, o * stride - pad + t *
 * dilation] * w[f, c, t...].
 *
 * x: (N, G * C, in...), w: (G * F, C, kernel...), bias: (G * F), y: (N, G * F, out...), one to
 * three spatial axes. 2 N G F C out taps operations on 4 (N G C in + G F C taps + N G F out) bytes.
 */
#include "conv/conv.h"
#include "conv/algorithm.h"
#include "conv/depthwise.h"
#include "conv/shifted.h"

static df_shifted shifted_of(const df_conv *conv) {
  return (df_shifted){.window = conv->window,
                      .batch = conv->batch,
                      .groups = conv->groups,
                      .rows = conv->filters,
                      .channels = conv->channels,
                      .weight_row = conv->channels * conv->window.taps,
                      .weight_channel = conv->window.taps,
                      .weight_group = conv->filters * conv->channels * conv->window.taps};
}

const char *DF_NAME(df_conv_accepts)(const df_node *node) {
  return df_conv_accepts_shape(node, node->inputs[0], node->inputs[1], node->outputs[0],
                               DF_CONV_STRIDES);
}

static df_conv conv_of_node(const df_node *node) {
  const df_operand *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0];
  df_conv conv = df_conv_make(x->shape, w->shape, y->shape, x->rank, node->attributes,
                              node->n_attributes, DF_CONV_STRIDES);
  conv.uses = node->flags >> 1 & 1 ? 0 : conv.batch;
  conv.algorithm = node->algorithm;
  conv.precision = node->precision;
  return conv;
}

static void prepack_weight(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  df_conv conv = df_conv_simplified(conv_of_node(node));
  df_weight weight = df_weight_make(&conv, source);
  DF_NAME(df_conv_prepack)(&conv, &weight, prepacked);
}

/* Bytes of weights that are packed at every run, at the start of the workspace. */
static int64_t prepacked_bytes(const df_conv *conv) {
  return conv->uses ? df_divide_up(DF_NAME(df_conv_prepack_bytes)(conv), 64) * 64 : 0;
}

df_status DF_NAME(df_conv_prepare)(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_conv conv = conv_of_node(node);
  if (DF_NAME(df_depthwise_takes)(&conv))
    return DF_OK;
  df_conv row = df_conv_simplified(conv);
  int32_t algorithm = DF_NAME(df_conv_choose)(&row);
  out->state = df_conv_state(&conv);
  DF_NAME(df_conv_report)(&row, algorithm, out);
  if (algorithm != DF_CONV_SHIFTED) {
    if (!row.uses) {
      out->replaced = 1 << 1;
      df_ask_prepack(out, 1, algorithm, DF_NAME(df_conv_prepack_bytes)(&row), prepack_weight);
    }
    out->workspace =
        prepacked_bytes(&row) + DF_NAME(df_conv_algorithm_workspace)(&row, node->threads);
    return DF_OK;
  }
  df_shifted shifted = shifted_of(&conv);
  out->workspace = DF_NAME(df_shifted_workspace)(&shifted, node->threads);
  return DF_OK;
}

df_status DF_NAME(df_conv_run)(const df_call *call, const float *add, float high) {
  const df_tensor *x = call->inputs[0], *w = call->inputs[1], *y = call->outputs[0];
  df_conv conv = df_conv_make(x->shape, w->shape, y->shape, x->rank, call->attributes,
                              call->n_attributes, DF_CONV_STRIDES);
  const float *bias = call->n_inputs > 2 ? call->inputs[2]->data : NULL;
  const float *prepacked = call->prepacked ? call->prepacked[0] : NULL;
  conv.uses = prepacked ? 0 : conv.batch;
  df_conv_from_state(&conv, call->state);
  if (DF_NAME(df_depthwise_takes)(&conv)) {
    df_depthwise depthwise = {.conv = conv,
                              .out = y->data,
                              .source = x->data,
                              .weight = w->data,
                              .bias = bias,
                              .add = add,
                              .high = high};
    DF_NAME(df_depthwise_run)(call, &depthwise);
    return DF_OK;
  }
  df_conv row = df_conv_simplified(conv);
  if (DF_NAME(df_conv_choose)(&row) != DF_CONV_SHIFTED) {
    float *workspace = call->workspace;
    if (!prepacked) {
      df_weight weight = df_weight_make(&row, w->data);
      DF_NAME(df_conv_prepack_now)(call, &row, &weight, workspace);
      prepacked = workspace;
      workspace += prepacked_bytes(&row) / (int64_t)sizeof(float);
    }
    df_direct direct = {.conv = row,
                        .out = y->data,
                        .source = x->data,
                        .prepacked = prepacked,
                        .bias = bias,
                        .add = add,
                        .high = high};
    DF_NAME(df_conv_algorithm_run)(call, &direct, workspace);
    return DF_OK;
  }
  df_shifted shifted = shifted_of(&conv);
  shifted.out = y->data;
  shifted.source = x->data;
  shifted.weight = w->data;
  shifted.bias = bias;
  shifted.add = add;
  shifted.high = high;
  DF_NAME(df_shifted_run)(call, &shifted);
  return DF_OK;
}

static df_status run_conv(const df_call *call) { return DF_NAME(df_conv_run)(call, NULL, 0); }

DF_KERNELS(conv) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                       .op = "conv",
                                       .name = "conv f32 " DF_TEXT(DF_ISA),
                                       .operands = "f32,f32,f32?->f32",
                                       .accepts = DF_NAME(df_conv_accepts),
                                       .prepare = DF_NAME(df_conv_prepare),
                                       .run = run_conv},
                    NULL};
