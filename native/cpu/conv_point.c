/* conv_point.c: out[f][q] = relu(bias[f] + sum over k of weight[f][k] * what q reads at k), k =
 * (channel, tap).
 *
 * The product of packed weights with lines of positions: rows of the result are planes of the
 * output, so nothing is turned. A strip of DF_TILE_COLUMNS positions is copied or gathered to the
 * stack, a line per step of k, and passes over the panels of filters. Needs no workspace. */
#include "conv_point.h"
#include "conv_gather.h"
#include "gemm_tile.h"

enum {
  K_BLOCK = 384,       /* a strip is 48 KiB with 16 lanes */
  MOST_GATHERED = 160, /* steps of k that are gathered position by position */
  LEAST_STRIPS = 12,   /* below, too many lanes of the last strip are empty */
  GRAIN = 256 * 1024   /* multiply-adds of the smallest piece worth a thread's while */
};

static int64_t block_of(int64_t k) { return df_divide_up(k, df_divide_up(k, K_BLOCK)); }

static int64_t panels_of(const df_conv *conv) { return df_divide_up(conv->filters, DF_TILE_ROWS); }

/* The first filter of a panel; panels are about equal. */
static int64_t first_of(const df_conv *conv, int64_t panel) {
  return conv->filters * panel / panels_of(conv);
}

static int64_t steps_of(const df_conv *conv) { return conv->channels * conv->window.taps; }

int DF_NAME(df_point_takes)(const df_conv *conv) {
  const df_window *w = &conv->window;
  int64_t k = steps_of(conv);
  return k > 0 && (df_conv_is_plain(w) || (k <= MOST_GATHERED && w->taps <= DF_MOST_TAPS)) &&
         w->out_size >= LEAST_STRIPS * DF_TILE_COLUMNS && w->in_size <= INT32_MAX / 2;
}

/* Per group and block of k the panels, each of them k lines of DF_TILE_ROWS. */
static int64_t group_floats(const df_conv *conv) {
  return panels_of(conv) * DF_TILE_ROWS * steps_of(conv);
}

int64_t DF_NAME(df_point_pack_bytes)(const df_conv *conv) {
  return conv->groups * group_floats(conv) * (int64_t)sizeof(float);
}

void DF_NAME(df_point_pack)(const df_conv *conv, const float *weight, float *packed) {
  int64_t k = steps_of(conv), block = block_of(k);
  for (int64_t group = 0; group < conv->groups; group++)
    for (int64_t begin = 0; begin < k; begin += block)
      for (int64_t panel = 0; panel < panels_of(conv); panel++) {
        int64_t first = first_of(conv, panel), end = first_of(conv, panel + 1);
        const float *from = weight + (group * conv->filters + first) * k;
        for (int64_t p = begin; p < df_min(k, begin + block); p++)
          for (int64_t i = 0; i < DF_TILE_ROWS; i++)
            *packed++ = first + i < end ? from[i * k + p] : 0.0f;
      }
}

/* ---- Running ----------------------------------------------------------------------------------
 */

typedef struct job {
  const df_direct *d;
  int64_t strips, parts; /* strips of a plane, and parts of them */
} job;

/* strip[p][j] for |columns| positions of k channels; what is beyond them is not read. */
static void copy_strip(float *strip, const float *source, int64_t plane, int64_t k,
                       int64_t columns) {
  if (columns == DF_TILE_COLUMNS) {
    for (int64_t p = 0; p < k; p++, strip += DF_TILE_COLUMNS, source += plane)
      for (int64_t j = 0; j < DF_TILE_VECTORS; j++)
        vec_store(strip + j * DF_LANES, vec_load(source + j * DF_LANES));
    return;
  }
  int64_t width = columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES;
  for (int64_t p = 0; p < k; p++, strip += width, source += plane)
    for (int64_t j = 0; j < width; j += DF_LANES)
      vec_store(strip + j, vec_load_part(source + j, df_min(DF_LANES, columns - j)));
}

/* The same for a window of any form. */
static void gather_strip(float *strip, const df_window *w, const int32_t *offset,
                         const float *source, int64_t position, int64_t columns, int64_t begin,
                         int64_t end) {
  int64_t width = columns > DF_LANES ? DF_TILE_COLUMNS : DF_LANES;
  for (int64_t j = 0; j < width; j += DF_LANES) {
    df_place place;
    df_find_place(&place, w, position + j, df_min(DF_LANES, columns - j));
    df_gather(strip + j, width, &place, w, offset, source, begin, end);
  }
}

static void run_piece(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)count;
  (void)worker;
  const job *job = context;
  const df_direct *d = job->d;
  const df_conv *conv = &d->conv;
  const df_window *w = &conv->window;
  int64_t k = steps_of(conv), block = block_of(k), plane = w->out_size;
  int64_t part = index % job->parts, at = index / job->parts, group = at % conv->groups;
  int64_t last = job->strips * (part + 1) / job->parts;
  float strip[K_BLOCK * DF_TILE_COLUMNS];
  int32_t offset[DF_MOST_TAPS];
  df_tap_offsets(w, offset);
  const float *source = d->source + at * conv->channels * w->in_size;
  const float *packed = d->packed + group * group_floats(conv);
  const float *bias = d->bias ? d->bias + group * conv->filters : NULL;
  for (int64_t begin = 0; begin < k; begin += block) {
    int64_t steps = df_min(block, k - begin);
    for (int64_t s = job->strips * part / job->parts; s < last; s++) {
      int64_t q = s * DF_TILE_COLUMNS, columns = df_min(DF_TILE_COLUMNS, plane - q);
      if (df_conv_is_plain(w))
        copy_strip(strip, source + begin * plane + q, plane, steps, columns);
      else
        gather_strip(strip, w, offset, source, q, columns, begin, begin + steps);
      const float *panel_weight = packed + begin * panels_of(conv) * DF_TILE_ROWS;
      for (int64_t panel = 0; panel < panels_of(conv); panel++) {
        int64_t first = first_of(conv, panel), rows = first_of(conv, panel + 1) - first;
        int64_t to = (at * conv->filters + first) * plane + q;
        df_gemm_end end = {.row_bias = begin == 0 && bias ? bias + first : NULL,
                           .add = begin == 0 && d->add ? d->add + to : NULL,
                           .accumulate = begin > 0,
                           .relu = d->relu && begin + steps == k};
        DF_NAME(df_tiles)
        [rows - 1][columns > DF_LANES ? 1 : 0](steps, panel_weight + panel *steps *DF_TILE_ROWS,
                                               strip, d->out + to, plane, columns, &end);
      }
    }
  }
}

void DF_NAME(df_point_run)(const df_call *call, const df_direct *direct) {
  const df_conv *conv = &direct->conv;
  int64_t plane = conv->window.out_size, units = conv->batch * conv->groups;
  int64_t work = units * conv->filters * plane * steps_of(conv);
  int64_t wanted = call->threads > 1 ? df_max(1, df_min(4 * call->threads, work / GRAIN)) : 1;
  job job = {.d = direct, .strips = df_divide_up(plane, DF_TILE_COLUMNS)};
  job.parts = df_min(job.strips, df_divide_up(wanted, units));
  df_parallel(call, run_piece, &job, units * job.parts);
}
