/* conv/conv.cu: y[n, f, o...] = bias[f] + sum over c, t... of x[n, c, o * stride - pad + t *
 * dilation] * w[f, c, t...], its gradients, and what is added behind it: which kernel does it.
 *
 * 2 N G F C out taps operations on 4 (N G C in + G F C taps + N G F out) bytes. */
#include "conv/conv.h"
#include "gemm/tile.h"

/* ---- Sizes ---------------------------------------------------------------------------------- */

df_conv df_conv_of(const int64_t *x, const int64_t *weight, const int64_t *y, int32_t rank,
                   const df_attribute *const *attributes, int32_t count, int32_t first) {
  df_conv conv{};
  const int32_t axes = rank - 2;
  const int64_t *strides = df_attribute_ints(attributes, count, first + DF_CONV_STRIDES, nullptr);
  const int64_t *pads = df_attribute_ints(attributes, count, first + DF_CONV_PADS, nullptr);
  const int64_t *dilations =
      df_attribute_ints(attributes, count, first + DF_CONV_DILATIONS, nullptr);
  conv.rank = axes;
  conv.batch = x[0];
  conv.groups = df_attribute_int(attributes, count, first + DF_CONV_GROUPS);
  conv.channels = weight[1];
  conv.filters = weight[0] / conv.groups;
  conv.padded = 1;
  conv.in_size = df_product(x, 2, rank);
  conv.out_size = df_product(y, 2, rank);
  conv.taps = df_product(weight, 2, rank);
  for (int32_t i = 0; i < DF_AXES; i++) {
    const int32_t from = i - (DF_AXES - axes);
    const bool real = from >= 0 && axes <= DF_AXES;
    conv.in[i] = real ? static_cast<int32_t>(x[2 + from]) : 1;
    conv.out[i] = real ? static_cast<int32_t>(y[2 + from]) : 1;
    conv.kernel[i] = real ? static_cast<int32_t>(weight[2 + from]) : 1;
    conv.pad[i] = real && pads ? static_cast<int32_t>(pads[from]) : 0;
    conv.pad_end[i] = real && pads ? static_cast<int32_t>(pads[axes + from]) : 0;
    /* A single output or tap has no next. */
    const bool moves = real && y[2 + from] > 1, dilates = real && weight[2 + from] > 1;
    conv.stride[i] = moves && strides ? static_cast<int32_t>(strides[from]) : 1;
    conv.dilation[i] = dilates && dilations ? static_cast<int32_t>(dilations[from]) : 1;
    if (real)
      conv.padded = df_times(
          conv.padded, df_span(x[2 + from], pads ? pads[from] : 0, pads ? pads[axes + from] : 0,
                               y[2 + from], moves && strides ? strides[from] : 1, weight[2 + from],
                               dilates && dilations ? dilations[from] : 1));
  }
  return conv;
}

template <typename N>
static df_conv conv_of(const N *of, const int64_t *x, const int64_t *weight, const int64_t *y,
                       int32_t rank, int32_t first) {
  return df_conv_of(x, weight, y, rank, of->attributes, of->n_attributes, first);
}
template <typename N> static df_conv forward_of(const N *of) {
  return conv_of(of, of->inputs[0]->shape, of->inputs[1]->shape, of->outputs[0]->shape,
                 of->inputs[0]->rank, DF_CONV_STRIDES);
}
template <typename N> static df_conv grad_input_of(const N *of) {
  return conv_of(of, of->outputs[0]->shape, of->inputs[1]->shape, of->inputs[0]->shape,
                 of->inputs[0]->rank, DF_CONV_GRAD_INPUT_STRIDES);
}
template <typename N> static df_conv grad_weight_of(const N *of) {
  return conv_of(of, of->inputs[0]->shape, of->outputs[0]->shape, of->inputs[1]->shape,
                 of->inputs[0]->rank, DF_CONV_GRAD_WEIGHT_STRIDES);
}

df_conv df_conv_forward(const df_node *node) { return forward_of(node); }
df_conv df_conv_forward(const df_call *call) { return forward_of(call); }
df_conv df_conv_grad_input(const df_node *node) { return grad_input_of(node); }
df_conv df_conv_grad_input(const df_call *call) { return grad_input_of(call); }
df_conv df_conv_grad_weight(const df_node *node) { return grad_weight_of(node); }
df_conv df_conv_grad_weight(const df_call *call) { return grad_weight_of(call); }

/* Positions and elements of an image are counted with 31 bits in the kernels. */
const char *df_conv_accepts(const df_conv &conv, int32_t rank) {
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  if (conv.padded > INT32_MAX / 2)
    return "a plane with its padding has too many elements";
  const int64_t x = conv.groups * conv.channels * conv.in_size,
                y = conv.groups * conv.filters * conv.out_size,
                w = conv.groups * conv.filters * conv.channels * conv.taps;
  const int64_t most = INT32_MAX - DF_TILE_DEPTH;
  const int64_t deepest = (df_max(conv.channels, conv.filters) + DF_TILE_DEPTH) * conv.taps;
  if (df_max(df_max(x, y), df_max(w, deepest)) > most ||
      conv.batch * df_max(conv.in_size, conv.out_size) > most)
    return "images of 2^31 elements, or that many positions, are not supported";
  if (df_conv_is_depthwise(conv) && conv.batch * df_max(x, y) > INT32_MAX)
    return "depthwise convolutions of 2^31 elements are not supported";
  return nullptr;
}

/* ---- The end of a convolution --------------------------------------------------------------- */

/* A thread has V elements of one plane, or of one position where planes have one element. */
template <int V>
__global__ void __launch_bounds__(DF_BLOCK)
    finish_planes(float *out, const float *partials, int32_t splits, int64_t total, int64_t plane,
                  int64_t channels, df_gemm_end end) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * V;
  if (at >= total)
    return;
  df_vector<float, V> v = *reinterpret_cast<const df_vector<float, V> *>(partials + at);
  for (int32_t split = 1; split < splits; split++) {
    const auto next = *reinterpret_cast<const df_vector<float, V> *>(partials + split * total + at);
#pragma unroll
    for (int e = 0; e < V; e++)
      v.v[e] += next.v[e];
  }
  const int64_t channel = total <= INT32_MAX
                              ? static_cast<uint32_t>(at) / static_cast<uint32_t>(plane) %
                                    static_cast<uint32_t>(channels)
                              : at / plane % channels;
  const int step = plane == 1; /* channels from element to element */
#pragma unroll
  for (int e = 0; e < V; e++)
    v.v[e] = end(v.v[e], channel + e * step, 0, at + e);
  *reinterpret_cast<df_vector<float, V> *>(out + at) = v;
}

df_status df_conv_finish(const df_call *call, float *out, const float *partials, int32_t splits,
                         int64_t total, int64_t plane, int64_t channels, const df_gemm_end &end) {
  if (total == 0)
    return DF_OK;
  if ((plane == 1 ? channels : plane) % 4 == 0 && df_is_aligned<4>(out) &&
      df_is_aligned<4>(partials))
    return DF_LAUNCH(call, finish_planes<4>, df_blocks(total, DF_BLOCK * 4), DF_BLOCK, 0, out,
                     partials, splits, total, plane, channels, end);
  return DF_LAUNCH(call, finish_planes<1>, df_blocks(total, DF_BLOCK), DF_BLOCK, 0, out, partials,
                   splits, total, plane, channels, end);
}

/* ---- Records -------------------------------------------------------------------------------- */

template <df_conv (*of)(const df_node *)> static const char *accepts(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  return reason ? reason : df_conv_accepts(of(node), rank);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_conv conv = df_conv_forward(node);
  out->workspace = df_conv_is_depthwise(conv) ? 0 : df_conv_shifted_workspace(conv, false);
  return DF_OK;
}

static df_status run(const df_call *call, const float *add, int relu) {
  const df_conv conv = df_conv_forward(call);
  const float *x = df_in<const float>(call, 0), *weight = df_in<const float>(call, 1);
  float *y = df_out<float>(call, 0);
  df_gemm_end end{};
  end.row_bias = df_in<const float>(call, 2);
  end.add = add;
  end.relu = relu;
  if (df_conv_is_depthwise(conv))
    return df_conv_depthwise(call, conv, y, x, weight, end);
  return df_conv_shifted(call, conv, false, y, x, weight, end);
}

static df_status conv_run(const df_call *call) { return run(call, nullptr, 0); }
static df_status conv_relu_run(const df_call *call) { return run(call, nullptr, 1); }
static df_status conv_add_relu_run(const df_call *call) {
  return run(call, df_in<const float>(call, 3), 1);
}

static df_status grad_input_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_conv conv = df_conv_grad_input(node);
  out->workspace = df_conv_is_depthwise(conv) ? 0 : df_conv_shifted_workspace(conv, true);
  return DF_OK;
}

static df_status grad_input_run(const df_call *call) {
  const df_conv conv = df_conv_grad_input(call);
  const float *dy = df_in<const float>(call, 0), *weight = df_in<const float>(call, 1);
  float *dx = df_out<float>(call, 0);
  if (df_conv_is_depthwise(conv))
    return df_conv_depthwise_input(call, conv, dx, dy, weight);
  return df_conv_shifted(call, conv, true, dx, dy, weight, df_gemm_end{});
}

static df_status grad_weight_prepare(const df_node *node, df_prepared *out, df_error *) {
  const df_conv conv = df_conv_grad_weight(node);
  out->workspace = df_conv_is_depthwise(conv) ? df_conv_depthwise_weight_workspace(conv)
                                              : df_conv_weight_workspace(conv);
  return DF_OK;
}

static df_status grad_weight_run(const df_call *call) {
  const df_conv conv = df_conv_grad_weight(call);
  const float *x = df_in<const float>(call, 0), *dy = df_in<const float>(call, 1);
  float *dw = df_out<float>(call, 0);
  if (df_conv_is_depthwise(conv))
    return df_conv_depthwise_weight(call, conv, dw, x, dy);
  return df_conv_weight(call, conv, dw, x, dy);
}

/* Of tensors with channels last. */
template <bool WEIGHT, typename N> static df_conv last_of(const N *of) {
  const int32_t rank = of->inputs[0]->rank;
  const auto *weight = WEIGHT ? of->outputs[0] : of->inputs[1];
  const auto *y = WEIGHT ? of->inputs[1] : of->outputs[0];
  const int32_t first = WEIGHT ? int(DF_CONV_GRAD_WEIGHT_STRIDES) : int(DF_CONV_LAST_STRIDES);
  return df_conv_of(df_planar(of->inputs[0]->shape, rank).sizes,
                    df_planar(weight->shape, rank).sizes, df_planar(y->shape, rank).sizes, rank,
                    of->attributes, of->n_attributes, first);
}

template <bool WEIGHT> static const char *last_accepts(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const df_conv conv = last_of<WEIGHT>(node);
  return df_conv_has_few_channels(conv) ? df_conv_accepts(conv, rank)
                                        : "only few channels, taps and products are supported";
}

static df_status last_run(const df_call *call) {
  df_gemm_end end{};
  end.row_bias = df_in<const float>(call, 2);
  end.add = df_in<const float>(call, 3);
  end.relu = static_cast<int>(df_attr_int(call, DF_CONV_LAST_RELU));
  return df_conv_few(call, last_of<false>(call), df_out<float>(call, 0),
                     df_in<const float>(call, 0), df_in<const float>(call, 1), end);
}

static df_status last_weight_prepare(const df_node *node, df_prepared *out, df_error *) {
  out->workspace = df_conv_few_workspace(last_of<true>(node));
  return DF_OK;
}

static df_status last_weight_run(const df_call *call) {
  return df_conv_few_weight(call, last_of<true>(call), df_out<float>(call, 0),
                            df_in<const float>(call, 0), df_in<const float>(call, 1), true);
}

static const df_kernel records[] = {
    DF_CUDA_KERNEL("conv", "f32", "f32,f32,f32?->f32", nullptr, .accepts = accepts<df_conv_forward>,
                   .prepare = prepare, .run = conv_run, .capturable = 1),
    DF_CUDA_KERNEL("conv_relu", "f32", "f32,f32,f32?->f32", nullptr,
                   .accepts = accepts<df_conv_forward>, .prepare = prepare, .run = conv_relu_run,
                   .capturable = 1),
    DF_CUDA_KERNEL("conv_add_relu", "f32", "f32,f32,f32,f32->f32", "0<3",
                   .accepts = accepts<df_conv_forward>, .prepare = prepare,
                   .run = conv_add_relu_run, .capturable = 1),
    DF_CUDA_KERNEL("conv_grad_input", "f32", "f32,f32->f32", nullptr,
                   .accepts = accepts<df_conv_grad_input>, .prepare = grad_input_prepare,
                   .run = grad_input_run, .capturable = 1),
    DF_CUDA_KERNEL("conv_grad_weight", "f32", "f32,f32->f32", nullptr,
                   .accepts = accepts<df_conv_grad_weight>, .prepare = grad_weight_prepare,
                   .run = grad_weight_run, .capturable = 1),
    DF_CUDA_KERNEL("conv_last", "f32", "f32,f32,f32?,f32?->f32", nullptr,
                   .accepts = last_accepts<false>, .run = last_run, .capturable = 1),
    DF_CUDA_KERNEL("conv_last_grad_weight", "f32", "f32,f32->f32", nullptr,
                   .accepts = last_accepts<true>, .prepare = last_weight_prepare,
                   .run = last_weight_run, .capturable = 1)};
DF_CUDA_FAMILY(conv, records);
