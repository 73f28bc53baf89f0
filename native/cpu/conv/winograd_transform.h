/* conv/winograd_transform.h: the transforms of Winograd's convolution, for squares of two sizes. */
#ifndef DF_CPU_CONV_WINOGRAD_TRANSFORM_H
#define DF_CPU_CONV_WINOGRAD_TRANSFORM_H

#include "pool/window.h"
#include "simd/vector.h"

/* Squares [square, square + count) of a plane of outputs, row by row, |across| of them in a row. */
typedef struct df_squares {
  const df_window *window;
  int64_t across, square, count;
} df_squares;

/* Sums become outputs of |filters| filters, DF_LANES at most: relu(A' m A + bias + add). */
typedef struct df_square_epilogue {
  float *out;            /* plane of the first filter */
  const float *add;      /* likewise, null for none; may be out */
  const float *bias;     /* per filter, null for none */
  const float *sums;     /* [position][square][lane] */
  int64_t position, row; /* distance of positions, of squares */
  int64_t filters;
  float high; /* see |vec_activate| */
} df_square_epilogue;

typedef struct df_winograd_form {
  int64_t side;      /* of a square of outputs */
  int64_t positions; /* (side + 2) squared: products per channel, filter and square */
  /* out[position * step + lane] = G g G' for the 3 x 3 lines g of DF_LANES filters */
  void (*transform_weights)(float *out, int64_t step, const float *g);
  /* inputs[position * pitch + i] = B' d B for square i and one plane of the source; less than
   * DF_LANES floats behind the last square are overwritten */
  void (*transform_inputs)(const df_squares *squares, const float *plane, float *inputs,
                           int64_t pitch);
  void (*transform_sums)(const df_squares *squares, const df_square_epilogue *epilogue);
} df_winograd_form;

enum { DF_WINOGRAD_FORMS = 2, DF_WINOGRAD_POSITIONS = 36 /* the most */ };
extern const df_winograd_form DF_NAME(df_winograd_forms)[DF_WINOGRAD_FORMS];

#endif
