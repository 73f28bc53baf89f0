/* quantized/linear.c: floats to integers with a scale and a zero point, and back.
 *
 *   quantize          y = round(x / scale) + zero, half to even, saturated
 *   dequantize        y = (x - zero) scale
 *   dynamic_quantize  quantize to uint8 with the scale and zero point of the range of x and 0
 *
 * Scale and zero point are one number each, or one per index of an axis; a line is what shares
 * them. Two to five bytes per element, and two reads for dynamic_quantize. */
#include "cpu.h"
#include "simd/vector.h"

#include <math.h>

/* ---- Lines ----------------------------------------------------------------------------------- */

typedef struct linear {
  void *out;
  const void *in;
  const float *scale;
  const void *zero;
  int64_t count; /* of scales */
  int64_t line;  /* elements that share a scale and lie together */
  int64_t total;
  int32_t dtype; /* of the integers */
} linear;

/* A number of 2^23 and more has no bits below one: added to a small float it rounds it. */
#define ROUNDER 12582912.0f

/* |T|: the integers; their limits are small enough for ROUNDER. NaN gives the least. */
#define DEFINE_LINES(T, name, LEAST, MOST)                                                         \
  static void quantize_##name(T *to, const float *from, float scale, int32_t zero, int64_t n) {    \
    const float least = (float)((LEAST) - zero), most = (float)((MOST) - zero), rounder = ROUNDER; \
    int32_t bits;                                                                                  \
    memcpy(&bits, &rounder, sizeof bits);                                                          \
    const int32_t shift = bits - zero;                                                             \
    DF_IVDEP                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
      float steps = from[i] / scale;                                                               \
      steps = steps > least ? steps : least;                                                       \
      steps = steps < most ? steps : most;                                                         \
      steps += ROUNDER;                                                                            \
      int32_t found;                                                                               \
      memcpy(&found, &steps, sizeof found);                                                        \
      to[i] = (T)(found - shift);                                                                  \
    }                                                                                              \
  }                                                                                                \
  static void quantize_each_##name(T *to, const float *from, const float *scale, const T *zero,    \
                                   int64_t n) {                                                    \
    const float rounder = ROUNDER;                                                                 \
    int32_t bits;                                                                                  \
    memcpy(&bits, &rounder, sizeof bits);                                                          \
    DF_IVDEP                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
      const float least = (float)((LEAST) - zero[i]), most = (float)((MOST) - zero[i]);            \
      float steps = from[i] / scale[i];                                                            \
      steps = steps > least ? steps : least;                                                       \
      steps = steps < most ? steps : most;                                                         \
      steps += ROUNDER;                                                                            \
      int32_t found;                                                                               \
      memcpy(&found, &steps, sizeof found);                                                        \
      to[i] = (T)(found - bits + zero[i]);                                                         \
    }                                                                                              \
  }

/* |W| holds all differences of two integers of type T. */
#define DEFINE_BACK(T, name, W)                                                                    \
  static void dequantize_##name(float *to, const T *from, float scale, T zero, int64_t n) {        \
    DF_IVDEP                                                                                       \
    for (int64_t i = 0; i < n; i++)                                                                \
      to[i] = (float)((W)from[i] - zero) * scale;                                                  \
  }                                                                                                \
  static void dequantize_each_##name(float *to, const T *from, const float *scale, const T *zero,  \
                                     int64_t n) {                                                  \
    DF_IVDEP                                                                                       \
    for (int64_t i = 0; i < n; i++)                                                                \
      to[i] = (float)((W)from[i] - zero[i]) * scale[i];                                            \
  }

DEFINE_LINES(int8_t, i8, INT8_MIN, INT8_MAX)
DEFINE_LINES(uint8_t, u8, 0, UINT8_MAX)
DEFINE_LINES(int16_t, i16, INT16_MIN, INT16_MAX)
DEFINE_LINES(uint16_t, u16, 0, UINT16_MAX)
DEFINE_BACK(int8_t, i8, int32_t)
DEFINE_BACK(uint8_t, u8, int32_t)
DEFINE_BACK(int16_t, i16, int32_t)
DEFINE_BACK(uint16_t, u16, int32_t)
DEFINE_BACK(int32_t, i32, int64_t)

/* A line, or where lines are single elements, which follow each other in the order of their scales,
 * |n| of those. */
#define QUANTIZE(T, name)                                                                          \
  if (l->line == 1)                                                                                \
    quantize_each_##name((T *)l->out + at, (const float *)l->in + at, l->scale + index,            \
                         (const T *)l->zero + index, n);                                           \
  else                                                                                             \
    quantize_##name((T *)l->out + at, (const float *)l->in + at, l->scale[index],                  \
                    ((const T *)l->zero)[index], n);                                               \
  break
#define DEQUANTIZE(T, name)                                                                        \
  if (l->line == 1)                                                                                \
    dequantize_each_##name((float *)l->out + at, (const T *)l->in + at, l->scale + index,          \
                           (const T *)l->zero + index, n);                                         \
  else                                                                                             \
    dequantize_##name((float *)l->out + at, (const T *)l->in + at, l->scale[index],                \
                      ((const T *)l->zero)[index], n);                                             \
  break

/* Elements [at, at + n), which share scale number |index|, or have those from |index| on. */
static void quantize_line(const linear *l, int64_t at, int64_t index, int64_t n) {
  switch (l->dtype) {
  case DF_INT8:
    QUANTIZE(int8_t, i8);
  case DF_UINT8:
    QUANTIZE(uint8_t, u8);
  case DF_INT16:
    QUANTIZE(int16_t, i16);
  default:
    QUANTIZE(uint16_t, u16);
  }
}

static void dequantize_line(const linear *l, int64_t at, int64_t index, int64_t n) {
  switch (l->dtype) {
  case DF_INT8:
    DEQUANTIZE(int8_t, i8);
  case DF_UINT8:
    DEQUANTIZE(uint8_t, u8);
  case DF_INT16:
    DEQUANTIZE(int16_t, i16);
  case DF_UINT16:
    DEQUANTIZE(uint16_t, u16);
  default:
    DEQUANTIZE(int32_t, i32);
  }
}

typedef void (*do_line)(const linear *l, int64_t at, int64_t index, int64_t n);

static void do_lines(const linear *l, do_line line, int64_t task, int64_t count) {
  int64_t begin, end;
  df_task_range(task, count, l->total, 64, &begin, &end);
  for (int64_t at = begin, n; at < end; at += n) {
    const int64_t index = at / l->line % l->count;
    n = df_min(end - at, l->line == 1 ? l->count - index : l->line - at % l->line);
    line(l, at, index, n);
  }
}

static void quantize_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  do_lines(context, quantize_line, index, count);
}

static void dequantize_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  do_lines(context, dequantize_line, index, count);
}

/* |axis|: of the scales, where they are several. */
static linear linear_of(const df_call *call, int64_t axis, int32_t dtype) {
  const df_tensor *x = call->inputs[0], *scale = call->inputs[1];
  linear l = {.out = call->outputs[0]->data,
              .in = x->data,
              .scale = scale->data,
              .zero = call->inputs[2]->data,
              .count = df_elements(scale),
              .total = df_elements(x),
              .dtype = dtype};
  l.line = l.count == 1 ? l.total : df_product(x->shape, df_axis_of(axis, x->rank) + 1, x->rank);
  return l;
}

static df_status run_quantize(const df_call *call) {
  linear l = linear_of(call, df_attr_int(call, DF_QUANTIZE_AXIS), call->outputs[0]->dtype);
  df_parallel(call, quantize_task, &l, df_task_count(call, l.total, DF_GRAIN));
  return DF_OK;
}

static df_status run_dequantize(const df_call *call) {
  linear l = linear_of(call, df_attr_int(call, DF_DEQUANTIZE_AXIS), call->inputs[0]->dtype);
  df_parallel(call, dequantize_task, &l, df_task_count(call, l.total, DF_GRAIN));
  return DF_OK;
}

/* ---- The range ------------------------------------------------------------------------------- */

/* Largest element of each task, and of the negated ones; 0 among both. */
typedef struct ranges {
  const float *x;
  int64_t total;
  float *high, *low;
} ranges;

/* The larger one; a NaN wins. */
static float larger(float a, float b) { return a != a || b <= a ? a : b; }

static float largest(df_vec value) {
  float lanes[DF_LANES];
  vec_store(lanes, value);
  float most = lanes[0];
  for (int i = 1; i < DF_LANES; i++)
    most = larger(most, lanes[i]);
  return most;
}

static void range_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  enum { CHAINS = 4 };
  const ranges *r = context;
  int64_t at, end;
  df_task_range(index, count, r->total, 64, &at, &end);
  df_vec high[CHAINS], low[CHAINS]; /* low: of -x */
  for (int i = 0; i < CHAINS; i++)
    high[i] = low[i] = vec_zero();
  for (; at + CHAINS * DF_LANES <= end; at += CHAINS * DF_LANES)
    for (int i = 0; i < CHAINS; i++) {
      const df_vec x = vec_load(r->x + at + i * DF_LANES);
      high[i] = vec_larger(x, high[i]);
      low[i] = vec_larger(-x, low[i]);
    }
  for (; at < end; at += DF_LANES) {
    const df_vec x = vec_load_partial(r->x + at, df_min(DF_LANES, end - at));
    high[0] = vec_larger(x, high[0]);
    low[0] = vec_larger(-x, low[0]);
  }
  for (int i = 1; i < CHAINS; i++) {
    high[0] = vec_larger(high[i], high[0]);
    low[0] = vec_larger(low[i], low[0]);
  }
  r->high[index] = largest(high[0]);
  r->low[index] = largest(low[0]);
}

static int64_t range_tasks(int32_t threads, int64_t total) {
  return threads > 1 ? df_max(1, df_min(4 * threads, total / DF_GRAIN)) : 1;
}

static df_status run_dynamic(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  float *scale = call->outputs[1]->data;
  uint8_t *zero = call->outputs[2]->data;
  const int64_t total = df_elements(x), count = range_tasks(call->threads, total);
  ranges r = {x->data, total, call->workspace, (float *)call->workspace + count};
  df_parallel(call, range_task, &r, count);
  float high = 0.0f, low = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    high = larger(high, r.high[i]);
    low = larger(low, r.low[i]);
  }
  const float span = high + low;
  *scale = span == 0.0f ? 1.0f : span / 255.0f;
  const float origin = rintf(low / *scale);
  *zero = (uint8_t)(origin > 0.0f ? origin < 255.0f ? origin : 255.0f : 0.0f);
  linear l = {.out = call->outputs[0]->data,
              .in = x->data,
              .scale = scale,
              .zero = zero,
              .count = 1,
              .line = total,
              .total = total,
              .dtype = DF_UINT8};
  df_parallel(call, quantize_task, &l, df_task_count(call, total, DF_GRAIN));
  return DF_OK;
}

static df_status prepare_dynamic(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const int64_t count = range_tasks(node->threads, df_operand_elements(node->inputs[0]));
  out->workspace = 2 * count * (int64_t)sizeof(float);
  return DF_OK;
}

static const char *accepts_dynamic(const df_node *node) {
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (node->outputs[i]->dtype == DF_NONE)
      return "a result is absent";
  return df_accepts_elements(node);
}

DF_KERNELS(quantized_linear) = {
    DF_KERNEL_IF("quantize", "f32", "f32,f32,i8|u8|i16|u16->i8|u8|i16|u16", NULL,
                 df_accepts_elements, run_quantize),
    DF_KERNEL_IF("dequantize", "f32", "i8|u8|i16|u16|i32,f32,i8|u8|i16|u16|i32->f32", NULL,
                 df_accepts_elements, run_dequantize),
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "dynamic_quantize",
                       .name = "dynamic_quantize f32 " DF_TEXT(DF_ISA),
                       .operands = "f32->u8,f32,u8",
                       .accepts = accepts_dynamic,
                       .prepare = prepare_dynamic,
                       .run = run_dynamic},
    NULL};
