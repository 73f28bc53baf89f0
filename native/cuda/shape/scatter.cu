/* shape/scatter.cu: reading and writing by tensors of indices: gather_elements, scatter_elements,
 * gather_nd, scatter_nd.
 *
 * Each is a list of entries, and an entry names a row of |row| neighbouring elements of the data: a
 * single one, or what is left behind the coordinates. Where several entries name one place, the
 * last one writes it: a first pass finds it. Reductions are by atomics: the order of additions, and
 * with it the last bits, may differ from run to run where indices repeat.
 */
#include "shape/copy.h"

enum { MOST_AXES = 12 };

struct entries {
  const void *indices;
  df_fault *fault;
  int64_t count;               /* of entries */
  int64_t row;                 /* elements that an entry names */
  int32_t dtype;               /* of the indices */
  int32_t step;                /* of the call */
  int32_t axes;                /* of the counter */
  int32_t axis;                /* the one that is replaced; -1 for coordinates */
  int32_t shared, coordinates; /* of the data's axes */
  int64_t sizes[MOST_AXES];    /* of the counter */
  int64_t strides[MOST_AXES];  /* of the data, in elements */
  int64_t limits[MOST_AXES];   /* sizes of the data */

  __device__ int64_t index(int64_t i, int32_t axis_) const {
    const int64_t found = dtype == DF_INT32 ? static_cast<const int32_t *>(indices)[i]
                                            : static_cast<const int64_t *>(indices)[i];
    return df_checked_index(found, limits[axis_], fault, step);
  }

  /* The element of the data where entry |i| begins. */
  __device__ int64_t place(int64_t i) const {
    int64_t offset = 0, rest = i;
    for (int32_t at = axes - 1; at >= 0; at--) {
      const int64_t own = rest % sizes[at];
      rest /= sizes[at];
      if (at == axis)
        offset += index(i, at) * strides[at];
      else if (axis >= 0 || at < shared)
        offset += own * strides[at];
    }
    for (int32_t k = 0; k < coordinates; k++)
      offset += index(i * coordinates + k, shared + k) * strides[shared + k];
    return offset;
  }
};

static entries layout(const df_call *call) {
  const df_tensor *data = &call->inputs[0], *indices = &call->inputs[1];
  entries e{};
  e.indices = indices->data;
  e.fault = call->fault;
  e.dtype = indices->dtype;
  e.step = call->step;
  int64_t stride = 1;
  for (int32_t i = data->rank - 1; i >= 0; i--) {
    e.strides[i] = stride;
    e.limits[i] = data->shape[i];
    stride *= data->shape[i];
  }
  for (int32_t i = 0; i < indices->rank; i++)
    e.sizes[i] = indices->shape[i];
  return e;
}

static entries by_element(const df_call *call) {
  entries e = layout(call);
  e.count = df_elements(&call->inputs[1]);
  e.row = 1;
  e.axes = call->inputs[0].rank;
  e.axis = static_cast<int32_t>(df_axis(call, 0, 0, e.axes));
  return e;
}

static entries by_coordinates(const df_call *call) {
  const df_tensor *data = &call->inputs[0], *indices = &call->inputs[1];
  entries e = layout(call);
  e.axis = -1;
  e.axes = indices->rank - 1;
  e.shared = static_cast<int32_t>(df_attr_int(call, 0, 0));
  e.coordinates = static_cast<int32_t>(indices->shape[e.axes]);
  e.count = df_product(indices->shape, 0, e.axes);
  e.row = df_product(data->shape, e.shared + e.coordinates, data->rank);
  return e;
}

/* Entries need a place to name. */
static df_status check(const df_call *call, const entries &e) {
  const int32_t first = e.axis >= 0 ? e.axis : e.shared;
  const int32_t n = e.axis >= 0 ? 1 : e.coordinates;
  for (int32_t k = 0; k < n && e.count > 0; k++)
    if (e.limits[first + k] == 0)
      return df_fail(call, DF_INVALID, "axis %d of the data has no elements to choose from",
                     first + k);
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
  y[i] = x[e.place(entry) + (i - entry * e.row)];
}

static df_status gather(const df_call *call, const entries &e) {
  const df_status status = check(call, e);
  if (status || e.count * e.row == 0)
    return status;
  return df_by_item(df_item_bytes(call->outputs[0].dtype), [&]<typename T>() {
    return DF_LAUNCH(call, (gather_entries<T>), df_blocks(e.count * e.row, DF_BLOCK), DF_BLOCK, 0,
                     df_out<T>(call, 0), df_in<const T>(call, 0), e);
  });
}

static df_status gather_elements_run(const df_call *call) { return gather(call, by_element(call)); }
static df_status gather_nd_run(const df_call *call) { return gather(call, by_coordinates(call)); }

/* ---- Scatters ------------------------------------------------------------------------------- */

/* last[place] = the largest number of an entry that names it, plus one. Rows begin at multiples of
 * e.row. */
__global__ void __launch_bounds__(DF_BLOCK)
    scatter_find(unsigned long long *last, const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < e.count)
    atomicMax(&last[e.place(i) / e.row], static_cast<unsigned long long>(i + 1));
}

template <typename T>
__global__ void __launch_bounds__(DF_BLOCK)
    scatter_write(T *y, const T *updates, const unsigned long long *last,
                  const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= e.count * e.row)
    return;
  const int64_t entry = i / e.row, place = e.place(entry);
  if (last[place / e.row] == static_cast<unsigned long long>(entry + 1))
    y[place + (i - entry * e.row)] = updates[i];
}

/* The reduction's second letter tells them apart: none, add, mul, max, min. NaN wins. */
static __device__ __forceinline__ float combined(float a, float b, char how) {
  switch (how) {
  case 'd':
    return a + b;
  case 'u':
    return a * b;
  case 'a':
    return a > b || a != a ? a : b;
  default:
    return a < b || a != a ? a : b;
  }
}

__global__ void __launch_bounds__(DF_BLOCK)
    scatter_combine(float *y, const float *updates, char how, const __grid_constant__ entries e) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= e.count * e.row)
    return;
  const int64_t entry = i / e.row;
  float *at = y + e.place(entry) + (i - entry * e.row);
  if (how == 'd') {
    atomicAdd(at, updates[i]);
    return;
  }
  int seen = __float_as_int(*at), expected;
  do {
    expected = seen;
    const float next = combined(__int_as_float(expected), updates[i], how);
    seen = atomicCAS(reinterpret_cast<int *>(at), expected, __float_as_int(next));
  } while (seen != expected);
}

static char reduction(const df_attribute *attributes, int32_t count) {
  return count > 1 && attributes[1].kind == DF_ATTR_STRING ? attributes[1].s[1] : 'o';
}

/* A number per row of the data. */
static df_status prepare_scatter(const df_node *node, df_prepared *out, df_error *) {
  if (reduction(node->attributes, node->n_attributes) == 'o')
    out->workspace = df_operand_elements(&node->inputs[0]) * static_cast<int64_t>(sizeof(int64_t));
  return DF_OK;
}

static df_status scatter(const df_call *call, const entries &e) {
  const df_tensor *data = &call->inputs[0], *y = &call->outputs[0];
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
  const char how = reduction(call->attributes, call->n_attributes);
  unsigned long long *last = static_cast<unsigned long long *>(call->workspace);
  if (!failed && n > 0 && how == 'o')
    failed = cudaMemsetAsync(last, 0, static_cast<size_t>(elements / e.row) * sizeof *last, stream);
  if (failed)
    return df_fail(call, DF_DEVICE, "scatter: %s", cudaGetErrorString(failed));
  if (n == 0)
    return DF_OK;
  if (how != 'o')
    return DF_LAUNCH(call, scatter_combine, df_blocks(n, DF_BLOCK), DF_BLOCK, 0,
                     df_out<float>(call, 0), df_in<const float>(call, 2), how, e);
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

static const char *accepts(const df_node *node) {
  if (node->inputs[0].rank > MOST_AXES || node->inputs[1].rank > MOST_AXES)
    return "more than 12 axes are not supported";
  return df_accepts_whole_bytes(node);
}

static const char *accepts_scatter(const df_node *node) {
  if (node->inputs[0].dtype != DF_FLOAT32 && reduction(node->attributes, node->n_attributes) != 'o')
    return "only float32 elements are reduced";
  return accepts(node);
}

#define GATHER(op, function)                                                                       \
  DF_CUDA_KERNEL(op, "any", "any,i32|i64->any", nullptr, .accepts = accepts, .run = function,      \
                 .capturable = 1)
#define SCATTER(op, function)                                                                      \
  DF_CUDA_KERNEL(op, "any", "any,i32|i64,any->any", "0<0", .accepts = accepts_scatter,             \
                 .prepare = prepare_scatter, .run = function, .capturable = 1)
static const df_kernel records[] = {
    GATHER("gather_elements", gather_elements_run), GATHER("gather_nd", gather_nd_run),
    SCATTER("scatter_elements", scatter_elements_run), SCATTER("scatter_nd", scatter_nd_run)};
DF_CUDA_FAMILY(scatter, records);
