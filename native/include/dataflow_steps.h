/* dataflow_steps.h: what a step of fused_elementwise can be: the numbers of ops in its program.
 *
 * The attribute |program| has for each step the number of its op, then its operands: numbers of the
 * node's inputs and, behind these, of earlier steps. The result is the last step's. Where the
 * attribute |trailing| isn't 0 the last step is a reduction over so many trailing axes. Numbers
 * stay what they are; a later version may have more, which a kernel's |accepts| refuses.
 *
 * Written by kernels/attributes.py from the declarations of dataflow.ops: don't edit. */
#ifndef DATAFLOW_STEPS_H
#define DATAFLOW_STEPS_H

/* clang-format off */
enum { DF_STEP_abs, DF_STEP_acos, DF_STEP_acosh, DF_STEP_add, DF_STEP_asin, DF_STEP_asinh,
       DF_STEP_atan, DF_STEP_atanh, DF_STEP_ceil, DF_STEP_cos, DF_STEP_cosh, DF_STEP_div,
       DF_STEP_erf, DF_STEP_exp, DF_STEP_floor, DF_STEP_hard_swish, DF_STEP_log, DF_STEP_maximum,
       DF_STEP_minimum, DF_STEP_mish, DF_STEP_mul, DF_STEP_neg, DF_STEP_reciprocal,
       DF_STEP_reduce_max, DF_STEP_reduce_mean, DF_STEP_reduce_min, DF_STEP_reduce_prod,
       DF_STEP_reduce_sum, DF_STEP_relu, DF_STEP_relu_grad, DF_STEP_round, DF_STEP_sigmoid,
       DF_STEP_sign, DF_STEP_sin, DF_STEP_sinh, DF_STEP_softplus, DF_STEP_softsign, DF_STEP_sqrt,
       DF_STEP_sub, DF_STEP_tan, DF_STEP_tanh };
/* clang-format on */

#endif
