"""Losses that pay as one op."""

from __future__ import annotations

from typing import Any

from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType
from ..ir.value import Value
from .infer import alike, need, need_float, need_no_cotangent, normal_axis

_ATTRIBUTES: dict[str, Any] = {"axis": 1, "ignore_index": -100, "label_smoothing": 0.0}


def _infer(
    logits: TensorType, labels: TensorType, *, axis: int, ignore_index: int, label_smoothing: float
) -> tuple[TensorType, TensorType]:
    name = "softmax_cross_entropy"
    need_float(name, logits)
    need(labels.dtype.name in ("int32", "int64"), f"{name}: labels are {labels}; expected int32 or int64")
    at = normal_axis(name, axis, logits.rank)
    shape = logits.shape[:at] + logits.shape[at + 1 :]
    fits = labels.shape == shape or not (logits.is_bound and labels.is_bound)
    need(fits, f"{name}: labels are {labels}; logits {logits} without axis {axis} have shape {shape}")
    need(0.0 <= label_smoothing < 1.0, f"{name}: label_smoothing is {label_smoothing}; expected 0 <= it < 1")
    loss = TensorType(logits.dtype, labels.shape)
    return loss, loss


def _grad_infer(
    dloss: TensorType, logits: TensorType, labels: TensorType, lse: TensorType, **attributes: Any
) -> TensorType:
    loss, _ = _infer(logits, labels, **attributes)
    alike("softmax_cross_entropy_grad: the loss, its gradient and lse", loss, dloss, lse)
    return logits


def _gradient(node: Node, dloss: Value, *kept: Value | None) -> tuple[Value, None]:
    need_no_cotangent(node, *kept)
    logits, labels = node.inputs
    return softmax_cross_entropy_grad(dloss, logits, labels, node.outputs[1], **node.attributes), None


def _cost(node: Node) -> int:
    logits = node.inputs[1 if node.op.name.endswith("grad") else 0]
    assert logits is not None
    return 10 * logits.type.elements


softmax_cross_entropy: Op = Op(
    "softmax_cross_entropy",
    ("logits", "labels"),
    _infer,
    outputs=("loss", "+lse"),
    attributes=_ATTRIBUTES,
    gradient=_gradient,
    cost=_cost,
    doc="loss = lse - (1 - s) logits[label] - s mean(logits) with lse = ln sum e^logits; 0 where the label is ignored",
)
softmax_cross_entropy_grad: Op = Op(
    "softmax_cross_entropy_grad",
    ("dloss", "logits", "labels", "lse"),
    _grad_infer,
    outputs=("dlogits",),
    attributes=_ATTRIBUTES,
    inplace=((0, 1),),
    cost=_cost,
    doc="dlogits = dloss (e^(logits - lse) - (1 - s) [class = label] - s / C); 0 where the label is ignored",
)

OPS = (softmax_cross_entropy, softmax_cross_entropy_grad)
