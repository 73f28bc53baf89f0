from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dataflow as df
from dataflow.ir.dims import Dim, Size, at_least, bind_size
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


def test_sizes_behind_convolutions_are_short_and_not_negative() -> None:
    height, width, batch = Dim("height"), Dim("width"), Dim("batch")

    def halved(size: Size, times: int) -> Size:
        return halved((size + 2 - 3) // 2 + 1, times - 1) if times else size

    assert halved(height, 1) == (height + 1) // 2
    assert halved(height, 3) == (height + 7) // 8
    assert (2 * height + 3) // 2 == height + 1
    assert (height // 2) // 3 == height // 6
    plane = halved(height, 3) * halved(width, 3)
    assert at_least(plane) == 0
    assert at_least((height - 3) // 2) == -2
    assert (64 * batch * plane) // (16 * batch * plane) == 4
    assert (batch * (height + 1) * (width + 2)) // (batch * width + 2 * batch) == height + 1
    assert str((height * height + 3) // (height + 1)) == "(3 + height*height)//(1 + height)"


_SIZES = st.recursive(
    st.integers(-5, 9) | st.sampled_from(["a", "b", "c"]),
    lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner) | st.tuples(st.just("/"), inner, st.integers(1, 8)),
    max_leaves=8,
)


@given(_SIZES, _SIZES, st.fixed_dictionaries({name: st.integers(0, 40) for name in "abc"}))
def test_expressions_are_what_they_are_of_numbers(left: Any, right: Any, sizes: dict[str, int]) -> None:
    def computed(tree: Any, leaf: Callable[[str], Any]) -> Any:
        if not isinstance(tree, tuple):
            return leaf(tree) if isinstance(tree, str) else tree
        a, b = (computed(operand, leaf) for operand in tree[1:])
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a // b}[tree[0]]()

    numbers = [computed(tree, lambda name: sizes[name]) for tree in (left, right)]
    named = [computed(tree, Dim) for tree in (left, right)]
    for number, size in zip(numbers, named, strict=True):
        assert bind_size(size, sizes) == number
        least = at_least(size)
        assert least is None or least <= number
    if numbers[1] and named[1] != 0:
        assert bind_size(named[0] // named[1], sizes) == numbers[0] // numbers[1]


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


def test_an_element_type_is_one_object_behind_pickling_and_copying_too() -> None:
    for one in DTYPES:
        assert pickle.loads(pickle.dumps(one)) is one
        assert copy.deepcopy(one) is one
