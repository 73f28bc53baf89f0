/* card.cpp: cards, the one that a thread has chosen, errors, and memory. It is protected but while
 * a stream of its card works, so that a host or another card that reads it faults. */
#include "standin.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

std::recursive_mutex standin_lock;
cudaError_t sticky;

namespace {

const size_t PAGE = 4096;

size_t total_memory() { return environment("STANDIN_MEMORY", (size_t)4 << 30); }
/* Addresses of a card. */
const size_t RESERVED = std::max((size_t)16 << 30, total_memory());

std::map<const char *, size_t> pinned; /* begin and bytes */
thread_local int chosen = -1;          /* none yet */
thread_local cudaError_t last_error;

/* STANDIN_DEVICES of them; STANDIN_CAPABILITY lists 10 * major + minor of each, "75,90". */
std::vector<card> find_cards() {
  std::vector<card> found(environment("STANDIN_DEVICES", 1));
  const char *capability = getenv("STANDIN_CAPABILITY");
  for (card &c : found) {
    c.total = total_memory();
    c.base = (char *)mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                          -1, 0);
    if (c.base == MAP_FAILED)
      die("no address space", "device memory");
    add_region(c.base, RESERVED, false);
    c.capability = capability && *capability ? atoi(capability) : 90;
    capability = capability ? strchr(capability, ',') : nullptr;
    capability = capability ? capability + 1 : nullptr;
  }
  return found;
}

bool exists(int number) { return number >= 0 && number < (int)all_cards().size(); }

void protect(const card &c, int how) {
  if (c.top)
    mprotect(c.base, c.top, how);
}

} // namespace

std::vector<card> &all_cards() {
  static std::vector<card> cards = find_cards();
  return cards;
}

int current_card() {
  if (chosen < 0)
    chosen = 0;
  all_cards()[(size_t)chosen].context = true;
  return chosen;
}

int card_of(const void *address) {
  for (size_t i = 0; i < all_cards().size(); i++) {
    const card &c = all_cards()[i];
    if ((const char *)address >= c.base && (const char *)address < c.base + RESERVED)
      return (int)i;
  }
  return -1;
}

bool is_pinned(const void *address) {
  auto found = pinned.upper_bound((const char *)address);
  if (found == pinned.begin())
    return false;
  --found;
  return (const char *)address < found->first + found->second;
}

bool take_memory(int number, size_t bytes) {
  card &c = all_cards()[(size_t)number];
  if (c.used + c.taken + bytes > c.total)
    return false;
  c.taken += bytes;
  return true;
}

opened::opened(int number) : numbers{number} {
  if (number < 0)
    numbers.clear();
  else
    for (int peer : all_cards()[(size_t)number].peers)
      numbers.push_back(peer);
  for (int n : numbers)
    if (all_cards()[(size_t)n].open_depth++ == 0)
      protect(all_cards()[(size_t)n], PROT_READ | PROT_WRITE);
}

opened::~opened() {
  for (int n : numbers)
    if (--all_cards()[(size_t)n].open_depth == 0)
      protect(all_cards()[(size_t)n], PROT_NONE);
}

/* ---- Errors --------------------------------------------------------------------------------- */

cudaError_t fail(cudaError_t error) {
  if (error)
    last_error = error;
  return error;
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return "no error";
  case cudaErrorMemoryAllocation:
    return "out of memory";
  case cudaErrorInvalidConfiguration:
    return "invalid configuration argument";
  case cudaErrorInvalidValue:
    return "invalid argument";
  case cudaErrorNoDevice:
    return "no CUDA-capable device is detected";
  case cudaErrorInvalidResourceHandle:
    return "invalid resource handle";
  case cudaErrorIllegalAddress:
    return "an illegal memory access was encountered";
  case cudaErrorStreamCaptureInvalidated:
    return "operation failed due to a previous error during capture";
  default:
    return "an error of the stand-in";
  }
}

cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return sticky ? sticky : error;
}
cudaError_t cudaPeekAtLastError() { return sticky ? sticky : last_error; }

/* ---- Cards ---------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
  guard g(standin_lock);
  *count = (int)all_cards().size();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int number) {
  guard g(standin_lock);
  if (!exists(number))
    return fail(cudaErrorInvalidValue);
  *out = {};
  snprintf(out->name, sizeof out->name, "stand-in");
  out->major = all_cards()[(size_t)number].capability / 10;
  out->minor = all_cards()[(size_t)number].capability % 10;
  out->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int number) {
  guard g(standin_lock);
  if (!exists(number))
    return fail(cudaErrorInvalidValue);
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount:
    *value = 2;
    break;
  case cudaDevAttrComputeCapabilityMajor:
    *value = all_cards()[(size_t)number].capability / 10;
    break;
  case cudaDevAttrComputeCapabilityMinor:
    *value = all_cards()[(size_t)number].capability % 10;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    *value = 48 * 1024;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = 227 * 1024;
    break;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int number, int other) {
  *can = number != other;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned) {
  guard g(standin_lock);
  const int own = current_card();
  if (!exists(other) || other == own)
    return fail(cudaErrorInvalidValue);
  all_cards()[(size_t)other].context = true;
  return all_cards()[(size_t)own].peers.insert(other).second
             ? cudaSuccess
             : fail(cudaErrorPeerAccessAlreadyEnabled);
}

cudaError_t cudaSetDevice(int number) {
  guard g(standin_lock);
  if (!exists(number))
    return fail(cudaErrorInvalidValue);
  chosen = number;
  all_cards()[(size_t)number].context = true;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *number) {
  *number = chosen < 0 ? 0 : chosen;
  return cudaSuccess;
}

/* The driver's view: a thread's context, null before it chose a card. */
static int get_context(void **out) {
  guard g(standin_lock);
  *out = chosen < 0 ? nullptr : &all_cards()[(size_t)chosen];
  return 0;
}
static int set_context(void *context) {
  guard g(standin_lock);
  chosen = context ? (int)((card *)context - all_cards().data()) : -1;
  return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  *function = !strcmp(symbol, "cuCtxGetCurrent")   ? (void *)get_context
              : !strcmp(symbol, "cuCtxSetCurrent") ? (void *)set_context
                                                   : nullptr;
  *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : fail(cudaErrorInvalidValue);
}

/* ---- Memory --------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  guard g(standin_lock);
  const card &c = all_cards()[(size_t)current_card()];
  *total = c.total;
  *available = c.total - c.used - c.taken;
  return sticky;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
  guard g(standin_lock);
  forbid_in_capture("an allocation");
  const int number = current_card();
  card &c = all_cards()[(size_t)number];
  const size_t size = (bytes + PAGE) / PAGE * PAGE; /* at least a byte of each is not in use */
  if (sticky)
    return fail(sticky);
  if (c.used + c.taken + size > c.total || fails_now(FAIL_ALLOCATION, ""))
    return fail(cudaErrorMemoryAllocation);
  size_t at = 0;
  for (const auto &[offset, taken] : c.blocks) {
    if (offset - at >= size)
      break;
    at = offset + taken;
  }
  if (at + size > RESERVED)
    return fail(cudaErrorMemoryAllocation);
  c.blocks[at] = size;
  c.used += size;
  c.top = std::max(c.top, at + size);
  if (c.open_depth)
    protect(c, PROT_READ | PROT_WRITE);
  opened memory(number);
  if (!sparse())
    memset(c.base + at, 0xc7, size); /* seen when it is read before it is written */
  *out = c.base + at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
  guard g(standin_lock);
  forbid_in_capture("freeing memory");
  const int number = card_of(address);
  if (number < 0)
    return address ? fail(cudaErrorInvalidValue) : cudaSuccess;
  card &c = all_cards()[(size_t)number];
  auto found = c.blocks.find((size_t)((char *)address - c.base));
  if (found == c.blocks.end())
    return fail(cudaErrorInvalidValue);
  /* What is protected at every launch stays as small as what is in use. */
  madvise(address, found->second, MADV_DONTNEED);
  mprotect(address, found->second, PROT_NONE);
  c.used -= found->second;
  c.blocks.erase(found);
  c.top = c.blocks.empty() ? 0 : c.blocks.rbegin()->first + c.blocks.rbegin()->second;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *out, const void *address) {
  guard g(standin_lock);
  const int number = card_of(address);
  *out = {number >= 0          ? cudaMemoryTypeDevice
          : is_pinned(address) ? cudaMemoryTypeHost
                               : cudaMemoryTypeUnregistered,
          number >= 0 ? number : 0};
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  guard g(standin_lock);
  forbid_in_capture("an allocation");
  *out = malloc(bytes ? bytes : 1);
  pinned[(const char *)*out] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *address) {
  guard g(standin_lock);
  forbid_in_capture("freeing memory");
  pinned.erase((const char *)address);
  free(address);
  return cudaSuccess;
}
