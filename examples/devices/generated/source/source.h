/* source.h: text for the steps of a segment, which is C as well as OpenCL C.
 *
 * Steps become groups. A group has a number of items that don't depend on each
 * other: the elements of a result, or the rows of one. Steps that follow each
 * other join a group when each reads of the others' results only the item's own
 * element: what passes between them is a local variable, and needs memory only
 * if something else reads it later. Sizes, strides and offsets are numbers
 * beside the text, so that one text serves all sizes; its arenas are a0, a1,
 * ..., its item is i.
 */
#ifndef SOURCE_H
#define SOURCE_H
#include <dataflow_inline.h>
#include <pthread.h>

enum {
  SOURCE_MOST_AXES = 8,
  SOURCE_MOST_STEPS = 24,
  SOURCE_MOST_ARENAS = 32,
  SOURCE_MOST_RESULTS = 3,
  SOURCE_MOST_BUILT = 128
};

/* Text that grows. |failed|: there was no memory for it. */
typedef struct source_text {
  char *data;
  size_t length, capacity;
  int failed;
} source_text;

__attribute__((format(printf, 2, 3))) void source_print(source_text *text, const char *format, ...);

typedef struct source_group {
  char *text;                         /* statements for item i */
  int64_t *numbers;                   /* what p[0], p[1], ... are */
  int32_t arenas[SOURCE_MOST_ARENAS]; /* a0, a1, ...: indices into the segment's
                                         arenas */
  int64_t items;
  int32_t n_numbers, n_arenas, n_steps;
} source_group;

typedef struct source_program {
  source_group *groups;
  int32_t n_groups;
  int32_t n_values;  /* results of the segment's steps */
  int32_t n_live;    /* those that are read by more than the segment: written as
                        LIVE */
  int32_t n_scratch; /* those that other groups read: written as SCRATCH. The
                        rest are locals */
} source_program;

/* The groups of a segment, to be given back by source_free. DF_OUT_OF_MEMORY or DF_UNSUPPORTED. */
df_status source_write(const df_segment *segment, source_program *program, df_error *error);
void source_free(source_program *program);

/* Functions that the text calls, in C and in OpenCL C, behind those that differ. */
extern const char SOURCE_FUNCTIONS[];

/* Records of the ops that can be written; their names begin with |device|. */
int64_t source_kernels(const char *device, const df_kernel *const **records);

/* ---- What texts are built to ----------------------------------------------------------------- */

typedef struct source_built source_built;

/* Begins as SOURCE_CACHE(build, discard). It keeps what is in use, and of the rest as much as makes
 * SOURCE_MOST_BUILT together: a program takes a platform a megabyte or two. */
typedef struct source_cache {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  df_status (*build)(const char *text, void **object, df_error *error);
  void (*discard)(void *object);
  source_built *first; /* the last that was asked for */
  int64_t builds;      /* since the process began */
  int32_t count;
} source_cache;

#define SOURCE_CACHE(build_, discard_)                                                             \
  {.lock = PTHREAD_MUTEX_INITIALIZER,                                                              \
   .changed = PTHREAD_COND_INITIALIZER,                                                            \
   .build = (build_),                                                                              \
   .discard = (discard_)}

/* What a text was built to, once however many threads ask for it; takes |text|. It is in use until
 * source_drop; what couldn't be built is tried again by who asks next. */
df_status source_build_once(source_cache *cache, char *text, source_built **built, df_error *error);
void *source_object(const source_built *built);
void source_drop(source_cache *cache, source_built *built);

/* ---- What writes an op ----------------------------------------------------------------------- */

typedef struct source_writer {
  source_text *text;
  source_group *group;
  int32_t names; /* of variables that were given */
  struct {
    const df_operand *operand;
    int32_t step, output;
  } locals[SOURCE_MOST_RESULTS * SOURCE_MOST_STEPS]; /* results of the group's steps so far */
  int32_t n_locals;
  int failed;
} source_writer;

/* One step and its operands: |number| is its index in the segment, |name| that in its group. */
typedef struct source_step {
  const df_operand *const *inputs, *const *outputs;
  const df_attribute *const *attributes;
  int32_t n_inputs, n_outputs, n_attributes;
  int32_t number, name;
} source_step;

/* A short text that can be part of a printed one. */
typedef struct source_word {
  char text[24];
} source_word;

/* The name of each axis' coordinate. */
typedef struct source_axes {
  char names[SOURCE_MOST_AXES][16];
} source_axes;

/* What an op's items are: elements of its first result, or something that it stores itself. */
typedef enum { SOURCE_ELEMENTS, SOURCE_ITEMS } source_kind;

typedef struct source_op {
  const char *op, *operands, *inplace;
  source_kind kind;
  uint32_t elsewhere;     /* bit k: input k is read at other elements than the item's */
  const char *expression; /* of a, b, c, alpha, beta: each operand is read at
                             the item's element */
  /* Where there is no expression: defines v<number>_<output>, or stores its
   * results itself. */
  void (*write)(source_writer *writer, const source_step *step);
  int64_t (*items)(const source_step *step); /* of SOURCE_ITEMS */
  const char *(*accepts)(const df_node *node);
} source_op;

extern const source_op source_elementwise[], source_products[], source_rows[];

/* Refuses what has no elements, or more axes than text is written for. */
const char *source_accepts(const df_node *node);

const char *source_type(int32_t dtype);
int source_present(const df_operand *operand);
/* A number as it stands in the text: itself where it is 0 or 1, else p[...]. */
source_word source_number(source_writer *writer, int64_t number);
/* Declares |names| as the coordinates of element |item| of |shape|, named |prefix|0, ... */
source_axes source_coordinates(source_writer *writer, const char *item, const char *prefix,
                               const int64_t *shape, int32_t rank);
/* Declares the index of the element at these coordinates and gives its expression to |into|; axes
 * of one element are skipped. |axes| are those of the operand. */
void source_element(source_writer *writer, const df_operand *operand, const source_axes *axes,
                    char into[64]);
/* The same of a result, to be written. */
void source_result(source_writer *writer, const df_operand *operand, const source_axes *axes,
                   char into[64]);
/* The same for coordinates of a shape that the operand is broadcast to. */
void source_broadcast(source_writer *writer, const df_operand *operand, const source_axes *axes,
                      int32_t rank, char into[64]);
/* An operand at element i of the result: a local variable where it is one. */
void source_here(source_writer *writer, const source_step *step, int32_t input,
                 const source_axes *axes, char into[64]);

#define W(...) source_print(writer->text, __VA_ARGS__)
#define N(number) source_number(writer, number).text

#endif
