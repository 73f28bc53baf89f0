/* conv/algorithm.c: the convolutions with prepacked weights, and which of them is chosen. */
#include "conv/algorithm.h"
#include "conv/amx/conv.h"
#include "conv/few_channels.h"
#include "conv/padded.h"
#include "conv/pointwise.h"
#include "conv/winograd.h"

typedef struct algorithm {
  int (*takes)(const df_conv *conv); /* it gains */
  int (*can)(const df_conv *conv);
  int64_t (*prepack_bytes)(const df_conv *conv);
  int64_t (*prepack_tasks)(const df_conv *conv);
  void (*prepack)(const df_conv *conv, const df_weight *weight, int64_t task, float *prepacked);
  int64_t (*workspace)(const df_conv *conv, int32_t threads);
  void (*run)(const df_call *call, const df_direct *direct);
} algorithm;

#define ALGORITHM(name, able, packer)                                                              \
  {DF_NAME(df_##name##_takes),                                                                     \
   DF_NAME(df_##able),                                                                             \
   DF_NAME(df_##packer##_prepack_bytes),                                                           \
   DF_NAME(df_##packer##_prepack_tasks),                                                           \
   DF_NAME(df_##packer##_prepack),                                                                 \
   DF_NAME(df_##name##_workspace),                                                                 \
   DF_NAME(df_##name##_run)}

#ifdef DF_AMX
#define AMX ALGORITHM(amx_conv, amx_conv_can, amx_conv)
#else
static int never(const df_conv *conv) {
  (void)conv;
  return 0;
}
#define AMX {.takes = never, .can = never}
#endif

static const algorithm algorithms[DF_CONV_PREPACKED] = {
    ALGORITHM(winograd, winograd_takes, winograd),
    ALGORITHM(pointwise, pointwise_can, pointwise),
    ALGORITHM(few_channels, few_channels_can, pointwise),
    ALGORITHM(padded, padded_can, direct),
    ALGORITHM(direct, direct_can, direct),
    AMX};

/* The first that takes a convolution is chosen. Vectors of eight fill with the filters of small
 * groups, so that those read padded copies first. */
static const int32_t order[] = {DF_CONV_WINOGRAD, DF_CONV_POINTWISE,
#if DF_LANES == 8
                                DF_CONV_PADDED, DF_CONV_FEW_CHANNELS,
#else
                                DF_CONV_FEW_CHANNELS, DF_CONV_PADDED,
#endif
                                DF_CONV_DIRECT};

int32_t DF_NAME(df_conv_choose)(const df_conv *conv) {
  for (int32_t i = conv->algorithm - 1; i >= 0 && i < DF_CONV_PREPACKED; i++)
    if (algorithms[i].can(conv))
      return i;
  if (!conv->algorithm && algorithms[DF_CONV_AMX].takes(conv))
    return DF_CONV_AMX;
  for (size_t i = 0; i < sizeof order / sizeof *order && !conv->algorithm; i++)
    if (algorithms[order[i]].takes(conv))
      return order[i];
  return DF_CONV_SHIFTED;
}

void DF_NAME(df_conv_report)(const df_conv *conv, int32_t algorithm, df_prepared *out) {
  static const char *const names[DF_CONV_PREPACKED + 1] = {
      "winograd", "pointwise", "few_channels", "padded", "direct", "amx", "shifted"};
  out->algorithms = names;
  out->n_algorithms = DF_CONV_PREPACKED + 1;
  out->algorithm = algorithm;
  out->possible = 1 << DF_CONV_SHIFTED;
  for (int32_t i = 0; i < DF_CONV_PREPACKED && conv; i++)
    out->possible |= (int64_t)(algorithms[i].can(conv) != 0) << i;
}

/* The one of |conv|, which isn't DF_CONV_SHIFTED. */
static const algorithm *find(const df_conv *conv) {
  const int32_t found = DF_NAME(df_conv_choose)(conv);
  DF_ASSUME(found < DF_CONV_PREPACKED);
  return &algorithms[found];
}

int64_t DF_NAME(df_conv_prepack_bytes)(const df_conv *conv) {
  return find(conv)->prepack_bytes(conv);
}

void DF_NAME(df_conv_prepack)(const df_conv *conv, const df_weight *weight, float *prepacked) {
  const algorithm *chosen = find(conv);
  for (int64_t task = 0; task < chosen->prepack_tasks(conv); task++)
    chosen->prepack(conv, weight, task, prepacked);
}

typedef struct packing {
  const algorithm *algorithm;
  const df_conv *conv;
  const df_weight *weight;
  float *prepacked;
} packing;

static void prepack_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  (void)worker;
  const packing *p = context;
  p->algorithm->prepack(p->conv, p->weight, index, p->prepacked);
}

void DF_NAME(df_conv_prepack_now)(const df_call *call, const df_conv *conv, const df_weight *weight,
                                  float *prepacked) {
  packing p = {find(conv), conv, weight, prepacked};
  df_parallel(call, prepack_task, &p, p.algorithm->prepack_tasks(conv));
}

int64_t DF_NAME(df_conv_algorithm_workspace)(const df_conv *conv, int32_t threads) {
  return find(conv)->workspace(conv, threads);
}

void DF_NAME(df_conv_algorithm_run)(const df_call *call, const df_direct *direct, void *workspace) {
  df_call inner = *call;
  inner.workspace = workspace;
  find(&direct->conv)->run(&inner, direct);
}
