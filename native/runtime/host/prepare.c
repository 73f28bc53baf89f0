/* host/prepare.c: kernels at plan time. */
#include "host/internal.h"

#include <stddef.h>

const char *df_accepts(const df_kernel *kernel, const df_node *node) {
  return kernel->accepts ? kernel->accepts(node) : NULL;
}

enum { MOST_ALGORITHMS = 32 };

/* What a kernel answered, checked before memory is planned with it. */
static df_status check_answer(const df_kernel *kernel, const df_node *node,
                              const df_prepared *answer, int64_t step, df_error *error) {
  const int32_t most = DF_MOST_PREPACKS;
  if (answer->workspace < 0)
    return df_error_set(error, DF_INTERNAL, step, "kernel '%s' asks for a workspace of %lld bytes",
                        kernel->name, (long long)answer->workspace);
  if (answer->n_prepacks < 0 || answer->n_prepacks > most)
    return df_error_set(error, DF_INTERNAL, step,
                        "kernel '%s' asks for %d prepacked copies; expected 0 to %d", kernel->name,
                        answer->n_prepacks, most);
  for (int32_t i = 0; i < answer->n_prepacks; i++) {
    const df_prepack *prepack = answer->prepacks[i];
    if (prepack->input < 0 || prepack->input >= node->n_inputs || prepack->bytes < 0 ||
        !prepack->prepack)
      return df_error_set(
          error, DF_INTERNAL, step,
          "kernel '%s': prepacked copy %d is of input %d of %d, has %lld bytes, and %s function",
          kernel->name, i, prepack->input, node->n_inputs, (long long)prepack->bytes,
          prepack->prepack ? "a" : "no");
  }
  const int32_t known = answer->n_algorithms, used = answer->algorithm;
  if (known < 0 || known > MOST_ALGORITHMS || (known && !answer->algorithms))
    return df_error_set(error, DF_INTERNAL, step, "kernel '%s' has %d algorithms; expected 0 to %d",
                        kernel->name, known, MOST_ALGORITHMS);
  if (known &&
      (used < 0 || used >= known || answer->possible >> known || !(answer->possible >> used & 1)))
    return df_error_set(error, DF_INTERNAL, step,
                        "kernel '%s' selects algorithm %d of %d, supported are the bits %llx",
                        kernel->name, used, known, (unsigned long long)answer->possible);
  return DF_OK;
}

static df_status prepare_one(const df_kernel *kernel, const df_node *node, df_prepared *answer,
                             int64_t step, df_error *error) {
  if (!kernel->prepare)
    return DF_OK;
  df_error reason = {0};
  df_status status = kernel->prepare(node, answer, &reason);
  if (status)
    return df_error_set(error, status, step, "kernel '%s': %s", kernel->name,
                        reason.text[0] ? reason.text : "prepare failed without a message");
  status = check_answer(kernel, node, answer, step, error);
  if (status && kernel->release)
    kernel->release(answer->state);
  return status;
}

df_status df_prepare_kernels(int64_t count, const df_kernel *const *kernels, const df_node *nodes,
                             df_prepared *prepared, df_prepack *prepacks, df_error *error) {
  for (int64_t i = 0; i < count; i++) {
    prepared[i] = (df_prepared){.struct_size = sizeof(df_prepared)};
    for (int32_t k = 0; k < DF_MOST_PREPACKS; k++) {
      prepared[i].prepacks[k] = &prepacks[DF_MOST_PREPACKS * i + k];
      *prepared[i].prepacks[k] = (df_prepack){.struct_size = sizeof(df_prepack)};
    }
    df_status status = prepare_one(kernels[i], &nodes[i], &prepared[i], i, error);
    if (status) {
      prepared[i].state = NULL;
      df_release_kernels(i, kernels, prepared);
      return status;
    }
  }
  return DF_OK;
}

void df_release_kernels(int64_t count, const df_kernel *const *kernels, df_prepared *prepared) {
  for (int64_t i = 0; i < count; i++) {
    if (kernels[i]->release && prepared[i].state)
      kernels[i]->release(prepared[i].state);
    prepared[i].state = NULL;
  }
}
