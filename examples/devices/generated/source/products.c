/* products.c: sums of products for each element of the result: matrices and convolutions. */
#include "source.h"

#define NUMBER ((int)step->name)
enum { ALL = 15 }; /* inputs */

static void matmul_write(source_writer *writer, const source_step *step) {
  const df_operand *a = step->inputs[0], *b = step->inputs[1], *y = step->outputs[0];
  source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  source_axes left = axes, right = axes;
  char x[64], z[64];
  snprintf(left.names[y->rank - 1], sizeof left.names[0], "k");
  snprintf(right.names[y->rank - 2], sizeof right.names[0], "k");
  W("  sum_t sum%d = 0;\n  for (long k = 0; k < %s; k++) {\n", NUMBER, N(a->shape[a->rank - 1]));
  source_broadcast(writer, a, &left, y->rank, x);
  source_broadcast(writer, b, &right, y->rank, z);
  W("  sum%d += (sum_t)%s * %s;\n  }\n  v%d_0 = sum%d;\n", NUMBER, x, z, NUMBER, NUMBER);
}

/* The window of a convolution or pool: its attributes in this order begin at |first|. */
typedef struct window {
  const int64_t *strides, *pads, *dilations;
  int32_t axes;
} window;

static window window_of(const source_step *step, int32_t first, int32_t rank) {
  return (window){.strides = df_attr_ints(step, first, NULL),
                  .pads = df_attr_ints(step, first + 1, NULL),
                  .dilations = df_attr_ints(step, first + 2, NULL),
                  .axes = rank - 2};
}

/* x<axis> = y stride + tap dilation - pad, and on with the next tap where that isn't in x. */
static void to_input(source_writer *writer, const window *w, int32_t axis, const char *y,
                     const char *tap, int64_t size) {
  W("  const long x%d = %s * %s + %s * %s - %s;\n", (int)axis, y, N(w->strides[axis]), tap,
    N(w->dilations[axis]), N(w->pads[axis]));
  W("  if (x%d < 0 || x%d >= %s) continue;\n", (int)axis, (int)axis, N(size));
}

static void name(source_axes *axes, int32_t axis, const char *prefix, int32_t number) {
  snprintf(axes->names[axis], sizeof axes->names[axis], "%s%d", prefix, (int)number);
}

static void conv_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *w = step->inputs[1], *y = step->outputs[0];
  const window win = window_of(step, 0, x->rank);
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  source_axes of_x = {{"c0", "xc"}}, of_w = {{"c1", "wc"}};
  char left[64], right[64];
  W("  sum_t sum%d = 0;\n  for (long wc = 0; wc < %s; wc++) {\n", NUMBER, N(w->shape[1]));
  W("  const long xc = c1 / %s * %s + wc;\n", N(w->shape[0] / df_attr_int(step, 3)),
    N(w->shape[1]));
  for (int32_t axis = 0; axis < win.axes; axis++) {
    name(&of_x, axis + 2, "x", axis);
    name(&of_w, axis + 2, "k", axis);
    W("  for (long k%d = 0; k%d < %s; k%d++) {\n", (int)axis, (int)axis, N(w->shape[axis + 2]),
      (int)axis);
    to_input(writer, &win, axis, axes.names[axis + 2], of_w.names[axis + 2], x->shape[axis + 2]);
  }
  source_element(writer, x, &of_x, left);
  source_element(writer, w, &of_w, right);
  W("  sum%d += (sum_t)%s * %s;\n", NUMBER, left, right);
  for (int32_t axis = 0; axis <= win.axes; axis++)
    W("  }\n");
  if (step->n_inputs > 2 && source_present(step->inputs[2])) {
    const source_axes channel = {{"c1"}};
    source_element(writer, step->inputs[2], &channel, left);
    W("  sum%d += %s;\n", NUMBER, left);
  }
  W("  v%d_0 = sum%d;\n", NUMBER, NUMBER);
}

/* dx = the sum over the windows that read x. */
static void grad_input_write(source_writer *writer, const source_step *step) {
  const df_operand *dy = step->inputs[0], *w = step->inputs[1], *dx = step->outputs[0];
  const window win = window_of(step, 1, dx->rank);
  const source_axes axes = source_coordinates(writer, "i", "c", dx->shape, dx->rank);
  source_axes of_dy = {{"c0", "o"}}, of_w = {{"o", "wc"}};
  const source_word filters = source_number(writer, w->shape[0] / df_attr_int(step, 4));
  char left[64], right[64];
  W("  const long wc = c1 %% %s;\n  sum_t sum%d = 0;\n", N(w->shape[1]), NUMBER);
  W("  for (long f = 0; f < %s; f++) {\n", filters.text);
  W("  const long o = c1 / %s * %s + f;\n", N(w->shape[1]), filters.text);
  for (int32_t axis = 0; axis < win.axes; axis++) {
    const int a = (int)axis;
    name(&of_dy, axis + 2, "y", axis);
    name(&of_w, axis + 2, "k", axis);
    W("  for (long k%d = 0; k%d < %s; k%d++) {\n", a, a, N(w->shape[axis + 2]), a);
    W("  const long t%d = %s + %s - k%d * %s;\n", a, axes.names[axis + 2], N(win.pads[axis]), a,
      N(win.dilations[axis]));
    W("  const long y%d = t%d / %s;\n", a, a, N(win.strides[axis]));
    W("  if (t%d < 0 || t%d %% %s != 0 || y%d >= %s) continue;\n", a, a, N(win.strides[axis]), a,
      N(dy->shape[axis + 2]));
  }
  source_element(writer, dy, &of_dy, left);
  source_element(writer, w, &of_w, right);
  W("  sum%d += (sum_t)%s * %s;\n", NUMBER, left, right);
  for (int32_t axis = 0; axis <= win.axes; axis++)
    W("  }\n");
  W("  v%d_0 = sum%d;\n", NUMBER, NUMBER);
}

static void grad_weight_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *dy = step->inputs[1], *dw = step->outputs[0];
  const window win = window_of(step, 1, x->rank);
  const source_axes axes = source_coordinates(writer, "i", "c", dw->shape, dw->rank);
  source_axes of_x = {{"n", "xc"}}, of_dy = {{"n", "c0"}};
  char left[64], right[64];
  W("  const long xc = c0 / %s * %s + c1;\n", N(dw->shape[0] / df_attr_int(step, 4)),
    N(dw->shape[1]));
  W("  sum_t sum%d = 0;\n  for (long n = 0; n < %s; n++) {\n", NUMBER, N(x->shape[0]));
  for (int32_t axis = 0; axis < win.axes; axis++) {
    name(&of_x, axis + 2, "x", axis);
    name(&of_dy, axis + 2, "y", axis);
    W("  for (long y%d = 0; y%d < %s; y%d++) {\n", (int)axis, (int)axis, N(dy->shape[axis + 2]),
      (int)axis);
    to_input(writer, &win, axis, of_dy.names[axis + 2], axes.names[axis + 2], x->shape[axis + 2]);
  }
  source_element(writer, x, &of_x, left);
  source_element(writer, dy, &of_dy, right);
  W("  sum%d += (sum_t)%s * %s;\n", NUMBER, left, right);
  for (int32_t axis = 0; axis <= win.axes; axis++)
    W("  }\n");
  W("  v%d_0 = sum%d;\n", NUMBER, NUMBER);
}

/* The largest of each window, of which a NaN is larger than all, and where it lies in its plane. */
static void max_pool_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *y = step->outputs[0];
  const int64_t *kernel = df_attr_ints(step, 0, NULL);
  const window win = window_of(step, 1, x->rank);
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  source_axes of_x = {{"c0", "c1"}};
  char from[64];
  W("  long at%d = -1;\n  float most%d = 0;\n", NUMBER, NUMBER);
  for (int32_t axis = 0; axis < win.axes; axis++) {
    char tap[16];
    snprintf(tap, sizeof tap, "k%d", (int)axis);
    name(&of_x, axis + 2, "x", axis);
    W("  for (long %s = 0; %s < %s; %s++) {\n", tap, tap, N(kernel[axis]), tap);
    to_input(writer, &win, axis, axes.names[axis + 2], tap, x->shape[axis + 2]);
  }
  source_element(writer, x, &of_x, from);
  W("  const float z = %s;\n", from);
  W("  if (at%d < 0 || z > most%d || (z != z && most%d == most%d)) {\n  most%d "
    "= z;\n  at%d = "
    "x0;\n",
    NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER);
  for (int32_t axis = 1; axis < win.axes; axis++)
    W("  at%d = at%d * %s + x%d;\n", NUMBER, NUMBER, N(x->shape[axis + 2]), (int)axis);
  W("  }\n");
  for (int32_t axis = 0; axis < win.axes; axis++)
    W("  }\n");
  W("  v%d_0 = most%d;\n  v%d_1 = at%d;\n", NUMBER, NUMBER, NUMBER, NUMBER);
}

/* An item is a plane of dx: zeros, to which each dy is added where its maximum was. */
static int64_t planes(const source_step *step) { return df_product(step->outputs[0]->shape, 0, 2); }

static void max_pool_grad_write(source_writer *writer, const source_step *step) {
  const df_operand *dy = step->inputs[0], *indices = step->inputs[1], *dx = step->outputs[0];
  const source_axes out = source_coordinates(writer, "i", "c", dx->shape, 2);
  source_axes axes, plane = {{"plane"}};
  char gradient[64], index[64], into[64];
  const int64_t sizes[] = {df_product(dx->shape, 2, dx->rank)}, step_of_one[] = {1};
  df_operand row = *dx;
  row.rank = 1;
  row.shape = sizes;
  row.strides = step_of_one;
  W("  for (long j = 0; j < %s; j++) {\n  const long plane = i * %s + j;\n", N(sizes[0]),
    N(sizes[0]));
  source_result(writer, &row, &plane, into);
  W("  %s = 0;\n  }\n", into);
  W("  for (long j = 0; j < %s; j++) {\n", N(df_product(dy->shape, 2, dy->rank)));
  axes = source_coordinates(writer, "j", "s", dy->shape + 2, dy->rank - 2);
  memmove(axes.names + 2, axes.names, sizeof axes.names - 2 * sizeof axes.names[0]);
  memcpy(axes.names, out.names, 2 * sizeof axes.names[0]);
  source_element(writer, dy, &axes, gradient);
  source_element(writer, indices, &axes, index);
  W("  const long plane = i * %s + checked(%s, %s, %s, FAULT);\n", N(sizes[0]), index, N(sizes[0]),
    N(step->number));
  source_result(writer, &row, &plane, into);
  W("  %s += %s;\n  }\n", into, gradient);
}

const source_op source_products[] = {
    {.op = "matmul", .elsewhere = ALL, .operands = "~f32,~f32->f32", .write = matmul_write},
    {.op = "conv", .elsewhere = ALL, .operands = "~f32,~f32,~f32?->f32", .write = conv_write},
    {.op = "conv_grad_input",
     .elsewhere = ALL,
     .operands = "~f32,~f32->f32",
     .write = grad_input_write},
    {.op = "conv_grad_weight",
     .elsewhere = ALL,
     .operands = "~f32,~f32->f32",
     .write = grad_weight_write},
    {.op = "max_pool", .elsewhere = ALL, .operands = "~f32->f32,i32?", .write = max_pool_write},
    {.op = "max_pool_grad",
     .elsewhere = ALL,
     .operands = "~f32,~i32->f32",
     .kind = SOURCE_ITEMS,
     .write = max_pool_grad_write,
     .items = planes},
    {0}};
