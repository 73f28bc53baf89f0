/* vendor/cudnn.cu: convolutions and their gradients by the vendor's library, when it is installed.
 * Bias, addend and relu follow in one pass of our own. The algorithm is chosen when a plan is made,
 * among those that give the same bits every time: of the precision that is asked for, or the next
 * one that is more exact; where the library has none our own kernel runs. */
#include "vendor/cudnn_conv.h"

namespace {

using namespace df_dnn;

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
  if (s->own && !dnn().cudnnSetStream(s->own, queue->stream) && !describe(conv, false, s))
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
  return accepts_sizes(conv_of(KIND, node), rank);
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
