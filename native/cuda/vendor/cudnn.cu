/* vendor/cudnn.cu: convolutions and their gradients by the vendor's library, when it is installed.
 * Bias, addend and relu follow in one pass of our own. The algorithm is chosen when a plan is made,
 * among those that give the same bits every time: of the precision that is asked for, or the next
 * one that is more exact; where the library has none our own kernel runs. */
#include "conv/conv.h"
#include "vendor/cudnn_api.h"
#include "vendor/library.h"
#include "vendor/paths.h"

#include <new>

enum {
  CANDIDATES = 10,
  WORKSPACE = 512 << 20 /* bytes that an algorithm may use */
};

/* ---- The library ---------------------------------------------------------------------------- */

namespace {

using namespace df_dnn;

struct functions {
  bool loaded;
#define MEMBER(result, name, arguments) result(*name) arguments;
  DF_DNN_FUNCTIONS(MEMBER)
#undef MEMBER
};

const df_vendor_library location("DATAFLOW_CUDNN", "libcudnn.so.9");
const df_vendor_library beside("DATAFLOW_CUBLASLT", "libcublasLt.so.13"); /* that it looks for */

functions load() {
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

const functions &dnn() {
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
  tensor x, y;
  filter w;
  convolution conv;
};

int describe_tensor(tensor *out, int64_t batch, int64_t channels, const int32_t (&sizes)[DF_AXES],
                    int axes) {
  int all[2 + DF_AXES] = {static_cast<int>(batch), static_cast<int>(channels)};
  int strides[2 + DF_AXES];
  for (int axis = 0; axis < axes; axis++)
    all[2 + axis] = sizes[DF_AXES - axes + axis];
  int stride = 1;
  for (int axis = axes + 1; axis >= 0; axis--) {
    strides[axis] = stride;
    stride *= all[axis];
  }
  int status = dnn().cudnnCreateTensorDescriptor(out);
  return status ? status
                : dnn().cudnnSetTensorNdDescriptor(*out, DATA_FLOAT, 2 + axes, all, strides);
}

/* The library wants two axes or three. */
int describe(const df_conv &conv, conv_state *out) {
  const int axes = conv.rank == 3 ? 3 : 2, first = DF_AXES - axes;
  int weight[2 + DF_AXES] = {static_cast<int>(conv.groups * conv.filters),
                             static_cast<int>(conv.channels)};
  for (int axis = 0; axis < axes; axis++)
    weight[2 + axis] = conv.kernel[first + axis];
  int status = describe_tensor(&out->x, conv.batch, conv.groups * conv.channels, conv.in, axes);
  if (!status)
    status = describe_tensor(&out->y, conv.batch, conv.groups * conv.filters, conv.out, axes);
  if (!status)
    status = dnn().cudnnCreateFilterDescriptor(&out->w);
  if (!status)
    status = dnn().cudnnSetFilterNdDescriptor(out->w, DATA_FLOAT, TENSOR_NCHW, 2 + axes, weight);
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

/* ---- Preparing ------------------------------------------------------------------------------ */

template <typename N> df_conv conv_of(kind what, const N *of) {
  return what == FORWARD ? df_conv_forward(of)
         : what == INPUT ? df_conv_grad_input(of)
                         : df_conv_grad_weight(of);
}

int64_t own_workspace(kind what, const df_conv &conv) {
  return what == WEIGHT ? df_conv_weight_workspace(conv)
                        : df_conv_shifted_workspace(conv, what == INPUT);
}

void release(void *state) {
  conv_state *s = static_cast<conv_state *>(state);
  if (s->x)
    dnn().cudnnDestroyTensorDescriptor(s->x);
  if (s->y)
    dnn().cudnnDestroyTensorDescriptor(s->y);
  if (s->w)
    dnn().cudnnDestroyFilterDescriptor(s->w);
  if (s->conv)
    dnn().cudnnDestroyConvolutionDescriptor(s->conv);
  delete s;
}

/* What our own kernel computes in a fraction of the library's time: weight gradients of one channel
 * (670 us for 12 MB were measured on an H100). */
template <kind KIND> bool is_for_own(const df_conv &conv) {
  return KIND == WEIGHT && conv.groups == 1 && conv.channels == 1;
}

template <kind KIND> df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  df_queue *queue = df_vendor_queue(node, error);
  if (!queue)
    return DF_UNSUPPORTED;
  conv_state *s = new (std::nothrow) conv_state{};
  if (!s)
    return DF_OUT_OF_MEMORY;
  const df_conv conv = conv_of(KIND, node);
  const bool exact = node->precision != DF_TF32 && node->precision != DF_BF16;
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  s->own = df_vendor_handle(queue, dnn().cudnnCreate, dnn().cudnnDestroy);
  s->stream = queue->stream;
  const int32_t wanted = node->algorithm - 1;
  bool found = false;
  if (s->own && !dnn().cudnnSetStream(s->own, queue->stream) && !describe(conv, s))
    for (int by = exact ? DF_BY_FLOAT32 : DF_BY_TF32; by < DF_BY_OWN && !found; by++)
      found =
          choose<KIND>(static_cast<df_path>(by), df_path_rank(wanted, static_cast<df_path>(by)), s);
  const int32_t best =
      found && !is_for_own<KIND>(conv) ? df_path_number(s->by, s->rank) : DF_BY_OWN;
  df_path_report(out, s->by, found ? s->suggestions : 0, best);
  if (wanted >= 0 && out->possible >> wanted & 1)
    out->algorithm = wanted;
  if (out->algorithm == DF_BY_OWN)
    s->by = DF_BY_OWN;
  if (s->by == DF_BY_OWN)
    s->workspace = static_cast<size_t>(own_workspace(KIND, conv));
  out->workspace = static_cast<int64_t>(s->workspace);
  out->state = s;
  return DF_OK;
}

/* ---- Running -------------------------------------------------------------------------------- */

df_status finish(const df_call *call, const df_conv &conv, float *y, const df_gemm_end &end) {
  const int64_t channels = conv.groups * conv.filters;
  const int64_t count = conv.batch * channels * conv.out_size;
  if (!end.row_bias && !end.add && !end.relu)
    return DF_OK;
  return df_conv_finish(call, y, y, 1, count, conv.out_size, channels, end);
}

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

/* Without an algorithm prepare asked for the workspace of our own kernel. */
template <kind KIND> df_status run(const df_call *call, const df_gemm_end &end) {
  const conv_state &s = *static_cast<const conv_state *>(call->state);
  const df_conv conv = conv_of(KIND, call);
  const float *first = df_in<const float>(call, 0), *second = df_in<const float>(call, 1);
  float *out = df_out<float>(call, 0);
  if (s.by == DF_BY_OWN)
    return KIND == WEIGHT ? df_conv_weight(call, conv, out, first, second)
                          : df_conv_shifted(call, conv, KIND == INPUT, out, first, second, end);
  if (call->stream != s.stream)
    return df_fail(call, DF_INTERNAL, "prepared for another session");
  const df_status status = launch<KIND>(call, s, out, first, second);
  return status ? status : finish(call, conv, out, end);
}

template <bool ADD, bool RELU> df_status forward_run(const df_call *call) {
  df_gemm_end end{};
  end.row_bias = df_in<const float>(call, 2);
  end.add = ADD ? df_in<const float>(call, 3) : nullptr;
  end.relu = RELU;
  return run<FORWARD>(call, end);
}
template <kind KIND> df_status grad_run(const df_call *call) {
  return run<KIND>(call, df_gemm_end{});
}

/* ---- Records -------------------------------------------------------------------------------- */

template <kind KIND> const char *accepts(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const df_conv conv = conv_of(KIND, node);
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

template <kind KIND>
constexpr df_kernel record(const char *op, const char *name, const char *operands,
                           df_kernel_run runs) {
  df_kernel k{};
  k.struct_size = sizeof k;
  k.priority = 10;
  k.op = op;
  k.name = name;
  k.operands = operands;
  k.accepts = accepts<KIND>;
  k.prepare = prepare<KIND>;
  k.run = runs;
  k.release = release;
  k.capturable = 1;
  return k;
}

/* The addend can't be overwritten: the sums come first. */
const df_kernel records[] = {
    record<FORWARD>("conv", "conv f32 cudnn", "f32,f32,f32?->f32", forward_run<false, false>),
    record<FORWARD>("conv_relu", "conv_relu f32 cudnn", "f32,f32,f32?->f32",
                    forward_run<false, true>),
    record<FORWARD>("conv_add_relu", "conv_add_relu f32 cudnn", "f32,f32,f32,f32->f32",
                    forward_run<true, true>),
    record<INPUT>("conv_grad_input", "conv_grad_input f32 cudnn", "f32,f32->f32", grad_run<INPUT>),
    record<WEIGHT>("conv_grad_weight", "conv_grad_weight f32 cudnn", "f32,f32->f32",
                   grad_run<WEIGHT>)};

} // namespace

DF_CUDA_FAMILY(cudnn, records);
