"""Reference of optimizer steps."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def _sgd(
    attributes: Attributes, param: Array, grad: Array, velocity: Array | None, hyper: Array, scale: Array
) -> tuple[Array, ...]:
    if not np.isfinite(scale):
        return (param.copy(),) if velocity is None else (param.copy(), velocity.copy())
    rate, decay = (float(h) for h in hyper)
    p = upcast(param)
    g = upcast(grad) * scale + decay * p
    if velocity is None:
        return ((p - rate * g).astype(param.dtype),)
    v = attributes["momentum"] * upcast(velocity) + g
    step = g + attributes["momentum"] * v if attributes["nesterov"] else v
    return (p - rate * step).astype(param.dtype), v.astype(param.dtype)


def _adamw(
    attributes: Attributes, param: Array, grad: Array, m: Array, v: Array, hyper: Array, scale: Array
) -> tuple[Array, Array, Array]:
    if not np.isfinite(scale):
        return param.copy(), m.copy(), v.copy()
    rate, decay, correction1, correction2 = (float(h) for h in hyper)
    beta1, beta2 = attributes["beta1"], attributes["beta2"]
    p, g = upcast(param), upcast(grad) * scale
    m = beta1 * upcast(m) + (1 - beta1) * g
    v = beta2 * upcast(v) + (1 - beta2) * g * g
    step = (m / correction1) / (np.sqrt(v / correction2) + attributes["epsilon"])
    p = p * (1 - rate * decay) - rate * step
    return p.astype(param.dtype), m.astype(param.dtype), v.astype(param.dtype)


def _square_sum(attributes: Attributes, x: Array, before: Array | None = None) -> Array:
    with np.errstate(over="ignore"):  # an infinite sum is an answer
        total = np.square(upcast(x)).sum(dtype=np.float64) + (0.0 if before is None else upcast(before))
        exact = np.float64 in (x.dtype, None if before is None else before.dtype)
        return np.asarray(total, np.float64 if exact else np.float32)


def _square_sums(attributes: Attributes, *xs: Array) -> Array:
    with np.errstate(over="ignore"):
        total = sum(np.square(upcast(x)).sum(dtype=np.float64) for x in xs)
        return np.asarray(total, np.float32)


def _blocks(x: Array, block: int) -> Array:
    """The elements in rows of a block, zeros behind the last."""
    flat = x.reshape(-1)
    padded = np.zeros(-(-flat.size // block) * block, flat.dtype)
    padded[: flat.size] = flat
    return padded.reshape(-1, block)


def _encode(attributes: Attributes, x: Array, code: Array) -> tuple[Array, Array]:
    rows = _blocks(x.astype(np.float32), attributes["block"])
    scales = np.abs(rows).max(axis=1, initial=0)
    with np.errstate(invalid="ignore"):
        shares = rows / np.where(scales == 0, np.float32(1), scales)[:, None]
    middles = (code[:-1] + code[1:]) * np.float32(0.5)
    codes = np.where(np.isnan(shares), 0, np.searchsorted(middles, shares))
    return codes.astype(np.uint8).reshape(-1)[: x.size].reshape(x.shape), scales


def _decode(attributes: Attributes, codes: Array, scales: Array, code: Array) -> Array:
    rows = _blocks(codes, attributes["block"])
    return (code[rows] * scales[:, None]).reshape(-1)[: codes.size].reshape(codes.shape)


KERNELS: dict[str, Code] = {
    "sgd_step": _sgd,
    "adamw_step": _adamw,
    "square_sum": _square_sum,
    "square_sums": _square_sums,
    "encode_blocks": _encode,
    "decode_blocks": _decode,
}
