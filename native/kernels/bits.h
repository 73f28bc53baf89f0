/* kernels/bits.h: a float as the int32 of its bits, and back. */
#ifndef DF_KERNELS_BITS_H
#define DF_KERNELS_BITS_H
#include "kernels/function.h"

#include <stdint.h>
#include <string.h>

DF_FN int32_t df_bits(float x) {
  int32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

DF_FN float df_float(int32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

#endif
