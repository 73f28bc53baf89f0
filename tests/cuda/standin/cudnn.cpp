/* cudnn.cpp: a stand-in for cuDNN: the functions that the plugin uses, as strict with their
 * arguments as the real ones, computed in double precision by work that is put into the stream.
 *
 * The first algorithm that it suggests is not deterministic, the second one converts to half
 * precision, the third one wants a workspace, the fourth one none; which kernels run is thus a
 * matter of what the plugin accepts. */
#include "../../../native/cuda/vendor/cudnn_api.h"
#include "standin.h"

#include <algorithm>
#include <vector>

using namespace df_dnn;

namespace df_dnn {

struct context {
  cudaStream_t stream;
  int card;
};
struct tensor_content {
  int rank; /* 0: not set */
  int sizes[5];
  int layouts; /* bits: 1 << whether all channels of a position lie together */
};
struct filter_content {
  int rank;
  int sizes[5];
  bool last;
};
struct activation_content {
  int mode; /* 0: not set */
};
struct convolution_content {
  int axes; /* 0: not set */
  int pads[3], strides[3], dilations[3];
  int groups, math;
};

} // namespace df_dnn

namespace {

enum { EXECUTION_FAILED = 5000 };
/* Numbers of algorithms. The coarse one, in forward and of gradients, errs more than float32 may.
 */
enum { SCATTERS = 0, CONVERTS = 4, SPACIOUS = 6, PLAIN = 2, COARSE = 7, COARSE_GRADIENT = 5 };

std::set<handle> handles;

/* Whether it is one, and of the card that the thread has chosen. */
bool is_real(handle h) {
  guard g(standin_lock);
  return handles.count(h) && h->card == current_card();
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

/* A convolution with three axes. */
struct shape {
  int batch, groups, channels, filters;
  int in[3], out[3], kernel[3], stride[3], pad[3], dilation[3];
  bool rounds, last;
};

/* Success, or what is wrong with the descriptions together. */
int read_shape(tensor x, filter w, convolution conv, tensor y, shape *out) {
  if (!x || !w || !conv || !y || !x->rank || !w->rank || !conv->axes || !y->rank)
    return BAD_PARAM;
  const int axes = conv->axes;
  if (x->rank != axes + 2 || y->rank != axes + 2 || w->rank != axes + 2 ||
      x->sizes[0] != y->sizes[0] || !(x->layouts & y->layouts & 1 << w->last))
    return BAD_PARAM;
  if (x->sizes[1] != w->sizes[1] * conv->groups || w->sizes[0] % conv->groups ||
      y->sizes[1] != w->sizes[0])
    return BAD_PARAM;
  *out = {x->sizes[0],
          conv->groups,
          w->sizes[1],
          w->sizes[0] / conv->groups,
          {1, 1, 1},
          {1, 1, 1},
          {1, 1, 1},
          {1, 1, 1},
          {0, 0, 0},
          {1, 1, 1},
          conv->math != FMA_MATH,
          w->last};
  for (int i = 0; i < axes; i++) {
    const int axis = 3 - axes + i;
    out->in[axis] = x->sizes[2 + i];
    out->out[axis] = y->sizes[2 + i];
    out->kernel[axis] = w->sizes[2 + i];
    out->stride[axis] = conv->strides[i];
    out->pad[axis] = conv->pads[i];
    out->dilation[axis] = conv->dilations[i];
    const int span =
        x->sizes[2 + i] + 2 * conv->pads[i] - conv->dilations[i] * (w->sizes[2 + i] - 1);
    if (span < 1 || (span - 1) / conv->strides[i] + 1 != y->sizes[2 + i])
      return BAD_PARAM;
  }
  return SUCCESS;
}

int64_t size_of(const int (&sizes)[3]) {
  return static_cast<int64_t>(sizes[0]) * sizes[1] * sizes[2];
}

/* ---- Sums ----------------------------------------------------------------------------------- */

/* To 10 bits of mantissa, ties to even. */
double rounded(float x, bool rounds) {
  uint32_t raw;
  memcpy(&raw, &x, sizeof raw);
  if (rounds && (raw & 0x7f800000u) != 0x7f800000u)
    raw = (raw + 0xfff + (raw >> 13 & 1)) & ~0x1fffu;
  memcpy(&x, &raw, sizeof x);
  return x;
}

/* Where element |i| of (images, channels, positions) lies. */
int64_t located(const shape &s, int64_t i, int64_t channels, int64_t positions) {
  const int64_t image = i / positions / channels, channel = i / positions % channels;
  return s.last ? (image * positions + i % positions) * channels + channel : i;
}

/* Calls use(where in y, where in x, where in w) for every product. */
template <typename F> void walk(const shape &s, F use) {
  const int64_t in = size_of(s.in), out = size_of(s.out), taps = size_of(s.kernel);
  for (int n = 0; n < s.batch; n++)
    for (int f = 0; f < s.groups * s.filters; f++)
      for (int c = 0; c < s.channels; c++)
        for (int64_t o = 0; o < out; o++)
          for (int64_t t = 0; t < taps; t++) {
            const int place[3] = {static_cast<int>(o / s.out[2] / s.out[1]),
                                  static_cast<int>(o / s.out[2] % s.out[1]),
                                  static_cast<int>(o % s.out[2])};
            const int tap[3] = {static_cast<int>(t / s.kernel[2] / s.kernel[1]),
                                static_cast<int>(t / s.kernel[2] % s.kernel[1]),
                                static_cast<int>(t % s.kernel[2])};
            int64_t at = 0;
            bool inside = true;
            for (int axis = 0; axis < 3; axis++) {
              const int i =
                  place[axis] * s.stride[axis] - s.pad[axis] + tap[axis] * s.dilation[axis];
              inside = inside && i >= 0 && i < s.in[axis];
              at = at * s.in[axis] + i;
            }
            if (!inside)
              continue;
            const int channel = f / s.filters * s.channels + c;
            const int64_t rows = static_cast<int64_t>(s.groups) * s.filters,
                          planes = static_cast<int64_t>(s.groups) * s.channels;
            use(located(s, (n * rows + f) * out + o, rows, out),
                located(s, (n * planes + channel) * in + at, planes, in),
                located(s, (static_cast<int64_t>(f) * s.channels + c) * taps + t, s.channels,
                        taps));
          }
}

void store(const std::vector<double> &sums, float *out) {
  for (size_t i = 0; i < sums.size(); i++)
    out[i] = static_cast<float>(sums[i]);
}

/* Bytes of an algorithm, or a failure. */
int bytes_of(const shape &s, int algo, size_t *out) {
  if (!out)
    return BAD_PARAM;
  if (algo != SCATTERS && algo != CONVERTS && algo != SPACIOUS && algo != PLAIN && algo != COARSE &&
      algo != COARSE_GRADIENT && algo != FORWARD_PRECOMPUTED_GEMM)
    return NOT_SUPPORTED;
  *out = algo == SPACIOUS || algo == FORWARD_PRECOMPUTED_GEMM
             ? static_cast<size_t>(size_of(s.out) + 3) * 16
             : 0;
  return SUCCESS;
}

int suggest(handle h, const shape &s, int coarse, int wanted, int *found, candidate *out) {
  if (!is_real(h))
    return NOT_INITIALIZED;
  if (wanted < 1 || !found || !out)
    return BAD_PARAM;
  note_question(h->card);
  if (refuses_precision(s.rounds ? "tf32" : "float32"))
    return NOT_SUPPORTED;
  const int math = s.rounds ? int(DEFAULT_MATH) : int(FMA_MATH);
  const candidate all[] = {
      {SCATTERS, SUCCESS, 1, 0, NON_DETERMINISTIC, math, {}},
      {CONVERTS, SUCCESS, 2, 0, DETERMINISTIC, TENSOR_OP_MATH_ALLOW_CONVERSION, {}},
      {3, NOT_SUPPORTED, -1, 0, DETERMINISTIC, math, {}},
      {coarse, SUCCESS, 2, 0, DETERMINISTIC, math, {}},
      {SPACIOUS, SUCCESS, 3, 0, DETERMINISTIC, math, {}},
      {PLAIN, SUCCESS, 4, 0, DETERMINISTIC, math, {}}};
  *found = 0;
  for (const candidate &one : all)
    if (*found < wanted) {
      out[*found] = one;
      bytes_of(s, one.algo, &out[*found].memory);
      ++*found;
    }
  return SUCCESS;
}

/* What every launch looks at. */
int check_launch(handle h, const shape &s, const void *alpha, const void *beta, const void *out,
                 const void *first, const void *second, int algo, const void *workspace,
                 size_t bytes) {
  size_t needed = 0;
  if (!is_real(h))
    return NOT_INITIALIZED;
  if (!alpha || !beta || !out || !first || !second || *static_cast<const float *>(alpha) != 1.0f ||
      *static_cast<const float *>(beta) != 0.0f || algo == SCATTERS || algo == CONVERTS ||
      (!s.rounds && (algo == COARSE || algo == COARSE_GRADIENT)))
    return BAD_PARAM;
  int status = bytes_of(s, algo, &needed);
  if (status)
    return status;
  return bytes < needed || (needed && !workspace) ? int(BAD_PARAM) : int(SUCCESS);
}

/* Whether the work could be put into the stream. */
int launched() { return cudaGetLastError() ? int(EXECUTION_FAILED) : int(SUCCESS); }

/* The workspace that the launch may write, written. */
void spoil(const shape &s, int algo, void *workspace) {
  size_t bytes = 0;
  bytes_of(s, algo, &bytes);
  memset(workspace, 0x5a, bytes);
}

} // namespace

/* ---- The functions -------------------------------------------------------------------------- */

extern "C" {

size_t cudnnGetVersion(void) { return 91000; }

const char *cudnnGetErrorString(int status) {
  return status == SUCCESS     ? "success"
         : status == BAD_PARAM ? "a bad parameter"
                               : "the execution failed";
}

int cudnnCreate(handle *out) {
  if (!out)
    return BAD_PARAM;
  guard g(standin_lock);
  *out = new context{nullptr, current_card()};
  handles.insert(*out);
  note_handle(1);
  return SUCCESS;
}

int cudnnDestroy(handle h) {
  if (!is_real(h))
    return NOT_INITIALIZED;
  guard g(standin_lock);
  handles.erase(h);
  note_handle(-1);
  delete h;
  return SUCCESS;
}

int cudnnSetStream(handle h, cudaStream_t stream) {
  if (!is_real(h))
    return NOT_INITIALIZED;
  h->stream = stream;
  return SUCCESS;
}

int cudnnCreateTensorDescriptor(tensor *out) {
  *out = new tensor_content{};
  return SUCCESS;
}
int cudnnDestroyTensorDescriptor(tensor t) {
  delete t;
  return SUCCESS;
}
int cudnnSetTensorNdDescriptor(tensor t, int type, int rank, const int *sizes, const int *strides) {
  if (!t || type != DATA_FLOAT || rank < 4 || rank > 5)
    return BAD_PARAM;
  t->rank = rank;
  t->layouts = 0;
  std::copy(sizes, sizes + rank, t->sizes);
  for (const bool last : {false, true}) {
    int expected = last ? sizes[1] : 1;
    bool fits = !last || strides[1] == 1;
    for (int axis = rank - 1; axis >= 0; axis--) {
      if (last && axis == 1)
        continue;
      fits = fits && sizes[axis] >= 1 && strides[axis] == expected;
      expected *= sizes[axis];
    }
    t->layouts |= fits << last;
  }
  if (!t->layouts)
    return BAD_PARAM;
  return SUCCESS;
}

int cudnnCreateFilterDescriptor(filter *out) {
  *out = new filter_content{};
  return SUCCESS;
}
int cudnnDestroyFilterDescriptor(filter w) {
  delete w;
  return SUCCESS;
}
int cudnnSetFilterNdDescriptor(filter w, int type, int format, int rank, const int *sizes) {
  if (!w || type != DATA_FLOAT || (format != TENSOR_NCHW && format != TENSOR_NHWC) || rank < 4 ||
      rank > 5)
    return BAD_PARAM;
  w->last = format == TENSOR_NHWC;
  for (int axis = 0; axis < rank; axis++) {
    if (sizes[axis] < 1)
      return BAD_PARAM;
    w->sizes[axis] = sizes[axis];
  }
  w->rank = rank;
  return SUCCESS;
}

int cudnnCreateConvolutionDescriptor(convolution *out) {
  *out = new convolution_content{};
  return SUCCESS;
}
int cudnnDestroyConvolutionDescriptor(convolution conv) {
  delete conv;
  return SUCCESS;
}
int cudnnSetConvolutionNdDescriptor(convolution conv, int axes, const int *pads, const int *strides,
                                    const int *dilations, int mode, int type) {
  if (!conv || axes < 2 || axes > 3 || mode != CROSS_CORRELATION || type != DATA_FLOAT)
    return BAD_PARAM;
  for (int i = 0; i < axes; i++) {
    if (pads[i] < 0 || strides[i] < 1 || dilations[i] < 1)
      return BAD_PARAM;
    conv->pads[i] = pads[i];
    conv->strides[i] = strides[i];
    conv->dilations[i] = dilations[i];
  }
  conv->axes = axes;
  conv->groups = 1;
  conv->math = DEFAULT_MATH;
  return SUCCESS;
}
int cudnnSetConvolutionGroupCount(convolution conv, int groups) {
  if (!conv || groups < 1)
    return BAD_PARAM;
  conv->groups = groups;
  return SUCCESS;
}
int cudnnSetConvolutionMathType(convolution conv, int math) {
  if (!conv || math < DEFAULT_MATH || math > FMA_MATH)
    return BAD_PARAM;
  conv->math = math;
  return SUCCESS;
}

static int suggest_for(handle h, tensor x, filter w, convolution conv, tensor y, int coarse,
                       int wanted, int *found, candidate *out) {
  shape s;
  int status = read_shape(x, w, conv, y, &s);
  return status ? status : suggest(h, s, coarse, wanted, found, out);
}
int cudnnGetConvolutionForwardAlgorithm_v7(handle h, tensor x, filter w, convolution conv, tensor y,
                                           int wanted, int *found, candidate *out) {
  return suggest_for(h, x, w, conv, y, COARSE, wanted, found, out);
}
int cudnnGetConvolutionBackwardDataAlgorithm_v7(handle h, filter w, tensor dy, convolution conv,
                                                tensor dx, int wanted, int *found, candidate *out) {
  return suggest_for(h, dx, w, conv, dy, COARSE_GRADIENT, wanted, found, out);
}
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle h, tensor x, tensor dy, convolution conv,
                                                  filter dw, int wanted, int *found,
                                                  candidate *out) {
  return suggest_for(h, x, dw, conv, dy, COARSE_GRADIENT, wanted, found, out);
}

int cudnnGetConvolutionForwardWorkspaceSize(handle h, tensor x, filter w, convolution conv,
                                            tensor y, int algo, size_t *bytes) {
  shape s;
  int status = is_real(h) ? read_shape(x, w, conv, y, &s) : int(NOT_INITIALIZED);
  return status ? status : bytes_of(s, algo, bytes);
}
int cudnnGetConvolutionBackwardDataWorkspaceSize(handle h, filter w, tensor dy, convolution conv,
                                                 tensor dx, int algo, size_t *bytes) {
  return cudnnGetConvolutionForwardWorkspaceSize(h, dx, w, conv, dy, algo, bytes);
}
int cudnnGetConvolutionBackwardFilterWorkspaceSize(handle h, tensor x, tensor dy, convolution conv,
                                                   filter dw, int algo, size_t *bytes) {
  return cudnnGetConvolutionForwardWorkspaceSize(h, x, dw, conv, dy, algo, bytes);
}

int cudnnConvolutionForward(handle h, const void *alpha, tensor tx, const void *x, filter tw,
                            const void *w, convolution conv, int algo, void *workspace,
                            size_t bytes, const void *beta, tensor ty, void *y) {
  shape s;
  int status = read_shape(tx, tw, conv, ty, &s);
  if (!status)
    status = check_launch(h, s, alpha, beta, y, x, w, algo, workspace, bytes);
  if (status)
    return status;
  standin_enqueue("cudnnConvolutionForward", 1, 1, 0, h->stream, [=] {
    spoil(s, algo, workspace);
    std::vector<double> sums(static_cast<size_t>(size_of(s.out) * s.batch * s.groups * s.filters));
    const float *from = static_cast<const float *>(x), *weight = static_cast<const float *>(w);
    walk(s, [&](int64_t at_y, int64_t at_x, int64_t at_w) {
      sums[static_cast<size_t>(at_y)] +=
          rounded(from[at_x], s.rounds) * rounded(weight[at_w], s.rounds);
    });
    store(sums, static_cast<float *>(y));
  });
  return launched();
}

int cudnnCreateActivationDescriptor(activation *out) {
  *out = new activation_content{};
  return SUCCESS;
}
int cudnnDestroyActivationDescriptor(activation a) {
  delete a;
  return SUCCESS;
}
int cudnnSetActivationDescriptor(activation a, int mode, int nans, double) {
  if (!a || (mode != ACTIVATION_RELU && mode != ACTIVATION_IDENTITY) || nans != PROPAGATE_NAN)
    return BAD_PARAM;
  a->mode = mode;
  return SUCCESS;
}

/* There are kernels for two axes with channels last. */
int cudnnConvolutionBiasActivationForward(handle h, const void *alpha, tensor tx, const void *x,
                                          filter tw, const void *w, convolution conv, int algo,
                                          void *workspace, size_t bytes, const void *beta,
                                          tensor tz, const void *z, tensor tb, const void *bias,
                                          activation a, tensor ty, void *y) {
  const float zero = 0.0f;
  shape s;
  int status = read_shape(tx, tw, conv, ty, &s);
  if (!status)
    status = check_launch(h, s, alpha, &zero, y, x, w, algo, workspace, bytes);
  if (!status && (!beta || !tz || !tb || !a || !bias || !z || !a->mode || tb->rank != ty->rank ||
                  tb->sizes[1] != ty->sizes[1] || tb->sizes[0] * tb->sizes[2] * tb->sizes[3] != 1 ||
                  !std::equal(tz->sizes, tz->sizes + tz->rank, ty->sizes)))
    status = BAD_PARAM;
  if (!status && (!s.last || conv->axes != 2 || algo != FORWARD_PRECOMPUTED_GEMM))
    status = NOT_SUPPORTED;
  if (status)
    return status;
  const float scale = *static_cast<const float *>(beta);
  const bool rectifies = a->mode == ACTIVATION_RELU;
  standin_enqueue("cudnnConvolutionBiasActivationForward", 1, 1, 0, h->stream, [=] {
    spoil(s, algo, workspace);
    const int64_t channels = static_cast<int64_t>(s.groups) * s.filters;
    std::vector<double> sums(static_cast<size_t>(size_of(s.out) * s.batch * channels));
    const float *from = static_cast<const float *>(x), *weight = static_cast<const float *>(w);
    walk(s, [&](int64_t at_y, int64_t at_x, int64_t at_w) {
      sums[static_cast<size_t>(at_y)] +=
          rounded(from[at_x], s.rounds) * rounded(weight[at_w], s.rounds);
    });
    for (size_t i = 0; i < sums.size(); i++) {
      sums[i] +=
          static_cast<double>(static_cast<const float *>(bias)[static_cast<int64_t>(i) % channels]);
      if (scale != 0.0f)
        sums[i] += static_cast<double>(scale * static_cast<const float *>(z)[i]);
      if (rectifies && sums[i] < 0.0)
        sums[i] = 0.0;
    }
    store(sums, static_cast<float *>(y));
  });
  return launched();
}

int cudnnConvolutionBackwardData(handle h, const void *alpha, filter tw, const void *w, tensor ty,
                                 const void *dy, convolution conv, int algo, void *workspace,
                                 size_t bytes, const void *beta, tensor tx, void *dx) {
  shape s;
  int status = read_shape(tx, tw, conv, ty, &s);
  if (!status)
    status = check_launch(h, s, alpha, beta, dx, w, dy, algo, workspace, bytes);
  if (status)
    return status;
  standin_enqueue("cudnnConvolutionBackwardData", 1, 1, 0, h->stream, [=] {
    spoil(s, algo, workspace);
    std::vector<double> sums(static_cast<size_t>(size_of(s.in) * s.batch * s.groups * s.channels));
    const float *from = static_cast<const float *>(dy), *weight = static_cast<const float *>(w);
    walk(s, [&](int64_t at_y, int64_t at_x, int64_t at_w) {
      sums[static_cast<size_t>(at_x)] +=
          rounded(from[at_y], s.rounds) * rounded(weight[at_w], s.rounds);
    });
    store(sums, static_cast<float *>(dx));
  });
  return launched();
}

int cudnnConvolutionBackwardFilter(handle h, const void *alpha, tensor tx, const void *x, tensor ty,
                                   const void *dy, convolution conv, int algo, void *workspace,
                                   size_t bytes, const void *beta, filter tw, void *dw) {
  shape s;
  int status = read_shape(tx, tw, conv, ty, &s);
  if (!status)
    status = check_launch(h, s, alpha, beta, dw, x, dy, algo, workspace, bytes);
  if (status)
    return status;
  standin_enqueue("cudnnConvolutionBackwardFilter", 1, 1, 0, h->stream, [=] {
    spoil(s, algo, workspace);
    std::vector<double> sums(
        static_cast<size_t>(size_of(s.kernel) * s.groups * s.filters * s.channels));
    const float *image = static_cast<const float *>(x), *from = static_cast<const float *>(dy);
    walk(s, [&](int64_t at_y, int64_t at_x, int64_t at_w) {
      sums[static_cast<size_t>(at_w)] +=
          rounded(image[at_x], s.rounds) * rounded(from[at_y], s.rounds);
    });
    store(sums, static_cast<float *>(dw));
  });
  return launched();
}
}
