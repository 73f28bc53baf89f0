"""Operators of Python beside arithmetic, and ``.T``, against NumPy's own."""

import operator

import numpy as np
import pytest

from tests.ops.operated import agrees, refused

CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_rests_and_magnitudes_are_pythons():
    random = np.random.default_rng(2)
    x, y = (random.uniform(-3, 3, (3, 4)).astype(np.float32) for _ in range(2))
    a, b = np.array([[7, -7, 7, -7]], np.int32), np.array([3, 3, -3, -3], np.int32)
    for pair in ((x, y), (a, b)):
        agrees(operator.mod, *pair)
        agrees(lambda x: x % 2, pair[0])
        agrees(lambda x: 5 % x, pair[1])
        agrees(abs, pair[0])
    agrees(lambda x: y % x, x)
    refused(lambda x: x % 2.5, "mod of 'x', which is int32.*what int32 can hold", dtype=np.int32)
    refused(abs, "abs: expected numbers, got bool", dtype=np.bool_)


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_connectives_of_bools_and_of_bits(function):
    flags = np.array([[True, True, False, False]]), np.array([[True], [False]])
    bits = np.array([0b1100, -1, 7], np.int16), np.array([[0b1010], [3]], np.int16)
    for a, b in (flags, bits):
        agrees(function, a, b)
        agrees(lambda x, b=b: function(x, b), a)
        agrees(lambda x, b=b: function(b, x), a)
        agrees(operator.invert, a)
    agrees(lambda x: function(x, True), flags[0])
    agrees(lambda x: function(6, x), bits[0])
    refused(lambda x: function(x, x), "bitwise_.*expected integers, got float32")
    refused(lambda x: function(x, 2), "what bool can hold", dtype=np.bool_)
    refused(lambda x: function(x, True), "a bool of Python is no number here", dtype=np.int64)
    refused(lambda x: function(x, 0.5), "what int64 can hold", dtype=np.int64)
    refused(operator.invert, "bitwise_not: expected integers, got float32")


def test_t_is_the_transpose():
    agrees(lambda x: x.T, CUBE)
    agrees(lambda x: x.T @ x, CUBE[0])
    agrees(lambda x: x.T, CUBE[0, 0])
