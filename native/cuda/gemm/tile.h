/* gemm/tile.h: the sums of one block of a product: acc[i][j] = sum over k of a[row i][k] b[k][col
 * j].
 *
 * A block takes ROWS x COLUMNS sums; slices of DEPTH of both factors lie in shared memory, twice,
 * so that one is filled while the other one is read, with one barrier a slice. A warp is 4 x 8
 * threads and a thread has DOWN x ACROSS sums in registers, four at a time, which it reads from
 * shared memory 16 bytes at a time: 2 (DOWN + ACROSS) / 4 reads for DOWN * ACROSS multiply-adds.
 */
#ifndef DF_CUDA_GEMM_TILE_H
#define DF_CUDA_GEMM_TILE_H
#include "map/map.h"

enum {
  DF_TILE_DEPTH = 16,
  DF_TILE_LANES_DOWN = 4,
  DF_TILE_LANES_ACROSS = 8,
  DF_TILE_GAP = 4 /* floats behind each row in shared memory: columns fall into different banks */
};

template <int ROWS_, int COLUMNS_, int DOWN_, int ACROSS_, int RESIDENT_> struct df_tile {
  static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
  static constexpr int DOWN = DOWN_, ACROSS = ACROSS_;
  static constexpr int THREADS = ROWS * COLUMNS / (DOWN * ACROSS);
  static constexpr int RESIDENT = RESIDENT_; /* blocks that a multiprocessor shall hold */
  static constexpr int WARP_ROWS = DF_TILE_LANES_DOWN * DOWN;
  static constexpr int WARP_COLUMNS = DF_TILE_LANES_ACROSS * ACROSS;
  static constexpr int WARPS_ACROSS = COLUMNS / WARP_COLUMNS;
};
typedef df_tile<128, 128, 8, 8, 2> df_tile_large;
typedef df_tile<64, 64, 4, 4, 3> df_tile_small;
typedef df_tile<16, 128, 4, 4, 6> df_tile_thin;

enum { DF_TILE_LARGE, DF_TILE_SMALL, DF_TILE_THIN };

/* Floats of a factor that a thread loads per slice, rounded up to fours. */
template <typename T, int SIDE> struct df_share {
  static constexpr int FOURS = (SIDE * DF_TILE_DEPTH / 4 + T::THREADS - 1) / T::THREADS;
  static constexpr int SINGLES = SIDE * DF_TILE_DEPTH / T::THREADS;
  static constexpr int CAPACITY = FOURS * 4; /* at least SINGLES */
};

/* The first row and column of this thread's sums in the block; sum (i, j) is at
 * row + (i / 4) * 16 + i % 4 and column + (j / 4) * 32 + j % 4. */
template <typename T> static __device__ __forceinline__ int df_tile_row() {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / DF_WARP;
  return warp / T::WARPS_ACROSS * T::WARP_ROWS + thread % DF_WARP / DF_TILE_LANES_ACROSS * 4;
}
template <typename T> static __device__ __forceinline__ int df_tile_column() {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / DF_WARP;
  return warp % T::WARPS_ACROSS * T::WARP_COLUMNS + thread % DF_TILE_LANES_ACROSS * 4;
}
static __device__ __forceinline__ constexpr int df_tile_down(int i) {
  return i / 4 * (DF_TILE_LANES_DOWN * 4) + i % 4;
}
static __device__ __forceinline__ constexpr int df_tile_across(int j) {
  return j / 4 * (DF_TILE_LANES_ACROSS * 4) + j % 4;
}

/* Four floats of shared memory. */
static __device__ __forceinline__ void df_four(float *to, const float *from) {
  const float4 v = *reinterpret_cast<const float4 *>(from);
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

/* Adds the products of half a slice. */
template <typename T, int FIRST>
static __device__ __forceinline__ void df_tile_half(float (&sums)[T::DOWN][T::ACROSS],
                                                    const float *a_slice, const float *b_slice) {
#pragma unroll
  for (int p = FIRST; p < FIRST + DF_TILE_DEPTH / 2; p++) {
    float a[T::DOWN], b[T::ACROSS];
#pragma unroll
    for (int i = 0; i < T::DOWN; i += 4)
      df_four(a + i, a_slice + p * (T::ROWS + DF_TILE_GAP) + df_tile_down(i));
#pragma unroll
    for (int j = 0; j < T::ACROSS; j += 4)
      df_four(b + j, b_slice + p * (T::COLUMNS + DF_TILE_GAP) + df_tile_across(j));
#pragma unroll
    for (int i = 0; i < T::DOWN; i++)
#pragma unroll
      for (int j = 0; j < T::ACROSS; j++)
        sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
  }
}

/* Adds the products of [begin, end) to |sums|; end + DF_TILE_DEPTH < 2^31. |L| loads the factors:
 *   fetch_a(v, k), fetch_b(v, k)  this thread's share of the slice at k; zeros from end on
 *   store_a(to, v), store_b(to, v)  into shared memory, element (k, i) at k * (SIDE + GAP) + i */
template <typename T, typename L>
static __device__ __forceinline__ void df_tile_sum(float (&sums)[T::DOWN][T::ACROSS], L &load,
                                                   int32_t begin, int32_t end) {
  constexpr int A_PITCH = T::ROWS + DF_TILE_GAP, B_PITCH = T::COLUMNS + DF_TILE_GAP;
  DF_SHARED_ARRAY(float, a_slices, [2][DF_TILE_DEPTH * A_PITCH]);
  DF_SHARED_ARRAY(float, b_slices, [2][DF_TILE_DEPTH * B_PITCH]);
  const int row = df_tile_row<T>(), column = df_tile_column<T>();
  if (begin >= end)
    return;
  {
    float a[df_share<T, T::ROWS>::CAPACITY], b[df_share<T, T::COLUMNS>::CAPACITY];
    load.fetch_a(a, begin);
    load.fetch_b(b, begin);
    load.store_a(a_slices[0], a);
    load.store_b(b_slices[0], b);
  }
  __syncthreads();
  int now = 0;
  for (int32_t k = begin; k < end; k += DF_TILE_DEPTH, now ^= 1) {
    const bool more = end - k > DF_TILE_DEPTH;
    const float *a_slice = a_slices[now] + row, *b_slice = b_slices[now] + column;
    {
      float next[df_share<T, T::ROWS>::CAPACITY] = {};
      if (more)
        load.fetch_a(next, k + DF_TILE_DEPTH);
      df_tile_half<T, 0>(sums, a_slice, b_slice);
      if (more)
        load.store_a(a_slices[now ^ 1], next);
    }
    {
      float next[df_share<T, T::COLUMNS>::CAPACITY] = {};
      if (more)
        load.fetch_b(next, k + DF_TILE_DEPTH);
      df_tile_half<T, DF_TILE_DEPTH / 2>(sums, a_slice, b_slice);
      if (more)
        load.store_b(b_slices[now ^ 1], next);
    }
    __syncthreads();
  }
}

/* ---- A factor with two strides -------------------------------------------------------------- */

/* What one thread loads of a factor with SIDE rows (columns, for b) a block: elements or, with
 * FOURS, groups of four, an even step apart. It moves on by a slice with every fetch. */
template <typename T, int SIDE, bool FOURS> struct df_factor {
  const float *data;  /* this thread's first element of the next slice */
  int64_t step;       /* to the next one of the same slice */
  int64_t slice;      /* to the first one of the next slice */
  int row, rows_step; /* of the first one in the block, and to the next one */
  int rows;           /* that there are, from the block's first one on */
  int depth, depth_step;
  int32_t end;  /* of k, counted from the block's first slice */
  bool along_k; /* fours, and neighbouring threads, lie along k */

  /* |from|: the block's first row, at its first slice. With FOURS the axis that they lie along has
   * stride 1 and every four is aligned. Rows behind |side| give values that nobody stores. */
  __device__ __forceinline__ void begin(const float *from, int64_t side_stride, int64_t k_stride,
                                        int64_t side, int32_t end_, bool along_k_) {
    constexpr int D = DF_TILE_DEPTH;
    const int thread = static_cast<int>(threadIdx.x), width = FOURS ? 4 : 1;
    along_k = along_k_;
    end = end_;
    rows = static_cast<int>(side < SIDE ? side : SIDE);
    if (along_k) {
      const int line = D / width;
      row = thread / line;
      depth = thread % line * width;
      rows_step = T::THREADS / line;
      depth_step = 0;
    } else {
      const int line = SIDE / width;
      row = thread % line * width;
      depth = thread / line;
      rows_step = 0;
      depth_step = T::THREADS / line;
    }
    data = from + row * side_stride + depth * k_stride;
    step = rows_step * side_stride + depth_step * k_stride;
    slice = D * k_stride;
  }

  __device__ __forceinline__ void fetch(float (&v)[df_share<T, SIDE>::CAPACITY], int32_t k) {
    const float *from = data;
    const int left = end - k;
    int i = row, p = depth;
    if constexpr (FOURS) {
#pragma unroll
      for (int f = 0; f < df_share<T, SIDE>::FOURS; f++) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < rows && p < left)
          x = *reinterpret_cast<const float4 *>(from);
        v[4 * f] = x.x;
        v[4 * f + 1] = x.y;
        v[4 * f + 2] = x.z;
        v[4 * f + 3] = x.w;
        from += step;
        i += rows_step;
        p += depth_step;
      }
    } else {
#pragma unroll
      for (int f = 0; f < df_share<T, SIDE>::SINGLES; f++) {
        v[f] = i < rows && p < left ? *from : 0.0f;
        from += step;
        i += rows_step;
        p += depth_step;
      }
    }
    data += slice;
  }

  __device__ __forceinline__ void store(float *to,
                                        const float (&v)[df_share<T, SIDE>::CAPACITY]) const {
    constexpr int PITCH = SIDE + DF_TILE_GAP;
    const int one = depth_step * PITCH + rows_step;
    to += depth * PITCH + row;
    if (FOURS && along_k) {
#pragma unroll
      for (int f = 0; f < df_share<T, SIDE>::FOURS; f++)
        if (row + f * rows_step < SIDE)
#pragma unroll
          for (int e = 0; e < 4; e++)
            to[f * one + e * PITCH] = v[4 * f + e];
    } else if (FOURS) {
#pragma unroll
      for (int f = 0; f < df_share<T, SIDE>::FOURS; f++)
        if (depth + f * depth_step < DF_TILE_DEPTH)
          *reinterpret_cast<float4 *>(to + f * one) =
              make_float4(v[4 * f], v[4 * f + 1], v[4 * f + 2], v[4 * f + 3]);
    } else {
#pragma unroll
      for (int f = 0; f < df_share<T, SIDE>::SINGLES; f++)
        to[f * one] = v[f];
    }
  }
};

#endif
