from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataflow as df
from dataflow.ir.dims import Dim
from dataflow.ir.types import BY_CODE, DTYPES, TensorType, contiguous_strides, dtype


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 9), st.integers(0, 9))
def test_dim_arithmetic_agrees_with_ints(a: int, b: int, k: int, c: int) -> None:
    x, y = Dim("a"), Dim("b")
    sizes = {"a": a, "b": b}

    def bound(size: object) -> object:
        return size.bind(sizes) if isinstance(size, Dim) else size

    assert bound((x + c) * y - 2 * x) == (a + c) * b - 2 * a
    assert bound((x + c - k) // k + 1) == (a + c - k) // k + 1
    assert bound((x * y * k) // (y * k)) == a
    assert bound(x % k) == a % k
    assert bound(k - x) == k - a


def test_equal_expressions_are_equal_and_cancel() -> None:
    x = Dim("n")
    assert (x + 2) * 3 - 3 * x == 6
    assert 2 * (x + 1) == x + x + 2
    assert hash(2 * (x + 1)) == hash(x + x + 2)
    assert (x * 784) // 784 == x
    assert Dim("n") != Dim("m")


def test_unbound_size_is_refused_with_its_name() -> None:
    with pytest.raises(df.InputError, match="batch"):
        _ = TensorType(df.float32, (Dim("batch"), 3)).elements


def test_overflowing_shape_is_refused() -> None:
    with pytest.raises(df.InputError, match="more than can be addressed"):
        _ = TensorType(df.float32, (1 << 40, 1 << 40)).elements


def test_every_dtype_has_a_numpy_dtype_of_its_size() -> None:
    for each in DTYPES:
        assert BY_CODE[each.code] is each
        if each.kind != "s" and each.bits >= 8:
            assert each.numpy.itemsize * 8 == each.bits
            assert dtype(each.numpy) is each


@given(st.lists(st.integers(1, 5), max_size=4))
def test_contiguous_strides_are_numpys(shape: list[int]) -> None:
    array = np.zeros(shape, np.int8)
    assert contiguous_strides(tuple(shape)) == array.strides
