/* fused/gemm.c: patterns around a product or a convolution, done where the sums are stored.
 *
 *   matmul_bias       add(matmul(x, w), b)           b has one element per column
 *   matmul_bias_relu  relu(add(matmul(x, w), b))
 *   conv_relu         relu(conv(x, w, b))
 *   conv_clip         clip(conv(x, w, b), 0, high)
 *   conv_add_relu     relu(add(conv(x, w, b), z))
 *
 * Each saves a read and a write of the whole result per op that it takes in. */
#include "conv/conv.h"
#include "gemm/linalg.h"

#include <math.h>

static const char *accepts_matmul_bias(const df_node *node) {
  const char *reason = DF_NAME(df_matmul_accepts)(node);
  if (reason)
    return reason;
  const df_operand *w = node->inputs[1], *bias = node->inputs[2];
  int64_t columns = w->shape[w->rank - 1];
  if (bias->rank < 1 || bias->shape[bias->rank - 1] != columns ||
      df_operand_elements(bias) != columns)
    return "the bias must have one element per column";
  return NULL;
}

static df_status run_matmul_bias(const df_call *call) {
  return DF_NAME(df_matmul_run)(call, call->inputs[2]->data, 0);
}

static df_status run_matmul_bias_relu(const df_call *call) {
  return DF_NAME(df_matmul_run)(call, call->inputs[2]->data, INFINITY);
}

static df_status run_conv_relu(const df_call *call) {
  return DF_NAME(df_conv_run)(call, NULL, INFINITY);
}

static df_status run_conv_clip(const df_call *call) {
  const float high = (float)df_attr_float(call, DF_CONV_CLIP_HIGH);
  return DF_NAME(df_conv_run)(call, NULL, high);
}

static df_status run_conv_add_relu(const df_call *call) {
  return DF_NAME(df_conv_run)(call, call->inputs[3]->data, INFINITY);
}

DF_KERNELS(fused_gemm) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "matmul_bias",
                                             .name = "matmul_bias f32 " DF_TEXT(DF_ISA),
                                             .operands = "~f32,~f32|f16|bf16,f32->f32",
                                             .accepts = accepts_matmul_bias,
                                             .prepare = DF_NAME(df_matmul_prepare),
                                             .run = run_matmul_bias},
                          &(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "matmul_bias_relu",
                                             .name = "matmul_bias_relu f32 " DF_TEXT(DF_ISA),
                                             .operands = "~f32,~f32|f16|bf16,f32->f32",
                                             .accepts = accepts_matmul_bias,
                                             .prepare = DF_NAME(df_matmul_prepare),
                                             .run = run_matmul_bias_relu},
                          &(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "conv_relu",
                                             .name = "conv_relu f32 " DF_TEXT(DF_ISA),
                                             .operands = "f32,f32,f32?->f32",
                                             .accepts = DF_NAME(df_conv_accepts),
                                             .prepare = DF_NAME(df_conv_prepare),
                                             .run = run_conv_relu},
                          &(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "conv_clip",
                                             .name = "conv_clip f32 " DF_TEXT(DF_ISA),
                                             .operands = "f32,f32,f32?->f32",
                                             .accepts = DF_NAME(df_conv_accepts),
                                             .prepare = DF_NAME(df_conv_prepare),
                                             .run = run_conv_clip},
                          &(const df_kernel){.struct_size = sizeof(df_kernel),
                                             .op = "conv_add_relu",
                                             .name = "conv_add_relu f32 " DF_TEXT(DF_ISA),
                                             .operands = "f32,f32,f32,f32->f32",
                                             .inplace = "0<3",
                                             .accepts = DF_NAME(df_conv_accepts),
                                             .prepare = DF_NAME(df_conv_prepare),
                                             .run = run_conv_add_relu},
                          NULL};
