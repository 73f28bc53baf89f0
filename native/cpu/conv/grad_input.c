/* conv/grad_input.c: dx[n, c, i] = sum over f, t of dy[n, f, o] * w[f, c, t] where o * stride - pad
 * + t * dilation = i.
 *
 * dy: (N, G * F, out...), w: (G * F, C, kernel...), dx: (N, G * C, in...). Every dx is a sum of its
 * own, so nothing is scattered and the order of the sums is fixed. As many operations as conv.
 *
 * Without strides it is a convolution of dy, done like one. With strides each phase is: their sums
 * go to the workspace, for some images at a time, and from there to dx. */
#include "conv/algorithm.h"
#include "conv/depthwise.h"
#include "conv/phase.h"
#include "conv/shifted.h"

enum {
  SUMS_FLOATS = 1
  << 19 /* of the phases: 2 MiB, so that they are in the cache when they are joined */
};

/* ---- By phases ------------------------------------------------------------------------------ */

typedef struct phase_plan {
  df_conv conv;
  df_phase phases[DF_MOST_PHASES];
  int64_t count;
  int64_t offset[DF_MOST_PHASES]; /* where the weights of a phase are prepacked, in floats */
  int64_t prepacked;              /* floats of all */
  int64_t images;                 /* whose phases are summed before they are joined */
  int64_t sums;                   /* floats of an image's phases */
} phase_plan;

static int64_t round_up(int64_t floats) { return df_divide_up(floats, 16) * 16; }

static int does(const df_phase *phase) {
  return phase->conv.window.taps > 0 && phase->conv.window.out_size > 0;
}

/* Whether there is an algorithm for all phases. */
static int make_split(phase_plan *plan, const df_conv *conv, const float *weight) {
  plan->conv = df_conv_simplified(*conv);
  conv = &plan->conv;
  plan->count = DF_NAME(df_phase_count)(conv);
  plan->prepacked = plan->sums = 0;
  if (plan->count > DF_MOST_PHASES || conv->window.taps > DF_MOST_TAPS)
    return 0;
  for (int64_t i = 0; i < plan->count; i++) {
    df_phase *phase = &plan->phases[i];
    *phase = DF_NAME(df_phase_make)(conv, weight, i);
    if (!does(phase))
      continue;
    const df_window *w = &phase->conv.window;
    for (int axis = 0; axis < DF_AXES; axis++)
      if (w->pad[axis] < 0)
        return 0;
    if (DF_NAME(df_conv_choose)(&phase->conv) == DF_CONV_SHIFTED)
      return 0;
    plan->offset[i] = plan->prepacked;
    plan->prepacked +=
        round_up(DF_NAME(df_conv_prepack_bytes)(&phase->conv) / (int64_t)sizeof(float));
    plan->sums += conv->groups * conv->channels * w->out_size;
  }
  plan->images = conv->batch;
  if (plan->count > 1)
    plan->images = df_max(1, df_min(conv->batch, SUMS_FLOATS / df_max(1, plan->sums)));
  plan->images =
      df_divide_up(conv->batch, df_max(1, df_divide_up(conv->batch, df_max(1, plan->images))));
  plan->images = df_max(1, plan->images);
  return 1;
}

/* Floats of the sums that wait to be joined. */
static int64_t waiting_floats(const phase_plan *plan) {
  return plan->count > 1 ? round_up(plan->images * plan->sums) : 0;
}

/* Bytes of the prepacked weights if they are packed at every run, the sums and what a run needs. */
static int64_t workspace_of(const phase_plan *plan, int32_t threads) {
  int64_t most = 0, last = plan->conv.batch % plan->images;
  for (int64_t i = 0; i < plan->count; i++)
    if (does(&plan->phases[i])) {
      df_conv conv = plan->phases[i].conv;
      conv.batch = plan->images;
      most = df_max(most, DF_NAME(df_conv_algorithm_workspace)(&conv, threads));
      conv.batch = last;
      most = last ? df_max(most, DF_NAME(df_conv_algorithm_workspace)(&conv, threads)) : most;
    }
  int64_t floats = waiting_floats(plan) + (plan->conv.uses ? plan->prepacked : 0);
  return floats * (int64_t)sizeof(float) + most;
}

static void run_phases(const df_call *call, phase_plan *plan, const float *dy,
                       const float *prepacked, float *dx) {
  const df_conv *conv = &plan->conv;
  int64_t from_floats = conv->groups * conv->filters * conv->window.out_size;
  int64_t to_floats = conv->groups * conv->channels * conv->window.in_size;
  float *sums = call->workspace;
  float *workspace = sums + waiting_floats(plan);
  if (!prepacked) {
    for (int64_t i = 0; i < plan->count; i++)
      if (does(&plan->phases[i]))
        DF_NAME(df_conv_prepack_now)
    (call, &plan->phases[i].conv, &plan->phases[i].weight, workspace + plan->offset[i]);
    prepacked = workspace;
    workspace += plan->prepacked;
  }
  for (int64_t image = 0, images; image < conv->batch; image += images) {
    images = df_min(plan->images, conv->batch - image);
    float *to = plan->count > 1 ? sums : dx;
    for (int64_t i = 0; i < plan->count; i++) {
      df_phase *phase = &plan->phases[i];
      if (!does(phase))
        continue;
      phase->conv.batch = images;
      df_direct direct = {.conv = phase->conv,
                          .out = to,
                          .source = dy + image * from_floats,
                          .prepacked = prepacked + plan->offset[i]};
      DF_NAME(df_conv_algorithm_run)(call, &direct, workspace);
      phase->sums = to;
      to += images * conv->groups * conv->channels * phase->conv.window.out_size;
    }
    df_conv some = *conv;
    some.batch = images;
    if (plan->count > 1)
      DF_NAME(df_phase_join)(call, &some, plan->phases, dx + image * to_floats);
  }
}

/* ---- The kernel ----------------------------------------------------------------------------- */

static df_shifted shifted_of(const df_conv *conv) {
  return (df_shifted){.window = conv->window,
                      .batch = conv->batch,
                      .groups = conv->groups,
                      .rows = conv->channels,
                      .channels = conv->filters,
                      .weight_row = conv->window.taps,
                      .weight_channel = conv->channels * conv->window.taps,
                      .weight_group = conv->filters * conv->channels * conv->window.taps,
                      .backward = 1};
}

static const char *accepts(const df_node *node) {
  return df_conv_accepts_shape(node, node->outputs[0], node->inputs[1], node->inputs[0],
                               DF_CONV_GRAD_INPUT_STRIDES);
}

static df_conv conv_of_node(const df_node *node) {
  const df_operand *dy = node->inputs[0], *w = node->inputs[1], *dx = node->outputs[0];
  df_conv conv = df_conv_make(dx->shape, w->shape, dy->shape, dx->rank, node->attributes,
                              node->n_attributes, DF_CONV_GRAD_INPUT_STRIDES);
  conv.uses = node->flags >> 1 & 1 ? 0 : conv.batch;
  conv.algorithm = node->algorithm;
  conv.precision = node->precision;
  return conv;
}

static void prepack_weight(const df_node *node, void *state, const void *source, void *prepacked) {
  (void)state;
  df_conv conv = conv_of_node(node);
  phase_plan plan;
  make_split(&plan, &conv, source);
  for (int64_t i = 0; i < plan.count; i++)
    if (does(&plan.phases[i]))
      DF_NAME(df_conv_prepack)
  (&plan.phases[i].conv, &plan.phases[i].weight, (float *)prepacked + plan.offset[i]);
}

/* Of the largest phase: it takes most of the time. */
static void report(const phase_plan *plan, df_prepared *out) {
  const df_conv *largest = NULL;
  for (int64_t i = 0; i < plan->count; i++)
    if (does(&plan->phases[i]) &&
        (!largest || plan->phases[i].conv.window.taps > largest->window.taps))
      largest = &plan->phases[i].conv;
  if (largest)
    DF_NAME(df_conv_report)(largest, DF_NAME(df_conv_choose)(largest), out);
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  df_conv conv = conv_of_node(node);
  phase_plan plan;
  if (DF_NAME(df_depthwise_takes)(&conv))
    return DF_OK;
  out->state = df_conv_state(&conv);
  if (!make_split(&plan, &conv, NULL)) {
    DF_NAME(df_conv_report)(NULL, DF_CONV_SHIFTED, out);
    df_shifted shifted = shifted_of(&conv);
    out->workspace = DF_NAME(df_shifted_workspace)(&shifted, node->threads);
    return DF_OK;
  }
  /* Which algorithms there are follows from the attributes: the input's shape is one. */
  if (!conv.uses && plan.prepacked > 0) {
    out->replaced = 1 << 1;
    df_ask_prepack(out, 1, conv.algorithm, plan.prepacked * (int64_t)sizeof(float), prepack_weight);
  }
  out->workspace = workspace_of(&plan, node->threads);
  report(&plan, out);
  return DF_OK;
}

static df_status run(const df_call *call) {
  const df_tensor *dy = call->inputs[0], *w = call->inputs[1], *dx = call->outputs[0];
  df_conv conv = df_conv_make(dx->shape, w->shape, dy->shape, dx->rank, call->attributes,
                              call->n_attributes, DF_CONV_GRAD_INPUT_STRIDES);
  const float *prepacked = call->prepacked ? call->prepacked[0] : NULL;
  conv.uses = prepacked ? 0 : conv.batch;
  df_conv_from_state(&conv, call->state);
  if (DF_NAME(df_depthwise_takes)(&conv)) {
    df_depthwise depthwise = {.conv = conv, .out = dx->data, .source = dy->data, .weight = w->data};
    DF_NAME(df_depthwise_run_dx)(call, &depthwise);
    return DF_OK;
  }
  phase_plan plan;
  if (make_split(&plan, &conv, w->data)) {
    run_phases(call, &plan, dy->data, prepacked, dx->data);
    return DF_OK;
  }
  df_shifted shifted = shifted_of(&conv);
  shifted.out = dx->data;
  shifted.source = dy->data;
  shifted.weight = w->data;
  DF_NAME(df_shifted_run)(call, &shifted);
  return DF_OK;
}

DF_KERNELS(conv_grad_input) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                  .op = "conv_grad_input",
                                                  .name = "conv_grad_input f32 " DF_TEXT(DF_ISA),
                                                  .operands = "f32,f32->f32",
                                                  .accepts = accepts,
                                                  .prepare = prepare,
                                                  .run = run},
                               NULL};
