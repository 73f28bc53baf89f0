"""Adam and its kin: AdamW, Adam with AMSGrad, Adamax, NAdam, RAdam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import ops
from ...host import checks
from ...ir.builder import GraphBuilder
from ...ir.value import Value
from .eight_bit import check_moment_bits
from .groups import DECAYED, Decaying, Grouped
from .protocol import Schedule, Slot, check_betas, check_numbers, check_positive
from .terms import decayed_gradient, scalars, span, square, toward


@dataclass(frozen=True)
class AdamW(Grouped):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW but for ``no_decay``.

    Attributes:
        lr: learning rate.
        weight_decay: fraction of a parameter taken off per step, times the rate.
        betas: decay of the mean and of the mean square of gradients.
        epsilon: added to its square root.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        no_decay: patterns of parameters that don't decay; ``()`` decays all, as PyTorch does.
        moment_bits: 32, or 8: large tensors of the state in bytes, block by block.
    """

    lr: float = 1e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Schedule | str | None = None
    no_decay: Sequence[str] = field(default=DECAYED, kw_only=True)
    moment_bits: int = field(default=32, kw_only=True)

    slots = ("m", Slot("v", signed=False))
    hyper_size = 4

    def __post_init__(self) -> None:
        check_numbers("AdamW", lr=self.lr, weight_decay=self.weight_decay, epsilon=self.epsilon)
        check_betas("AdamW", self.betas)
        check_moment_bits("AdamW", self.moment_bits)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr, weight_decay, 1 - beta1^step, 1 - beta2^step]."""
        first, second = self.betas
        return np.array([lr, self.weight_decay, 1.0 - first**step, 1.0 - second**step])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v."""
        first, second = self.betas
        new: tuple[Value, ...] = ops.adamw_step(
            param, grad, *slots, hyper, scale, beta1=first, beta2=second, epsilon=self.epsilon
        )
        return new


@dataclass(frozen=True)
class Adam(Grouped):
    """Adam (Kingma and Ba 2015) and AMSGrad (Reddi et al. 2018), as torch.optim.Adam.

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.
        betas: decay of the mean and of the mean square of gradients.
        epsilon: added to its square root.
        amsgrad: divide by the square root of the largest mean square so far.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
        moment_bits: 32, or 8: large tensors of the state in bytes, block by block.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    amsgrad: bool = False
    schedule: Schedule | str | None = None
    moment_bits: int = field(default=32, kw_only=True)

    def __post_init__(self) -> None:
        check_numbers("Adam", lr=self.lr, weight_decay=self.weight_decay, epsilon=self.epsilon)
        check_betas("Adam", self.betas)
        checks.instance("Adam: amsgrad", self.amsgrad, bool)
        check_moment_bits("Adam", self.moment_bits)

    @property
    def slots(self) -> tuple[str | Slot, ...]:
        """Mean and mean square of the gradients; with ``amsgrad`` the largest mean square."""
        return ("m", *(Slot(name, signed=False) for name in ("v", "largest")[: 1 + self.amsgrad]))

    hyper_size = 7

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """What ``adamw_step`` reads, without decay; the decay; for AMSGrad the rates of m and of the largest v."""
        first, second = self.betas
        rest_m, rest_v = 1.0 - first**step, 1.0 - second**step
        return np.array([lr, 0.0, rest_m, rest_v, self.weight_decay, lr / rest_m, rest_v**-0.5])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v, and the largest v."""
        first, second = self.betas
        decay, of_m, of_v = scalars(span(hyper, 4, 7), param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        if not self.amsgrad:
            if self.weight_decay:
                grad, scale = gradient(), g.scalar(1.0, param.type.dtype)
            new: tuple[Value, ...] = ops.adamw_step(
                param, grad, *slots, span(hyper, 0, 4), scale, beta1=first, beta2=second, epsilon=self.epsilon
            )
            return new
        m, v = toward(slots[0], gradient(), 1.0 - first), toward(slots[1], square(gradient()), 1.0 - second)
        largest = ops.maximum(slots[2], v)
        bottom = ops.add(ops.mul(ops.sqrt(largest), of_v), self.epsilon)
        return ops.sub(param, ops.mul(ops.div(m, bottom), of_m)), m, v, largest


@dataclass(frozen=True)
class Adamax(Decaying):
    """Adam by the infinity norm (Kingma and Ba 2015, section 7), as torch.optim.Adamax; attributes as of Adam."""

    lr: float = 2e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Schedule | str | None = None

    slots = ("m", "largest")

    def __post_init__(self) -> None:
        check_numbers("Adamax", lr=self.lr, weight_decay=self.weight_decay)
        check_positive("Adamax", epsilon=self.epsilon)
        check_betas("Adamax", self.betas)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """[lr / (1 - beta1^step), weight_decay]."""
        return super().hyper(step, lr / (1.0 - self.betas[0] ** step))

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, mean and infinity norm."""
        rate, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        m = toward(slots[0], gradient(), 1.0 - self.betas[0])
        largest = ops.maximum(ops.mul(slots[1], self.betas[1]), ops.add(ops.abs(gradient()), self.epsilon))
        return ops.sub(param, ops.mul(ops.div(m, largest), rate)), m, largest


@dataclass(frozen=True)
class NAdam(Grouped):
    """Adam with Nesterov's momentum (Dozat 2016), as torch.optim.NAdam; the decay joins the gradient.

    Attributes:
        lr: learning rate.
        weight_decay: factor of the parameter that is added to its gradient.
        betas: decay of the mean and of the mean square of gradients.
        epsilon: added to its square root.
        momentum_decay: how fast the momentum of a step nears beta1.
        schedule: factor on ``lr`` by optimizer step, see df.schedules; or a name from there.
    """

    lr: float = 2e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum_decay: float = 4e-3
    schedule: Schedule | str | None = None

    slots = ("m", "v")
    hyper_size = 4

    def __post_init__(self) -> None:
        check_numbers("NAdam", lr=self.lr, weight_decay=self.weight_decay, momentum_decay=self.momentum_decay)
        check_positive("NAdam", epsilon=self.epsilon)
        check_betas("NAdam", self.betas)

    def _momenta(self, steps: Any) -> Any:
        """The momentum of each step."""
        return self.betas[0] * (1.0 - 0.5 * 0.96 ** (steps * self.momentum_decay))

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """The factor of the mean by the gradient's, the latter, 1 / sqrt(1 - beta2^step), and the decay."""
        # The product of all momenta so far is subtracted from 1: below beta1^n < 2^-60 the rest of it changes nothing.
        most = step if self.betas[0] == 0.0 else min(step, math.ceil(-42.0 / math.log(self.betas[0])))
        product = float(np.prod(self._momenta(np.arange(1, most + 1, dtype=np.float64))))
        now, next_ = self._momenta(step), self._momenta(step + 1)
        of_grad, of_mean = (1.0 - now) / (1.0 - product), next_ / (1.0 - product * next_)
        inverse = (1.0 - self.betas[1] ** step) ** -0.5
        return np.array([of_mean / of_grad, lr * of_grad, inverse, self.weight_decay])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v."""
        ratio, of_grad, inverse, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        m = toward(slots[0], gradient(), 1.0 - self.betas[0])
        v = toward(slots[1], square(gradient()), 1.0 - self.betas[1])
        ahead = ops.add(gradient(), ops.mul(m, ratio))
        return (
            ops.sub(param, ops.div(ops.mul(ahead, of_grad), ops.add(ops.mul(ops.sqrt(v), inverse), self.epsilon))),
            m,
            v,
        )


@dataclass(frozen=True)
class RAdam(Grouped):
    """Adam whose rate is rectified while few gradients were seen (Liu et al. 2020), as torch.optim.RAdam.

    The decay joins the gradient. Attributes as of Adam.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Schedule | str | None = None

    slots = ("m", "v")
    hyper_size = 3

    def __post_init__(self) -> None:
        check_numbers("RAdam", lr=self.lr, weight_decay=self.weight_decay)
        check_positive("RAdam", epsilon=self.epsilon)
        check_betas("RAdam", self.betas)

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """The factors on m alone and on m / (sqrt(v) + epsilon), of which one is 0; and the decay."""
        first, second = self.betas
        rest = 1.0 - second**step
        most = 2.0 / (1.0 - second) - 1.0
        length = most - 2.0 * step * second**step / rest  # of the average that the mean square stands for
        rate = lr / (1.0 - first**step)
        if length <= 5.0:
            return np.array([rate, 0.0, self.weight_decay])
        rectified = ((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) ** 0.5
        return np.array([0.0, rate * rectified * rest**0.5, self.weight_decay])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, m and v."""
        plain, adaptive, decay = scalars(hyper, param)
        gradient = decayed_gradient(param, grad, scale, decay, self.weight_decay)
        m = toward(slots[0], gradient(), 1.0 - self.betas[0])
        v = toward(slots[1], square(gradient()), 1.0 - self.betas[1])
        factor = ops.add(ops.div(adaptive, ops.add(ops.sqrt(v), self.epsilon)), plain)
        return ops.sub(param, ops.mul(m, factor)), m, v
