/* shape/scatter.cu: reading and writing by tensors of indices: gather_elements, scatter_elements,
 * gather_nd, scatter_nd.
 *
 * Where several entries name one element, the last one writes it: a first pass finds it. Reductions
 * sort the entries by what they name and then by their number, and a thread joins those of one
 * element in that order: the bits do not depend on timing.
 */
#include "kernels/scatter.h"
#include "reduce/sort.h"
#include "shape/copy.h"

struct entries : df_entries {
  df_fault *fault;
  int32_t step; /* of the call */

  /* The element of the data where entry |i| begins. */
  __device__ int64_t offset(int64_t i) const {
    int64_t found = df_entries_offset(this, i);
    for (int32_t k = 0; k < n; k++) {
      const int64_t index = df_entries_index(this, i * n + k);
      found += df_checked_index(index, limits[first + k], fault, step) * strides[first + k];
    }
    return found;
  }
};

static entries by_element(const df_call *call) {
  return {df_entries_by_element(call), call->fault, call->step};
}

static entries by_coordinates(const df_call *call) {
  return {df_entries_by_coordinates(call), call->fault, call->step};
}

/* Entries need an element to name. */
static df_status check(const df_call *call, const entries &e) {
  for (int32_t k = 0; k < e.n && e.count > 0; k++)
    if (e.limits[e.first + k] == 0)
      return df_fail(call, DF_INVALID, "axis %d of the data has no elements to choose from",
                     e.first + k);
  return DF_OK;
}

/* ---- Gathers -------------------------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK)
    gather_entries(T *y, const T *x, const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= e.count * e.row)
    return;
  const int64_t entry = i / e.row;
  y[i] = x[e.offset(entry) + (i - entry * e.row)];
}

static df_status gather(const df_call *call, const entries &e) {
  const df_status status = check(call, e);
  if (status || e.count * e.row == 0)
    return status;
  return df_by_item(df_item_bytes(call->outputs[0]->dtype), [&]<typename T>() {
    return DF_LAUNCH(call, (gather_entries<T>), df_blocks(e.count * e.row, DF_BLOCK), DF_BLOCK, 0,
                     df_out<T>(call, 0), df_in<const T>(call, 0), e);
  });
}

static df_status gather_elements_run(const df_call *call) { return gather(call, by_element(call)); }
static df_status gather_nd_run(const df_call *call) { return gather(call, by_coordinates(call)); }

/* ---- Scatters ------------------------------------------------------------------------------- */

/* last[row] = the largest number of an entry that names it, plus one. Rows begin at multiples of
 * e.row. */
__global__ void __launch_bounds__(DF_BLOCK)
    scatter_find(unsigned long long *last, const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < e.count)
    atomicMax(&last[e.offset(i) / e.row], static_cast<unsigned long long>(i + 1));
}

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK)
    scatter_write(T *y, const T *updates, const unsigned long long *last,
                  const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= e.count * e.row)
    return;
  const int64_t entry = i / e.row, offset = e.offset(entry);
  if (last[offset / e.row] == static_cast<unsigned long long>(entry + 1))
    y[offset + (i - entry * e.row)] = updates[i];
}

/* ---- Scatters that reduce ------------------------------------------------------------------- */

enum { AHEAD = 8 }; /* updates of an element that are loaded together */

/* An entry's key has its offset in front and then its number, counted from the end: keys fall. */
struct sorted_entries {
  entries e;
  uint64_t *keys;
  int64_t lines, padded;
  int32_t bits; /* of a number */

  __device__ uint64_t mask() const { return (uint64_t{1} << bits) - 1; }
  __device__ uint64_t key(int64_t, int64_t i) const {
    if (i >= e.count)
      return 0;
    return static_cast<uint64_t>(e.offset(i)) << bits | (mask() - static_cast<uint64_t>(i));
  }
  __device__ void put(int64_t, int64_t i, uint64_t key) const { keys[i] = key; }

  __device__ int64_t offset(int64_t at) const { return static_cast<int64_t>(keys[at] >> bits); }
  __device__ int64_t entry(int64_t at) const {
    return static_cast<int64_t>(mask() - (keys[at] & mask()));
  }
};

/* The first of the keys with one offset joins the updates of all of them. */
__global__ void __launch_bounds__(DF_BLOCK)
    scatter_combine(float *y, const float *updates, int32_t reduction,
                    const __grid_constant__ sorted_entries s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t count = s.e.count, width = s.e.row;
  if (i >= count * width)
    return;
  const int64_t begin = i / width, column = i - begin * width, offset = s.offset(begin);
  if (begin > 0 && s.offset(begin - 1) == offset)
    return;
  float value = y[offset + column];
  bool same = true;
  for (int64_t base = begin; same; base += AHEAD) {
    float update[AHEAD];
    int found = 0;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      same = base + k < count && s.offset(base + k) == offset;
      update[k] = same ? updates[s.entry(base + k) * width + column] : 0.0f;
      found += same;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (k < found)
        value = df_scatter_join(value, update[k], reduction);
  }
  y[offset + column] = value;
}

/* Bits that count to |n|. */
static int32_t bits_of(int64_t n) {
  int32_t bits = 1;
  while (n >> bits)
    bits++;
  return bits;
}

static df_status combine(const df_call *call, const entries &e, int32_t reduction) {
  const sorted_entries s{e, static_cast<uint64_t *>(call->workspace), 1, df_sort_padded(e.count),
                         bits_of(e.count)};
  const df_status status = df_sort_lines(call, s);
  return status ? status
                : DF_LAUNCH(call, scatter_combine, df_blocks(e.count * e.row, DF_BLOCK), DF_BLOCK,
                            0, df_out<float>(call, 0), df_in<const float>(call, 2), reduction, s);
}

/* ---- Running scatters ----------------------------------------------------------------------- */

/* A number per row of the data, which has |row| elements, or a key per entry. */
static df_status prepare_rows(const df_node *node, int64_t row, int64_t count, df_prepared *out) {
  if (df_scatter_reduction(node->attributes, node->n_attributes) != DF_SCATTER_REPLACE)
    out->workspace = df_sort_padded(count) * static_cast<int64_t>(sizeof(uint64_t));
  else if (row > 0)
    out->workspace =
        df_operand_elements(node->inputs[0]) / row * static_cast<int64_t>(sizeof(int64_t));
  return DF_OK;
}

static df_status prepare_elements(const df_node *node, df_prepared *out, df_error *) {
  return prepare_rows(node, 1, df_operand_elements(node->inputs[1]), out);
}

static df_status prepare_nd(const df_node *node, df_prepared *out, df_error *) {
  const df_operand *data = node->inputs[0], *indices = node->inputs[1];
  const int32_t first = static_cast<int32_t>(df_attr_int(node, DF_SCATTER_ND_BATCH_DIMS));
  const int32_t n = static_cast<int32_t>(indices->shape[indices->rank - 1]);
  return prepare_rows(node, df_product(data->shape, first + n, data->rank),
                      df_product(indices->shape, 0, indices->rank - 1), out);
}

static df_status scatter(const df_call *call, const entries &e) {
  const df_tensor *data = call->inputs[0], *y = call->outputs[0];
  const int64_t elements = df_elements(y), item = df_item_bytes(y->dtype);
  const cudaStream_t stream = static_cast<cudaStream_t>(call->stream);
  df_status status = check(call, e);
  if (status || elements == 0)
    return status;
  cudaError_t failed = cudaSuccess;
  if (y->data != data->data)
    failed = cudaMemcpyAsync(y->data, data->data, static_cast<size_t>(elements * item),
                             cudaMemcpyDeviceToDevice, stream);
  const int64_t n = e.count * e.row;
  const int32_t reduction = df_scatter_reduction(call->attributes, call->n_attributes);
  unsigned long long *last = static_cast<unsigned long long *>(call->workspace);
  if (!failed && n > 0 && reduction == DF_SCATTER_REPLACE)
    failed = cudaMemsetAsync(last, 0, static_cast<size_t>(elements / e.row) * sizeof *last, stream);
  if (failed)
    return df_fail(call, DF_DEVICE, "scatter: %s", cudaGetErrorString(failed));
  if (n == 0)
    return DF_OK;
  if (reduction != DF_SCATTER_REPLACE)
    return combine(call, e, reduction);
  status = DF_LAUNCH(call, scatter_find, df_blocks(e.count, DF_BLOCK), DF_BLOCK, 0, last, e);
  if (status)
    return status;
  return df_by_item(item, [&]<typename T>() {
    return DF_LAUNCH(call, (scatter_write<T>), df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                     df_out<T>(call, 0), df_in<const T>(call, 2), last, e);
  });
}

static df_status scatter_elements_run(const df_call *call) {
  return scatter(call, by_element(call));
}
static df_status scatter_nd_run(const df_call *call) { return scatter(call, by_coordinates(call)); }

/* ---- Records -------------------------------------------------------------------------------- */

static const char *accepts_scatter(const df_node *node) {
  if (node->inputs[0]->dtype != DF_FLOAT32 &&
      df_scatter_reduction(node->attributes, node->n_attributes) != DF_SCATTER_REPLACE)
    return "only float32 elements are reduced";
  if (bits_of(df_operand_elements(node->inputs[0])) +
          bits_of(df_operand_elements(node->inputs[1])) >
      64)
    return "an element and an entry of so many don't fit into 64 bits";
  return df_entries_accepts(node);
}

#define GATHER(op, function)                                                                       \
  DF_CUDA_KERNEL(op, "any", "any,i32|i64->any", nullptr, .accepts = df_entries_accepts,            \
                 .run = function, .capturable = 1)
#define SCATTER(op, prepares, function)                                                            \
  DF_CUDA_KERNEL(op, "any", "any,i32|i64,any->any", "0<0", .accepts = accepts_scatter,             \
                 .prepare = prepares, .run = function, .capturable = 1)
static const df_kernel records[] = {
    GATHER("gather_elements", gather_elements_run), GATHER("gather_nd", gather_nd_run),
    SCATTER("scatter_elements", prepare_elements, scatter_elements_run),
    SCATTER("scatter_nd", prepare_nd, scatter_nd_run)};
DF_CUDA_FAMILY(scatter, records);
