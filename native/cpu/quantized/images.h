/* quantized/images.h: positions of images as columns of bytes (see quantized/product.h).
 *
 * Channels are interleaved by four, with the padding around the image, and positions gathered from
 * that for each tap. Where a position reads just its own place, panels are interleaved at once;
 * where it reads one place and there is no padding, from a copy of those that are read. */
#ifndef DF_CPU_QUANTIZED_IMAGES_H
#define DF_CPU_QUANTIZED_IMAGES_H

#include "conv/shape.h"
#include "quantized/product.h"

typedef struct df_byte_images {
  df_conv conv;
  df_window padded; /* over images with their padding, which has none of its own */
  int64_t fours;    /* channels by four */
  int64_t steps;    /* of a position: a four of channels and its taps, then the next */
  int64_t bytes;    /* of all interleaved images, or copies; 0 where none are made */
  int32_t sampled;  /* positions read one place each, inside the image */
  const uint8_t *x;
  uint8_t *interleaved;
  uint8_t sign; /* the bit of x to invert */
  uint8_t zero; /* what padding is, unsigned */
} df_byte_images;

/* Sizes alone. */
df_byte_images DF_NAME(df_byte_images_of)(const df_conv *conv);

void DF_NAME(df_byte_interleave_images)(const df_call *call, df_byte_images *images);

/* A panel of positions [position, position + count) of image and group number |unit|. */
void DF_NAME(df_byte_pack_positions)(const df_byte_images *images, uint8_t *to, int64_t unit,
                                     int64_t position, int64_t count);

#endif
