/* executor/sequence.c: a program's segments, copies and waits in order, without coming back to
 * Python. */
#include "host/internal.h"

static df_status copy_item(const df_item *item, const df_run *run, df_error *error) {
  df_copy copy = item->copy;
  if (item->host_slot >= run->n_slots)
    return df_error_set(error, DF_INVALID, -1, "a copy is of slot %d of %d", item->host_slot,
                        run->n_slots);
  if (item->host_slot >= 0) {
    char *host = (char *)run->slots[item->host_slot] + item->host_offset;
    if (copy.direction == DF_COPY_TO_HOST)
      copy.to = host;
    else
      copy.from = host;
  }
  return item->device->copy(item->self, &copy, error);
}

static df_status run_item(const df_item *item, const df_run *run, df_error *error) {
  switch (item->kind) {
  case DF_ITEM_SEGMENT:
    return item->device->run(item->self, item->prepared, run, error);
  case DF_ITEM_COPY:
    return copy_item(item, run, error);
  case DF_ITEM_WAIT:
    return item->device->sync ? item->device->sync(item->self, error) : DF_OK;
  default:
    return df_error_set(error, DF_INTERNAL, -1, "an item of kind %d", item->kind);
  }
}

/* Waits for what the items before |failed| started: a copy that came down later would write into
 * memory that the caller has given up. A wait that failed has waited, and its error is kept. */
static void drain(const df_item *items, int64_t failed) {
  const int waited = items[failed].kind == DF_ITEM_WAIT;
  for (int64_t i = 0; i < failed; i++)
    if (items[i].device->sync && !(waited && items[i].self == items[failed].self)) {
      df_error ignored = {0};
      items[i].device->sync(items[i].self, &ignored);
    }
}

static df_status run_items(const df_item *items, int64_t count, const df_run *run, int64_t *failed,
                           df_error *error) {
  for (int64_t i = 0; i < count; i++) {
    /* Between a copy to the host and the wait for it nothing is cancelled. */
    df_status status = items[i].kind == DF_ITEM_SEGMENT && df_is_cancelled(run->cancel)
                           ? df_error_set(error, DF_CANCELLED, -1, "cancelled")
                           : run_item(&items[i], run, error);
    if (status) {
      drain(items, i);
      *failed = i;
      return status;
    }
  }
  return DF_OK;
}

df_status df_run_items(const df_item *items, int64_t count, const df_run *run, int64_t *failed,
                       df_error *error) {
  /* Here, and not in Python: there an interruption between the two would leave the handler behind.
   */
  const int watching = df_interrupt_begin((volatile int32_t *)run->cancel);
  df_status status = run_items(items, count, run, failed, error);
  if (watching)
    df_interrupt_end();
  return status;
}
