/* swish.cu: y = x / (1 + exp(-beta x)) for float32, contiguous. */
#include <dataflow_cuda.h>

enum { BLOCK = 256 };

__global__ void swish(float *y, const float *x, int64_t n, float beta) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
  if (i < n)
    y[i] = x[i] / (1.0f + expf(-beta * x[i]));
}

/* Runs at plan time and in a capture: it puts the launch into call->stream and does not wait. */
static df_status run(const df_call *call) {
  const int64_t n = df_elements(call->outputs[0]);
  if (n == 0)
    return DF_OK;
  return DF_LAUNCH(call, swish, df_blocks(n, BLOCK), BLOCK, 0,
                   static_cast<float *>(call->outputs[0]->data),
                   static_cast<const float *>(call->inputs[0]->data), n,
                   static_cast<float>(df_attr_float(call, 0)));
}

/* "0<0" lets the result overwrite the operand. */
static const df_kernel kernel =
    DF_CUDA_KERNEL("swish", "f32", "f32->f32", "0<0", .run = run, .capturable = 1);
static const df_kernel *const kernels[] = {&kernel};

extern "C" __attribute__((visibility("default"))) const df_plugin *
df_plugin_entry(const df_host *) {
  static const df_plugin plugin = {.struct_size = sizeof(df_plugin),
                                   .abi_major = DF_ABI_MAJOR,
                                   .abi_minor = DF_ABI_MINOR,
                                   .n_devices = 0,
                                   .name = "swish",
                                   .version = "0.1.0",
                                   .devices = nullptr,
                                   .kernels = kernels,
                                   .n_kernels = 1};
  return &plugin;
}
