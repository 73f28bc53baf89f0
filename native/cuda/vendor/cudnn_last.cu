/* vendor/cudnn_last.cu: convolutions and their gradients of tensors with channels last, by the
 * vendor's library, whose kernels for tensor cores want them so: of planes it makes such copies
 * before, and planes behind. It adds a bias and an addend and applies the relu itself where it has
 * a kernel for that. */
#include "vendor/cudnn_conv.h"

namespace {

using namespace df_dnn;

/* ---- Sizes ---------------------------------------------------------------------------------- */

template <kind KIND, typename N> df_conv conv_of(const N *of) {
  const int32_t rank = of->inputs[0]->rank;
  const auto *x = KIND == INPUT ? of->outputs[0] : of->inputs[0];
  const auto *w = KIND == WEIGHT ? of->outputs[0] : of->inputs[1];
  const auto *y = KIND == FORWARD ? of->outputs[0] : KIND == INPUT ? of->inputs[0] : of->inputs[1];
  const int32_t first = KIND == FORWARD ? int(DF_CONV_LAST_STRIDES)
                        : KIND == INPUT ? int(DF_CONV_GRAD_INPUT_STRIDES)
                                        : int(DF_CONV_GRAD_WEIGHT_STRIDES);
  return df_conv_of(df_planar(x->shape, rank).sizes, df_planar(w->shape, rank).sizes,
                    df_planar(y->shape, rank).sizes, rank, of->attributes, of->n_attributes, first);
}

/* ---- Preparing ------------------------------------------------------------------------------ */

/* Describes what follows a convolution, and notes the workspace that the library wants for all of
 * it; without |s->end| a pass of our own does it. */
void describe_end(const df_node *node, const df_conv &conv, conv_state *s) {
  const int axes = conv.rank == 3 ? 3 : 2;
  const int32_t ones[DF_AXES] = {1, 1, 1};
  const int mode =
      df_attr_int(node, DF_CONV_LAST_RELU) ? int(ACTIVATION_RELU) : int(ACTIVATION_IDENTITY);
  size_t bytes = 0;
  if (node->n_inputs < 3 || node->inputs[2]->dtype == DF_NONE ||
      workspace_of<FORWARD>(s->own, *s, FORWARD_PRECOMPUTED_GEMM, &bytes) || bytes > WORKSPACE ||
      describe_tensor(&s->bias, true, 1, conv.groups * conv.filters, ones, axes) ||
      dnn().cudnnCreateActivationDescriptor(&s->end))
    return;
  if (dnn().cudnnSetActivationDescriptor(s->end, mode, PROPAGATE_NAN, 0.0)) {
    dnn().cudnnDestroyActivationDescriptor(s->end);
    s->end = nullptr;
    return;
  }
  s->workspace = bytes > s->workspace ? bytes : s->workspace;
}

template <kind KIND> df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  df_queue *queue = df_vendor_queue(node, error);
  if (!queue)
    return DF_UNSUPPORTED;
  conv_state *s = new (std::nothrow) conv_state{};
  if (!s)
    return DF_OUT_OF_MEMORY;
  const df_conv conv = conv_of<KIND>(node);
  const bool exact = node->precision != DF_TF32 && node->precision != DF_BF16;
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  s->own = df_vendor_handle(queue, dnn().cudnnCreate, dnn().cudnnDestroy);
  s->stream = queue->stream;
  const int32_t wanted = node->algorithm - 1;
  bool found = false;
  if (s->own && !dnn().cudnnSetStream(s->own, queue->stream) && !describe(conv, true, s))
    for (int by = exact ? DF_BY_FLOAT32 : DF_BY_TF32; by < DF_BY_OWN && !found; by++)
      found =
          choose<KIND>(static_cast<df_path>(by), df_path_rank(wanted, static_cast<df_path>(by)), s);
  if (!found) {
    release(s);
    snprintf(error->text, sizeof error->text, "cuDNN has no algorithm for channels last");
    return DF_UNSUPPORTED;
  }
  if (KIND == FORWARD)
    describe_end(node, conv, s);
  df_path_report(out, s->by, s->suggestions, df_path_number(s->by, s->rank));
  out->possible &= ~(int64_t{1} << DF_BY_OWN);
  out->workspace = static_cast<int64_t>(s->workspace);
  out->state = s;
  return DF_OK;
}

/* ---- Running -------------------------------------------------------------------------------- */

/* Whether the library has put all into the stream; false, with nothing there, where it has no
 * kernel. */
bool launch_all(const df_call *call, const conv_state &s, float *y, const df_gemm_end &end,
                df_status *status) {
  const float one = 1.0f, zero = 0.0f;
  const int failed = dnn().cudnnConvolutionBiasActivationForward(
      s.own, &one, s.x, df_in<const float>(call, 0), s.w, df_in<const float>(call, 1), s.conv,
      FORWARD_PRECOMPUTED_GEMM, call->workspace, s.workspace, end.add ? &one : &zero, s.y,
      end.add ? end.add : y, s.bias, end.row_bias, s.end, s.y, y);
  if (failed / NOT_SUPPORTED == 1) /* 3000 to 3999 */
    return false;
  *status = failed ? df_fail(call, DF_DEVICE, "cuDNN: %s", dnn().cudnnGetErrorString(failed))
                   : int(DF_OK);
  return true;
}

template <kind KIND> df_status run(const df_call *call) {
  const conv_state &s = *static_cast<const conv_state *>(call->state);
  float *out = df_out<float>(call, 0);
  if (call->stream != s.stream)
    return df_fail(call, DF_INTERNAL, "prepared for another session");
  df_gemm_end end{};
  if (KIND == FORWARD) {
    end.row_bias = df_in<const float>(call, 2);
    end.add = df_in<const float>(call, 3);
    end.relu = static_cast<int>(df_attr_int(call, DF_CONV_LAST_RELU));
  }
  df_status status = DF_OK;
  if (s.end && end.row_bias && launch_all(call, s, out, end, &status))
    return status;
  status = launch<KIND>(call, s, out, df_in<const float>(call, 0), df_in<const float>(call, 1));
  if (status || (!end.row_bias && !end.add && !end.relu))
    return status;
  const df_tensor *y = call->outputs[0];
  return df_conv_finish(call, out, out, 1, df_elements(y), 1, y->shape[y->rank - 1], end);
}

/* ---- Records -------------------------------------------------------------------------------- */

template <kind KIND> const char *accepts(const df_node *node) {
  const int32_t rank = node->inputs[0]->rank;
  if (rank < 3 || rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const df_conv conv = conv_of<KIND>(node);
  if (conv.groups != 1)
    return "groups are computed in planes";
  if (is_for_own<KIND>(conv))
    return "weight gradients of one channel have a kernel of their own";
  if (KIND != INPUT && df_conv_has_few_channels(conv))
    return "images of few channels have a kernel of their own";
  return accepts_sizes(conv, rank);
}

template <kind KIND>
constexpr df_kernel record(const char *op, const char *name, const char *operands) {
  df_kernel k{};
  k.struct_size = sizeof k;
  k.priority = 10;
  k.op = op;
  k.name = name;
  k.operands = operands;
  k.accepts = accepts<KIND>;
  k.prepare = prepare<KIND>;
  k.run = run<KIND>;
  k.release = release;
  k.capturable = 1;
  return k;
}

const df_kernel records[] = {
    record<FORWARD>("conv_last", "conv_last f32 cudnn", "f32,f32,f32?,f32?->f32"),
    record<INPUT>("conv_last_grad_input", "conv_last_grad_input f32 cudnn", "f32,f32->f32"),
    record<WEIGHT>("conv_last_grad_weight", "conv_last_grad_weight f32 cudnn", "f32,f32->f32")};

} // namespace

DF_CUDA_FAMILY(cudnn_last, records);
