"""Reference of attention."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast
from .linalg import matmul

INEXACT = 256.0  # see the op


def _scores(attributes: Attributes, q: Array, kt: Array) -> Array:
    """Without the mask."""
    scale, cap = np.asarray(attributes["scale"], q.dtype), np.asarray(attributes["softcap"], q.dtype)
    scores: Array = matmul({}, q, kt)
    return np.tanh(scores * (scale / cap)) * cap if cap else scores * scale


def _rows_first(x: Array) -> Array:
    """(batch, heads..., rows, size) as (batch, rows, heads..., size)."""
    return np.moveaxis(x, -2, 1)


def _heads_first(x: Array) -> Array:
    return np.moveaxis(x, 1, -2)


def _instead_of_nan(x: Array, number: float) -> Array:
    return np.where(np.isnan(x), x.dtype.type(number), x)


def _attention(attributes: Attributes, q: Array, kt: Array, v: Array, mask: Array | None = None) -> tuple[Array, Array]:
    scores = _scores(attributes, q, kt)
    scores = scores if mask is None else scores + mask
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    weights, logsum = weights / total, (most + np.log(total))[..., 0]
    if attributes["safe"]:
        weights, logsum = _instead_of_nan(weights, 0), _instead_of_nan(logsum, np.inf)
    y = matmul({}, weights, v)
    return _rows_first(y) if attributes["transposed"] else y, logsum


def _attention_grad(attributes: Attributes, *operands: Array) -> tuple[Array, ...]:
    dy, y, logsum, q, kt, v = operands[:6]
    mask = operands[6] if len(operands) > 6 else None
    if attributes["transposed"]:
        dy, y = _heads_first(dy), _heads_first(y)
    scores = _scores(attributes, q, kt)
    weights = np.exp((scores if mask is None else scores + mask) - logsum[..., None])
    inexact = np.abs(logsum[..., None]) > INEXACT
    weights = np.where(inexact, weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30), weights)
    if attributes["safe"]:
        weights = _instead_of_nan(weights, 0)
    errors = weights * (dy @ np.swapaxes(v, -1, -2) - (dy * y).sum(-1, keepdims=True))
    if attributes["softcap"]:
        errors = errors * (1 - np.square(scores / np.asarray(attributes["softcap"], errors.dtype)))
    errors *= np.asarray(attributes["scale"], errors.dtype)
    return errors @ np.swapaxes(kt, -1, -2), np.swapaxes(errors, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ dy


def _attention_grad_sums(attributes: Attributes, *operands: Array) -> tuple[Array, ...]:
    found = _attention_grad(attributes, *operands)
    return *found, *(x.sum((0, -2)) for x in found)


def _linear_attention(
    attributes: Attributes,
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    keys, queries, s = upcast(k), upcast(q), upcast(state).copy()
    y = np.zeros((*q.shape[:3], v.shape[-1]), s.dtype)
    for t in range(k.shape[1]):
        if decay is not None:
            s *= upcast(decay)[:, t, :, None]
        update = upcast(v)[:, t]
        if beta is not None:
            update = upcast(beta)[:, t] * (update - np.einsum("nk,nkv->nv", keys[:, t], s))
        s += keys[:, t, :, None] * update[:, None, :]
        y[:, :, t] = np.einsum("nrk,nkv->nrv", queries[:, :, t], s)
    return y.astype(q.dtype), s.astype(state.dtype)


KERNELS: dict[str, Code] = {
    "attention": _attention,
    "attention_grad": _attention_grad,
    "attention_grad_sums": _attention_grad_sums,
    "linear_attention": _linear_attention,
}
