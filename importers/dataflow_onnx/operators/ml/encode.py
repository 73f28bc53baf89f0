"""Converters of encoders: values that stand for others are found among keys, and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, float32, int64, ops, string
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...file.records import Array
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN

T = Tensor
operator = Collector(DOMAIN)


def _looked_up(c: Importer, x: Value, keys: Array, values: Array) -> Any:
    """For each element of x the value of the key that it is; the last value, which has no key, where it is none.

    Raises:
        ModelError: keys and values don't fit, or a key has two values.
    """
    if keys.ndim != 1 or values.ndim != 1 or len(keys) + 1 != len(values):
        raise ModelError(f"it has {keys.size} keys for {max(values.size - 1, 0)} values; expected lists of one length")
    if keys.dtype != x.type.dtype.numpy:
        raise ModelError(f"its input is {x.type}, its keys are {keys.dtype}; expected one type")
    if keys.dtype == object:
        index = {key: i for i, key in reversed(list(enumerate(keys)))}
        ordered = np.array(sorted(index), object)
        first = np.array([index[key] for key in ordered], np.int64)
    else:
        ordered, first = np.unique(keys, return_index=True)
        index = dict(zip(ordered.tolist(), first.tolist(), strict=True))
    if len(ordered) < len(keys) and any(
        values[i] != values[index[key]] for i, key in enumerate(keys.tolist()) if key in index
    ):
        raise ModelError("a key stands for two values")
    table = values[[*first.tolist(), len(keys)]]
    return ops.gather(c.builder.constant(table), ops.find(x, c.builder.constant(ordered)), axis=0)


def _array(values: Sequence[Any], kind: Any) -> Array:
    return np.array(values, kind)


@operator("LabelEncoder")
def LabelEncoder_1(
    c: Importer,
    x: T,
    *,
    classes_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    return _mapped(c, x, range(len(classes_strings)), classes_strings, default_int64, default_string)


@operator("CategoryMapper")
def CategoryMapper(
    c: Importer,
    x: T,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Any:
    return _mapped(c, x, cats_int64s, cats_strings, default_int64, default_string)


def _mapped(
    c: Importer, x: T, integers: Sequence[int], strings: Sequence[str], integer_default: int, string_default: str
) -> Any:
    """Strings to integers, or integers to strings."""
    value = c.value(x)
    if value.type.dtype == string:
        return _looked_up(c, value, _array(strings, object), _array([*integers, integer_default], np.int64))
    value = cast_to(value, int64)
    return _looked_up(c, value, _array(integers, np.int64), _array([*strings, string_default], object))


@operator("LabelEncoder", 2)
def LabelEncoder(
    c: Importer,
    x: T,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] = (),
    keys_int64s: Sequence[int] = (),
    keys_strings: Sequence[str] = (),
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] = (),
    values_int64s: Sequence[int] = (),
    values_strings: Sequence[str] = (),
    values_tensor: Array | None = None,
) -> Any:
    given_keys = [(keys_floats, np.float32), (keys_int64s, np.int64), (keys_strings, object)]
    keys = [_array(given, kind) for given, kind in given_keys if given]
    keys += [] if keys_tensor is None else [keys_tensor.reshape(-1)]
    given_values = [
        (values_floats, default_float, np.float32),
        (values_int64s, default_int64, np.int64),
        (values_strings, default_string, object),
    ]
    values = [_array([*given, default], kind) for given, default, kind in given_values if given]
    if values_tensor is not None:
        values.append(np.append(values_tensor.reshape(-1), _default(values_tensor, default_tensor)))
    if len(keys) != 1 or len(values) != 1:
        raise ModelError(f"it has {len(keys)} kinds of keys and {len(values)} of values; expected one of each")
    return _looked_up(c, c.value(x), keys[0], values[0])


def _default(values: Array, given: Array | None) -> Array:
    """The value for what is no key, as an array of one element: that of the file, else what the standard says."""
    if given is not None:
        if given.size != 1 or given.dtype != values.dtype:
            raise ModelError(f"default_tensor is {given.dtype}{list(given.shape)}; expected one {values.dtype}")
        return given.reshape(1)
    other = "_Unused" if values.dtype == object else -1 if values.dtype.kind in "iu" else -0.0
    return np.array([other], values.dtype)


@operator("OneHotEncoder")
def OneHotEncoder(
    c: Importer, x: T, *, cats_int64s: Sequence[int] = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> Any:
    value = c.value(x)
    words = value.type.dtype == string
    value = value if words else cast_to(value, int64)
    keys = _array(cats_strings, object) if words else _array(cats_int64s, np.int64)
    if not len(keys) or len({*keys.tolist()}) < len(keys):
        raise ModelError(f"it has {len(keys)} categories for {value.type}; expected some, all of them different")
    order = np.argsort(keys)
    found = ops.find(value, c.builder.constant(keys[order]))
    # Without an entry behind the last, gathering refuses what is no category.
    columns = np.append(order, len(keys)) if zeros else order
    index = ops.gather(c.builder.constant(columns.astype(np.int64)), found, axis=0)
    return ops.one_hot(index, depth=len(keys), axis=-1, dtype=float32)
