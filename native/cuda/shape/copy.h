/* shape/copy.h: copies a box of elements between two strided layouts; the kernels are in
 * shape/shape.cu. */
#ifndef DF_CUDA_SHAPE_COPY_H
#define DF_CUDA_SHAPE_COPY_H
#include "map/map.h"

/* to[i, j, ...] = from[i, j, ...] for |shape|; strides in elements of |item| bytes (1 to 16). Does
 * nothing when the box is empty. */
df_status df_copy_box(const df_call *call, void *to, const int64_t *to_strides, const void *from,
                      const int64_t *from_strides, const int64_t *shape, int32_t rank,
                      int64_t item);

/* An element of 16 bytes. */
struct alignas(16) df_bytes16 {
  uint64_t low, high;
};

/* Calls run.template operator()<T>() with an unsigned T of |item| bytes. */
template <typename F> static inline df_status df_by_item(int64_t item, F run) {
  switch (item) {
  case 1:
    return run.template operator()<uint8_t>();
  case 2:
    return run.template operator()<uint16_t>();
  case 4:
    return run.template operator()<uint32_t>();
  case 8:
    return run.template operator()<uint64_t>();
  default:
    return run.template operator()<df_bytes16>();
  }
}

#endif
