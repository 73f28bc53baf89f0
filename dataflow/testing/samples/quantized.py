"""Samples of quantized integers. Scales are powers of two: float32 and float64 then round alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ir.types import DType, float32, int8, int32, uint8
from ..sample import Operand, Sample, i, x


def _fixed(value: Any, dtype: DType) -> Operand:
    array = np.asarray(value)
    return Operand(array.shape, dtype, value=array)


def _bytes(*shape: int, dtype: DType) -> Operand:
    return i(*shape, low=0 if dtype == uint8 else -128, high=256 if dtype == uint8 else 128, dtype=dtype)


def _scales(count: int | None, low: int, high: int) -> Operand:
    """Powers of two, from 2^low on."""
    exponents = np.int64(low) if count is None else low + np.arange(count) % (high - low)
    return _fixed(2.0**exponents, float32)


def _zeros(count: int | None, dtype: DType) -> Operand:
    low = 0 if dtype == uint8 else -128
    return _fixed(np.int64(low + 100) if count is None else low + np.arange(count) * 37 % 256, dtype)


def _conversions() -> list[Sample]:
    rows = []
    for dtype in (int8, uint8):
        for shape, axis in (
            ((3, 5), None),
            ((2, 70, 3), 1),
            ((70001,), None),
            ((), None),
            ((4, 33), 1),
            ((0, 3), None),
        ):
            count = None if axis is None else shape[axis]
            attributes = {"axis": axis or 0}
            scale, zero = _scales(count, -5, -2), _zeros(count, dtype)
            rows.append(Sample(ops.quantize, (x(*shape), scale, zero), attributes))
            small = (1,) if shape == (4, 33) else ()
            rows.append(Sample(ops.dequantize, (_bytes(*shape, dtype=dtype), scale, zero), attributes, gradient=small))
    count32 = i(37, low=-70000, high=70000, dtype=int32)
    rows.append(Sample(ops.dequantize, (count32, _scales(37, -9, -2), _fixed(np.zeros(37), int32))))
    range_ = x(5, 333, kind="unit")
    rows += [Sample(ops.dynamic_quantize, (r,)) for r in (range_, _fixed(np.zeros((3, 4)), float32))]
    return rows


def _products() -> list[Sample]:
    rows = []
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
        ((3, 5), (5, 7)), ((1, 1), (1, 1)), ((17, 33), (33, 15)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((130, 70), (70, 140)), ((1, 300), (300, 200)),
        ((31, 800), (800, 65)),
    )  # fmt: skip
    types = ((uint8, int8), (int8, int8), (uint8, uint8), (int8, uint8))
    for index, (a, b) in enumerate(shapes):
        left, right = types[index % 4]
        pair = _bytes(*a, dtype=left), _bytes(*b, dtype=right)
        m, n = a[-2], b[-1]
        zeros = (_zeros(m if index % 3 == 0 else None, left), _zeros(n if index % 3 else None, right))
        rows.append(Sample(ops.matmul_integer, pair))
        rows.append(Sample(ops.matmul_integer, (*pair, *zeros)))
        per = n if index % 2 else None
        first = (pair[0], _scales(None, -4, -3), _zeros(None, left))
        second = (
            pair[1],
            _scales(per, -9, -5),
            _fixed(np.zeros(per or ()), right) if index % 3 else _zeros(per, right),
        )
        rows.append(Sample(ops.matmul_dequantized, (*first, *second)))
        small = (1, 4, 6) if max(*a, *b) < 10 else ()
        rows.append(Sample(ops.matmul_dequantized, (*first, *second, x(n)), gradient=small))
        result = (_scales(None, 0, 1), _zeros(None, left))
        rows.append(Sample(ops.matmul_requantized, (*first, *second, *result)))
        bias = i(n, low=-20000, high=20000, dtype=int32)
        rows.append(Sample(ops.matmul_requantized, (*first, *second, *result, bias), {"relu": True}))
        rows.append(Sample(ops.matmul_requantized, (*first, *second, *result, _even_units(n))))
    return rows


def _even_units(count: int) -> Operand:
    """A float bias that is whole in units of all scales of the samples."""
    return _fixed((np.arange(count) % 23 - 11) * 4.0, float32)


def _convolutions() -> list[Sample]:
    rows = []
    windows: tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8, 8), (4, 3, 3, 3), {}),
        ((2, 3, 9, 7), (4, 3, 3, 2), {"strides": (2, 1), "pads": (1, 0, 1, 1)}),
        ((1, 4, 7, 7), (6, 2, 3, 3), {"groups": 2, "pads": (1, 1, 1, 1)}),
        ((2, 4, 6, 6), (4, 1, 3, 3), {"groups": 4, "pads": (1, 1, 1, 1)}),
        ((1, 5, 11, 37), (10, 1, 3, 5), {"groups": 5, "strides": (1, 2), "pads": (1, 2, 0, 3), "dilations": (2, 1)}),
        ((1, 2, 11, 10), (3, 2, 3, 3), {"dilations": (2, 3)}),
        ((2, 5, 4, 4), (7, 5, 1, 1), {}),
        ((2, 5, 5, 5), (7, 5, 1, 1), {"strides": (2, 2)}),
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
        ((2, 3, 12), (4, 3, 5), {"strides": (2,), "pads": (2, 1)}),
        ((1, 2, 5, 6, 4), (3, 2, 2, 3, 2), {"pads": (0, 1, 0, 1, 0, 1)}),
        ((2, 17, 19, 15), (18, 17, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 3, 20, 20), (8, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((1, 35, 13, 12), (33, 35, 3, 4), {"strides": (4, 2), "dilations": (2, 4), "pads": (0, 6, 2, 5)}),
        ((2, 36, 8, 38), (40, 36, 1, 1), {}),
        ((2, 19, 6, 5), (19, 1, 3, 3), {"groups": 19, "strides": (2, 2), "pads": (1, 0, 1, 1)}),
        ((1, 33, 40, 50), (33, 1, 5, 4), {"groups": 33, "pads": (2, 1, 2, 2), "dilations": (1, 2)}),
        ((1, 16, 4, 5, 6), (16, 1, 2, 3, 2), {"groups": 16, "pads": (1, 1, 0, 0, 1, 1), "strides": (3, 1, 1)}),
    )  # fmt: skip
    types = ((uint8, int8), (int8, int8), (uint8, uint8), (int8, uint8))
    for index, (image, weight, given) in enumerate(windows):
        spatial = len(image) - 2
        ones = (1,) * spatial
        window: dict[str, Any] = {
            "strides": ones,
            "pads": (0,) * (2 * spatial),
            "dilations": ones,
            "groups": 1,
            **given,
        }
        left, right = types[index % 4]
        pair = _bytes(*image, dtype=left), _bytes(*weight, dtype=right)
        filters = weight[0]
        rows.append(Sample(ops.conv_integer, pair, window))
        per = filters if index % 2 else None
        rows.append(Sample(ops.conv_integer, (*pair, _zeros(None, left), _zeros(per, right)), window))
        first = (pair[0], _scales(None, -4, -3), _zeros(None, left))
        second = (
            pair[1],
            _scales(per, -9, -5),
            _fixed(np.zeros(per or ()), right) if index % 3 else _zeros(per, right),
        )
        small = (1, 4, 6) if np.prod(image) < 200 else ()
        rows.append(Sample(ops.conv_dequantized, (*first, *second, x(filters)), window, gradient=small))
        result = (_scales(None, 0, 1), _zeros(None, left))
        rows.append(Sample(ops.conv_requantized, (*first, *second, *result), {**window, "relu": True}))
        bias = i(filters, low=-20000, high=20000, dtype=int32) if index % 2 else _even_units(filters)
        rows.append(Sample(ops.conv_requantized, (*first, *second, *result, bias), window))
        if window["groups"] == 1 or window["groups"] == image[1] == filters:
            last = _bytes(image[0], *image[2:], image[1], dtype=left)
            operands = (last, *first[1:], *second, *result, bias)
            rows.append(Sample(ops.conv_requantized, operands, {**window, "channels_last": True}))
    return rows


def _sums() -> list[Sample]:
    rows = []
    types = ((uint8, int8, uint8), (int8, int8, uint8), (uint8, uint8, int8))
    for (left, right, result), shape in zip(types, ((2, 3, 1031), (), (0, 4)), strict=True):
        first = (_bytes(*shape, dtype=left), _scales(None, -4, -3), _zeros(None, left))
        second = (_bytes(*shape, dtype=right), _scales(None, -3, -2), _zeros(None, right))
        given = (*first, *second, _scales(None, -2, -1), _zeros(None, result))
        rows += [Sample(ops.add_requantized, given, {"relu": relu}) for relu in (False, True)]
    return rows


def _lookups() -> list[Sample]:
    types = ((uint8, uint8), (int8, uint8), (uint8, int8), (int8, int8))
    shapes = ((2, 3, 1031), (70_001,), (), (0, 4))
    pairs = zip(types, shapes, strict=True)
    return [Sample(ops.lookup, (_bytes(*shape, dtype=x), _bytes(256, dtype=y))) for (x, y), shape in pairs]


def _blocks() -> list[Sample]:
    rows = []
    shapes: tuple[tuple[tuple[int, ...], int, int, int], ...] = (  # of a but for its columns, rows, size, block
        ((1,), 5, 32, 32), ((2, 2), 9, 70, 16), ((4,), 33, 256, 64), ((7,), 3, 17, 16), ((3, 5), 40, 96, 32),
        ((37,), 50, 400, 128), ((65,), 34, 530, 32), ((2, 0), 4, 32, 32), ((1,), 1, 1, 16), ((5,), 70, 1000, 256),
        ((18,), 5, 1, 16),
    )  # fmt: skip
    for index, (lead, count, size, block) in enumerate(shapes):
        for bits in (4, 8):
            blocks = -(-size // block)
            weight = (
                i(count, blocks, block * bits // 8, low=0, high=256, dtype=uint8),
                Operand(
                    (count, blocks), float32, value=np.ldexp(1.0, -3 - np.arange(count * blocks) % 5).reshape(count, -1)
                ),
            )
            zero = i(count, -(-blocks * bits // 8), low=0, high=256, dtype=uint8)
            for transposed in (False, True):
                attributes = {"size": size, "bits": bits, "block": block, "transposed": transposed}
                a = x(*lead, count if transposed else size)
                given = (a, *weight, zero) if (index + bits // 4 + transposed) % 2 else (a, *weight)
                small = (0,) if size <= 70 and 0 not in lead else ()
                rows.append(Sample(ops.matmul_blocks, given, attributes, gradient=small))
    return rows


SAMPLES: list[Sample] = _conversions() + _products() + _convolutions() + _sums() + _lookups() + _blocks()
