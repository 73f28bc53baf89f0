"""Runs a file whose data decide in loops which nodes there are.

Nodes between two decisions are a subgraph (``spans``), which the session plans for the sizes that come and runs on its
devices; loops and branches that no device can run as one node, and sequences, are run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dataflow import TensorType
from dataflow.errors import Cancelled, DataflowError, InputError, LimitExceeded, OutOfMemoryError
from dataflow.plugin import Argument, Compute, SizesRefused

from ..converters import Table
from ..file.records import Array, GraphRecord, ModelRecord, NodeRecord
from . import control_flow, sequence_ops
from .frames import Frame, Item, Scope
from .spans import NotOne, SpanTable


class FileInterpreter:
    """See ``dataflow.plugin.Interpreter``.

    Args:
        record: of the file.
        path: for errors.
        table: of converters.
        nodes: those that the outputs need.
        outputs: names.
    """

    def __init__(
        self, record: ModelRecord, path: str, table: Table, nodes: Sequence[NodeRecord], outputs: Sequence[str]
    ) -> None:
        self._record, self._path, self._nodes, self._outputs = record, path, nodes, tuple(outputs)
        self._table = table
        self._spans = SpanTable(record, path, table)
        self._scopes: dict[tuple[str, ...], Scope] = {}
        self._decided: set[tuple[Scope, int]] = set()  # nodes that can't stand in a subgraph, by scope and index
        self._ends: dict[tuple[Scope, int], tuple[int, int]] = {}  # and the next of them, once so many are known

    def __reduce__(self) -> tuple[Any, ...]:
        return FileInterpreter, (self._record, self._path, self._table, self._nodes, self._outputs)

    def run(
        self, inputs: Mapping[str, Argument], outputs: Sequence[str] | None, compute: Compute
    ) -> dict[str, Any] | None:
        """See ``dataflow.plugin.Interpreter``."""
        names = self._outputs if outputs is None else tuple(outputs)
        scope = self._scopes.get(names)
        if scope is None:
            graph = self._record.graph
            known = {*graph.inputs, *graph.initializers, *(n for node in self._nodes for n in node.outputs)}
            if not known.issuperset(names):
                return None
            scope = self._scopes[names] = Scope(graph, self._nodes, names, repeats=False)
        given = {name: list(item) if isinstance(item, tuple) else item for name, item in inputs.items()}
        frame = Frame(scope, given)
        found = _Run(self, compute).run(frame)
        return {name: _apart(item, frame.stored(name)) for name, item in zip(names, found, strict=True)}

    def next_decided(self, frame: Frame, start: int) -> int:
        """The index of the first node from ``start`` on that is run here; that behind the last if none is."""
        scope = frame.scope
        key, known = (scope, start), len(self._decided)
        found = self._ends.get(key)
        if found is not None and found[0] == known:
            return found[1]
        own = set[str]()
        end = start
        while end < len(scope.nodes) and not self._is_decided(frame, end, own):
            own.update(scope.nodes[end].outputs)
            end += 1
        self._ends[key] = known, end
        return end

    def _is_decided(self, frame: Frame, index: int, own: set[str]) -> bool:
        scope = frame.scope
        if (scope, index) in self._decided or sequence_ops.runs(scope.nodes[index]):
            return True
        if not all(name in own or frame.is_tensor(name) for name in scope.reads[index]):
            self._decided.add((scope, index))
            return True
        return False

    def controls(self, node: NodeRecord) -> bool:
        """Whether a node is a branch, loop or map that can be run here."""
        known = not node.domain and node.op in control_flow.OPERATORS
        return known and (node.op != "Scan" or self._record.opsets[""] >= 9)

    def decide(self, frame: Frame, index: int) -> None:
        """Notes that a node is run here."""
        self._decided.add((frame.scope, index))

    @property
    def path(self) -> str:
        """Of the file."""
        return self._path

    @property
    def spans(self) -> SpanTable:
        """The nodes between."""
        return self._spans

    def where(self, node: NodeRecord) -> str:
        """A node, for messages."""
        return f"{self._path}: {node.describe()}, opset {self._record.opsets[node.domain]}"


def _apart(item: Item, stored: Array | None) -> Item:
    """A result; what the file holds stays its own."""
    return item if stored is None or item is not stored else stored.copy()


class _Run:
    """One run of a model."""

    def __init__(self, interpreter: FileInterpreter, compute: Compute) -> None:
        self._interpreter, self._compute = interpreter, compute

    def run(self, frame: Frame) -> list[Item]:
        """The outputs of a scope."""
        scope, index = frame.scope, 0
        while index < len(scope.nodes):
            end = self._interpreter.next_decided(frame, index)
            if end == index:
                self._decided(frame, index)
                index += 1
                continue
            try:
                index = self._span(frame, index, end)
            except NotOne as error:
                node = scope.nodes[index]
                if not self._interpreter.controls(node):
                    raise InputError(str(error.cause)) from None
                self._interpreter.decide(frame, index)
        return [self._item(frame, name) for name in scope.outputs]

    def _span(self, frame: Frame, start: int, end: int) -> int:
        """Runs nodes up to the next that can't stand in a subgraph; gives its index."""
        span, arrays = self._interpreter.spans.find(frame, start, end)
        if span.subgraph is not None:
            try:
                found = self._compute(span.subgraph, {name: arrays[name] for name in span.reads})
            except SizesRefused:
                span, arrays = self._interpreter.spans.find(frame, start, end, exact=True)
                assert span.subgraph is not None
                found = self._compute(span.subgraph, {name: arrays[name] for name in span.reads})
            frame.items.update(found)
            frame.items.update((name, list(found[name])) for name in span.lists)
        for name in span.dead:
            frame.items.pop(name, None)
        return span.end

    def _decided(self, frame: Frame, index: int) -> None:
        """Runs a node here."""
        scope, node = frame.scope, frame.scope.nodes[index]
        try:
            inputs = [self._item(frame, name) if name else None for name in node.inputs]
            results = self._results(frame, node, inputs)
        except (Cancelled, LimitExceeded, OutOfMemoryError):
            raise
        except DataflowError as error:
            text = str(error)
            raise InputError(text if self._interpreter.path in text else f"{self._where(node)}: {text}") from None
        frame.items.update((name, item) for name, item in zip(node.outputs, results, strict=False) if name)
        for name in scope.dead(index, index + 1):
            frame.items.pop(name, None)

    def _results(self, frame: Frame, node: NodeRecord, inputs: Sequence[Item]) -> Sequence[Item]:
        if self._interpreter.controls(node):
            return control_flow.OPERATORS[node.op](node, inputs, _Bodies(self, frame))
        if node.op == "Identity" and not node.domain:
            return inputs
        if not sequence_ops.runs(node):
            raise InputError("it reads a sequence, or an optional without an element; expected tensors")
        try:
            return (sequence_ops.OPERATORS[node.op](*inputs, **node.attributes),)
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"its inputs or attributes don't fit the operator: {error}") from None

    def _item(self, frame: Frame, name: str) -> Item:
        """What a name holds; of a stored tensor, its newest data."""
        if name in frame.items:
            found: Item = frame.items[name]
            return found
        stored = frame.stored(name)
        if stored is None:
            return frame.item(name)
        if stored.dtype.kind in "iub":  # nobody trains it
            return stored
        return self._compute(self._interpreter.spans.stored(name, stored), {})[name]

    def _where(self, node: NodeRecord) -> str:
        return self._interpreter.where(node)

    def type_of(self, frame: Frame, name: str) -> TensorType | None:
        """See ``SpanTable.type_of``."""
        return self._interpreter.spans.type_of(frame, name)


class _Bodies:
    """See ``control_flow.Bodies``."""

    def __init__(self, run: _Run, around: Frame) -> None:
        self._run, self._around = run, around

    def run(self, body: GraphRecord, given: Sequence[Item], *, loop: bool) -> list[Item]:
        return self._run.run(self._frame(body, given, loop))

    def type_of(self, body: GraphRecord, given: Sequence[Item], name: str) -> TensorType | None:
        return self._run.type_of(self._frame(body, given, loop=True), name)

    def _frame(self, body: GraphRecord, given: Sequence[Item], loop: bool) -> Frame:
        if len(body.inputs) != len(given):
            raise InputError(f"the body {body.name!r} has {len(body.inputs)} inputs; {len(given)} are given")
        items = dict(zip(body.inputs, given, strict=True))
        return Frame(self._around.scope.body(body, loop=loop), items, self._around)
