/* vendor/cudnn_conv.h: a convolution in the words of cuDNN, in either layout, and the algorithm for
 * it. */
#ifndef DF_CUDA_VENDOR_CUDNN_CONV_H
#define DF_CUDA_VENDOR_CUDNN_CONV_H
#include "conv/conv.h"
#include "vendor/cudnn_api.h"
#include "vendor/library.h"
#include "vendor/paths.h"

#include <new>

/* ---- The library ---------------------------------------------------------------------------- */

namespace df_dnn {

enum {
  CANDIDATES = 10,
  WORKSPACE = 512 << 20 /* bytes that an algorithm may use */
};

struct functions {
  bool loaded;
#define MEMBER(result, name, arguments) result(*name) arguments;
  DF_DNN_FUNCTIONS(MEMBER)
#undef MEMBER
};

inline const df_vendor_library location("DATAFLOW_CUDNN", "libcudnn.so.9");
inline const df_vendor_library beside("DATAFLOW_CUBLASLT",
                                      "libcublasLt.so.13"); /* that it looks for */

inline functions load() {
  functions f{};
  beside.open();
  void *library = location.open();
  if (!library)
    return f;
  f.loaded = true;
#define FIND(result, name, arguments)                                                              \
  f.name = reinterpret_cast<result(*) arguments>(dlsym(library, #name));                           \
  f.loaded = f.loaded && f.name;
  DF_DNN_FUNCTIONS(FIND)
#undef FIND
  f.loaded = f.loaded && f.cudnnGetVersion() / 10000 == VERSION;
  return f;
}

inline const functions &dnn() {
  static const functions found = load();
  return found;
}

/* ---- A convolution in the library's words --------------------------------------------------- */

enum kind { FORWARD, INPUT, WEIGHT };

/* What prepare found for the queue that will run it; the descriptions are only read later. */
struct conv_state {
  handle own;
  cudaStream_t stream;
  df_path by; /* DF_BY_OWN: the library has no algorithm */
  int algo;
  int32_t rank, suggestions; /* which one of how many of the path */
  size_t workspace;          /* that the plan has */
  tensor x, y, bias;         /* the bias, and what follows: of an end that the library computes */
  filter w;
  convolution conv;
  activation end;
};

/* |axes| spatial sizes; channels lie one behind the other when |last|. */
inline int describe_tensor(tensor *out, bool last, int64_t batch, int64_t channels,
                           const int32_t (&sizes)[DF_AXES], int axes) {
  int all[2 + DF_AXES] = {static_cast<int>(batch), static_cast<int>(channels)};
  int strides[2 + DF_AXES];
  for (int axis = 0; axis < axes; axis++)
    all[2 + axis] = sizes[DF_AXES - axes + axis];
  int stride = last ? all[1] : 1;
  strides[1] = 1;
  for (int axis = axes + 1; axis >= 0; axis--) {
    if (last && axis == 1)
      continue;
    strides[axis] = stride;
    stride *= all[axis];
  }
  int status = dnn().cudnnCreateTensorDescriptor(out);
  return status ? status
                : dnn().cudnnSetTensorNdDescriptor(*out, DATA_FLOAT, 2 + axes, all, strides);
}

/* The library wants two axes or three. */
inline int describe(const df_conv &conv, bool last, conv_state *out) {
  const int axes = conv.rank == 3 ? 3 : 2, first = DF_AXES - axes;
  int weight[2 + DF_AXES] = {static_cast<int>(conv.groups * conv.filters),
                             static_cast<int>(conv.channels)};
  for (int axis = 0; axis < axes; axis++)
    weight[2 + axis] = conv.kernel[first + axis];
  int status =
      describe_tensor(&out->x, last, conv.batch, conv.groups * conv.channels, conv.in, axes);
  if (!status)
    status = describe_tensor(&out->y, last, conv.batch, conv.groups * conv.filters, conv.out, axes);
  if (!status)
    status = dnn().cudnnCreateFilterDescriptor(&out->w);
  if (!status)
    status = dnn().cudnnSetFilterNdDescriptor(
        out->w, DATA_FLOAT, last ? int(TENSOR_NHWC) : int(TENSOR_NCHW), 2 + axes, weight);
  if (!status)
    status = dnn().cudnnCreateConvolutionDescriptor(&out->conv);
  if (!status)
    status = dnn().cudnnSetConvolutionNdDescriptor(out->conv, axes, conv.pad + first,
                                                   conv.stride + first, conv.dilation + first,
                                                   CROSS_CORRELATION, DATA_FLOAT);
  return status ? status
                : dnn().cudnnSetConvolutionGroupCount(out->conv, static_cast<int>(conv.groups));
}

/* Bytes that an algorithm wants, or a failure. */
template <kind KIND> int workspace_of(handle own, const conv_state &s, int algo, size_t *bytes) {
  if constexpr (KIND == FORWARD)
    return dnn().cudnnGetConvolutionForwardWorkspaceSize(own, s.x, s.w, s.conv, s.y, algo, bytes);
  else if constexpr (KIND == INPUT)
    return dnn().cudnnGetConvolutionBackwardDataWorkspaceSize(own, s.w, s.y, s.conv, s.x, algo,
                                                              bytes);
  else
    return dnn().cudnnGetConvolutionBackwardFilterWorkspaceSize(own, s.x, s.y, s.conv, s.w, algo,
                                                                bytes);
}

template <kind KIND>
int candidates_of(handle own, const conv_state &s, int *found, candidate *out) {
  if constexpr (KIND == FORWARD)
    return dnn().cudnnGetConvolutionForwardAlgorithm_v7(own, s.x, s.w, s.conv, s.y, CANDIDATES,
                                                        found, out);
  else if constexpr (KIND == INPUT)
    return dnn().cudnnGetConvolutionBackwardDataAlgorithm_v7(own, s.w, s.y, s.conv, s.x, CANDIDATES,
                                                             found, out);
  else
    return dnn().cudnnGetConvolutionBackwardFilterAlgorithm_v7(own, s.x, s.y, s.conv, s.w,
                                                               CANDIDATES, found, out);
}

/* Winograd's large tiles: errors of 5e-4 in sums of 7.7 were seen on an H100. */
template <kind KIND> bool is_coarse(int algo) {
  return algo == int{KIND == FORWARD ? FORWARD_WINOGRAD_NONFUSED : GRADIENT_WINOGRAD_NONFUSED};
}

/* Takes suggestion |rank| of the library's, or the first one; false when none is deterministic and
 * fits. Exact convolutions keep to plain multiply-adds; the others may round to TF32, which is
 * finer than bfloat16. No algorithm may convert to half precision: its range is too small. */
template <kind KIND> bool choose(df_path by, int32_t rank, conv_state *s) {
  const bool exact = by == DF_BY_FLOAT32;
  candidate found[CANDIDATES];
  int count = 0, math = FMA_MATH;
  if (dnn().cudnnSetConvolutionMathType(s->conv, exact ? int(FMA_MATH) : int(DEFAULT_MATH)) ||
      candidates_of<KIND>(s->own, *s, &count, found))
    return false;
  s->suggestions = 0;
  for (int i = 0; i < count && s->suggestions < DF_SUGGESTIONS; i++) {
    size_t bytes = 0;
    if (found[i].status || found[i].determinism != DETERMINISTIC ||
        found[i].math == TENSOR_OP_MATH_ALLOW_CONVERSION ||
        (exact && is_coarse<KIND>(found[i].algo)))
      continue;
    const int own = exact ? int(FMA_MATH) : found[i].math;
    if (dnn().cudnnSetConvolutionMathType(s->conv, own) ||
        workspace_of<KIND>(s->own, *s, found[i].algo, &bytes) || bytes > WORKSPACE)
      continue;
    if (s->suggestions == 0 || s->suggestions == rank) {
      s->rank = s->suggestions;
      s->algo = found[i].algo;
      s->workspace = bytes;
      math = own;
    }
    s->suggestions++;
  }
  s->by = by;
  return s->suggestions > 0 && !dnn().cudnnSetConvolutionMathType(s->conv, math);
}

inline void release(void *state) {
  conv_state *s = static_cast<conv_state *>(state);
  if (s->x)
    dnn().cudnnDestroyTensorDescriptor(s->x);
  if (s->y)
    dnn().cudnnDestroyTensorDescriptor(s->y);
  if (s->bias)
    dnn().cudnnDestroyTensorDescriptor(s->bias);
  if (s->w)
    dnn().cudnnDestroyFilterDescriptor(s->w);
  if (s->conv)
    dnn().cudnnDestroyConvolutionDescriptor(s->conv);
  if (s->end)
    dnn().cudnnDestroyActivationDescriptor(s->end);
  delete s;
}

/* out = the convolution, or a gradient, of |first| and |second| in the order of the op. */
template <kind KIND>
df_status launch(const df_call *call, const conv_state &s, float *out, const float *first,
                 const float *second) {
  const float one = 1.0f, zero = 0.0f;
  int status = SUCCESS;
  if constexpr (KIND == FORWARD)
    status = dnn().cudnnConvolutionForward(s.own, &one, s.x, first, s.w, second, s.conv, s.algo,
                                           call->workspace, s.workspace, &zero, s.y, out);
  else if constexpr (KIND == INPUT)
    status =
        dnn().cudnnConvolutionBackwardData(s.own, &one, s.w, second, s.y, first, s.conv, s.algo,
                                           call->workspace, s.workspace, &zero, s.x, out);
  else
    status =
        dnn().cudnnConvolutionBackwardFilter(s.own, &one, s.x, first, s.y, second, s.conv, s.algo,
                                             call->workspace, s.workspace, &zero, s.w, out);
  return status ? df_fail(call, DF_DEVICE, "cuDNN: %s", dnn().cudnnGetErrorString(status)) : DF_OK;
}

/* What our own kernel computes in a fraction of the library's time: weight gradients of one channel
 * (670 us for 12 MB were measured on an H100). */
template <kind KIND> bool is_for_own(const df_conv &conv) {
  return KIND == WEIGHT && conv.groups == 1 && conv.channels == 1;
}

/* Null when the sizes are such as the library takes, else why not. */
inline const char *accepts_sizes(const df_conv &conv, int32_t rank) {
  const char *reason = df_conv_accepts(conv, rank);
  if (reason)
    return reason;
  if (df_conv_is_depthwise(conv))
    return "depthwise convolutions have a kernel of their own";
  if (conv.batch * conv.groups *
          df_max(conv.channels * conv.in_size, conv.filters * conv.out_size) >
      INT32_MAX)
    return "tensors of 2^31 elements are not supported by cuDNN";
  /* The library pads both ends alike; that is right where the same positions come of it. */
  for (int axis = 0; axis < DF_AXES; axis++) {
    const int64_t span = conv.in[axis] + 2 * static_cast<int64_t>(conv.pad[axis]) -
                         static_cast<int64_t>(conv.dilation[axis]) * (conv.kernel[axis] - 1) - 1;
    if (conv.pad[axis] < 0 || span < 0 || span / conv.stride[axis] + 1 != conv.out[axis])
      return "cuDNN pads both ends of an axis alike";
  }
  return dnn().loaded ? nullptr : "cuDNN was not found: pip install 'dataflow-engine[cuda]'";
}

} // namespace df_dnn

#endif
