/* vendor/library.h: libraries of the card's maker, opened when they are first asked for. */
#ifndef DF_CUDA_VENDOR_LIBRARY_H
#define DF_CUDA_VENDOR_LIBRARY_H
#include "queue.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>

/* Where a library is, as the environment said when the plugin was opened: the path in |variable|;
 * none when that is empty; without it the one that the system finds by |name|. */
struct df_vendor_library {
  std::string path;

  df_vendor_library(const char *variable, const char *name) {
    const char *value = getenv(variable);
    path = value ? value : name;
  }
  /* Null when there is none; it stays open as long as the process. */
  void *open() const {
    return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
};

/* The queue that will run a node; null, with the error, when the host doesn't say. */
static inline df_queue *df_vendor_queue(const df_node *node, df_error *error) {
  if (node->struct_size >= sizeof(df_node) && node->device)
    return static_cast<df_queue *>(node->device);
  snprintf(error->text, sizeof error->text, "the host doesn't say which device runs the node");
  return nullptr;
}

/* The queue's handle of a library, made when it is first asked for; null when |create| fails. A
 * handle works for one thread and one stream at a time, as a queue does. The queue is locked and
 * its card is chosen. */
template <typename H> H df_vendor_handle(df_queue *queue, int (*create)(H *), int (*destroy)(H)) {
  const void *const key = reinterpret_cast<const void *>(create);
  for (const df_library_handle &known : queue->handles)
    if (known.key == key)
      return static_cast<H>(known.handle);
  H made = nullptr;
  if (create(&made))
    return nullptr;
  queue->handles.push_back({key, made, [destroy, made] { destroy(made); }});
  return made;
}

#endif
