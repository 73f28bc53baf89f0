/* host/held.c: what objects of Python own, given back by C alone. A destructor in Python could be
 * interrupted, would swallow the Ctrl-C that it meets, and finds no modules when the interpreter
 * ends. */
#define _GNU_SOURCE
#include "host/internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- Devices, their memory, their segments -------------------------------------------------- */

struct df_opened {
  const df_device *device;
  void *self;
  atomic_int holders;
  int forks; /* how often the process had been forked when it was opened */
  int closes;
};

static int forks;

static void count_fork(void) { forks++; }

static void register_fork(void) { pthread_atfork(NULL, NULL, count_fork); }

/* Whether the device can still be called: only what works in host memory survives a fork. */
static int is_usable(const df_opened *opened) {
  return opened->forks == forks || opened->device->flags & DF_MEMORY_HOST;
}

static void leave(df_opened *opened) {
  if (atomic_fetch_sub(&opened->holders, 1) > 1)
    return;
  if (opened->closes && is_usable(opened))
    opened->device->close(opened->self);
  free(opened);
}

static void enter(df_opened *opened, int32_t kind, df_held *held) {
  atomic_fetch_add(&opened->holders, 1);
  held->opened = opened;
  held->self = opened->self;
  held->kind = kind;
}

df_status df_hold_device(const df_device *device, const int64_t *values, df_held *held,
                         df_error *error) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, register_fork);
  df_opened *opened = calloc(1, sizeof *opened);
  if (!opened)
    return df_error_set(error, DF_OUT_OF_MEMORY, -1, "no memory to open a device");
  *opened = (df_opened){.device = device, .self = device->self, .forks = forks};
  df_status status =
      device->open ? device->open(device->self, values, &opened->self, error) : DF_OK;
  if (status) {
    free(opened);
    return status;
  }
  opened->closes = device->open && device->close;
  enter(opened, DF_HELD_DEVICE, held);
  return DF_OK;
}

/* The status of an allocation, or a failure where it is without one and gave nothing. */
static df_status checked_memory(df_status status, const df_buffer *buffer, df_error *error) {
  if (status || buffer->base)
    return status;
  return df_error_set(error, DF_DEVICE, -1, "it says DF_OK and gives a null base");
}

df_status df_hold_memory(const df_held *device, int64_t bytes, df_held *held, df_error *error) {
  df_opened *opened = device->opened;
  held->buffer = (df_buffer){.struct_size = sizeof held->buffer, .bytes = bytes};
  df_status status = opened->device->alloc(opened->self, bytes, &held->buffer, error);
  status = checked_memory(status, &held->buffer, error);
  if (!status)
    enter(opened, DF_HELD_MEMORY, held);
  return status;
}

df_status df_hold_staging(const df_held *device, int64_t bytes, df_held *held, df_error *error) {
  df_opened *opened = device->opened;
  held->buffer = (df_buffer){.struct_size = sizeof held->buffer, .bytes = bytes};
  df_status status = opened->device->alloc_staging(opened->self, bytes, &held->buffer, error);
  status = checked_memory(status, &held->buffer, error);
  if (!status)
    enter(opened, DF_HELD_STAGING, held);
  return status;
}

/* What a device compiled, and how many use it. */
struct df_compiled {
  void *made;
  atomic_int users;
};

df_status df_hold_compiled(const df_held *device, const df_segment *segment, df_held *held,
                           df_error *error) {
  df_opened *opened = device->opened;
  df_compiled *compiled = calloc(1, sizeof *compiled);
  if (!compiled)
    return df_error_set(error, DF_OUT_OF_MEMORY, -1, "no memory to compile a segment");
  df_status status = opened->device->compile(opened->self, segment, &compiled->made, error);
  if (status) {
    free(compiled);
    return status;
  }
  atomic_store(&compiled->users, 1);
  held->compiled = compiled;
  enter(opened, DF_HELD_COMPILED, held);
  return DF_OK;
}

static void let_go_of_compiled(const df_opened *opened, df_compiled *compiled) {
  if (!compiled || atomic_fetch_sub(&compiled->users, 1) > 1)
    return;
  if (is_usable(opened) && opened->device->discard)
    opened->device->discard(opened->self, compiled->made);
  free(compiled);
}

df_status df_hold_segment(const df_held *device, const df_held *compiled, df_segment *segment,
                          df_held *held, df_error *error) {
  df_opened *opened = device->opened;
  if (compiled)
    segment->compiled = compiled->compiled->made;
  df_status status = opened->device->prepare(opened->self, segment, &held->prepared, error);
  if (status)
    return status;
  if (compiled) {
    held->compiled = compiled->compiled;
    atomic_fetch_add(&held->compiled->users, 1);
  }
  enter(opened, DF_HELD_SEGMENT, held);
  return DF_OK;
}

void df_let_go(df_held *held) {
  df_opened *opened = held->opened;
  if (!opened)
    return;
  held->opened = NULL;
  if (is_usable(opened)) {
    if (held->kind == DF_HELD_MEMORY)
      opened->device->free(opened->self, &held->buffer);
    if (held->kind == DF_HELD_SEGMENT)
      opened->device->release(opened->self, held->prepared);
    if (held->kind == DF_HELD_STAGING)
      opened->device->free_staging(opened->self, &held->buffer);
  }
  let_go_of_compiled(opened, held->compiled);
  held->compiled = NULL;
  leave(opened);
}

/* ---- States of kernels ---------------------------------------------------------------------- */

df_status df_prepare_set(int64_t count, const df_kernel *const *kernels, const df_node *nodes,
                         df_prepared_set *set, df_error *error) {
  const size_t capacity = count > 0 ? (size_t)count : 1;
  const df_kernel **kept = calloc(capacity, sizeof *kept);
  df_prepared *prepared = calloc(capacity, sizeof *prepared);
  df_prepack *prepacks = calloc(capacity * DF_MOST_PREPACKS, sizeof *prepacks);
  if (!kept || !prepared || !prepacks) {
    free(kept);
    free(prepared);
    free(prepacks);
    return df_error_set(error, DF_OUT_OF_MEMORY, -1, "no memory to prepare %lld kernels",
                        (long long)count);
  }
  const df_status status = df_prepare_kernels(count, kernels, nodes, prepared, prepacks, error);
  if (status) {
    free(kept);
    free(prepared);
    free(prepacks);
    return status;
  }
  for (int64_t i = 0; i < count; i++)
    kept[i] = kernels[i];
  *set = (df_prepared_set){
      .count = count, .kernels = kept, .prepared = prepared, .prepacks = prepacks};
  return DF_OK;
}

void df_release_set(df_prepared_set *set) {
  df_release_kernels(set->count, set->kernels, set->prepared);
  free(set->kernels);
  free(set->prepared);
  free(set->prepacks);
  *set = (df_prepared_set){0};
}
