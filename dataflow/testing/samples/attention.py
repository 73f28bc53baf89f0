"""Samples of attention."""

from __future__ import annotations

from ... import ops
from ..sample import Operand, Sample, x


def _attention() -> list[Sample]:
    """Sizes around those of tiles and blocks, heads, operands that broadcast, masks of every shape, several blocks."""
    rows = []
    sizes = ((5, 7, 3, 4), (1, 1, 1, 1), (0, 3, 2, 2), (3, 4, 0, 2), (3, 4, 2, 0), (31, 67, 8, 33),
             (128, 128, 64, 64), (17, 1200, 5, 16), (45, 613, 33, 2))  # fmt: skip
    for m, n, d, e in sizes:
        masks = (None, x(m, n), x(n)) if n < 100 else (x(1, n),)
        for mask in masks:
            operands = (x(2, m, d), x(2, d, n), x(2, n, e), *([mask] if mask else []))
            every = tuple(range(len(operands))) if m == 5 else ()
            rows.append(Sample(ops.attention, operands, {"scale": 0.5}, gradient=every))
    heads = (x(2, 3, 5, 4), x(2, 3, 4, 6), x(2, 3, 6, 7))
    broad = (x(2, 1, 1, 6), x(1, 3, 5, 6), x(5, 1), x())
    rows += [Sample(ops.attention, (*heads, mask), {"scale": -1.5, "transposed": True}) for mask in broad]
    rows.append(Sample(ops.attention, (x(4, 1, 2, 3), x(1, 5, 3, 4), x(5, 4, 2))))
    rows.append(Sample(ops.attention, (x(9, 6), x(6, 9), x(9, 3)), {"scale": 30.0}))
    safe = (x(2, 5, 3), x(2, 3, 7), x(2, 7, 4), x(5, 7))
    rows.append(Sample(ops.attention, safe, {"safe": True}, gradient=(0, 1, 2, 3)))
    rows.append(Sample(ops.attention, safe, {"softcap": 1.5, "scale": 0.8}, gradient=(0, 1, 2, 3)))
    shared = (x(2, 2, 3, 5, 4), x(2, 2, 1, 4, 6), x(2, 2, 1, 6, 7), x(2, 1, 1, 5, 6))  # by heads of a group
    rows.append(Sample(ops.attention, shared, {"transposed": True}))
    return rows


def _sums(*shape: int) -> Operand:
    """Not those of any scores, but about as large."""
    return Operand(shape, kind="range", low=4, high=9)


def _attention_grad() -> list[Sample]:
    rows = []
    sizes = ((5, 7, 3, 4), (1, 1, 1, 1), (0, 3, 2, 2), (3, 0, 2, 4), (3, 4, 0, 2), (3, 4, 2, 0), (31, 67, 8, 33),
             (70, 1000, 5, 16))  # fmt: skip
    for m, n, d, e in sizes:
        for mask in (None, x(m, n), x(n)) if n < 100 else (x(1, n),):
            given = (x(2, m, e), x(2, m, e), _sums(2, m), x(2, m, d), x(2, d, n), x(2, n, e))
            operands = (*given, *([mask] if mask else []))
            every = tuple(range(len(operands))) if m == 5 else ()
            rows.append(Sample(ops.attention_grad, operands, {"scale": 0.5}, gradient=every))
    heads = (x(2, 5, 3, 7), x(2, 5, 3, 7), _sums(2, 3, 5), x(2, 3, 5, 4), x(2, 3, 4, 6), x(2, 3, 6, 7), x(2, 1, 1, 6))
    rows.append(Sample(ops.attention_grad, heads, {"scale": -0.5, "transposed": True}))
    for m, d in ((5, 4), (0, 3), (70, 66)):  # queries attend to themselves
        alone = (x(2, m, 3, d), x(2, m, 3, d), _sums(2, 3, m), x(2, 3, m, d), x(2, 3, d, m), x(2, 3, m, d))
        every = tuple(range(6)) if m == 5 else ()
        rows.append(Sample(ops.attention_grad_sums, alone, {"transposed": True}, gradient=every, tolerance=1e-4))
    broadcast = (x(4, 5, 2, 2), x(4, 5, 2, 2), _sums(4, 5, 2), x(4, 1, 2, 3), x(1, 5, 3, 4), x(5, 4, 2))
    rows.append(Sample(ops.attention_grad, broadcast))
    rows.append(Sample(ops.attention_grad, heads[:6], {"scale": -0.5, "transposed": True, "safe": True}))
    shared = (
        x(2, 5, 2, 3, 7), x(2, 5, 2, 3, 7), _sums(2, 2, 3, 5), x(2, 2, 3, 5, 4), x(2, 2, 1, 4, 6), x(2, 2, 1, 6, 7),
    )  # fmt: skip
    rows.append(Sample(ops.attention_grad, shared, {"transposed": True, "softcap": 2.0}))
    return rows


def _linear() -> list[Sample]:
    rows = []
    shapes = ((2, 1, 3, 4, 5), (3, 2, 5, 3, 17), (1, 4, 1, 33, 40), (2, 1, 0, 3, 4), (4, 1, 70, 16, 16))
    for heads, readers, length, size, width in shapes:
        operands = (
            x(heads, readers, length, size), x(heads, length, size, kind="unit"), x(heads, length, width),
            x(heads, size, width),
        )  # fmt: skip
        factors = [x(heads, length, n, kind="unit") for n in (1, size)]
        beta = x(heads, length, 1, kind="unit")
        for more in ((), (factors[0],), (factors[1],), (None, beta), (factors[0], beta), (factors[1], beta)):
            small = 0 < length < 5 and size < 9
            checked = tuple(i for i, operand in enumerate((*operands, *more)) if isinstance(operand, Operand) and small)
            rows.append(Sample(ops.linear_attention, (*operands, *more), gradient=checked))
    return rows


SAMPLES: list[Sample] = _attention() + _attention_grad() + _linear()
