/* map/optimizer_blocks.c: tensors as bytes: per block the largest magnitude, per element the index
 * of the nearest share of it in a table of 256 ascending numbers (Dettmers et al. 2021). The last
 * block may be shorter. All tensors are contiguous. */
#include "cpu.h"

#include <math.h>
#include <string.h>

/* Shares of one sign whose exponent and first bits of mantissa agree are a cell; all are up to 1.
 */
enum { CODES = 256, CELL_BITS = 18, CELLS = (127 << (23 - CELL_BITS)) + 1 };

typedef struct blocks_context {
  const float *x, *code;
  const uint8_t *codes;
  const float *scales;
  uint8_t *new_codes;
  float *new_scales, *y;
  int64_t count, block;
  float middles[CODES];    /* between neighbours of |code|, then infinity */
  uint8_t start[2][CELLS]; /* by sign and cell: how many middles are below all of the cell */
  int32_t most;            /* middles within a cell */
} blocks_context;

static float cell_begin(int32_t cell) {
  const uint32_t bits = (uint32_t)cell << CELL_BITS;
  float found;
  memcpy(&found, &bits, sizeof found);
  return found;
}

/* Fills one entry of |start|; |at| middles are below what came before, and cells come in ascending
 * order. */
static int32_t fill_cell(blocks_context *s, int32_t sign, int32_t cell, int32_t at) {
  const float low = sign ? -cell_begin(cell + 1) : cell_begin(cell);
  const float high = sign ? -cell_begin(cell) : cell_begin(cell + 1);
  while (s->middles[at] < low)
    at++;
  int32_t end = at;
  while (s->middles[end] < high)
    end++;
  s->start[sign][cell] = (uint8_t)at;
  s->most = end - at > s->most ? end - at : s->most;
  return at;
}

static void fill_tables(blocks_context *s) {
  for (int32_t i = 0; i + 1 < CODES; i++)
    s->middles[i] = (s->code[i] + s->code[i + 1]) * 0.5f;
  s->middles[CODES - 1] = INFINITY;
  s->most = 0;
  int32_t at = 0;
  for (int32_t cell = CELLS - 1; cell >= 0; cell--)
    at = fill_cell(s, 1, cell, at);
  for (int32_t cell = 0; cell < CELLS; cell++)
    at = fill_cell(s, 0, cell, at);
}

/* How many middles are below |share|: none where it is NaN. */
static inline uint8_t code_of(const blocks_context *s, float share) {
  uint32_t bits;
  memcpy(&bits, &share, sizeof bits);
  const uint32_t cell = (bits & 0x7fffffffU) >> CELL_BITS;
  int32_t at = s->start[bits >> 31][cell < CELLS ? cell : CELLS - 1];
  for (int32_t i = 0; i < s->most; i++)
    at += s->middles[at] < share;
  return share == share ? (uint8_t)at : 0;
}

/* NaN where an element is NaN. */
static inline float largest(const float *x, int64_t count) {
  float most = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    const float magnitude = fabsf(x[i]);
    most = magnitude > most || magnitude != magnitude ? magnitude : most;
  }
  return most;
}

static void encode_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const blocks_context *s = context;
  DF_ASSUME(s->block > 0);
  const int64_t blocks = (s->count + s->block - 1) / s->block;
  int64_t first, last;
  df_task_range(index, count, blocks, 1, &first, &last);
  for (int64_t block = first; block < last; block++) {
    const int64_t begin = block * s->block, length = df_min(s->block, s->count - begin);
    const float scale = largest(s->x + begin, length), divisor = scale == 0.0f ? 1.0f : scale;
    s->new_scales[block] = scale;
    DF_IVDEP
    for (int64_t i = begin; i < begin + length; i++)
      s->new_codes[i] = code_of(s, s->x[i] / divisor);
  }
}

/* encode_blocks(x, code; block) -> codes, scales */
static df_status encode_run(const df_call *call) {
  blocks_context s = {.x = call->inputs[0]->data,
                      .code = call->inputs[1]->data,
                      .new_codes = call->outputs[0]->data,
                      .new_scales = call->outputs[1]->data,
                      .count = df_elements(call->inputs[0]),
                      .block = df_attr_int(call, DF_ENCODE_BLOCKS_BLOCK)};
  fill_tables(&s);
  df_parallel(call, encode_task, &s, df_task_count(call, s.count, DF_GRAIN / 8));
  return DF_OK;
}

static void decode_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const blocks_context *s = context;
  DF_ASSUME(s->block > 0);
  const int64_t blocks = (s->count + s->block - 1) / s->block;
  int64_t first, last;
  df_task_range(index, count, blocks, 1, &first, &last);
  for (int64_t block = first; block < last; block++) {
    const int64_t begin = block * s->block, length = df_min(s->block, s->count - begin);
    const float scale = s->scales[block];
    DF_IVDEP
    for (int64_t i = begin; i < begin + length; i++)
      s->y[i] = s->code[s->codes[i]] * scale;
  }
}

/* decode_blocks(codes, scales, code; block) -> y */
static df_status decode_run(const df_call *call) {
  blocks_context s = {.codes = call->inputs[0]->data,
                      .scales = call->inputs[1]->data,
                      .code = call->inputs[2]->data,
                      .y = call->outputs[0]->data,
                      .count = df_elements(call->inputs[0]),
                      .block = df_attr_int(call, DF_DECODE_BLOCKS_BLOCK)};
  df_parallel(call, decode_task, &s, df_task_count(call, s.count, DF_GRAIN / 4));
  return DF_OK;
}

DF_KERNELS(optimizer_blocks) = {
    DF_KERNEL("encode_blocks", "f32", "f32,f32->u8,f32", NULL, encode_run),
    DF_KERNEL("decode_blocks", "f32", "u8,f32,f32->f32", NULL, decode_run), NULL};
