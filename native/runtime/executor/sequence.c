/* executor/sequence.c: a program's segments, copies and waits in order, without coming back to
 * Python. */
#include "host/internal.h"

static df_status run_copy(const df_command *command, const df_run *run, df_error *error) {
  df_copy copy = command->copy;
  if (command->host_slot >= run->n_slots)
    return df_error_set(error, DF_INVALID, -1, "a copy is of slot %d of %d", command->host_slot,
                        run->n_slots);
  if (command->host_slot >= 0) {
    char *host = (char *)run->slots[command->host_slot] + command->host_offset;
    if (copy.direction == DF_COPY_TO_HOST)
      copy.to = host;
    else
      copy.from = host;
  }
  return command->device->copy(command->self, &copy, error);
}

static df_status run_command(const df_command *command, const df_run *run, df_error *error) {
  switch (command->kind) {
  case DF_COMMAND_SEGMENT:
    return command->device->run(command->self, command->prepared, run, error);
  case DF_COMMAND_COPY:
    return run_copy(command, run, error);
  case DF_COMMAND_WAIT:
    return command->device->sync ? command->device->sync(command->self, error) : DF_OK;
  default:
    return df_error_set(error, DF_INTERNAL, -1, "a command of kind %d", command->kind);
  }
}

/* Waits for what the commands before |failed| started: a copy that came down later would write into
 * memory that the caller has given up. A wait that failed has waited, and its error is kept. */
static void drain(const df_command *commands, int64_t failed) {
  const int waited = commands[failed].kind == DF_COMMAND_WAIT;
  for (int64_t i = 0; i < failed; i++)
    if (commands[i].device->sync && !(waited && commands[i].self == commands[failed].self)) {
      df_error ignored = {0};
      commands[i].device->sync(commands[i].self, &ignored);
    }
}

static df_status run_commands(const df_command *commands, int64_t count, const df_run *run,
                              int64_t *failed, df_error *error) {
  for (int64_t i = 0; i < count; i++) {
    /* Between a copy to the host and the wait for it nothing is cancelled. */
    df_status status = commands[i].kind == DF_COMMAND_SEGMENT && df_is_cancelled(run->cancel)
                           ? df_error_set(error, DF_CANCELLED, -1, "cancelled")
                           : run_command(&commands[i], run, error);
    if (status) {
      drain(commands, i);
      *failed = i;
      return status;
    }
  }
  return DF_OK;
}

df_status df_run_commands(const df_command *commands, int64_t count, const df_run *run,
                          int64_t *failed, df_error *error) {
  /* Here, and not in Python: there an interruption between the two would leave the handler behind.
   */
  const int watching = df_interrupt_begin((volatile int32_t *)run->cancel);
  df_status status = run_commands(commands, count, run, failed, error);
  if (watching)
    df_interrupt_end();
  return status;
}
