/* tensor.cpp: the instructions of tensor cores, a warp at a time. Operands are read as a card reads
 * them; sums are exact but for one rounding of each result, where a card rounds more often. */
#include "cuda_runtime.h"
#include "standin.h"

#pragma GCC optimize("O2") /* most of the time of products is here */

namespace {

struct fragment {
  double a[4][2], b[2][2];
};
fragment fragments[2][1024 / 32][32]; /* see standin_buffer */

/* Element |index| of a word: one float of which 10 bits of mantissa count, or two bfloat16. */
double element(unsigned word, int index, int per_word) {
  return (double)__uint_as_float(per_word == 1 ? word & 0xffffe000u
                                 : index == 0  ? word << 16
                                               : word & 0xffff0000u);
}

} // namespace

void standin_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, int per_word) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  fragment(&warp)[32] = fragments[standin_buffer()][thread / 32];
  const int lane = standin_lane(), row = lane / 4;
  for (int e = 0; e < per_word; e++) {
    for (int i = 0; i < 4; i++)
      warp[lane].a[i][e] = element(a[i], e, per_word);
    warp[lane].b[0][e] = element(b0, e, per_word);
    warp[lane].b[1][e] = element(b1, e, per_word);
  }
  standin_warp_barrier(~0u, standin_site::current(), false);
  for (int i = 0; i < 4; i++) {
    const int column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8; k++) { /* words along the sum */
      const double *x = warp[row * 4 + k % 4].a[i / 2 + k / 4 * 2];
      const double *y = warp[column * 4 + k % 4].b[k / 4];
      for (int e = 0; e < per_word; e++)
        sum += x[e] * y[e];
    }
    c[i] = (float)sum;
  }
}

void standin_ldmatrix(unsigned (&to)[4], const unsigned *row, bool transposed) {
  static const unsigned *rows[2][1024 / 32][32];
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned *(&warp)[32] = rows[standin_buffer()][thread / 32];
  const int lane = standin_lane(), g = lane / 4, t = lane % 4;
  if (reinterpret_cast<uintptr_t>(row) % 16)
    die("ldmatrix of a row that isn't aligned to 16 bytes", "");
  warp[lane] = row;
  note_read(row, 16, __builtin_return_address(0));
  standin_warp_barrier(~0u, standin_site::current(), false);
  for (int i = 0; i < 4; i++) {
    const auto element = [&](int r, int c) {
      return warp[i * 8 + r][c / 2] >> c % 2 * 16 & 0xffffu;
    };
    to[i] = transposed ? element(2 * t + 1, g) << 16 | element(2 * t, g)
                       : element(g, 2 * t + 1) << 16 | element(g, 2 * t);
  }
}
