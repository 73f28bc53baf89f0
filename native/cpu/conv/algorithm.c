/* conv/algorithm.c: the ways of a convolution with packed weights, the one that gains most first.
 */
#include "conv/algorithm.h"
#include "conv/amx/conv.h"
#include "conv/few_channels.h"
#include "conv/pointwise.h"
#include "conv/winograd.h"

typedef struct way {
  int (*takes)(const df_conv *conv); /* it gains */
  int (*can)(const df_conv *conv);
  int64_t (*pack_bytes)(const df_conv *conv);
  int64_t (*pack_pieces)(const df_conv *conv);
  void (*pack)(const df_conv *conv, const df_weight *weight, int64_t piece, float *packed);
  int64_t (*workspace)(const df_conv *conv, int32_t threads);
  void (*run)(const df_call *call, const df_direct *direct);
} way;

#define WAY(name, able, packer)                                                                    \
  {DF_NAME(df_##name##_takes),        DF_NAME(df_##able),                                          \
   DF_NAME(df_##packer##_pack_bytes), DF_NAME(df_##packer##_pack_pieces),                          \
   DF_NAME(df_##packer##_pack),       DF_NAME(df_##name##_workspace),                              \
   DF_NAME(df_##name##_run)}
#ifdef DF_AMX
#define UNIT WAY(unit, unit_can, unit)
#else
static int never(const df_conv *conv) {
  (void)conv;
  return 0;
}
#define UNIT {.takes = never, .can = never}
#endif
static const way ways[DF_CONV_WAYS] = {WAY(winograd, winograd_takes, winograd),
                                       WAY(point, point_can, point), WAY(rows, rows_can, point),
                                       WAY(direct, direct_can, direct), UNIT};

int32_t DF_NAME(df_way_of)(const df_conv *conv) {
  for (int32_t i = conv->algorithm - 1; i >= 0 && i < DF_CONV_WAYS; i++)
    if (ways[i].can(conv))
      return i;
  if (!conv->algorithm && ways[DF_WAY_UNIT].takes(conv))
    return DF_WAY_UNIT;
  for (int32_t i = 0; i < DF_CONV_WAYS && !conv->algorithm; i++)
    if (ways[i].takes(conv))
      return i;
  return DF_SPREAD;
}

void DF_NAME(df_way_tell)(const df_conv *conv, int32_t way, df_prepared *out) {
  static const char *const names[DF_CONV_WAYS + 1] = {"winograd", "point",       "rows",
                                                      "direct",   "matrix_unit", "spread"};
  out->algorithms = names;
  out->n_algorithms = DF_CONV_WAYS + 1;
  out->algorithm = way;
  out->possible = 1 << DF_SPREAD;
  for (int32_t i = 0; i < DF_CONV_WAYS && conv; i++)
    out->possible |= (int64_t)(ways[i].can(conv) != 0) << i;
}

/* The one of |conv|, which isn't DF_SPREAD. */
static const way *find(const df_conv *conv) {
  const int32_t found = DF_NAME(df_way_of)(conv);
  DF_ASSUME(found < DF_CONV_WAYS);
  return &ways[found];
}

int64_t DF_NAME(df_way_pack_bytes)(const df_conv *conv) { return find(conv)->pack_bytes(conv); }

void DF_NAME(df_way_pack)(const df_conv *conv, const df_weight *weight, float *packed) {
  const way *way = find(conv);
  for (int64_t piece = 0; piece < way->pack_pieces(conv); piece++)
    way->pack(conv, weight, piece, packed);
}

typedef struct packing {
  const way *way;
  const df_conv *conv;
  const df_weight *weight;
  float *packed;
} packing;

static void pack_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  (void)worker;
  const packing *p = context;
  p->way->pack(p->conv, p->weight, index, p->packed);
}

void DF_NAME(df_way_pack_now)(const df_call *call, const df_conv *conv, const df_weight *weight,
                              float *packed) {
  packing p = {find(conv), conv, weight, packed};
  df_parallel(call, pack_piece, &p, p.way->pack_pieces(conv));
}

int64_t DF_NAME(df_way_workspace)(const df_conv *conv, int32_t threads) {
  return find(conv)->workspace(conv, threads);
}

void DF_NAME(df_way_run)(const df_call *call, const df_direct *direct, void *workspace) {
  df_call inner = *call;
  inner.workspace = workspace;
  find(&direct->conv)->run(&inner, direct);
}
