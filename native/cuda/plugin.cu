/* plugin.cu: the devices cuda, cuda:1, ... and the list of their kernels.
 *
 * The library has the CUDA runtime inside and loads on a machine without driver or card; its one
 * device then says why it can't be used.
 */
#include "kernels.h"
#include "queue.h"

#include <new>

const df_host *df_cuda_host;

/* ---- Kernels -------------------------------------------------------------------------------- */

#define DECLARE(family) extern const df_family df_##family##_family;
DF_CUDA_FAMILIES(DECLARE)
#define LIST(family) &df_##family##_family,
static const df_family *const families[] = {DF_CUDA_FAMILIES(LIST)};

static std::vector<const df_kernel *> gather_kernels() {
  std::vector<const df_kernel *> found;
  for (const df_family *family : families)
    for (int64_t i = 0; i < family->count; i++)
      found.push_back(&family->records[i]);
  return found;
}

/* ---- The device's functions; |self| is a df_queue but for open and memory ------------------- */

static df_status cuda_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  df_queue *queue = static_cast<df_queue *>(self);
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  void *base = nullptr;
  cudaError_t status = card.status;
  if (!status)
    status = bytes < 0 ? cudaErrorInvalidValue
                       : cudaMalloc(&base, static_cast<size_t>(bytes ? bytes : 1));
  if (status) {
    char what[64];
    snprintf(what, sizeof what, "allocating %lld bytes", static_cast<long long>(bytes));
    return df_cuda_fail(queue, status, what, error);
  }
  out->base = out->owner = base;
  return DF_OK;
}

static void cuda_free(void *self, df_buffer *buffer) {
  df_queue *queue = static_cast<df_queue *>(self);
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  df_small_flush(queue); /* copies from it, perhaps */
  cudaFree(buffer->owner);
}

static df_status cuda_alloc_staging(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  return df_queue_lend(static_cast<df_queue *>(self), bytes, out, error);
}

static void cuda_free_staging(void *self, df_buffer *buffer) {
  df_queue_take_back(static_cast<df_queue *>(self), buffer);
}

static df_status cuda_copy(void *self, const df_copy *copy, df_error *error) {
  return df_queue_copy(static_cast<df_queue *>(self), copy, error);
}

static df_status cuda_sync(void *self, df_error *error) {
  return df_queue_sync(static_cast<df_queue *>(self), error);
}

static df_status cuda_prepare(void *self, const df_segment *segment, void **prepared,
                              df_error *error) {
  return df_segment_open(static_cast<df_queue *>(self), segment,
                         reinterpret_cast<df_prepared_segment **>(prepared), error);
}

static df_status cuda_run(void *self, void *prepared, const df_run *run, df_error *error) {
  return df_segment_launch(static_cast<df_queue *>(self),
                           static_cast<df_prepared_segment *>(prepared), run, error);
}

static df_status cuda_elapsed(void *self, void *prepared, int64_t *nanoseconds, df_error *error) {
  return df_segment_elapsed(static_cast<df_queue *>(self),
                            static_cast<df_prepared_segment *>(prepared), nanoseconds, error);
}

static void cuda_release(void *self, void *prepared) {
  df_segment_close(static_cast<df_queue *>(self), static_cast<df_prepared_segment *>(prepared));
}

/* Options: capture (1), whether segments become CUDA graphs; branches (1), whether kernels of a
 * graph run beside each other where their memory lets them. */
static df_status cuda_open(void *self, const int64_t *values, void **opened, df_error *error) {
  const auto is_on = [=](int option) { return values[option] == INT64_MIN || values[option] != 0; };
  return df_queue_open(static_cast<const df_card *>(self), is_on(0), is_on(1),
                       reinterpret_cast<df_queue **>(opened), error);
}

static void cuda_close(void *opened) { df_queue_close(static_cast<df_queue *>(opened)); }

/* What is left for plans: beside them the driver takes memory for the code of kernels, those of the
 * vendor's libraries too, which it loads when they are first launched, and for graphs. */
static int64_t usable_bytes(size_t left, size_t all) {
  const int64_t reserve = df_min(int64_t{512} << 20, static_cast<int64_t>(all / 16));
  return df_max(0, static_cast<int64_t>(left) - reserve);
}

static df_status cuda_memory(void *self, int64_t *available, int64_t *total, df_error *error) {
  df_queue *queue = static_cast<df_queue *>(self);
  std::lock_guard<std::recursive_mutex> guard(queue->lock);
  df_on_card card(queue->card);
  size_t left = 0, all = 0;
  cudaError_t status = card.status;
  if (!status)
    status = cudaMemGetInfo(&left, &all);
  *available = usable_bytes(left, all);
  *total = static_cast<int64_t>(all);
  return df_cuda_fail(queue, status, "asking for its memory", error);
}

static void *cuda_failed(void *self) { return static_cast<df_queue *>(self)->failed; }

/* ---- The plugin ----------------------------------------------------------------------------- */

struct found_plugin {
  std::vector<const df_kernel *> kernels;
  std::vector<df_card> cards;
  std::vector<df_device> devices;
  std::vector<const df_device *> table;
  char unavailable[256];
  char version[64];
  df_plugin plugin;
};

static df_device device_of(const found_plugin &found, df_card *card) {
  df_device device{};
  device.struct_size = sizeof device;
  device.flags = DF_ASYNCHRONOUS | DF_BODIES | DF_PEERS;
  device.name = "cuda";
  device.alignment = 256;
  device.alloc = cuda_alloc;
  device.free = cuda_free;
  device.copy = cuda_copy;
  device.sync = cuda_sync;
  device.prepare = cuda_prepare;
  device.run = cuda_run;
  device.release = cuda_release;
  device.kernels = found.kernels.data();
  device.n_kernels = static_cast<int64_t>(found.kernels.size());
  device.options = "capture,branches";
  device.open = cuda_open;
  device.close = cuda_close;
  device.memory = cuda_memory;
  device.failed = cuda_failed;
  device.alloc_staging = cuda_alloc_staging;
  device.free_staging = cuda_free_staging;
  device.elapsed = cuda_elapsed;
  device.self = card;
  device.ordinal = card ? card->ordinal : 0;
  device.unavailable = !card                  ? found.unavailable
                       : card->unavailable[0] ? card->unavailable
                                              : nullptr;
  return device;
}

/* Fills found.unavailable where there is no card at all. */
static void find_cards(found_plugin &found) {
  int count = 0, driver = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver && !cudaDriverGetVersion(&driver) && driver == 0)
    snprintf(found.unavailable, sizeof found.unavailable,
             "no NVIDIA driver is installed on this machine");
  else if (status == cudaErrorInsufficientDriver)
    snprintf(found.unavailable, sizeof found.unavailable,
             "the NVIDIA driver is for CUDA %d.%d, older than this library; install a newer one",
             driver / 1000, driver % 1000 / 10);
  else if (status == cudaErrorNoDevice || (!status && count == 0))
    snprintf(found.unavailable, sizeof found.unavailable, "the NVIDIA driver finds no card");
  else if (status)
    snprintf(found.unavailable, sizeof found.unavailable, "%s", cudaGetErrorString(status));
  for (int i = 0; i < count && !found.unavailable[0]; i++) {
    cudaDeviceProp properties;
    df_card card{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess)
      continue;
    card.ordinal = i;
    card.processors = properties.multiProcessorCount;
    snprintf(card.name, sizeof card.name, "%.127s", properties.name);
    if (properties.major < DF_LEAST_MAJOR)
      snprintf(card.unavailable, sizeof card.unavailable,
               "%.80s has compute capability %d.%d; at least %d.0 is needed", card.name,
               properties.major, properties.minor, int(DF_LEAST_MAJOR));
    found.cards.push_back(card);
  }
}

static void fill(found_plugin &found, const df_host *host) {
  df_cuda_host = host;
  found.kernels = gather_kernels();
  find_cards(found);
  for (df_card &card : found.cards)
    found.devices.push_back(device_of(found, &card));
  if (found.devices.empty())
    found.devices.push_back(device_of(found, nullptr));
  for (const df_device &device : found.devices)
    found.table.push_back(&device);
  snprintf(found.version, sizeof found.version, "0.1.0");
  found.plugin = df_plugin{sizeof(df_plugin),
                           DF_ABI_MAJOR,
                           DF_ABI_MINOR,
                           static_cast<int32_t>(found.table.size()),
                           "cuda",
                           found.version,
                           found.table.data()};
}

/* The same answer at every call. */
const df_plugin *df_plugin_entry(const df_host *host) {
  static found_plugin *found = nullptr;
  if (!found) {
    found = new (std::nothrow) found_plugin{};
    if (!found)
      return nullptr;
    fill(*found, host);
  }
  return &found->plugin;
}
