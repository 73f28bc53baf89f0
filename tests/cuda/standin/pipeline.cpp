/* pipeline.cpp: copies to shared memory that a thread starts and waits for, in groups. Until then
 * the bytes are those of a NaN, so that whoever reads too early sees it. */
#include "cuda_pipeline_primitives.h"
#include "standin.h"

#include <deque>
#include <vector>

namespace {

struct copy {
  void *to;
  const void *from;
  size_t bytes;
  const void *code; /* that started it */
};

/* What one thread of the block that runs has started. */
struct waiting {
  long long block = -1;
  std::deque<std::vector<copy>> groups; /* the last one is open */
};

waiting &own() {
  static std::vector<waiting> all;
  const size_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  if (thread >= all.size())
    all.resize(thread + 1);
  waiting &found = all[thread];
  if (found.block != blocks_run) { /* copies that nobody waited for end with their block */
    found.block = blocks_run;
    found.groups.assign(1, {});
  }
  return found;
}

} // namespace

void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes) {
  const bool fits = bytes == 4 || bytes == 8 || bytes == 16;
  if (!fits || reinterpret_cast<uintptr_t>(shared) % bytes ||
      reinterpret_cast<uintptr_t>(global) % bytes)
    die("a copy to shared memory of another size than 4, 8 and 16 bytes, or not aligned to it", "");
  const void *code = __builtin_return_address(0);
  note_read(global, bytes, code);
  note_write(shared, bytes, code);
  memset(shared, 0xff, bytes);
  own().groups.back().push_back({shared, global, bytes, code});
}

void __pipeline_commit() { own().groups.emplace_back(); }

void __pipeline_wait_prior(size_t groups) {
  waiting &found = own();
  for (; found.groups.size() > groups + 1; found.groups.pop_front())
    for (const copy &c : found.groups.front()) {
      note_write(c.to, c.bytes, c.code);
      memcpy(c.to, c.from, c.bytes);
    }
}
