/* vision/grid_sample.c: samples of x (N, C, spatial...) at the positions of a grid (N, ..., axes),
 * the last axis of x first.
 *
 *   grid_sample             y[n, c, p] = sum over taps t of weight[p, t] x[n, c, element[p, t]]
 *   grid_sample_grad_input  dx[n, c, element[p, t]] += weight[p, t] dy[n, c, p], from zero
 *   grid_sample_grad_grid   dgrid[n, p, a] = sum over c and t of slope[p, t, a] dy[n, c, p] x[...]
 *
 * Elements and weights of a block of positions are computed once and serve all channels. */
#include "vision/grid_sample.h"

/* Blocks of positions [*first, *first + *n) of sample *sample, one after the other. */
static void block_at(const sampling *s, int64_t unit, int64_t *sample, int64_t *first, int64_t *n) {
  const int64_t blocks = df_divide_up(s->positions, s->block);
  *sample = unit / blocks;
  *first = unit % blocks * s->block;
  *n = df_min(s->block, s->positions - *first);
}

/* y[p] = the sum over all taps. */
static void sum_taps(df_real *restrict y, const df_real *restrict x, const table *t, int64_t block,
                     int64_t n, int32_t taps) {
  for (int64_t p = 0; p < n; p++) {
    const int32_t *element = t->element + p;
    const df_real *weight = t->weight + p;
    df_real sum = 0.0f;
    for (int32_t tap = 0; tap < taps; tap++)
      sum += weight[tap * block] * element_at(x, element[tap * block]);
    y[p] = sum;
  }
}

static void sample_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const sampling *s = context;
  table t;
  int64_t unit, end;
  df_task_range(index, count, s->samples * df_divide_up(s->positions, s->block), 1, &unit, &end);
  for (; unit < end; unit++) {
    int64_t sample, first, n;
    block_at(s, unit, &sample, &first, &n);
    fill(s, &t, s->grid + (sample * s->positions + first) * s->spatial, n, 0);
    for (int64_t c = 0; c < s->channels; c++) {
      const df_real *x = s->x + (sample * s->channels + c) * s->plane;
      df_real *y = s->y + (sample * s->channels + c) * s->positions + first;
      if (s->all_taps == 4) /* known, so that the loop over taps is unrolled */
        sum_taps(y, x, &t, s->block, n, 4);
      else if (s->all_taps == 1)
        sum_taps(y, x, &t, s->block, n, 1);
      else if (s->all_taps == 16)
        sum_taps(y, x, &t, s->block, n, 16);
      else
        sum_taps(y, x, &t, s->block, n, s->all_taps);
    }
  }
}

static void grad_input_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const sampling *s = context;
  const int64_t groups = df_divide_up(s->channels, s->channel_block);
  table t;
  int64_t unit, end;
  df_task_range(index, count, s->samples * groups, 1, &unit, &end);
  for (; unit < end; unit++) {
    const int64_t sample = unit / groups, begin = unit % groups * s->channel_block;
    const int64_t stop = df_min(begin + s->channel_block, s->channels);
    memset(s->y + (sample * s->channels + begin) * s->plane, 0,
           (size_t)((stop - begin) * s->plane) * sizeof *s->y);
    for (int64_t first = 0; first < s->positions; first += s->block) {
      const int64_t n = df_min(s->block, s->positions - first);
      fill(s, &t, s->grid + (sample * s->positions + first) * s->spatial, n, 0);
      for (int64_t c = begin; c < stop; c++) {
        df_real *dx = s->y + (sample * s->channels + c) * s->plane;
        const df_real *dy = s->dy + (sample * s->channels + c) * s->positions + first;
        for (int32_t tap = 0; tap < s->all_taps; tap++)
          for (int64_t p = 0; p < n; p++)
            if (t.element[tap * s->block + p] >= 0)
              dx[t.element[tap * s->block + p]] += t.weight[tap * s->block + p] * dy[p];
      }
    }
  }
}

static void grad_grid_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const sampling *s = context;
  table t;
  df_real sums[AXES][ENTRIES];
  int64_t unit, end;
  df_task_range(index, count, s->samples * df_divide_up(s->positions, s->block), 1, &unit, &end);
  for (; unit < end; unit++) {
    int64_t sample, first, n;
    block_at(s, unit, &sample, &first, &n);
    const int64_t start = (sample * s->positions + first) * s->spatial;
    fill(s, &t, s->grid + start, n, 1);
    memset(sums, 0, sizeof sums);
    for (int64_t c = 0; c < s->channels; c++) {
      const df_real *x = s->x + (sample * s->channels + c) * s->plane;
      const df_real *dy = s->dy + (sample * s->channels + c) * s->positions + first;
      for (int32_t tap = 0; tap < s->all_taps; tap++) {
        const int32_t *element = t.element + tap * s->block;
        for (int32_t axis = 0; axis < s->spatial; axis++) {
          const df_real *slope = t.slope[axis] + tap * s->block;
          df_real *sum = sums[axis];
          for (int64_t p = 0; p < n; p++)
            sum[p] += slope[p] * dy[p] * element_at(x, element[p]);
        }
      }
    }
    for (int32_t axis = 0; axis < s->spatial; axis++) {
      const df_real length = (df_real)(s->sizes[axis] - (s->align_corners != 0));
      const df_real by = s->normalized ? length / 2.0f : 1.0f;
      for (int64_t p = 0; p < n; p++)
        s->y[start + p * s->spatial + s->spatial - 1 - axis] = by * sums[axis][p];
    }
  }
}

/* ---- Calls ---------------------------------------------------------------------------------- */

/* What all three read; |first| is the index of the attribute mode, |x| has the shape of x. */
static sampling sampling_of(const df_call *call, int32_t first, const df_tensor *x,
                            const df_tensor *grid) {
  sampling s = {.grid = grid->data,
                .y = call->outputs[0]->data,
                .samples = x->shape[0],
                .channels = x->shape[1],
                .positions = df_product(grid->shape, 1, grid->rank - 1),
                .plane = df_product(x->shape, 2, x->rank),
                .spatial = x->rank - 2,
                .align_corners = df_attr_int(call, first + DF_GRID_SAMPLE_ALIGN_CORNERS) != 0,
                .normalized = df_attr_int(call, first + DF_GRID_SAMPLE_NORMALIZED) != 0};
  s.taps = df_attr_is(call, first + DF_GRID_SAMPLE_MODE, "nearest")  ? 1
           : df_attr_is(call, first + DF_GRID_SAMPLE_MODE, "linear") ? 2
                                                                     : 4;
  s.padding = df_attr_is(call, first + DF_GRID_SAMPLE_PADDING, "zeros")    ? ZEROS
              : df_attr_is(call, first + DF_GRID_SAMPLE_PADDING, "border") ? BORDER
                                                                           : REFLECTION;
  s.all_taps = 1;
  DF_ASSUME(s.spatial >= 1 && s.spatial <= AXES);
  for (int32_t axis = 0; axis < s.spatial; axis++) {
    s.sizes[axis] = (int32_t)x->shape[2 + axis];
    s.all_taps *= s.taps;
  }
  for (int32_t t = 0; t < s.all_taps; t++)
    for (int32_t axis = s.spatial - 1, rest = t; axis >= 0; axis--, rest /= s.taps)
      s.tap_of[t][axis] = (int8_t)(rest % s.taps);
  s.block = ENTRIES / s.all_taps;
  return s;
}

/* Splits a call into tasks: of blocks, or as |units| says. */
static df_status split(const df_call *call, sampling *s, df_task task, int64_t units) {
  const int64_t work = s->samples * s->channels * s->positions * s->all_taps;
  df_parallel(call, task, s, df_min(units, df_task_count(call, work, DF_GRAIN)));
  return DF_OK;
}

static df_status sample_run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  sampling s = sampling_of(call, DF_GRID_SAMPLE_MODE, x, call->inputs[1]);
  s.x = x->data;
  return split(call, &s, sample_task, s.samples * df_divide_up(s.positions, s.block));
}

static df_status grad_input_run(const df_call *call) {
  const df_tensor *dx = call->outputs[0];
  sampling s = sampling_of(call, DF_GRID_SAMPLE_GRAD_INPUT_MODE, dx, call->inputs[1]);
  s.dy = call->inputs[0]->data;
  /* Elements of a plane are summed in the order of positions whatever the split. */
  const int64_t tasks = df_divide_up(4 * (int64_t)call->threads, s.samples);
  s.channel_block = df_even_split(s.channels, df_divide_up(s.channels, df_max(1, tasks)));
  return split(call, &s, grad_input_task, s.samples * df_divide_up(s.channels, s.channel_block));
}

static df_status grad_grid_run(const df_call *call) {
  const df_tensor *x = call->inputs[1];
  sampling s = sampling_of(call, DF_GRID_SAMPLE_MODE, x, call->inputs[2]);
  s.dy = call->inputs[0]->data;
  s.x = x->data;
  return split(call, &s, grad_grid_task, s.samples * df_divide_up(s.positions, s.block));
}

/* Offsets in a plane, and periods, have 32 bits. */
static const char *accepts_planes(const df_node *node, const df_operand *x) {
  int64_t plane = 1;
  for (int32_t axis = 2; axis < x->rank; axis++)
    plane = df_times(plane, x->shape[axis]);
  if (plane > INT32_MAX / 4)
    return "a plane has too many elements";
  return df_accepts_elements(node);
}

static const char *accepts(const df_node *node) { return accepts_planes(node, node->inputs[0]); }

static const char *accepts_grad_input(const df_node *node) {
  return accepts_planes(node, node->outputs[0]);
}

static const char *accepts_grad_grid(const df_node *node) {
  return accepts_planes(node, node->inputs[1]);
}

DF_REAL_KERNELS(grid_sample) = {
    DF_KERNEL_IF("grid_sample", DF_REAL, DF_REAL "," DF_REAL "->" DF_REAL, NULL, accepts,
                 sample_run),
    DF_KERNEL_IF("grid_sample_grad_input", DF_REAL, DF_REAL "," DF_REAL "->" DF_REAL, NULL,
                 accepts_grad_input, grad_input_run),
    DF_KERNEL_IF("grid_sample_grad_grid", DF_REAL, DF_REAL "," DF_REAL "," DF_REAL "->" DF_REAL,
                 NULL, accepts_grad_grid, grad_grid_run),
    NULL};
