/* float64/grid_sample.c: samples at the positions of a grid in float64, by vision/grid_sample.c. */
#define DF_DOUBLE
#include "vision/grid_sample.c" // NOLINT(bugprone-suspicious-include)
