/* pack.h: turning rows into columns while packing. */
#ifndef DF_CPU_PACK_H
#define DF_CPU_PACK_H

#include "cpu.h"
#include "vector.h"

/* out[p * width + i] = from[i * row + p] for i < rows <= DF_LANES, p < k, by squares turned in
 * registers. Each step writes DF_LANES lanes: those from |rows| on are zeros, and those from
 * |width| on are overwritten by the next step or lie in the slack of DF_LANES floats behind |out|.
 */
static inline void df_pack_turned(float *out, const float *from, int64_t row, int64_t rows,
                                  int64_t k, int64_t width) {
  for (int64_t p = 0; p < k; p += DF_LANES) {
    int64_t steps = df_min(DF_LANES, k - p);
    df_vec square[DF_LANES];
    for (int i = 0; i < DF_LANES; i++)
      square[i] = i >= rows           ? vec_zero()
                  : steps == DF_LANES ? vec_load(from + i * row + p)
                                      : vec_load_part(from + i * row + p, steps);
    vec_transpose(square);
    for (int i = 0; i < DF_LANES; i++)
      if (i < steps)
        vec_store(out + (p + i) * width, square[i]);
  }
}

#endif
