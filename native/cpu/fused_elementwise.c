/* fused_elementwise.c: patterns of elementwise ops in one pass over memory. */
#include "walk.h"

/* add_relu: z = max(x + y, 0) with NumPy broadcasting; a NaN stays. */
static void add_relu_rows(void *out, const void *const *in, const int64_t *step, int64_t n,
                          const df_call *call) {
  (void)call;
  float *z = out;
  const float *x = in[0], *y = in[1];
  if (!step[0]) { /* addition commutes: the scalar goes right */
    x = in[1];
    y = in[0];
  }
  if (step[0] && step[1]) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
      float sum = x[i] + y[i];
      z[i] = sum < 0.0f ? 0.0f : sum;
    }
  } else {
    const float b = *y;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++) {
      float sum = x[i] + b;
      z[i] = sum < 0.0f ? 0.0f : sum;
    }
  }
}

static df_status add_relu_run(const df_call *call) { return df_map_run(call, 2, add_relu_rows); }

DF_KERNELS(fused_elementwise) = {
    DF_KERNEL("add_relu", "f32", "~f32,~f32->f32", "0<0,0<1", add_relu_run), NULL};
