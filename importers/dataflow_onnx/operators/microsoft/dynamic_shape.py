"""The converter of an operator whose results have sizes that depend on data."""

from __future__ import annotations

from typing import Any

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..dynamic_shape import unique

T = Tensor
operator = Collector("com.microsoft")


@operator("Unique")
def Unique(c: Importer, x: T) -> Any:
    """The elements that differ, in the order in which they occur, the number of each element among them, and counts."""
    found, _, ids, counts = unique(c, x, None, 0)
    return (found, ids, counts)[: len(c.node.outputs)]
