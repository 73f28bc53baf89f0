/* rows.c: ops along axes: reductions, softmax, normalization, losses. */
#include "source.h"

#define NUMBER ((int)step->name)
enum { ALL = 15 }; /* inputs */

/* ---- An element of the result for each row --------------------------------------------------- */

/* For each element of x that belongs to element i of y: opens the loops and names the coordinates,
 * of which those of the axes in the mask are j<axis>. Returns how many loops there are. */
static int32_t open_loops(source_writer *writer, const df_operand *x, const df_operand *y,
                          uint32_t reduced, int keepdims, source_axes *of_x) {
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  int32_t loops = 0, kept = 0;
  for (int32_t axis = 0; axis < x->rank; axis++) {
    if (!(reduced >> axis & 1)) {
      memcpy(of_x->names[axis], axes.names[keepdims ? axis : kept], sizeof axes.names[0]);
      kept++;
      continue;
    }
    snprintf(of_x->names[axis], sizeof of_x->names[axis], "j%d", (int)axis);
    W("  for (long j%d = 0; j%d < %s; j%d++) {\n", (int)axis, (int)axis, N(x->shape[axis]),
      (int)axis);
    loops++;
  }
  return loops;
}

static void close_loops(source_writer *writer, int32_t loops) {
  while (loops-- > 0)
    W("  }\n");
}

/* The axes that a reduction's attribute names, as a mask, and how many elements they have. */
static uint32_t reduced_axes(const source_step *step, int64_t *count) {
  int32_t length;
  const int64_t *listed = df_attr_ints(step, 0, &length);
  uint32_t mask = 0;
  *count = 1;
  for (int32_t k = 0; k < length; k++) {
    const int64_t axis = df_axis_of(listed[k], step->inputs[0]->rank);
    *count *= mask >> axis & 1 ? 1 : step->inputs[0]->shape[axis];
    mask |= UINT32_C(1) << axis;
  }
  return mask;
}

static void reduce(source_writer *writer, const source_step *step, const char *begin,
                   const char *join, int divided) {
  const df_operand *x = step->inputs[0], *y = step->outputs[0];
  const int integral = x->dtype != DF_FLOAT32;
  source_axes of_x = {{{0}}};
  char from[64];
  int64_t count;
  const uint32_t mask = reduced_axes(step, &count);
  W("  %s sum = %s;\n", integral ? "long" : "sum_t", begin);
  const int32_t loops = open_loops(writer, x, y, mask, (int)df_attr_int(step, 1), &of_x);
  source_element(writer, x, &of_x, from);
  W("  const %s z = %s;\n  sum = %s;\n", integral ? "long" : "sum_t", from, join);
  close_loops(writer, loops);
  if (divided)
    W("  v%d_0 = sum / %s;\n", NUMBER, N(count));
  else
    W("  v%d_0 = sum;\n", NUMBER);
}

static void sum_write(source_writer *writer, const source_step *step) {
  reduce(writer, step, "0", "sum + z", 0);
}
static void mean_write(source_writer *writer, const source_step *step) {
  reduce(writer, step, "0", "sum + z", 1);
}
static void prod_write(source_writer *writer, const source_step *step) {
  reduce(writer, step, "1", "sum * z", 0);
}
static void max_write(source_writer *writer, const source_step *step) {
  reduce(writer, step, "-INFINITY", "MAXIMUM(sum, z)", 0);
}
static void min_write(source_writer *writer, const source_step *step) {
  reduce(writer, step, "INFINITY", "MINIMUM(sum, z)", 0);
}

/* The first of the largest; a NaN is larger than all. */
static void argmax_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *y = step->outputs[0];
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  source_axes of_x = {{{0}}};
  char from[64];
  W("  long at%d = 0;\n  float most%d = 0;\n", NUMBER, NUMBER);
  const int32_t loops =
      open_loops(writer, x, y, UINT32_C(1) << axis, (int)df_attr_int(step, 1), &of_x);
  source_element(writer, x, &of_x, from);
  W("  const float z = %s;\n", from);
  W("  if (j%d == 0 || z > most%d || (z != z && most%d == most%d)) { most%d = "
    "z; at%d = j%d; }\n",
    (int)axis, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, (int)axis);
  close_loops(writer, loops);
  W("  v%d_0 = at%d;\n", NUMBER, NUMBER);
}

static const char *first_of_equals(const df_node *node) {
  return df_attr_int(node, 2) ? "it gives the first of equal elements" : source_accepts(node);
}

/* before + the sum of x^2 */
static void square_sum_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0];
  source_axes of_x = {{{0}}};
  char from[64];
  W("  sum_t sum%d = 0;\n", NUMBER);
  const int32_t loops = open_loops(writer, x, step->outputs[0], UINT32_MAX, 0, &of_x);
  source_element(writer, x, &of_x, from);
  W("  const sum_t z = %s;\n  sum%d += z * z;\n", from, NUMBER);
  close_loops(writer, loops);
  if (source_present(step->inputs[1])) {
    source_element(writer, step->inputs[1], &of_x, from);
    W("  sum%d += %s;\n", NUMBER, from);
  }
  W("  v%d_0 = sum%d;\n", NUMBER, NUMBER);
}

/* ---- Rows that are read more than once ------------------------------------------------------- */

/* Coordinates of item |item| of all axes but one, whose name is |inner|. */
static source_axes row_axes(source_writer *writer, const df_operand *x, int32_t axis,
                            const char *inner) {
  int64_t shape[SOURCE_MOST_AXES] = {0};
  for (int32_t k = 0, at = 0; k < x->rank; k++)
    if (k != axis)
      shape[at++] = x->shape[k];
  source_axes axes = source_coordinates(writer, "i", "c", shape, x->rank - 1);
  memmove(axes.names + axis + 1, axes.names + axis,
          (size_t)(SOURCE_MOST_AXES - 1 - axis) * sizeof axes.names[0]);
  snprintf(axes.names[axis], sizeof axes.names[axis], "%s", inner);
  return axes;
}

/* Opens a loop along a row, in which z is its element. */
static void each(source_writer *writer, const df_operand *x, const source_axes *axes, int32_t axis,
                 const char *z) {
  char from[64];
  W("  for (long j = 0; j < %s; j++) {\n", N(x->shape[axis]));
  source_element(writer, x, axes, from);
  W("  const float %s = %s;\n", z, from);
}

/* log sum e^x = top + log(total), of numbers below the largest. */
static void log_sum(source_writer *writer, const df_operand *x, const source_axes *axes,
                    int32_t axis) {
  W("  float top = -INFINITY;\n  sum_t total = 0;\n");
  each(writer, x, axes, axis, "z");
  W("  top = MAXIMUM(z, top);\n  }\n  if (!(fabs(top) < INFINITY)) top = 0;\n");
  each(writer, x, axes, axis, "z");
  W("  total += exp(z - top);\n  }\n");
}

static int64_t rows(const source_step *step) {
  const df_operand *x = step->outputs[0];
  return df_operand_elements(x) / x->shape[df_axis(step, 0, x->rank)];
}

static void softmax(source_writer *writer, const source_step *step, const char *formula) {
  const df_operand *x = step->inputs[0];
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  const source_axes axes = row_axes(writer, x, axis, "j");
  char into[64];
  log_sum(writer, x, &axes, axis);
  W("  const float below = log((float)total), share = 1 / total;\n  "
    "(void)below, (void)share;\n");
  each(writer, x, &axes, axis, "z");
  source_result(writer, step->outputs[0], &axes, into);
  W("  %s = %s;\n  }\n", into, formula);
}

static void softmax_write(source_writer *writer, const source_step *step) {
  softmax(writer, step, "exp(z - top) * share");
}
static void log_softmax_write(source_writer *writer, const source_step *step) {
  softmax(writer, step, "z - top - below");
}

/* dx = y (dy - sum of dy y), and of the logarithm dy - e^y sum of dy. */
static void softmax_grad(source_writer *writer, const source_step *step, const char *term,
                         const char *formula) {
  const df_operand *dy = step->inputs[0], *y = step->inputs[1];
  const int32_t axis = (int32_t)df_axis(step, 0, y->rank);
  const source_axes axes = row_axes(writer, y, axis, "j");
  char from[64];
  W("  sum_t total = 0;\n");
  each(writer, dy, &axes, axis, "g");
  source_element(writer, y, &axes, from);
  W("  const float z = %s;\n  (void)z;\n  total += %s;\n  }\n", from, term);
  each(writer, dy, &axes, axis, "g");
  source_element(writer, y, &axes, from);
  W("  const float z = %s;\n", from);
  source_result(writer, step->outputs[0], &axes, from);
  W("  %s = %s;\n  }\n", from, formula);
}

static void softmax_grad_write(source_writer *writer, const source_step *step) {
  softmax_grad(writer, step, "(sum_t)g * z", "z * (g - (float)total)");
}
static void log_softmax_grad_write(source_writer *writer, const source_step *step) {
  softmax_grad(writer, step, "g", "g - exp(z) * (float)total");
}

/* loss = top + s - (1 - a) x[label] - a mean(x), the maximum top, and s, the logarithm of the sum
 * of exponentials relative to it. */
static void cross_entropy_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *labels = step->inputs[1];
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  const int64_t ignored = df_attr_int(step, 1);
  const double smoothing = df_attr_float(step, 2);
  source_axes axes = row_axes(writer, x, axis, "j"), of_label = axes, own = axes;
  char from[64];
  for (int32_t k = axis; k + 1 < SOURCE_MOST_AXES; k++)
    memcpy(of_label.names[k], axes.names[k + 1], sizeof axes.names[0]);
  source_element(writer, labels, &of_label, from);
  W("  const long given = %s;\n  const int counts = given != %s;\n", from, N(ignored));
  W("  const long label = counts ? label_of(given, %s, %s, FAULT) : 0;\n", N(x->shape[axis]),
    N(step->number));
  log_sum(writer, x, &axes, axis);
  snprintf(own.names[axis], sizeof own.names[axis], "label");
  source_element(writer, x, &own, from);
  W("  const float s = log((float)total);\n"
    "  sum_t loss = (sum_t)s + %a * (sum_t)(top - %s);\n",
    1 - smoothing, from);
  if (smoothing > 0) {
    W("  sum_t all = 0;\n");
    each(writer, x, &axes, axis, "z");
    W("  all += top - z;\n  }\n  loss += %a * all / %s;\n", smoothing, N(x->shape[axis]));
  }
  W("  v%d_0 = counts ? loss : 0;\n  v%d_1 = top;\n", NUMBER, NUMBER);
  W("  v%d_2 = s;\n", NUMBER);
}

/* dx = dloss (e^(x - top - s) - (1 - a) [class = label] - a / C), an element for each of x. */
static void cross_entropy_grad_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[1];
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  const double smoothing = df_attr_float(step, 2), classes = (double)x->shape[axis];
  const source_axes axes = source_coordinates(writer, "i", "c", x->shape, x->rank);
  source_axes of_row = axes;
  char of[5][64];
  for (int32_t k = axis; k + 1 < SOURCE_MOST_AXES; k++)
    memcpy(of_row.names[k], axes.names[k + 1], sizeof axes.names[0]);
  for (int32_t input = 0; input < 5; input++)
    source_element(writer, step->inputs[input], input == 1 ? &axes : &of_row, of[input]);
  W("  const long given = %s;\n  const int counts = given != %s;\n", of[2],
    N(df_attr_int(step, 1)));
  W("  const long label = counts ? label_of(given, %s, %s, FAULT) : 0;\n", N(x->shape[axis]),
    N(step->number));
  W("  const float scale = counts ? %s : 0;\n", of[0]);
  W("  const float share = exp((%s - %s) - %s) - (label == %s ? %af : 0) - %af / "
    "%s;\n",
    of[1], of[3], of[4], axes.names[axis], 1 - smoothing, smoothing, N((int64_t)classes));
  W("  v%d_0 = scale == 0 ? 0 : share * scale;\n", NUMBER);
}

static int64_t norm_rows(const source_step *step) {
  const df_operand *x = step->inputs[0];
  return df_product(x->shape, 0, df_axis(step, 0, x->rank));
}

/* y = (x - mean) inverse scale + bias, inverse = 1 / sqrt(variance + epsilon), over the axes from
 * |axis| on. */
static void layer_norm_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0];
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  const int64_t count = df_product(x->shape, axis, x->rank);
  source_axes axes = source_coordinates(writer, "i", "c", x->shape, axis), row = {{"i"}};
  source_axes of_row = {{{0}}};
  char from[64], scale[64], bias[64], into[64];
  W("  sum_t mean = 0, squares = 0;\n");
  for (int pass = df_attr_int(step, 2) ? 0 : 1; pass < 3; pass++) {
    W("  for (long j = 0; j < %s; j++) {\n", N(count));
    const source_axes inner = source_coordinates(writer, "j", "s", x->shape + axis, x->rank - axis);
    memcpy(axes.names + axis, inner.names, (size_t)(x->rank - axis) * sizeof axes.names[0]);
    memcpy(of_row.names, inner.names, sizeof of_row.names);
    source_element(writer, x, &axes, from);
    if (pass == 0)
      W("  mean += %s;\n  }\n  mean /= %s;\n", from, N(count));
    else if (pass == 1) {
      W("  const sum_t z = %s - mean;\n  squares += z * z;\n  }\n", from);
      W("  const sum_t inverse = 1 / sqrt((float)(squares / %s + %a));\n", N(count),
        df_attr_float(step, 1));
    } else {
      strcpy(scale, "1");
      strcpy(bias, "0");
      if (step->n_inputs > 1 && source_present(step->inputs[1]))
        source_element(writer, step->inputs[1], &of_row, scale);
      if (step->n_inputs > 2 && source_present(step->inputs[2]))
        source_element(writer, step->inputs[2], &of_row, bias);
      source_result(writer, step->outputs[0], &axes, into);
      W("  %s = (%s - mean) * inverse * %s + %s;\n  }\n", into, from, scale, bias);
    }
  }
  const char *const kept[] = {"mean", "inverse"};
  const int64_t rows_of[] = {norm_rows(step)}, step_of_one[] = {1};
  for (int32_t output = 1; output < 3; output++)
    if (source_present(step->outputs[output])) {
      df_operand one = *step->outputs[output];
      one.rank = 1;
      one.shape = rows_of;
      one.strides = step_of_one;
      source_result(writer, &one, &row, into);
      W("  %s = %s;\n", into, kept[output - 1]);
    }
}

/* clang-format off */
const source_op source_rows[] = {
    {.op = "reduce_sum", .elsewhere = ALL, .operands = "~f32->f32", .write = sum_write},
    {.op = "reduce_sum", .elsewhere = ALL, .operands = "~i64->i64", .write = sum_write},
    {.op = "reduce_mean", .elsewhere = ALL, .operands = "~f32->f32", .write = mean_write},
    {.op = "reduce_prod", .elsewhere = ALL, .operands = "~f32->f32", .write = prod_write},
    {.op = "reduce_max", .elsewhere = ALL, .operands = "~f32->f32", .write = max_write},
    {.op = "reduce_min", .elsewhere = ALL, .operands = "~f32->f32", .write = min_write},
    {.op = "argmax", .elsewhere = ALL, .operands = "~f32->i64", .write = argmax_write,
     .accepts = first_of_equals},
    {.op = "square_sum", .elsewhere = ALL, .operands = "~f32,~f32?->f32",
     .write = square_sum_write},
    {.op = "softmax", .elsewhere = ALL, .operands = "~f32->f32", .inplace = "0<0",
     .kind = SOURCE_ITEMS,
     .write = softmax_write, .items = rows},
    {.op = "log_softmax", .elsewhere = ALL, .operands = "~f32->f32", .inplace = "0<0",
     .kind = SOURCE_ITEMS,
     .write = log_softmax_write, .items = rows},
    {.op = "softmax_grad", .elsewhere = ALL, .operands = "~f32,~f32->f32", .inplace = "0<0,0<1",
     .kind = SOURCE_ITEMS, .write = softmax_grad_write, .items = rows},
    {.op = "log_softmax_grad", .elsewhere = ALL, .operands = "~f32,~f32->f32", .inplace = "0<0,0<1",
     .kind = SOURCE_ITEMS, .write = log_softmax_grad_write, .items = rows},
    {.op = "softmax_cross_entropy", .elsewhere = ALL, .operands = "~f32,~i32|i64->f32,f32?,f32?",
     .write = cross_entropy_write},
    {.op = "softmax_cross_entropy_grad", .elsewhere = ALL,
     .operands = "~f32,~f32,~i32|i64,~f32,~f32->f32",
     .inplace = "0<1", .write = cross_entropy_grad_write},
    {.op = "layer_norm", .elsewhere = ALL, .operands = "~f32,~f32?,~f32?->f32,f32?,f32?",
     .inplace = "0<0",
     .kind = SOURCE_ITEMS, .write = layer_norm_write, .items = norm_rows},
    {0}};
