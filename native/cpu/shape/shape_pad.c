/* shape/shape_pad.c: pad(x, value?; pads, mode) -> y.
 *
 * pads: what is added before each axis, then after each; negative crops x first. Along an axis of n
 * elements, index i outside 0..n-1 is filled with |value| ("constant"), the nearest end ("edge"),
 * the mirror image about the ends ("reflect") or the axis again ("wrap").
 *
 * Axes that aren't padded are joined with their neighbours first. What is innermost and not padded,
 * such as the channels of an image that has them last, is one block, that is moved and filled at
 * once. A row is the last axis that is left: its blocks from x are one copy. */
#include "shape/copy.h"

typedef enum pad_mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_WRAP } pad_mode;

/* An axis, in coordinates of what is kept of x: y has the indices -before .. size - before - 1 of
 * it, of which x has 0 .. kept - 1, |stride| bytes apart. */
typedef struct pad_axis {
  int64_t size, kept, before, stride;
} pad_axis;

typedef struct pad_plan {
  pad_axis axes[DF_WALK_RANK]; /* the last is the row */
  int32_t rank;                /* at least 1 */
  pad_mode mode;
  const char *from; /* the first element that is kept */
  char *to;
  const void *value; /* null: zero bytes */
  int64_t item;      /* bytes of an element */
  int64_t block;     /* bytes that lie together in x and y */
  int64_t bytes;     /* of y */
} pad_plan;

/* i modulo |period|; most padding is shorter than a period, and needs no division. */
static int64_t within_period(int64_t i, int64_t period) {
  if (i < 0)
    i += period;
  else if (i >= period)
    i -= period;
  return i >= 0 && i < period ? i : (i % period + period) % period;
}

/* How many items of |size| bytes there are in |bytes|. */
static int64_t items_in(int64_t bytes, int64_t size) { return size == 1 ? bytes : bytes / size; }

/* The source of index i, -1 when it is filled. */
static int64_t pad_source(int64_t i, int64_t n, pad_mode mode) {
  if (i >= 0 && i < n)
    return i;
  if (mode == PAD_CONSTANT)
    return -1;
  if (mode == PAD_EDGE)
    return i < 0 ? 0 : n - 1;
  if (mode == PAD_WRAP)
    return within_period(i, n);
  const int64_t period = 2 * (n - 1);
  if (period == 0)
    return 0;
  i = within_period(i, period);
  return i < n ? i : period - i;
}

/* How many indices from i on, which is filled from x, have sources |*step| apart. */
static int64_t pad_run_of(int64_t i, int64_t n, pad_mode mode, int64_t *step) {
  const int64_t period = mode == PAD_WRAP ? n : 2 * (n - 1);
  *step = mode != PAD_EDGE && period > 0;
  if (!*step)
    return INT64_MAX;
  const int64_t at = within_period(i, period);
  if (mode == PAD_WRAP)
    return n - at;
  if (at < n - 1)
    return n - 1 - at;
  *step = -1;
  return period - at;
}

static int is_padded(const pad_axis *axis) { return axis->before || axis->size != axis->kept; }

/* Joins axes that aren't padded with each other, and the innermost ones with the block. */
static void collapse(pad_plan *pad, const pad_axis *axes, int32_t rank) {
  for (; rank > 0; rank--) {
    const pad_axis *axis = &axes[rank - 1];
    if (is_padded(axis) || (axis->size > 1 && axis->stride != pad->block))
      break;
    pad->block *= axis->size;
  }
  for (int32_t i = 0; i < rank; i++) {
    const pad_axis *axis = &axes[i];
    if (!is_padded(axis) && axis->size == 1)
      continue;
    pad_axis *last = pad->rank ? &pad->axes[pad->rank - 1] : NULL;
    if (last && !is_padded(last) && !is_padded(axis) && last->stride == axis->stride * axis->size) {
      last->size = last->kept = last->size * axis->size;
      last->stride = axis->stride;
    } else {
      pad->axes[pad->rank++] = *axis;
    }
  }
  if (pad->rank == 0)
    pad->axes[pad->rank++] = (pad_axis){1, 1, 0, pad->block};
}

/* |bytes| of the value, from the beginning of an element. */
static void fill(const pad_plan *pad, char *to, int64_t bytes) {
  if (!pad->value)
    memset(to, 0, (size_t)bytes);
  else
    df_copy_row(to, 1, pad->value, 0, bytes / pad->item, pad->item);
}

/* Bytes [begin, end) of a row of y, which is all filled where |from| is null. */
static void pad_row(const pad_plan *pad, char *to, const char *from, int64_t begin, int64_t end) {
  const pad_axis *axis = &pad->axes[pad->rank - 1];
  const int64_t block = pad->block, width = axis->size;
  if (!from) {
    fill(pad, to + begin, end - begin);
    return;
  }
  /* In blocks of y: those in [low, high) lie in x. */
  const int64_t low = df_min(axis->before, width);
  const int64_t high = df_max(low, df_min(axis->before + axis->kept, width));
  while (begin < end) {
    const int64_t at = items_in(begin, block), within = begin - at * block;
    const int inside = at >= low && at < high;
    int64_t stop = at + 1; /* the block behind what one copy or filling reaches */
    int64_t step = 1;      /* between the sources of its elements, if they are blocks */
    if (inside && (axis->stride == block || block == pad->item))
      stop = high;
    else if (!inside && pad->mode == PAD_CONSTANT)
      stop = at < low ? low : width;
    else if (!inside && block == pad->item) {
      const int64_t most = (at < low ? low : width) - at;
      stop = at + df_min(most, pad_run_of(at - axis->before, axis->kept, pad->mode, &step));
    }
    const int64_t bytes = df_min(stop * block, end) - begin;
    const int64_t source = pad_source(at - axis->before, axis->kept, pad->mode);
    const char *first = from + source * axis->stride + within;
    if (source < 0)
      fill(pad, to + begin, bytes);
    else if (block == pad->item)
      df_copy_row(to + begin, 1, first, step * items_in(axis->stride, block),
                  items_in(bytes, block), block);
    else
      df_copy_row(to + begin, 1, first, 1, items_in(bytes, pad->item), pad->item);
    begin += bytes;
  }
}

/* Which row of x a row of y has: the source of each index, outer axes first. */
typedef struct pad_cursor {
  int64_t index[DF_WALK_RANK];
  const char *from[DF_WALK_RANK + 1]; /* null: filled */
} pad_cursor;

/* Finds the sources of the axes from |axis| on. */
static void cursor_find(pad_cursor *cursor, const pad_plan *pad, int32_t axis) {
  for (; axis < pad->rank - 1; axis++) {
    const pad_axis *a = &pad->axes[axis];
    const int64_t source = pad_source(cursor->index[axis] - a->before, a->kept, pad->mode);
    const char *outer = cursor->from[axis];
    cursor->from[axis + 1] = outer && source >= 0 ? outer + source * a->stride : NULL;
  }
}

static void cursor_set(pad_cursor *cursor, const pad_plan *pad, int64_t row) {
  for (int32_t axis = pad->rank - 2; axis >= 0; axis--) {
    cursor->index[axis] = row % pad->axes[axis].size;
    row /= pad->axes[axis].size;
  }
  cursor->from[0] = pad->from;
  cursor_find(cursor, pad, 0);
}

static void cursor_next(pad_cursor *cursor, const pad_plan *pad) {
  int32_t axis = pad->rank - 2;
  while (axis >= 0 && ++cursor->index[axis] == pad->axes[axis].size)
    cursor->index[axis--] = 0;
  if (axis >= 0)
    cursor_find(cursor, pad, axis);
}

static void pad_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pad_plan *pad = context;
  const int64_t row = pad->axes[pad->rank - 1].size * pad->block;
  int64_t begin, end;
  df_task_range(index, count, pad->bytes, pad->item, &begin, &end);
  if (begin >= end)
    return;
  pad_cursor cursor;
  cursor_set(&cursor, pad, begin / row);
  for (int64_t first = begin - begin % row; first < end; first += row) {
    pad_row(pad, pad->to + first, cursor.from[pad->rank - 1], df_max(begin - first, 0),
            df_min(end - first, row));
    cursor_next(&cursor, pad);
  }
}

static df_status pad_run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *y = call->outputs[0];
  int32_t n_pads;
  const int64_t *pads = df_attr_ints(call, DF_PAD_PADS, &n_pads);
  const char *mode = df_attr_text(call, DF_PAD_MODE);
  const int64_t item = df_item_bytes(y->dtype);
  pad_plan pad = {
      .from = x->data, .to = y->data, .item = item, .block = item, .bytes = df_elements(y) * item};
  if (n_pads != 2 * x->rank || x->rank != y->rank || x->rank > DF_WALK_RANK)
    return df_fail(call, DF_INVALID, "pad: %d pads for %d axes", n_pads, x->rank);
  if (!strcmp(mode, "constant"))
    pad.mode = PAD_CONSTANT;
  else if (!strcmp(mode, "edge"))
    pad.mode = PAD_EDGE;
  else if (!strcmp(mode, "reflect"))
    pad.mode = PAD_REFLECT;
  else if (!strcmp(mode, "wrap"))
    pad.mode = PAD_WRAP;
  else
    return df_fail(call, DF_UNSUPPORTED, "pad: mode \"%s\" is not known", mode);
  if (pad.bytes == 0)
    return DF_OK;
  if (df_elements(x) == 0 && pad.mode != PAD_CONSTANT)
    return df_fail(call, DF_INVALID, "pad: mode \"%s\" needs elements to repeat, x has none", mode);
  if (call->n_inputs > 1)
    pad.value = call->inputs[1]->data;
  pad_axis axes[DF_WALK_RANK];
  int64_t stride = item; /* x is contiguous */
  for (int32_t axis = x->rank - 1; axis >= 0; axis--) {
    const int64_t first = df_max(-pads[axis], 0);
    axes[axis] =
        (pad_axis){y->shape[axis], x->shape[axis] - first - df_max(-pads[axis + x->rank], 0),
                   df_max(pads[axis], 0), stride};
    pad.from += first * stride;
    stride *= x->shape[axis];
  }
  collapse(&pad, axes, x->rank);
  df_parallel(call, pad_task, &pad, df_task_count(call, pad.bytes, 4 * DF_GRAIN));
  return DF_OK;
}

DF_KERNELS(shape_pad) = {DF_KERNEL("pad", "any", "any,any?->any", NULL, pad_run), NULL};
