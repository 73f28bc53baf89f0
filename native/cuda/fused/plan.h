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
  DF_FUSED_MANY = 16,    /* where one input is read and there is much to compute */
  DF_FUSED_LONG = 5,     /* steps that are much */
  DF_FUSED_SHARED = 48 << 10,
  DF_FUSED_CHUNKS = 4, /* the most that a thread does one after another */
  /* An operand is the number of a slot, with DF_FUSED_STILL of one that has a number per vector, a
   * single number, or what the step before gave. */
  DF_FUSED_STILL = 0x20,
  DF_FUSED_SINGLE = 0x40,
  DF_FUSED_LAST = 0xff,
  DF_FUSED_TWO = 0x80 /* of the byte of an op: it has two operands */
};

/* The program with its operands, as the parameter of a launch. Of the inputs those come first that
 * don't lie as the result, then those that do, then those of one element. */
struct df_fused {
  const float *in[DF_PROGRAM_INPUTS];
  int32_t walked, full, inputs; /* where each kind ends */
  int32_t steps;
  int32_t vector;  /* 16 bytes at a time */
  int32_t chunks;  /* of eight elements or many, that a thread does one after another */
  int32_t slots;   /* of so many elements per thread; behind them lie other ones of the inputs */
  int32_t singles; /* inputs of one element */
  uint32_t still;  /* bit k: input k doesn't change within a vector */
  /* Bytes: op, operands (0 for a second one that an op hasn't), slot of the result or
   * DF_FUSED_LAST. Where add and mul read what the step before gave, it is their first operand. */
  uint32_t step[DF_PROGRAM_STEPS];
  uint8_t slot[DF_PROGRAM_INPUTS]; /* of each input: the first ones, but for single numbers */
  uint8_t scratch;                 /* slot for functions that are computed one by one */
  df_walk<DF_PROGRAM_INPUTS> walk; /* over vectors or elements */
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
 * is one element, of |still|: it doesn't change within a vector. A slot is free again behind the
 * last step that reads it. The inputs are in the program's order. */
static inline df_fused df_fused_of(const df_program &p, uint32_t single, uint32_t still) {
  df_fused f{};
  f.inputs = p.inputs;
  f.steps = p.steps;
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
    where[k] = f.slot[k] | (one ? DF_FUSED_SINGLE : still >> k & 1 ? DF_FUSED_STILL : 0);
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

/* Bytes of shared memory of a block of |threads| that have |elements| at a time. */
static inline int64_t df_fused_bytes(const df_fused &f, int64_t threads,
                                     int32_t elements = DF_FUSED_ELEMENTS) {
  const int64_t floats = int64_t{f.slots + f.full} * elements + f.singles;
  return threads * floats * static_cast<int64_t>(sizeof(float));
}

/* Whether a thread should do many elements at a time: the choice of an op then costs less, but
 * several inputs of so many leave too few threads room. */
static inline bool df_fused_many(const df_fused &f, int32_t steps, int64_t most) {
  return f.full == 1 && f.steps >= steps && df_fused_bytes(f, DF_BLOCK, DF_FUSED_MANY) <= most;
}

/* What follows from a node alone. */
struct df_fused_program {
  df_program program;
  uint32_t single; /* bit k: input k is one element */
};

/* Reads the program of a node; returns why it can't be done, or null. */
static inline const char *df_fused_read(const df_node *node, df_fused_program *p) {
  const char *reason = df_program_read(&p->program, node, df_fused_arity);
  if (!reason)
    reason = df_accepts_rank(node);
  for (int32_t k = 0; k < node->n_inputs && !reason; k++)
    if (df_product(node->inputs[k]->shape, 0, node->inputs[k]->rank) == 1)
      p->single |= 1u << k;
  return reason;
}

/* ---- When it runs --------------------------------------------------------------------------- */

/* The program with the operands of a call; |shape| is what the steps compute, |aligned|: its
 * vectors are. */
static inline df_status df_fused_bind(df_fused *f, const df_call *call, const df_fused_program &p,
                                      const int64_t *shape, int32_t rank, bool aligned) {
  static const df_tensor none{};
  const int64_t count = df_product(shape, 0, rank);
  const int32_t inputs = p.program.inputs;
  int32_t order[DF_PROGRAM_INPUTS], sizes[3] = {0, 0, 0}, n = 0; /* walked, dense, single */
  for (int32_t kind = 0; kind < 3; kind++)
    for (int32_t k = 0; k < inputs; k++) {
      const df_tensor *x = call->inputs[k];
      const bool dense = df_elements(x) == count && df_contiguous(x);
      if (kind == (p.single >> k & 1 ? 2 : dense ? 1 : 0)) {
        order[n++] = k;
        sizes[kind]++;
      }
    }
  df_walk<DF_PROGRAM_INPUTS> walk{};
  const df_tensor *operands[DF_PROGRAM_INPUTS];
  uint32_t fits = 0, still = 0; /* bits in the new order */
  for (int32_t k = 0; k < DF_PROGRAM_INPUTS; k++) {
    operands[k] = k < sizes[0] ? call->inputs[order[k]] : &none;
    if (k < sizes[0] + sizes[1] && df_is_aligned<DF_FUSED_VECTOR>(df_in<float>(call, order[k])))
      fits |= 1u << k;
  }
  for (int32_t k = sizes[0]; k < sizes[0] + sizes[1]; k++)
    aligned = aligned && fits >> k & 1;
  if (sizes[0] > 0 && count > 0) {
    if (!df_walk_plan(&walk, shape, rank,
                      reinterpret_cast<const df_tensor *const(&)[DF_PROGRAM_INPUTS]>(operands)))
      return df_fail(call, DF_UNSUPPORTED, "more than %d axes", DF_WALK_RANK);
    aligned = aligned && df_walk_vectors<DF_FUSED_VECTOR>(&walk, fits, &still);
    still = aligned ? still & ((1u << sizes[0]) - 1) : 0;
  }
  uint32_t own = 0; /* |still| in the program's order */
  for (int32_t k = 0; k < sizes[0]; k++)
    own |= (still >> k & 1) << order[k];
  const df_fused plain = df_fused_of(p.program, p.single, own);
  *f = plain;
  f->walked = sizes[0];
  f->vector = aligned;
  f->still = still;
  f->walk = walk;
  for (int32_t k = 0; k < inputs; k++) {
    f->in[k] = df_in<const float>(call, order[k]);
    f->slot[k] = plain.slot[order[k]];
  }
  return DF_OK;
}

#endif
