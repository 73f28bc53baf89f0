/* shape/scatter_join.h: what becomes of elements and updates that a reduction joins, by type. */
#ifndef DF_CPU_SHAPE_SCATTER_JOIN_H
#define DF_CPU_SHAPE_SCATTER_JOIN_H
#include "cpu.h"
#include "kernels/scatter.h"

/* |rows| joins |n| updates to as many elements, each case a loop of its own, so that it becomes
 * vector code. |lane| joins each update to the element at its index, by entries from |entry| on. */
typedef struct joins {
  void (*rows)(void *y, const void *updates, int64_t n, int32_t reduction);
  void (*lane)(void *y, const void *updates, const df_entries *e, int64_t entry, int64_t n,
               int32_t reduction);
} joins;

/* W is the type to compute in: without sign for integers, which wrap. */
#define DEFINE_JOIN(type, T, W)                                                                    \
  static void rows_##type(void *y, const void *updates, int64_t n, int32_t reduction) {            \
    T *to = y;                                                                                     \
    const T *from = updates;                                                                       \
    switch (reduction) {                                                                           \
    case DF_SCATTER_ADD:                                                                           \
      for (int64_t j = 0; j < n; j++)                                                              \
        to[j] = (T)((W)to[j] + (W)from[j]);                                                        \
      break;                                                                                       \
    case DF_SCATTER_MUL:                                                                           \
      for (int64_t j = 0; j < n; j++)                                                              \
        to[j] = (T)((W)to[j] * (W)from[j]);                                                        \
      break;                                                                                       \
    case DF_SCATTER_MAX:                                                                           \
      for (int64_t j = 0; j < n; j++)                                                              \
        to[j] = DF_MAXIMUM(to[j], from[j]);                                                        \
      break;                                                                                       \
    default:                                                                                       \
      for (int64_t j = 0; j < n; j++)                                                              \
        to[j] = DF_MINIMUM(to[j], from[j]);                                                        \
    }                                                                                              \
  }                                                                                                \
  static void lane_##type(void *y, const void *updates, const df_entries *e, int64_t entry,        \
                          int64_t n, int32_t reduction) {                                          \
    const T *from = updates;                                                                       \
    const int64_t size = e->limits[e->first];                                                      \
    for (int64_t j = 0; j < n; j++) {                                                              \
      const int64_t index = df_entries_index(e, entry + j);                                        \
      T *to = (T *)y + (index < 0 ? index + size : index);                                         \
      const T a = *to, b = from[j];                                                                \
      *to = reduction == DF_SCATTER_ADD   ? (T)((W)a + (W)b)                                       \
            : reduction == DF_SCATTER_MUL ? (T)((W)a * (W)b)                                       \
            : reduction == DF_SCATTER_MAX ? DF_MAXIMUM(a, b)                                       \
                                          : DF_MINIMUM(a, b);                                      \
    }                                                                                              \
  }                                                                                                \
  static const joins join_##type = {rows_##type, lane_##type};
DEFINE_JOIN(f32, float, float)
DEFINE_JOIN(f64, double, double)
DEFINE_JOIN(i8, int8_t, uint32_t)
DEFINE_JOIN(i16, int16_t, uint32_t)
DEFINE_JOIN(i32, int32_t, uint32_t)
DEFINE_JOIN(i64, int64_t, uint64_t)
DEFINE_JOIN(u8, uint8_t, uint32_t)
DEFINE_JOIN(u16, uint16_t, uint32_t)
DEFINE_JOIN(u32, uint32_t, uint32_t)
DEFINE_JOIN(u64, uint64_t, uint64_t)

/* Null for types whose elements are replaced alone. */
static const joins *join_of(int32_t dtype) {
  switch (dtype) {
  case DF_FLOAT32:
    return &join_f32;
  case DF_FLOAT64:
    return &join_f64;
  case DF_INT8:
    return &join_i8;
  case DF_INT16:
    return &join_i16;
  case DF_INT32:
    return &join_i32;
  case DF_INT64:
    return &join_i64;
  case DF_UINT8:
    return &join_u8;
  case DF_UINT16:
    return &join_u16;
  case DF_UINT32:
    return &join_u32;
  case DF_UINT64:
    return &join_u64;
  default:
    return NULL;
  }
}

#endif
