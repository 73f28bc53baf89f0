"""Masters: the float32 values of parameters that a model stores in 16 bits, which the optimizer changes.

A step changes a weight by far less than its 8 or 11 bits of mantissa resolve. The optimizer therefore keeps a copy of
float32 as one more slot, beside moments of float32; the parameter is its master rounded (Micikevicius et al. 2018).
"""

from __future__ import annotations

from ...ir.types import TensorType, float32
from .protocol import Optimizer, Slot, SlotTensor, slot_tensors

MASTER = Slot("master", start="parameter")


def is_narrow(type_: TensorType) -> bool:
    """Whether a parameter of this type has a master."""
    return type_.dtype.is_float and type_.dtype.bits < 32


def master_type(type_: TensorType) -> TensorType:
    """The type of a parameter's master, moments and gradient sums: its own from 32 bits on, else float32."""
    return TensorType(float32, type_.shape) if is_narrow(type_) else type_


def kept_tensors(rule: Optimizer, name: str, type_: TensorType) -> list[SlotTensor]:
    """The tensors that are kept for a parameter: the optimizer's, and behind them the master where it has one.

    Raises:
        InputError: a slot that is read in place of the parameter has another shape.
    """
    found = slot_tensors(rule, name, master_type(type_))
    return [*found, SlotTensor(MASTER, name, master_type(type_))] if is_narrow(type_) else found
