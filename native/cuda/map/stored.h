/* map/stored.h: floats that are stored as they are or rounded to bfloat16, one or some neighbours,
 * and read again: of kernels whose results products of bfloat16 read, or that wait so. */
#ifndef DF_CUDA_MAP_STORED_H
#define DF_CUDA_MAP_STORED_H
#include "kernels.h"
#include "kernels/half.h"
#include "map/instructions.h"

static __device__ __forceinline__ float df_fetch(const float *from) { return *from; }
static __device__ __forceinline__ float df_fetch(const uint16_t *from) {
  return df_from_bfloat(*from);
}

/* |from| is a multiple of 4 of its elements. */
static __device__ __forceinline__ float4 df_fetch_four(const float *from) {
  return *reinterpret_cast<const float4 *>(from);
}
static __device__ __forceinline__ float4 df_fetch_four(const uint16_t *from) {
  const uint2 two = *reinterpret_cast<const uint2 *>(from);
  return float4{__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000u),
                __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000u)};
}

static __device__ __forceinline__ void df_store(float *to, float v) { *to = v; }
static __device__ __forceinline__ void df_store(uint16_t *to, float v) { *to = df_to_bfloat(v); }

/* Neighbours; |to| is a multiple of as many of its elements. */
static __device__ __forceinline__ void df_store_together(float *to, const float (&v)[2]) {
  *reinterpret_cast<float2 *>(to) = float2{v[0], v[1]};
}
static __device__ __forceinline__ void df_store_together(uint16_t *to, const float (&v)[2]) {
  *reinterpret_cast<uint32_t *>(to) = df_bfloat_pair(v[0], v[1]);
}
static __device__ __forceinline__ void df_store_together(float *to, const float (&v)[4]) {
  *reinterpret_cast<float4 *>(to) = float4{v[0], v[1], v[2], v[3]};
}
static __device__ __forceinline__ void df_store_together(uint16_t *to, const float (&v)[4]) {
  *reinterpret_cast<uint2 *>(to) = uint2{df_bfloat_pair(v[0], v[1]), df_bfloat_pair(v[2], v[3])};
}

#endif
