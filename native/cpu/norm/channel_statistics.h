/* norm/channel_statistics.h: sums over the batch and the positions of each channel, channels on
 * axis 1 of (N, C, inner).
 *
 * Sums are made in runs of at most DF_CHUNK elements, each in vectors, and joined in double in the
 * order of the runs: the partials depend on the shape and the number of threads alone. The variance
 * of a run is taken about its own mean. */
#ifndef DF_CPU_NORM_CHANNEL_STATISTICS_H
#define DF_CPU_NORM_CHANNEL_STATISTICS_H

#include "cpu.h"

typedef struct df_channels {
  int64_t batch, channels, inner;
} df_channels;

static inline df_channels df_channels_of(const int64_t *shape, int32_t rank) {
  return (df_channels){shape[0], shape[1], df_product(shape, 2, rank)};
}

/* The partials of a channel, runs that one thread does; so many that a few channels still fill the
 * threads. */
typedef struct df_partials {
  int64_t count, length, total;
} df_partials;

static inline df_partials df_partials_of(const df_channels *l, int32_t threads) {
  int64_t total = l->batch * l->inner;
  int64_t inner = df_max(1, l->inner);
  int64_t run = inner <= DF_CHUNK / 2 ? DF_CHUNK / inner * inner : inner;
  int64_t wanted = threads > 1 ? df_divide_up(4 * (int64_t)threads, df_max(1, l->channels)) : 1;
  int64_t runs = df_max(1, df_divide_up(total, run));
  int64_t length = df_divide_up(runs, df_min(runs, wanted)) * run;
  return (df_partials){df_max(1, df_divide_up(total, length)), length, total};
}

/* Two doubles per channel and partial. */
static inline int64_t df_partials_bytes(const df_channels *l, int32_t threads) {
  return l->channels * df_partials_of(l, threads).count * 2 * (int64_t)sizeof(double);
}

typedef struct df_statistics {
  const float *x;
  const float *dy;   /* null when mean and deviation are wanted */
  const float *mean; /* of the channels, when dy is not null */
  /* Of the channels: dy counts as 0 where (x - mean) * factor + bias isn't above 0. Null: nowhere.
   */
  const float *factor, *bias;
  df_channels l;
  df_partials partials;
  double *result; /* two per channel and partial */
} df_statistics;

/* Mean and sum of squared deviations of elements [begin, end) of channel |c|. */
void DF_NAME(df_moments)(const df_statistics *s, int64_t c, int64_t begin, int64_t end,
                         double *result);

/* Sums of dy and of dy * (x - mean). */
void DF_NAME(df_sums)(const df_statistics *s, int64_t c, int64_t begin, int64_t end,
                      double *result);

/* Those of all partials, to s->result. */
void DF_NAME(df_take_statistics)(const df_call *call, const df_statistics *s);

#endif
