/* order.cu: what nothing orders: threads of a block, blocks of a launch, and barriers that not all
 * reach. Each kernel that races has a neighbour that differs in what orders it. */
#include "violations.h"

enum { THREADS = 64 };

/* ---- Within a block ------------------------------------------------------------------------- */

/* Half of the threads read what another one wrote, behind a barrier or not. */
template <bool BARRIER> __global__ static void shift(int *out) {
  DF_SHARED_ARRAY(int, line, [THREADS]);
  line[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (BARRIER)
    __syncthreads();
  out[threadIdx.x] = line[threadIdx.x / 2];
}
extern "C" void reads_before_a_barrier() {
  finish(1, THREADS, shift<false>, memory_of<int>(0, THREADS));
}
extern "C" void reads_behind_a_barrier() {
  finish(1, THREADS, shift<true>, memory_of<int>(0, THREADS));
}

/* A loop that writes again what others still read. */
template <bool BARRIER> __global__ static void rounds(int *out) {
  DF_SHARED_ARRAY(int, line, [THREADS]);
  int sum = 0;
  for (int round = 0; round < 3; round++) {
    line[threadIdx.x] = round;
    __syncthreads();
    sum += line[THREADS - 1 - threadIdx.x];
    if (BARRIER)
      __syncthreads();
  }
  out[threadIdx.x] = sum;
}
extern "C" void writes_what_others_still_read() {
  finish(1, THREADS, rounds<false>, memory_of<int>(0, THREADS));
}
extern "C" void writes_when_all_have_read() {
  finish(1, THREADS, rounds<true>, memory_of<int>(0, THREADS));
}

/* Lanes read each other's: a shuffle waits for them, but orders no memory. */
template <bool ORDERED> __global__ static void within_warp(int *out) {
  DF_SHARED_ARRAY(int, line, [32]);
  line[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (ORDERED)
    __syncwarp();
  else
    __shfl_sync(0xffffffffu, 1, 0);
  out[threadIdx.x] = line[31 - threadIdx.x];
}
extern "C" void takes_a_shuffle_for_a_barrier() {
  finish(1, 32, within_warp<false>, memory_of<int>(0, 32));
}
extern "C" void waits_for_its_warp() { finish(1, 32, within_warp<true>, memory_of<int>(0, 32)); }

/* What __syncwarp orders is ordered for one warp, and not for two. */
extern "C" void waits_for_its_warp_alone() {
  finish(
      1, THREADS,
      +[](int *out) {
        out[threadIdx.x] = 3;
        __syncwarp();
        out[THREADS - 1 - threadIdx.x] = 2;
      },
      memory_of<int>(0, THREADS));
}

/* Bytes of one word are memory of their own. */
extern "C" void writes_bytes_of_one_word() {
  finish(1, THREADS, +[](char *out) { out[threadIdx.x] = 1; }, memory_of<char>(0, THREADS));
}
extern "C" void writes_a_byte_and_its_word() {
  finish(
      1, 2,
      +[](char *out) {
        if (threadIdx.x == 0)
          out[1] = 1;
        else
          *reinterpret_cast<int *>(out) = 2;
      },
      memory_of<char>(0, 4));
}

/* ---- Between blocks ------------------------------------------------------------------------- */

template <bool ATOMIC> __global__ static void count(int *sum) {
  if (ATOMIC)
    atomicAdd(sum, 1);
  else
    *sum += 1;
}
extern "C" void adds_to_what_other_blocks_add_to() {
  finish(2, 1, count<false>, memory_of<int>(0, 1));
}
extern "C" void adds_atomically() { finish(2, 32, count<true>, memory_of<int>(0, 1)); }

/* The second block reads what the first one wrote, and blocks begin in any order. */
extern "C" void reads_what_another_block_writes() {
  finish(
      2, 1,
      +[](int *at) {
        if (blockIdx.x == 0)
          at[0] = 1;
        else
          at[1] = at[0];
      },
      memory_of<int>(0, 2));
}

/* A launch is behind the one before it. */
extern "C" void reads_what_another_launch_wrote() {
  int *at = memory_of<int>(0, 1);
  cudaStream_t stream = stream_of(0);
  for (int i = 0; i < 2; i++)
    launch(
        stream, 1, 0,
        +[](int *x) {
          if (threadIdx.x == 0)
            *x += 1;
        },
        at);
  print("wait", cudaStreamSynchronize(stream));
}

/* ---- Shared memory that nobody wrote -------------------------------------------------------- */

extern "C" void reads_shared_memory_before_it_is_written() {
  finish(
      1, 32,
      +[](int *out) {
        DF_SHARED_ARRAY(int, line, [32]);
        if (threadIdx.x < 31)
          line[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = line[threadIdx.x];
      },
      memory_of<int>(0, 32));
}

/* ---- Barriers that not all reach ------------------------------------------------------------ */

extern "C" void waits_at_two_barriers() {
  finish(
      1, THREADS, +[] {
        if (threadIdx.x < 32)
          __syncthreads();
        else
          __syncthreads();
      });
}
extern "C" void waits_for_lanes_that_never_come() {
  finish(
      1, 32, +[] {
        if (threadIdx.x < 16)
          __syncwarp();
        else
          __syncthreads();
      });
}
extern "C" void waits_with_a_mask_without_itself() {
  finish(1, 32, +[] { __syncwarp(0xffffu); });
}
extern "C" void shuffles_from_a_lane_outside_of_its_mask() {
  finish(
      1, 32, +[] {
        if (threadIdx.x < 16)
          __shfl_sync(0xffffu, 1, 16);
      });
}
extern "C" void shuffles_within_halves() {
  finish(
      1, 32, +[] {
        const unsigned mask = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
        if (threadIdx.x < 16)
          __shfl_xor_sync(mask, 1, 8);
        else
          __syncwarp(mask);
      });
}
