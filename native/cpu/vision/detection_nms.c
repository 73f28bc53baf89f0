/* vision/detection_nms.c: non_max_suppression(boxes, scores, most, overlap, least?; rows, center)
 * -> selected (rows, 3), count.
 *
 * Per sample and class the boxes by descending score, the first of equals first, each kept unless
 * it overlaps one that is kept. The boxes are a heap, since seldom all are asked for. A class costs
 * n + k log n + k m for n boxes of which k are looked at and m are kept. */
#include "cpu.h"

typedef struct suppression {
  const float *boxes, *scores;
  int32_t *indices; /* of the boxes of each class, in the workspace */
  int64_t *counts;  /* kept boxes of each class, likewise */
  int64_t samples, classes, n;
  int64_t most;
  float overlap, least;
  int has_least, center;
} suppression;

/* ---- A heap of boxes, the best on top ------------------------------------------------------- */

/* Whether box |a| comes before |b|: NaN counts as the least. */
static int comes_first(const float *scores, int32_t a, int32_t b) {
  const float x = scores[a], y = scores[b];
  if (x > y || (y != y && x == x))
    return 1;
  return (x == y || (x != x && y != y)) && a < b;
}

static void sift(const float *scores, int32_t *heap, int64_t n, int64_t parent) {
  for (;;) {
    int64_t child = 2 * parent + 1;
    if (child >= n)
      return;
    if (child + 1 < n && comes_first(scores, heap[child + 1], heap[child]))
      child++;
    if (!comes_first(scores, heap[child], heap[parent]))
      return;
    const int32_t swapped = heap[parent];
    heap[parent] = heap[child];
    heap[child] = swapped;
    parent = child;
  }
}

/* ---- Boxes ---------------------------------------------------------------------------------- */

typedef struct corners {
  float low[2], high[2];
} corners;

static corners corners_of(const float *box, int center) {
  corners c;
  for (int axis = 0; axis < 2; axis++) {
    const float a = box[axis], b = box[2 + axis];
    c.low[axis] = center ? a - b / 2.0f : a < b ? a : b;
    c.high[axis] = center ? a + b / 2.0f : a < b ? b : a;
  }
  return c;
}

static int overlaps(const corners *a, const corners *b, float limit) {
  float common[2];
  for (int axis = 0; axis < 2; axis++) {
    const float low = a->low[axis] > b->low[axis] ? a->low[axis] : b->low[axis];
    const float high = a->high[axis] < b->high[axis] ? a->high[axis] : b->high[axis];
    common[axis] = high - low;
    if (!(common[axis] > 0.0f))
      return 0;
  }
  const float shared = common[0] * common[1];
  const float first = (a->high[0] - a->low[0]) * (a->high[1] - a->low[1]);
  const float second = (b->high[0] - b->low[0]) * (b->high[1] - b->low[1]);
  const float either = first + second - shared;
  return first > 0.0f && second > 0.0f && either > 0.0f && shared / either > limit;
}

/* Kept boxes follow each other down from the end of the class's indices, behind the heap. */
static int64_t suppress(const suppression *s, const float *boxes, const float *scores,
                        int32_t *indices) {
  int64_t n = 0, kept = 0;
  for (int64_t i = 0; i < s->n; i++)
    if (!s->has_least || scores[i] > s->least)
      indices[n++] = (int32_t)i;
  for (int64_t i = n / 2 - 1; i >= 0; i--)
    sift(scores, indices, n, i);
  const int64_t last = n - 1;
  while (n > 0 && kept < s->most) {
    const int32_t best = indices[0];
    indices[0] = indices[--n];
    sift(scores, indices, n, 0);
    const corners box = corners_of(boxes + 4 * best, s->center);
    int hidden = 0;
    for (int64_t i = 0; i < kept && !hidden; i++) {
      const corners before = corners_of(boxes + (int64_t)4 * indices[last - i], s->center);
      hidden = overlaps(&before, &box, s->overlap);
    }
    if (!hidden)
      indices[last - kept++] = best;
  }
  for (int64_t i = 0, j = last; i < kept && i < j; i++, j--) { /* to the front, in order */
    const int32_t swapped = indices[i];
    indices[i] = indices[j];
    indices[j] = swapped;
  }
  return kept;
}

static void suppress_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const suppression *s = context;
  int64_t at, end;
  df_task_range(index, count, s->samples * s->classes, 1, &at, &end);
  for (; at < end; at++)
    s->counts[at] = suppress(s, s->boxes + at / s->classes * s->n * 4, s->scores + at * s->n,
                             s->indices + at * s->n);
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static df_status suppression_run(const df_call *call) {
  const df_tensor *scores = call->inputs[1], *selected = call->outputs[0];
  const int64_t rows = selected->shape[0];
  suppression s = {.boxes = call->inputs[0]->data,
                   .scores = scores->data,
                   .samples = scores->shape[0],
                   .classes = scores->shape[1],
                   .n = scores->shape[2],
                   .most = *(const int64_t *)call->inputs[2]->data,
                   .overlap = *(const float *)call->inputs[3]->data,
                   .center = df_attr_int(call, DF_NON_MAX_SUPPRESSION_CENTER) != 0};
  if (call->n_inputs > 4 && call->inputs[4]->data) {
    s.has_least = 1;
    s.least = *(const float *)call->inputs[4]->data;
  }
  const int64_t classes = s.samples * s.classes;
  s.counts = call->workspace;
  s.indices = (int32_t *)(void *)(s.counts + classes);
  df_parallel(call, suppress_task, &s,
              df_min(classes, df_task_count(call, df_times(classes, s.n), DF_GRAIN / 8)));
  int64_t *out = selected->data, found = 0;
  for (int64_t c = 0; c < classes; c++)
    for (int64_t i = 0; i < s.counts[c]; i++, found++)
      if (found < rows) {
        out[3 * found] = c / s.classes;
        out[3 * found + 1] = c % s.classes;
        out[3 * found + 2] = s.indices[c * s.n + i];
      }
  if (found > rows)
    return df_fail(call, DF_INVALID,
                   "non_max_suppression: %lld boxes stay; there are %lld rows for them",
                   (long long)found, (long long)rows);
  for (int64_t i = 3 * found; i < 3 * rows; i++)
    out[i] = -1;
  *(int64_t *)call->outputs[1]->data = found;
  return DF_OK;
}

static df_status suppression_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const int64_t *shape = node->inputs[1]->shape;
  const int64_t classes = df_times(shape[0], shape[1]);
  out->workspace = df_plus(df_times(classes, sizeof(int64_t)),
                           df_times(df_times(classes, shape[2]), sizeof(int32_t)));
  return DF_OK;
}

/* Boxes have numbers of 32 bits. */
static const char *accepts(const df_node *node) {
  if (node->inputs[1]->shape[2] > INT32_MAX)
    return "there are too many boxes";
  return df_accepts_elements(node);
}

DF_KERNELS(detection_nms) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                .op = "non_max_suppression",
                                                .name = "non_max_suppression f32 " DF_TEXT(DF_ISA),
                                                .operands = "f32,f32,i64,f32,f32?->i64,i64",
                                                .accepts = accepts,
                                                .prepare = suppression_prepare,
                                                .run = suppression_run},
                             NULL};
