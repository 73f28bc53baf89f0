"""Muon: the momentum of a matrix, made orthogonal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .adam import AdamW
from .groups import Grouped
from .protocol import Schedule, Sizes, Slot, check_numbers, check_shares
from .terms import norm, scalars, scaled, span, toward

_QUINTIC = (3.4445, -4.7750, 2.0315)  # of Jordan's iteration: singular values end between about 0.7 and 1.2
_LEAST_NORM = 1e-7


def _matrix(shape: Sizes) -> Sizes | None:
    return shape if len(shape) > 1 else None


def _vector(shape: Sizes) -> Sizes | None:
    return shape if len(shape) < 2 else None


@dataclass(frozen=True)
class Muon(Grouped):
    """Orthogonal momentum for matrices (Jordan et al. 2024), as torch.optim.Muon; vectors are AdamW's.

    Filters of convolutions are matrices of one row per result channel. Embeddings and the last layer train better by
    AdamW: ``groups=[Group("embedding*", "head", optimizer=AdamW(...))]``.

    Attributes:
        lr: learning rate of matrices.
        weight_decay: fraction of a matrix taken off per step, times the rate.
        momentum: decay of the running mean of gradients.
        nesterov: look ahead along it.
        iterations: of Newton and Schulz.
        scale: ``"rms"`` gives steps the RMS of AdamW's, 0.2 sqrt(max(rows, columns)); ``"rows"`` is
            Jordan's sqrt(max(1, rows / columns)), for matrices stored with a row per result.
        vectors: what parameters of fewer than two axes train by, with its own decay; its rate follows ``lr`` through
            schedule and groups.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 1e-3
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    iterations: int = 5
    scale: Literal["rms", "rows"] = "rms"
    vectors: AdamW = field(default_factory=lambda: AdamW(weight_decay=0.0))
    schedule: Schedule | str | None = None

    slots = (Slot("momentum", _matrix), Slot("m", _vector), Slot("v", _vector))

    def __post_init__(self) -> None:
        check_numbers("Muon", lr=self.lr, weight_decay=self.weight_decay)
        check_shares("Muon", momentum=self.momentum)
        integer("Muon: iterations", self.iterations)
        checks.text("Muon: scale", self.scale, ("rms", "rows"))
        checks.instance("Muon: nesterov", self.nesterov, bool)
        checks.instance("Muon: vectors", self.vectors, AdamW)
        if self.lr == 0.0:
            raise InputError("Muon: lr is 0; expected a number above 0")

    @property
    def hyper_size(self) -> int:
        """Two numbers, and AdamW's."""
        return 2 + self.vectors.hyper_size

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, 1 - lr weight_decay], and what AdamW reads."""
        of_vectors = self.vectors.hyper(step, self.vectors.lr * (lr / self.lr))
        return np.concatenate([np.array([lr, 1.0 - lr * self.weight_decay]), of_vectors])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, and the new momentum, or m and v."""
        if param.type.rank < 2:
            return self.vectors.build(g, param, grad, slots, span(hyper, 2, self.hyper_size), scale)
        lr, kept = scalars(span(hyper, 0, 2), param)
        grad = scaled(grad, scale)
        momentum = toward(slots[0], grad, 1.0 - self.momentum)
        ahead = toward(grad, momentum, self.momentum) if self.nesterov else momentum
        shape = param.type.sizes
        rows, columns = shape[0], math.prod(shape[1:])
        step = ops.reshape(_orthogonal(ops.reshape(ahead, shape=(rows, columns)), self.iterations), shape=shape)
        as_adamw = 0.2 * math.sqrt(max(rows, columns, 1))
        factor = as_adamw if self.scale == "rms" else math.sqrt(max(1.0, rows / max(columns, 1)))
        return ops.sub(ops.mul(param, kept), ops.mul(step, ops.mul(lr, factor))), momentum


def _orthogonal(x: Value, iterations: int) -> Value:
    """About the nearest matrix to ``x``, (M, N), of orthogonal rows or columns: its singular values become about 1."""
    tall = x.type.sizes[0] > x.type.sizes[1]
    if tall:
        x = ops.transpose(x, perm=(1, 0))
    x = ops.div(x, ops.maximum(norm(x), _LEAST_NORM))
    a, b, c = _QUINTIC
    for _ in range(iterations):
        gram = ops.matmul(x, ops.transpose(x, perm=(1, 0)))
        update = ops.add(ops.mul(gram, b), ops.mul(ops.matmul(gram, gram), c))
        x = ops.add(ops.mul(x, a), ops.matmul(update, x))
    return ops.transpose(x, perm=(1, 0)) if tall else x
