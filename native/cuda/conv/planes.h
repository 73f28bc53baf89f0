/* conv/planes.h: the product of weights with shifted planes, see conv/shifted.cu.
 *
 * k runs over blocks of 16 channels, then taps, then the channels of the block, so that a slice has
 * one tap: a thread's column is looked at once a slice. With few channels it runs over channels,
 * then taps.
 */
#ifndef DF_CUDA_CONV_PLANES_H
#define DF_CUDA_CONV_PLANES_H
#include "conv/conv.h"
#include "gemm/tile.h"

/* One product; offsets count floats. */
struct df_planes {
  float *out;
  const float *from, *weight;
  int64_t out_begin, weight_begin;
  int64_t rows, channels, columns, k; /* k rounded up to blocks */
  int64_t groups;
  int32_t fours; /* columns come in fours that lie together in |out| */
  df_divisor taps[DF_AXES], positions[DF_AXES];
  df_divisor tile_rows;
  int32_t tap_step[DF_AXES];                                 /* of a coordinate in |from| per tap */
  int32_t position_step[DF_AXES], position_begin[DF_AXES];   /* and per position */
  int32_t size[DF_AXES], from_stride[DF_AXES], from_channel; /* of a plane of |from| */
  int64_t from_image, from_group;
  int32_t weight_row, weight_channel, weight_tap[DF_AXES];
  int64_t weight_group;
  int32_t out_row, out_position[DF_AXES];
  int64_t out_image, out_group;
  df_gemm_end end;
  int32_t splits;
  int64_t split_k, total; /* floats of |out|, when partial sums are kept */
};

/* The factors of one block. A thread loads weights of one k and several rows, and elements of one
 * column and several k. */
template <typename T, bool BLOCKED> struct convolved {
  static constexpr int A_STEP = T::THREADS / DF_TILE_DEPTH, B_STEP = T::THREADS / T::COLUMNS;
  static constexpr int A_COUNT = df_share<T, T::ROWS>::SINGLES,
                       B_COUNT = df_share<T, T::COLUMNS>::SINGLES;
  const df_planes *p;
  const float *weight;     /* of this thread's first row, with group */
  const float *from;       /* of this thread's column, with group and image */
  int rows;                /* left from this thread's first one on */
  int coordinate[DF_AXES]; /* of this thread's column */
  uint32_t end;
  bool inside;               /* the column is one */
  int channel, tap[DF_AXES]; /* of the slice that is fetched */

  __device__ __forceinline__ void begin(const df_planes *product, int64_t group, int64_t row,
                                        int64_t column, int32_t end_) {
    const int thread = static_cast<int>(threadIdx.x);
    p = product;
    end = static_cast<uint32_t>(end_);
    const int64_t first = row + thread / DF_TILE_DEPTH;
    rows = static_cast<int>(p->rows - first);
    weight = p->weight + p->weight_begin + group * p->weight_group + first * p->weight_row;
    const int64_t own = column + thread % T::COLUMNS;
    inside = own < p->columns;
    int32_t digit[DF_AXES];
    const int64_t image = df_split(static_cast<uint32_t>(inside ? own : 0), p->positions, digit);
    int32_t offset = 0;
#pragma unroll
    for (int axis = 0; axis < DF_AXES; axis++) {
      coordinate[axis] = p->position_begin[axis] + digit[axis] * p->position_step[axis];
      offset += coordinate[axis] * p->from_stride[axis];
    }
    from = p->from + image * p->from_image + group * p->from_group + offset;
  }

  __device__ __forceinline__ int weight_offset(int channel_, const int (&tap_)[DF_AXES]) const {
    return channel_ * p->weight_channel + tap_[0] * p->weight_tap[0] + tap_[1] * p->weight_tap[1] +
           tap_[2] * p->weight_tap[2];
  }
  /* Whether the tap is on the plane, and the offset from the column's position to it. */
  __device__ __forceinline__ bool find(const int (&tap_)[DF_AXES], int *offset) const {
    bool on = inside;
    *offset = 0;
#pragma unroll
    for (int axis = 0; axis < DF_AXES; axis++) {
      const int shift = tap_[axis] * p->tap_step[axis];
      on = on &&
           static_cast<unsigned>(coordinate[axis] + shift) < static_cast<unsigned>(p->size[axis]);
      *offset += shift * p->from_stride[axis];
    }
    return on;
  }

  __device__ __forceinline__ void fetch_a(float (&v)[df_share<T, T::ROWS>::CAPACITY], int32_t k) {
    const int depth = static_cast<int>(threadIdx.x) % DF_TILE_DEPTH;
    int own, own_tap[DF_AXES];
    bool there;
    if constexpr (BLOCKED) {
      channel = df_split(static_cast<uint32_t>(k) / DF_TILE_DEPTH, p->taps, tap) * DF_TILE_DEPTH;
      own = channel + depth;
      there = own < p->channels;
#pragma unroll
      for (int axis = 0; axis < DF_AXES; axis++)
        own_tap[axis] = tap[axis];
    } else {
      const uint32_t at = static_cast<uint32_t>(k) + static_cast<uint32_t>(depth);
      there = at < end;
      own = df_split(there ? at : 0, p->taps, own_tap);
    }
    const float *at = weight + weight_offset(own, own_tap);
    const int64_t step = static_cast<int64_t>(A_STEP) * p->weight_row;
#pragma unroll
    for (int f = 0; f < A_COUNT; f++) {
      v[f] = there && f * A_STEP < rows ? __ldg(at) : 0.0f;
      at += step;
    }
  }

  __device__ __forceinline__ void fetch_b(float (&v)[df_share<T, T::COLUMNS>::CAPACITY],
                                          int32_t k) {
    const int depth = static_cast<int>(threadIdx.x) / T::COLUMNS;
    if constexpr (BLOCKED) {
      int offset;
      const bool on = find(tap, &offset);
      const int first = channel + depth, left = static_cast<int>(p->channels) - first;
      const float *at = from + offset + static_cast<int64_t>(first) * p->from_channel;
      const int64_t step = static_cast<int64_t>(B_STEP) * p->from_channel;
#pragma unroll
      for (int f = 0; f < B_COUNT; f++) {
        v[f] = on && f * B_STEP < left ? __ldg(at) : 0.0f;
        at += step;
      }
    } else {
#pragma unroll
      for (int f = 0; f < B_COUNT; f++) {
        const uint32_t at = static_cast<uint32_t>(k) + static_cast<uint32_t>(depth + f * B_STEP);
        int own_tap[DF_AXES], offset;
        const int own = df_split(at < end ? at : 0, p->taps, own_tap);
        const bool on = find(own_tap, &offset) && at < end;
        v[f] = on ? __ldg(from + offset + static_cast<int64_t>(own) * p->from_channel) : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void store_a(float *to,
                                          const float (&v)[df_share<T, T::ROWS>::CAPACITY]) const {
    const int thread = static_cast<int>(threadIdx.x);
    to += thread % DF_TILE_DEPTH * (T::ROWS + DF_TILE_GAP) + thread / DF_TILE_DEPTH;
#pragma unroll
    for (int f = 0; f < A_COUNT; f++)
      to[f * A_STEP] = v[f];
  }
  __device__ __forceinline__ void
  store_b(float *to, const float (&v)[df_share<T, T::COLUMNS>::CAPACITY]) const {
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int PITCH = T::COLUMNS + DF_TILE_GAP;
    to += thread / T::COLUMNS * PITCH + thread % T::COLUMNS;
#pragma unroll
    for (int f = 0; f < B_COUNT; f++)
      to[f * B_STEP * PITCH] = v[f];
  }
};

/* A block per tile, split of k and group. */
template <typename T, bool BLOCKED>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT)
    convolve(const __grid_constant__ df_planes p) {
  const uint32_t tiles_down = p.tile_rows.d;
  const uint32_t other = df_divide(blockIdx.x, p.tile_rows);
  const int64_t row = static_cast<int64_t>(blockIdx.x - other * tiles_down) * T::ROWS;
  const uint32_t tiles_across = static_cast<uint32_t>((p.columns + T::COLUMNS - 1) / T::COLUMNS);
  const int64_t column = static_cast<int64_t>(other % tiles_across) * T::COLUMNS;
  const uint32_t rest = other / tiles_across;
  const int64_t split = rest % static_cast<uint32_t>(p.splits),
                group = rest / static_cast<uint32_t>(p.splits);

  const int32_t begin = static_cast<int32_t>(split * p.split_k),
                end = static_cast<int32_t>(df_min(p.k, split * p.split_k + p.split_k));
  convolved<T, BLOCKED> load;
  load.begin(&p, group, row, column, end);
  float sums[T::DOWN][T::ACROSS] = {};
  df_tile_sum<T>(sums, load, begin, end);

  const bool kept = p.splits > 1;
  float *out = p.out + (kept ? split * p.total : 0);
  const int64_t corner = group * p.out_group + p.out_begin;
  const int64_t first_row = row + df_tile_row<T>(), first_column = column + df_tile_column<T>();
#pragma unroll
  for (int y = 0; y < T::ACROSS; y += 4) {
    const int64_t j = first_column + df_tile_across(y);
    int64_t at[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int32_t digit[DF_AXES];
      const int64_t image =
          df_split(static_cast<uint32_t>(j + e < p.columns ? j + e : 0), p.positions, digit);
      at[e] = corner + image * p.out_image;
#pragma unroll
      for (int axis = 0; axis < DF_AXES; axis++)
        at[e] += static_cast<int64_t>(digit[axis]) * p.out_position[axis];
    }
#pragma unroll
    for (int x = 0; x < T::DOWN; x++) {
      const int64_t i = first_row + df_tile_down(x), channel = group * p.rows + i;
      if (i >= p.rows || j >= p.columns)
        continue;
      float v[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int64_t offset = at[e] + i * p.out_row;
        const bool there = j + e < p.columns;
        v[e] = kept || !there ? sums[x][y + e] : p.end(sums[x][y + e], channel, 0, offset);
        if (there && !p.fours)
          out[offset] = v[e];
      }
      if (p.fours)
        *reinterpret_cast<float4 *>(out + at[0] + i * p.out_row) =
            make_float4(v[0], v[1], v[2], v[3]);
    }
  }
}

#endif
