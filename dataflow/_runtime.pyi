# Types of the native runtime: ffi and lib of a cffi module that is generated from the headers in native/.
# What the functions do stands in native/include/dataflow.h, native/runtime/runtime.h and offsets.h.

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, TypeVar

# A C value: cffi checks its type when it is used.
CData: TypeAlias = Any
_F = TypeVar("_F", bound=Callable[..., Any])

class _Ffi:
    NULL: ClassVar[CData]
    error: ClassVar[type[Exception]]
    def new(self, cdecl: str, init: Any = ...) -> CData: ...
    def cast(self, cdecl: str, source: Any) -> CData: ...
    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def buffer(self, cdata: CData, size: int = ...) -> Any: ...
    def from_buffer(self, *arguments: Any, require_writable: bool = ...) -> CData: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def sizeof(self, cdecl: Any) -> int: ...
    def offsetof(self, cdecl: str, *fields: str | int) -> int: ...
    def addressof(self, cdata: CData, *fields: str | int) -> CData: ...
    def typeof(self, cdecl: Any) -> Any: ...
    def gc(self, cdata: CData, destructor: Callable[[CData], object] | None, size: int = ...) -> CData: ...
    def release(self, cdata: CData) -> None: ...
    def new_handle(self, of: object) -> CData: ...
    def from_handle(self, handle: CData) -> Any: ...
    def callback(self, cdecl: str) -> Callable[[Callable[..., Any]], CData]: ...
    def def_extern(self, name: str = ..., error: Any = ..., onerror: Any = ...) -> Callable[[_F], _F]: ...

class _Lib:
    # dataflow.h
    DF_ABI_MAJOR: int
    DF_ABI_MINOR: int
    DF_ASYNCHRONOUS: int
    DF_BODIES: int
    DF_REPEAT: int
    DF_WHEN: int
    DF_WHILE: int
    DF_ATTR_ABSENT: int
    DF_ATTR_FLOAT: int
    DF_ATTR_FLOATS: int
    DF_ATTR_INT: int
    DF_ATTR_INTS: int
    DF_ATTR_STRING: int
    DF_BFLOAT16: int
    DF_BOOL: int
    DF_BF16: int
    DF_BF16X6: int
    DF_CANCELLED: int
    DF_COMPLEX128: int
    DF_COMPLEX64: int
    DF_COPY_TO_DEVICE: int
    DF_COPY_TO_HOST: int
    DF_COPY_WITHIN: int
    DF_DEVICE: int
    DF_EXACT: int
    DF_TF32: int
    DF_FLOAT16: int
    DF_FLOAT32: int
    DF_FLOAT4E2M1: int
    DF_FLOAT64: int
    DF_FLOAT8E4M3FN: int
    DF_FLOAT8E4M3FNUZ: int
    DF_FLOAT8E5M2: int
    DF_FLOAT8E5M2FNUZ: int
    DF_FLOAT8E8M0: int
    DF_HANDLES: int
    DF_PEERS: int
    DF_INT16: int
    DF_INT2: int
    DF_INT32: int
    DF_INT4: int
    DF_INT64: int
    DF_INT8: int
    DF_INTERNAL: int
    DF_INVALID: int
    DF_MEMORY_HOST: int
    DF_NONE: int
    DF_OK: int
    DF_OUT_OF_MEMORY: int
    DF_STRING: int
    DF_UINT16: int
    DF_UINT2: int
    DF_UINT32: int
    DF_UINT4: int
    DF_UINT64: int
    DF_UINT8: int
    DF_UNSUPPORTED: int
    # runtime.h
    def df_host_table(self) -> CData: ...
    def df_plan_offsets(
        self,
        count: int,
        buffers: CData,
        effort: int,
        offsets: CData,
        peak: CData,
        lower_bound: CData,
        error: CData,
        /,
    ) -> int: ...
    def df_set_log(self, callback: CData, /) -> None: ...
    df_log_python: CData  # for df_set_log, once ffi.def_extern() has given it a body
    def df_library_open(self, path: bytes, error: CData, /) -> CData: ...
    def df_accepts(self, kernel: CData, node: CData, /) -> CData: ...
    def df_prepare_kernels(self, count: int, kernels: CData, nodes: CData, prepared: CData, error: CData, /) -> int: ...
    def df_release_kernels(self, count: int, kernels: CData, prepared: CData, /) -> None: ...
    def df_segment_prepare(self, device: CData, segment: CData, prepared: CData, error: CData, /) -> int: ...
    def df_segment_run(self, device: CData, prepared: CData, run: CData, error: CData, /) -> int: ...
    def df_segment_release(self, device: CData, prepared: CData, /) -> None: ...
    DF_ITEM_COPY: int
    DF_ITEM_SEGMENT: int
    DF_ITEM_WAIT: int
    def df_run_items(self, items: CData, count: int, run: CData, failed: CData, error: CData, /) -> int: ...
    def df_parallel_for(self, task: CData, context: CData, count: int, threads: int, /) -> None: ...
    def df_pool_workers(self) -> int: ...
    def df_interrupt_begin(self, cancel: CData, /) -> int: ...
    def df_interrupt_end(self) -> None: ...
    DF_EXPIRED: int
    def df_deadline_begin(self, deadline: CData, cancel: CData, nanoseconds: int, /) -> int: ...
    def df_deadline_end(self, deadline: CData, /) -> None: ...
    def df_host_alloc(self, size: int, /) -> CData: ...
    def df_host_free(self, address: CData, size: int, /) -> None: ...
    def df_allocated_bytes(self) -> int: ...
    def df_allocation_count(self) -> int: ...

ffi: _Ffi
lib: _Lib
