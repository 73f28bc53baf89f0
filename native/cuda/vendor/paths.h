/* vendor/paths.h: how a product or a convolution is computed, by the vendor's library or by our own
 * kernel, as the algorithms that a plan names and can time.
 *
 * A path is a precision of the library's, or our own kernel. The library suggests several
 * algorithms for a path, the one that it takes for the fastest first: "tf32" is its first one,
 * "tf32 #2" its second one. */
#ifndef DF_CUDA_VENDOR_PATHS_H
#define DF_CUDA_VENDOR_PATHS_H
#include "dataflow.h"

/* The fastest one first. */
enum df_path { DF_BY_BF16, DF_BY_TF32, DF_BY_FLOAT32, DF_BY_OWN, DF_PATHS };
enum { DF_SUGGESTIONS = 8 }; /* that are looked at, for a path */

static const char *const df_path_names[] = {
    "bf16",       "tf32",       "float32",    "own",       "bf16 #2",    "tf32 #2",    "float32 #2",
    "bf16 #3",    "tf32 #3",    "float32 #3", "bf16 #4",   "tf32 #4",    "float32 #4", "bf16 #5",
    "tf32 #5",    "float32 #5", "bf16 #6",    "tf32 #6",   "float32 #6", "bf16 #7",    "tf32 #7",
    "float32 #7", "bf16 #8",    "tf32 #8",    "float32 #8"};

/* The number of the algorithm: suggestion |rank| of a path. */
static inline int32_t df_path_number(df_path by, int32_t rank) {
  return rank == 0 ? by : DF_PATHS + (rank - 1) * DF_BY_OWN + by;
}

/* The suggestion that is wanted of a path: 0 when another path is, or nothing in particular. */
static inline int32_t df_path_rank(int32_t number, df_path by) {
  const int32_t beyond = number - DF_PATHS;
  return beyond >= 0 && beyond % DF_BY_OWN == by ? beyond / DF_BY_OWN + 1 : 0;
}

/* Says what a kernel can use, |suggestions| of a path or its own kernel, and what it will. */
static inline void df_path_report(df_prepared *out, df_path by, int32_t suggestions,
                                  int32_t number) {
  out->algorithms = df_path_names;
  out->n_algorithms = static_cast<int32_t>(sizeof df_path_names / sizeof *df_path_names);
  out->algorithm = number;
  out->possible = int64_t{1} << DF_BY_OWN;
  for (int32_t rank = 0; rank < suggestions; rank++)
    out->possible |= int64_t{1} << df_path_number(by, rank);
}

#endif
