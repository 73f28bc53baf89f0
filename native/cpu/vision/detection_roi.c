/* vision/detection_roi.c: regions of interest of x (N, C, H, W) in bins.
 *
 *   roi_align       y[r, c, bin] = mean of linear samples of x[batch[r], c] in the bin, or max: the
 *                   largest product of an element and its weight, or what another map has there
 *   roi_align_grad  dx += dy by those weights, from zero
 *   max_roi_pool    y[r, c, bin] = largest element of the bin, 0 where it has none, or what another
 *                   map has there; and its gradient
 *
 * Forward, a task is some rows of bins; elements and weights of a bin's samples serve all channels.
 * Of many bins roi_align reads a copy of x whose channels lie last.
 * Backward, a task is some channels of all regions, so that sums have the order of the regions. */
#include "vision/detection_roi.h"
#include "assume.h"

/* ---- roi_align ------------------------------------------------------------------------------ */

/* One bin of channels [begin, end), forward or backward. */
static void align_bin(const pooling *s, const bins *b, int64_t region, int64_t row, int64_t column,
                      int64_t begin, int64_t end) {
  const int64_t total = b->count[0] * b->count[1], plane = s->height * s->width;
  const int64_t sample = s->batch[region], bin_index = row * s->columns + column;
  table t;
  if (total <= SAMPLES)
    fill(s, &t, b, row, column, 0, total);
  for (int64_t c = begin; c < end; c++) {
    const int64_t bin = (region * s->channels + c) * s->rows * s->columns + bin_index;
    const int64_t first_element = (sample * s->channels + c) * plane;
    df_real found = s->max && total > 0 ? -INFINITY : 0.0f, weight = 0.0f;
    int64_t at = -1;
    for (int64_t first = 0; first < total; first += SAMPLES) {
      const int64_t n = df_min(SAMPLES, total - first);
      if (total > SAMPLES)
        fill(s, &t, b, row, column, first, n);
      if (s->max) {
        const df_real best = largest_of(&t, s->x + first_element, n, found);
        if ((s->backward || s->read) &&
            (at < 0 || best > found || (best != best && found == found)))
          at = element_of(&t, s->x + first_element, n, best, &weight);
        found = best;
      } else if (!s->backward) {
        found += sum_of(&t, s->x + first_element, n);
      } else {
        const df_real share = s->dy[bin] / (df_real)total;
        for (int64_t i = 0; i < n; i++)
          for (int k = 0; k < 4; k++)
            s->y[first_element + t.element[i][k]] += t.weight[i][k] * share;
      }
    }
    if (s->read)
      s->y[bin] = at >= 0 ? weight * s->read[first_element + at] : 0.0f;
    else if (!s->backward)
      s->y[bin] = s->max || total == 0 ? found : found / (df_real)total;
    else if (at >= 0)
      s->y[first_element + at] += weight * s->dy[bin];
  }
}

static void align_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pooling *s = context;
  int64_t at, end;
  df_task_range(index, count, s->regions * s->rows, 1, &at, &end);
  for (; at < end; at++) {
    const bins b = bins_of(s, at / s->rows);
    for (int64_t column = 0; column < s->columns; column++)
      align_bin(s, &b, at / s->rows, at % s->rows, column, 0, s->channels);
  }
}

/* ---- roi_align, all channels of a bin at once ----------------------------------------------- */

/* Whether so many bins are read that x is worth a copy whose channels lie last: neighbouring
 * channels are then vectors, where each sample of a plane is a read of its own. */
static int by_channels(const int64_t *x, int64_t regions, const int64_t *size, int max) {
  DF_ASSUME(size); /* two, as the op's shape rule has it */
  const int64_t bins = df_times(df_times(regions, size[0]), size[1]);
  const int64_t elements = df_times(df_times(x[0], x[2]), x[3]);
  return !max && x[1] >= 8 && elements > 0 && df_times(bins, 4) >= elements;
}

static df_status align_prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  const int64_t *x = node->inputs[0]->shape, *size = df_attr_ints(node, DF_ROI_ALIGN_SIZE, NULL);
  const int max = df_attr_is(node, DF_ROI_ALIGN_MODE, "max");
  if (by_channels(x, node->inputs[1]->shape[0], size, max)) {
    const int64_t lines = df_times(node->threads, size[1]);
    const int64_t rows = df_plus(df_times(df_times(x[0], x[2]), x[3]), lines);
    out->workspace = df_times(df_times(rows, x[1]), sizeof(df_real));
  }
  return DF_OK;
}

enum { SQUARE = 16 }; /* elements by channels that are moved at once */

static void channels_last_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pooling *s = context;
  const int64_t plane = s->height * s->width, strips = df_divide_up(plane, SQUARE);
  int64_t i, end;
  df_task_range(index, count, s->samples * strips, 1, &i, &end);
  for (; i < end; i++) {
    const int64_t first = i % strips * SQUARE, n = df_min(SQUARE, plane - first);
    const df_real *from = s->x + i / strips * s->channels * plane + first;
    df_real *to = s->last + (i / strips * plane + first) * s->channels;
    for (int64_t c = 0; c < s->channels; c++)
      for (int64_t j = 0; j < n; j++)
        to[j * s->channels + c] = from[c * plane + j];
  }
}

/* sums[c] += the products of |n| samples of a table, in the order of sum_of. */
static void add_samples(df_real *restrict sums, const table *t, const df_real *x, int64_t channels,
                        int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const df_real *a = x + t->element[i][0] * channels, *b = x + t->element[i][1] * channels;
    const df_real *c = x + t->element[i][2] * channels, *d = x + t->element[i][3] * channels;
    const df_real *w = t->weight[i];
    for (int64_t j = 0; j < channels; j++)
      sums[j] = (((sums[j] + w[0] * a[j]) + w[1] * b[j]) + w[2] * c[j]) + w[3] * d[j];
  }
}

static void align_channels_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const pooling *s = context;
  const int64_t plane = s->height * s->width;
  df_real *line = s->last + (s->samples * plane + worker * s->columns) * s->channels;
  table t;
  int64_t at, end;
  df_task_range(index, count, s->regions * s->rows, 1, &at, &end);
  for (; at < end; at++) {
    const int64_t region = at / s->rows, row = at % s->rows;
    const bins b = bins_of(s, region);
    const int64_t total = b.count[0] * b.count[1];
    const df_real *x = s->last + s->batch[region] * plane * s->channels;
    memset(line, 0, (size_t)(s->columns * s->channels) * sizeof *line);
    for (int64_t column = 0; column < s->columns; column++)
      for (int64_t first = 0; first < total; first += SAMPLES) {
        const int64_t n = df_min(SAMPLES, total - first);
        fill(s, &t, &b, row, column, first, n);
        add_samples(line + column * s->channels, &t, x, s->channels, n);
      }
    df_real *y = s->y + (region * s->channels * s->rows + row) * s->columns;
    for (int64_t c = 0; c < s->channels; c++, y += s->rows * s->columns)
      for (int64_t column = 0; column < s->columns; column++)
        y[column] = total ? line[column * s->channels + c] / (df_real)total : 0.0f;
  }
}

/* ---- max_roi_pool --------------------------------------------------------------------------- */

/* Elements [*begin, *end) of bin |number| of an axis. */
static void span_of(const pooling *s, int64_t region, int axis, int64_t number, int64_t *begin,
                    int64_t *end) {
  const df_real first = round(s->rois[4 * region + 1 - axis] * s->scale);
  const df_real last = round(s->rois[4 * region + 3 - axis] * s->scale);
  const df_real n = (df_real)(axis ? s->columns : s->rows);
  const df_real size = (df_real)(axis ? s->width : s->height);
  const df_real length = last - first + 1.0f, step = (length > 1.0f ? length : 1.0f) / n;
  const df_real from = floor((df_real)number * step) + first;
  const df_real to = ceil((df_real)(number + 1) * step) + first;
  *begin = !(from > 0.0f) ? 0 : (int64_t)(from < size ? from : size);
  *end = !(to > 0.0f) ? 0 : (int64_t)(to < size ? to : size);
}

static void max_bin(const pooling *s, int64_t region, int64_t row, int64_t column, int64_t begin,
                    int64_t end) {
  int64_t top, bottom, left, right;
  span_of(s, region, 0, row, &top, &bottom);
  span_of(s, region, 1, column, &left, &right);
  for (int64_t c = begin; c < end; c++) {
    const int64_t first = (s->batch[region] * s->channels + c) * s->height * s->width;
    const int64_t bin = ((region * s->channels + c) * s->rows + row) * s->columns + column;
    df_real best = 0.0f;
    int64_t at = -1;
    for (int64_t y = top; y < bottom; y++)
      for (int64_t x = left; x < right; x++) {
        const df_real read = s->x[first + y * s->width + x];
        if (at < 0 || read > best || (read != read && best == best)) {
          best = read;
          at = y * s->width + x;
        }
      }
    if (!s->backward)
      s->y[bin] = s->read && at >= 0 ? s->read[first + at] : best;
    else if (at >= 0)
      s->y[first + at] += s->dy[bin];
  }
}

static void max_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pooling *s = context;
  int64_t at, end;
  df_task_range(index, count, s->regions * s->rows, 1, &at, &end);
  for (; at < end; at++)
    for (int64_t column = 0; column < s->columns; column++)
      max_bin(s, at / s->rows, at % s->rows, column, 0, s->channels);
}

/* ---- Gradients ------------------------------------------------------------------------------ */

static void backward_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const pooling *s = context;
  const int64_t plane = s->height * s->width;
  int64_t begin, end;
  df_task_range(index, count, s->channels, 1, &begin, &end);
  for (int64_t n = 0; n < s->samples; n++)
    memset(s->y + (n * s->channels + begin) * plane, 0,
           (size_t)((end - begin) * plane) * sizeof *s->y);
  for (int64_t region = 0; region < s->regions; region++) {
    bins b;
    if (s->is_align)
      b = bins_of(s, region);
    for (int64_t bin = 0; bin < s->rows * s->columns; bin++) {
      const int64_t row = bin / s->columns, column = bin % s->columns;
      if (s->is_align)
        align_bin(s, &b, region, row, column, begin, end);
      else
        max_bin(s, region, row, column, begin, end);
    }
  }
}

/* ---- Calls ---------------------------------------------------------------------------------- */

/* What all read: |x| has the shape of x, the regions are input |rois|, the samples the next; |size|
 * and |scale| are indices of attributes. */
static df_status pooling_of(const df_call *call, pooling *s, const df_tensor *x, int32_t rois,
                            int32_t size, int32_t scale) {
  const int64_t *bins = df_attr_ints(call, size, NULL);
  DF_ASSUME(bins); /* two, as the op's shape rule has it */
  *s = (pooling){.y = call->outputs[0]->data,
                 .rois = call->inputs[rois]->data,
                 .batch = call->inputs[rois + 1]->data,
                 .regions = call->inputs[rois]->shape[0],
                 .samples = x->shape[0],
                 .channels = x->shape[1],
                 .height = x->shape[2],
                 .width = x->shape[3],
                 .rows = bins[0],
                 .columns = bins[1],
                 .scale = (df_real)df_attr_float(call, scale)};
  for (int64_t i = 0; i < s->regions; i++)
    if (s->batch[i] < 0 || s->batch[i] >= s->samples)
      return df_fail(call, DF_INVALID, "region %lld is of sample %lld; there are %lld",
                     (long long)i, (long long)s->batch[i], (long long)s->samples);
  return DF_OK;
}

/* Options of roi_align from attribute |first| on; refuses regions with too many samples. */
static df_status options_of(const df_call *call, pooling *s, int32_t first) {
  s->is_align = 1;
  s->ratio = df_attr_int(call, first + DF_ROI_ALIGN_SAMPLING_RATIO);
  s->max = df_attr_is(call, first + DF_ROI_ALIGN_MODE, "max");
  s->half_pixel = df_attr_int(call, first + DF_ROI_ALIGN_HALF_PIXEL) != 0;
  for (int64_t i = 0; i < s->regions; i++) {
    const bins b = bins_of(s, i);
    if (df_max(b.count[0], b.count[1]) > MOST_SAMPLES)
      return df_fail(call, DF_INVALID,
                     "region %lld has too many samples: a bin has more than %d along an axis",
                     (long long)i, MOST_SAMPLES);
  }
  return DF_OK;
}

static df_status forward(const df_call *call, pooling *s, df_task task) {
  const int64_t tasks = df_task_count(call, df_elements(call->outputs[0]), DF_GRAIN / 32);
  df_parallel(call, task, s, df_min(s->regions * s->rows, tasks));
  return DF_OK;
}

static df_status backward(const df_call *call, pooling *s) {
  s->backward = 1;
  const int64_t tasks = df_task_count(call, df_elements(call->inputs[0]), DF_GRAIN / 32);
  df_parallel(call, backward_task, s, df_min(s->channels, tasks));
  return DF_OK;
}

static df_status align_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  pooling s;
  df_status status = pooling_of(call, &s, x, 1, DF_ROI_ALIGN_SIZE, DF_ROI_ALIGN_SPATIAL_SCALE);
  if (status == DF_OK)
    status = options_of(call, &s, DF_ROI_ALIGN_SIZE);
  if (status != DF_OK)
    return status;
  s.x = x->data;
  s.read = call->n_inputs > 3 ? call->inputs[3]->data : NULL;
  if (!by_channels(x->shape, s.regions, df_attr_ints(call, DF_ROI_ALIGN_SIZE, NULL), s.max))
    return forward(call, &s, align_task);
  s.last = call->workspace;
  df_parallel(call, channels_last_task, &s, df_task_count(call, df_elements(x), DF_GRAIN));
  return forward(call, &s, align_channels_task);
}

static df_status align_grad_run(const df_call *call) {
  const df_tensor *dx = call->outputs[0];
  pooling s;
  df_status status =
      pooling_of(call, &s, dx, 1, DF_ROI_ALIGN_GRAD_SIZE, DF_ROI_ALIGN_GRAD_SPATIAL_SCALE);
  if (status == DF_OK)
    status = options_of(call, &s, DF_ROI_ALIGN_GRAD_SIZE);
  if (status != DF_OK)
    return status;
  s.dy = call->inputs[0]->data;
  s.x = call->n_inputs > 3 ? call->inputs[3]->data : NULL;
  return backward(call, &s);
}

static df_status max_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  pooling s;
  const df_status status =
      pooling_of(call, &s, x, 1, DF_MAX_ROI_POOL_SIZE, DF_MAX_ROI_POOL_SPATIAL_SCALE);
  if (status != DF_OK)
    return status;
  s.x = x->data;
  s.read = call->n_inputs > 3 ? call->inputs[3]->data : NULL;
  return forward(call, &s, max_task);
}

static df_status max_grad_run(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  pooling s;
  const df_status status =
      pooling_of(call, &s, x, 2, DF_MAX_ROI_POOL_SIZE, DF_MAX_ROI_POOL_SPATIAL_SCALE);
  if (status != DF_OK)
    return status;
  s.dy = call->inputs[0]->data;
  s.x = x->data;
  return backward(call, &s);
}

DF_REAL_KERNELS(detection_roi) = {
    &(const df_kernel){.struct_size = sizeof(df_kernel),
                       .op = "roi_align",
                       .name = "roi_align " DF_REAL " " DF_TEXT(DF_ISA),
                       .operands = DF_REAL "," DF_REAL ",i64," DF_REAL "?->" DF_REAL,
                       .accepts = df_accepts_elements,
                       .prepare = align_prepare,
                       .run = align_run},
    DF_KERNEL_IF("roi_align_grad", DF_REAL, DF_REAL "," DF_REAL ",i64," DF_REAL "?->" DF_REAL, NULL,
                 df_accepts_elements, align_grad_run),
    DF_KERNEL_IF("max_roi_pool", DF_REAL, DF_REAL "," DF_REAL ",i64," DF_REAL "?->" DF_REAL, NULL,
                 df_accepts_elements, max_run),
    DF_KERNEL_IF("max_roi_pool_grad", DF_REAL, DF_REAL "," DF_REAL "," DF_REAL ",i64->" DF_REAL,
                 NULL, df_accepts_elements, max_grad_run),
    NULL};
