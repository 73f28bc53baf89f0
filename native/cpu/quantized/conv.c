/* quantized/conv.c: convolutions of bytes.
 *
 *   conv_integer      y = sum over c, t of (x[n, c, o * stride - pad + t * dilation] - x_zero)
 *                         (w[f, c, t] - w_zero[f]), where padding is x_zero
 *   conv_dequantized  y x_scale w_scale[f] + bias[f]
 *   conv_requantized  round((y + bias[f]) x_scale w_scale[f] / y_scale) + y_zero, saturated
 *
 * x: (N, G C, in...), w: (G F, C, kernel...), y: (N, G F, out...), or with channels last as
 * quantized/last.h has it. Filters are rows, signed and
 * packed beforehand where they are constant; positions are columns, unsigned. First four channels
 * each are interleaved, with their padding (quantized/interleave.h). A task then gathers the steps
 * of some panels of positions, which stay in the second cache while panels of filters pass over
 * them. Where a position reads just its own place, it interleaves channels into panels itself. */
#include "quantized/depthwise.h"
#include "quantized/images.h"
#include "quantized/last.h"
#include "quantized/operands.h"
#include "quantized/pack.h"

enum {
  GRAIN = 256 * 1024,   /* multiply-adds of the smallest task worth a thread's while */
  STAYING = 384 * 1024, /* bytes of columns that stay in the second cache */
  ROW_VECTORS = 4       /* the epilogue's arrays by row, for all filters */
};

typedef struct plan {
  df_conv conv;
  int64_t steps;
  int64_t height;           /* filters of a panel */
  int64_t panels, group;    /* panels of positions of an image, and those that stay together */
  int64_t across, down;     /* tasks of an image: splits of positions and of filters */
  int64_t tasks;            /* of all images and groups */
  int64_t vectors, weights; /* offsets in the workspace, behind the images, in bytes */
  int64_t workspace;        /* bytes before the scratches of tasks */
  int64_t sums;             /* offset in a task's scratch */
  int64_t scratch;
} plan;

/* Bytes of the sums of all filters. */
static int64_t sum_bytes(const df_conv *conv) {
  return df_byte_sum_bytes(conv->groups * conv->filters);
}

/* Bytes of the panels of a group. */
static int64_t group_bytes(const plan *w) {
  return df_round_up(w->conv.filters, w->height) * w->steps * DF_BYTE_STEP;
}

/* Panels of all groups. */
static int64_t weight_panels(const plan *w) {
  return w->conv.groups * df_divide_up(w->conv.filters, w->height);
}

static int64_t weight_bytes(const plan *w) {
  return sum_bytes(&w->conv) + df_round_up(w->conv.groups * group_bytes(w), 64) +
         df_byte_flag_bytes(weight_panels(w), w->steps);
}

static plan make_plan(const df_byte_images *images, int32_t threads) {
  const df_conv conv = images->conv;
  plan w = {.conv = conv, .steps = images->steps};
  w.height = df_byte_height(conv.filters);
  w.panels = df_byte_panels(conv.window.out_size);
  const int64_t units = conv.batch * conv.groups, heights = df_divide_up(conv.filters, w.height);
  const int64_t work =
      df_times(df_times(units * conv.filters, conv.window.out_size), w.steps * DF_BYTE_STEP);
  const int64_t tasks = threads > 1 ? df_max(1, df_min(4 * threads, work / GRAIN)) : 1;
  const int64_t each = df_divide_up(tasks, units);
  w.across = df_min(w.panels, each);
  w.down = df_min(heights, df_divide_up(each, w.across));
  w.tasks = units * w.across * w.down;
  w.group = df_max(1, df_min(df_divide_up(w.panels, w.across), STAYING / (w.steps * DF_BYTE_LINE)));
  w.vectors = df_round_up(images->bytes, 64);
  w.weights = w.vectors + ROW_VECTORS * sum_bytes(&conv);
  w.workspace = w.weights + (conv.uses ? weight_bytes(&w) : 0);
  w.sums = w.group * w.steps * DF_BYTE_LINE;
  w.scratch = w.sums + w.group * DF_BYTE_COLUMNS * (int64_t)sizeof(int32_t);
  return w;
}

/* ---- Weights: sums of all filters, then panels ----------------------------------------------- */

static void pack_weights(const plan *w, const uint8_t *from, uint8_t sign, uint8_t *packed) {
  const df_conv *c = &w->conv;
  const int64_t taps = c->window.taps, filters = c->groups * c->filters;
  int32_t *sums = (int32_t *)(void *)packed;
  packed += sum_bytes(c);
  memset(packed, 0, (size_t)(c->groups * group_bytes(w)));
  for (int64_t f = 0; f < filters; f++) {
    const int64_t own = f % c->filters, row = own % w->height;
    uint8_t *to =
        packed + f / c->filters * group_bytes(w) + ((own - row) * w->steps + row) * DF_BYTE_STEP;
    sums[f] = 0;
    for (int64_t channel = 0; channel < c->channels; channel++)
      for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t step = channel / DF_BYTE_STEP * taps + tap;
        const uint8_t value = *from++ ^ sign;
        to[step * w->height * DF_BYTE_STEP + channel % DF_BYTE_STEP] = value;
        sums[f] += (int8_t)value;
      }
  }
  const int64_t line = w->height * DF_BYTE_STEP;
  df_byte_note_panels(sums, sum_bytes(c), packed, weight_panels(w), w->steps, line, line);
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

typedef struct convolution {
  plan w;
  df_byte_operands o;
  df_byte_epilogue epilogue; /* of all filters */
  df_byte_images images;
  const uint8_t *packed;
  uint8_t *workspace;
} convolution;

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const convolution *c = context;
  const plan *w = &c->w;
  const df_conv *conv = &w->conv;
  const int64_t split = index / w->down % w->across, unit = index / (w->down * w->across);
  const int64_t group = unit % conv->groups, plane = conv->window.out_size;
  const int64_t heights = df_divide_up(conv->filters, w->height);
  int64_t panel, last, filter, end;
  df_task_range(split, w->across, w->panels, 1, &panel, &last);
  df_task_range(index % w->down, w->down, heights, 1, &filter, &end);
  filter *= w->height;
  end = df_min(conv->filters, end * w->height);
  uint8_t *scratch = c->workspace + w->workspace + worker * w->scratch;
  int32_t *sums = (int32_t *)(void *)(scratch + w->sums);
  const int64_t size = w->steps * DF_BYTE_LINE, row = group * conv->filters + filter;
  df_byte_epilogue e = c->epilogue;
  e.row_add += row;
  if (e.row_zero) {
    e.row_zero += row;
    e.column_sum = sums;
  }
  if (e.row_scale)
    e.row_scale += row;
  if (e.row_bias)
    e.row_bias += row;
  char *out =
      (char *)e.out + (unit * conv->filters + filter) * plane * (e.form == DF_BYTE_STEPS ? 1 : 4);
  for (int64_t first = panel, some; first < last; first += some) {
    some = df_min(w->group, last - first);
    const int64_t position = first * DF_BYTE_COLUMNS;
    const int64_t columns = df_min(some * DF_BYTE_COLUMNS, plane - position);
    for (int64_t i = 0; i < some; i++) {
      const int64_t at = i * DF_BYTE_COLUMNS, own = df_min(DF_BYTE_COLUMNS, columns - at);
      DF_NAME(df_byte_pack_positions)(&c->images, scratch + i * size, unit, position + at, own);
    }
    if (e.row_zero)
      DF_NAME(df_byte_column_sums)(sums, scratch, columns, w->steps, size, 1);
    e.out = out + position * (e.form == DF_BYTE_STEPS ? 1 : 4);
    const df_byte_product product = {
        .unsigned_columns = 1,
        .crowded =
            df_byte_noted_panels(c->packed, sum_bytes(conv), weight_panels(w), w->steps,
                                 w->height * DF_BYTE_STEP, group * heights + filter / w->height),
        .rows_outer = 1,
        .m = end - filter,
        .n = columns,
        .steps = w->steps,
        .height = w->height,
        .a =
            c->packed + sum_bytes(conv) + group * group_bytes(w) + filter * w->steps * DF_BYTE_STEP,
        .b = scratch,
        .a_panel = w->height * w->steps * DF_BYTE_STEP,
        .a_row = DF_BYTE_STEP,
        .a_step = w->height * DF_BYTE_STEP,
        .b_panel = size,
        .epilogue = e};
    DF_NAME(df_byte_multiply)(&product);
  }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Fills the vectors by row of all filters, where weights of packed sums have these. */
static void fill_vectors(convolution *c, int32_t *vectors, const int32_t *sums) {
  const df_conv *conv = &c->w.conv;
  const df_byte_operands *o = &c->o;
  df_byte_epilogue *e = &c->epilogue;
  const int64_t filters = conv->groups * conv->filters;
  const int64_t pitch = sum_bytes(conv) / (int64_t)sizeof(int32_t);
  const uint32_t k = (uint32_t)(conv->channels * conv->window.taps);
  int32_t *add = vectors, *zero = vectors + pitch;
  float *scale = (float *)(void *)(zero + pitch);
  int any = 0;
  for (int64_t f = 0; f < filters; f++) {
    zero[f] = df_byte_zero(o->right_zero, f, o->right->dtype, 0);
    any |= zero[f];
    const uint32_t rest = (uint32_t)sums[f] - k * (uint32_t)zero[f];
    add[f] = (int32_t)((uint32_t)df_byte_bias(o, f) - c->images.zero * rest);
    if (o->form != DF_BYTE_SUMS)
      scale[f] = df_byte_scale(o, f);
  }
  e->row_add = add;
  e->row_zero = any ? zero : NULL;
  e->row_scale = o->form == DF_BYTE_SUMS ? NULL : scale;
  e->row_bias = o->bias && o->form == DF_BYTE_FLOATS ? o->bias->data : NULL;
}

/* Whether images have their channels last. */
static int is_last(const df_attribute *const *attributes, int32_t count, df_byte_form form) {
  return form == DF_BYTE_STEPS &&
         df_attribute_int(attributes, count, DF_CONV_REQUANTIZED_CHANNELS_LAST) != 0;
}

/* |to| = |shape| with the channels behind the batch. */
static const int64_t *channels_first(int64_t to[DF_AXES + 2], const int64_t *shape, int32_t rank) {
  to[0] = shape[0];
  to[1] = shape[rank - 1];
  for (int32_t axis = 2; axis < rank; axis++)
    to[axis] = shape[axis - 1];
  return to;
}

static df_conv conv_of(const int64_t *x, const int64_t *w, const int64_t *y, int32_t rank,
                       const df_attribute *const *attributes, int32_t count, df_byte_form form) {
  int64_t in[DF_AXES + 2], out[DF_AXES + 2];
  if (is_last(attributes, count, form)) {
    x = channels_first(in, x, rank);
    y = channels_first(out, y, rank);
  }
  return df_conv_as_row(df_conv_make(x, w, y, rank, attributes, count, DF_CONV_STRIDES));
}

static df_conv conv_of_node(const df_node *node, df_byte_form form) {
  const df_operand *x = node->inputs[0], *w = node->inputs[df_byte_right(form)];
  df_conv conv = conv_of(x->shape, w->shape, node->outputs[0]->shape, x->rank, node->attributes,
                         node->n_attributes, form);
  conv.uses = node->flags >> df_byte_right(form) & 1 ? 0 : conv.batch;
  return conv;
}

static df_status run(const df_call *call, df_byte_form form, int32_t relu) {
  convolution c = {.o = df_byte_operands_of(call, form), .workspace = call->workspace};
  const df_tensor *x = c.o.left, *weight = c.o.right, *y = call->outputs[0];
  df_conv conv = conv_of(x->shape, weight->shape, y->shape, x->rank, call->attributes,
                         call->n_attributes, form);
  const int last = is_last(call->attributes, call->n_attributes, form);
  c.epilogue = df_byte_epilogue_of(&c.o, y->data, conv.window.out_size, relu);
  const int depthwise = df_byte_depthwise_takes(&conv);
  c.packed = call->prepacked ? call->prepacked[0] : NULL;
  conv.uses = c.packed ? 0 : conv.batch;
  if (last || depthwise) {
    if (!last)
      DF_NAME(df_byte_depthwise_run)(call, &conv, &c.o, &c.epilogue);
    else if (depthwise)
      DF_NAME(df_byte_depthwise_last_run)(call, &conv, c.packed, &c.o, &c.epilogue);
    else
      DF_NAME(df_byte_last_run)(call, &conv, c.packed, &c.o, &c.epilogue);
    return DF_OK;
  }
  c.images = DF_NAME(df_byte_images_of)(&conv);
  c.images.x = x->data;
  c.images.interleaved = c.workspace;
  c.images.sign = df_byte_sign(x->dtype, 1);
  c.images.zero = (uint8_t)df_byte_zero(c.o.left_zero, 0, x->dtype, 1);
  c.w = make_plan(&c.images, call->threads);
  if (!c.packed) {
    pack_weights(&c.w, weight->data, df_byte_sign(weight->dtype, 0), c.workspace + c.w.weights);
    c.packed = c.workspace + c.w.weights;
  }
  fill_vectors(&c, (int32_t *)(void *)(c.workspace + c.w.vectors),
               (const int32_t *)(const void *)c.packed);
  DF_NAME(df_byte_interleave_images)(call, &c.images);
  df_parallel(call, run_task, &c, c.w.tasks);
  return DF_OK;
}

/* The panels depend on the weights alone, not on the images. */
static void prepack(const df_node *node, const void *source, void *prepacked, df_byte_form form) {
  const df_conv conv = conv_of_node(node, form);
  const uint8_t sign = df_byte_sign(node->inputs[df_byte_right(form)]->dtype, 0);
  if (is_last(node->attributes, node->n_attributes, form)) {
    if (df_byte_depthwise_takes(&conv))
      DF_NAME(df_byte_depthwise_last_prepack)(&conv, source, sign, prepacked);
    else
      DF_NAME(df_byte_last_prepack)(&conv, source, sign, prepacked);
    return;
  }
  const df_byte_images images = DF_NAME(df_byte_images_of)(&conv);
  const plan w = make_plan(&images, 1);
  pack_weights(&w, source, sign, prepacked);
}

static void prepack_second(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  prepack(node, source, prepacked, DF_BYTE_SUMS);
}

static void prepack_fourth(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  prepack(node, source, prepacked, DF_BYTE_FLOATS);
}

static void prepack_steps(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  prepack(node, source, prepacked, DF_BYTE_STEPS);
}

static df_status prepare(const df_node *node, df_prepared *out, df_byte_form form) {
  const int32_t right = df_byte_right(form);
  const df_conv conv = conv_of_node(node, form);
  const int last = is_last(node->attributes, node->n_attributes, form);
  int64_t bytes;
  if (df_byte_depthwise_takes(&conv) && !last) {
    out->workspace = DF_NAME(df_byte_depthwise_workspace)(&conv) * node->threads;
    return DF_OK;
  }
  if (df_byte_depthwise_takes(&conv)) {
    out->workspace = DF_NAME(df_byte_depthwise_last_workspace)(&conv, node->threads);
    bytes = DF_NAME(df_byte_depthwise_last_prepack_bytes)(&conv);
  } else if (last) {
    out->workspace = DF_NAME(df_byte_last_workspace)(&conv, node->inputs[0]->dtype, node->threads);
    bytes = DF_NAME(df_byte_last_prepack_bytes)(&conv);
  } else {
    const df_byte_images images = DF_NAME(df_byte_images_of)(&conv);
    const plan w = make_plan(&images, node->threads);
    out->workspace = w.workspace + w.scratch * df_workers(node->threads, w.tasks);
    bytes = weight_bytes(&w);
  }
  if (!conv.uses) {
    out->replaced = 1 << right;
    df_ask_prepack(out, right, 0, bytes,
                   form == DF_BYTE_SUMS     ? prepack_second
                   : form == DF_BYTE_FLOATS ? prepack_fourth
                                            : prepack_steps);
  }
  return DF_OK;
}

static const char *accepts(const df_node *node, df_byte_form form) {
  const df_operand *x = node->inputs[0];
  if (x->rank < 3 || x->rank > 2 + DF_AXES)
    return "only one to three spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  const df_conv conv = conv_of_node(node, form);
  reason = df_conv_accepts(&conv);
  if (reason)
    return reason;
  if (is_last(node->attributes, node->n_attributes, form) && !df_byte_last_takes(&conv) &&
      !df_byte_depthwise_takes(&conv))
    return "groups of channels don't lie together";
  return conv.window.taps > DF_MOST_TAPS ? "the kernel has too many taps" : NULL;
}

DF_BYTE_KERNEL(conv_integer, DF_BYTE_SUMS, "u8|i8,u8|i8,u8|i8?,u8|i8?->i32", 0);
DF_BYTE_KERNEL(conv_dequantized, DF_BYTE_FLOATS, "u8|i8,f32,u8|i8,u8|i8,f32,u8|i8,f32?->f32", 0);
DF_BYTE_KERNEL(conv_requantized, DF_BYTE_STEPS,
               "u8|i8,f32,u8|i8,u8|i8,f32,u8|i8,f32,u8|i8,f32|i32?->u8|i8",
               df_attr_int(call, DF_CONV_REQUANTIZED_RELU) != 0);

DF_KERNELS(quantized_conv) = {&kernel_conv_integer, &kernel_conv_dequantized,
                              &kernel_conv_requantized, NULL};
