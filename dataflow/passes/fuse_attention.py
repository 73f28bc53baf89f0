"""Graph -> Graph: softmax(scores) v as one op where a device has a kernel for it, in the forms that exporters write.

Between product, softmax and product there may be scales, a cap, masks, and views: heads reshaped into the batch and
back, keys and values of few heads repeated for groups of queries, weights or results transposed. The op reads the
operands of these views, so that no copies are made for them: repeated heads are read where they are, and where there is
one query per head, those of a group become the rows of one matrix.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Hashable, Iterator
from typing import Any, NamedTuple

from ..errors import InputError
from ..host.limits import poll
from ..ir.graph import Graph, Node
from ..ir.kernel import Targets
from ..ir.tracing import key_of
from ..ir.types import TensorType
from ..ir.value import Value
from ..ops.attention import attention
from ..ops.linalg import matmul
from ..ops.logic import is_nan, where
from ..ops.shape import reshape, transpose
from ..ops.softmax import softmax
from .attention_form import Form, Layout, replaced
from .attention_scores import Leaf, Scores, ScoresReader, leaf_of, leaves
from .grouping import Groups
from .view_axes import Axis, axes_of, common_sizes, divided, joined, through, view_of


def fuse_attention(
    graph: Graph, targets: Targets, mutable: Collection[str] = (), *, differentiable: bool = False
) -> Graph:
    """The graph with attention as one op where the device of its first node has a kernel for it.

    Where selections and bounds are masks, results are those of the graph as it is for scores that are finite and of
    magnitudes below 1e20.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        mutable: names of initializers whose data may change: they are no constants.
        differentiable: for a graph that is yet to be differentiated: only where there is a kernel for the gradient too.
    """
    if not targets.offer(attention.name) or not any(node.op is softmax for node in graph.nodes):
        return graph
    search = _Search(graph, targets, mutable, differentiable)
    found = {form.last: form for form in map(search.match, search.ends()) if form is not None}
    return replaced(graph, found, differentiable) if found else graph


class _Result(NamedTuple):
    """What is read of the weights: their product with the values.

    Attributes:
        product: the node.
        values: its other operand.
        safe: weights that are NaN become 0.
        swapped: it is the product of the transposed values and the transposed weights.
        nodes: from the softmax to the product.
    """

    product: Node
    values: Value
    safe: bool
    swapped: bool
    nodes: tuple[Node, ...]


class _Search(Groups):
    def __init__(self, graph: Graph, targets: Targets, mutable: Collection[str], differentiable: bool) -> None:
        super().__init__(graph, targets)
        self._mutable, self._differentiable = mutable, differentiable
        self._reader = ScoresReader(self.makers, self.alone, self.constant, differentiable)
        self._numbers = self._reader.numbers()
        self._taken: dict[Hashable, bool] = {}  # by types, attributes and devices: layers are alike

    def ends(self) -> Iterator[Node]:
        """The softmaxes over the last axis."""
        for node in self.graph.nodes:
            x = node.inputs[0] if node.op is softmax else None
            if x is not None and node.attributes["axis"] in (-1, x.type.rank - 1) and x.type.elements:
                poll(node)
                yield node

    def alone(self, value: Value) -> bool:
        """Whether a value has one reader and is no result."""
        return value not in self.kept and len(self.readers.get(value, ())) == 1

    def constant(self, value: Value) -> float | None:
        """The one number of an initializer that stays as it is."""
        data = self.graph.initializers.get(value)
        if data is None or data.factor is not None or value.type.elements != 1 or value.name in self._mutable:
            return None
        return float(data.array.reshape(-1)[0]) if data.array.dtype.kind in "fiu" else None

    def match(self, node: Node) -> Form | None:
        """The attention around a softmax, where a device takes it."""
        x = node.inputs[0]
        assert x is not None
        result = self._result(node)
        scores = None if result is None else self._reader.read(x)
        if result is None or scores is None or not self.together({*scores.nodes, *result.nodes}):
            return None
        form = self._form(scores, result)
        if form is None:
            return None
        types = form.types()
        elements = math.prod(_sizes(form.last))
        key = key_of(types, tuple(form.attributes.values()), self.targets.order(form.first), elements)
        if key not in self._taken:
            self._taken[key] = self._takes(form, types, elements)
        return form if self._taken[key] else None

    # ---- behind the softmax -----------------------------------------------------------------------------

    def _result(self, node: Node) -> _Result | None:
        nodes, value, safe, swapped = [node], node.outputs[0], False, False
        while value is not None and value not in self.kept:
            readers = self.readers.get(value, [])
            cleared = self._cleared(value, readers)
            if cleared is not None and not safe:
                safe = True
                nodes += readers
                value = cleared.outputs[0]
                continue
            if len(readers) != 1:
                return None
            (reader,) = readers
            nodes.append(reader)
            if reader.op is matmul:
                values, weights = reader.inputs if swapped else reader.inputs[::-1]
                fits = weights is value and values is not None and values is not value
                y = reader.outputs[0]
                if not fits or values is None or y is None or y.type.sizes[:-2] != value.type.sizes[:-2]:
                    return None
                return _Result(reader, values, safe, swapped, tuple(nodes))
            if reader.op is transpose and _swaps_last(reader.attributes["perm"]):
                swapped = not swapped
            elif reader.op is not reshape or not _keeps_last(reader):
                return None
            value = reader.outputs[0]
        return None

    def _cleared(self, value: Value, readers: list[Node]) -> Node | None:
        """The node that has 0 where ``value`` is NaN, if that is all that is read of it."""
        if len(readers) != 2:
            return None
        asked, chosen = readers if readers[0].op is is_nan else readers[::-1]
        if asked.op is not is_nan or chosen.op is not where or asked.outputs[0] is None:
            return None
        condition, zero, other = chosen.inputs
        assert zero is not None
        fits = condition is asked.outputs[0] and other is value and self.alone(asked.outputs[0])
        return chosen if fits and self.constant(zero) == 0.0 and chosen.outputs[0] is not None else None

    # ---- the form of all --------------------------------------------------------------------------------

    def _form(self, scores: Scores, result: _Result) -> Form | None:
        """What is found with leading axes that all operands have in common, or None where there are none."""
        q, kt = scores.product.inputs
        x, y = scores.product.outputs[0], result.product.outputs[0]
        assert q is not None and kt is not None and x is not None and y is not None
        shape, y_shape = x.type.sizes, y.type.sizes
        if min(q.type.rank, kt.type.rank, result.values.type.rank) < 2 or 0 in (*q.type.sizes, *y_shape):
            return None
        own_q = self._operand(q, (*shape[:-1], q.type.sizes[-1]))
        own_kt = self._operand(kt, (*shape[:-2], *kt.type.sizes[-2:]))
        own_v = self._operand(result.values, (*y_shape[:-2], *result.values.type.sizes[-2:]), numbers=False)
        if result.swapped:
            own_v = dataclasses.replace(own_v, row=own_v.column, column=own_v.row, swapped=True)
        every = (own_q, own_kt, own_v, *(leaf for leaf, _ in scores.factors), *leaves(scores.mask))
        sizes = common_sizes([leaf.lead for leaf in every])
        scale, cap = scores.scale * (own_q.view.number or 1.0) * (own_kt.view.number or 1.0), scores.cap
        if sizes is None or not math.isfinite(scale) or not (cap is None or 0 < cap < math.inf):
            return None
        rows, group = shape[-2], 0
        if rows == 1 and sizes and _is_grouped(sizes, own_q, own_kt, own_v):
            *some, rows = sizes
            sizes, group = tuple(some), rows
        lead, layout = self._layout(result, (*sizes, rows, y_shape[-2 if result.swapped else -1]))
        attributes: dict[str, Any] = {
            "scale": scale * (cap or 1.0),
            "transposed": layout.transposed,
            "safe": result.safe,
            "softcap": cap or 0.0,
        }
        return Form(
            layout.last, scores.product, lead, group, own_q, own_kt, own_v, scores.factors, scores.mask, attributes,
            layout.swapped, self.targets.pin(scores.product),
        )  # fmt: skip

    def _operand(self, value: Value, shape: tuple[int, ...], *, numbers: bool = True) -> Leaf:
        return leaf_of(value, view_of(value, self.makers, self._numbers if numbers else {}, matrix=True), shape)

    def _layout(self, result: _Result, canonical: tuple[int, ...]) -> tuple[tuple[int, ...], Layout]:
        """The leading axes, and up to which node the op's result is that of the nodes behind the product."""
        lead, axes = canonical[:-2], axes_of(canonical)
        if result.swapped:
            axes = (*axes[:-2], axes[-1], axes[-2])
        node = result.product
        plain = [*range(len(canonical))]
        rows, columns = plain[-2:]
        orders = {
            _present([rows, *plain[:-2], columns], canonical): ((1, *lead), True),
            _present([*plain[:1], rows, *plain[1:-2], columns], canonical): (lead, True),
            _present(plain, canonical): (lead, False),
        }
        found = lead, Layout(node, transposed=False, swapped=result.swapped)
        laid = divided(_flat(axes), _sizes(node))
        value = node.outputs[0]
        while laid is not None and value is not None:
            order = _order(tuple(laid), canonical)
            known = orders.get(order) if order is not None else None
            if known is not None and (known[1] or found[1].swapped):
                return known[0], Layout(node, transposed=known[1], swapped=False)
            if not self.alone(value):
                break
            (node,) = self.readers[value]
            if node.op not in (reshape, transpose):
                break
            after = through((node,), tuple(laid))
            laid, value = None if after is None else [*after], node.outputs[0]
        return found

    def _takes(self, form: Form, types: tuple[TensorType | None, ...], elements: int) -> bool:
        """Whether a device has kernels for it, with operands of these types and a result of so many elements.

        Where all operands repeat along an axis the op's result doesn't have it.
        """
        try:
            inferred = attention.infer(*types, **form.attributes)
        except InputError:
            return False
        assert isinstance(inferred, tuple)
        if inferred[0].elements != elements:
            return False
        inputs = tuple(None if t is None else Value("operand", t) for t in types)
        outputs = (Value("y", inferred[0]), Value("logsum", inferred[1]) if self._differentiable else None)
        made = Node(attention, form.last.name, inputs, outputs, form.attributes)
        device = self.targets.taker(made, form.first)
        return device is not None and not (
            self._differentiable and f"{attention.name}_grad" not in self.targets.kernels[device]
        )


def _swaps_last(perm: tuple[int, ...]) -> bool:
    rank = len(perm)
    return tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)


def _sizes(node: Node) -> tuple[int, ...]:
    value = node.outputs[0]
    assert value is not None
    return value.type.sizes


def _keeps_last(node: Node) -> bool:
    """Whether a reshape changes leading axes alone."""
    x = node.inputs[0]
    assert x is not None
    return x.type.rank > 1 and len(_sizes(node)) > 1 and x.type.sizes[-2:] == _sizes(node)[-2:]


def _flat(axes: tuple[Axis, ...]) -> Axis:
    return tuple(factor for axis in axes for factor in axis)


def _present(order: list[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Those axes that have more than one element."""
    return tuple(axis for axis in order if sizes[axis] > 1)


def _order(axes: tuple[Axis, ...], sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """In which order the axes of a tensor of these sizes lie in a view of it; None where one is torn apart."""
    found = []
    for factor in joined(_flat(axes)):
        if factor.axis is None or factor.size != sizes[factor.axis]:
            return None
        found.append(factor.axis)
    return tuple(found)


def _is_grouped(sizes: tuple[int, ...], q: Leaf, kt: Leaf, v: Leaf) -> bool:
    """Whether keys and values repeat along the last of the leading axes, and the queries don't."""

    def repeats(leaf: Leaf) -> bool:
        laid = divided(leaf.lead, sizes)
        return laid is not None and all(factor.axis is None for factor in laid[-1])

    return repeats(kt) and repeats(v) and not repeats(q)
