/* planner/offsets.h: the offset search of the memory planner. It knows sizes and times, no tensors.
 *
 * Read by a C compiler and by cffi: plain declarations only.
 */
#ifndef DF_RUNTIME_PLANNER_OFFSETS_H
#define DF_RUNTIME_PLANNER_OFFSETS_H
#include "dataflow.h"

/* A buffer that needs |bytes| of memory at the times [start, stop), at a multiple of |alignment|, a
 * power of two. |fixed| is its offset when that is decided already, else -1. One without bytes or
 * without time needs no memory; its offset is |fixed| or 0. */
typedef struct df_lifetime {
  int64_t start;
  int64_t stop;
  int64_t bytes;
  int64_t alignment;
  int64_t fixed;
} df_lifetime;

/* Finds offsets[count] at which no two buffers that live at one time share a byte, and as small a
 * |peak| as it can, the end of the highest buffer. Every buffer takes its bytes rounded up to its
 * alignment. |lower_bound| is the largest sum of these at one time, or the end of the highest fixed
 * buffer where that is more: no peak can be below it, and the search ends when the peak is there.
 *
 * |effort| bounds the search in visits of a buffer, about a nanosecond each; a first assignment is
 * made in any case. It is a count and not a time, so the answer is the same on every machine.
 *
 * DF_INVALID, with the buffer as error->step, for negative sizes or times out of order, an
 * alignment that is no power of two, a fixed offset that breaks it or two fixed buffers that clash,
 * and for sizes whose sum does not fit in 63 bits. */
df_status df_plan_offsets(int64_t count, const df_lifetime *buffers, int64_t effort,
                          int64_t *offsets, int64_t *peak, int64_t *lower_bound, df_error *error);

#endif
