"""Computes at compile time what depends on constants alone."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from ..host.limits import hold, poll
from ..ir.graph import Graph, Initializer, Node
from ..ir.kernel import Kernel
from ..ir.sized_data import SizedData, frozen, sizes_in
from ..ir.substitution import Substitution
from ..ir.tracing import active
from ..ir.types import Array, contiguous_strides
from ..ir.value import Value

LIMIT = 1 << 24  # bytes; a larger result is computed at each run instead of kept
SMALL = 1 << 16  # bytes; likewise of nodes without inputs, whose larger results (zeros) cost less to make than to keep
# The most that a compile may spend on folding beside what the model stores: a small file must not cost more than that.
_GROWTH = 16 * LIMIT  # bytes
_WORK = 1 << 28  # operations
_WORK_PER_ELEMENT = 32  # of what is stored: products of weights are worth folding


def fold(graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]], mutable: Collection[str] = ()) -> Graph:
    """The graph with nodes of constant inputs replaced by their results.

    Views are not folded: they cost nothing. Parts of a constant whose elements lie apart are, since kernels that want
    them contiguous would copy them at each run, and so is what is no view of the strides that its source has (a weight
    with its axes in another order, reshaped). A node stays where an operand or result is named in ``mutable`` (what
    is trained or updated, or is another in each plan of a series), where it has effects, where its result is larger
    than twice its inputs and ``LIMIT``, without inputs than ``SMALL``, or where folding has become too much work: it
    is then computed at each run. What a node without inputs gives is known to its readers nevertheless, which are
    folded if they make it ``SMALL``: of a tensor of ones their number.

    Args:
        graph: bound.
        kernels: the reference's, by op.
        mutable: names of values that are no constants.
    """
    folding = _Folding(graph, mutable)
    kept = []
    for node in graph.nodes:
        poll(node)
        kernel = kernels.get(node.op.name)
        if kernel is None or not folding.knows(node):
            kept.append(node)
            continue
        view = node.op.view is not None
        folded = (not view or _lies_apart(node) or not folding.is_view(node)) and folding.affords(node)
        if folded or view or folding.is_filling(node):
            folding.compute(node, kernel[0], view=not folded)
        if not folded:
            kept.append(node)  # of a view a reader that stays sees it; one that was folded has used the array
    if len(kept) == len(graph.nodes):
        return graph
    stored = {**graph.initializers, **folding.made}
    return dataclasses.replace(graph, nodes=tuple(kept), initializers=stored)


class _AsItIs(Substitution):
    """Where no size is traced, a node is itself."""

    def node(self, of: Node) -> Node:
        return of


_AS_IT_IS = _AsItIs({})


class _Folding:
    """What is known while nodes are folded.

    Attributes:
        made: results that somebody may still read: the others go as soon as their last reader was folded.
        fillings: results of nodes without inputs that aren't kept, and views of them.
    """

    def __init__(self, graph: Graph, mutable: Collection[str]) -> None:
        self.made: dict[Value, Initializer] = {}
        self.fillings: set[Value] = set()
        self._mutable = frozenset(mutable)
        self._known: dict[Value, Array | SizedData] = {
            value: data if isinstance(data, SizedData) else data.array
            for value, data in graph.initializers.items()
            if value.name not in mutable
        }
        self._views: dict[Value, tuple[Node, Kernel]] = {}  # of what is known, not computed before somebody reads it
        self._strides: dict[Value, tuple[int, ...]] = {}  # of such views; all else is contiguous
        self._readers = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
        self._readers.update(graph.outputs.values())
        self._readers.update(v for state in graph.states for v in (state.before, state.after))
        stored = [value.type for value in graph.initializers]
        self._growth = _GROWTH + sum(type_.nbytes for type_ in stored)
        self._work = _WORK + _WORK_PER_ELEMENT * sum(type_.elements for type_ in stored)

    def knows(self, node: Node) -> bool:
        """Whether a node is constant."""
        inputs = [v for v in node.inputs if v is not None]
        if node.bodies or node.op.effects != "none":
            return False
        if any(v not in self._known and v not in self._views for v in inputs):
            return False
        return self._mutable.isdisjoint(v.name for v in node.outputs if v is not None)

    def is_view(self, node: Node) -> bool:
        """Whether the result of an op that may be a view is one, with the strides that its source has."""
        return self._strides_of_result(node) is not None

    def _strides_of_result(self, node: Node) -> tuple[int, ...] | None:
        source = node.inputs[0]
        assert source is not None
        assert node.op.view is not None
        found = node.view_of(self._strides.get(source, contiguous_strides(source.type.sizes)))
        return None if found is None else found.strides

    def is_filling(self, node: Node) -> bool:
        """Whether what a node gives depends on nothing, and isn't too large to be computed for its readers."""
        inputs = [v for v in node.inputs if v is not None]
        return not inputs and all(v is None or v.type.nbytes <= LIMIT for v in node.outputs)

    def affords(self, node: Node) -> bool:
        """Whether the results of a node may be computed and kept; then they are counted."""
        inputs = [v for v in node.inputs if v is not None]
        size = sum(v.type.nbytes for v in node.outputs if v is not None)
        read = sum(v.type.nbytes for v in inputs)
        most = max(LIMIT, 2 * read) if inputs and self.fillings.isdisjoint(inputs) else SMALL
        growth = size if node.op.view is not None else max(size - read, 0)
        if size > most or growth > self._growth or (work := _work(node)) > self._work:
            return False
        self._growth -= growth
        self._work -= work
        return True

    def compute(self, node: Node, kernel: Kernel, view: bool) -> None:
        """Enters the results of a node; of a view, or a filling, how they are computed."""
        if view:
            results = [v for v in node.outputs if v is not None]
            self._views.update(dict.fromkeys(results, (node, kernel)))
            if node.op.view is None or node.inputs[0] in self.fillings:
                self.fillings.update(results)
            strides = None if node.op.view is None else self._strides_of_result(node)
            if strides is not None and node.outputs[0] is not None:
                self._strides[node.outputs[0]] = strides
        else:
            self._compute(node, kernel, stored=True)
            self._read(node)

    def _array(self, value: Value) -> Array | SizedData:
        if value not in self._known:
            self._compute(*self._views.pop(value), stored=False)
        return self._known[value]

    def _compute(self, node: Node, kernel: Kernel, stored: bool) -> None:
        sources = [None if v is None else self._array(v) for v in node.inputs]

        def results(sizes: Substitution) -> list[Array]:
            arrays = [source.compute(sizes) if isinstance(source, SizedData) else source for source in sources]
            found = _results(sizes.node(node), kernel, arrays)
            return [frozen(array.copy()) for array in found] if stored and node.op.view is not None else found

        trace = active()
        plain = trace is None and not any(isinstance(source, SizedData) for source in sources)
        sizes = [] if trace is None else [*sizes_in(node)]
        sizes += [size for source in sources if isinstance(source, SizedData) for size in source.sizes]
        found = results(_AS_IT_IS if plain else Substitution({} if trace is None else trace.numbers))
        for index, (value, array) in enumerate(zip(node.outputs, found, strict=False)):
            if value is not None:
                data = SizedData(functools.partial(_item, results, index), array, sizes) if sizes else None
                self._known[value] = array if data is None else data
                if stored:
                    self.made[value] = Initializer(array) if data is None else data
                    hold(array.nbytes, node)

    def _read(self, node: Node) -> None:
        """Forgets results of which this node was the last reader."""
        for value in node.inputs:
            if value is None:
                continue
            self._readers[value] -= 1
            if not self._readers[value] and value in self.made:
                made = self.made.pop(value)
                hold(-(made.now if isinstance(made, SizedData) else made.array).nbytes, node)
                del self._known[value]


def _lies_apart(node: Node) -> bool:
    """Whether a view is a part of its source, and its elements are not neighbours there."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None
    assert result is not None
    assert node.op.view is not None
    if result.type.elements >= source.type.elements:
        return False
    found = node.view_of(contiguous_strides(source.type.sizes))
    return found is not None and found.strides != contiguous_strides(result.type.sizes)


def _item(results: Callable[[Substitution], list[Array]], index: int, sizes: Substitution) -> Array:
    return results(sizes)[index]


def _results(node: Node, kernel: Kernel, arrays: Sequence[Array | None]) -> list[Array]:
    with np.errstate(all="ignore"):  # infinities and NaN are results, as on a device
        results = kernel.code(node.attributes, *arrays)
    several = results if isinstance(results, tuple) else (results,)
    pairs = zip(node.outputs, several, strict=False)
    return [frozen(np.asarray(a) if v is None else np.asarray(a, v.type.dtype.numpy)) for v, a in pairs]


def _work(node: Node) -> int:
    """Operations of a node: by its declaration, at least one per element that it reads or writes."""
    touched = sum(v.type.elements for v in (*node.inputs, *node.outputs) if v is not None)
    return max(touched, node.operations())
