"""What declarations of ops have as defaults of attributes beside values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .types import TensorType


class Required:
    """In place of a default: the attribute must be given."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = Required()
REQUIRED_DTYPE: Any = Required()  # which may be text, or one of NumPy's


@dataclass(frozen=True, slots=True)
class PerAxis:
    """A default as long as the operands say: a number for each axis behind batch and channels of the first.

    Attributes:
        number: which it is.
        ends: how often it comes per axis.
    """

    number: int
    ends: int = 1

    def of(self, types: Sequence[TensorType | None]) -> Any:
        """The numbers for operands of these types; ``REQUIRED`` where there are none."""
        first = types[0] if types else None
        return REQUIRED if first is None else (self.number,) * (self.ends * (first.rank - 2))

    def __repr__(self) -> str:
        return f"{self.number} per axis"
