/* reduce/rows.h: rows of floats, each worked on by a group of threads that keeps it in registers.
 *
 * A group has a power of two of threads: up to a warp, with several groups in a block, or a whole
 * block. A thread holds DF_HELD elements at a time, or more where there are rows enough to keep a
 * card busy with fewer threads: then a warp needs no barriers for a row of up to 1024. A row that
 * is longer than what its group holds takes several rounds and is read again for the second pass,
 * mostly from the cache. Few long rows are split into sections, a block each, whose results meet in
 * the workspace.
 */
#ifndef DF_CUDA_REDUCE_ROWS_H
#define DF_CUDA_REDUCE_ROWS_H
#include "map/stored.h"

#ifndef DF_ROW_THREADS
#define DF_ROW_THREADS (1 << 17) /* that keep a card busy; tests have fewer */
#endif

enum {
  DF_HELD = 8,         /* elements that a thread holds at least */
  DF_HELD_MOST = 32,   /* a power of two times DF_HELD */
  DF_HELD_FEWER = 24,  /* takes fewer registers where that is enough for a warp */
  DF_ROW_BLOCK = 1024, /* the most threads of a group that holds the least */
  DF_FEW_ROWS = 128,   /* rows below which long ones are split */
  DF_ROW_BLOCKS = 512, /* blocks that splitting aims at */
  DF_ROW_SPLITS = 64
};

struct df_rows {
  int64_t rows, n;
  int64_t length; /* elements of a split */
  int32_t splits;
  int32_t held;   /* elements of a thread */
  int32_t group;  /* threads */
  int32_t block;  /* threads; max(group, DF_BLOCK) or the group alone */
  int32_t vector; /* 16 bytes at a time */
};

/* What a launch does: all, when a row is one split; else a first one finds the states of the
 * splits, and a second one joins them and makes the results. */
enum { DF_ROW_COMPLETE, DF_ROW_STATES, DF_ROW_RESULTS };

static inline int32_t df_power_of_two(int64_t at_least, int32_t most) {
  int32_t found = 1;
  while (found < at_least && found < most)
    found *= 2;
  return found;
}

/* Elements that a thread holds: what a warp needs to hold a row, at most |most|. */
static inline int32_t df_rows_held(int64_t rows, int64_t n, int32_t most) {
  int32_t held = DF_HELD;
  while (held < most && n > int64_t{held} * DF_WARP && rows * n > int64_t{DF_ROW_THREADS} * DF_HELD)
    held *= 2;
  return held == DF_HELD_MOST && n <= int64_t{DF_HELD_FEWER} * DF_WARP ? DF_HELD_FEWER : held;
}

/* The most threads of a group whose threads hold |held| elements. */
static constexpr int df_rows_block(int held) {
  return DF_ROW_BLOCK * DF_HELD / (held == DF_HELD_FEWER ? int{DF_HELD_MOST} : held);
}

/* Where |rows| rows of |n| elements go. The split depends on the shape alone. */
static inline df_rows df_rows_plan(int64_t rows, int64_t n, bool split, int32_t most = DF_HELD) {
  df_rows plan{rows, n, df_max(n, 1), 1, df_rows_held(rows, n, most), 1, DF_BLOCK, 0};
  plan.group = df_power_of_two(df_divide_up(n, plan.held), df_rows_block(plan.held));
  plan.block = plan.group > DF_WARP ? plan.group : DF_BLOCK;
  const int64_t round = static_cast<int64_t>(plan.group) * plan.held;
  if (split && rows < DF_FEW_ROWS && n > round && rows > 0) {
    const int64_t wanted = df_min(DF_ROW_BLOCKS / rows, df_divide_up(n, round));
    plan.length = df_divide_up(df_divide_up(n, df_min(wanted, DF_ROW_SPLITS)), round) * round;
    plan.splits = static_cast<int32_t>(df_divide_up(n, plan.length));
  }
  return plan;
}

static inline dim3 df_rows_grid(const df_rows &plan) {
  return dim3(df_blocks(plan.rows, plan.block / plan.group), static_cast<unsigned>(plan.splits));
}

/* Whether groups hold a row, by vectors; then their threads may hold more, where rows are many. */
static inline bool df_rows_are_held(df_rows *plan) {
  if (!plan->vector || plan->splits > 1 || plan->n > int64_t{DF_ROW_BLOCK} * DF_HELD)
    return false;
  const df_rows larger = df_rows_plan(plan->rows, plan->n, false, DF_HELD_MOST);
  plan->held = larger.held;
  plan->group = larger.group;
  plan->block = larger.block;
  return true;
}

/* Calls run.template operator()<HELD>() with what a thread of the plan holds. */
template <typename F> static inline df_status df_by_held(const df_rows &plan, F run) {
  switch (plan.held) {
  case DF_HELD:
    return run.template operator()<DF_HELD>();
  case 2 * DF_HELD:
    return run.template operator()<2 * DF_HELD>();
  case DF_HELD_FEWER:
    return run.template operator()<DF_HELD_FEWER>();
  default:
    return run.template operator()<DF_HELD_MOST>();
  }
}

static inline bool df_aligned_16(const void *at) {
  return reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

/* Lets the plan read and write 16 bytes at a time where rows and addresses allow it; null addresses
 * don't count. */
template <typename... T> static inline void df_rows_vectors(df_rows *plan, const T *...at) {
  plan->vector = plan->n % 4 == 0 && (df_aligned_16(at) && ...);
}

/* A thread's position: lane |lane| of the group of |row|, elements [begin, end) of it; none when
 * there is no such row. */
struct df_row_position {
  int64_t row, begin, end;
  int lane;
};

static __device__ __forceinline__ df_row_position df_row_of_thread(const df_rows &plan) {
  const int thread = static_cast<int>(threadIdx.x);
  df_row_position at;
  at.lane = thread % plan.group;
  at.row = static_cast<int64_t>(blockIdx.x) * (plan.block / plan.group) + thread / plan.group;
  at.begin = blockIdx.y * plan.length;
  at.end = at.row < plan.rows ? df_min(plan.n, at.begin + plan.length) : at.begin;
  return at;
}

/* Elements in a round of the group. */
template <int HELD = DF_HELD>
static __device__ __forceinline__ int64_t df_row_round(const df_rows &plan) {
  return static_cast<int64_t>(plan.group) * HELD;
}

/* Elements of the round from |base| on that are there. */
template <int HELD = DF_HELD>
static __device__ __forceinline__ int df_row_left(const df_rows &plan, int64_t base, int64_t end) {
  return static_cast<int>(df_min(end - base, df_row_round<HELD>(plan)));
}

/* Index in the round of element |k| that a thread holds. VECTOR: plan.vector is known to be set. */
template <bool VECTOR = false>
static __device__ __forceinline__ int df_row_index(const df_rows &plan, int lane, int k) {
  return VECTOR || plan.vector ? 4 * (k / 4 * plan.group + lane) + k % 4 : k * plan.group + lane;
}

/* Elements k to k + 3 that a thread holds of the round at |x|, of which |left| are there. */
template <bool VECTOR = false>
static __device__ __forceinline__ float4 df_row_four(const float *x, const df_rows &plan, int left,
                                                     int lane, int k, float nothing) {
  const int i = df_row_index<VECTOR>(plan, lane, k);
  float4 four{nothing, nothing, nothing, nothing};
  if (VECTOR || plan.vector) {
    if (i < left)
      four = *reinterpret_cast<const float4 *>(x + i);
    return four;
  }
  const int apart = plan.group; /* one by one */
  four.x = i < left ? x[i] : nothing;
  four.y = i + apart < left ? x[i + apart] : nothing;
  four.z = i + 2 * apart < left ? x[i + 2 * apart] : nothing;
  four.w = i + 3 * apart < left ? x[i + 3 * apart] : nothing;
  return four;
}

/* v[k] = x[base + df_row_index(k)] where that is before |end|, else |nothing|. */
template <bool VECTOR = false, int HELD, typename T>
static __device__ __forceinline__ void df_row_load(float (&v)[HELD], const T *x,
                                                   const df_rows &plan, int64_t base, int64_t end,
                                                   int lane, float nothing) {
  const int left = df_row_left<HELD>(plan, base, end);
  x += base;
  if (VECTOR || plan.vector) {
#pragma unroll
    for (int k = 0; k < HELD; k += 4) {
      const int i = df_row_index<VECTOR>(plan, lane, k);
      float4 four{nothing, nothing, nothing, nothing};
      if (i < left)
        four = df_fetch_four(x + i);
      v[k] = four.x;
      v[k + 1] = four.y;
      v[k + 2] = four.z;
      v[k + 3] = four.w;
    }
    return;
  }
  if constexpr (!VECTOR) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const int i = df_row_index<VECTOR>(plan, lane, k);
      v[k] = i < left ? df_fetch(x + i) : nothing;
    }
  }
}

template <bool VECTOR = false, int HELD, typename T>
static __device__ __forceinline__ void df_row_store(T *y, const float (&v)[HELD],
                                                    const df_rows &plan, int64_t base, int64_t end,
                                                    int lane) {
  const int left = df_row_left<HELD>(plan, base, end);
  y += base;
  if (VECTOR || plan.vector) {
#pragma unroll
    for (int k = 0; k < HELD; k += 4) {
      const int i = df_row_index<VECTOR>(plan, lane, k);
      if (i < left)
        df_store_together(y + i, {v[k], v[k + 1], v[k + 2], v[k + 3]});
    }
    return;
  }
  if constexpr (!VECTOR) {
#pragma unroll
    for (int k = 0; k < HELD; k++) {
      const int i = df_row_index<VECTOR>(plan, lane, k);
      if (i < left)
        df_store(y + i, v[k]);
    }
  }
}

/* |value| of all threads of a group joined, in every thread. All threads of the block take part;
 * |scratch| is shared memory for 32 values, free again on return. */
template <typename T, typename F>
static __device__ __forceinline__ T df_group_join(T value, T nothing, T *scratch, F f, int group) {
  if (group > DF_WARP)
    return df_block_join(value, nothing, scratch, f);
  for (int mask = group / 2; mask > 0; mask /= 2)
    value = f(value, __shfl_xor_sync(0xffffffffu, value, mask));
  return value;
}

/* df_group_join as a function of value, what joins to nothing, and how to join. */
struct df_row_join {
  float *scratch;
  int group;

  template <typename F> __device__ float operator()(float value, float nothing, F f) const {
    return df_group_join(value, nothing, scratch, f, group);
  }
};

#endif
