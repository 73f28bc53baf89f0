/* shape/gather_find.c: find(x, keys) -> y: the index of each element in keys, which ascend, with
 * NaN at the end; the number of keys where none is equal. */
#include "cpu.h"

/* The first key that is not less than |value|; only NaN is not less than NaN. */
#define FIND(T)                                                                                    \
  static int64_t find_##T(const T *keys, int64_t n, T value) {                                     \
    int64_t first = 0;                                                                             \
    for (int64_t length = n; length > 0;) {                                                        \
      const int64_t half = length / 2;                                                             \
      const T key = keys[first + half];                                                            \
      const int before = key < value || (value != value && key == key);                            \
      first += before ? half + 1 : 0;                                                              \
      length = before ? length - half - 1 : half;                                                  \
    }                                                                                              \
    const int found =                                                                              \
        first < n && (keys[first] == value || (value != value && keys[first] != keys[first]));     \
    return found ? first : n;                                                                      \
  }                                                                                                \
  static void task_##T(void *context, int64_t index, int64_t count, int32_t worker) {              \
    (void)worker;                                                                                  \
    const df_call *call = context;                                                                 \
    const df_tensor *x = call->inputs[0], *keys = call->inputs[1];                                 \
    int64_t i, end, *y = call->outputs[0]->data;                                                   \
    df_task_range(index, count, df_elements(x), 1, &i, &end);                                      \
    for (; i < end; i++)                                                                           \
      y[i] = find_##T(keys->data, keys->shape[0], ((const T *)x->data)[i]);                        \
  }                                                                                                \
  static df_status run_##T(const df_call *call) {                                                  \
    df_parallel(call, task_##T, (void *)(uintptr_t)call,                                           \
                df_task_count(call, df_elements(call->inputs[0]), DF_GRAIN / 4));                  \
    return DF_OK;                                                                                  \
  }
FIND(float)
FIND(double)
FIND(int32_t)
FIND(int64_t)

DF_KERNELS(gather_find) = {DF_KERNEL("find", "f32", "f32,f32->i64", NULL, run_float),
                           DF_KERNEL("find", "f64", "f64,f64->i64", NULL, run_double),
                           DF_KERNEL("find", "i32", "i32,i32->i64", NULL, run_int32_t),
                           DF_KERNEL("find", "i64", "i64,i64->i64", NULL, run_int64_t), NULL};
