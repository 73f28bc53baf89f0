"""Reference of recurrent networks: one step after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .activation import sigmoid
from .arrays import Array, Attributes, Code, wide


def _steps(x: Array, reverse: int, lengths: Array | None) -> Iterator[tuple[int, Array]]:
    """The steps in order, each with the sequences that go on."""
    count, batch = x.shape[:2]
    for t in range(count)[::-1] if reverse else range(count):
        yield t, np.ones((batch, 1), np.bool_) if lengths is None else (t < lengths)[:, None]


def _state(given: Array | None, x: Array, r: Array) -> Array:
    return np.zeros((x.shape[1], r.shape[1]), wide(x).dtype) if given is None else wide(given)


def _before(stack: Array, first: Array, reverse: int) -> Array:
    """The state before each step."""
    joined = [wide(stack), first[None]] if reverse else [first[None], wide(stack)]
    whole = np.concatenate(joined)
    return whole[1:] if reverse else whole[:-1]


def _lstm(
    attributes: Attributes,
    x: Array,
    r: Array,
    h: Array | None = None,
    c: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    h, c, weight = _state(h, x, r), _state(c, x, r), wide(r)
    gates = np.zeros(x.shape, x.dtype)
    y = np.zeros((*x.shape[:2], r.shape[1]), x.dtype)
    cells = np.zeros(y.shape, x.dtype)
    for t, going in _steps(x, attributes["reverse"], lengths):
        i, o, f, g = np.split(wide(x[t]) + h @ weight.T, 4, axis=1)
        i, o, f, g = sigmoid(i), sigmoid(o), sigmoid(f), np.tanh(g)
        new = f * c + i * g
        c, h = np.where(going, new, c), np.where(going, o * np.tanh(new), h)
        y[t], cells[t], gates[t] = h, c, np.where(going, np.concatenate([i, o, f, g], axis=1), 0)
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
    dh, dc, weight = _state(dh, gates, r), _state(dc, gates, r), wide(r)
    before = _before(cells, _state(c, gates, r), attributes["reverse"])
    dx = np.zeros(gates.shape, gates.dtype)
    for t, going in _steps(gates, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + wide(dy[t])
        i, o, f, g = np.split(wide(gates[t]), 4, axis=1)
        bent = np.tanh(wide(cells[t]))
        through = dc + dh * o * (1 - bent**2)
        parts = [
            through * g * i * (1 - i),
            dh * bent * o * (1 - o),
            through * before[t] * f * (1 - f),
            through * i * (1 - g**2),
        ]
        d = np.where(going, np.concatenate(parts, axis=1), 0)
        dx[t] = d
        dh, dc = np.where(going, d @ weight, dh), np.where(going, through * f, dc)
    return dx, dh.astype(gates.dtype), dc.astype(gates.dtype)


def _gru(
    attributes: Attributes,
    x: Array,
    r: Array,
    bias: Array | None = None,
    h: Array | None = None,
    lengths: Array | None = None,
) -> tuple[Array, ...]:
    h, weight = _state(h, x, r), wide(r)
    y = np.zeros((*x.shape[:2], r.shape[1]), x.dtype)
    gates = np.zeros((*x.shape[:2], 4 * r.shape[1]), x.dtype)
    for t, going in _steps(x, attributes["reverse"], lengths):
        q = h @ weight.T if bias is None else h @ weight.T + wide(bias)
        a, b = np.split(wide(x[t]), 3, axis=1), np.split(q, 3, axis=1)
        z, s = sigmoid(a[0] + b[0]), sigmoid(a[1] + b[1])
        n = np.tanh(a[2] + s * b[2])
        h = np.where(going, (1 - z) * n + z * h, h)
        y[t], gates[t] = h, np.where(going, np.concatenate([z, s, n, b[2]], axis=1), 0)
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
    dh, weight = _state(dh, y, r), wide(r)
    before = _before(y, _state(h, y, r), attributes["reverse"])
    dx = np.zeros((*y.shape[:2], r.shape[0]), y.dtype)
    dq = np.zeros(dx.shape, y.dtype)
    for t, going in _steps(y, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + wide(dy[t])
        z, s, n, q = np.split(wide(gates[t]), 4, axis=1)
        dn = dh * (1 - z) * (1 - n**2)
        dz, ds = dh * (before[t] - n) * z * (1 - z), dn * q * s * (1 - s)
        behind = np.concatenate([dz, ds, dn * s], axis=1)
        dx[t] = np.where(going, np.concatenate([dz, ds, dn], axis=1), 0)
        dq[t] = np.where(going, behind, 0)
        dh = np.where(going, dh * z + behind @ weight, dh)
    return dx, dq, dh.astype(y.dtype)


def _rnn(
    attributes: Attributes, x: Array, r: Array, h: Array | None = None, lengths: Array | None = None
) -> tuple[Array, ...]:
    h, weight = _state(h, x, r), wide(r)
    y = np.zeros(x.shape, x.dtype)
    for t, going in _steps(x, attributes["reverse"], lengths):
        a = wide(x[t]) + h @ weight.T
        h = np.where(going, np.maximum(a, 0) if attributes["relu"] else np.tanh(a), h)
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
    dh, weight = _state(dh, y, r), wide(r)
    dx = np.zeros(y.shape, y.dtype)
    for t, going in _steps(y, not attributes["reverse"], lengths):
        dh = dh if dy is None else dh + wide(dy[t])
        now = wide(y[t])
        d = np.where(going, dh * (now > 0) if attributes["relu"] else dh * (1 - now**2), 0)
        dx[t] = d
        dh = np.where(going, d @ weight, dh)
    return dx, dh.astype(y.dtype)


KERNELS: dict[str, Code] = {
    "lstm": _lstm,
    "lstm_grad": _lstm_grad,
    "gru": _gru,
    "gru_grad": _gru_grad,
    "rnn": _rnn,
    "rnn_grad": _rnn_grad,
}
