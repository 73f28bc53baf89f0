"""Converters of RNN, GRU and LSTM.

The products of the inputs with their weights are one matmul for all steps. What the three ops of the core don't have
(peepholes, clipping, other activations, ...) becomes a scan; see recurrent_cells.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dataflow import Value, ops
from dataflow.errors import ModelError
from dataflow.ir.dims import Dim
from dataflow.ir.types import int64

from ..converters import Collector
from ..importer import Importer, Tensor
from .recurrent_cells import Activation, activations_of, gru_cell, lstm_cell, rnn_cell, scanned

T = Tensor
operator = Collector()


@dataclass(frozen=True, slots=True)
class Direction:
    """The operands of one direction.

    Attributes:
        x: products of the inputs with W, (steps times batch, gates times hidden).
        shape: (steps, batch, gates times hidden).
        r: (gates times hidden, hidden).
        wb, rb: the halves of the bias; None without.
        states: the initial ones, None where left out.
        p: peepholes of a gate each, if any.
        lengths: of the sequences, when they differ.
        going: whether a sequence goes on at a step, (steps, batch, 1), with ``lengths``.
        activations: of this direction.
    """

    x: Value
    shape: tuple[Any, ...]
    r: Value
    wb: Value | None
    rb: Value | None
    states: tuple[Value | None, ...]
    p: tuple[Value, ...]
    lengths: Value | None
    going: Value | None
    activations: tuple[Activation, ...]
    reverse: int


Layer = Callable[[Direction], Sequence[Any]]
"""A direction's states after each step, then its last states."""

_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}


def _convert(
    c: Importer,
    gates: int,
    layer: Layer,
    operands: tuple[T, T, T],
    bias: T | None,
    lengths: T | None,
    states: Sequence[T | None],
    peepholes: T | None,
    direction: str,
    hidden_size: int | None,
    layout: int,
    activations: Sequence[Activation],
) -> tuple[Any, ...]:
    """Y and the last states; see ONNX for the shapes."""
    turns = _DIRECTIONS[direction]
    x, w, r = c.value(operands[0]), _weight(c, operands[1]), _weight(c, operands[2])
    if r.type.rank != 3 or x.type.rank != 3:
        raise ModelError(f"X is {x.type} and R is {r.type}; both need three axes")
    hidden = int(r.type.shape[2])
    _expect("W", w, (len(turns), gates * hidden, x.type.shape[2]))
    _expect("R", r, (len(turns), gates * hidden, hidden))
    if hidden_size not in (None, hidden):
        raise ModelError(f"hidden_size is {hidden_size}, R is {r.type}")
    b = None if bias is None else _expect("B", _weight(c, bias), (len(turns), 2 * gates * hidden))
    p = None if peepholes is None else _expect("P", _weight(c, peepholes), (len(turns), 3 * hidden))
    starts = [None if s is None else c.value(s) for s in states]
    if layout:
        x = ops.transpose(x, perm=(1, 0, 2))
        starts = [None if s is None else ops.transpose(s, perm=(1, 0, 2)) for s in starts]
    steps, batch = x.type.shape[:2]
    for s, label in zip(starts, ("initial_h", "initial_c"), strict=False):
        if s is not None:
            _expect(label, s, (len(turns), batch, hidden))
    ends = None if lengths is None or _whole(lengths, steps) else _expect("sequence_lens", c.value(lengths), (batch,))
    going = None if ends is None else _going(c, steps, batch, ends)
    rows = ops.reshape(x, shape=(steps * batch, x.type.shape[2]))  # one product, though X may be turned
    each = len(activations) // len(turns)
    found = []
    for place, reverse in enumerate(turns):
        wb, rb = (None, None) if b is None else _cut(_row(b, place), 2)
        parts = Direction(
            x=ops.matmul(rows, ops.transpose(_row(w, place), perm=(1, 0))),
            shape=(steps, batch, gates * hidden),
            r=_row(r, place),
            wb=wb,
            rb=rb,
            states=tuple(None if s is None else _row(s, place) for s in starts),
            p=() if p is None else _cut(_row(p, place), 3),
            lengths=ends,
            going=going,
            activations=tuple(activations[place * each : (place + 1) * each]),
            reverse=reverse,
        )
        y, *last = layer(parts)
        found.append((y if going is None else ops.where(going, y, c.builder.scalar(0.0, y.type.dtype)), *last))
    # The directions side by side: what models make of it, mostly, and then a view.
    y = found[0][0] if len(turns) == 1 else ops.concat(*[result[0] for result in found], axis=2)
    y = ops.reshape(y, shape=(steps, batch, len(turns), hidden))
    y = ops.transpose(y, perm=(1, 0, 2, 3) if layout else (0, 2, 1, 3))
    lasts = []
    for values in list(zip(*found, strict=True))[1:]:
        rows = [ops.reshape(v, shape=(1, batch, hidden)) for v in values]
        last = rows[0] if len(rows) == 1 else ops.concat(*rows, axis=0)
        lasts.append(ops.transpose(last, perm=(1, 0, 2)) if layout else last)
    return (y, *lasts)


def _weight(c: Importer, tensor: T) -> Value:
    """The value of a weight; what it is put together from, as exporters do to order the gates, can be trained too."""
    found = c.weight(tensor)
    makers = {value: node for node in c.builder.nodes() for value in node.outputs}
    values: list[Value | None] = [found]
    for value in values:
        node = makers.get(value)
        if node is not None and node.op.name in ("slice", "concat", "reshape", "transpose"):
            values += node.inputs
        elif node is None and value is not None and value.name in c.tensors:
            c.weight(c.tensors[value.name])
    return found


def _expect(label: str, value: Value, shape: tuple[Any, ...]) -> Value:
    """``value``, if it has this shape, as far as sizes are known."""
    given = value.type.shape
    pairs = zip(given, shape, strict=False)
    fits = all(a == b or isinstance(a, Dim) or isinstance(b, Dim) for a, b in pairs)
    if len(given) != len(shape) or not fits:
        raise ModelError(f"{label} is {value.type}; expected the shape ({', '.join(map(str, shape))})")
    return value


def _whole(lengths: T, steps: Any) -> bool:
    """Whether every sequence is known to have all steps."""
    return lengths.known is not None and all(n == steps for n in lengths.known.numbers.reshape(-1))


def _going(c: Importer, steps: Any, batch: Any, lengths: Value) -> Any:
    numbers = {"start": 0, "limit": steps, "delta": 1, "dtype": int64}
    index = c.builder.add(ops.range_, (), numbers).outputs[0]
    ends = ops.reshape(ops.cast(lengths, to=int64), shape=(1, batch, 1))
    return ops.less(ops.reshape(index, shape=(steps, 1, 1)), ends)


def _row(value: Value, index: int) -> Any:
    """One entry of the first axis."""
    count, *rest = value.type.shape
    if count != 1:
        zeros = (0,) * len(rest)
        value = ops.slice(value, starts=(index, *zeros), stops=(index + 1, *rest), steps=(1,) * (len(rest) + 1))
    return ops.reshape(value, shape=tuple(rest))


def _cut(value: Value, count: int) -> tuple[Any, ...]:
    """Equal parts of a vector."""
    width = int(value.type.shape[0]) // count
    return tuple(ops.slice(value, starts=(i * width,), stops=((i + 1) * width,), steps=(1,)) for i in range(count))


def _input(d: Direction, *biases: Value | None) -> Any:
    """What comes into the steps: the products and biases."""
    given = [b for b in biases if b is not None]
    x = d.x
    if given:
        x = ops.add(x, given[0] if len(given) == 1 else ops.add(*given))
    return ops.reshape(x, shape=d.shape)


def _are(activations: Sequence[Activation], *names: str) -> bool:
    return [a.name for a in activations] == list(names)


@operator("LSTM", 7)
def LSTM(
    c: Importer,
    X: T,
    W: T,
    R: T,
    B: T | None = None,
    sequence_lens: T | None = None,
    initial_h: T | None = None,
    initial_c: T | None = None,
    P: T | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> Any:
    default = ("Sigmoid", "Tanh", "Tanh")
    used = activations_of(activations, default, direction, activation_alpha, activation_beta)

    def layer(d: Direction) -> Sequence[Any]:
        x, (h, cell) = _input(d, d.wb, d.rb), d.states
        plain = _are(d.activations, *map(str.lower, default)) and clip is None and not input_forget and not d.p
        if plain:
            y, h_last, c_last = ops.lstm(x, d.r, h, cell, d.lengths, reverse=d.reverse)
            return y, h_last, c_last
        step = lstm_cell(d.activations, clip, bool(input_forget))
        return scanned("lstm", step, x, d.states, d.r, d.p, d.going, d.reverse)

    states = (initial_h, initial_c)
    return _convert(c, 4, layer, (X, W, R), B, sequence_lens, states, P, direction, hidden_size, layout, used)


@operator("GRU", 7)
def GRU(
    c: Importer,
    X: T,
    W: T,
    R: T,
    B: T | None = None,
    sequence_lens: T | None = None,
    initial_h: T | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> Any:
    default = ("Sigmoid", "Tanh")
    used = activations_of(activations, default, direction, activation_alpha, activation_beta)

    def layer(d: Direction) -> Sequence[Any]:
        if not linear_before_reset:
            step = gru_cell(d.activations, clip, False)
            return scanned("gru", step, _input(d, d.wb, d.rb), d.states, d.r, (), d.going, d.reverse)
        x = _input(d, d.wb)
        if _are(d.activations, *map(str.lower, default)) and clip is None:
            y, last = ops.gru(x, d.r, d.rb, d.states[0], d.lengths, reverse=d.reverse)
            return y, last
        extra = () if d.rb is None else (d.rb,)
        return scanned("gru", gru_cell(d.activations, clip, True), x, d.states, d.r, extra, d.going, d.reverse)

    operands = (X, W, R)
    return _convert(c, 3, layer, operands, B, sequence_lens, (initial_h,), None, direction, hidden_size, layout, used)


@operator("RNN", 7)
def RNN(
    c: Importer,
    X: T,
    W: T,
    R: T,
    B: T | None = None,
    sequence_lens: T | None = None,
    initial_h: T | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> Any:
    if direction != "bidirectional":
        activations = activations[:1]  # the default names one for each of two
    used = activations_of(activations, ("Tanh",), direction, activation_alpha, activation_beta)

    def layer(d: Direction) -> Sequence[Any]:
        (bend,) = d.activations
        if bend.name in ("tanh", "relu") and clip is None:
            relu = int(bend.name == "relu")
            y, last = ops.rnn(_input(d, d.wb, d.rb), d.r, d.states[0], d.lengths, reverse=d.reverse, relu=relu)
            return y, last
        return scanned("rnn", rnn_cell(bend, clip), _input(d, d.wb, d.rb), d.states, d.r, (), d.going, d.reverse)

    operands = (X, W, R)
    return _convert(c, 1, layer, operands, B, sequence_lens, (initial_h,), None, direction, hidden_size, layout, used)
