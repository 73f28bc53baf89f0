"""Losses that pay as one op."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..ir.graph import Node
from ..ir.op import MultiOp, Op
from ..ir.types import TensorType
from ..ir.value import Value
from .arithmetic import add, exp, mul, neg, sub
from .gather import full
from .infer import alike, need, need_float, normal_axis
from .logic import equal, where
from .reduce import reduce_sum
from .shape import reshape

# Of several sizes along the axis, ``classes`` says that only so many of the first are classes; 0: all are.
_ATTRIBUTES: dict[str, Any] = {"axis": 1, "ignore_index": -100, "label_smoothing": 0.0, "classes": 0}


def _infer(
    logits: TensorType, labels: TensorType, *, axis: int, ignore_index: int, label_smoothing: float, classes: int
) -> tuple[TensorType, TensorType, TensorType]:
    name = "softmax_cross_entropy"
    need_float(name, logits)
    need(labels.dtype.name in ("int32", "int64"), f"{name}: labels are {labels}; expected int32 or int64")
    at = normal_axis(name, axis, logits.rank)
    shape = logits.shape[:at] + logits.shape[at + 1 :]
    fits = labels.shape == shape or not (logits.is_bound and labels.is_bound)
    need(fits, f"{name}: labels are {labels}; logits {logits} without axis {axis} have shape {shape}")
    need(0.0 <= label_smoothing < 1.0, f"{name}: label_smoothing is {label_smoothing}; expected 0 <= it < 1")
    size = logits.shape[at]
    known = classes == 0 if not isinstance(size, int) else 0 <= classes <= size
    need(known, f"{name}: classes is {classes}; expected 0 for all, or at most the {size} of the logits")
    loss = TensorType(logits.dtype, labels.shape)
    return loss, loss, loss


def _grad_infer(
    dloss: TensorType,
    logits: TensorType,
    labels: TensorType,
    top: TensorType,
    log_sum: TensorType,
    **attributes: Any,
) -> TensorType:
    loss, *_ = _infer(logits, labels, **attributes)
    alike("softmax_cross_entropy_grad: the loss, its gradient, top and log_sum", loss, dloss, top, log_sum)
    return logits


def _both_infer(
    dloss: TensorType, logits: TensorType, labels: TensorType, **attributes: Any
) -> tuple[TensorType, TensorType]:
    loss, *_ = _infer(logits, labels, **attributes)
    alike("softmax_cross_entropy_with_grad: the loss and its gradient", loss, dloss)
    return loss, logits


def _gradient(
    node: Node, dloss: Value | None, dtop: Value | None = None, dlog_sum: Value | None = None
) -> tuple[Value | None, None]:
    logits, labels = node.inputs
    _, top, log_sum = node.outputs
    assert logits is not None and top is not None and log_sum is not None
    how = node.attributes
    found = None if dloss is None else softmax_cross_entropy_grad(dloss, logits, labels, top, log_sum, **how)
    terms = [] if found is None else [found]  # the others are of the gradient's gradient
    if dlog_sum is not None:
        terms.append(mul(_along(dlog_sum, logits, node), _probabilities(node, logits, top, log_sum)))
    if dtop is not dlog_sum:  # where both are the same, as of their sum, what is at the largest cancels
        apart = neg(dlog_sum) if dtop is None else dtop if dlog_sum is None else sub(dtop, dlog_sum)
        largest = _inside(node, logits, equal(logits, _along(top, logits, node)), False)
        terms.append(where(largest, _along(apart, logits, node), 0.0))
    return functools.reduce(add, terms) if terms else None, None


def _second(node: Node, u: Value) -> tuple[Value | None, ...]:
    """Of dlogits = dloss (e^(logits - top - log_sum) - target)."""
    dloss, logits, labels, top, log_sum = node.inputs
    assert dloss is not None and logits is not None and top is not None and log_sum is not None
    axis = normal_axis("softmax_cross_entropy", node.attributes["axis"], logits.type.rank)
    ignored = equal(labels, node.attributes["ignore_index"])
    assert dloss.builder is not None
    ones = dloss.builder.add(full, (), {"shape": dloss.type.shape, "value": 1.0, "dtype": dloss.type.dtype}).outputs[0]
    by_loss = softmax_cross_entropy_grad(ones, logits, labels, top, log_sum, **node.attributes)
    weight = _along(where(ignored, 0.0, dloss), logits, node)
    by_logits = mul(mul(u, weight), _probabilities(node, logits, top, log_sum))

    def total(x: Value) -> Value:
        summed: Value = reduce_sum(x, axes=(axis,), keepdims=False)
        return summed

    by_sum = neg(total(by_logits))
    return total(mul(u, by_loss)), by_logits, None, by_sum, by_sum


def _along(x: Value, logits: Value, node: Node) -> Value:
    """What is per label, with an axis of one in place of the classes."""
    axis = normal_axis("softmax_cross_entropy", node.attributes["axis"], logits.type.rank)
    expanded: Value = reshape(x, shape=(*x.type.shape[:axis], 1, *x.type.shape[axis:]))
    return expanded


def _probabilities(node: Node, logits: Value, top: Value, log_sum: Value) -> Value:
    """e^(logits - top - log_sum), 0 behind the classes."""
    found: Value = exp(sub(sub(logits, _along(top, logits, node)), _along(log_sum, logits, node)))
    return _inside(node, logits, found, 0.0)


def _inside(node: Node, logits: Value, found: Value, otherwise: float | bool) -> Value:
    """What was found of the classes, and something else behind them."""
    if not node.attributes["classes"]:
        return found
    axis = normal_axis("softmax_cross_entropy", node.attributes["axis"], logits.type.rank)
    sizes = [-1 if at == axis else 1 for at in range(logits.type.rank)]
    inside = np.arange(logits.type.sizes[axis]).reshape(sizes) < node.attributes["classes"]
    assert logits.builder is not None
    chosen: Value = where(logits.builder.constant(inside), found, otherwise)
    return chosen


def _cost(node: Node) -> int:
    logits = node.inputs[node.op.inputs.index("logits")]
    assert logits is not None
    return 10 * logits.type.elements


softmax_cross_entropy: Op = Op(
    "softmax_cross_entropy",
    ("logits", "labels"),
    _infer,
    outputs=("loss", "+top", "+log_sum"),
    attributes=_ATTRIBUTES,
    gradient=_gradient,
    cost=_cost,
    doc="loss = top + log_sum - (1 - s) logits[label] - s mean(logits), top = max logits, log_sum = ln sum "
    "e^(logits - top); 0 where the label is ignored. One number for both sums would be off by 5e-4 at logits of 1e4",
)
softmax_cross_entropy_grad: Op = Op(
    "softmax_cross_entropy_grad",
    ("dloss", "logits", "labels", "top", "log_sum"),
    _grad_infer,
    outputs=("dlogits",),
    attributes=_ATTRIBUTES,
    gradient=_second,
    inplace=((0, 1),),
    cost=_cost,
    doc="dlogits = dloss (e^(logits - top - log_sum) - (1 - s) [class = label] - s / C); 0 where the label is ignored",
)
softmax_cross_entropy_with_grad: MultiOp = MultiOp(
    "softmax_cross_entropy_with_grad",
    ("dloss", "logits", "labels"),
    _both_infer,
    outputs=("loss", "dlogits"),
    attributes=_ATTRIBUTES,
    inplace=((1, 1),),
    cost=_cost,
    doc="both of softmax_cross_entropy and of its gradient, whose logits are read once",
)


def _ctc_infer(
    log_probs: TensorType, labels: TensorType, lengths: TensorType, label_lengths: TensorType, *, blank: int
) -> TensorType:
    name = "ctc_loss"
    need_float(name, log_probs)
    need(log_probs.rank == 3 and labels.rank == 2, f"{name}: expected (B, T, C) and (B, L), got {log_probs}, {labels}")
    integers = all(t.dtype.name in ("int32", "int64") for t in (labels, lengths, label_lengths))
    need(integers, f"{name}: labels and lengths are {labels}, {lengths}, {label_lengths}; expected int32 or int64")
    batch, classes = log_probs.shape[0], log_probs.shape[2]
    for given in (labels.shape[:1], lengths.shape, label_lengths.shape):
        bound = all(isinstance(n, int) for n in (batch, *given))
        need(not bound or given == (batch,), f"{name}: expected one row or length for each of {batch} samples")
    need(
        not isinstance(classes, int) or 0 <= blank < classes, f"{name}: blank is {blank}; expected a class of {classes}"
    )
    return TensorType(log_probs.dtype, (batch,))


def _ctc_grad_infer(dloss: TensorType, log_probs: TensorType, *read: TensorType, blank: int) -> TensorType:
    alike("ctc_loss_grad: the loss and its gradient", _ctc_infer(log_probs, *read, blank=blank), dloss)
    return log_probs


def _ctc_gradient(node: Node, dloss: Value) -> tuple[Value | None, ...]:
    return ctc_loss_grad(dloss, *node.inputs, **node.attributes), None, None, None


def _ctc_second(node: Node, u: Value) -> tuple[Value | None, ...]:
    """The gradient is dloss times that of one: what u and that one give, and the second derivatives times u."""
    dloss, *read = node.inputs
    assert dloss is not None
    slope, product = ctc_loss_product(u, *read, **node.attributes)
    return slope, mul(reshape(dloss, shape=(*dloss.type.shape, 1, 1)), product), None, None, None


def _ctc_product_infer(
    u: TensorType, log_probs: TensorType, *read: TensorType, blank: int
) -> tuple[TensorType, TensorType]:
    alike("ctc_loss_product: log_probs and what they are multiplied with", log_probs, u)
    return _ctc_infer(log_probs, *read, blank=blank), log_probs


def _ctc_cost(node: Node) -> int:
    log_probs, labels = node.inputs[-4:-2]
    assert log_probs is not None and labels is not None
    batch, length = (n if isinstance(n, int) else 1 for n in log_probs.type.shape[:2])
    states = labels.type.shape[1]
    return 200 * batch * length * (2 * (states if isinstance(states, int) else 1) + 1)


ctc_loss: Op = Op(
    "ctc_loss",
    ("log_probs", "labels", "lengths", "label_lengths"),
    _ctc_infer,
    attributes={"blank": 0},
    gradient=_ctc_gradient,
    cost=_ctc_cost,
    doc="-ln of the sum, over all paths of a class per time that give the labels once equal neighbours are merged and "
    "blanks dropped, of e^(the path's log_probs); of (B, T, C) and (B, L): (B,); inf where there is no such path",
)
ctc_loss_grad: Op = Op(
    "ctc_loss_grad",
    ("dloss", "log_probs", "labels", "lengths", "label_lengths"),
    _ctc_grad_infer,
    outputs=("dlog_probs",),
    attributes={"blank": 0},
    gradient=_ctc_second,
    cost=_ctc_cost,
    doc="dlog_probs = -dloss * the share of the paths that have this class at this time; 0 where there is no path",
)
ctc_loss_product: MultiOp = MultiOp(
    "ctc_loss_product",
    ("u", "log_probs", "labels", "lengths", "label_lengths"),
    _ctc_product_infer,
    outputs=("slope", "product"),
    attributes={"blank": 0},
    cost=_ctc_cost,
    doc="slope = sum of u times the gradient of each sample's ctc_loss; product = its second derivatives times u "
    "(Pearlmutter 1994); 0 where there is no path",
)

OPS = (
    softmax_cross_entropy,
    softmax_cross_entropy_grad,
    softmax_cross_entropy_with_grad,
    ctc_loss,
    ctc_loss_grad,
    ctc_loss_product,
)
