"""Decision trees."""

from __future__ import annotations

from ..ir.dims import Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType, int32
from .infer import need, need_float, operand, same_dtype

MODES = ("<=", "<", ">=", ">", "==", "!=")
"""Comparisons of a node, by the number that stands for each."""
MISSING = 8
"""Added to the number of a comparison: NaN counts as fulfilling it."""


def _tree_ensemble_infer(
    x: TensorType,
    nodes: TensorType,
    thresholds: TensorType,
    starts: TensorType,
    leaves: TensorType,
    targets: TensorType,
    weights: TensorType,
    *,
    size: Size,
    aggregate: str,
) -> TensorType:
    need_float("tree_ensemble", x)
    need(x.rank == 2, f"tree_ensemble: x is {x}; expected rows of features")
    same_dtype("tree_ensemble", x, thresholds, weights)
    for name, type_ in (("nodes", nodes), ("starts", starts), ("leaves", leaves), ("targets", targets)):
        rank = 2 if name == "nodes" else 1
        need(type_.dtype == int32 and type_.rank == rank, f"tree_ensemble: {name} are {type_}; expected int32")
    need(nodes.shape[1] == 4, f"tree_ensemble: nodes are {nodes}; expected four columns")
    need(nodes.shape[:1] == thresholds.shape, f"tree_ensemble: {nodes} for the nodes and {thresholds} for thresholds")
    need(targets.shape == weights.shape, f"tree_ensemble: {targets} for targets and {weights} for weights")
    need(aggregate in ("sum", "min", "max"), f"tree_ensemble: aggregate is {aggregate!r}; expected sum, min or max")
    return TensorType(x.dtype, (x.shape[0], size))


def _cost(node: Node) -> int:
    """16 comparisons per row and tree."""
    return operand(node).type.sizes[0] * operand(node, 3).type.elements * 16


tree_ensemble: Op = Op(
    "tree_ensemble",
    ("x", "nodes", "thresholds", "starts", "leaves", "targets", "weights"),
    _tree_ensemble_infer,
    attributes={"size": REQUIRED, "aggregate": "sum"},
    cost=_cost,
    doc="(rows, size): per row the sum, minimum or maximum, over all trees, of what their leaves give each target, 0 "
    "where none does. A node is four numbers: the feature, the comparison with the threshold (``MODES``, and "
    "``MISSING`` where NaN fulfills it), the next node when it holds and when not: a later node, or the leaf ``-1 - "
    "index``. Leaf i has the entries ``leaves[i]`` to before ``leaves[i + 1]`` of targets and weights. A tree starts "
    "with a node or leaf. Sums have the precision of float64; every number is checked at run time, or where nodes are "
    "stored all of them at once",
)

OPS = (tree_ensemble,)
