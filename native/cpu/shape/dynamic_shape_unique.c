/* shape/dynamic_shape_unique.c: unique(x; sorted) -> ids, count: the rows of a matrix are sorted by
 * merging, which keeps the order of equal ones, and numbered. */
#include "cpu.h"

typedef int (*compare_rows)(const void *x, int64_t width, int64_t a, int64_t b);

/* Below 0 where row |a| comes before row |b|, 0 where they are equal. NaN is one value, and the
 * largest. */
#define DEFINE_COMPARE(type, T)                                                                    \
  static int compare_##type(const void *x, int64_t width, int64_t a, int64_t b) {                  \
    const T *left = (const T *)x + a * width, *right = (const T *)x + b * width;                   \
    for (int64_t j = 0; j < width; j++) {                                                          \
      const T l = left[j], r = right[j];                                                           \
      const int no_l = l != l, no_r = r != r;                                                      \
      if (no_l != no_r)                                                                            \
        return no_l - no_r;                                                                        \
      if (!no_l && l != r)                                                                         \
        return l < r ? -1 : 1;                                                                     \
    }                                                                                              \
    return 0;                                                                                      \
  }
DEFINE_COMPARE(f32, float)
DEFINE_COMPARE(f64, double)
DEFINE_COMPARE(i8, int8_t)
DEFINE_COMPARE(i16, int16_t)
DEFINE_COMPARE(i32, int32_t)
DEFINE_COMPARE(i64, int64_t)
DEFINE_COMPARE(u8, uint8_t)
DEFINE_COMPARE(u16, uint16_t)
DEFINE_COMPARE(u32, uint32_t)
DEFINE_COMPARE(u64, uint64_t)

/* Sorts order[0..n), indices of rows; |other| is as long. The answer is one of them. */
static int64_t *sort_rows(compare_rows compare, const void *x, int64_t width, int64_t *order,
                          int64_t *other, int64_t n) {
  for (int64_t run = 1; run < n; run *= 2) {
    for (int64_t begin = 0; begin < n; begin += 2 * run) {
      const int64_t middle = df_min(n, begin + run), end = df_min(n, begin + 2 * run);
      int64_t left = begin, right = middle;
      for (int64_t at = begin; at < end; at++) {
        const int first =
            right == end || (left < middle && compare(x, width, order[left], order[right]) <= 0);
        other[at] = first ? order[left++] : order[right++];
      }
    }
    int64_t *const sorted = other;
    other = order;
    order = sorted;
  }
  return order;
}

static df_status unique(const df_call *call, compare_rows compare) {
  const df_tensor *x = call->inputs[0];
  const int64_t n = x->shape[0], width = x->shape[1];
  int64_t *ids = call->outputs[0]->data, *order = call->workspace, count = 0;
  for (int64_t i = 0; i < n; i++)
    order[i] = i;
  order = sort_rows(compare, x->data, width, order, order + n, n);
  for (int64_t i = 0; i < n; i++) {
    count += i == 0 || compare(x->data, width, order[i - 1], order[i]) != 0;
    ids[order[i]] = count - 1;
  }
  if (!df_attr_int(call, DF_UNIQUE_SORTED)) {
    int64_t *renamed = call->workspace, next = 0;
    for (int64_t i = 0; i < count; i++)
      renamed[i] = -1;
    for (int64_t i = 0; i < n; i++) {
      if (renamed[ids[i]] < 0)
        renamed[ids[i]] = next++;
      ids[i] = renamed[ids[i]];
    }
  }
  *(int64_t *)call->outputs[1]->data = count;
  return DF_OK;
}

static df_status prepare(const df_node *node, df_prepared *out, df_error *error) {
  (void)error;
  out->workspace = 2 * node->inputs[0]->shape[0] * (int64_t)sizeof(int64_t);
  return DF_OK;
}

#define RUN(type)                                                                                  \
  static df_status unique_##type##_run(const df_call *call) { return unique(call, compare_##type); }
RUN(f32)
RUN(f64)
RUN(i8)
RUN(i16)
RUN(i32)
RUN(i64)
RUN(u8)
RUN(u16)
RUN(u32)
RUN(u64)

#define RECORD(type, types)                                                                        \
  &(const df_kernel){.struct_size = sizeof(df_kernel),                                             \
                     .op = "unique",                                                               \
                     .name = "unique " #type " " DF_TEXT(DF_ISA),                                  \
                     .operands = types "->i64,i64",                                                \
                     .prepare = prepare,                                                           \
                     .run = unique_##type##_run}
DF_KERNELS(dynamic_shape_unique) = {RECORD(f32, "f32"),
                                    RECORD(f64, "f64"),
                                    RECORD(i8, "i8"),
                                    RECORD(i16, "i16"),
                                    RECORD(i32, "i32"),
                                    RECORD(i64, "i64"),
                                    RECORD(u8, "u8|bool"),
                                    RECORD(u16, "u16"),
                                    RECORD(u32, "u32"),
                                    RECORD(u64, "u64"),
                                    NULL};
