/* attention/tile.h: products of tiles in shared memory, exactly as float32, for
 * attention/attention.cu and attention/grad.cu.
 *
 * A block has 16 x 8 threads; thread (down, across) has the rows down + 16 i of a result, and of
 * its columns either across + 8 j (product_rows) or four beside each other, 4 across + 32 g
 * (product_columns). Tiles lie in shared memory row by row as they came, with four floats behind
 * each row, so that threads which read 16 bytes of eight neighbouring rows read different banks. A
 * warp has complete rows of a result: what it writes there it may read after __syncwarp. */
#ifndef DF_CUDA_ATTENTION_TILE_H
#define DF_CUDA_ATTENTION_TILE_H
#include "attention/operands.h"
#include "gemm/async.h"

enum {
  DF_ATTENTION_DOWN = 16,
  DF_ATTENTION_ACROSS = 8,
  DF_ATTENTION_THREADS = DF_ATTENTION_BLOCK,
  DF_ATTENTION_GAP = 4,        /* floats behind a row of a tile */
  DF_ATTENTION_WEIGHTS_GAP = 8 /* behind a row of weights, which are written one by one */
};

static __device__ __forceinline__ int df_attention_down() {
  return static_cast<int>(threadIdx.x) / DF_ATTENTION_ACROSS;
}
static __device__ __forceinline__ int df_attention_across() {
  return static_cast<int>(threadIdx.x) % DF_ATTENTION_ACROSS;
}

static __device__ __forceinline__ float4 df_attention_four(const float *at) {
  return *reinterpret_cast<const float4 *>(at);
}

/* sums[i][j] += sum over c < depth of a[16 i][c] b[8 j][c]; a and b are the first rows of this
 * thread; depth is a multiple of 4. */
template <int ROWS, int COLUMNS, int PITCH>
static __device__ __forceinline__ void df_product_rows(float (&sums)[ROWS][COLUMNS], const float *a,
                                                       const float *b, int depth) {
#pragma unroll 2
  for (int c = 0; c < depth; c += 4) {
    float4 left[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
      left[i] = df_attention_four(a + i * DF_ATTENTION_DOWN * PITCH + c);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const float4 right = df_attention_four(b + j * DF_ATTENTION_ACROSS * PITCH + c);
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        float sum = fmaf(left[i].x, right.x, sums[i][j]);
        sum = fmaf(left[i].y, right.y, sum);
        sum = fmaf(left[i].z, right.z, sum);
        sums[i][j] = fmaf(left[i].w, right.w, sum);
      }
    }
  }
}

/* sums[i][4 g + f] += sum over c < DEPTH of a[16 i][c] b[c][32 g + f]; a is the first row, b the
 * first column of this thread. */
template <int ROWS, int COLUMNS, int DEPTH, int A_PITCH, int B_PITCH>
static __device__ __forceinline__ void df_product_columns(float (&sums)[ROWS][COLUMNS],
                                                          const float *a, const float *b) {
#pragma unroll 2
  for (int c = 0; c < DEPTH; c += 4) {
    float left[ROWS][4];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const float4 four = df_attention_four(a + i * DF_ATTENTION_DOWN * A_PITCH + c);
      left[i][0] = four.x;
      left[i][1] = four.y;
      left[i][2] = four.z;
      left[i][3] = four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int g = 0; g < COLUMNS; g += 4) {
        const float4 right = df_attention_four(b + (c + k) * B_PITCH + g * DF_ATTENTION_ACROSS);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          sums[i][g] = fmaf(left[i][k], right.x, sums[i][g]);
          sums[i][g + 1] = fmaf(left[i][k], right.y, sums[i][g + 1]);
          sums[i][g + 2] = fmaf(left[i][k], right.z, sums[i][g + 2]);
          sums[i][g + 3] = fmaf(left[i][k], right.w, sums[i][g + 3]);
        }
      }
  }
}

/* Begins to copy ROWS rows of |x| from |first| on to |to|, zeros behind the last of |rows| and
 * behind each row up to HEAD; df_async_wait and a barrier end it. All threads of the block take
 * part. */
template <int ROWS, int HEAD>
static __device__ __forceinline__ void df_attention_load(float *to, const df_attention_matrix &x,
                                                         int32_t first, int32_t rows) {
  constexpr int PITCH = HEAD + DF_ATTENTION_GAP, FOURS = HEAD / 4;
  constexpr int STEP = DF_ATTENTION_THREADS / FOURS; /* rows */
  const int thread = static_cast<int>(threadIdx.x);
  const float *from = x.at + first * x.row;
  const int32_t left = rows - first;
  if (x.fours) {
    const int row = thread / FOURS, column = thread % FOURS * 4;
    const int32_t valid = column < x.width ? left : 0;
    from += row * x.row + column;
    to += row * PITCH + column;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP) {
      df_async_four(to + k * PITCH, row + k < valid ? from : x.at, row + k < valid);
      from += STEP * x.row;
    }
    return;
  }
  const bool down = x.column != 1; /* threads side by side read rows that do so */
  for (int index = thread; index < ROWS * HEAD; index += DF_ATTENTION_THREADS) {
    const int row = down ? index % ROWS : index / HEAD;
    const int column = down ? index / ROWS : index % HEAD;
    to[row * PITCH + column] =
        row < left && column < x.width ? from[row * x.row + column * x.column] : 0.0f;
  }
}

/* One value per row joined over its threads, which are neighbours in a warp. */
template <typename F> static __device__ __forceinline__ float df_attention_join(float x, F f) {
#pragma unroll
  for (int mask = DF_ATTENTION_ACROSS / 2; mask > 0; mask /= 2)
    x = f(x, __shfl_xor_sync(0xffffffffu, x, mask));
  return x;
}

#endif
