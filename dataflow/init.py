"""First values of parameters: ``df.init.normal((64, 64), seed=1)``; float32 arrays, the same for the same seed.

Fans, on which the variance of most of them depends, are those of how ``df.nn`` uses weights: of (in, out) matrices, and
of convolutions (out, in, *window), where each is times the window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .errors import InputError
from .host import checks
from .host.keywords import answer as _answer
from .host.numbers import integer
from .ir.types import Array


def _sizes(name: str, shape: Sequence[int], least: int = 0) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)):
        raise InputError(f"init.{name}: shape is {checks.shown(shape)}; expected a tuple of sizes")
    found = tuple(integer(f"init.{name}: a size of shape", size, 0) for size in shape)
    if len(found) < least:
        raise InputError(f"init.{name}: shape {found} has {len(found)} axes; expected {least} or more, which have fans")
    return found


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """How many elements each result is a sum of, and in how many results each element is, for a weight."""
    sizes = _sizes("fans", shape, 2)
    if len(sizes) == 2:
        return sizes
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window


def zeros(shape: Sequence[int]) -> Array:
    """Zeros."""
    return np.zeros(_sizes("zeros", shape), np.float32)


def ones(shape: Sequence[int]) -> Array:
    """Ones."""
    return np.ones(_sizes("ones", shape), np.float32)


def constant(shape: Sequence[int], value: float) -> Array:
    """One number."""
    return np.full(_sizes("constant", shape), value, np.float32)


def normal(shape: Sequence[int], seed: int = 0, *, mean: float = 0.0, deviation: float = 1.0) -> Array:
    """Of the normal distribution."""
    drawn = _random(seed).standard_normal(_sizes("normal", shape))
    return (mean + deviation * drawn).astype(np.float32)


def truncated_normal(shape: Sequence[int], seed: int = 0, *, deviation: float = 1.0) -> Array:
    """Of the normal distribution within two deviations; what lies outside is drawn again."""
    sizes, random = _sizes("truncated_normal", shape), _random(seed)
    found = random.standard_normal(sizes)
    outside = np.abs(found) > 2.0
    while outside.any():
        found[outside] = random.standard_normal(int(outside.sum()))
        outside = np.abs(found) > 2.0
    return np.asarray(deviation * found).astype(np.float32)


def uniform(shape: Sequence[int], seed: int = 0, *, low: float = -1.0, high: float = 1.0) -> Array:
    """Uniform from ``low`` to ``high``."""
    return _random(seed).uniform(low, high, _sizes("uniform", shape)).astype(np.float32)


def xavier_uniform(shape: Sequence[int], seed: int = 0, *, gain: float = 1.0) -> Array:
    """Uniform, of variance gain^2 2 / (fan in + fan out) (Glorot and Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / max(1, sum(fans(shape))))
    return uniform(shape, seed, low=-bound, high=bound)


def xavier_normal(shape: Sequence[int], seed: int = 0, *, gain: float = 1.0) -> Array:
    """Normal, of variance gain^2 2 / (fan in + fan out)."""
    return normal(shape, seed, deviation=gain * math.sqrt(2.0 / max(1, sum(fans(shape)))))


def kaiming_uniform(shape: Sequence[int], seed: int = 0, *, gain: float = math.sqrt(2.0)) -> Array:
    """Uniform, of variance gain^2 / fan in (He et al. 2015); the gain is relu's."""
    bound = gain * math.sqrt(3.0 / max(1, fans(shape)[0]))
    return uniform(shape, seed, low=-bound, high=bound)


def kaiming_normal(shape: Sequence[int], seed: int = 0, *, gain: float = math.sqrt(2.0)) -> Array:
    """Normal, of variance gain^2 / fan in."""
    return normal(shape, seed, deviation=gain / math.sqrt(max(1, fans(shape)[0])))


def orthogonal(shape: Sequence[int], seed: int = 0, *, gain: float = 1.0) -> Array:
    """Orthonormal rows or columns, whichever are fewer, of the weight as (first axis, others) (Saxe et al. 2014)."""
    sizes = _sizes("orthogonal", shape, 2)
    rows, columns = sizes[0], math.prod(sizes[1:])
    drawn = _random(seed).standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.sign(np.diag(r))
    return (gain * (q if rows >= columns else q.T)).reshape(sizes).astype(np.float32)


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(integer("init: seed", seed, 0))


_answer(__name__)
