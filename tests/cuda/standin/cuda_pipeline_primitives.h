/* cuda_pipeline_primitives.h: a stand-in for CUDA's: copies from device to shared memory that are
 * done when a thread waits for them, and not before. The bodies are in pipeline.cpp. */
#ifndef STANDIN_CUDA_PIPELINE_PRIMITIVES_H
#define STANDIN_CUDA_PIPELINE_PRIMITIVES_H
#include <cstddef>

void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes);
void __pipeline_commit();
/* Waits for all groups of copies of this thread but the last |groups|. */
void __pipeline_wait_prior(size_t groups);

#endif
