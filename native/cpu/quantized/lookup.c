/* quantized/lookup.c: functions of one byte, by a table of their results in ascending order of it.
 */
#include "cpu.h"

typedef struct lookup {
  const uint8_t *x;
  uint8_t *y;
  int64_t total;
  uint8_t table[256]; /* by the byte without a sign */
} lookup;

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const lookup *c = context;
  int64_t at, end;
  df_task_range(index, count, c->total, 64, &at, &end);
  for (; at + 8 <= end;
       at += 8) { /* stored at once: one byte at a time would take as many stores */
    uint64_t bytes, found = 0;
    memcpy(&bytes, c->x + at, sizeof bytes);
#pragma GCC unroll 8
    for (int i = 0; i < 64; i += 8)
      found |= (uint64_t)c->table[bytes >> i & 0xff] << i;
    memcpy(c->y + at, &found, sizeof found);
  }
  for (; at < end; at++)
    c->y[at] = c->table[c->x[at]];
}

static df_status run(const df_call *call) {
  const df_tensor *x = call->inputs[0];
  const uint8_t *table = call->inputs[1]->data;
  lookup c = {.x = x->data, .y = call->outputs[0]->data, .total = df_elements(x)};
  const int sign = x->dtype == DF_INT8 ? 0x80 : 0;
  for (int i = 0; i < 256; i++)
    c.table[i] = table[i ^ sign];
  df_parallel(call, run_task, &c, df_task_count(call, c.total, DF_GRAIN));
  return DF_OK;
}

DF_KERNELS(quantized_lookup) = {
    DF_KERNEL_IF("lookup", "bytes", "u8|i8,u8|i8->u8|i8", NULL, df_accepts_elements, run), NULL};
