/* quantized/depthwise.c: planes are independent, and each is summed row by row and tap by tap. Taps
 * in the padding add nothing: there x is its zero point. */
#include "quantized/depthwise.h"
#include "quantized/pack.h"

typedef struct depthwise {
  const df_conv *conv;
  const df_byte_operands *o;
  const df_byte_epilogue *epilogue;
} depthwise;

/* sums[i] += (x[i * step] - zero) * weight */
static void add_tap(int32_t *sums, const uint8_t *x, int64_t step, int64_t count, uint8_t sign,
                    int32_t zero, int32_t weight) {
  if (step == 1) {
    DF_IVDEP
    for (int64_t i = 0; i < count; i++)
      sums[i] += ((int32_t)(x[i] ^ sign) - zero) * weight;
  } else if (step == 2) {
    DF_IVDEP
    for (int64_t i = 0; i < count; i++)
      sums[i] += ((int32_t)(x[2 * i] ^ sign) - zero) * weight;
  } else {
    for (int64_t i = 0; i < count; i++)
      sums[i] += ((int32_t)(x[i * step] ^ sign) - zero) * weight;
  }
}

/* Output positions [begin, begin + count) of row |y| of slice |z|. */
static void sum_row(int32_t *sums, const depthwise *d, const uint8_t *x, int64_t filter, int64_t z,
                    int64_t y, int64_t begin, int64_t count) {
  const df_window *w = &d->conv->window;
  const df_byte_operands *o = d->o;
  const uint8_t *weight = (const uint8_t *)o->right->data + filter * w->taps;
  const uint8_t sign = df_byte_sign(o->left->dtype, 1),
                weight_sign = df_byte_sign(o->right->dtype, 0);
  const int32_t zero = df_byte_zero(o->left_zero, 0, o->left->dtype, 1);
  const int32_t weight_zero = df_byte_zero(o->right_zero, filter, o->right->dtype, 0);
  int64_t first[2], last[2];
  df_window_taps(w, 0, z, &first[0], &last[0]);
  df_window_taps(w, 1, y, &first[1], &last[1]);
  for (int64_t a = first[0]; a < last[0]; a++)
    for (int64_t b = first[1]; b < last[1]; b++) {
      const int64_t slice = z * w->stride[0] - w->pad[0] + a * w->dilation[0];
      const int64_t row = y * w->stride[1] - w->pad[1] + b * w->dilation[1];
      const uint8_t *from = x + (slice * w->in[1] + row) * w->in[2];
      for (int64_t c = 0; c < w->kernel[2]; c++) {
        const int64_t shift = c * w->dilation[2] - w->pad[2], step = w->stride[2];
        const int64_t low = shift >= 0 ? 0 : df_divide_up(-shift, step);
        const int64_t high = w->in[2] > shift ? df_divide_up(w->in[2] - shift, step) : 0;
        const int64_t from_at = df_max(begin, low), to_at = df_min(begin + count, high);
        const int32_t value =
            (int8_t)(weight[(a * w->kernel[1] + b) * w->kernel[2] + c] ^ weight_sign) - weight_zero;
        if (from_at < to_at)
          add_tap(sums + from_at - begin, from + from_at * step + shift, step, to_at - from_at,
                  sign, zero, value);
      }
    }
}

static void run_range(const depthwise *d, int64_t plane) {
  enum { LONGEST = 1024 }; /* sums on the stack: 4 KiB */
  const df_window *w = &d->conv->window;
  const df_byte_operands *o = d->o;
  const int64_t filter = plane % d->conv->groups;
  _Alignas(64) int32_t sums[LONGEST];
  const int32_t add = df_byte_bias(o, filter);
  const float scale = o->form == DF_BYTE_SUMS ? 0.0f : df_byte_scale(o, filter);
  df_byte_epilogue e = *d->epilogue;
  const int64_t item = e.form == DF_BYTE_STEPS ? 1 : 4;
  const uint8_t *x = (const uint8_t *)o->left->data + plane * w->in_size;
  e.row_add = &add;
  e.row_scale = o->form == DF_BYTE_SUMS ? NULL : &scale;
  if (o->bias && o->form == DF_BYTE_FLOATS)
    e.row_bias = (const float *)o->bias->data + filter;
  e.out = (char *)e.out + plane * w->out_size * item;
  for (int64_t z = 0; z < w->out[0]; z++)
    for (int64_t y = 0; y < w->out[1]; y++)
      for (int64_t begin = 0, count; begin < w->out[2]; begin += count) {
        count = df_min(LONGEST, w->out[2] - begin);
        memset(sums, 0, (size_t)df_round_up(count, DF_LANES) * sizeof *sums);
        sum_row(sums, d, x, filter, z, y, begin, count);
        DF_NAME(df_byte_finish)(&e, sums, 0, 1, 0, count);
        e.out = (char *)e.out + count * item;
      }
}

static void run_task(void *context, int64_t index, int64_t count, int32_t worker) {
  (void)worker;
  const depthwise *d = context;
  int64_t begin, end;
  df_task_range(index, count, d->conv->batch * d->conv->groups, 1, &begin, &end);
  for (int64_t plane = begin; plane < end; plane++)
    run_range(d, plane);
}

void DF_NAME(df_byte_depthwise_run)(const df_call *call, const df_conv *conv,
                                    const df_byte_operands *operands,
                                    const df_byte_epilogue *epilogue) {
  depthwise d = {conv, operands, epilogue};
  const int64_t planes = conv->batch * conv->groups;
  const int64_t work = df_times(planes * conv->window.out_size, conv->window.taps);
  df_parallel(call, run_task, &d, df_min(planes, df_task_count(call, work, DF_GRAIN)));
}
