/* elementwise.c: ops whose result has an element for each of an operand. */
#include "source.h"

/* low and high may be absent. */
static void clip_write(source_writer *writer, const source_step *step) {
  const df_operand *y = step->outputs[0];
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  char x[64], bound[64];
  source_here(writer, step, 0, &axes, x);
  W("  v%d_0 = %s;\n", (int)step->name, x);
  for (int32_t input = 1; input < step->n_inputs; input++)
    if (source_present(step->inputs[input])) {
      source_here(writer, step, input, &axes, bound);
      W("  v%d_0 = %s(v%d_0, %s);\n", (int)step->name, input == 1 ? "MAXIMUM" : "MINIMUM",
        (int)step->name, bound);
    }
}

/* dx = dy slope(x), by the error function or by the usual formula with tanh. */
static void gelu_write(source_writer *writer, const source_step *step) {
  const int gradient = step->n_inputs == 2;
  const df_operand *y = step->outputs[0];
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  char first[64], second[64];
  source_here(writer, step, 0, &axes, first);
  if (gradient)
    source_here(writer, step, 1, &axes, second);
  W("  const float x%d = %s;\n", (int)step->name, gradient ? second : first);
  W("  v%d_0 = %s%sgelu%s%s(x%d);\n", (int)step->name, gradient ? first : "", gradient ? " * " : "",
    df_attr_is(step, 0, "tanh") ? "_tanh" : "", gradient ? "_slope" : "", (int)step->name);
}

/* g = scale grad + decay p; v = momentum v + g; p - rate (v, or g + momentum v). */
static void sgd_write(source_writer *writer, const source_step *step) {
  const df_operand *y = step->outputs[0];
  const int n = (int)step->name, moves = source_present(step->inputs[2]);
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  const source_axes hyper[2] = {{{"0"}}, {{"1"}}};
  const double momentum = df_attr_float(step, 0);
  char param[64], grad[64], velocity[64], rate[64], decay[64], scale[64];
  source_here(writer, step, 0, &axes, param);
  source_here(writer, step, 1, &axes, grad);
  source_element(writer, step->inputs[3], &hyper[0], rate);
  source_element(writer, step->inputs[3], &hyper[1], decay);
  source_element(writer, step->inputs[4], &axes, scale);
  W("  float g%d = %s * %s + %s * %s;\n", n, scale, grad, decay, param);
  if (moves) {
    source_here(writer, step, 2, &axes, velocity);
    W("  v%d_1 = %af * %s + g%d;\n", n, momentum, velocity, n);
    if (df_attr_int(step, 1))
      W("  g%d += %af * v%d_1;\n", n, momentum, n);
    else
      W("  g%d = v%d_1;\n", n, n);
  }
  W("  v%d_0 = %s - %s * g%d;\n", n, param, rate, n);
  W("  if (!(%s - %s == 0.0f)) { /* it isn't finite: nothing changes */\n", scale, scale);
  W("    v%d_0 = %s;\n", n, param);
  if (moves)
    W("    v%d_1 = %s;\n", n, velocity);
  W("  }\n");
}

/* The order of torch.optim.AdamW; hyper: rate, decay, 1 - beta1^t, 1 - beta2^t. */
static void adamw_write(source_writer *writer, const source_step *step) {
  const df_operand *y = step->outputs[0];
  const int n = (int)step->name;
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  const double beta1 = df_attr_float(step, 0), beta2 = df_attr_float(step, 1);
  char of[4][64], hyper[4][64], scale[64];
  for (int32_t input = 0; input < 4; input++) {
    source_axes at = {{{0}}};
    snprintf(at.names[0], sizeof at.names[0], "%d", (int)input);
    source_here(writer, step, input, &axes, of[input]);
    source_element(writer, step->inputs[4], &at, hyper[input]);
  }
  source_element(writer, step->inputs[5], &axes, scale);
  W("  const float g%d = %s * %s;\n", n, scale, of[1]);
  W("  v%d_1 = %af * %s + %af * g%d;\n", n, beta1, of[2], 1 - beta1, n);
  W("  v%d_2 = %af * %s + %af * (g%d * g%d);\n", n, beta2, of[3], 1 - beta2, n, n);
  W("  v%d_0 = %s * (1.0f - %s * %s) - %s / %s * v%d_1 / (sqrt(v%d_2) / "
    "sqrt(%s) + %af);\n",
    n, of[0], hyper[0], hyper[1], hyper[0], hyper[2], n, n, hyper[3], df_attr_float(step, 2));
  W("  if (!(%s - %s == 0.0f)) { /* it isn't finite: nothing changes */\n", scale, scale);
  W("    v%d_0 = %s;\n    v%d_1 = %s;\n    v%d_2 = %s;\n  }\n", n, of[0], n, of[2], n, of[3]);
}

/* An element of x for each index along an axis. */
static void gather_write(source_writer *writer, const source_step *step) {
  const df_operand *x = step->inputs[0], *indices = step->inputs[1], *y = step->outputs[0];
  const int n = (int)step->name;
  const int32_t axis = (int32_t)df_axis(step, 0, x->rank);
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  source_axes own = {{{0}}}, of_index = {{{0}}};
  for (int32_t k = 0; k < x->rank; k++)
    memcpy(own.names[k], axes.names[k < axis ? k : k + indices->rank - 1], sizeof own.names[k]);
  for (int32_t k = 0; k < indices->rank; k++)
    memcpy(of_index.names[k], axes.names[axis + k], sizeof of_index.names[k]);
  snprintf(own.names[axis], sizeof own.names[axis], "x%d", n);
  char from[64];
  source_element(writer, indices, &of_index, from);
  const source_word size = source_number(writer, x->shape[axis]);
  W("  const long x%d = checked(%s, %s, %s, FAULT);\n", n, from, size.text, N(step->number));
  source_element(writer, x, &own, from);
  W("  v%d_0 = %s;\n", n, from);
}

#define UNARY(name, expression_)                                                                   \
  {.op = name, .operands = "~f32->f32", .inplace = "0<0", .expression = expression_}
#define BINARY(name, expression_)                                                                  \
  {.op = name, .operands = "~f32,~f32->f32", .inplace = "0<0,0<1", .expression = expression_}
/* Wraps around: U is the type without sign. */
#define INTEGER(name, expression_)                                                                 \
  {.op = name, .operands = "~i32,~i32->i32", .inplace = "0<0,0<1", .expression = expression_}, {   \
    .op = name, .operands = "~i64,~i64->i64", .inplace = "0<0,0<1", .expression = expression_      \
  }
#define COMPARISON(name, expression_)                                                              \
  {.op = name, .operands = "~f32,~f32->bool", .expression = expression_},                          \
      {.op = name, .operands = "~i32,~i32->bool", .expression = expression_}, {                    \
    .op = name, .operands = "~i64,~i64->bool", .expression = expression_                           \
  }
#define LOGIC(name, expression_)                                                                   \
  {.op = name, .operands = "~bool,~bool->bool", .expression = expression_}

/* clang-format off */
const source_op source_elementwise[] = {
    UNARY("neg", "-a"), UNARY("abs", "fabs(a)"), UNARY("exp", "exp(a)"), UNARY("log", "log(a)"),
    UNARY("sqrt", "sqrt(a)"), UNARY("reciprocal", "1.0f / a"), UNARY("sin", "sin(a)"),
    UNARY("cos", "cos(a)"), UNARY("tanh", "tanh(a)"), UNARY("erf", "erf(a)"),
    UNARY("floor", "floor(a)"), UNARY("ceil", "ceil(a)"), UNARY("round", "rint(a)"),
    UNARY("sign", "a != a ? a : (float)((a > 0) - (a < 0))"),
    UNARY("relu", "a < 0 ? 0 : a"), UNARY("sigmoid", "1.0f / (1.0f + exp(-a))"),
    UNARY("softplus", "(a < 0 ? 0 : a) + log1p(exp(-fabs(a)))"),
    UNARY("softsign", "a / (1.0f + fabs(a))"),
    UNARY("leaky_relu", "a < 0 ? alpha * a : a"), UNARY("elu", "a < 0 ? alpha * expm1(a) : a"),
    BINARY("add", "a + b"), BINARY("sub", "a - b"), BINARY("mul", "a * b"), BINARY("div", "a / b"),
    BINARY("maximum", "MAXIMUM(a, b)"), BINARY("minimum", "MINIMUM(a, b)"),
    BINARY("pow", "pow(a, b)"), BINARY("relu_grad", "b > 0 ? a : 0"),
    INTEGER("add", "(U)a + (U)b"), INTEGER("sub", "(U)a - (U)b"), INTEGER("mul", "(U)a * (U)b"),
    COMPARISON("equal", "a == b"), COMPARISON("less", "a < b"), COMPARISON("greater", "a > b"),
    COMPARISON("less_equal", "a <= b"), COMPARISON("greater_equal", "a >= b"),
    LOGIC("equal", "a == b"), LOGIC("logical_and", "(a != 0) & (b != 0)"),
    LOGIC("logical_or", "(a != 0) | (b != 0)"), LOGIC("logical_xor", "(a != 0) ^ (b != 0)"),
    {.op = "logical_not", .operands = "~bool->bool", .inplace = "0<0", .expression = "a == 0"},
    {.op = "where", .operands = "~bool,~f32,~f32->f32", .inplace = "0<1,0<2",
     .expression = "a ? b : c"},
    {.op = "where", .operands = "~bool,~i64,~i64->i64", .inplace = "0<1,0<2",
     .expression = "a ? b : c"},
    {.op = "cast", .operands = "~i32|i64|bool->f32", .expression = "a"},
    {.op = "cast", .operands = "~f32|i32|i64|bool->bool", .expression = "a != 0"},
    {.op = "cast", .operands = "~i32|i64|bool->i32|i64", .expression = "a"},
    {.op = "copy", .operands = "~f32->f32", .inplace = "0<0", .expression = "a"},
    {.op = "copy", .operands = "~i32->i32", .inplace = "0<0", .expression = "a"},
    {.op = "copy", .operands = "~i64->i64", .inplace = "0<0", .expression = "a"},
    {.op = "copy", .operands = "~bool->bool", .inplace = "0<0", .expression = "a"},
    {.op = "clip", .operands = "~f32,~f32?,~f32?->f32", .inplace = "0<0", .write = clip_write},
    {.op = "gelu", .operands = "~f32->f32", .inplace = "0<0", .write = gelu_write},
    {.op = "gelu_grad", .operands = "~f32,~f32->f32", .inplace = "0<0,0<1", .write = gelu_write},
    {.op = "sgd_step", .operands = "~f32,~f32,~f32?,~f32,~f32->f32,f32?", .inplace = "0<0,1<2",
     .elsewhere = 8, .write = sgd_write},
    {.op = "adamw_step", .operands = "~f32,~f32,~f32,~f32,~f32,~f32->f32,f32,f32",
     .inplace = "0<0,1<2,2<3", .elsewhere = 16, .write = adamw_write},
    {.op = "gather", .operands = "~f32,~i32|i64->f32", .elsewhere = 3, .write = gather_write},
    {0}};
