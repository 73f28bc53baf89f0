/* real.h: the type of the elements of sources that serve float32 and float64.
 *
 * A source of |df_real| is compiled for float; a file of float64/ defines DF_DOUBLE and includes it
 * once more. Functions of the C library have the type of their arguments. */
#ifndef DF_CPU_REAL_H
#define DF_CPU_REAL_H
#include "cpu.h"

#include <tgmath.h>

#ifdef DF_DOUBLE
typedef double df_real;
typedef int64_t df_real_bits; /* as wide */
#define DF_REAL "f64"
#define DF_REAL_KERNELS(family) DF_KERNELS(family##_float64)
#else
typedef float df_real;
typedef int32_t df_real_bits;
#define DF_REAL "f32"
#define DF_REAL_KERNELS(family) DF_KERNELS(family)
#endif

#endif
