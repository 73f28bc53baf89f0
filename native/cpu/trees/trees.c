/* trees/trees.c: tree_ensemble(x, nodes, thresholds, starts, leaves, targets, weights; size,
 * aggregate) -> y. Tasks are ranges of rows; a block of rows visits one tree after the other, so
 * that the nodes of a tree stay in the cache. The steps of a walk wait for memory, so several walks
 * alternate: of rows in a tree or, where there are few rows, of trees. Each number that leads to
 * another is checked: a node only leads to later nodes, so every walk ends. Stored nodes are
 * checked once, when they are prepacked; others when they are read. */
#include "cpu.h"

enum {
  WRONG = INT32_MIN, /* no node and no leaf */
  TOGETHER = 8,      /* walks that alternate */
  NODE = 4,          /* numbers of a node: feature, comparison, the next if it holds, and if not */
  MISSING = 8,       /* beside a comparison: NaN fulfills it */
  BLOCK = 64,        /* rows that visit a tree together */
  SCORES = 4096,     /* targets of the rows of a block; on the stack, 32 KiB */
  ROW_GRAIN = 512    /* walks of a tree below which a second thread does not pay */
};

typedef enum aggregate { SUM, MINIMUM, MAXIMUM } aggregate;

/* A prepacked node: its feature, below 2^28, with the comparison and whether NaN fulfills it in the
 * bits above; and what follows if it doesn't hold and if it does. */
enum { FEATURE_BITS = 28, STORED_NODES = 1 };
typedef struct stored_node {
  uint32_t test;
  int32_t next[2];
} stored_node;

/* Before prepacked nodes: what they ask of the other operands. */
typedef struct forest_head {
  int32_t is_right;     /* each leads to a later node or to a leaf, and has a comparison */
  int32_t mode;         /* the comparison of all, or -1 where they differ */
  int32_t last_feature; /* the highest number of a feature */
  int32_t unused;
} forest_head;

typedef struct ensemble {
  const df_tensor *x;
  void *y;
  const int32_t *nodes, *starts, *leaves, *targets;
  const void *thresholds, *weights;
  const forest_head *stored; /* null where nodes are read as they are */
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

/* ---- Nodes as they are ---------------------------------------------------------------------- */

/* What follows |node| for a row: another node, a leaf, or WRONG. */
#define NEXT(T)                                                                                    \
  static inline int32_t next_##T(const ensemble *e, const T *row, int32_t node) {                  \
    if (node >= e->n_nodes)                                                                        \
      return WRONG;                                                                                \
    const int32_t *n = e->nodes + (int64_t)node * NODE;                                            \
    const int32_t feature = n[0], mode = n[1];                                                     \
    if (feature < 0 || feature >= e->n_features || (mode & ~MISSING) < 0 || (mode & ~MISSING) > 5) \
      return WRONG;                                                                                \
    const T value = row[feature];                                                                  \
    const int holds = fulfills(mode, value, ((const T *)e->thresholds)[node]) |                    \
                      ((value != value) & (mode / MISSING));                                       \
    const int32_t next = n[3 - holds];                                                             \
    return next >= 0 && next <= node ? WRONG : next;                                               \
  }
NEXT(float)
NEXT(double)

/* ---- Prepacked nodes ------------------------------------------------------------------------ */

static void prepack_nodes(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  const int64_t count = node->inputs[1]->shape[0];
  const int32_t *n = source;
  forest_head *head = prepacked;
  stored_node *to = (stored_node *)(head + 1);
  *head = (forest_head){.is_right = 1, .mode = count ? n[1] & ~MISSING : -1};
  for (int64_t i = 0; i < count; i++, n += NODE) {
    const int32_t mode = n[1] & ~MISSING;
    to[i] = (stored_node){(uint32_t)n[0] | (uint32_t)n[1] << FEATURE_BITS, {n[3], n[2]}};
    head->is_right &= n[0] >= 0 && n[0] < 1 << FEATURE_BITS && mode >= 0 && mode <= 5;
    head->mode = mode == head->mode ? mode : -1;
    head->last_feature = n[0] > head->last_feature ? n[0] : head->last_feature;
    for (int which = 2; which < NODE; which++) {
      head->is_right &= n[which] < 0 ? n[which] != WRONG : n[which] > i && n[which] < count;
    }
  }
}

static df_status tree_ensemble_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const int64_t nodes = node->inputs[1]->shape[0] * (int64_t)sizeof(stored_node);
  df_ask_prepack(out, 1, STORED_NODES, (int64_t)sizeof(forest_head) + nodes, prepack_nodes);
  out->replaced = 1 << 1;
  return DF_OK;
}

/* ---- Walks ---------------------------------------------------------------------------------- */

/* Walks of TOGETHER rows at most, each from |at| to a leaf, -1 - index, or to WRONG. As the outcome
 * of a comparison can't be predicted, none of their steps branches by it. */
#define WALK(T, name, step)                                                                        \
  static void walk_##name##_##T(const ensemble *e, const T *const *rows, int32_t *at, int count) { \
    const stored_node *nodes = (const stored_node *)(e->stored + 1);                               \
    const T *thresholds = e->thresholds;                                                           \
    (void)nodes, (void)thresholds;                                                                 \
    for (int inner = 1; inner;) {                                                                  \
      inner = 0;                                                                                   \
      for (int i = 0; i < count; i++) {                                                            \
        if (at[i] >= 0)                                                                            \
          at[i] = step;                                                                            \
        inner |= at[i] >= 0;                                                                       \
      }                                                                                            \
    }                                                                                              \
  }
#define STEP(T, name, compared)                                                                    \
  static inline int32_t step_##name##_##T(const stored_node *n, T threshold, const T *row) {       \
    const T value = row[n->test & ((1u << FEATURE_BITS) - 1)];                                     \
    const int holds = (compared) | ((value != value) & (int)(n->test >> (FEATURE_BITS + 3)));      \
    return n->next[holds];                                                                         \
  }                                                                                                \
  WALK(T, name, step_##name##_##T(nodes + at[i], thresholds[at[i]], rows[i]))
#define WALKS(T)                                                                                   \
  WALK(T, checked, next_##T(e, rows[i], at[i]))                                                    \
  STEP(T, at_most, value <= threshold)                                                             \
  STEP(T, below, value < threshold)                                                                \
  STEP(T, any, fulfills((int32_t)(n->test >> FEATURE_BITS), value, threshold))                     \
  static void walk_##T(const ensemble *e, const T *const *rows, int32_t *at, int count) {          \
    if (!e->stored)                                                                                \
      walk_checked_##T(e, rows, at, count);                                                        \
    else if (e->stored->mode == 0)                                                                 \
      walk_at_most_##T(e, rows, at, count);                                                        \
    else if (e->stored->mode == 1)                                                                 \
      walk_below_##T(e, rows, at, count);                                                          \
    else                                                                                           \
      walk_any_##T(e, rows, at, count);                                                            \
  }
WALKS(float)
WALKS(double)

#define ROWS(T)                                                                                    \
  static const char *rows_##T(const ensemble *e, int64_t begin, int64_t end) {                     \
    double scores[SCORES];                                                                         \
    unsigned char seen[SCORES];                                                                    \
    const T *x = (const T *)e->x->data + begin * e->n_features;                                    \
    const int64_t rows = end - begin, n = rows * e->n_targets, walks = rows * e->n_trees;          \
    memset(seen, 0, (size_t)n);                                                                    \
    memset(scores, 0, (size_t)n * sizeof *scores);                                                 \
    for (int64_t walk = 0, tree = 0, row = 0; walk < walks; walk += TOGETHER) {                    \
      const int count = (int)df_min(walks - walk, TOGETHER);                                       \
      int32_t at[TOGETHER];                                                                        \
      int64_t of[TOGETHER];                                                                        \
      const T *from[TOGETHER];                                                                     \
      for (int i = 0; i < count; i++) {                                                            \
        at[i] = e->starts[tree];                                                                   \
        from[i] = x + row * e->n_features;                                                         \
        of[i] = row * e->n_targets;                                                                \
        if (at[i] >= e->n_nodes)                                                                   \
          return "a start that is no node";                                                        \
        if (++row == rows)                                                                         \
          row = 0, tree++;                                                                         \
      }                                                                                            \
      walk_##T(e, from, at, count);                                                                \
      for (int i = 0; i < count; i++) {                                                            \
        if (at[i] == WRONG)                                                                        \
          return "a node that is no node, or leads back";                                          \
        const char *wrong = add_leaf_##T(e, -1 - (int64_t)at[i], scores + of[i], seen + of[i]);    \
        if (wrong)                                                                                 \
          return wrong;                                                                            \
      }                                                                                            \
    }                                                                                              \
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
  if (call->prepacked && call->prepacked[0]) {
    e.stored = call->prepacked[0];
    if (!e.stored->is_right || (e.n_nodes && e.stored->last_feature >= e.n_features))
      return df_fail(call, DF_INVALID,
                     "tree_ensemble: the trees have a node that is no node, or leads back");
  }
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

#define KERNEL(key, operands_)                                                                     \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "tree_ensemble",                                                        \
                     .name = "tree_ensemble " key " " DF_TEXT(DF_ISA),                             \
                     .operands = operands_,                                                        \
                     .accepts = accepts,                                                           \
                     .prepare = tree_ensemble_prepare,                                             \
                     .run = tree_ensemble_run}

DF_KERNELS(trees) = {KERNEL("f32", "f32,i32,f32,i32,i32,i32,f32->f32"),
                     KERNEL("f64", "f64,i32,f64,i32,i32,i32,f64->f64"), NULL};
