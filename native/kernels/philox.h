/* kernels/philox.h: Philox4x32-10, numbers as a function of key and counter alone, and how elements
 * of random ops come from them. They depend neither on threads nor on order.
 *
 * key: uint64[2] = (seed, step). Block b gives the bits of elements 4b..4b+3: counter = (low half
 * of b, high half of b, stream, low half of step), key = (low, high half of seed).
 * u = (bits >> 8) 2^-24, in [0, 1).
 *
 *   random_uniform  low + u (high - low)
 *   random_normal   from the words w0..w3 of a block, by Box and Muller, for the pairs (w0, w1) and
 *                   (w2, w3): r = sqrt(-2 log(((w0 >> 8) + 1) 2^-24)), t = 2 pi (w1 >> 8) 2^-24;
 *                   the two elements are mean + scale r cos t, mean + scale r sin t
 *   dropout         x / (1 - ratio) where u >= ratio, else 0 */
#ifndef DF_KERNELS_PHILOX_H
#define DF_KERNELS_PHILOX_H
#include "kernels/function.h"

#include <stdint.h>

enum { DF_PHILOX_ROUNDS = 10 };

/* After each round the key moves on by these. */
#define DF_PHILOX_KEY_0 0x9E3779B9u
#define DF_PHILOX_KEY_1 0xBB67AE85u

/* One round on a counter. */
DF_FN void df_philox_round(uint32_t *c0, uint32_t *c1, uint32_t *c2, uint32_t *c3, uint32_t k0,
                           uint32_t k1) {
  const uint64_t p0 = (uint64_t)*c0 * 0xD2511F53u, p1 = (uint64_t)*c2 * 0xCD9E8D57u;
  *c0 = (uint32_t)(p1 >> 32) ^ *c1 ^ k0;
  *c2 = (uint32_t)(p0 >> 32) ^ *c3 ^ k1;
  *c1 = (uint32_t)p1;
  *c3 = (uint32_t)p0;
}

/* The upper 24 bits, exact as a float; through int32, which every instruction set converts. */
DF_FN float df_philox_upper(uint32_t word) { return (float)(int32_t)(word >> 8); }

#define DF_PHILOX_UNIT 0x1p-24f         /* upper bits to [0, 1) */
#define DF_PHILOX_ANGLE 0x1.921fb6p-22f /* to [0, 2 pi) */

#endif
