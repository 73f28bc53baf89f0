/* kernels/extremum.h: the larger and the smaller of two numbers, of which a NaN on either side
 * wins, of two NaN the first; of equal ones the second. Macros, so that each type has them and
 * loops over them become vector code. Operands are evaluated several times. */
#ifndef DF_KERNELS_EXTREMUM_H
#define DF_KERNELS_EXTREMUM_H

#define DF_MAXIMUM(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define DF_MINIMUM(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

#endif
