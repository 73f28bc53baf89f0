"""Recurrent cells with all of ONNX's options, as bodies of scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dataflow import GraphBuilder, Value, ops
from dataflow.errors import ModelError

from ..emit import equal_slices, full, slice_axis

Cell = Callable[..., tuple[Any, ...]]
"""``cell(x, states, *weights)``: the new states."""
Product = Callable[..., Any]
"""``product(h, *factors)``: of a state and the weights of all gates."""

# Alpha and beta where the file gives none; None: it must give them, () where the function has no such number.
_NUMBERS: dict[str, tuple[tuple[float | None, ...], tuple[float | None, ...]]] = {
    "relu": ((), ()),
    "tanh": ((), ()),
    "sigmoid": ((), ()),
    "softsign": ((), ()),
    "softplus": ((), ()),
    "affine": ((None,), (0.0,)),
    "leakyrelu": ((0.01,), ()),
    "thresholdedrelu": ((1.0,), ()),
    "scaledtanh": ((None,), (None,)),
    "hardsigmoid": ((0.2,), (0.5,)),
    "elu": ((1.0,), ()),
}
_FUNCTIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "relu": lambda x, a, b: ops.relu(x),
    "tanh": lambda x, a, b: ops.tanh(x),
    "sigmoid": lambda x, a, b: ops.sigmoid(x),
    "softsign": lambda x, a, b: ops.softsign(x),
    "softplus": lambda x, a, b: ops.softplus(x),
    "affine": lambda x, a, b: ops.add(ops.mul(x, a), b),
    "leakyrelu": lambda x, a, b: ops.leaky_relu(x, alpha=a),
    "thresholdedrelu": lambda x, a, b: ops.thresholded_relu(x, alpha=a),
    "scaledtanh": lambda x, a, b: ops.mul(ops.tanh(ops.mul(x, b)), a),
    "hardsigmoid": lambda x, a, b: ops.hard_sigmoid(x, alpha=a, beta=b),
    "elu": lambda x, a, b: ops.elu(x, alpha=a),
}


@dataclass(frozen=True, slots=True)
class Activation:
    """A function by its name in small letters, with its numbers."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    def __call__(self, x: Any, clip: float | None) -> Any:
        """The function of ``x``, which is clipped before."""
        clipped = x if clip is None else ops.minimum(ops.maximum(x, -clip), clip)
        return _FUNCTIONS[self.name](clipped, self.alpha, self.beta)


def activations_of(
    given: Sequence[str] | None,
    default: Sequence[str],
    direction: str,
    alpha: Sequence[float] | None,
    beta: Sequence[float] | None,
) -> list[Activation]:
    """Those of all directions, in order; each takes the numbers that it has from the lists, as onnxruntime does.

    A list may be longer where each function that takes a number finds the same at its own place, which is where ONNX's
    reference looks.

    Raises:
        ModelError: one is not known, their number is wrong, or numbers are missing or left over.
    """
    count = len(default) * (2 if direction == "bidirectional" else 1)
    names = [name.lower() for name in given or tuple(default) * (count // len(default))]
    if len(names) != count:
        raise ModelError(f"activations has {len(names)} entries; {direction} needs {count}")
    unknown = [name for name in names if name not in _NUMBERS]
    if unknown:
        raise ModelError(f"the activation {unknown[0]!r} is not known; known are {', '.join(sorted(_NUMBERS))}")
    alphas = _taken("activation_alpha", alpha or (), [(name, _NUMBERS[name][0]) for name in names])
    betas = _taken("activation_beta", beta or (), [(name, _NUMBERS[name][1]) for name in names])
    return [Activation(*of) for of in zip(names, alphas, betas, strict=True)]


def _taken(
    label: str, numbers: Sequence[float], functions: Sequence[tuple[str, tuple[float | None, ...]]]
) -> list[float]:
    """The number of each function: the next of a list, else its usual one; 0 where it has none.

    Raises:
        ModelError: as ``activations_of``.
    """
    left, taken, is_alike = list(numbers), [], True
    for index, (name, usual) in enumerate(functions):
        if usual and not left and usual[0] is None:
            raise ModelError(f"the activation {name!r} needs a number in {label}")
        taken.append((left.pop(0) if left else usual[0] or 0.0) if usual else 0.0)
        is_alike = is_alike and (not usual or list(numbers[index : index + 1]) == taken[-1:])
    if left and not is_alike:
        names = ", ".join(name for name, _ in functions)
        raise ModelError(f"{label} has {len(left)} numbers more than the activations {names} take")
    return taken


def scanned(
    name: str,
    cell: Cell,
    x: Value,
    states: Sequence[Value | None],
    hidden: Any,
    weights: Sequence[Value],
    active: Value | None,
    reverse: int,
) -> tuple[Any, ...]:
    """The first state after each step, and the last states, of a scan over the rows of ``x``; see ``Cell``."""
    outer = x.builder
    assert outer is not None
    shape = (x.type.shape[1], hidden)
    starts = [full(outer, shape, 0.0, x.type.dtype) if s is None else s for s in states]
    g = GraphBuilder(name)

    def inputs(values: Sequence[Value | None], label: str, drop: int = 0) -> list[Value]:
        return [
            g.input(f"{label}{i}", v.type.dtype, v.type.shape[drop:]) for i, v in enumerate(values) if v is not None
        ]

    rows = [x] if active is None else [x, active]
    before, row, captured = inputs(starts, "state"), inputs(rows, "row", 1), inputs(weights, "capture")
    after = cell(row[0], before, *captured)
    if active is not None:
        after = tuple(ops.where(row[1], new, old) for new, old in zip(after, before, strict=True))
    for i, value in enumerate((*after, ops.copy(after[0]))):
        g.output(f"result{i}", value)
    attributes = {"n_carries": len(starts), "n_xs": len(rows), "reverse": reverse}
    made = outer.add(ops.scan, [*starts, *rows, *weights], attributes, bodies=(g.build(),)).outputs
    return made[len(starts)], *made[: len(starts)]


def _transposed(r: Value) -> Any:
    return ops.transpose(r, perm=(1, 0))


def _plain(h: Value, r: Value) -> Any:
    return ops.matmul(h, _transposed(r))


def lstm_cell(
    activations: Sequence[Activation], clip: float | None, coupled: bool, product: Product = _plain, factors: int = 1
) -> Cell:
    """LSTM; of the weights the first are the ``factors`` of the product, then come the peepholes of the gates i, o, f.

    Coupled: the forget gate is 1 - i.
    """
    f, g, h = activations

    def cell(x: Value, states: Sequence[Value], *weights: Value) -> tuple[Any, ...]:
        (hidden, old), p = states, weights[factors:]
        i, o, forget, new = equal_slices(ops.add(x, product(hidden, *weights[:factors])), 1, 4)
        if p:
            i, forget = ops.add(i, ops.mul(p[0], old)), ops.add(forget, ops.mul(p[2], old))
        i = f(i, clip)
        forget = ops.sub(1.0, i) if coupled else f(forget, clip)
        c = ops.add(ops.mul(forget, old), ops.mul(i, g(new, clip)))
        if p:
            o = ops.add(o, ops.mul(p[1], c))
        return ops.mul(f(o, clip), h(c, None)), c  # as onnxruntime: the state is not clipped

    return cell


def gru_cell(activations: Sequence[Activation], clip: float | None, linear_before_reset: bool) -> Cell:
    """GRU; ``extra`` is the bias of the product with the state, if any."""
    f, g = activations

    def cell(x: Value, states: Sequence[Value], r: Value, *bias: Value) -> tuple[Any, ...]:
        (h,) = states
        a = equal_slices(x, 1, 3)
        if linear_before_reset:
            q = ops.matmul(h, _transposed(r))
            b = equal_slices(ops.add(q, bias[0]) if bias else q, 1, 3)
            z, s = f(ops.add(a[0], b[0]), clip), f(ops.add(a[1], b[1]), clip)
            n = g(ops.add(a[2], ops.mul(s, b[2])), clip)
        else:
            width = int(r.type.shape[1])
            gates, state = slice_axis(r, 0, 0, 2 * width), slice_axis(r, 0, 2 * width, 3 * width)
            b = equal_slices(ops.matmul(h, _transposed(gates)), 1, 2)
            z, s = f(ops.add(a[0], b[0]), clip), f(ops.add(a[1], b[1]), clip)
            n = g(ops.add(a[2], ops.matmul(ops.mul(s, h), _transposed(state))), clip)
        return (ops.add(ops.mul(ops.sub(1.0, z), n), ops.mul(z, h)),)

    return cell


def rnn_cell(activation: Activation, clip: float | None) -> Cell:
    """The plain cell."""

    def cell(x: Value, states: Sequence[Value], r: Value) -> tuple[Any, ...]:
        return (activation(ops.add(x, ops.matmul(states[0], _transposed(r))), clip),)

    return cell
