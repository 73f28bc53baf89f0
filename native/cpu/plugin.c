/* plugin.c: the CPU device and the choice of the instruction set.
 *
 * Compiled once, for any machine. The kernel files are compiled for several instruction sets; the
 * best one that processor and operating system support is chosen when the plugin is opened. The
 * environment variable DATAFLOW_CPU_ISA names another one. "amx" has the kernels of AVX-512, some
 * of which ask whether they may use AMX tiles. Kernels also ask whether they may use VNNI, the dot
 * products of bytes; "avx512_base" and "avx2_base" are the sets without them.
 */
#ifdef DF_AMX
#define _GNU_SOURCE
#include <sys/syscall.h>
#endif
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "assume.h"
#include "dataflow_inline.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

enum { ALIGNMENT = 64 };

/* ---- Kernel tables -------------------------------------------------------------------------- */

/* One table per family and instruction set, ended by a null. */
#define FAMILIES(X)                                                                                \
  X(activation)                                                                                    \
  X(arg_reduce)                                                                                    \
  X(arithmetic)                                                                                    \
  X(arithmetic_integer)                                                                            \
  X(attention)                                                                                     \
  X(attention_grad)                                                                                \
  X(batch_norm)                                                                                    \
  X(cast)                                                                                          \
  X(col2im)                                                                                        \
  X(conv)                                                                                          \
  X(conv_float64)                                                                                  \
  X(conv_grad_input)                                                                               \
  X(conv_grad_weight)                                                                              \
  X(det)                                                                                           \
  X(detection_nms)                                                                                 \
  X(detection_roi)                                                                                 \
  X(detection_roi_float64)                                                                         \
  X(dft)                                                                                           \
  X(dynamic_shape)                                                                                 \
  X(dynamic_shape_unique)                                                                          \
  X(fused_conv_pool)                                                                               \
  X(fused_elementwise)                                                                             \
  X(fused_gemm)                                                                                    \
  X(gather)                                                                                        \
  X(gather_find)                                                                                   \
  X(grid_sample)                                                                                   \
  X(grid_sample_float64)                                                                           \
  X(layer_norm)                                                                                    \
  X(linalg)                                                                                        \
  X(linear_attention)                                                                              \
  X(logic)                                                                                         \
  X(logic_integer)                                                                                 \
  X(loss)                                                                                          \
  X(loss_ctc)                                                                                      \
  X(loss_float64)                                                                                  \
  X(lrn)                                                                                           \
  X(lrn_float64)                                                                                   \
  X(matmul_float64)                                                                                \
  X(matmul_of_integers)                                                                            \
  X(optimizer)                                                                                     \
  X(optimizer_blocks)                                                                              \
  X(pool)                                                                                          \
  X(pool_bytes)                                                                                    \
  X(pool_float64)                                                                                  \
  X(quantized_add)                                                                                 \
  X(quantized_blocks)                                                                              \
  X(quantized_conv)                                                                                \
  X(quantized_linear)                                                                              \
  X(quantized_lookup)                                                                              \
  X(quantized_matmul)                                                                              \
  X(random)                                                                                        \
  X(random_mersenne)                                                                               \
  X(recurrent)                                                                                     \
  X(recurrent_grad)                                                                                \
  X(reduce)                                                                                        \
  X(resize)                                                                                        \
  X(scatter)                                                                                       \
  X(shape)                                                                                         \
  X(shape_pad)                                                                                     \
  X(softmax)                                                                                       \
  X(sort_running)                                                                                  \
  X(sort_topk)                                                                                     \
  X(trees)

typedef const df_kernel *const *kernel_table;

#ifndef DF_NO_PORTABLE
#define DECLARE_PORTABLE(family)                                                                   \
  HIDDEN extern const df_kernel *const df_##family##_kernels_portable[];
#define LIST_PORTABLE(family) df_##family##_kernels_portable,
FAMILIES(DECLARE_PORTABLE)
static const kernel_table portable_tables[] = {FAMILIES(LIST_PORTABLE) NULL};
static int portable_runs(void) { return 1; }
#endif

#if defined(DF_AVX2) || defined(DF_AVX512)
/* |reg|: 0 to 3 for eax, ebx, ecx and edx. */
static int cpuid_bit(unsigned leaf, unsigned subleaf, int reg, int bit) {
  unsigned regs[4];
  return __get_cpuid_count(leaf, subleaf, &regs[0], &regs[1], &regs[2], &regs[3]) &&
         (regs[reg] >> bit & 1);
}

/* Not every compiler's __builtin_cpu_supports knows the name. */
static int f16c_runs(void) {
  unsigned a, b, c = 0, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* These also ask whether the operating system saves the wide registers. */
static int avx2_runs(void) {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c_runs();
}
#endif

#ifdef DF_AVX2
#define DECLARE_AVX2(family) HIDDEN extern const df_kernel *const df_##family##_kernels_avx2[];
#define LIST_AVX2(family) df_##family##_kernels_avx2,
FAMILIES(DECLARE_AVX2)
static const kernel_table avx2_tables[] = {FAMILIES(LIST_AVX2) NULL};
static int avx2_vnni(void) { return cpuid_bit(7, 1, 0, 4); }
#endif

#ifdef DF_AVX512
#define DECLARE_AVX512(family) HIDDEN extern const df_kernel *const df_##family##_kernels_avx512[];
#define LIST_AVX512(family) df_##family##_kernels_avx512,
FAMILIES(DECLARE_AVX512)
static const kernel_table avx512_tables[] = {FAMILIES(LIST_AVX512) NULL};

static int avx512_runs(void) {
  return avx2_runs() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int avx512_vnni(void) { return cpuid_bit(7, 0, 2, 11); }

#ifdef DF_AMX

/* Also asks the operating system, once and for all threads, to save the tile registers. */
static int amx_runs(void) {
  enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
  const int there = cpuid_bit(7, 0, 3, 22) && cpuid_bit(7, 0, 3, 24) && cpuid_bit(7, 1, 0, 5);
  return avx512_runs() && there && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#endif
#endif

typedef struct isa {
  const char *name;
  const kernel_table *tables;
  int (*runs)(void);
  int (*vnni)(void); /* whether it has VNNI; null for no */
} isa;

static const isa isas[] = {
/* best first; those after "portable" are used where they are named */
#ifdef DF_AMX
    {"amx", avx512_tables, amx_runs, avx512_vnni},
#endif
#ifdef DF_AVX512
    {"avx512", avx512_tables, avx512_runs, avx512_vnni},
#endif
#ifdef DF_AVX2
    {"avx2", avx2_tables, avx2_runs, avx2_vnni},
#endif
#ifndef DF_NO_PORTABLE
    {"portable", portable_tables, portable_runs, NULL},
#endif
#ifdef DF_AVX512
    {"avx512_base", avx512_tables, avx512_runs, NULL},
#endif
#ifdef DF_AVX2
    {"avx2_base", avx2_tables, avx2_runs, NULL},
#endif
};
enum { ISA_COUNT = sizeof isas / sizeof *isas };

/* ---- Memory --------------------------------------------------------------------------------- */

static df_status fail(df_error *error, df_status code, const char *text, int64_t bytes) {
  if (error) {
    error->code = code;
    snprintf(error->text, sizeof error->text, "cpu: %s (%lld bytes)", text, (long long)bytes);
  }
  return code;
}

/* At least one alignment, so that no two buffers have the same address. */
static df_status cpu_alloc(void *self, int64_t bytes, df_buffer *out, df_error *error) {
  (void)self;
  if (bytes < 0 || bytes > INT64_MAX - ALIGNMENT || (uint64_t)bytes > SIZE_MAX - ALIGNMENT)
    return fail(error, DF_INVALID, "not a size that can be allocated", bytes);
  const size_t size = bytes ? ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
  void *base = aligned_alloc(ALIGNMENT, size);
  if (!base)
    return fail(error, DF_OUT_OF_MEMORY, "out of memory", bytes);
  out->base = out->owner = base;
  return DF_OK;
}

static void cpu_free(void *self, df_buffer *buffer) {
  (void)self;
  free(buffer->owner);
}

static df_status cpu_copy(void *self, const df_copy *copy, df_error *error) {
  (void)self;
  if (copy->bytes < 0 || copy->to_offset < 0 || copy->from_offset < 0)
    return fail(error, DF_INVALID, "a copy of negative size or offset", copy->bytes);
  if (copy->bytes > 0)
    memmove((char *)copy->to + copy->to_offset, (const char *)copy->from + copy->from_offset,
            (size_t)copy->bytes);
  return DF_OK;
}

/* ---- The plugin ----------------------------------------------------------------------------- */

static df_device device;
static const df_device *const devices[] = {&device};
static df_plugin plugin;
static char version[64];
static char unavailable[192];

static int amx_granted, vnni_granted;

/* For gemm/amx/gemm.h: set before there is a kernel to ask. */
HIDDEN int df_amx_granted(void);
int df_amx_granted(void) { return amx_granted; }

/* For quantized/tile.h, likewise. */
HIDDEN int df_vnni_granted(void);
int df_vnni_granted(void) { return vnni_granted; }

/* The names of those that run here, with commas between. */
static void list_isas(char *text, size_t size) {
  const char *between = "";
  for (int i = 0; i < ISA_COUNT; i++)
    if (isas[i].runs()) {
      const int length = snprintf(text, size, "%s%s", between, isas[i].name);
      text += length;
      size -= (size_t)length;
      between = ", ";
    }
}

/* The instruction set to use; null when the environment names one that is not here. */
static const isa *choose_isa(void) {
  const char *wanted = getenv("DATAFLOW_CPU_ISA");
  const int any = !wanted || !*wanted;
  for (int i = 0; i < ISA_COUNT; i++)
    if ((any || !strcmp(wanted, isas[i].name)) && isas[i].runs())
      return &isas[i];
  char names[80];
  list_isas(names, sizeof names);
  snprintf(unavailable, sizeof unavailable,
           "DATAFLOW_CPU_ISA=%.20s is not an instruction set of this machine; it has %s",
           wanted ? wanted : "", names);
  return NULL;
}

/* The records of all families in one list; null when there is no memory for it. */
static const df_kernel **gather_kernels(const kernel_table *tables, int64_t *count) {
  int64_t total = 0;
  for (const kernel_table *table = tables; *table; table++)
    for (kernel_table kernel = *table; *kernel; kernel++)
      total++;
  DF_ASSUME(total > 0);
  const df_kernel **kernels = malloc((size_t)total * sizeof *kernels);
  if (!kernels)
    return NULL;
  *count = 0;
  for (const kernel_table *table = tables; *table; table++)
    for (kernel_table kernel = *table; *kernel; kernel++)
      kernels[(*count)++] = *kernel;
  return kernels;
}

/* The same answer at every call: the tables live as long as the process. */
EXPORT const df_plugin *df_plugin_entry(const df_host *host) {
  if (plugin.devices)
    return &plugin;
  const isa *chosen = choose_isa();
  amx_granted = chosen && !strcmp(chosen->name, "amx");
  vnni_granted = chosen && chosen->vnni && chosen->vnni();
  device = (df_device){.struct_size = sizeof device,
                       .flags = DF_MEMORY_HOST | DF_BODIES | DF_NESTED_BODIES,
                       .name = "cpu",
                       .alignment = ALIGNMENT,
                       .alloc = cpu_alloc,
                       .free = cpu_free,
                       .copy = cpu_copy,
                       .prepare = host->segment_prepare,
                       .run = host->segment_run,
                       .release = host->segment_release};
  if (chosen) {
    const df_kernel **kernels = gather_kernels(chosen->tables, &device.n_kernels);
    if (!kernels)
      return NULL;
    device.kernels = kernels;
  } else {
    device.unavailable = unavailable;
  }
  snprintf(version, sizeof version, "0.1.0 %s", chosen ? chosen->name : "(no instruction set)");
  plugin = (df_plugin){.struct_size = sizeof plugin,
                       .abi_major = DF_ABI_MAJOR,
                       .abi_minor = DF_ABI_MINOR,
                       .n_devices = 1,
                       .name = "cpu",
                       .version = version,
                       .devices = devices};
  return &plugin;
}
