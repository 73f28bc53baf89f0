/* undefined.cu: what the compiler's checks find (STANDIN_SANITIZE). */
#include "violations.h"

/* Four floats from an address that is a multiple of one. */
__global__ static void copy_four(float4 *to, const float *from) {
  *to = *reinterpret_cast<const float4 *>(from);
}
extern "C" void reads_four_floats_that_are_not_aligned() {
  float *memory = memory_of<float>(0, 16);
  finish(1, 1, copy_four, reinterpret_cast<float4 *>(memory + 8), memory + 1);
}
extern "C" void reads_four_floats_that_are_aligned() {
  float *memory = memory_of<float>(0, 16);
  finish(1, 1, copy_four, reinterpret_cast<float4 *>(memory + 8), memory + 4);
}

/* Without the compiler's checks the copy alone says it. */
extern "C" void indexes_behind_an_array() {
  finish(
      1, 1,
      +[](int *out, int index) {
        int few[4] = {1, 2, 3, 4};
        *out = few[index];
      },
      memory_of<int>(0, 1), 4);
}
extern "C" void multiplies_beyond_32_bits() {
  finish(
      1, 1, +[](int64_t *out, int rows) { *out = rows * rows; }, memory_of<int64_t>(0, 1), 1 << 16);
}
