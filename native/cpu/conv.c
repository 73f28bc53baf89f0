/* conv.c: y[n, f, o...] = bias[f] + sum over c, t... of x[n, c, o * stride - pad + t * dilation] *
 * w[f, c, t...].
 *
 * x: (N, G * C, in...), w: (G * F, C, kernel...), bias: (G * F), y: (N, G * F, out...), one to
 * three spatial axes. 2 N G F C out taps operations on 4 (N G C in + G F C taps + N G F out) bytes.
 */
#include "conv.h"
#include "conv_apply.h"
#include "conv_depth.h"
#include "conv_point.h"
#include "conv_shape.h"
#include "conv_winograd.h"

static df_apply apply_of(const df_conv *conv) {
  return (df_apply){.window = conv->window,
                    .batch = conv->batch,
                    .groups = conv->groups,
                    .rows = conv->filters,
                    .channels = conv->channels,
                    .weight_row = conv->channels * conv->window.taps,
                    .weight_channel = conv->window.taps,
                    .weight_group = conv->filters * conv->channels * conv->window.taps};
}

const char *DF_NAME(df_conv_accepts)(const df_node *node) {
  return df_conv_accepts_rank(node->inputs[0].rank);
}

static df_conv conv_of_node(const df_node *node) {
  const df_operand *x = &node->inputs[0], *w = &node->inputs[1], *y = &node->outputs[0];
  return df_conv_make(x->shape, w->shape, y->shape, x->rank, node->attributes, node->n_attributes,
                      0);
}

/* How a convolution with packed weights is done; the number is also the kind of the pack. */
typedef struct way {
  int (*takes)(const df_conv *conv);
  int64_t (*bytes)(const df_conv *conv);
  void (*pack)(const df_conv *conv, const float *weight, float *packed);
  void (*run)(const df_call *call, const df_direct *direct);
  int64_t (*workspace)(const df_conv *conv, int32_t threads); /* null for none */
} way;

static const way ways[] = {
    {DF_NAME(df_winograd_takes), DF_NAME(df_winograd_pack_bytes), DF_NAME(df_winograd_pack),
     DF_NAME(df_winograd_run), DF_NAME(df_winograd_workspace)},
    {DF_NAME(df_point_takes), DF_NAME(df_point_pack_bytes), DF_NAME(df_point_pack),
     DF_NAME(df_point_run), DF_NAME(df_point_workspace)},
    {DF_NAME(df_direct_takes), DF_NAME(df_direct_pack_bytes), DF_NAME(df_direct_pack),
     DF_NAME(df_direct_run), DF_NAME(df_direct_workspace)},
};

/* The first way that takes a convolution, or -1; a matter of sizes alone. */
static int32_t way_of(const df_conv *conv) {
  for (int32_t i = 0; i < (int32_t)(sizeof ways / sizeof *ways); i++)
    if (ways[i].takes(conv))
      return i;
  return -1;
}

static void pack_weight(const df_node *node, void *state, const void *source, void *packed) {
  (void)state;
  df_conv conv = conv_of_node(node);
  ways[way_of(&conv)].pack(&conv, source, packed);
}

df_status DF_NAME(df_conv_prepare)(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_conv conv = conv_of_node(node);
  if (DF_NAME(df_depth_takes)(&conv))
    return DF_OK;
  int32_t way = way_of(&conv);
  if (node->flags >> 1 & 1 && way >= 0) {
    out->n_packs = 1;
    out->packs[0] =
        (df_pack){.input = 1, .kind = way, .bytes = ways[way].bytes(&conv), .pack = pack_weight};
    if (ways[way].workspace)
      out->workspace = ways[way].workspace(&conv, node->threads);
    return DF_OK;
  }
  df_apply apply = apply_of(&conv);
  out->workspace = DF_NAME(df_apply_workspace)(&apply, node->threads);
  return DF_OK;
}

df_status DF_NAME(df_conv_run)(const df_call *call, const float *add, int32_t relu) {
  const df_tensor *x = &call->inputs[0], *w = &call->inputs[1], *y = &call->outputs[0];
  df_conv conv =
      df_conv_make(x->shape, w->shape, y->shape, x->rank, call->attributes, call->n_attributes, 0);
  const float *bias = call->n_inputs > 2 ? call->inputs[2].data : NULL;
  if (DF_NAME(df_depth_takes)(&conv)) {
    df_depth depth = {.conv = conv,
                      .out = y->data,
                      .source = x->data,
                      .weight = w->data,
                      .bias = bias,
                      .add = add,
                      .relu = relu};
    DF_NAME(df_depth_run)(call, &depth);
    return DF_OK;
  }
  if (call->packs && call->packs[0]) {
    df_direct direct = {.conv = conv,
                        .out = y->data,
                        .source = x->data,
                        .packed = call->packs[0],
                        .bias = bias,
                        .add = add,
                        .relu = relu};
    ways[way_of(&conv)].run(call, &direct);
    return DF_OK;
  }
  df_apply apply = apply_of(&conv);
  apply.out = y->data;
  apply.source = x->data;
  apply.weight = w->data;
  apply.bias = bias;
  apply.add = add;
  apply.relu = relu;
  DF_NAME(df_apply_run)(call, &apply);
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
