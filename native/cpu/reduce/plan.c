/* reduce/plan.c: see reduce/plan.h. */
#include "reduce/plan.h"

enum {
  FEW_UNITS = 16, /* units below which the reduced elements are split too */
  MOST_PARTITIONS = 64
};

/* Reduced axes in order of falling stride: the order in which they are added is free. */
static void sort_axes(int64_t *shape, int64_t *strides, int32_t n) {
  for (int32_t i = 1; i < n; i++)
    for (int32_t j = i; j > 0; j--) {
      const int64_t before = strides[j - 1] < 0 ? -strides[j - 1] : strides[j - 1];
      const int64_t here = strides[j] < 0 ? -strides[j] : strides[j];
      if (before >= here)
        break;
      int64_t swap = strides[j];
      strides[j] = strides[j - 1];
      strides[j - 1] = swap;
      swap = shape[j];
      shape[j] = shape[j - 1];
      shape[j - 1] = swap;
    }
}

void DF_NAME(df_reduce_plan_make)(df_reduce_plan *plan, const int64_t *shape,
                                  const int64_t *strides, int32_t rank, const int64_t *axes,
                                  int32_t n_axes) {
  int64_t sizes[2][DF_WALK_RANK], steps[2][DF_WALK_RANK];
  int32_t ranks[2] = {0, 0};
  for (int32_t axis = 0; axis < rank; axis++) {
    int reduced = 0;
    for (int32_t i = 0; i < n_axes; i++)
      reduced |= axes[i] == axis || axes[i] == axis - rank;
    if (shape[axis] == 1)
      continue;
    const int32_t at = ranks[reduced]++;
    sizes[reduced][at] = shape[axis];
    steps[reduced][at] = strides[axis];
  }
  sort_axes(sizes[1], steps[1], ranks[1]);
  df_walk *walks[2] = {&plan->kept, &plan->reduced};
  for (int side = 0; side < 2; side++) {
    const df_tensor one = {.shape = sizes[side], .strides = steps[side], .rank = ranks[side]};
    const df_tensor *const only = &one;
    df_walk_plan(walks[side], sizes[side], ranks[side], &only, 1);
  }
  plan->outputs = df_product(sizes[0], 0, ranks[0]);
  plan->count = df_product(sizes[1], 0, ranks[1]);
  df_walk *kept = &plan->kept, *reduced = &plan->reduced;
  const int64_t kept_stride = kept->strides[0][kept->rank - 1];
  const int64_t reduced_stride = reduced->strides[0][reduced->rank - 1];
  const int64_t neighbours = kept->shape[kept->rank - 1];
  plan->by_columns = neighbours >= 4 && (kept_stride < 0 ? -kept_stride : kept_stride) <
                                            (reduced_stride < 0 ? -reduced_stride : reduced_stride);
  /* The innermost axis is taken out of its walk; what stays counts rows. */
  df_walk *walk = plan->by_columns ? kept : reduced;
  const int32_t inner = --walk->rank;
  plan->inner = walk->shape[inner];
  plan->stride = walk->strides[0][inner];
  plan->chunks = plan->by_columns ? df_divide_up(plan->inner, DF_CHUNK) : 1;
  plan->per_row = plan->by_columns ? 1 : df_divide_up(plan->inner, DF_REDUCE_STRIP);
  plan->strips = df_product(reduced->shape, 0, reduced->rank) * plan->per_row;
  plan->units = df_product(kept->shape, 0, kept->rank) * plan->chunks;
  plan->partitions = 1;
  if (plan->units < FEW_UNITS && plan->outputs > 0)
    plan->partitions = df_max(1, df_min(df_min(MOST_PARTITIONS, plan->strips),
                                        plan->outputs * plan->count / (2 * DF_GRAIN)));
}
