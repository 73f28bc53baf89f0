/* float64/detection_roi.c: pooled regions in float64, by vision/detection_roi.c. */
#define DF_DOUBLE
#include "vision/detection_roi.c" // NOLINT(bugprone-suspicious-include)
