/* map/loops.h: how kernels of elementwise ops are written: a loop over rows from a formula. */
#ifndef DF_CPU_MAP_LOOPS_H
#define DF_CPU_MAP_LOOPS_H
#include "map/run.h"

/* The head of a df_rows function, and the kernel of so many inputs that runs it. */
#define DF_ROWS(name)                                                                              \
  static void name##_rows(void *out, const void *const *in, const int64_t *step, int64_t n,        \
                          const df_call *call)
#define DF_ROWS_RUN(name, inputs)                                                                  \
  static df_status name##_run(const df_call *call) { return df_map_run(call, inputs, name##_rows); }

/* The output may be an input: DF_IVDEP says that nothing else overlaps. */
#define DF_EACH DF_IVDEP for (int64_t i = 0; i < n; i++)

/* y[i] = |expression| in x = x[i]. */
#define DF_LOOP_1(TO, TI, expression)                                                              \
  TO *to = out;                                                                                    \
  const TI *from = in[0];                                                                          \
  DF_EACH {                                                                                        \
    const TI x = from[i];                                                                          \
    to[i] = (TO)(expression);                                                                      \
  }

/* One loop for two rows, one each for a scalar on the left and on the right. */
#define DF_LOOP_2(TO, TI, expression)                                                              \
  TO *to = out;                                                                                    \
  const TI *left = in[0], *right = in[1];                                                          \
  if (step[0] && step[1]) {                                                                        \
    DF_EACH {                                                                                      \
      const TI a = left[i], b = right[i];                                                          \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  } else if (step[0]) {                                                                            \
    const TI b = *right;                                                                           \
    DF_EACH {                                                                                      \
      const TI a = left[i];                                                                        \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  } else {                                                                                         \
    const TI a = *left;                                                                            \
    DF_EACH {                                                                                      \
      const TI b = right[i];                                                                       \
      to[i] = (TO)(expression);                                                                    \
    }                                                                                              \
  }

/* Of formulas without parameters analyzers see the loop with operands that lie as it wants them.
 * How operands come to lie so they see with the other kernels: there are hundreds of formulas, and
 * each took as long again. */
#ifdef DF_ANALYZED
static inline df_status df_formula_run(const df_call *call, int32_t n_inputs, df_rows rows) {
  const void *in[DF_WALK_INPUTS];
  int64_t step[DF_WALK_INPUTS];
  for (int32_t i = 0; i < n_inputs; i++) {
    in[i] = call->inputs[i]->data;
    step[i] = n_inputs == 1 || call->inputs[i]->rank > 0;
  }
  rows(call->outputs[0]->data, in, step, df_elements(call->outputs[0]), call);
  return DF_OK;
}
#define DF_FORMULA_RUN(name, inputs)                                                               \
  static df_status name##_run(const df_call *call) {                                               \
    return df_formula_run(call, inputs, name##_rows);                                              \
  }
#else
#define DF_FORMULA_RUN(name, inputs) DF_ROWS_RUN(name, inputs)
#endif

/* The two with the rest of their kernel, of formulas without parameters. */
#define DF_DEFINE_UNARY(name, TO, TI, expression)                                                  \
  DF_ROWS(name) {                                                                                  \
    (void)step;                                                                                    \
    (void)call;                                                                                    \
    DF_LOOP_1(TO, TI, expression)                                                                  \
  }                                                                                                \
  DF_FORMULA_RUN(name, 1)
#define DF_DEFINE_BINARY(name, TO, TI, expression)                                                 \
  DF_ROWS(name) {                                                                                  \
    (void)call;                                                                                    \
    DF_LOOP_2(TO, TI, expression)                                                                  \
  }                                                                                                \
  DF_FORMULA_RUN(name, 2)

/* Records of kernels whose operands have one type, and of those that answer with a bool. */
#define DF_SAME_1(name, type)                                                                      \
  DF_KERNEL(#name, #type, "~" #type "->" #type, "0<0", name##_##type##_run),
#define DF_SAME_2(name, type)                                                                      \
  DF_KERNEL(#name, #type, "~" #type ",~" #type "->" #type, "0<0,0<1", name##_##type##_run),
#define DF_TEST_1(name, type)                                                                      \
  DF_KERNEL(#name, #type, "~" #type "->bool", NULL, name##_##type##_run),
#define DF_TEST_2(name, type)                                                                      \
  DF_KERNEL(#name, #type, "~" #type ",~" #type "->bool", NULL, name##_##type##_run),

#endif
