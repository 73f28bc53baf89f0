/* fused/conv_pool.c: y = largest of each window of max(conv(x, w) + bias, 0).
 *
 * The first layers of a network for images: few channels, many filters, large planes. Done one
 * after the other, the planes between them, some MB, go to the third cache and come back, at 4
 * bytes in each direction for 2 k operations. Here a band of rows of the output takes the rows of
 * the convolution that it needs from the workspace, while they are in the second cache; those that
 * two bands need are computed twice. */
#include "conv/algorithm.h"
#include "conv/few_channels.h"
#include "pool/rows.h"

#include <math.h>

enum {
  LEAST_FLOATS = 1 << 17, /* of the planes between: smaller ones stay in the second cache anyhow */
  MOST_FLOATS = 1 << 18,  /* of a band: 1 MiB */
  TASKS = 4               /* for each thread */
};

typedef struct both {
  df_conv conv;
  df_window pool;
  int64_t pitch; /* floats of a row between them: whole vectors, so that stores are aligned */
  int64_t bands; /* of an image */
  int64_t rows;  /* of the convolution that a band takes at most */
} both;

/* Rows [*begin, *end) of the convolution that rows [first, last) of the result read. */
static void rows_of(const df_window *pool, int64_t first, int64_t last, int64_t *begin,
                    int64_t *end) {
  *begin = df_max(0, first * pool->stride[1] - pool->pad[1]);
  *end = df_min(pool->in[1], (last - 1) * pool->stride[1] - pool->pad[1] + pool->kernel[1]);
}

static both make_both(const int64_t *x, const int64_t *w, const int64_t *y,
                      const df_attribute *const *attributes, int32_t count, int32_t threads) {
  const int64_t *strides = df_attribute_ints(attributes, count, DF_CONV_STRIDES, NULL);
  const int64_t *pads = df_attribute_ints(attributes, count, DF_CONV_PADS, NULL);
  const int64_t *dilations = df_attribute_ints(attributes, count, DF_CONV_DILATIONS, NULL);
  int64_t planes[4] = {x[0], w[0], 0, 0};
  for (int i = 0; i < 2; i++) {
    int64_t reach = df_plus(df_times(w[2 + i] - 1, dilations ? dilations[i] : 1), 1);
    int64_t span = x[2 + i] + (pads ? pads[i] + pads[2 + i] : 0) - reach;
    planes[2 + i] = span / (strides ? strides[i] : 1) + 1;
  }
  both b = {.conv = df_conv_make(x, w, planes, 4, attributes, count, DF_CONV_STRIDES)};
  b.conv.algorithm = DF_CONV_FEW_CHANNELS + 1;
  b.pool = df_window_make(
      2, planes + 2, y + 2,
      df_attribute_ints(attributes, count, DF_CONV_RELU_MAX_POOL_POOL_KERNEL, NULL),
      df_attribute_ints(attributes, count, DF_CONV_RELU_MAX_POOL_POOL_STRIDES, NULL),
      df_attribute_ints(attributes, count, DF_CONV_RELU_MAX_POOL_POOL_PADS, NULL), NULL);
  b.pitch = df_divide_up(planes[3], 16) * 16;
  int64_t most = df_max(1, MOST_FLOATS / df_max(1, df_times(b.conv.filters, b.pitch)));
  int64_t rows = df_max(1, (most - b.pool.kernel[1]) / b.pool.stride[1] + 1);
  int64_t units = df_max(1, b.conv.batch * b.conv.groups);
  int64_t wanted = threads > 1 ? df_divide_up(TASKS * (int64_t)threads, units) : 1;
  b.bands = df_min(y[2], df_max(wanted, df_divide_up(y[2], rows)));
  b.rows = (df_divide_up(y[2], df_max(1, b.bands)) - 1) * b.pool.stride[1] + b.pool.kernel[1];
  b.rows = df_min(b.rows, planes[2]);
  return b;
}

static both both_of_node(const df_node *node) {
  const df_operand *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0];
  both b =
      make_both(x->shape, w->shape, y->shape, node->attributes, node->n_attributes, node->threads);
  b.conv.uses = node->flags >> 1 & 1 ? 0 : b.conv.batch;
  return b;
}

/* Whether every window has an element of the plane, and few_channels fills its tiles where nothing
 * saves multiply-adds: what isn't stored between is worth more than the best tiles. */
static const char *accepts(const df_node *node) {
  if (node->inputs[0]->rank != 4)
    return "only two spatial axes are supported";
  const char *reason = df_accepts_elements(node);
  if (reason)
    return reason;
  both b = both_of_node(node);
  const int64_t *dilations = df_attr_ints(node, DF_CONV_RELU_MAX_POOL_POOL_DILATIONS, NULL);
  if (dilations && (dilations[0] != 1 || dilations[1] != 1))
    return "only windows without dilation are supported";
  b.pool.in[2] = b.pitch;
  reason = df_conv_accepts(&b.conv);
  if (!reason)
    reason = df_window_accepts(&b.pool);
  if (reason)
    return reason;
  if (!DF_NAME(df_pool_rows_fit)(&b.pool))
    return "a row is too long";
  b.conv.algorithm = 0;
  const int32_t chosen = DF_NAME(df_conv_choose)(&b.conv);
  if (chosen < DF_CONV_FEW_CHANNELS || chosen == DF_CONV_AMX ||
      !DF_NAME(df_few_channels_fills)(&b.conv))
    return "another algorithm of the convolution is faster";
  if (b.conv.filters * b.conv.groups * b.conv.window.out_size < LEAST_FLOATS)
    return "the planes between stay in the cache anyhow";
  return NULL;
}

static void prepack_weight(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  both b = both_of_node(node);
  df_weight weight = df_weight_make(&b.conv, source);
  DF_NAME(df_conv_prepack)(&b.conv, &weight, prepacked);
}

static int64_t round_up(int64_t floats) { return df_divide_up(floats, 16) * 16; }

/* Floats of weights that are packed at every run, at the start of the workspace. */
static int64_t prepacked_floats(const df_conv *conv) {
  return conv->uses ? round_up(DF_NAME(df_conv_prepack_bytes)(conv) / (int64_t)sizeof(float)) : 0;
}

/* Of the planes of a band. */
static int64_t band_floats(const both *b) { return b->conv.filters * b->rows * b->pitch; }

static int64_t scratch_floats(const both *b) {
  return band_floats(b) + round_up(DF_NAME(df_few_channels_floats)(&b->conv));
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  both b = both_of_node(node);
  if (!b.conv.uses) {
    out->replaced = 1 << 1;
    df_ask_prepack(out, 1, 0, DF_NAME(df_conv_prepack_bytes)(&b.conv), prepack_weight);
  }
  out->workspace =
      (prepacked_floats(&b.conv) +
       scratch_floats(&b) * df_workers(node->threads, b.conv.batch * b.conv.groups * b.bands)) *
      (int64_t)sizeof(float);
  return DF_OK;
}

typedef struct band_context {
  both b;
  df_direct d;
  float *y;
  float *scratch;
} band_context;

static void run_band(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  const band_context *bands = context;
  const both *b = &bands->b;
  int64_t unit = index / b->bands, band = index % b->bands, filters = b->conv.filters;
  int64_t first = b->pool.out[1] * band / b->bands, last = b->pool.out[1] * (band + 1) / b->bands;
  int64_t begin, end, width = b->conv.window.out[2];
  rows_of(&b->pool, first, last, &begin, &end);
  df_window pool = b->pool;
  pool.in[1] = end - begin;
  pool.in[2] = b->pitch;
  pool.in_size = pool.in[1] * b->pitch;
  pool.out[1] = last - first;
  pool.pad[1] = begin - (first * b->pool.stride[1] - b->pool.pad[1]);
  float *planes = bands->scratch + worker * scratch_floats(b);
  df_planes to = {.out = planes, .plane = pool.in_size, .row = b->pitch};
  /* What is behind a row loses against what is in it. */
  for (int64_t row = 0; row < filters * pool.in[1]; row++)
    for (int64_t i = width; i < b->pitch; i++)
      planes[row * b->pitch + i] = -INFINITY;
  DF_NAME(df_few_channels_band)(&bands->d, unit, begin, end, &to, planes + band_floats(b));
  float *y = bands->y + unit * filters * b->pool.out_size + first * pool.out[2];
  for (int64_t filter = 0; filter < filters; filter++)
    DF_NAME(df_max_rows)
  (&pool, 1, planes + filter * pool.in_size, y + filter * b->pool.out_size);
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0], *w = call->inputs[1], *y = call->outputs[0];
  band_context bands = {.b = make_both(x->shape, w->shape, y->shape, call->attributes,
                                       call->n_attributes, call->threads),
                        .y = y->data,
                        .scratch = call->workspace};
  df_conv *conv = &bands.b.conv;
  const float *prepacked = call->prepacked ? call->prepacked[0] : NULL;
  conv->uses = prepacked ? 0 : conv->batch;
  if (!prepacked) {
    df_weight weight = df_weight_make(conv, w->data);
    DF_NAME(df_conv_prepack_now)(call, conv, &weight, bands.scratch);
    prepacked = bands.scratch;
    bands.scratch += prepacked_floats(conv);
  }
  bands.d = (df_direct){.conv = *conv,
                        .source = x->data,
                        .prepacked = prepacked,
                        .bias = call->n_inputs > 2 ? call->inputs[2]->data : NULL,
                        .high = INFINITY};
  df_parallel(call, run_band, &bands, conv->batch * conv->groups * bands.b.bands);
  return DF_OK;
}

DF_KERNELS(fused_conv_pool) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                  .op = "conv_relu_max_pool",
                                                  .name = "conv_relu_max_pool f32 " DF_TEXT(DF_ISA),
                                                  .operands = "f32,f32,f32?->f32",
                                                  .accepts = accepts,
                                                  .prepare = prepare,
                                                  .run = run},
                               NULL};
