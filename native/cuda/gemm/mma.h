/* gemm/mma.h: products on tensor cores, a warp at a time, of sm_80 and newer.
 *
 *   c (16, 8) += a (16, 8 words) b (8 words, 8)
 *
 * A word has as many numbers along the sum as the number format says: one TF32 or two bfloat16. In
 * terms of words both formats lie alike: with g = lane / 4 and t = lane % 4 a thread has
 *   a: words (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)    b: words (t, g), (t + 4, g)
 *   c: (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)
 * so that c of two formats, or of one product, are words of a for the next. */
#ifndef DF_CUDA_GEMM_MMA_H
#define DF_CUDA_GEMM_MMA_H
#include "map/instructions.h"

/* Floats rounded to 10 bits of mantissa, ties away from zero. */
struct df_tf32 {
  static constexpr int PER_WORD = 1;

  static __device__ __forceinline__ uint32_t word(float x) {
#ifdef __CUDACC__
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#else
    return standin_tf32(x);
#endif
  }

  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    standin_mma(c, a, b0, b1, PER_WORD);
#endif
  }
};

/* Floats rounded to bfloat16, ties to even. */
struct df_bf16 {
  static constexpr int PER_WORD = 2;

  static __device__ __forceinline__ uint32_t word(float first, float second) {
    return df_bfloat_pair(first, second);
  }

  static __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
#ifdef __CUDACC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    standin_mma(c, a, b0, b1, PER_WORD);
#endif
  }
};

#endif
