"""Samples of ops whose results' shapes depend on data."""

from __future__ import annotations

import importlib.util

import numpy as np

from ... import ops
from ...ir.types import Array, bool_, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from ..sample import Operand, Sample, i, x


def _sizes() -> list[Sample]:
    rows = []
    for dtype in (int32, int64):
        three = Operand((3, 4), dtype, value=[[0, 2, 0, 0], [1, 0, 0, 5], [0, 0, 0, 0]])
        rows.append(Sample(ops.nonzero, (three,), {"count": 3}))
    rows += [
        Sample(ops.nonzero, (Operand((2, 1, 3), float32, value=[0.0, -0.5, -0.0, 0.0, np.nan, 1.0]),), {"count": 3}),
        Sample(ops.nonzero, (Operand((5,), bool_, value=[1, 0, 1, 1, 0]),), {"count": 3}),
        Sample(ops.nonzero, (Operand((), bool_, value=True),), {"count": 1}),
        Sample(ops.nonzero, (x(0, 3),), {"count": 0}),
        Sample(ops.require, (x(3, 5),), {"left": 3, "right": 3, "text": "the rows"}, gradient=(0,)),
        Sample(ops.keyed, (x(3, 2),), {"keys": ("a", "b")}, gradient=(0,)),
        Sample(ops.keyed, (x(3, 2),), {"keys": (), "fed": True}, gradient=(0,)),
        Sample(ops.sizes, (), {"values": (3, 4, 0, 1), "shape": (2, 2), "dtype": int32}),
        Sample(ops.read_shape, (Operand((2,), int64, value=[3, 4]),), {"sizes": (3, 4)}),
    ]
    hits = (np.arange(9001) * 7919 % 11 < 3).astype(np.int32)
    rows.append(Sample(ops.nonzero, (Operand(hits.shape, int32, value=hits),), {"count": int(hits.sum())}))
    for value in ([[2, 1], [1, 3], [2, 1], [0, 9]], [[5], [5], [4], [6]], [[1, 2, 3]], np.zeros((3, 0))):
        entries = np.asarray(value)
        for dtype in (int64, float32):
            rows += [Sample(ops.unique, (Operand(entries.shape, dtype, value=entries),), {"sorted": s}) for s in (0, 1)]
    for dtype in (float64, int8, int16, int32, uint8, uint16, uint32, uint64, bool_):
        rows.append(Sample(ops.unique, (Operand((9, 2), dtype, "range", 0, 3),)))
    rows += [Sample(ops.unique, (i(700, 2, high=20),), {"sorted": s}) for s in (0, 1)]
    special = Operand((6, 1), float32, value=[np.nan, 1.0, np.nan, -0.0, 0.0, -np.inf])
    rows += [Sample(ops.unique, (special,), {"sorted": s}) for s in (0, 1)]
    return [*rows, Sample(ops.unique, (x(0, 3),))]


def _images() -> list[Sample]:
    """Bytes that are no image, and where there is a decoder a small one."""
    files: list[tuple[Array, int, int]] = [(np.zeros(0, np.uint8), 0, 0)]
    if importlib.util.find_spec("PIL") is not None:
        pixels = np.arange(24, dtype=np.uint8).tobytes()
        files += [(np.frombuffer(b"P6 4 2 255\n" + pixels, np.uint8), 2, 4), (np.frombuffer(pixels, np.uint8), 0, 0)]
    rows = []
    for file, height, width in files:
        operand = Operand(file.shape, uint8, value=file)
        rows.append(Sample(ops.image_size, (operand,)))
        for name in ("RGB", "BGR", "Grayscale"):
            attributes = {"height": height, "width": width, "pixel_format": name}
            rows.append(Sample(ops.decode_image, (operand,), attributes))
    return rows


SAMPLES: list[Sample] = _sizes() + _images()
