"""Recurrent networks: LSTM, GRU and the plain cell, one layer in one direction.

Only what depends on the step before is here: x is the product of the inputs with their weights, biases added, which
is one matmul for all steps. The gradient gives that of x, and those of the weights are one product each over the
rows of all steps.

Axes are (steps, batch, gates times hidden). With ``lengths``, a sequence keeps its state from its end on; in reverse
it begins there. y has the state after each step, held ones too. A device without a kernel runs the loop as a scan;
see recurrent_steps.py.
"""

from __future__ import annotations

from typing import Any

from ..ir.graph import Node
from ..ir.op import DECOMPOSED, AnyOp, MultiOp, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import add
from .infer import alike, need, need_float, product
from .linalg import matmul, swapped
from .rules.recurrent_cells import gru_grad_steps, gru_steps, lstm_grad_steps, lstm_steps, rnn_grad_steps, rnn_steps
from .shape import reshape, slice_

# ---- shapes -------------------------------------------------------------------------------------------


def _check(name: str, gates: int, x: TensorType, r: TensorType, **others: TensorType | None) -> TensorType:
    """The type of a state; ``others`` have the label's shape: a state, ``bias`` or ``lengths``."""
    need_float(name, x)
    need(x.rank == 3, f"{name}: x is {x}; expected (steps, batch, {gates} times hidden)")
    need(r.rank == 2, f"{name}: r is {r}; expected ({gates} times hidden, hidden)")
    hidden, batch = r.shape[1], x.shape[1]
    _need_type(name, "r", r, TensorType(x.dtype, (hidden * gates, hidden)))
    _need_type(name, "x", x, TensorType(x.dtype, (x.shape[0], batch, hidden * gates)))
    state = TensorType(x.dtype, (batch, hidden))
    for label, given in others.items():
        if given is None:
            continue
        if label == "lengths":
            need(given.dtype.name in ("int32", "int64"), f"{name}: lengths are {given}; expected int32 or int64")
            _need_type(name, label, given, TensorType(given.dtype, (batch,)))
        elif label == "bias":
            _need_type(name, label, given, TensorType(x.dtype, (hidden * gates,)))
        else:
            _need_type(name, label, given, state)
    return state


def _need_type(name: str, label: str, given: TensorType, expected: TensorType) -> None:
    fits = given == expected or (given.dtype == expected.dtype and not (given.is_bound and expected.is_bound))
    need(fits, f"{name}: {label} is {given}; expected {expected}")


def _stack(x: TensorType, columns: Any) -> TensorType:
    return TensorType(x.dtype, (*x.shape[:2], columns))


def _cost(gates: int) -> Any:
    """Operations of the products with the state; r is the first or second input with two axes."""

    def cost(node: Node) -> int:
        r = next(v for v in node.inputs if v is not None and v.type.rank == 2)
        steps = next(v for v in node.inputs if v is not None and v.type.rank == 3)
        rows, hidden = steps.type.sizes[0] * steps.type.sizes[1], r.type.sizes[1]
        return 2 * rows * gates * hidden * hidden

    return cost


# ---- what the gradients share ---------------------------------------------------------------------------


def _weight(dx: Value, y: Value, h: Value | None, reverse: bool) -> Value:
    """The gradient of r: one product of the rows of dx with the states before them."""
    steps, batch, columns = dx.type.shape
    hidden = y.type.shape[-1]

    def rows(v: Value, begin: Any, end: Any, width: Any) -> Value:
        rows = slice_(v, starts=(begin, 0, 0), stops=(end, batch, width), steps=(1, 1, 1))
        return reshape(rows, shape=(product((end - begin, batch)), width))

    late, early = ((0, steps - 1), (1, steps)) if reverse else ((1, steps), (0, steps - 1))
    total = matmul(swapped(rows(dx, *late, columns)), rows(y, *early, hidden))
    if h is None:
        return total
    first = rows(dx, steps - 1, steps, columns) if reverse else rows(dx, 0, 1, columns)
    return add(total, matmul(swapped(first), h))


def _made(node: Node, op: AnyOp, inputs: tuple[Value | None, ...]) -> tuple[Value | None, ...]:
    first = next(v for v in inputs if v is not None)
    assert first.builder is not None
    return first.builder.add(op, inputs, node.attributes).outputs


def _operands(node: Node, count: int) -> tuple[Value | None, ...]:
    """The inputs, those left out at the end too."""
    return (*node.inputs, *(None,) * (count - len(node.inputs)))


def _weight_from(node: Node, dx: Value | None, h: Value | None) -> Value | None:
    y = node.outputs[0]
    assert dx is not None and y is not None
    if dx.type.shape[0] == 0:
        return None
    return _weight(dx, y, h, node.attributes["reverse"])


# ---- LSTM -----------------------------------------------------------------------------------------------


def _lstm_infer(
    x: TensorType,
    r: TensorType,
    h: TensorType | None = None,
    c: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
) -> tuple[TensorType, ...]:
    state = _check("lstm", 4, x, r, h=h, c=c, lengths=lengths)
    stack = _stack(x, r.shape[1])
    return stack, state, state, x, stack


def _lstm_gradient(node: Node, dy: Value | None, dh: Value | None, dc: Value | None, *kept: Value | None) -> Any:
    if any(cotangent is not None for cotangent in kept):  # of its gradient's gradient
        return DECOMPOSED
    r, h, c, lengths = _operands(node, 5)[1:]
    gates, cells = node.outputs[3:]
    dx, dh0, dc0 = _made(node, lstm_grad, (r, gates, cells, dy, dh, dc, c, lengths))
    return dx, _weight_from(node, dx, h), dh0, dc0


lstm: MultiOp = MultiOp(
    "lstm",
    ("x", "r", "h?", "c?", "lengths?"),
    _lstm_infer,
    outputs=("y", "h_last", "c_last", "+gates", "+cells"),
    attributes={"reverse": False},
    gradient=_lstm_gradient,
    decompose=lstm_steps,
    cost=_cost(4),
    doc="i, o, f = sigmoid and g = tanh of the quarters of x[t] + h r'; c = f c + i g; h = o tanh(c); y, cells: h and "
    "c after each step; gates: i, o, f, g",
)


def _lstm_grad_infer(
    r: TensorType,
    gates: TensorType,
    cells: TensorType,
    dy: TensorType | None = None,
    dh: TensorType | None = None,
    dc: TensorType | None = None,
    c: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
) -> tuple[TensorType, ...]:
    state = _check("lstm_grad", 4, gates, r, dh=dh, dc=dc, c=c, lengths=lengths)
    alike("lstm_grad: cells and dy", _stack(gates, r.shape[1]), cells, *(() if dy is None else (dy,)))
    return gates, state, state


lstm_grad: Op = Op(
    "lstm_grad",
    ("r", "gates", "cells", "dy?", "dh?", "dc?", "c?", "lengths?"),
    _lstm_grad_infer,
    outputs=("dx", "+dh_first", "+dc_first"),
    attributes={"reverse": False},
    decompose=lstm_grad_steps,
    cost=_cost(4),
    doc="from the last step back: dh += dy[t]; dx[t] from dh, dc and the gates; dh = dx[t] r, dc = f dc",
)

# ---- GRU ------------------------------------------------------------------------------------------------


def _gru_infer(
    x: TensorType,
    r: TensorType,
    bias: TensorType | None = None,
    h: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
) -> tuple[TensorType, ...]:
    state = _check("gru", 3, x, r, bias=bias, h=h, lengths=lengths)
    return _stack(x, r.shape[1]), state, _stack(x, r.shape[1] * 4)


def _gru_gradient(node: Node, dy: Value | None, dh: Value | None, *kept: Value | None) -> Any:
    if any(cotangent is not None for cotangent in kept):  # of its gradient's gradient
        return DECOMPOSED
    r, bias, h, lengths = _operands(node, 5)[1:]
    y, gates = node.outputs[0], node.outputs[2]
    dx, dq, dh0 = _made(node, gru_grad, (r, gates, y, dy, dh, h, lengths))
    return dx, _weight_from(node, dq, h), dq if bias is not None else None, dh0


gru: MultiOp = MultiOp(
    "gru",
    ("x", "r", "bias?", "h?", "lengths?"),
    _gru_infer,
    outputs=("y", "h_last", "+gates"),
    attributes={"reverse": False},
    gradient=_gru_gradient,
    decompose=gru_steps,
    cost=_cost(3),
    doc="q = h r' + bias; z, s = sigmoid of the first two thirds of x[t] + q; n = tanh(x[t] + s q) of the last; "
    "h = (1 - z) n + z h; y: h after each step; gates: z, s, n and the last third of q",
)


def _gru_grad_infer(
    r: TensorType,
    gates: TensorType,
    y: TensorType,
    dy: TensorType | None = None,
    dh: TensorType | None = None,
    h: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
) -> tuple[TensorType, ...]:
    dx = _stack(y, r.shape[0])
    state = _check("gru_grad", 3, dx, r, dh=dh, h=h, lengths=lengths)
    alike("gru_grad: y and dy", _stack(y, r.shape[1]), y, *(() if dy is None else (dy,)))
    alike("gru_grad: gates", _stack(y, r.shape[1] * 4), gates)
    return dx, dx, state


gru_grad: MultiOp = MultiOp(
    "gru_grad",
    ("r", "gates", "y", "dy?", "dh?", "h?", "lengths?"),
    _gru_grad_infer,
    outputs=("dx", "dq", "+dh_first"),
    attributes={"reverse": False},
    decompose=gru_grad_steps,
    cost=_cost(3),
    doc="from the last step back: dh += dy[t]; dx[t], dq[t] from dh and the gates; dh = dq[t] r + z dh",
)

# ---- the plain cell -------------------------------------------------------------------------------------


def _rnn_infer(
    x: TensorType,
    r: TensorType,
    h: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
    relu: bool,
) -> tuple[TensorType, ...]:
    state = _check("rnn", 1, x, r, h=h, lengths=lengths)
    return x, state


def _rnn_gradient(node: Node, dy: Value | None, dh: Value | None) -> tuple[Value | None, ...] | None:
    r, h, lengths = _operands(node, 4)[1:]
    dx, dh0 = _made(node, rnn_grad, (r, node.outputs[0], dy, dh, lengths))
    return dx, _weight_from(node, dx, h), dh0


rnn: MultiOp = MultiOp(
    "rnn",
    ("x", "r", "h?", "lengths?"),
    _rnn_infer,
    outputs=("y", "h_last"),
    attributes={"reverse": False, "relu": False},
    gradient=_rnn_gradient,
    decompose=rnn_steps,
    cost=_cost(1),
    doc="h = tanh(x[t] + h r'), or relu of it; y: h after each step",
)


def _rnn_grad_infer(
    r: TensorType,
    y: TensorType,
    dy: TensorType | None = None,
    dh: TensorType | None = None,
    lengths: TensorType | None = None,
    *,
    reverse: bool,
    relu: bool,
) -> tuple[TensorType, ...]:
    alike("rnn_grad: y and dy", y, *(() if dy is None else (dy,)))
    return y, _check("rnn_grad", 1, y, r, dh=dh, lengths=lengths)


rnn_grad: Op = Op(
    "rnn_grad",
    ("r", "y", "dy?", "dh?", "lengths?"),
    _rnn_grad_infer,
    outputs=("dx", "+dh_first"),
    attributes={"reverse": False, "relu": False},
    decompose=rnn_grad_steps,
    cost=_cost(1),
    doc="from the last step back: dh += dy[t]; dx[t] = dh (1 - y[t]^2), or dh where y[t] > 0; dh = dx[t] r",
)

OPS = (lstm, lstm_grad, gru, gru_grad, rnn, rnn_grad)
