/* float64/norm_lrn.c: local response normalisation in float64, by norm/lrn.c. */
#define DF_DOUBLE
#include "norm/lrn.c" // NOLINT(bugprone-suspicious-include)
