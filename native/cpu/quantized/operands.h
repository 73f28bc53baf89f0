/* quantized/operands.h: the operands of products and convolutions by what they are.
 *
 *   ..._integer      left, right, left_zero?, right_zero?
 *   ..._dequantized  left, left_scale, left_zero, right, right_scale, right_zero, bias?
 *   ..._requantized  the same six, y_scale, y_zero, bias? */
#ifndef DF_CPU_QUANTIZED_OPERANDS_H
#define DF_CPU_QUANTIZED_OPERANDS_H

#include "quantized/pack.h"

#include <math.h>

typedef struct df_byte_operands {
  df_byte_form form;
  const df_tensor *left, *left_scale, *left_zero;
  const df_tensor *right, *right_scale, *right_zero;
  const df_tensor *y_scale, *y_zero;
  const df_tensor *bias; /* null where there is none, as the zero points */
} df_byte_operands;

/* The index of the right operand. */
static inline int32_t df_byte_right(df_byte_form form) { return form == DF_BYTE_SUMS ? 1 : 3; }

static inline const df_tensor *df_byte_optional(const df_call *call, int32_t index) {
  const int there = index < call->n_inputs && call->inputs[index]->dtype != DF_NONE;
  return there ? call->inputs[index] : NULL;
}

static inline df_byte_operands df_byte_operands_of(const df_call *call, df_byte_form form) {
  const df_tensor *const *in = call->inputs;
  if (form == DF_BYTE_SUMS)
    return (df_byte_operands){.form = form,
                              .left = in[0],
                              .right = in[1],
                              .left_zero = df_byte_optional(call, 2),
                              .right_zero = df_byte_optional(call, 3)};
  const int steps = form == DF_BYTE_STEPS;
  return (df_byte_operands){.form = form,
                            .left = in[0],
                            .left_scale = in[1],
                            .left_zero = in[2],
                            .right = in[3],
                            .right_scale = in[4],
                            .right_zero = in[5],
                            .y_scale = steps ? in[6] : NULL,
                            .y_zero = steps ? in[7] : NULL,
                            .bias = df_byte_optional(call, steps ? 8 : 6)};
}

static inline float df_byte_float(const df_tensor *vector, int64_t index) {
  return ((const float *)vector->data)[df_elements(vector) == 1 ? 0 : index];
}

/* Value of a sum of index |index| along the axis of the right scales. */
static inline float df_byte_unit(const df_byte_operands *o, int64_t index) {
  return df_byte_float(o->left_scale, 0) * df_byte_float(o->right_scale, index);
}

/* What a sum is multiplied by. */
static inline float df_byte_scale(const df_byte_operands *o, int64_t index) {
  const float unit = df_byte_unit(o, index);
  return o->form == DF_BYTE_STEPS ? unit / df_byte_float(o->y_scale, 0) : unit;
}

/* A bias of floats, rounded to units. */
static inline int32_t df_byte_units(float bias, float unit) {
  const double units = rint((double)bias / unit);
  return units >= 2147483647.0 ? INT32_MAX : units > -2147483648.0 ? (int32_t)units : INT32_MIN;
}

/* What is added to a sum as an integer: a bias of int32, or one of floats rounded to units. */
static inline int32_t df_byte_bias(const df_byte_operands *o, int64_t index) {
  if (!o->bias || o->form != DF_BYTE_STEPS)
    return 0;
  if (o->bias->dtype == DF_INT32)
    return ((const int32_t *)o->bias->data)[index];
  return df_byte_units(((const float *)o->bias->data)[index], df_byte_unit(o, index));
}

/* Form, result and limits; the arrays are left to the caller. */
static inline df_byte_epilogue df_byte_epilogue_of(const df_byte_operands *o, void *out,
                                                   int64_t out_row, int32_t relu) {
  df_byte_epilogue e = {.form = o->form, .out = out, .out_row = out_row};
  if (o->form == DF_BYTE_STEPS) {
    const int is_unsigned = o->y_zero->dtype == DF_UINT8;
    e.zero = is_unsigned ? *(const uint8_t *)o->y_zero->data : *(const int8_t *)o->y_zero->data;
    e.least = relu ? e.zero : is_unsigned ? 0 : INT8_MIN;
    e.most = is_unsigned ? UINT8_MAX : INT8_MAX;
  }
  return e;
}

/* The epilogue's three arrays by column, |pitch| bytes apart in |vectors|, of requantized filters
 * that are |k| weights each and begin with their |sums|; what is behind the last is zero. */
static inline void df_byte_fill_columns(const df_byte_operands *o, df_byte_epilogue *e,
                                        uint8_t *vectors, int64_t pitch, const void *sums,
                                        int64_t filters, int64_t k) {
  const uint32_t left = (uint32_t)df_byte_zero(o->left_zero, 0, o->left->dtype, 1);
  const float x_scale = df_byte_float(o->left_scale, 0), y_scale = df_byte_float(o->y_scale, 0);
  const float *scales = o->right_scale->data;
  const int64_t each = df_elements(o->right_scale) > 1;
  int32_t *add = (int32_t *)(void *)vectors, *zero = (int32_t *)(void *)(vectors + pitch);
  float *scale = (float *)(void *)(vectors + 2 * pitch);
  int32_t any = 0;
  memset(vectors, 0, (size_t)(3 * pitch));
  for (int64_t f = 0; f < filters; f++)
    scale[f] = x_scale * scales[f * each];
  if (o->bias && o->bias->dtype == DF_INT32)
    memcpy(add, o->bias->data, (size_t)filters * sizeof *add);
  else if (o->bias)
    for (int64_t f = 0; f < filters; f++)
      add[f] = df_byte_units(((const float *)o->bias->data)[f], scale[f]);
  for (int64_t f = 0; f < filters; f++)
    any |= zero[f] = df_byte_zero(o->right_zero, f, o->right->dtype, 0);
  for (int64_t f = 0; f < filters; f++) {
    const uint32_t rest = (uint32_t)((const int32_t *)sums)[f] - (uint32_t)k * (uint32_t)zero[f];
    add[f] = (int32_t)((uint32_t)add[f] - left * rest);
    scale[f] /= y_scale;
  }
  e->column_add = add;
  e->column_zero = any ? zero : NULL;
  e->column_scale = scale;
}

/* The kernel of an op by the functions |accepts|, |prepare| and |run| of the file that it is in. */
#define DF_BYTE_KERNEL(op_, form, operands_, relu)                                                 \
  static const char *accepts_##op_(const df_node *node) { return accepts(node, form); }            \
  static df_status prepare_##op_(const df_node *node, df_prepared *out, df_error *error) {         \
    (void)error;                                                                                   \
    return prepare(node, out, form);                                                               \
  }                                                                                                \
  static df_status run_##op_(const df_call *call) { return run(call, form, relu); }                \
  static const df_kernel kernel_##op_ = {.struct_size = sizeof(df_kernel),                         \
                                         .op = #op_,                                               \
                                         .name = #op_ " " DF_TEXT(DF_ISA),                         \
                                         .operands = operands_,                                    \
                                         .accepts = accepts_##op_,                                 \
                                         .prepare = prepare_##op_,                                 \
                                         .run = run_##op_}

#endif
