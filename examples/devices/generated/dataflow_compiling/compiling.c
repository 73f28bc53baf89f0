/* compiling.c: a device that compiles each segment to one function of C.
 *
 * It works on the host's memory. The text of a segment has neither sizes nor
 * addresses, and is compiled once for all segments that have it, whatever
 * threads ask. The compiler is that of the variable DATAFLOW_COMPILER, or cc.
 * In a folder that DATAFLOW_COMPILING_SOURCES names the sources stay.
 */
#define _GNU_SOURCE
#include "source.h"

#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Numbers: of each group the items, then p. Arenas: of each group a0, a1, .... Returns a status. */
typedef int (*function)(char *const *arenas, const long *numbers, long *fault,
                        const volatile int *cancel);

static const char PRELUDE[] =
    "typedef unsigned char uchar;\n"
    "typedef unsigned int uint;\n"
    "typedef unsigned long ulong;\n"
    "typedef double sum_t;\n"
    "#define INFINITY __builtin_inff()\n"
    "#define AT(T, a, offset, element) (((T *)((a) + (offset)))[element])\n"
    "#define FAULT fault\n"
    "#define fabs __builtin_fabsf\n#define exp __builtin_expf\n#define expm1 "
    "__builtin_expm1f\n"
    "#define log __builtin_logf\n#define log1p __builtin_log1pf\n#define sqrt "
    "__builtin_sqrtf\n"
    "#define sin __builtin_sinf\n#define cos __builtin_cosf\n#define tanh "
    "__builtin_tanhf\n"
    "#define erf __builtin_erff\n#define floor __builtin_floorf\n#define ceil "
    "__builtin_ceilf\n"
    "#define rint __builtin_rintf\n#define pow __builtin_powf\n"
    "static inline void found(long value, long limit, long step, long *fault) "
    "{\n"
    "  if (!fault[0]) { fault[0] = 1; fault[1] = step; fault[2] = value; "
    "fault[3] = limit; }\n"
    "}\n"
    "static inline long checked(long at, long n, long step, long *fault) {\n"
    "  if (at >= -n && at < n) return at < 0 ? at + n : at;\n"
    "  found(at, n, step, fault);\n"
    "  return 0;\n"
    "}\n"
    "static inline long label_of(long at, long n, long step, long *fault) {\n"
    "  if (at >= 0 && at < n) return at;\n"
    "  found(at, n, step, fault);\n"
    "  return 0;\n"
    "}\n";

static atomic_llong compiles, values, live, scratch; /* since the process began */

/* ---- Memory ---------------------------------------------------------------------------------- */

static df_status compiling_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  out->base = out->owner = aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
  return out->base ? DF_OK : (error->code = DF_OUT_OF_MEMORY);
}

static void compiling_free(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->owner);
}

static df_status compiling_copy(void *self, const df_copy *c, df_error *error) {
  (void)self, (void)error;
  memmove((char *)c->to + c->to_offset, (const char *)c->from + c->from_offset, (size_t)c->bytes);
  return DF_OK;
}

/* ---- The compiler ---------------------------------------------------------------------------- */

static df_status fail(df_error *error, const char *what) {
  snprintf(error->text, sizeof error->text, "%.300s: %s", what, strerror(errno));
  return error->code = DF_DEVICE;
}

static df_status write_file(const char *path, const char *text, df_error *error) {
  FILE *file = fopen(path, "w");
  if (!file || fputs(PRELUDE, file) < 0 || fputs(SOURCE_FUNCTIONS, file) < 0 ||
      fputs(text, file) < 0) {
    if (file)
      fclose(file);
    return fail(error, path);
  }
  return fclose(file) ? fail(error, path) : DF_OK;
}

static df_status run_compiler(const char *source, const char *library, df_error *error) {
  const char *named = getenv("DATAFLOW_COMPILER");
  const char *const command[] = {named ? named : "cc",
                                 "-std=gnu11",
                                 "-O2",
                                 "-fno-math-errno",
                                 "-fno-strict-aliasing",
                                 "-fwrapv",
                                 "-w",
                                 "-shared",
                                 "-fPIC",
                                 source,
                                 "-o",
                                 library,
                                 "-lm",
                                 NULL};
  pid_t child;
  int status = 0;
  errno = posix_spawnp(&child, command[0], NULL, NULL, (char *const *)command, environ);
  if (errno)
    return fail(error, command[0]);
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR)
      return fail(error, command[0]);
  if (status) {
    snprintf(error->text, sizeof error->text, "%s couldn't compile a segment (status %d)",
             command[0], status);
    return error->code = DF_DEVICE;
  }
  return DF_OK;
}

/* The library of a text, which has its function. */
static df_status build(const char *text, void **object, df_error *error) {
  const char *kept = getenv("DATAFLOW_COMPILING_SOURCES"), *temporary = getenv("TMPDIR");
  char folder[1024], source[1040], library[1040];
  snprintf(folder, sizeof folder, "%s/segment-XXXXXX",
           kept        ? kept
           : temporary ? temporary
                       : "/tmp");
  if (!mkdtemp(folder))
    return fail(error, folder);
  snprintf(source, sizeof source, "%s/segment.c", folder);
  snprintf(library, sizeof library, "%s/segment.so", folder);
  df_status status = write_file(source, text, error);
  if (!status)
    status = run_compiler(source, library, error);
  *object = status ? NULL : dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!status && !*object) {
    snprintf(error->text, sizeof error->text, "%.400s", dlerror());
    status = error->code = DF_DEVICE;
  }
  unlink(library);
  if (!kept) {
    unlink(source);
    rmdir(folder);
  }
  return status;
}

static void discard(void *object) { dlclose(object); }

static source_cache libraries = SOURCE_CACHE(build, discard);

/* ---- Segments -------------------------------------------------------------------------------- */

/* A segment without its addresses. */
typedef struct compiled_segment {
  source_built *library;
  source_program program;
} compiled_segment;

/* With them: what its function is given. */
typedef struct prepared_segment {
  function run;
  long *numbers;
  char **arenas;  /* of all groups, one after the other */
  int32_t *slots; /* of each, or -1 */
  int32_t n_arenas, n_steps;
} prepared_segment;

/* The text of the function. */
static char *text_of(const source_program *program) {
  source_text text = {0};
  int32_t number = 0, arena = 0;
  source_print(&text, "int segment(char *const *arenas, const long *numbers, long *fault,\n"
                      "            const volatile int *cancel) {\n");
  for (int32_t k = 0; k < program->n_groups; k++) {
    const source_group *group = &program->groups[k];
    source_print(&text, "  {\n  const long n = numbers[%d];\n", (int)number);
    source_print(&text, "  const long *const p = numbers + %d;\n", (int)number + 1);
    for (int32_t j = 0; j < group->n_arenas; j++)
      source_print(&text, "  char *const a%d = arenas[%d];\n", (int)j, (int)arena++);
    source_print(&text, "  if (cancel && *cancel) return %d;\n", DF_CANCELLED);
    source_print(&text, "  for (long i = 0; i < n; i++) {\n%s  }\n  }\n", group->text);
    number += 1 + group->n_numbers;
  }
  source_print(&text, "  return 0;\n}\n");
  if (!text.failed)
    return text.data;
  free(text.data);
  return NULL;
}

static void compiling_discard(void *self, void *compiled) {
  (void)self;
  compiled_segment *made = compiled;
  if (made->library)
    source_drop(&libraries, made->library);
  source_free(&made->program);
  free(made);
}

static df_status compiling_compile(void *self, const df_segment *segment, void **compiled,
                                   df_error *error) {
  compiled_segment *made = calloc(1, sizeof *made);
  if (!made)
    return error->code = DF_OUT_OF_MEMORY;
  df_status status = source_write(segment, &made->program, error);
  if (!status) {
    char *text = text_of(&made->program);
    status = text ? source_build_once(&libraries, text, &made->library, error)
                  : (error->code = DF_OUT_OF_MEMORY);
  }
  if (status) {
    compiling_discard(self, made);
    return status;
  }
  compiles++;
  values += made->program.n_values;
  live += made->program.n_live;
  scratch += made->program.n_scratch;
  *compiled = made;
  return DF_OK;
}

static void compiling_release(void *self, void *prepared) {
  (void)self;
  prepared_segment *made = prepared;
  free(made->numbers);
  free(made->arenas);
  free(made->slots);
  free(made);
}

static df_status compiling_prepare(void *self, const df_segment *segment, void **prepared,
                                   df_error *error) {
  const compiled_segment *from = segment->compiled;
  size_t n_numbers = 1, n_arenas = 1;
  for (int32_t k = 0; k < from->program.n_groups; k++) {
    n_numbers += 1 + (size_t)from->program.groups[k].n_numbers;
    n_arenas += (size_t)from->program.groups[k].n_arenas;
  }
  prepared_segment *made = calloc(1, sizeof *made);
  if (!made)
    return error->code = DF_OUT_OF_MEMORY;
  *(void **)&made->run = dlsym(source_object(from->library), "segment");
  made->n_steps = segment->n_steps;
  made->numbers = calloc(n_numbers, sizeof *made->numbers);
  made->arenas = calloc(n_arenas, sizeof *made->arenas);
  made->slots = calloc(n_arenas, sizeof *made->slots);
  if (!made->numbers || !made->arenas || !made->slots) {
    compiling_release(self, made);
    return error->code = DF_OUT_OF_MEMORY;
  }
  long *number = made->numbers;
  for (int32_t k = 0; k < from->program.n_groups; k++) {
    const source_group *group = &from->program.groups[k];
    *number++ = group->items;
    for (int32_t j = 0; j < group->n_numbers; j++)
      *number++ = group->numbers[j];
    for (int32_t j = 0; j < group->n_arenas; j++, made->n_arenas++) {
      made->arenas[made->n_arenas] = segment->arenas[group->arenas[j]]->base;
      made->slots[made->n_arenas] = segment->arenas[group->arenas[j]]->slot;
    }
  }
  *prepared = made;
  return DF_OK;
}

/* One thread at a time runs a prepared segment. */
static df_status compiling_run(void *self, void *prepared, const df_run *run, df_error *error) {
  (void)self;
  prepared_segment *made = prepared;
  long fault[4] = {0};
  for (int32_t k = 0; k < made->n_arenas; k++)
    if (made->slots[k] >= 0)
      made->arenas[k] = run->slots[made->slots[k]];
  const df_status status = made->run(made->arenas, made->numbers, fault, run->cancel);
  if (run->calls)
    *run->calls += made->n_steps;
  if (!fault[0])
    return error->code = status;
  error->step = (int32_t)fault[1];
  snprintf(error->text, sizeof error->text, "index %ld is outside [%ld, %ld)", fault[2], -fault[3],
           fault[3]);
  return error->code = DF_INVALID;
}

/* How many segments were compiled to how many functions; how many results they have, of which are
 * live behind them, and which are scratch; for tests. */
void compiling_counts(int64_t into[5]) {
  into[0] = compiles;
  into[1] = libraries.builds;
  into[2] = values;
  into[3] = live;
  into[4] = scratch;
}

const df_plugin *df_plugin_entry(const df_host *host) {
  (void)host;
  static df_device device;
  static const df_device *const devices[] = {&device};
  static const df_plugin plugin = {.struct_size = sizeof plugin,
                                   .abi_major = DF_ABI_MAJOR,
                                   .abi_minor = DF_ABI_MINOR,
                                   .n_devices = 1,
                                   .name = "compiling",
                                   .version = "0.1.0",
                                   .devices = devices};
  device = (df_device){.struct_size = sizeof device,
                       .flags = DF_MEMORY_HOST,
                       .name = "compiling",
                       .alignment = 64,
                       .alloc = compiling_alloc,
                       .free = compiling_free,
                       .copy = compiling_copy,
                       .prepare = compiling_prepare,
                       .run = compiling_run,
                       .release = compiling_release,
                       .compile = compiling_compile,
                       .discard = compiling_discard};
  device.n_kernels = source_kernels("compiling", &device.kernels);
  return &plugin;
}
