"""Converters of RNN, GRU and LSTM.

The products of the inputs with their weights are one matmul for all steps. What the three ops of the core don't have
(peepholes, clipping, other activations, ...) becomes a scan; see recurrent_cells.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dataflow import Dim, Value, int64, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import equal_slices, iota, slice_axis
from ..importer import Importer
from ..tensor import Tensor
from .recurrent_cells import Activation, activations_of, gru_cell, lstm_cell, rnn_cell, scanned

T = Tensor
operator = Collector()


@dataclass(frozen=True, slots=True)
class Direction:
    """The operands of one direction.

    Attributes:
        x: products of the inputs with W, (steps times batch, gates times hidden).
        index: which of the layer's directions it is.
        shape: (steps, batch, gates times hidden).
        r: (gates times hidden, hidden).
        wb, rb: the halves of the bias; None without.
        states: the initial ones, None where left out.
        p: peepholes of a gate each, if any.
        lengths: of the sequences, when they differ.
        active: whether a step lies within a sequence, (steps, batch, 1), with ``lengths``.
        activations: of this direction.
    """

    x: Value
    index: int
    shape: tuple[Any, ...]
    r: Value
    wb: Value | None
    rb: Value | None
    states: tuple[Value | None, ...]
    p: tuple[Value, ...]
    lengths: Value | None
    active: Value | None
    activations: tuple[Activation, ...]
    reverse: int

    @property
    def hidden(self) -> Any:
        """The size of a state."""
        return self.r.type.shape[1]


Layer = Callable[[Direction], Sequence[Any]]
"""A direction's states after each step, then its last states."""
Inputs = Callable[[Value, Value, int], Any]
"""The product of rows and a direction's (size, gates times hidden), by the number of the direction."""

_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}


def converted(
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
    product: Inputs = lambda rows, columns, index: ops.matmul(rows, columns),
) -> tuple[Any, ...]:
    """Y and the last states; see ONNX for the shapes. ``product`` is that of all steps' rows and a direction's W."""
    directions = _DIRECTIONS[direction]
    x, w, r = c.value(operands[0]), _weight(c, operands[1]), _weight(c, operands[2])
    if r.type.rank != 3 or x.type.rank != 3:
        raise ModelError(f"X is {x.type} and R is {r.type}; both need three axes")
    hidden = int(r.type.shape[2])
    _expect("W", w, (len(directions), gates * hidden, x.type.shape[2]))
    _expect("R", r, (len(directions), gates * hidden, hidden))
    if hidden_size not in (None, hidden):
        raise ModelError(f"hidden_size is {hidden_size}, R is {r.type}")
    b = None if bias is None else _expect("B", _weight(c, bias), (len(directions), 2 * gates * hidden))
    p = None if peepholes is None else _expect("P", _weight(c, peepholes), (len(directions), 3 * hidden))
    starts = [None if s is None else c.value(s) for s in states]
    if layout:
        x = ops.transpose(x, perm=(1, 0, 2))
        starts = [None if s is None else ops.transpose(s, perm=(1, 0, 2)) for s in starts]
    steps, batch = x.type.shape[:2]
    if c.freed is not None:
        starts = [None if s is None else c.freed.repeated(c, s, 1, batch) for s in starts]
    for s, label in zip(starts, ("initial_h", "initial_c"), strict=False):
        if s is not None:
            _expect(label, s, (len(directions), batch, hidden))
    ends = None if lengths is None or _are_all(lengths, steps) else _expect("sequence_lens", c.value(lengths), (batch,))
    active = None if ends is None else _active_steps(c, steps, batch, ends)
    rows = ops.reshape(x, shape=(steps * batch, x.type.shape[2]))  # one product, even if X is a transposed view
    each = len(activations) // len(directions)
    found = []
    for index, reverse in enumerate(directions):
        wb, rb = (None, None) if b is None else equal_slices(row(b, index), 0, 2)
        columns = ops.transpose(row(w, index), perm=(1, 0))
        operands_of_direction = Direction(
            x=product(rows, columns, index),
            index=index,
            shape=(steps, batch, gates * hidden),
            r=row(r, index),
            wb=wb,
            rb=rb,
            states=tuple(None if s is None else row(s, index) for s in starts),
            p=() if p is None else equal_slices(row(p, index), 0, 3),
            lengths=ends,
            active=active,
            activations=tuple(activations[index * each : (index + 1) * each]),
            reverse=reverse,
        )
        y, *last = layer(operands_of_direction)
        found.append((y if active is None else ops.where(active, y, c.builder.scalar(0.0, y.type.dtype)), *last))
    # The directions side by side: what models make of it, mostly, and then a view.
    y = found[0][0] if len(directions) == 1 else ops.concat(*[result[0] for result in found], axis=2)
    y = ops.reshape(y, shape=(steps, batch, len(directions), hidden))
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


def _are_all(lengths: T, steps: Any) -> bool:
    """Whether every sequence is known to have all steps."""
    return lengths.known is not None and all(n == steps for n in lengths.known.numbers.reshape(-1))


def _active_steps(c: Importer, steps: Any, batch: Any, lengths: Value) -> Any:
    index = iota(c.builder, steps)
    ends = ops.reshape(ops.cast(lengths, to=int64), shape=(1, batch, 1))
    return ops.less(ops.reshape(index, shape=(steps, 1, 1)), ends)


def row(value: Value, index: int) -> Any:
    """One entry of the first axis."""
    count, *rest = value.type.shape
    chosen = value if count == 1 else slice_axis(value, 0, index, index + 1)
    return ops.reshape(chosen, shape=tuple(rest))


def input_of(d: Direction, *biases: Value | None) -> Any:
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
        x, (h, cell) = input_of(d, d.wb, d.rb), d.states
        plain = _are(d.activations, *map(str.lower, default)) and clip is None and not input_forget and not d.p
        if plain:
            y, h_last, c_last = ops.lstm(x, d.r, h, cell, d.lengths, reverse=d.reverse)
            return y, h_last, c_last
        step = lstm_cell(d.activations, clip, bool(input_forget))
        return scanned("lstm", step, x, d.states, d.hidden, (d.r, *d.p), d.active, d.reverse)

    states = (initial_h, initial_c)
    return converted(c, 4, layer, (X, W, R), B, sequence_lens, states, P, direction, hidden_size, layout, used)


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
            return scanned("gru", step, input_of(d, d.wb, d.rb), d.states, d.hidden, (d.r,), d.active, d.reverse)
        x = input_of(d, d.wb)
        if _are(d.activations, *map(str.lower, default)) and clip is None:
            y, last = ops.gru(x, d.r, d.rb, d.states[0], d.lengths, reverse=d.reverse)
            return y, last
        extra = () if d.rb is None else (d.rb,)
        return scanned(
            "gru", gru_cell(d.activations, clip, True), x, d.states, d.hidden, (d.r, *extra), d.active, d.reverse
        )

    operands = (X, W, R)
    return converted(c, 3, layer, operands, B, sequence_lens, (initial_h,), None, direction, hidden_size, layout, used)


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
            y, last = ops.rnn(input_of(d, d.wb, d.rb), d.r, d.states[0], d.lengths, reverse=d.reverse, relu=relu)
            return y, last
        return scanned(
            "rnn", rnn_cell(bend, clip), input_of(d, d.wb, d.rb), d.states, d.hidden, (d.r,), d.active, d.reverse
        )

    operands = (X, W, R)
    return converted(c, 1, layer, operands, B, sequence_lens, (initial_h,), None, direction, hidden_size, layout, used)
