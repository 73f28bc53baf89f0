/* host/library.c: opens plugin libraries and refuses those that do not keep to the contract. */
#define _GNU_SOURCE
#include "host/internal.h"

#include <dlfcn.h>
#include <stddef.h>

/* Sizes that the tables had in version 2.0. A library built for a later minor has larger ones. */
#define SIZE_UP_TO(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))
enum {
  PLUGIN_SIZE = SIZE_UP_TO(df_plugin, n_kernels),
  DEVICE_SIZE = SIZE_UP_TO(df_device, elapsed),
  KERNEL_SIZE = SIZE_UP_TO(df_kernel, run_many)
};

static df_status check_kernel(const char *kind, const char *owner, const df_kernel *kernel,
                              int64_t index, df_error *error) {
  if (!kernel)
    return df_error_set(error, DF_INVALID, -1, "%s '%s': kernel record %lld is null", kind, owner,
                        (long long)index);
  if (kernel->struct_size < KERNEL_SIZE)
    return df_error_set(error, DF_INVALID, -1,
                        "%s '%s': kernel record %lld has struct_size %u, expected at least %d",
                        kind, owner, (long long)index, kernel->struct_size, (int)KERNEL_SIZE);
  if (!kernel->op || !kernel->name || !kernel->operands || !kernel->run)
    return df_error_set(error, DF_INVALID, -1,
                        "%s '%s': kernel record %lld ('%s') lacks op, name, operands or run", kind,
                        owner, (long long)index, kernel->name ? kernel->name : "?");
  return DF_OK;
}

static df_status check_kernels(const char *kind, const char *owner, const df_kernel *const *kernels,
                               int64_t count, df_error *error) {
  if (count < 0 || (count && !kernels))
    return df_error_set(error, DF_INVALID, -1, "%s '%s' has %lld kernels and no table of them",
                        kind, owner, (long long)count);
  for (int64_t i = 0; i < count; i++) {
    df_status status = check_kernel(kind, owner, kernels[i], i, error);
    if (status)
      return status;
  }
  return DF_OK;
}

/* What members of a device say that can't be so together, or null. */
static const char *contradiction(const df_device *device) {
  if ((device->flags & DF_ASYNCHRONOUS) && !device->sync)
    return "is DF_ASYNCHRONOUS and has no sync, by which its work is waited for";
  if (device->options && *device->options && !device->open)
    return "has options and no open, which takes them";
  if (device->alloc_staging && !device->free_staging)
    return "has alloc_staging and no free_staging";
  if (device->largest_buffer < 0)
    return "has a largest_buffer below 0";
  if (device->alignment < 0 || (device->alignment & (device->alignment - 1)))
    return "has an alignment that is no power of two";
  return NULL;
}

static df_status check_device(const df_plugin *plugin, int32_t index, df_error *error) {
  const df_device *device = plugin->devices[index];
  if (!device)
    return df_error_set(error, DF_INVALID, -1, "device %d is null", index);
  if (device->struct_size < DEVICE_SIZE)
    return df_error_set(error, DF_INVALID, -1, "device %d has struct_size %u, expected at least %d",
                        index, device->struct_size, (int)DEVICE_SIZE);
  if (!device->name)
    return df_error_set(error, DF_INVALID, -1, "device %d has no name", index);
  if (device->unavailable)
    return DF_OK; /* it will not be called */
  if (!device->alloc || !device->free || !device->copy || !device->prepare || !device->run ||
      !device->release)
    return df_error_set(error, DF_INVALID, -1,
                        "device '%s' lacks one of alloc, free, copy, prepare, run, release",
                        device->name);
  const char *reason = contradiction(device);
  if (reason)
    return df_error_set(error, DF_INVALID, -1, "device '%s' %s", device->name, reason);
  return check_kernels("device", device->name, device->kernels, device->n_kernels, error);
}

static df_status check_plugin(const df_plugin *plugin, df_error *error) {
  if (!plugin)
    return df_error_set(error, DF_INVALID, -1, "df_plugin_entry returned null");
  if (plugin->abi_major != DF_ABI_MAJOR)
    return df_error_set(
        error, DF_INVALID, -1,
        "built for version %u.%u of the plugin interface, this dataflow has %d.%d; rebuild it "
        "with the headers in dataflow.get_include()",
        plugin->abi_major, plugin->abi_minor, DF_ABI_MAJOR, DF_ABI_MINOR);
  if (plugin->struct_size < PLUGIN_SIZE)
    return df_error_set(error, DF_INVALID, -1,
                        "the plugin table has struct_size %u, expected at least %d",
                        plugin->struct_size, (int)PLUGIN_SIZE);
  if (plugin->n_devices < 0 || (plugin->n_devices && !plugin->devices))
    return df_error_set(error, DF_INVALID, -1, "the plugin has %d devices and no table of them",
                        plugin->n_devices);
  if (!plugin->name)
    return df_error_set(error, DF_INVALID, -1, "the plugin has no name");
  for (int32_t i = 0; i < plugin->n_devices; i++) {
    df_status status = check_device(plugin, i, error);
    if (status)
      return status;
  }
  return check_kernels("plugin", plugin->name, plugin->kernels, plugin->n_kernels, error);
}

const df_plugin *df_library_open(const char *path, df_error *error) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    df_error_set(error, DF_INVALID, -1, "%s", dlerror());
    return NULL;
  }
  df_plugin_entry_fn entry;
  *(void **)&entry = dlsym(library, "df_plugin_entry"); /* the cast that POSIX prescribes */
  if (!entry) {
    df_error_set(error, DF_INVALID, -1, "%s exports no df_plugin_entry", path);
    dlclose(library);
    return NULL;
  }
  const df_plugin *plugin = entry(df_host_table());
  df_error reason = {0};
  if (check_plugin(plugin, &reason)) {
    /* Its code has run and may have left threads or handlers behind, so it stays open. */
    df_error_set(error, reason.code, -1, "%s: %s", path, reason.text);
    return NULL;
  }
  return plugin;
}
