/* trees/trees.c: tree_ensemble(x, nodes, thresholds, starts, leaves, targets, weights; size,
 * aggregate) -> y. Tasks are ranges of rows; a block of rows visits one tree after the other, so
 * that the nodes of a tree stay in the cache. Each number that leads to another is checked
 * when it is read: a node only leads to later nodes, so every walk ends. */
#include "cpu.h"

enum {
  WRONG = INT32_MIN, /* no node and no leaf */
  TOGETHER = 4,      /* rows whose walks of a tree alternate */
  NODE = 4,          /* numbers of a node: feature, comparison, the next if it holds, and if not */
  MISSING = 8,       /* beside a comparison: NaN fulfills it */
  BLOCK = 64,        /* rows that visit a tree together */
  SCORES = 4096,     /* targets of the rows of a block; on the stack, 32 KiB */
  ROW_GRAIN = 512    /* walks of a tree below which a second thread does not pay */
};

typedef enum aggregate { SUM, MINIMUM, MAXIMUM } aggregate;

typedef struct ensemble {
  const df_tensor *x;
  void *y;
  const int32_t *nodes, *starts, *leaves, *targets;
  const void *thresholds, *weights;
  int64_t n_nodes, n_trees, n_leaves, n_entries, n_targets, n_features;
  aggregate how;
  const char *wrong; /* what is wrong with the numbers of a tree; null: nothing */
} ensemble;

static inline int fulfills(int32_t mode, double value, double threshold) {
  switch (mode & ~MISSING) {
  case 0:
    return value <= threshold;
  case 1:
    return value < threshold;
  case 2:
    return value >= threshold;
  case 3:
    return value > threshold;
  case 4:
    return value == threshold;
  default:
    return value != threshold;
  }
}

/* The scores of one row, of which |seen| were set, joined with the entries of a leaf. */
#define ADD_LEAF(T)                                                                                \
  static const char *add_leaf_##T(const ensemble *e, int64_t leaf, double *scores,                 \
                                  unsigned char *seen) {                                           \
    if (leaf >= e->n_leaves)                                                                       \
      return "a leaf that does not exist";                                                         \
    const int32_t begin = e->leaves[leaf], end = e->leaves[leaf + 1];                              \
    if (begin < 0 || end < begin || end > e->n_entries)                                            \
      return "a leaf whose entries do not exist";                                                  \
    for (int32_t i = begin; i < end; i++) {                                                        \
      const int32_t target = e->targets[i];                                                        \
      const double weight = ((const T *)e->weights)[i];                                            \
      if (target < 0 || target >= e->n_targets)                                                    \
        return "a target that does not exist";                                                     \
      const double old = scores[target];                                                           \
      const int first = !seen[target];                                                             \
      if (!first && e->how == SUM)                                                                 \
        scores[target] = old + weight;                                                             \
      else if (first || (e->how == MINIMUM ? weight < old : weight > old))                         \
        scores[target] = weight;                                                                   \
      seen[target] = 1;                                                                            \
    }                                                                                              \
    return NULL;                                                                                   \
  }
ADD_LEAF(float)
ADD_LEAF(double)

/* What follows |node| for a row: another node, a leaf, or WRONG; |pick| takes it from the node. */
#define NEXT(name, T, pick)                                                                        \
  static inline int32_t name##_##T(const ensemble *e, const T *row, int32_t node) {                \
    if (node >= e->n_nodes)                                                                        \
      return WRONG;                                                                                \
    const int32_t *n = e->nodes + (int64_t)node * NODE;                                            \
    const int32_t feature = n[0], mode = n[1];                                                     \
    if (feature < 0 || feature >= e->n_features || (mode & ~MISSING) < 0 || (mode & ~MISSING) > 5) \
      return WRONG;                                                                                \
    const T value = row[feature];                                                                  \
    const int holds = fulfills(mode, value, ((const T *)e->thresholds)[node]) |                    \
                      ((value != value) & (mode / MISSING));                                       \
    const int32_t next = pick;                                                                     \
    return next >= 0 && next <= node ? WRONG : next;                                               \
  }

/* The leaves, as -1 - index, or WRONG, of |rows| rows in the tree that begins at |start|. The steps
 * of one row wait for memory; those of TOGETHER go on meanwhile, and as the outcome of a comparison
 * can't be predicted, none of them branches. A row alone is faster with a branch, guessed ahead of
 * memory. */
#define WALK(T)                                                                                    \
  NEXT(next, T, n[3 - holds])                                                                      \
  NEXT(guessed, T, holds ? n[2] : n[3])                                                            \
  static void walk_##T(const ensemble *e, const T *row, int32_t start, int rows, int32_t *at) {    \
    for (int i = 0; i < rows; i++)                                                                 \
      at[i] = start;                                                                               \
    for (int i = 0; rows < TOGETHER && i < rows; i++)                                              \
      while (at[i] >= 0)                                                                           \
        at[i] = guessed_##T(e, row + i * e->n_features, at[i]);                                    \
    for (int inner = rows == TOGETHER && start >= 0; inner;) {                                     \
      inner = 0;                                                                                   \
      for (int i = 0; i < TOGETHER; i++) {                                                         \
        if (at[i] >= 0)                                                                            \
          at[i] = next_##T(e, row + i * e->n_features, at[i]);                                     \
        inner |= at[i] >= 0;                                                                       \
      }                                                                                            \
    }                                                                                              \
  }
WALK(float)
WALK(double)

#define ROWS(T)                                                                                    \
  static const char *rows_##T(const ensemble *e, int64_t begin, int64_t end) {                     \
    double scores[SCORES];                                                                         \
    unsigned char seen[SCORES];                                                                    \
    const T *x = e->x->data;                                                                       \
    const int64_t n = (end - begin) * e->n_targets;                                                \
    memset(seen, 0, (size_t)n);                                                                    \
    memset(scores, 0, (size_t)n * sizeof *scores);                                                 \
    for (int64_t tree = 0; tree < e->n_trees; tree++)                                              \
      for (int64_t row = begin; row < end; row += TOGETHER) {                                      \
        int32_t at[TOGETHER];                                                                      \
        const int rows = (int)df_min(end - row, TOGETHER);                                         \
        walk_##T(e, x + row * e->n_features, e->starts[tree], rows, at);                           \
        for (int i = 0; i < rows; i++) {                                                           \
          if (at[i] == WRONG)                                                                      \
            return "a node that is no node, or leads back";                                        \
          const int64_t score = (row - begin + i) * e->n_targets;                                  \
          const char *wrong = add_leaf_##T(e, -1 - (int64_t)at[i], scores + score, seen + score);  \
          if (wrong)                                                                               \
            return wrong;                                                                          \
        }                                                                                          \
      }                                                                                            \
    for (int64_t i = 0; i < n; i++)                                                                \
      ((T *)e->y)[begin * e->n_targets + i] = seen[i] ? (T)scores[i] : 0;                          \
    return NULL;                                                                                   \
  }
ROWS(float)
ROWS(double)

static void task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  ensemble *e = context;
  int64_t begin, end;
  const int64_t block = df_max(1, df_min(BLOCK, SCORES / df_max(1, e->n_targets)));
  df_task_range(index, count, e->x->shape[0], block, &begin, &end);
  for (; begin < end; begin += block) {
    const int64_t stop = df_min(end, begin + block);
    const char *wrong =
        e->x->dtype == DF_FLOAT32 ? rows_float(e, begin, stop) : rows_double(e, begin, stop);
    if (wrong)
      __atomic_store_n(&e->wrong, wrong, __ATOMIC_RELAXED);
  }
}

static df_status tree_ensemble_run(const df_call *call) {
  const df_tensor *const *in = call->inputs;
  const char *how = df_attr_text(call, DF_TREE_ENSEMBLE_AGGREGATE);
  ensemble e = {.x = in[0],
                .y = call->outputs[0]->data,
                .nodes = in[1]->data,
                .starts = in[3]->data,
                .leaves = in[4]->data,
                .targets = in[5]->data,
                .thresholds = in[2]->data,
                .weights = in[6]->data,
                .n_nodes = in[1]->shape[0],
                .n_trees = in[3]->shape[0],
                .n_leaves = in[4]->shape[0] - 1,
                .n_entries = in[5]->shape[0],
                .n_targets = call->outputs[0]->shape[1],
                .n_features = in[0]->shape[1],
                .how = !strcmp(how, "sum")   ? SUM
                       : !strcmp(how, "min") ? MINIMUM
                                             : MAXIMUM};
  const int64_t walks = in[0]->shape[0] * e.n_trees;
  df_parallel(call, task, &e, df_min(in[0]->shape[0], df_task_count(call, walks, ROW_GRAIN)));
  if (e.wrong)
    return df_fail(call, DF_INVALID, "tree_ensemble: the trees have %s", e.wrong);
  return DF_OK;
}

static const char *accepts(const df_node *node) {
  if (node->outputs[0]->shape[1] > SCORES)
    return "more than 4096 targets";
  return NULL;
}

DF_KERNELS(trees) = {DF_KERNEL_IF("tree_ensemble", "f32", "f32,i32,f32,i32,i32,i32,f32->f32", NULL,
                                  accepts, tree_ensemble_run),
                     DF_KERNEL_IF("tree_ensemble", "f64", "f64,i32,f64,i32,i32,i32,f64->f64", NULL,
                                  accepts, tree_ensemble_run),
                     NULL};
