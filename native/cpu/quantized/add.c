/* quantized/add.c: sums of two arrays of bytes as bytes.
 *
 *   add_requantized  round((a - a_zero) a_scale / y_scale + (b - b_zero) b_scale / y_scale) +
 * y_zero, saturated; with relu no less than y_zero
 *
 * Both quotients are known beforehand: an element costs two products. Zero points are subtracted
 * from integers: their products summed beforehand would cancel where one scale is a million times
 * the other. */
#include "quantized/pack.h"
#include "quantized/pairs.h"
#include "quantized/round.h"

#include <math.h>

typedef struct addition {
  const uint8_t *a, *b;
  uint8_t *y;
  uint8_t a_sign, b_sign; /* bits to invert */
  int32_t a_zero, b_zero;
  float a_steps, b_steps;
  int32_t zero, least, most;
  int64_t total;
} addition;

static inline __attribute__((always_inline)) df_bytes add_bytes(const addition *c,
                                                                const df_rounding *r,
                                                                const uint8_t *a,
                                                                const uint8_t *b) {
  const df_ivec left = (df_ivec)(df_load_bytes(a) ^ c->a_sign) - c->a_zero;
  const df_ivec right = (df_ivec)(df_load_bytes(b) ^ c->b_sign) - c->b_zero;
  const df_vec some = __builtin_convertvector(right, df_vec) * c->b_steps;
  return df_round_steps(__builtin_convertvector(left, df_vec) * c->a_steps + some, r);
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const addition *c = context;
  const df_rounding r = df_rounding_of(c->zero, c->least, c->most);
  int64_t at, end;
  df_task_range(index, count, c->total, 64, &at, &end);
  for (; at + DF_LANES <= end; at += DF_LANES) {
    const df_bytes steps = add_bytes(c, &r, c->a + at, c->b + at);
    memcpy(c->y + at, &steps, sizeof steps);
  }
  if (at < end) {
    uint8_t a[DF_LANES] = {0}, b[DF_LANES] = {0};
    memcpy(a, c->a + at, (size_t)(end - at));
    memcpy(b, c->b + at, (size_t)(end - at));
    const df_bytes steps = add_bytes(c, &r, a, b);
    memcpy(c->y + at, &steps, (size_t)(end - at));
  }
}

static float scale_of(const df_call *call, int32_t index) {
  return *(const float *)call->inputs[index]->data;
}

/* Of so many steps any integer but zero saturates, and zero stays zero. */
static float steps_of(const df_call *call, int32_t operand) {
  return fminf(scale_of(call, operand + 1) / scale_of(call, 6), 0x1p100f);
}

static df_status run(const df_call *call) {
  const df_tensor *const *in = call->inputs;
  const int is_unsigned = in[7]->dtype == DF_UINT8;
  addition c = {.a = in[0]->data,
                .b = in[3]->data,
                .y = call->outputs[0]->data,
                .a_sign = df_byte_sign(in[0]->dtype, 1),
                .b_sign = df_byte_sign(in[3]->dtype, 1),
                .a_zero = df_byte_zero(in[2], 0, in[2]->dtype, 1),
                .b_zero = df_byte_zero(in[5], 0, in[5]->dtype, 1),
                .a_steps = steps_of(call, 0),
                .b_steps = steps_of(call, 3),
                .zero = is_unsigned ? *(const uint8_t *)in[7]->data : *(const int8_t *)in[7]->data,
                .total = df_elements(in[0])};
  c.least = df_attr_int(call, DF_ADD_REQUANTIZED_RELU) ? c.zero : is_unsigned ? 0 : INT8_MIN;
  c.most = is_unsigned ? UINT8_MAX : INT8_MAX;
  df_parallel(call, run_task, &c, df_task_count(call, c.total, DF_GRAIN));
  return DF_OK;
}

DF_KERNELS(quantized_add) = {DF_KERNEL_IF("add_requantized", "bytes",
                                          "u8|i8,f32,u8|i8,u8|i8,f32,u8|i8,f32,u8|i8->u8|i8", NULL,
                                          df_accepts_elements, run),
                             NULL};
