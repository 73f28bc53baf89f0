"""Reference of products of matrices, determinants, and the discrete Fourier transform."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def matmul(attributes: Attributes, a: Array, b: Array) -> Array:
    """The product of the last two axes."""
    return np.matmul(upcast(a), upcast(b)).astype(a.dtype)


def _matmul_rounded(
    attributes: Attributes, a: Array, b: Array, bias: Array | None = None, addend: Array | None = None
) -> Array:
    y = np.matmul(upcast(a), upcast(b)).astype(np.float32)
    for added in (bias, addend):
        y = y if added is None else y + added
    return np.maximum(y, np.float32(0)) if attributes["relu"] else y


def _det(attributes: Attributes, x: Array) -> Array:
    return np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype)


def _inverse(attributes: Attributes, x: Array) -> Array:
    y = np.empty_like(x)
    for index in np.ndindex(x.shape[:-2]):
        try:
            y[index] = np.linalg.inv(x[index].astype(np.float64))
        except np.linalg.LinAlgError:  # of a singular one
            y[index] = np.nan
    return y


_FEW = 4  # rows of a matrix up to which determinants of minors cost no more than an inverse


def _cofactor(attributes: Attributes, x: Array) -> Array:
    """By an inverse; where that loses digits, element by element: the determinants of minors."""
    y = np.empty_like(x)
    for index in np.ndindex(x.shape[:-2]):
        y[index] = _cofactors(x[index].astype(np.float64))
    return y


def _cofactors(a: Array) -> Array:
    rows = len(a)
    if rows > _FEW and np.isfinite(a).all() and np.linalg.cond(a) < 1e8:
        return np.linalg.det(a) * np.linalg.inv(a).T
    found = np.empty_like(a)
    for i, j in np.ndindex(a.shape):
        minor = np.delete(np.delete(a, i, axis=0), j, axis=1)
        found[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return found


def _dft(attributes: Attributes, x: Array) -> Array:
    axis = attributes["axis"] % x.ndim
    if x.shape[axis] == 0:
        return x.copy()
    pairs = x.astype(np.float64)
    points = pairs[..., 0] + 1j * pairs[..., 1]
    transform = np.fft.ifft if attributes["inverse"] else np.fft.fft
    y = transform(points, axis=axis, norm="forward" if attributes["inverse"] else "backward")
    return np.stack([y.real, y.imag], axis=-1).astype(x.dtype)


KERNELS: dict[str, Code] = {
    "matmul": matmul,
    "matmul_rounded": _matmul_rounded,
    "det": _det,
    "cofactor": _cofactor,
    "inverse": _inverse,
    "dft": _dft,
}
