/* executor_test.c: the default executor: what a kernel is given, slots, loops, errors, cancelling.
 */
#include "check.h"
#include "segment.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

static const int64_t TWO[1] = {2};
static const int64_t THREE[1] = {3};
static const int64_t NOTHING[1] = {0};

/* out = x + y, elementwise, over the strides given. */
static df_status run_add(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->inputs[1], *out = call->outputs[0];
  for (int64_t i = 0; i < out->shape[0]; i++)
    ((double *)out->data)[i * out->strides[0]] =
        ((double *)x->data)[i * x->strides[0]] + ((double *)y->data)[i * y->strides[0]];
  return DF_OK;
}

static const df_kernel ADD = {.struct_size = sizeof(df_kernel), .name = "add", .run = run_add};

/* Runs |segment| once. */
static df_status run_once(const builder *b, const df_run *given, df_error *error) {
  void *prepared = NULL;
  *error = (df_error){0};
  df_status status = df_segment_prepare(NULL, &b->segment, &prepared, error);
  if (status)
    return status;
  df_run run = given ? *given : (df_run){0};
  run.struct_size = sizeof run;
  status = df_segment_run(NULL, prepared, &run, error);
  df_segment_release(NULL, prepared);
  return status;
}

/* ---- What a kernel is given ----------------------------------------------------------------- */

static df_call seen;
static df_tensor seen_inputs[3], seen_output;
static void *seen_prepacked[2];
static int64_t seen_offsets[2];

static df_status run_look(const df_call *call) {
  seen = *call;
  for (int i = 0; i < 3; i++)
    seen_inputs[i] = *call->inputs[i];
  seen_output = *call->outputs[0];
  memcpy(seen_prepacked, call->prepacked, sizeof seen_prepacked);
  if (call->prepacked_offsets)
    memcpy(seen_offsets, call->prepacked_offsets, sizeof seen_offsets);
  return DF_OK;
}

static void test_a_kernel_is_given_its_operands(void) {
  const df_kernel look = {.struct_size = sizeof(df_kernel), .name = "look", .run = run_look};
  const df_attribute attribute = {.struct_size = sizeof attribute, .kind = DF_ATTR_INT, .i = 7};
  const df_attribute *const attributes = &attribute;
  double memory[16] = {0}, prepacked[8] = {0};
  builder b;
  begin(&b, 1);
  int32_t a = arena(&b, memory, sizeof memory, -1), p = arena(&b, prepacked, sizeof prepacked, -1);
  df_step *step = add_step(&b, &look, 3, 1);
  step->n_prepacks = 2;
  step->state = &b;
  step->attributes = &attributes;
  step->n_attributes = 1;
  add_operand(&b, doubles(a, 2, THREE));
  add_operand(&b, absent());
  add_operand(&b, doubles(-1, 0, NOTHING));
  add_operand(&b, doubles(a, 8, TWO));
  add_operand(&b, doubles(a, 10, THREE));
  add_operand(&b, doubles(p, 0, TWO));
  add_operand(&b, doubles(p, 4, TWO));
  df_error error;
  int64_t calls = 5;
  CHECK(run_once(&b, &(df_run){.calls = &calls}, &error) == DF_OK);
  CHECK(calls == 6);
  CHECK(seen.struct_size == sizeof(df_call) && seen.n_inputs == 3 && seen.n_outputs == 1);
  CHECK(seen_inputs[0].data == &memory[2] && seen_inputs[0].dtype == DF_FLOAT64);
  CHECK(seen_inputs[0].bytes == 24 && seen_inputs[0].item_bytes == 8 &&
        seen_inputs[0].shape == THREE && seen_inputs[0].strides == ONE);
  CHECK(seen_inputs[1].data == NULL && seen_inputs[1].dtype == DF_NONE);
  CHECK(seen_inputs[2].data == NULL &&
        seen_inputs[2].dtype == DF_FLOAT64); /* present, without elements */
  CHECK(seen_inputs[2].shape == NOTHING && seen_inputs[2].rank == 1);
  CHECK(seen_output.data == &memory[8]);
  CHECK(seen.workspace == &memory[10]);
  CHECK(seen_prepacked[0] == &prepacked[0] && seen_prepacked[1] == &prepacked[4]);
  CHECK(seen.state == &b && seen.attributes == &attributes && seen.n_attributes == 1);
  CHECK(seen.host == df_host_table() && seen.threads == 2 && seen.step == 0 && seen.error);
}

static df_status run_see(const df_call *call) {
  seen = *call;
  return DF_OK;
}

/* A plugin of a newer contract calls with larger tables; one that sets no size, not at all. */
static void test_tables_of_other_sizes_are_read_as_far_as_they_go(void) {
  double memory[2] = {1, 2};
  builder b;
  begin(&b, 1);
  int32_t a = arena(&b, memory, sizeof memory, -1);
  df_kernel kernel = {.struct_size = sizeof(df_kernel), .name = "see", .run = run_see};
  add_binary(&b, &kernel, doubles(a, 0, ONE), doubles(a, 0, ONE), doubles(a, 1, ONE));
  int stream;
  df_fault fault;
  const uint32_t sizes[] = {sizeof(df_run), sizeof(df_run) + 16, 0, offsetof(df_run, before)};
  for (int i = 0; i < 4; i++) {
    struct {
      df_run run;
      int64_t later[2]; /* what a newer contract knows */
    } grown = {.run = {.struct_size = sizes[i], .stream = &stream, .fault = &fault}};
    if (i == 3) /* of an earlier contract, which had nothing behind it */
      memset(&grown.run.before, 0xff, sizeof grown.run.before + sizeof grown.run.context);
    void *prepared = NULL;
    df_error error = {0};
    b.segment.struct_size = (uint32_t)sizeof(df_segment) + (i == 1 ? 16 : 0);
    CHECK(df_segment_prepare(NULL, &b.segment, &prepared, &error) == DF_OK);
    CHECK(df_segment_run(NULL, prepared, &grown.run, &error) == (i == 2 ? DF_INVALID : DF_OK));
    CHECK(seen.stream == &stream && seen.fault == &fault);
    df_segment_release(NULL, prepared);
  }
}

/* On a device with handles nothing is added to them. */
static void test_a_handle_and_its_offset_stay_apart(void) {
  char handle;
  builder body, top;
  begin(&body, 3);
  int32_t a = arena(&body, &handle, 64, -1);
  const df_kernel look = {.struct_size = sizeof(df_kernel), .name = "look", .run = run_look};
  df_step *step = add_step(&body, &look, 3, 1);
  step->n_prepacks = 2;
  df_operand moving = doubles(a, 1, ONE);
  moving.iteration_stride = 8;
  add_operand(&body, doubles(a, 3, ONE));
  add_operand(&body, moving);
  add_operand(&body, absent());
  add_operand(&body, doubles(a, 4, ONE));
  add_operand(&body, doubles(a, 5, ONE));
  add_operand(&body, doubles(a, 6, ONE));
  add_operand(&body, doubles(a, 7, ONE));
  body.buffer_strides[0] = (df_buffer_stride){.operand = 3, .distance = 8};
  body.body.n_buffer_strides = 1;
  begin(&top, 1);
  add_loop(&top, &body);
  body.segment.flags = top.segment.flags = DF_HANDLES;
  df_error error;
  CHECK(run_once(&top, NULL, &error) == DF_OK);
  CHECK(seen_inputs[0].data == &handle && seen_inputs[0].offset == 24);
  CHECK(seen_inputs[1].data == &handle && seen_inputs[1].offset == 8 + 2 * 8);
  CHECK(seen_inputs[2].data == NULL && seen_inputs[2].offset == 0);
  CHECK(seen_output.data == &handle && seen_output.offset == 32); /* the last iteration is even */
  CHECK(seen.workspace == &handle && seen.workspace_offset == 40);
  CHECK(seen_prepacked[0] == &handle && seen_offsets[0] == 48);
  CHECK(seen_prepacked[1] == &handle && seen_offsets[1] == 56);
  body.body.kind = DF_WHILE;
  CHECK(run_once(&top, NULL, &error) == DF_UNSUPPORTED);
  CHECK_TEXT(error.text, "is behind a handle");
}

static void test_slots_may_change_between_runs(void) {
  double kept[2] = {10, 20}, first[4] = {1, 2}, second[4] = {3, 4};
  builder b;
  begin(&b, 1);
  int32_t a = arena(&b, kept, sizeof kept, -1), slot = arena(&b, NULL, sizeof first, 1);
  add_binary(&b, &ADD, doubles(a, 0, TWO), doubles(slot, 0, TWO), doubles(slot, 2, TWO));
  void *prepared;
  df_error error = {0};
  CHECK(df_segment_prepare(NULL, &b.segment, &prepared, &error) == DF_OK);
  double *const rounds[] = {first, second, second, first};
  for (int i = 0; i < 4; i++) {
    rounds[i][2] = rounds[i][3] = 0;
    void *slots[2] = {NULL, rounds[i]};
    df_run run = {.struct_size = sizeof run, .n_slots = 2, .slots = slots};
    CHECK(df_segment_run(NULL, prepared, &run, &error) == DF_OK);
    CHECK(rounds[i][2] == 10 + rounds[i][0] && rounds[i][3] == 20 + rounds[i][1]);
  }
  void *slots[2] = {first, NULL};
  df_run run = {.struct_size = sizeof run, .n_slots = 1, .slots = slots};
  CHECK(df_segment_run(NULL, prepared, &run, &error) == DF_INVALID);
  CHECK_TEXT(error.text, "the run has 1 slots, the segment needs 2");
  run.n_slots = 2;
  CHECK(df_segment_run(NULL, prepared, &run, &error) == DF_INVALID);
  CHECK_TEXT(error.text, "slot 1 has no address");
  df_segment_release(NULL, prepared);
}

/* ---- Loops ---------------------------------------------------------------------------------- */

enum { ROWS = 5 };

/* sums[t] = carry after iteration t, carry = carry + x[t], the carry in two places by turns. */
static void build_running_sum(builder *b, int64_t iterations, int32_t slot, double *memory,
                              int64_t bytes) {
  begin(b, iterations);
  int32_t a = arena(b, memory, bytes, slot);
  df_operand row = doubles(a, 0, TWO), sum = doubles(a, 2 * ROWS, TWO);
  row.iteration_stride = sum.iteration_stride = 16;
  df_operand carry_in = doubles(a, 4 * ROWS, TWO), carry_out = doubles(a, 4 * ROWS + 2, TWO);
  add_binary(b, &ADD, carry_in, row, carry_out);
  add_binary(b, &ADD, carry_in, row, sum);
  b->buffer_strides[0] = (df_buffer_stride){.operand = 0, .distance = 16};
  b->buffer_strides[1] = (df_buffer_stride){.operand = 2, .distance = -16};
  b->buffer_strides[2] = (df_buffer_stride){.operand = 4, .distance = 16};
  b->body.n_buffer_strides = 3;
}

typedef struct rows {
  double x[ROWS][2], sums[ROWS][2], carry[2][2];
} rows;

static void fill(rows *r, double scale) {
  memset(r, 0, sizeof *r);
  for (int t = 0; t < ROWS; t++) {
    r->x[t][0] = scale * (t + 1);
    r->x[t][1] = -scale * (t + 1);
  }
}

static int is_running_sum(const rows *r, int64_t iterations, double scale) {
  int right = 1;
  for (int64_t t = 0; t < ROWS; t++) {
    double expected = t < iterations ? scale * (double)((t + 1) * (t + 2)) / 2 : 0;
    right &= r->sums[t][0] == expected && r->sums[t][1] == -expected;
  }
  /* The last carry is where the parity of the iterations puts it. */
  return right &&
         r->carry[iterations & 1][0] == scale * (double)(iterations * (iterations + 1)) / 2;
}

static void test_a_loop_moves_rows_and_alternates_carries(void) {
  for (int64_t iterations = 0; iterations <= ROWS; iterations++) {
    rows r;
    fill(&r, 1);
    builder body, top;
    build_running_sum(&body, iterations, -1, (double *)&r, sizeof r);
    begin(&top, 1);
    add_loop(&top, &body);
    df_error error;
    int64_t calls = 0;
    CHECK(run_once(&top, &(df_run){.calls = &calls}, &error) == DF_OK);
    CHECK(calls == 2 * iterations);
    CHECK(is_running_sum(&r, iterations, 1));
  }
}

static void test_a_loop_may_lie_in_a_slot(void) {
  rows memory[2];
  builder body, top;
  build_running_sum(&body, ROWS, 0, NULL, sizeof(rows));
  begin(&top, 1);
  add_loop(&top, &body);
  void *prepared;
  df_error error = {0};
  CHECK(df_segment_prepare(NULL, &top.segment, &prepared, &error) == DF_OK);
  for (int i = 0; i < 4; i++) {
    rows *r = &memory[i / 2];
    fill(r, i + 1);
    void *slot = r;
    df_run run = {.struct_size = sizeof run, .n_slots = 1, .slots = &slot};
    CHECK(df_segment_run(NULL, prepared, &run, &error) == DF_OK);
    CHECK(is_running_sum(r, ROWS, i + 1));
  }
  df_segment_release(NULL, prepared);
}

static void test_loops_nest(void) {
  double memory[1] = {0}, one[1] = {1};
  builder inner, outer, top;
  begin(&inner, 3);
  int32_t m = arena(&inner, memory, 8, -1), o = arena(&inner, one, 8, -1);
  add_binary(&inner, &ADD, doubles(m, 0, ONE), doubles(o, 0, ONE), doubles(m, 0, ONE));
  begin(&outer, 4);
  add_loop(&outer, &inner);
  m = arena(&outer, memory, 8, -1);
  add_binary(&outer, &ADD, doubles(m, 0, ONE), doubles(m, 0, ONE), doubles(m, 0, ONE));
  begin(&top, 1);
  add_loop(&top, &outer);
  df_error error;
  int64_t calls = 0;
  CHECK(run_once(&top, &(df_run){.calls = &calls}, &error) == DF_OK);
  CHECK(calls == 4 * (3 + 1));
  CHECK(memory[0] == 90); /* x -> 2 (x + 3), four times from 0 */
}

static df_status add_many(const df_call *const *calls, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    run_add(calls[i]);
  return DF_OK;
}

typedef struct noted {
  int32_t first[8], count[8], times;
} noted;

static void note_next(void *context, int32_t first, int32_t count) {
  noted *t = context;
  t->first[t->times] = first;
  t->count[t->times++] = count;
}

/* Of steps that are one call once, and of a loop once, not of what it repeats. */
static void test_a_device_learns_what_runs_next(void) {
  const df_kernel together = {
      .struct_size = sizeof(df_kernel), .name = "add", .run = run_add, .run_many = add_many};
  rows r;
  fill(&r, 1);
  builder body, top;
  build_running_sum(&body, 2, -1, (double *)&r, sizeof r);
  begin(&top, 1);
  double memory[4] = {1, 2, 0, 0};
  int32_t a = arena(&top, memory, sizeof memory, -1);
  add_loop(&top, &body);
  for (int i = 0; i < 2; i++)
    add_binary(&top, &together, doubles(a, 0, ONE), doubles(a, 1, ONE), doubles(a, 2 + i, ONE));
  add_binary(&top, &ADD, doubles(a, 2, ONE), doubles(a, 3, ONE), doubles(a, 0, ONE));
  noted t = {0};
  df_error error;
  const df_run run = {.before = note_next, .context = &t};
  CHECK(run_once(&top, &run, &error) == DF_OK);
  CHECK(memory[0] == 6 && is_running_sum(&r, 2, 1));
  CHECK(t.times == 3);
  CHECK(t.first[0] == 0 && t.count[0] == 1);
  CHECK(t.first[1] == 1 && t.count[1] == 2);
  CHECK(t.first[2] == 3 && t.count[2] == 1);
}

static void test_a_row_may_be_read_backwards(void) {
  static const int64_t minus[1] = {-1};
  double memory[5] = {1, 2, 3, 0, 0};
  builder b;
  begin(&b, 1);
  int32_t a = arena(&b, memory, sizeof memory, -1);
  df_operand reversed = doubles(a, 2, TWO);
  reversed.strides = minus;
  add_binary(&b, &ADD, reversed, doubles(a, 0, TWO), doubles(a, 3, TWO));
  df_error error;
  CHECK(run_once(&b, NULL, &error) == DF_OK);
  CHECK(memory[3] == 3 + 1 && memory[4] == 2 + 2);
}

/* ---- What can go wrong ---------------------------------------------------------------------- */

/* Fails when its first input is 2. */
static df_status run_refuse_two(const df_call *call) {
  if (*(double *)call->inputs[0]->data != 2)
    return DF_OK;
  strcpy(call->error->text, "two is refused");
  return DF_INVALID;
}

static df_status run_fail_silently(const df_call *call) {
  (void)call;
  return DF_UNSUPPORTED;
}

static const df_kernel REFUSE_TWO = {
    .struct_size = sizeof(df_kernel), .name = "refuse_two", .run = run_refuse_two};
static const df_kernel SILENT = {
    .struct_size = sizeof(df_kernel), .name = "silent", .run = run_fail_silently};

static void test_an_error_has_step_and_text(void) {
  double memory[4] = {2, 0, 0, 0};
  builder b;
  begin(&b, 1);
  int32_t a = arena(&b, memory, sizeof memory, -1);
  df_operand x = doubles(a, 0, ONE), y = doubles(a, 1, ONE);
  add_binary(&b, &ADD, x, y, doubles(a, 2, ONE));
  add_binary(&b, &REFUSE_TWO, x, y, y);
  add_binary(&b, &ADD, x, y, doubles(a, 3, ONE));
  df_error error;
  int64_t calls = 0;
  CHECK(run_once(&b, &(df_run){.calls = &calls}, &error) == DF_INVALID);
  CHECK(error.code == DF_INVALID && error.step == 1);
  CHECK(!strcmp(error.text, "two is refused"));
  CHECK(calls == 2 && memory[2] == 2 && memory[3] == 0); /* what follows does not run */

  b.steps[1].kernel = &SILENT;
  CHECK(run_once(&b, NULL, &error) == DF_UNSUPPORTED);
  CHECK_TEXT(error.text, "kernel 'silent' failed with status 2");
}

static void test_an_error_in_a_loop_has_the_top_step_and_the_iteration(void) {
  double rows[4] = {0, 1, 2, 3};
  builder body, top;
  begin(&body, 4);
  int32_t a = arena(&body, rows, sizeof rows, -1);
  df_operand row = doubles(a, 0, ONE);
  row.iteration_stride = 8;
  add_binary(&body, &REFUSE_TWO, row, row, row);
  begin(&top, 1);
  a = arena(&top, rows, sizeof rows, -1);
  add_binary(&top, &ADD, doubles(a, 0, ONE), doubles(a, 0, ONE), doubles(a, 0, ONE));
  add_loop(&top, &body);
  df_error error;
  CHECK(run_once(&top, NULL, &error) == DF_INVALID);
  CHECK(error.step == 1);
  CHECK(!strcmp(error.text, "two is refused (iteration 2)"));
}

static volatile int32_t cancel;

static void cancel_in_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)context, (void)count, (void)worker;
  if (index == 3)
    __atomic_store_n(&cancel, 1, __ATOMIC_RELAXED);
}

/* Sets the cancel word inside a task, as a user does from elsewhere; succeeds, as kernels then do.
 */
static df_status run_cancel(const df_call *call) {
  call->host->parallel_for(cancel_in_task, NULL, 1 << 30, call->threads);
  return DF_OK;
}

static const df_kernel CANCELLING = {
    .struct_size = sizeof(df_kernel), .name = "cancel", .run = run_cancel};

static void test_a_cancelled_run_stops(void) {
  double memory[2] = {1, 0};
  builder body, top;
  begin(&body, INT64_MAX);
  int32_t a = arena(&body, memory, sizeof memory, -1);
  df_operand x = doubles(a, 0, ONE), y = doubles(a, 1, ONE);
  add_binary(&body, &ADD, x, x, x);
  add_binary(&body, &CANCELLING, x, x, x);
  add_binary(&body, &ADD, x, x, y);
  begin(&top, 1);
  add_loop(&top, &body);
  df_error error;
  cancel = 0;
  int64_t calls = 0;
  CHECK(run_once(&top, &(df_run){.cancel = &cancel, .calls = &calls}, &error) == DF_CANCELLED);
  CHECK(error.code == DF_CANCELLED && error.step == 0);
  CHECK(calls == 2 && memory[0] == 2 && memory[1] == 0);
  CHECK(run_once(&top, &(df_run){.cancel = &cancel}, &error) == DF_CANCELLED); /* set before */
}

/* The last step returns success although its tasks were not all started. */
static void test_a_run_cancelled_in_its_last_step_is_cancelled(void) {
  double memory[1] = {0};
  builder b;
  begin(&b, 1);
  df_operand x = doubles(arena(&b, memory, sizeof memory, -1), 0, ONE);
  add_binary(&b, &CANCELLING, x, x, x);
  df_error error;
  cancel = 0;
  CHECK(run_once(&b, &(df_run){.cancel = &cancel}, &error) == DF_CANCELLED);
  CHECK(error.code == DF_CANCELLED && error.step == -1);
}

/* ---- Segments that are refused -------------------------------------------------------------- */

static void check_refused(const builder *b, int32_t step, const char *text) {
  df_error error;
  CHECK(run_once(b, NULL, &error) == DF_INVALID);
  CHECK(error.step == step);
  CHECK_TEXT(error.text, text);
}

static void test_operands_outside_their_arena_are_refused(void) {
  double memory[4] = {0};
  builder b, top;
  for (int i = 0; i < 9; i++) {
    begin(&b, i < 6 ? 1 : 3);
    int32_t a = arena(&b, memory, sizeof memory, -1);
    df_operand x = doubles(a, 0, TWO), bad = x;
    static const int64_t minus[1] = {-1};
    if (i == 0)
      bad.offset = 24;
    if (i == 1)
      bad.offset = -8;
    if (i == 2)
      bad.arena = 1;
    if (i == 3)
      bad.arena = -2;
    if (i == 4)
      bad.strides = minus; /* begins at element 0 and goes down */
    if (i == 5)
      bad.offset = INT64_MAX - 4;
    if (i == 6)
      bad.iteration_stride = 16; /* two rows fit, not three */
    if (i == 7)
      bad.iteration_stride = INT64_MAX / 2;
    add_binary(&b, &ADD, x, bad, x);
    b.buffer_strides[0] = (df_buffer_stride){.operand = 1, .distance = 24};
    b.body.n_buffer_strides = i == 8;
    begin(&top, 1);
    add_loop(&top, &b);
    check_refused(i < 6 ? &b : &top, 0,
                  i == 2   ? "arena 1 of 1"
                  : i == 3 ? "arena -2 of 1"
                           : "outside arena 0");
  }
}

static void test_malformed_segments_are_refused(void) {
  double memory[4] = {0};
  builder b, top;
  begin(&b, 1);
  int32_t a = arena(&b, memory, sizeof memory, -1);
  df_operand x = doubles(a, 0, TWO);
  add_binary(&b, &ADD, x, x, x);
  b.steps[0].n_inputs = 3;
  check_refused(&b, 0, "kernel 'add') has operands 0 to 4 of 4");
  b.steps[0].n_inputs = 2;
  b.steps[0].kernel = NULL;
  check_refused(&b, 0, "neither a kernel nor a body");
  b.steps[0].kernel = &ADD;
  b.segment.struct_size = 8;
  check_refused(&b, -1, "struct_size 8");
  b.segment.struct_size = sizeof(df_segment);

  begin(&top, 1);
  add_loop(&top, &b);
  b.body.iterations = -1;
  check_refused(&top, 0, "-1 iterations");
  b.body.iterations = 2;
  b.body.n_buffer_strides = 1;
  b.buffer_strides[0].operand = 4;
  check_refused(&top, 0, "operand 4 of 4");
}

int main(void) {
  alarm(120);
  test_a_kernel_is_given_its_operands();
  test_tables_of_other_sizes_are_read_as_far_as_they_go();
  test_a_handle_and_its_offset_stay_apart();
  test_slots_may_change_between_runs();
  test_a_loop_moves_rows_and_alternates_carries();
  test_a_loop_may_lie_in_a_slot();
  test_loops_nest();
  test_a_device_learns_what_runs_next();
  test_a_row_may_be_read_backwards();
  test_an_error_has_step_and_text();
  test_an_error_in_a_loop_has_the_top_step_and_the_iteration();
  test_a_cancelled_run_stops();
  test_a_run_cancelled_in_its_last_step_is_cancelled();
  test_operands_outside_their_arena_are_refused();
  test_malformed_segments_are_refused();
  return failures != 0;
}
