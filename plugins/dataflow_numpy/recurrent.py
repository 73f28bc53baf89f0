"""Reference of recurrent networks: one step after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .activation import sigmoid
from .arrays import Array, Attributes, Code, upcast


def _steps(x: Array, reverse: int, lengths: Array | None) -> Iterator[tuple[int, Array]]:
    """The steps in order, each with a mask (batch, 1) of the sequences that are longer."""
    count, batch = x.shape[:2]
    for t in range(count)[::-1] if reverse else range(count):
        yield t, np.ones((batch, 1), np.bool_) if lengths is None else (t < lengths)[:, None]


def _state(given: Array | None, x: Array, r: Array) -> Array:
    return np.zeros((x.shape[1], r.shape[1]), upcast(x).dtype) if given is None else upcast(given)


def _before(stack: Array, first: Array, reverse: int) -> Array:
    """The state before each step."""
    joined = [upcast(stack), first[None]] if reverse else [first[None], upcast(stack)]
    states = np.concatenate(joined)
    return states[1:] if reverse else states[:-1]


def _lstm(
    attributes: Attributes,
    x: Array,
    r: Array,
    h: Array | None = None,
    c: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    h, c, weight = _state(h, x, r), _state(c, x, r), upcast(r)
    gates = np.zeros(x.shape, x.dtype)
    y = np.zeros((*x.shape[:2], r.shape[1]), x.dtype)
    cells = np.zeros(y.shape, x.dtype)
    for t, active in _steps(x, attributes["reverse"], lengths):
        i, o, f, g = np.split(upcast(x[t]) + h @ weight.T, 4, axis=1)
        i, o, f, g = sigmoid(i), sigmoid(o), sigmoid(f), np.tanh(g)
        new = f * c + i * g
        c, h = np.where(active, new, c), np.where(active, o * np.tanh(new), h)
        y[t], cells[t], gates[t] = h, c, np.where(active, np.concatenate([i, o, f, g], axis=1), 0)
    return y, h.astype(x.dtype), c.astype(x.dtype), gates, cells


def _lstm_grad(
    attributes: Attributes,
    r: Array,
    gates: Array,
    cells: Array,
    dy: Array | None = None,
    dh: Array | None = None,
    dc: Array | None = None,
    c: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    dh, dc, weight = _state(dh, gates, r), _state(dc, gates, r), upcast(r)
    before = _before(cells, _state(c, gates, r), attributes["reverse"])
    dx = np.zeros(gates.shape, gates.dtype)
    for t, active in _steps(gates, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + upcast(dy[t])
        i, o, f, g = np.split(upcast(gates[t]), 4, axis=1)
        activated = np.tanh(upcast(cells[t]))
        dcell = dc + dh * o * (1 - activated**2)
        gradients = [
            dcell * g * i * (1 - i),
            dh * activated * o * (1 - o),
            dcell * before[t] * f * (1 - f),
            dcell * i * (1 - g**2),
        ]
        d = np.where(active, np.concatenate(gradients, axis=1), 0)
        dx[t] = d
        dh, dc = np.where(active, d @ weight, dh), np.where(active, dcell * f, dc)
    return dx, dh.astype(gates.dtype), dc.astype(gates.dtype)


def _gru(
    attributes: Attributes,
    x: Array,
    r: Array,
    bias: Array | None = None,
    h: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    h, weight = _state(h, x, r), upcast(r)
    y = np.zeros((*x.shape[:2], r.shape[1]), x.dtype)
    gates = np.zeros((*x.shape[:2], 4 * r.shape[1]), x.dtype)
    for t, active in _steps(x, attributes["reverse"], lengths):
        q = h @ weight.T if bias is None else h @ weight.T + upcast(bias)
        a, b = np.split(upcast(x[t]), 3, axis=1), np.split(q, 3, axis=1)
        z, s = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        n = np.tanh(a[2] + s * b[2])
        h = np.where(active, (1 - z) * n + z * h, h)
        y[t], gates[t] = h, np.where(active, np.concatenate([z, s, n, b[2]], axis=1), 0)
    return y, h.astype(x.dtype), gates


def _gru_grad(
    attributes: Attributes,
    r: Array,
    gates: Array,
    y: Array,
    dy: Array | None = None,
    dh: Array | None = None,
    h: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    dh, weight = _state(dh, y, r), upcast(r)
    before = _before(y, _state(h, y, r), attributes["reverse"])
    dx = np.zeros((*y.shape[:2], r.shape[0]), y.dtype)
    dq = np.zeros(dx.shape, y.dtype)
    for t, active in _steps(y, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + upcast(dy[t])
        z, s, n, q = np.split(upcast(gates[t]), 4, axis=1)
        dn = dh * (1 - z) * (1 - n**2)
        dz, ds = dh * (before[t] - n) * z * (1 - z), dn * q * s * (1 - s)
        dgates = np.concatenate([dz, ds, dn * s], axis=1)
        dx[t] = np.where(active, np.concatenate([dz, ds, dn], axis=1), 0)
        dq[t] = np.where(active, dgates, 0)
        dh = np.where(active, dh * z + dgates @ weight, dh)
    return dx, dq, dh.astype(y.dtype)


def _rnn(
    attributes: Attributes, x: Array, r: Array, h: Array | None = None, lengths: Array | None = None
) -> tuple[Array, ...]:
    h, weight = _state(h, x, r), upcast(r)
    y = np.zeros(x.shape, x.dtype)
    for t, active in _steps(x, attributes["reverse"], lengths):
        a = upcast(x[t]) + h @ weight.T
        h = np.where(active, np.maximum(a, 0) if attributes["relu"] else np.tanh(a), h)
        y[t] = h
    return y, h.astype(x.dtype)


def _rnn_grad(
    attributes: Attributes,
    r: Array,
    y: Array,
    dy: Array | None = None,
    dh: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    dh, weight = _state(dh, y, r), upcast(r)
    dx = np.zeros(y.shape, y.dtype)
    for t, active in _steps(y, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + upcast(dy[t])
        state = upcast(y[t])
        d = np.where(active, dh * (state > 0) if attributes["relu"] else dh * (1 - state**2), 0)
        dx[t] = d
        dh = np.where(active, d @ weight, dh)
    return dx, dh.astype(y.dtype)


KERNELS: dict[str, Code] = {
    "lstm": _lstm,
    "lstm_grad": _lstm_grad,
    "gru": _gru,
    "gru_grad": _gru_grad,
    "rnn": _rnn,
    "rnn_grad": _rnn_grad,
}
