"""What an optimizer is: the rule of an update, as part of a graph, and the numbers that it reads at each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Union

import numpy as np

from ...errors import InputError
from ...host import checks
from ...ir.builder import GraphBuilder
from ...ir.types import DType, TensorType
from ...ir.value import Value

Schedule = Callable[[int], float]
"""Optimizer steps done so far -> the factor on the learning rate for the next one."""
Sizes = tuple[int, ...]


def same_shape(shape: Sizes) -> Sizes | None:
    """The parameter's shape."""
    return shape


def scalar(shape: Sizes) -> Sizes | None:
    """Rank 0 for every parameter."""
    return ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A state tensor that an optimizer keeps per parameter.

    Attributes:
        name: among the optimizer's slots.
        shape: its shape by the parameter's; None: that parameter has no such tensor.
        start: its elements at first, or ``"parameter"``: a copy of the parameter.
        evaluated: evaluation, prediction and saving read this tensor in place of the parameter; of its shape.
        signed: it may have negative elements.
        dtype: of its elements; None: the parameter's, or float32 where that has fewer bits.
    """

    name: str
    shape: Callable[[Sizes], Sizes | None] = same_shape
    start: float | Literal["parameter"] = 0.0
    evaluated: bool = False
    signed: bool = True
    dtype: DType | None = None


class Optimizer(Protocol):
    """A rule that changes parameters."""

    @property
    def lr(self) -> float:
        """Learning rate before the schedule."""

    @property
    def schedule(self) -> Schedule | str | None:
        """The factor on it by optimizer step, or its name; None is a constant rate."""

    @property
    def slots(self) -> Sequence[Union[str, Slot]]:
        """The state tensors that each parameter has; a name stands for one of its shape, zeros at first."""

    @property
    def hyper_size(self) -> int:
        """Length of what ``hyper`` returns."""

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """What the update reads as a tensor: (K,) float64, or float32; ``step`` counts from 1."""

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and the new slots.

        Args:
            g: where the nodes go.
            param: any shape.
            grad: the sum of gradients over the logical batch, same shape.
            slots: as in ``slots``, without those that this parameter doesn't have.
            hyper: what ``hyper`` makes, in the dtype of ``param``.
            scale: rank 0, in the dtype of ``param``; multiplies the gradient: 1 / weight of the batch, times the
                clipping factor.
        """


@dataclass(frozen=True, slots=True)
class SlotTensor:
    """A slot of one parameter.

    Attributes:
        slot: which.
        parameter: whose.
        type: dtype and shape.
    """

    slot: Slot
    parameter: str
    type: TensorType


def slots_of(rule: Optimizer) -> tuple[Slot, ...]:
    """The optimizer's slots as objects."""
    return tuple(Slot(slot) if isinstance(slot, str) else slot for slot in rule.slots)


def slot_tensors(rule: Optimizer, name: str, type_: TensorType) -> list[SlotTensor]:
    """The tensors that the optimizer keeps for a parameter of this name and type.

    Raises:
        InputError: a slot that is read in place of the parameter has another shape.
    """
    found = []
    for slot in slots_of(rule):
        shape = slot.shape(type_.sizes)
        if shape is None:
            continue
        if shape != type_.sizes and (slot.evaluated or slot.start == "parameter"):
            raise InputError(
                f"{type(rule).__name__}: slot {slot.name!r} is {list(shape)} for a parameter of {type_}; what starts "
                "as the parameter, or is read in its place, has its shape"
            )
        found.append(SlotTensor(slot, name, TensorType(slot.dtype or type_.dtype, tuple(shape))))
    return found


def check_numbers(name: str, **numbers: float) -> None:
    """Raises InputError where one isn't a finite number from 0 on."""
    for key, number in numbers.items():
        checks.number(f"{name}: {key}", number)


def check_shares(name: str, **numbers: float) -> None:
    """Raises InputError where one isn't a number from 0 to 1, 1 excluded."""
    for key, number in numbers.items():
        checks.number(f"{name}: {key}", number, 0.0, 1.0)


def check_positive(name: str, **numbers: float) -> None:
    """Raises InputError where one isn't a finite number above 0: it is divided by."""
    check_numbers(name, **numbers)
    for key, number in numbers.items():
        if number == 0.0:
            raise InputError(f"{name}: {key} is 0; expected a number above 0, since it is divided by")


def check_betas(name: str, betas: Any) -> None:
    """Raises InputError where ``betas`` aren't two numbers from 0 to 1, 1 excluded."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise InputError(f"{name}: betas are {checks.shown(betas)}; expected two numbers, 0 <= beta < 1")
    for beta in betas:
        checks.number(f"{name}: one of betas", beta, 0.0, 1.0)
