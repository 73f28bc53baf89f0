"""The converter of an LSTM with quantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..recurrent import Direction, converted, input_of, row
from ..recurrent_cells import activations_of, lstm_cell, scanned

T = Tensor
operator = Collector("com.microsoft")


def _along(c: Importer, vector: T, directions: int, gates: Any) -> list[Value]:
    """The scale or zero point of each direction: a number, or one for each column of its matrix."""
    value = c.value(vector)
    shape: tuple[Any, ...] = value.type.shape
    if shape not in ((directions,), (directions, 1), (directions, gates)):
        raise ModelError(f"a scale or zero point is {value.type}; expected (directions,) or (directions, gates)")
    count = shape[1] if len(shape) == 2 else 1
    return [ops.reshape(row(value, i), shape=(count,) if count != 1 else ()) for i in range(directions)]


def _product(floats: Value, integers: Value, scale: Value, zero: Value) -> Any:
    """Of rows, which are rounded to 8 bits by one scale, and a matrix of integers."""
    steps, own, offset = ops.dynamic_quantize(floats)
    sums = ops.matmul_integer(steps, integers, offset, zero)
    return ops.mul(ops.cast(sums, to=float32), ops.mul(own, scale))


@operator("DynamicQuantizeLSTM")
def DynamicQuantizeLSTM(
    c: Importer,
    X: T,
    W: T,
    R: T,
    B: T | None,
    sequence_lens: T | None,
    initial_h: T | None,
    initial_c: T | None,
    P: T | None,
    W_scale: T,
    W_zero_point: T,
    R_scale: T,
    R_zero_point: T,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> Any:
    """An LSTM whose inputs, of all steps, and states, of each step, are rounded to 8 bits before their products."""
    used = activations_of(activations, ("Sigmoid", "Tanh", "Tanh"), direction, activation_alpha, activation_beta)
    w, r = c.value(W), c.value(R)
    if w.type.rank != 3 or r.type.rank != 3 or isinstance(r.type.shape[0], Dim):
        raise ModelError(f"W is {w.type} and R is {r.type}; both need three axes")
    directions, gates = r.type.shape[0], r.type.shape[2]
    numbers = [_along(c, t, directions, gates) for t in (W_scale, W_zero_point, R_scale, R_zero_point)]

    def of_inputs(rows: Value, columns: Value, index: int) -> Any:
        return _product(rows, columns, numbers[0][index], numbers[1][index])

    def layer(d: Direction) -> Sequence[Any]:
        factors = (ops.transpose(d.r, perm=(1, 0)), numbers[2][d.index], numbers[3][d.index])
        cell = lstm_cell(d.activations, clip, bool(input_forget), _product, len(factors))
        x = input_of(d, d.wb, d.rb)
        return scanned("lstm", cell, x, d.states, d.hidden, (*factors, *d.p), d.active, d.reverse)

    transposed = [Tensor(t.name, ops.transpose(v, perm=(0, 2, 1))) for t, v in ((W, w), (R, r))]
    operands = (X, transposed[0], transposed[1])
    states = (initial_h, initial_c)
    return converted(c, 4, layer, operands, B, sequence_lens, states, P, direction, hidden_size, 0, used, of_inputs)
