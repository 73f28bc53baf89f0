/* text.c: text that grows, numbers beside it, and elements of operands. */
#include "source.h"

#include <stdlib.h>

const char SOURCE_FUNCTIONS[] =
    "#define LIVE AT\n"
    "#define SCRATCH AT\n"
    "#define MAXIMUM(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))\n"
    "#define MINIMUM(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))\n"
    "float gelu(float x) { return 0.5f * x * (1.0f + erf(x * 0.7071067812f)); "
    "}\n"
    "float gelu_tanh(float x) {\n"
    "  return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * (x * x "
    "* x))));\n"
    "}\n"
    "float gelu_slope(float x) {\n"
    "  return 0.5f * (1.0f + erf(x * 0.7071067812f)) + x * 0.3989422804f * "
    "exp(-0.5f * x * x);\n"
    "}\n"
    "float gelu_tanh_slope(float x) {\n"
    "  const float gate = tanh(0.7978845608f * (x + 0.044715f * (x * x * "
    "x)));\n"
    "  const float inner = 0.7978845608f * (1.0f + 0.134145f * (x * x));\n"
    "  return 0.5f * (1.0f + gate) + 0.5f * x * (1.0f - gate * gate) * inner;\n"
    "}\n";

void source_print(source_text *text, const char *format, ...) {
  for (;;) {
    const size_t left = text->capacity - text->length;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(left ? text->data + text->length : NULL, left, format, arguments);
    va_end(arguments);
    if (length < 0 || text->failed)
      return;
    if ((size_t)length < left) {
      text->length += (size_t)length;
      return;
    }
    const size_t capacity = 2 * text->capacity + (size_t)length + 1024;
    char *grown = realloc(text->data, capacity);
    if (!grown) {
      text->failed = 1;
      return;
    }
    text->data = grown;
    text->capacity = capacity;
  }
}

const char *source_type(int32_t dtype) {
  switch (dtype) {
  case DF_INT32:
    return "int";
  case DF_INT64:
    return "long";
  case DF_BOOL:
    return "uchar";
  default:
    return "float";
  }
}

int source_present(const df_operand *operand) { return operand->arena >= 0; }

/* A number as p[...]. */
static source_word parameter(source_writer *writer, int64_t number) {
  source_word word = {{0}};
  source_group *group = writer->group;
  if (group->n_numbers % 64 == 0) { /* as many as there is memory for are full */
    int64_t *grown =
        realloc(group->numbers, (size_t)(group->n_numbers + 64) * sizeof *group->numbers);
    if (!grown) {
      writer->failed = 1;
      return word;
    }
    group->numbers = grown;
  }
  group->numbers[group->n_numbers] = number;
  snprintf(word.text, sizeof word.text, "p[%d]", (int)group->n_numbers++);
  return word;
}

source_word source_number(source_writer *writer, int64_t number) {
  source_word word = {{0}};
  if (number != 0 && number != 1)
    return parameter(writer, number);
  snprintf(word.text, sizeof word.text, "%d", (int)number);
  return word;
}

/* The number of an arena in the group. */
static int32_t arena_of(source_writer *writer, int32_t arena) {
  source_group *group = writer->group;
  for (int32_t i = 0; i < group->n_arenas; i++)
    if (group->arenas[i] == arena)
      return i;
  if (group->n_arenas == SOURCE_MOST_ARENAS) {
    writer->failed = 1;
    return 0;
  }
  group->arenas[group->n_arenas] = arena;
  return group->n_arenas++;
}

source_axes source_coordinates(source_writer *writer, const char *item, const char *prefix,
                               const int64_t *shape, int32_t rank) {
  source_axes axes = {{{0}}};
  const int32_t rest = writer->names++;
  W("  long r%d = %s;\n", (int)rest, item);
  for (int32_t axis = rank - 1; axis >= 0; axis--) {
    snprintf(axes.names[axis], sizeof axes.names[axis], "%s%d", prefix, (int)axis);
    if (shape[axis] == 1)
      W("  const long %s = 0;\n", axes.names[axis]);
    else if (axis == 0)
      W("  const long %s = r%d;\n", axes.names[axis], (int)rest);
    else {
      const source_word size = source_number(writer, shape[axis]);
      W("  const long %s = r%d %% %s; r%d /= %s;\n", axes.names[axis], (int)rest, size.text,
        (int)rest, size.text);
    }
  }
  return axes;
}

/* |macro| says what for. */
static void element(source_writer *writer, const char *macro, const df_operand *operand,
                    const source_axes *axes, char into[64]) {
  const int32_t name = writer->names++;
  W("  const long e%d = 0", (int)name);
  for (int32_t axis = 0; axis < operand->rank; axis++)
    if (operand->shape[axis] != 1 && operand->strides[axis] == 1)
      W(" + %s", axes->names[axis]);
    else if (operand->shape[axis] != 1 && operand->strides[axis] != 0)
      W(" + %s * %s", axes->names[axis], N(operand->strides[axis]));
  W(";\n");
  snprintf(into, 64, "%s(%s, a%d, %s, e%d)", macro, source_type(operand->dtype),
           (int)arena_of(writer, operand->arena), parameter(writer, operand->offset).text,
           (int)name);
}

void source_element(source_writer *writer, const df_operand *operand, const source_axes *axes,
                    char into[64]) {
  element(writer, "AT", operand, axes, into);
}

void source_result(source_writer *writer, const df_operand *operand, const source_axes *axes,
                   char into[64]) {
  element(writer, operand->flags & DF_LIVE_OUT ? "LIVE" : "SCRATCH", operand, axes, into);
}

void source_broadcast(source_writer *writer, const df_operand *operand, const source_axes *axes,
                      int32_t rank, char into[64]) {
  source_axes own = {{{0}}};
  for (int32_t axis = 0; axis < operand->rank; axis++)
    memcpy(own.names[axis], axes->names[rank - operand->rank + axis], sizeof own.names[axis]);
  source_element(writer, operand, &own, into);
}

/* Whether two operands are the same elements in row-major order. */
static int same_elements(const df_operand *a, const df_operand *b) {
  if (a->arena != b->arena || a->offset != b->offset || a->dtype != b->dtype || a->rank != b->rank)
    return 0;
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis] ||
        (a->shape[axis] != 1 && a->strides[axis] != b->strides[axis]))
      return 0;
  return 1;
}

void source_here(source_writer *writer, const source_step *step, int32_t input,
                 const source_axes *axes, char into[64]) {
  const df_operand *operand = step->inputs[input];
  for (int32_t i = writer->n_locals - 1; i >= 0; i--)
    if (same_elements(writer->locals[i].operand, operand)) {
      snprintf(into, 64, "v%d_%d", (int)writer->locals[i].step, (int)writer->locals[i].output);
      return;
    }
  source_broadcast(writer, operand, axes, step->outputs[0]->rank, into);
}
