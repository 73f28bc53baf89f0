"""Reference of attention."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast
from .linalg import matmul


def _scores(attributes: Attributes, q: Array, kt: Array, mask: Array | None) -> Array:
    scores: Array = matmul({}, q, kt) * np.asarray(attributes["scale"], q.dtype)
    return scores if mask is None else scores + mask


def _instead_of_nan(x: Array, number: float) -> Array:
    return np.where(np.isnan(x), x.dtype.type(number), x)


def _attention(attributes: Attributes, q: Array, kt: Array, v: Array, mask: Array | None = None) -> tuple[Array, Array]:
    scores = _scores(attributes, q, kt, mask)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    weights, logsum = weights / total, (most + np.log(total))[..., 0]
    if attributes["safe"]:
        weights, logsum = _instead_of_nan(weights, 0), _instead_of_nan(logsum, np.inf)
    y = matmul({}, weights, v)
    return y.transpose(0, 2, 1, 3) if attributes["transposed"] else y, logsum


def _attention_grad(attributes: Attributes, *operands: Array) -> tuple[Array, ...]:
    dy, y, logsum, q, kt, v = operands[:6]
    mask = operands[6] if len(operands) > 6 else None
    if attributes["transposed"]:
        dy, y = dy.transpose(0, 2, 1, 3), y.transpose(0, 2, 1, 3)
    weights = np.exp(_scores(attributes, q, kt, mask) - logsum[..., None])
    if attributes["safe"]:
        weights = _instead_of_nan(weights, 0)
    errors = weights * (dy @ np.swapaxes(v, -1, -2) - (dy * y).sum(-1, keepdims=True))
    errors *= np.asarray(attributes["scale"], errors.dtype)
    return errors @ np.swapaxes(kt, -1, -2), np.swapaxes(errors, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ dy


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
    "linear_attention": _linear_attention,
}
