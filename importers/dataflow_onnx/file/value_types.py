"""The types that a file gives to values: dtypes, tensors, and sequences and optionals of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import onnx  # noqa: TID251 - the types are those of protobuf

from dataflow import Dim, DType, TensorType, float32, float64, int64, string
from dataflow.errors import ModelError
from dataflow.plugin import DTYPES, MOST_AXES, Form, Size

_ANY = -1  # a size that exporters write where they know none
_UNNAMED = ("", "?")  # names of axes that stand for no name
_ONNX_NAMES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2", "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
}  # fmt: skip
_BY_NAME = {d.name: d for d in DTYPES}
DTYPE_OF: dict[int, DType] = {
    number: _BY_NAME[_ONNX_NAMES.get(name, name.lower())]
    for name, number in onnx.TensorProto.DataType.items()
    if _ONNX_NAMES.get(name, name.lower()) in _BY_NAME
}
CODE_OF = {dtype: number for number, dtype in DTYPE_OF.items()}


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type as an attribute.

    Attributes:
        form: None for a tensor.
    """

    form: Form | None


def form_of(type_: onnx.TypeProto) -> Form | None:
    """What a value is; None for a tensor, and for what is not supported, e.g. a map."""
    if type_.WhichOneof("value") == "tensor_type":
        return None
    optional = type_.WhichOneof("value") == "optional_type"
    inner = type_.optional_type.elem_type if optional else type_
    sequence = inner.WhichOneof("value") == "sequence_type"
    inner = inner.sequence_type.elem_type if sequence else inner
    if inner.WhichOneof("value") != "tensor_type":
        return None
    dtype = DTYPE_OF.get(inner.tensor_type.elem_type)
    return None if dtype is None else Form(dtype, sequence, optional)


def declared_type(value: onnx.ValueInfoProto) -> TensorType | None:
    """The type that a file declares for an output, where it is complete."""
    tensor = value.type.tensor_type
    dtype = DTYPE_OF.get(tensor.elem_type)
    dims = tensor.shape.dim
    if dtype is None or not tensor.HasField("shape") or len(dims) > MOST_AXES:
        return None
    known = [int(dim.dim_value) if dim.HasField("dim_value") and 0 <= dim.dim_value < 1 << 40 else None for dim in dims]
    shape = tuple(Dim(f"{value.name}.{axis}") if size is None else size for axis, size in enumerate(known))
    return TensorType(dtype, shape)


def form_of_output(type_: onnx.TypeProto) -> Form | None:
    """As ``form_of``, with the dtype of a tensor whose rank isn't declared."""
    dtype = DTYPE_OF.get(type_.tensor_type.elem_type)
    if dtype is None or type_.WhichOneof("value") != "tensor_type" or type_.tensor_type.HasField("shape"):
        return form_of(type_)
    return Form(dtype, sequence=False, optional=False)


def type_in_body(value: onnx.ValueInfoProto) -> TensorType | None:
    """The type of an input of a body; None where it has that of what it is given.

    Raises:
        ModelError: it can't be; the text continues a sentence about the input.
    """
    complete = value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.HasField("shape")
    return type_of_input(value) if complete else None


def type_of_input(value: onnx.ValueInfoProto) -> TensorType:
    """The type of an input of the main graph; of a map, a sequence or an optional, what stands for it.

    Raises:
        ModelError: it can't be; the text continues a sentence about the input.
    """
    form = form_of(value.type)
    if form is not None:
        return form.placeholder(value.name)
    kind = value.type.WhichOneof("value")
    if kind == "map_type":
        return _rows_of_maps(value.name, value.type.map_type)
    if kind != "tensor_type":
        kind = f"{kind} of something else" if kind in ("sequence_type", "optional_type") else kind
        raise ModelError(f"is a {kind or 'value without type'}; expected a tensor, a sequence or an optional of them")
    tensor = value.type.tensor_type
    dtype = DTYPE_OF.get(tensor.elem_type)
    if dtype is None:
        raise ModelError(f"has element type {tensor.elem_type}, which is not known")
    if not tensor.HasField("shape"):
        raise ModelError("has no shape; give it one with named dims")
    if len(tensor.shape.dim) > MOST_AXES:
        raise ModelError(f"has {len(tensor.shape.dim)} axes; at most {MOST_AXES} are supported")
    shape: list[Size] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value != _ANY:
            if not 0 <= dim.dim_value < 1 << 40:
                raise ModelError(f"has size {dim.dim_value} on axis {axis}")
            shape.append(int(dim.dim_value))
        else:
            given = dim.dim_param
            if type(given) is not str:  # protobuf gives bytes where it is no UTF-8
                raise ModelError(f"has a name of axis {axis} that is no text: {given!r:.200}; names are UTF-8")
            shape.append(Dim(f"{value.name}_{axis}" if given in _UNNAMED else given))
    return TensorType(dtype, tuple(shape))


def _rows_of_maps(name: str, type_: onnx.TypeProto.Map) -> TensorType:
    """A row for each map; what its columns are, the nodes that read it say."""
    key, element = DTYPE_OF.get(type_.key_type), DTYPE_OF.get(type_.value_type.tensor_type.elem_type)
    if element is None or key not in (int64, string) or element not in (float32, float64, int64, string):
        raise ModelError(
            f"is a map from {key} to {element}; expected keys of int64 or string, and float32, float64, int64 or string"
        )
    return TensorType(element, (Dim(f"{name}_rows"), Dim(f"{name}_elements")))
