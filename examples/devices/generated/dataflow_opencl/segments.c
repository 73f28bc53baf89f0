/* segments.c: text becomes programs, and a segment a row of kernels in a queue. */
#include "opencl.h"

#include <stdlib.h>

enum { TOGETHER = 32 }; /* items of a work group */

typedef struct launch {
  source_built *program;
  void *kernel;
  size_t items;
} launch;

typedef struct segment {
  struct segment *next;
  int64_t name; /* its number in the session */
  void *numbers;
  launch *launches;
  int32_t n_launches, n_steps;
  void *began, *ended; /* events: the first and the last kernel of the last run */
} segment;

/* ---- Programs -------------------------------------------------------------------------------- */

static const char PRELUDE[] =
    "#ifdef cl_khr_fp64\n"
    "typedef double sum_t;\n"
    "#else\n"
    "typedef float sum_t;\n"
    "#endif\n"
    "#define AT(T, a, offset, element) (((__global T *)((a) + "
    "(offset)))[element])\n"
    "#define FAULT fault, segment\n"
    "void found(long value, long limit, long step, __global long *fault, long "
    "segment) {\n"
    "  if (atomic_cmpxchg((volatile __global int *)fault, 0, 1) == 0) {\n"
    "    fault[1] = step; fault[2] = value; fault[3] = limit; fault[4] = "
    "segment;\n"
    "  }\n"
    "}\n"
    "long checked(long at, long n, long step, __global long *fault, long "
    "segment) {\n"
    "  if (at >= -n && at < n) return at < 0 ? at + n : at;\n"
    "  found(at, n, step, fault, segment);\n"
    "  return 0;\n"
    "}\n"
    "long label_of(long at, long n, long step, __global long *fault, long "
    "segment) {\n"
    "  if (at >= 0 && at < n) return at;\n"
    "  found(at, n, step, fault, segment);\n"
    "  return 0;\n"
    "}\n";

static df_status build(const char *text, void **object, df_error *error) {
  const char *texts[] = {PRELUDE, SOURCE_FUNCTIONS, text};
  cl_status status = 0;
  *object = cl.CreateProgramWithSource(shared.context, 3, texts, NULL, &status);
  if (!*object)
    return opencl_fail(error, "clCreateProgramWithSource", status);
  if (!cl.BuildProgram(*object, 1, &shared.device, "", NULL, NULL))
    return DF_OK;
  char log[4096] = {0};
  cl.GetProgramBuildInfo(*object, shared.device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
  snprintf(error->text, sizeof error->text, "clBuildProgram: %.400s", log);
  return error->code = DF_DEVICE;
}

static void discard(void *object) { cl.ReleaseProgram(object); }

static source_cache programs = SOURCE_CACHE(build, discard);

int64_t opencl_builds(void) { return programs.builds; }

/* ---- Segments -------------------------------------------------------------------------------- */

static df_status make_launch(session *s, segment *made, const source_group *group, int64_t begin,
                             const df_arena *const *arenas, launch *into, df_error *error) {
  source_text text = {0};
  cl_status status = 0;
  source_print(&text, "__kernel void group(long n, long segment, __global long *fault, "
                      "__global const long *numbers, long begin");
  for (int32_t k = 0; k < group->n_arenas; k++)
    source_print(&text, ", __global char *a%d", (int)k);
  source_print(&text, ") {\n  __global const long *p = numbers + begin;\n");
  source_print(&text, "  const long i = get_global_id(0);\n  if (i < n) {\n%s  }\n}\n",
               group->text);
  if (text.failed) {
    free(text.data);
    return error->code = DF_OUT_OF_MEMORY;
  }
  const df_status found = source_build_once(&programs, text.data, &into->program, error);
  if (found)
    return found;
  into->items = (size_t)(group->items + TOGETHER - 1) / TOGETHER * TOGETHER;
  into->kernel = cl.CreateKernel(source_object(into->program), "group", &status);
  if (!into->kernel)
    return opencl_fail(error, "clCreateKernel", status);
  const struct {
    size_t bytes;
    const void *value;
  } given[] = {{sizeof group->items, &group->items},
               {sizeof made->name, &made->name},
               {sizeof s->fault, &s->fault},
               {sizeof made->numbers, &made->numbers},
               {sizeof begin, &begin}};
  for (uint32_t k = 0; k < 5; k++)
    CHECK(cl.SetKernelArg(into->kernel, k, given[k].bytes, given[k].value), "clSetKernelArg");
  for (int32_t k = 0; k < group->n_arenas; k++)
    CHECK(cl.SetKernelArg(into->kernel, 5 + (uint32_t)k, sizeof(void *),
                          &arenas[group->arenas[k]]->base),
          "clSetKernelArg");
  return DF_OK;
}

/* The numbers of all groups, one after the other. */
static df_status put_numbers(session *s, segment *made, const source_program *from,
                             df_error *error) {
  size_t count = 0, at = 0;
  cl_status status = 0;
  for (int32_t k = 0; k < from->n_groups; k++)
    count += (size_t)from->groups[k].n_numbers;
  int64_t *numbers = malloc((count + 1) * sizeof *numbers);
  if (!numbers)
    return error->code = DF_OUT_OF_MEMORY;
  for (int32_t k = 0; k < from->n_groups; k++)
    for (int32_t j = 0; j < from->groups[k].n_numbers; j++)
      numbers[at++] = from->groups[k].numbers[j];
  const size_t bytes = (count + 1) * sizeof *numbers;
  numbers[count] = 0;
  made->numbers = cl.CreateBuffer(shared.context, CL_MEM_READ_WRITE, bytes, NULL, &status);
  if (made->numbers)
    status = cl.EnqueueWriteBuffer(s->queue, made->numbers, 1, 0, bytes, numbers, 0, NULL, NULL);
  free(numbers);
  return status ? opencl_fail(error, "numbers of a segment", status) : DF_OK;
}

static void forget_events(segment *made) {
  if (made->began)
    cl.ReleaseEvent(made->began);
  if (made->ended)
    cl.ReleaseEvent(made->ended);
  made->began = made->ended = NULL;
}

void opencl_release(void *self, void *prepared) {
  session *s = self;
  segment *made = prepared, **at;
  pthread_mutex_lock(&s->lock);
  for (at = &s->segments; *at && *at != made; at = &(*at)->next)
    continue;
  if (*at)
    *at = made->next;
  if (s->failed == made)
    s->failed = NULL;
  pthread_mutex_unlock(&s->lock);
  cl.Finish(s->queue);
  for (int32_t k = 0; k < made->n_launches; k++) {
    if (made->launches[k].kernel)
      cl.ReleaseKernel(made->launches[k].kernel);
    if (made->launches[k].program)
      source_drop(&programs, made->launches[k].program);
  }
  if (made->numbers)
    cl.ReleaseMemObject(made->numbers);
  forget_events(made);
  free(made->launches);
  free(made);
}

df_status opencl_prepare(void *self, const df_segment *given, void **prepared, df_error *error) {
  session *s = self;
  source_program text;
  df_status status = source_write(given, &text, error);
  if (status)
    return status;
  segment *made = calloc(1, sizeof *made);
  if (made)
    made->launches = calloc((size_t)text.n_groups + 1, sizeof *made->launches);
  if (!made || !made->launches) {
    free(made);
    source_free(&text);
    return error->code = DF_OUT_OF_MEMORY;
  }
  pthread_mutex_lock(&s->lock);
  made->name = ++s->named;
  made->next = s->segments;
  s->segments = made;
  pthread_mutex_unlock(&s->lock);
  made->n_launches = text.n_groups;
  made->n_steps = given->n_steps;
  status = put_numbers(s, made, &text, error);
  for (int64_t k = 0, begin = 0; !status && k < text.n_groups; k++) {
    status = make_launch(s, made, &text.groups[k], begin, given->arenas, &made->launches[k], error);
    begin += text.groups[k].n_numbers;
  }
  source_free(&text);
  if (status)
    opencl_release(s, made);
  else
    *prepared = made;
  return status;
}

df_status opencl_run(void *self, void *prepared, const df_run *run, df_error *error) {
  const session *s = self;
  segment *made = prepared;
  const size_t together = TOGETHER;
  forget_events(made);
  for (int32_t k = 0; k < made->n_launches; k++) {
    void *event = NULL;
    if (run->cancel && *run->cancel)
      return error->code = DF_CANCELLED;
    CHECK(cl.EnqueueNDRangeKernel(s->queue, made->launches[k].kernel, 1, NULL,
                                  &made->launches[k].items, &together, 0, NULL, &event),
          "clEnqueueNDRangeKernel");
    void **kept = made->began ? &made->ended : &made->began;
    if (*kept)
      cl.ReleaseEvent(*kept);
    *kept = event;
  }
  if (run->calls)
    *run->calls += made->n_steps;
  return DF_OK;
}

/* From the begin of the first kernel to the end of the last. */
df_status opencl_elapsed(void *self, void *prepared, int64_t *nanoseconds, df_error *error) {
  (void)self;
  const segment *made = prepared;
  uint64_t begin = 0, end = 0;
  *nanoseconds = 0;
  if (!made->began)
    return DF_OK;
  CHECK(
      cl.GetEventProfilingInfo(made->began, CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL),
      "clGetEventProfilingInfo");
  CHECK(cl.GetEventProfilingInfo(made->ended ? made->ended : made->began, CL_PROFILING_COMMAND_END,
                                 sizeof end, &end, NULL),
        "clGetEventProfilingInfo");
  *nanoseconds = (int64_t)(end - begin);
  return DF_OK;
}

/* Waits, and says what kernels found meanwhile. */
df_status opencl_sync(void *self, df_error *error) {
  session *s = self;
  int64_t fault[5], none[5] = {0};
  CHECK(cl.EnqueueReadBuffer(s->queue, s->fault, 1, 0, sizeof fault, fault, 0, NULL, NULL),
        "waiting for the queue");
  if (!fault[0])
    return DF_OK;
  CHECK(cl.EnqueueWriteBuffer(s->queue, s->fault, 1, 0, sizeof none, none, 0, NULL, NULL),
        "clEnqueueWriteBuffer");
  pthread_mutex_lock(&s->lock);
  for (s->failed = s->segments; s->failed && s->failed->name != fault[4];)
    s->failed = s->failed->next;
  pthread_mutex_unlock(&s->lock);
  error->step = (int32_t)fault[1];
  snprintf(error->text, sizeof error->text, "index %lld is outside [%lld, %lld)",
           (long long)fault[2], (long long)-fault[3], (long long)fault[3]);
  return error->code = DF_INVALID;
}
