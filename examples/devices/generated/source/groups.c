/* groups.c: which steps of a segment are computed together, and what is stored of their results. */
#include "source.h"

#include <stdlib.h>

static const source_op *const FAMILIES[] = {source_elementwise, source_products, source_rows};

/* ---- Records --------------------------------------------------------------------------------- */

/* A record, and how its op is written. */
typedef struct record {
  df_kernel kernel; /* first, so that a step's kernel is one of these */
  const source_op *op;
  char name[96];
} record;

const char *source_accepts(const df_node *node) {
  for (int32_t i = 0; i < node->n_inputs; i++)
    if (node->inputs[i]->rank > SOURCE_MOST_AXES)
      return "an operand has more axes than it takes";
  for (int32_t i = 0; i < node->n_outputs; i++)
    if (node->outputs[i]->rank > SOURCE_MOST_AXES)
      return "a result has more axes than it takes";
  return df_accepts_elements(node);
}

/* Steps are run by the device's own segments. */
static df_status run(const df_call *call) {
  return df_fail(call, DF_UNSUPPORTED, "a kernel that is text can't be called");
}

int64_t source_kernels(const char *device, const df_kernel *const **records) {
  enum { MOST = 128 };
  static record made[MOST];
  static const df_kernel *listed[MOST];
  int64_t count = 0;
  for (size_t family = 0; family < sizeof FAMILIES / sizeof *FAMILIES; family++)
    for (const source_op *op = FAMILIES[family]; op->op && count < MOST; op++) {
      record *into = &made[count];
      snprintf(into->name, sizeof into->name, "%s %s %s", device, op->op, op->operands);
      into->op = op;
      into->kernel = (df_kernel){.struct_size = sizeof(df_kernel),
                                 .op = op->op,
                                 .name = into->name,
                                 .operands = op->operands,
                                 .inplace = op->inplace,
                                 .accepts = op->accepts ? op->accepts : source_accepts,
                                 .run = run};
      listed[count++] = &into->kernel;
    }
  *records = listed;
  return count;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static int overlap(const df_operand *a, const df_operand *b) {
  if (a->arena < 0 || a->arena != b->arena)
    return 0;
  int64_t begin[2] = {a->offset, b->offset};
  const df_operand *const of[] = {a, b};
  for (int k = 0; k < 2; k++)
    for (int32_t axis = 0; axis < of[k]->rank; axis++)
      if (of[k]->strides[axis] < 0) /* the first element isn't the lowest */
        begin[k] += of[k]->strides[axis] * (of[k]->shape[axis] - 1) * df_item_bytes(of[k]->dtype);
  return begin[0] < begin[1] + b->bytes && begin[1] < begin[0] + a->bytes;
}

/* Whether element i of |a| lies where element i of |b| does, for elements of a result's shape. */
static int aligned(const df_operand *a, const df_operand *b) {
  if (a->offset != b->offset || df_item_bytes(a->dtype) != df_item_bytes(b->dtype) ||
      a->rank != b->rank)
    return 0;
  for (int32_t axis = 0; axis < a->rank; axis++)
    if (a->shape[axis] != b->shape[axis] ||
        (a->shape[axis] != 1 && a->strides[axis] != b->strides[axis]))
      return 0;
  return 1;
}

static source_step step_of(const df_segment *of, int32_t index) {
  const df_step *step = of->steps[index];
  const df_operand *const *inputs = of->operands + step->first_operand;
  return (source_step){.inputs = inputs,
                       .outputs = inputs + step->n_inputs,
                       .attributes = step->attributes,
                       .n_inputs = step->n_inputs,
                       .n_outputs = step->n_outputs,
                       .n_attributes = step->n_attributes,
                       .number = index};
}

static const source_op *op_of(const df_segment *of, int32_t index) {
  return ((const record *)of->steps[index]->kernel)->op;
}

/* Which inputs are read at the item's element alone. */
static int reads_here(const source_op *op, const source_step *step, int32_t input) {
  const df_operand *operand = step->inputs[input], *y = step->outputs[0];
  int same = operand->rank == y->rank;
  for (int32_t axis = 0; same && axis < y->rank; axis++)
    same = operand->shape[axis] == y->shape[axis];
  return same && !(op->elsewhere >> input & 1);
}

/* Whether the steps from |first| to |last| have few enough arenas. */
static int fits(const df_segment *of, int32_t first, int32_t last) {
  int32_t seen[SOURCE_MOST_ARENAS], count = 0;
  for (int32_t index = first; index <= last; index++) {
    const source_step step = step_of(of, index);
    for (int32_t k = 0; k < step.n_inputs + step.n_outputs; k++) {
      int32_t at = 0;
      while (at < count && seen[at] != step.inputs[k]->arena)
        at++;
      if (at == SOURCE_MOST_ARENAS)
        return 0;
      if (at == count)
        seen[count++] = step.inputs[k]->arena; /* outputs follow inputs */
    }
  }
  return 1;
}

/* Whether a step can be computed with those before it since |first|: their shapes agree, it reads
 * of their results its own element, and what it overwrites isn't read by other items. */
static int joins(const df_segment *of, int32_t first, int32_t index) {
  const source_step step = step_of(of, index), begin = step_of(of, first);
  const source_op *op = op_of(of, index);
  if (index - first >= SOURCE_MOST_STEPS || op->kind != SOURCE_ELEMENTS ||
      op_of(of, first)->kind != SOURCE_ELEMENTS || !fits(of, first, index) ||
      begin.outputs[0]->rank != step.outputs[0]->rank)
    return 0;
  for (int32_t axis = 0; axis < step.outputs[0]->rank; axis++)
    if (begin.outputs[0]->shape[axis] != step.outputs[0]->shape[axis])
      return 0;
  for (int32_t before = first; before < index; before++) {
    const source_step earlier = step_of(of, before);
    for (int32_t y = 0; y < earlier.n_outputs; y++) {
      for (int32_t x = 0; x < step.n_inputs; x++)
        if (overlap(earlier.outputs[y], step.inputs[x]) &&
            !(reads_here(op, &step, x) && earlier.outputs[y]->dtype == step.inputs[x]->dtype &&
              aligned(earlier.outputs[y], step.inputs[x])))
          return 0;
      for (int32_t z = 0; z < step.n_outputs; z++)
        if (overlap(earlier.outputs[y], step.outputs[z]) &&
            !aligned(earlier.outputs[y], step.outputs[z]))
          return 0;
    }
    for (int32_t x = 0; x < earlier.n_inputs; x++)
      for (int32_t z = 0; z < step.n_outputs; z++)
        if (overlap(earlier.inputs[x], step.outputs[z]) &&
            !(reads_here(op_of(of, before), &earlier, x) &&
              aligned(earlier.inputs[x], step.outputs[z])))
          return 0;
  }
  return 1;
}

/* Whether a step from |end| on reads a result. */
static int is_read(const df_segment *of, const df_operand *result, int32_t end) {
  for (int32_t index = end; index < of->n_steps; index++) {
    const source_step step = step_of(of, index);
    for (int32_t x = 0; x < step.n_inputs; x++)
      if (source_present(step.inputs[x]) && step.inputs[x]->value == result->value)
        return 1;
  }
  return 0;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void write_expression(source_writer *writer, const source_op *op, const source_step *step) {
  const df_operand *y = step->outputs[0];
  const source_axes axes = source_coordinates(writer, "i", "c", y->shape, y->rank);
  char from[64];
  for (int32_t input = 0; input < step->n_inputs; input++) {
    source_here(writer, step, input, &axes, from);
    W("  const %s %c = %s;\n", source_type(step->inputs[input]->dtype), 'a' + (int)input, from);
  }
  for (int32_t k = 0; k < step->n_attributes && k < 2; k++)
    if (step->attributes[k]->kind == DF_ATTR_FLOAT)
      W("  const float %s = %af;\n", k ? "beta" : "alpha", df_attr_float(step, k));
  if (y->dtype != DF_FLOAT32)
    W("  typedef %s U;\n", y->dtype == DF_INT64 ? "ulong" : "uint");
  W("  v%d_0 = %s;\n", (int)step->name, op->expression);
}

static void write_step(source_writer *writer, const source_op *op, const source_step *step) {
  if (op->kind == SOURCE_ELEMENTS)
    for (int32_t y = 0; y < step->n_outputs; y++) {
      const df_operand *result = step->outputs[y];
      W("  %s v%d_%d;\n", source_type(result->dtype), (int)step->name, (int)y);
    }
  W("  {\n");
  if (op->expression)
    write_expression(writer, op, step);
  else
    op->write(writer, step);
  W("  }\n");
  for (int32_t y = 0; op->kind == SOURCE_ELEMENTS && y < step->n_outputs; y++) {
    writer->locals[writer->n_locals].operand = step->outputs[y];
    writer->locals[writer->n_locals].step = step->name;
    writer->locals[writer->n_locals++].output = y;
  }
}

/* Element i of a result goes to memory: results lie in row-major order. */
static void write_result(source_writer *writer, const source_step *step, int32_t output) {
  const int64_t elements[] = {df_operand_elements(step->outputs[output])}, one[] = {1};
  const source_axes axes = {{"i"}};
  df_operand flat = *step->outputs[output];
  char into[64];
  flat.rank = 1;
  flat.shape = elements;
  flat.strides = one;
  W("  {\n");
  source_result(writer, &flat, &axes, into);
  W("  %s = v%d_%d;\n  }\n", into, (int)step->name, (int)output);
}

static df_status write_group(const df_segment *of, int32_t first, source_program *program,
                             source_group *group) {
  source_text text = {0};
  source_writer writer = {.text = &text, .group = group};
  int32_t end = first + 1;
  while (end < of->n_steps && joins(of, first, end))
    end++;
  const source_step leader = step_of(of, first);
  const source_op *kind = op_of(of, first);
  group->n_steps = end - first;
  group->items =
      kind->kind == SOURCE_ITEMS ? kind->items(&leader) : df_operand_elements(leader.outputs[0]);
  for (int32_t index = first; index < end; index++) {
    source_step step = step_of(of, index);
    step.name = index - first;
    write_step(&writer, op_of(of, index), &step);
    for (int32_t y = 0; y < step.n_outputs; y++) {
      if (!source_present(step.outputs[y]))
        continue;
      const int live = (step.outputs[y]->flags & DF_LIVE_OUT) != 0;
      const int stored = live || kind->kind == SOURCE_ITEMS || is_read(of, step.outputs[y], end);
      program->n_values++;
      program->n_live += live;
      program->n_scratch += stored && !live;
      if (stored && kind->kind == SOURCE_ELEMENTS)
        write_result(&writer, &step, y);
    }
  }
  group->text = text.data;
  return text.failed || writer.failed ? DF_OUT_OF_MEMORY : DF_OK;
}

df_status source_write(const df_segment *segment, source_program *program, df_error *error) {
  *program =
      (source_program){.groups = calloc((size_t)segment->n_steps + 1, sizeof *program->groups)};
  df_status status = program->groups ? DF_OK : DF_OUT_OF_MEMORY;
  for (int32_t first = 0; !status && first < segment->n_steps;) {
    source_group *group = &program->groups[program->n_groups++];
    status = write_group(segment, first, program, group);
    first += group->n_steps;
  }
  if (status) {
    source_free(program);
    error->code = status;
  }
  return status;
}

void source_free(source_program *program) {
  for (int32_t k = 0; k < program->n_groups; k++) {
    free(program->groups[k].text);
    free(program->groups[k].numbers);
  }
  free(program->groups);
  *program = (source_program){0};
}
