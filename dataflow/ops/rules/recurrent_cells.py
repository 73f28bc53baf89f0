"""The loops of recurrent ops as scans: what a device without a kernel for the op runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.builder import GraphBuilder
from ...ir.dims import Size
from ...ir.types import int64
from ...ir.value import Value
from ..activation import relu as positive
from ..activation import sigmoid
from ..arithmetic import add, copy, mul, sub, tanh
from ..cast import cast
from ..control_flow import scan
from ..gather import full, range_
from ..linalg import matmul, swapped
from ..logic import greater, less, where
from ..shape import concat, reshape, slice_

Cell = Callable[[Any, Any, Any], tuple[Sequence[Value], Sequence[Value], Sequence[Value]]]
"""``cell(carries, rows, captures)``: carries for a sequence that has ended, for one that goes on, and what is
stacked, which gets zeros behind the end. What is left out is None."""


def _loop(
    name: str,
    cell: Cell,
    carries: Sequence[Value],
    rows: Sequence[Value | None],
    captures: Sequence[Value | None],
    lengths: Value | None,
    reverse: bool,
    stacked: Sequence[int] = (),
) -> tuple[Value, ...]:
    """Final carries, the carries ``stacked`` after each step, and the cell's stacks."""
    outer = carries[0].builder
    assert outer is not None
    scanned = [v for v in rows if v is not None]
    if lengths is not None:
        scanned.append(_going(scanned[0].type.shape[0], lengths))
    g = GraphBuilder(name)

    def inputs(values: Sequence[Value | None], label: str, drop: int = 0) -> list[Value | None]:
        kept = [(f"{label}{i}", v.type.dtype, v.type.shape[drop:]) for i, v in enumerate(values) if v is not None]
        made = iter([g.input(*given) for given in kept])
        return [None if v is None else next(made) for v in values]

    inner = inputs(carries, "carry")
    given = inputs(rows, "row", 1)
    going = inputs(scanned[-1:], "going", 1)[0] if lengths is not None else None
    ended, states, own = cell(inner, given, inputs(captures, "capture"))
    if going is not None:
        states = [where(going, new, old) for new, old in zip(states, ended, strict=True)]
        own = [where(going, v, g.scalar(0.0, v.type.dtype)) for v in own]
    for i, value in enumerate([*states, *(states[i] for i in stacked), *own]):
        # each result has memory of its own
        g.output(f"result{i}", copy(value) if value in g.outputs().values() else value)
    operands = [*carries, *scanned, *(v for v in captures if v is not None)]
    attributes = {"n_carries": len(carries), "n_xs": len(scanned), "reverse": int(reverse)}
    made = outer.add(scan, operands, attributes, bodies=(g.build(),)).outputs
    return tuple(v for v in made[: len(states) + len(stacked) + len(own)] if v is not None)


def _going(steps: Size, lengths: Value) -> Value:
    """Whether a sequence goes on at a step: (steps, batch, 1)."""
    assert lengths.builder is not None
    numbers = {"start": 0, "limit": steps, "delta": 1, "dtype": int64}
    index = reshape(lengths.builder.add(range_, (), numbers).outputs[0], shape=(steps, 1, 1))
    return less(index, reshape(cast(lengths, to=int64), shape=(1, lengths.type.shape[0], 1)))


def _state(given: Value | None, x: Value, r: Value) -> Value:
    """The state given, or zeros."""
    if given is not None:
        return given
    assert x.builder is not None
    shape = (x.type.shape[1], r.type.shape[1])
    made = x.builder.add(full, (), {"shape": shape, "value": 0.0, "dtype": x.type.dtype}).outputs[0]
    assert made is not None
    return made


def _gate_slices(x: Value, count: int) -> list[Value]:
    """The columns of a matrix, split evenly among gates."""
    rows, columns = x.type.shape
    width = columns // count
    return [slice_(x, starts=(0, width * i), stops=(rows, width * (i + 1)), steps=(1, 1)) for i in range(count)]


def _before(stack: Value, first: Value, reverse: bool) -> Value:
    """The state before each step: ``stack`` has it after each, ``first`` is before all."""
    steps, batch, hidden = stack.type.shape
    row = reshape(first, shape=(1, batch, hidden))
    joined = concat(stack, row, axis=0) if reverse else concat(row, stack, axis=0)
    begin = 1 if reverse else 0
    return slice_(joined, starts=(begin, 0, 0), stops=(steps + begin, batch, hidden), steps=(1, 1, 1))


def _plus(a: Any, b: Any) -> Any:
    return a if b is None else add(a, b)


def _by_sigmoid(d: Any, y: Any) -> Any:
    """A cotangent behind a sigmoid, taken before it; the sigmoid is y."""
    return mul(d, mul(y, sub(1.0, y)))


def _by_tanh(d: Any, y: Any) -> Any:
    return mul(d, sub(1.0, mul(y, y)))


# ---- LSTM -----------------------------------------------------------------------------------------------


def lstm_steps(
    x: Value,
    r: Value,
    h: Value | None = None,
    c: Value | None = None,
    lengths: Value | None = None,
    *,
    reverse: bool,
) -> tuple[Value, ...]:
    """``lstm`` as a scan."""

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        i, o, f, g = _gate_slices(add(rows[0], matmul(carries[0], swapped(captures[0]))), 4)
        i, o, f, g = sigmoid(i), sigmoid(o), sigmoid(f), tanh(g)
        new = add(mul(f, carries[1]), mul(i, g))
        return carries, (mul(o, tanh(new)), new), (concat(i, o, f, g, axis=1),)

    start = (_state(h, x, r), _state(c, x, r))
    h_last, c_last, y, cells, gates = _loop("lstm", cell, start, (x,), (r,), lengths, bool(reverse), (0, 1))
    return y, h_last, c_last, gates, cells


def lstm_grad_steps(
    r: Value,
    gates: Value,
    cells: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    dc: Value | None = None,
    c: Value | None = None,
    lengths: Value | None = None,
    *,
    reverse: bool,
) -> tuple[Value, ...]:
    """``lstm_grad`` as a scan."""

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        gate, now, before, dy = rows
        dh = _plus(carries[0], dy)
        i, o, f, g = _gate_slices(gate, 4)
        bent = tanh(now)
        dc = add(carries[1], _by_tanh(mul(dh, o), bent))
        di, do, df = _by_sigmoid(mul(dc, g), i), _by_sigmoid(mul(dh, bent), o), _by_sigmoid(mul(dc, before), f)
        dx = concat(di, do, df, _by_tanh(mul(dc, i), g), axis=1)
        return (dh, carries[1]), (matmul(dx, captures[0]), mul(dc, f)), (dx,)

    start = (_state(dh, gates, r), _state(dc, gates, r))
    rows = (gates, cells, _before(cells, _state(c, gates, r), reverse), dy)
    dh_first, dc_first, dx = _loop("lstm_grad", cell, start, rows, (r,), lengths, not reverse)
    return dx, dh_first, dc_first


# ---- GRU ------------------------------------------------------------------------------------------------


def gru_steps(
    x: Value,
    r: Value,
    bias: Value | None = None,
    h: Value | None = None,
    lengths: Value | None = None,
    *,
    reverse: bool,
) -> tuple[Value, ...]:
    """``gru`` as a scan."""

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        q = _gate_slices(_plus(matmul(carries[0], swapped(captures[0])), captures[1]), 3)
        a = _gate_slices(rows[0], 3)
        z, s = sigmoid(add(a[0], q[0])), sigmoid(add(a[1], q[1]))
        n = tanh(add(a[2], mul(s, q[2])))
        new = add(mul(sub(1.0, z), n), mul(z, carries[0]))
        return carries, (new,), (concat(z, s, n, q[2], axis=1),)

    h_last, y, gates = _loop("gru", cell, (_state(h, x, r),), (x,), (r, bias), lengths, bool(reverse), (0,))
    return y, h_last, gates


def gru_grad_steps(
    r: Value,
    gates: Value,
    y: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    h: Value | None = None,
    lengths: Value | None = None,
    *,
    reverse: bool,
) -> tuple[Value, ...]:
    """``gru_grad`` as a scan."""

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        gate, before, dy = rows
        dh = _plus(carries[0], dy)
        z, s, n, q = _gate_slices(gate, 4)
        dn = _by_tanh(mul(dh, sub(1.0, z)), n)
        dz, ds = _by_sigmoid(mul(dh, sub(before, n)), z), _by_sigmoid(mul(dn, q), s)
        dq = concat(dz, ds, mul(dn, s), axis=1)
        return (dh,), (add(mul(dh, z), matmul(dq, captures[0])),), (concat(dz, ds, dn, axis=1), dq)

    rows = (gates, _before(y, _state(h, y, r), reverse), dy)
    dh_first, dx, dq = _loop("gru_grad", cell, (_state(dh, y, r),), rows, (r,), lengths, not reverse)
    return dx, dq, dh_first


# ---- the plain cell -------------------------------------------------------------------------------------


def rnn_steps(
    x: Value, r: Value, h: Value | None = None, lengths: Value | None = None, *, reverse: bool, relu: bool
) -> tuple[Value, ...]:
    """``rnn`` as a scan."""
    bend = positive if relu else tanh

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        return carries, (bend(add(rows[0], matmul(carries[0], swapped(captures[0])))),), ()

    h_last, y = _loop("rnn", cell, (_state(h, x, r),), (x,), (r,), lengths, bool(reverse), (0,))
    return y, h_last


def rnn_grad_steps(
    r: Value,
    y: Value,
    dy: Value | None = None,
    dh: Value | None = None,
    lengths: Value | None = None,
    *,
    reverse: bool,
    relu: bool,
) -> tuple[Value, ...]:
    """``rnn_grad`` as a scan."""

    def cell(carries: Any, rows: Any, captures: Any) -> Any:
        dh = _plus(carries[0], rows[1])
        dx = mul(dh, cast(greater(rows[0], 0.0), to=dh.type.dtype)) if relu else _by_tanh(dh, rows[0])
        return (dh,), (matmul(dx, captures[0]),), (dx,)

    dh_first, dx = _loop("rnn_grad", cell, (_state(dh, y, r),), (y, dy), (r,), lengths, not reverse)
    return dx, dh_first
