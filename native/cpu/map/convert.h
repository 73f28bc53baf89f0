/* map/convert.h: elements of one type to another, for kernels whose operands have several types. */
#ifndef DF_CPU_MAP_CONVERT_H
#define DF_CPU_MAP_CONVERT_H
#include "cpu.h"

/* How floats become floats of 8 bits and fewer. */
typedef struct df_fit {
  int32_t saturate; /* 0: what is out of range becomes infinity or NaN */
  int32_t rounding; /* to float8 e8m0: DF_ROUND_UP, ... */
} df_fit;

/* out[i] = (target) in[i] for i < n, between all types but the complex ones, as cast does. */
void DF_NAME(df_convert)(void *out, int32_t target, const void *in, int32_t source, int64_t n,
                         df_fit fit);

#endif
