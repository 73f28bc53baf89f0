/* fused/plan.h: what a launch of a fused_elementwise is given: the steps as code, slots for values
 * that wait, and the operands. */
#ifndef DF_CUDA_FUSED_PLAN_H
#define DF_CUDA_FUSED_PLAN_H
#include "kernels/binary.h"
#include "kernels/program.h"
#include "map/map.h"
#include "map/vmath.h"

#include "kernels/unary.h" /* by the functions of map/vmath.h */

/* Ops that can be steps: name and formula. Those of the C library need much code. */
#define DF_FUSED_BINARY(X) DF_BINARY_FLOAT(X) X(relu_grad, b > 0.0f ? a : 0.0f)
#define DF_FUSED_UNARY(X) DF_ARITHMETIC_F32(X) DF_ACTIVATION_F32(X)
#define DF_FUSED_RARE(X) DF_LIBRARY_F32(X) X(sin, sinf(x)) X(cos, cosf(x))

#ifndef DF_FUSED_BLOCKS
#define DF_FUSED_BLOCKS 1024 /* that fill a card; tests have fewer, for several chunks */
#endif

enum {
  DF_FUSED_VECTOR = 4,   /* elements of 16 bytes */
  DF_FUSED_ELEMENTS = 8, /* of a thread at a time */
  DF_FUSED_SHARED = 48 << 10,
  DF_FUSED_CHUNKS = 4, /* the most that a thread does one after another */
  /* An operand is the number of a slot, a single number, or what the step before gave. */
  DF_FUSED_SINGLE = 0x40,
  DF_FUSED_LAST = 0xff,
  DF_FUSED_TWO = 0x80 /* of the byte of an op: it has two operands */
};

/* The program with its operands, as the parameter of a launch. */
struct df_fused {
  const float *in[DF_PROGRAM_INPUTS];
  int32_t inputs, steps;
  int32_t vector;  /* 16 bytes at a time */
  int32_t chunks;  /* of eight elements, that a thread does one after another */
  int32_t full;    /* inputs of more than an element: they have the first slots */
  int32_t slots;   /* of eight elements per thread; behind them lie other ones of the inputs */
  int32_t singles; /* inputs of one element */
  uint32_t single; /* bit k: input k is one */
  uint32_t dense;  /* bit k: input k lies as the result */
  uint32_t still;  /* bit k: input k doesn't change within a vector */
  /* Bytes: op, operands (0 for a second one that an op hasn't), slot of the result or
   * DF_FUSED_LAST. Where add and mul read what the step before gave, it is their first operand. */
  uint32_t step[DF_PROGRAM_STEPS];
  uint8_t slot[DF_PROGRAM_INPUTS]; /* of each input */
  uint8_t scratch;                 /* slot for functions that are computed one by one */
  df_walk<DF_PROGRAM_INPUTS> walk; /* over vectors or elements, for inputs that aren't dense */
};

/* ---- When a plan is made -------------------------------------------------------------------- */

/* Operands of an op as a step, 0 where it can't be one. */
static inline int32_t df_fused_arity(int64_t code) {
  switch (code) {
#define ARITY_1(name, expression) case DF_STEP_##name:
#define ARITY_2(name, expression) case DF_STEP_##name:
    DF_FUSED_UNARY(ARITY_1)
    DF_FUSED_RARE(ARITY_1)
    return 1;
    DF_FUSED_BINARY(ARITY_2)
    return 2;
#undef ARITY_1
#undef ARITY_2
  default:
    return 0;
  }
}

static inline bool df_fused_rare(int32_t code) {
  switch (code) {
#define RARE(name, expression) case DF_STEP_##name:
    DF_FUSED_RARE(RARE)
    return true;
#undef RARE
  default:
    return false;
  }
}

/* The last step that reads value |value| (inputs, then results), -1 for none. */
static inline int32_t df_fused_last_use(const df_program &p, int32_t value) {
  int32_t last = -1;
  for (int32_t s = 0; s < p.steps; s++)
    for (int32_t i = 0; i < p.step[s].arity; i++)
      if (p.step[s].operand[i] == value)
        last = s;
  return last;
}

/* Gives each value that a step reads later a slot, and codes the steps; bit k of |single|: input k
 * is one element. A slot is free again behind the last step that reads it. */
static inline df_fused df_fused_of(const df_program &p, uint32_t single) {
  df_fused f{};
  f.inputs = p.inputs;
  f.steps = p.steps;
  f.single = single;
  uint32_t where[DF_PROGRAM_INPUTS + DF_PROGRAM_STEPS];
  int32_t until[DF_PROGRAM_INPUTS + DF_PROGRAM_STEPS] =
      {}; /* per slot: the last step that reads it */
  const auto slot_for = [&](int32_t value, int32_t from) {
    int32_t slot = 0;
    while (slot < f.slots && until[slot] > from)
      slot++;
    f.slots = slot == f.slots ? slot + 1 : f.slots;
    until[slot] = df_fused_last_use(p, value);
    return static_cast<uint32_t>(slot);
  };
  for (int32_t k = 0; k < p.inputs; k++) {
    const bool one = single >> k & 1;
    f.slot[k] = static_cast<uint8_t>(one ? f.singles++ : slot_for(k, -2)); /* all at one time */
    where[k] = one ? f.slot[k] | DF_FUSED_SINGLE : f.slot[k];
  }
  f.full = f.slots;
  for (int32_t s = 0; s < p.steps; s++) {
    const df_program_step &step = p.step[s];
    uint32_t operand[DF_PROGRAM_OPERANDS] = {};
    for (int32_t i = 0; i < step.arity; i++) {
      const bool before = s > 0 && step.operand[i] == p.inputs + s - 1;
      operand[i] = before ? uint32_t{DF_FUSED_LAST} : where[step.operand[i]];
    }
    if ((step.code == DF_STEP_add || step.code == DF_STEP_mul) && operand[1] == DF_FUSED_LAST)
      std::swap(operand[0], operand[1]);
    const uint32_t op = static_cast<uint32_t>(step.code) | (step.arity == 2 ? DF_FUSED_TWO : 0);
    const uint32_t code = op | operand[0] << 8 | operand[1] << 16;
    const bool later = df_fused_last_use(p, p.inputs + s) > s + 1;
    where[p.inputs + s] = later ? slot_for(p.inputs + s, s) : uint32_t{DF_FUSED_LAST};
    f.step[s] = code | where[p.inputs + s] << 24;
  }
  for (int32_t s = 0; s < p.steps; s++)
    if (df_fused_rare(p.step[s].code)) {
      f.scratch = static_cast<uint8_t>(f.slots++);
      break;
    }
  return f;
}

/* Bytes of shared memory of a block of |threads|. */
static inline int64_t df_fused_bytes(const df_fused &f, int64_t threads) {
  const int64_t floats = (f.slots + f.full) * int64_t{DF_FUSED_ELEMENTS} + f.singles;
  return threads * floats * static_cast<int64_t>(sizeof(float));
}

/* Reads the program of a node; returns why it can't be done, or null. */
static inline const char *df_fused_read(const df_node *node, df_program *p, df_fused *f) {
  const char *reason = df_program_read(p, node, df_fused_arity);
  if (!reason)
    reason = df_accepts_rank(node);
  if (reason)
    return reason;
  uint32_t single = 0;
  for (int32_t k = 0; k < node->n_inputs; k++)
    if (df_product(node->inputs[k].shape, 0, node->inputs[k].rank) == 1)
      single |= 1u << k;
  *f = df_fused_of(*p, single);
  return nullptr;
}

/* ---- When it runs --------------------------------------------------------------------------- */

/* Puts the operands of a call into |f|; |shape| is what the steps compute, |aligned|: its vectors
 * are. */
static inline df_status df_fused_bind(df_fused *f, const df_call *call, const int64_t *shape,
                                      int32_t rank, bool aligned) {
  static const df_tensor none{};
  const int64_t count = df_product(shape, 0, rank);
  const df_tensor *operands[DF_PROGRAM_INPUTS];
  uint32_t fits = 0; /* for vectors */
  for (int32_t k = 0; k < DF_PROGRAM_INPUTS; k++) {
    operands[k] = k < f->inputs ? &call->inputs[k] : &none;
    if (k >= f->inputs)
      continue;
    f->in[k] = df_in<const float>(call, k);
    const bool one = f->single >> k & 1;
    if (one || (df_elements(operands[k]) == count && df_contiguous(operands[k])))
      f->dense |= 1u << k;
    if (one || df_is_aligned<DF_FUSED_VECTOR>(f->in[k]))
      fits |= 1u << k;
  }
  const uint32_t all = (1u << f->inputs) - 1;
  f->vector = aligned && fits == all;
  if (f->dense == all || count == 0)
    return DF_OK;
  if (!df_walk_plan(&f->walk, shape, rank,
                    reinterpret_cast<const df_tensor *const(&)[DF_PROGRAM_INPUTS]>(operands)))
    return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
  f->vector = aligned && df_walk_vectors<DF_FUSED_VECTOR>(&f->walk, fits, &f->still);
  return DF_OK;
}

#endif
