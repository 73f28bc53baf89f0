/* attention/linear_attention.c: linear_attention(q, k, v, state, decay?, beta?) -> y, last; one
 * task per head, whose state stays in the first caches from token to token. */
#include "cpu.h"

typedef struct linear {
  const float *q, *k, *v, *state, *decay, *beta; /* the last two may be null */
  float *y, *last, *scratch;
  int64_t heads, readers, length, size, width;
  int64_t factors; /* of decay per token: 1, or size */
} linear;

/* to[0..n) += by * from[0..n) */
static inline void add_row(float *restrict to, const float *restrict from, float by, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    to[i] += by * from[i];
}

/* What token |t| of a head makes of the state s; |update| has a row of scratch. */
static void write_token(const linear *l, float *s, float *update, int64_t head, int64_t t) {
  const int64_t token = head * l->length + t, size = l->size, width = l->width;
  const float *k = l->k + token * size, *v = l->v + token * width;
  if (l->decay) {
    const float *decay = l->decay + token * l->factors;
    for (int64_t i = 0; i < size; i++) {
      const float by = decay[l->factors == 1 ? 0 : i];
      for (int64_t j = 0; j < width; j++)
        s[i * width + j] *= by;
    }
  }
  memcpy(update, v, (size_t)width * sizeof *update);
  if (l->beta) {
    for (int64_t i = 0; i < size; i++)
      add_row(update, s + i * width, -k[i], width);
    for (int64_t j = 0; j < width; j++)
      update[j] *= l->beta[token];
  }
  for (int64_t i = 0; i < size; i++)
    add_row(s + i * width, update, k[i], width);
}

static void read_token(const linear *l, const float *s, int64_t head, int64_t t) {
  for (int64_t r = 0; r < l->readers; r++) {
    const int64_t row = (head * l->readers + r) * l->length + t;
    const float *q = l->q + row * l->size;
    float *y = l->y + row * l->width;
    memset(y, 0, (size_t)l->width * sizeof *y);
    for (int64_t i = 0; i < l->size; i++)
      add_row(y, s + i * l->width, q[i], l->width);
  }
}

static void linear_task(void *context, int64_t index, int64_t count, int32_t worker) {
  const linear *l = context;
  int64_t head, end;
  df_task_range(index, count, l->heads, 1, &head, &end);
  for (; head < end; head++) {
    float *s = l->last + head * l->size * l->width;
    memcpy(s, l->state + head * l->size * l->width, (size_t)(l->size * l->width) * sizeof *s);
    for (int64_t t = 0; t < l->length; t++) {
      write_token(l, s, l->scratch + worker * l->width, head, t);
      read_token(l, s, head, t);
    }
  }
}

static const float *optional(const df_call *call, int32_t index) {
  return index < call->n_inputs ? call->inputs[index]->data : NULL;
}

static df_status linear_attention_run(const df_call *call) {
  const df_tensor *q = call->inputs[0], *v = call->inputs[2];
  linear l = {.q = q->data,
              .k = call->inputs[1]->data,
              .v = v->data,
              .state = call->inputs[3]->data,
              .decay = optional(call, 4),
              .beta = optional(call, 5),
              .y = call->outputs[0]->data,
              .last = call->outputs[1]->data,
              .scratch = call->workspace,
              .heads = q->shape[0],
              .readers = q->shape[1],
              .length = q->shape[2],
              .size = q->shape[3],
              .width = v->shape[2]};
  if (l.decay)
    l.factors = call->inputs[4]->shape[2];
  if (l.heads * l.width == 0)
    return DF_OK;
  const int64_t work = l.heads * (l.length * (l.readers + 3) + 1) * l.size * l.width;
  df_parallel(call, linear_task, &l, df_min(l.heads, df_task_count(call, work, DF_GRAIN)));
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = node->inputs[2]->shape[2] * (int64_t)sizeof(float) * node->threads;
  return DF_OK;
}

DF_KERNELS(linear_attention) = {&(const df_kernel){.struct_size = sizeof(df_kernel),
                                                   .op = "linear_attention",
                                                   .name = "linear_attention f32 " DF_TEXT(DF_ISA),
                                                   .operands = "f32,f32,f32,f32,f32?,f32?->f32,f32",
                                                   .prepare = prepare,
                                                   .run = linear_attention_run},
                                NULL};
