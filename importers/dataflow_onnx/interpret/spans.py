"""Nodes between two decisions of the host, as subgraphs: for tensors of the sizes that come, or of any."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dataflow import Dim, TensorType
from dataflow.errors import ModelError
from dataflow.plugin import Subgraph
from dataflow.plugin import dtype as as_dtype

from ..converters import Table
from ..file.records import Array, GraphRecord, ModelRecord, NodeRecord
from ..importer import Importer
from ..tensor import Tensor
from .frames import Frame, Scope

_MOST_KEPT = 64  # subgraphs of one span, each for some sizes or values alone
_MOST_DECIDING = 64  # elements of a tensor whose values a node may need before it is one
_Sizes = tuple[tuple[int, ...], ...]  # the shapes of what a span reads


@dataclass(frozen=True, slots=True)
class Span:
    """Nodes of a scope that run as one.

    Attributes:
        end: the index behind the last of them.
        subgraph: computes what others read; None where nobody does.
        reads: names of its inputs.
        dead: names that nobody reads after it.
        lists: outputs that are sequences, of which the subgraph gives a stack.
    """

    end: int
    subgraph: Subgraph | None
    reads: tuple[str, ...]
    dead: Sequence[str]
    lists: tuple[str, ...]


_Pattern = tuple[tuple[int | None, ...], ...]  # of each shape; None of sizes that were not always the same


@dataclass(slots=True)
class _Spans:
    """Those that begin at one node and end at another at the latest, for tensors of some ranks.

    Attributes:
        pattern: of the sizes so far.
        general: the one for all sizes of a pattern, and that.
        exact: those for some sizes, and perhaps values, alone; the oldest first.
        is_general: nothing says yet that it can't be one for several sizes.
        takes_values: the first node is one for some values alone.
    """

    pattern: _Pattern
    general: tuple[_Pattern, Span] | None = None
    exact: OrderedDict[tuple[object, ...], Span] = field(default_factory=OrderedDict)
    is_general: bool = True
    takes_values: bool = False

    def find(self, sizes: _Sizes) -> Span | None:
        """The one for these sizes, or for all."""
        found = self.exact.get(sizes)
        if found is None and self.general is not None and _fit(self.general[0], sizes):
            found = self.general[1]
        return found

    def keep(self, key: tuple[object, ...], span: Span) -> Span:
        """Enters one for some sizes alone."""
        self.exact[key] = span
        while len(self.exact) > _MOST_KEPT:
            self.exact.popitem(last=False)
        return span


class NotOne(Exception):
    """The first node of a span can't stand in a subgraph; the cause says why."""

    def __init__(self, cause: ModelError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class SpanTable:
    """The spans of all scopes of a model. Safe to use from several threads: at worst one is made twice.

    Args:
        record: of the file.
        path: for errors.
        table: of converters.
    """

    def __init__(self, record: ModelRecord, path: str, table: Table) -> None:
        self._record, self._path, self._table = record, path, table
        self._reads: dict[tuple[Scope, int, int], tuple[str, ...]] = {}
        self._spans: dict[tuple[object, ...], _Spans] = {}
        self._stored: dict[str, Subgraph] = {}

    def find(self, frame: Frame, start: int, end: int, *, exact: bool = False) -> tuple[Span, dict[str, Array]]:
        """The span that begins at a node, and what it reads.

        Args:
            frame: where the nodes run.
            start: index of the first node.
            end: before this one it ends at the latest.
            exact: the one for any sizes isn't one for these.

        Raises:
            NotOne: the first node can't be run so.
        """
        scope = frame.scope
        where = scope, start, end
        names = self._reads.get(where)
        if names is None:
            names = self._reads[where] = self._read(frame, start, end)
        arrays: dict[str, Array] = {}
        for name in names:
            item = frame.item(name)
            assert item is not None and not isinstance(item, list)
            arrays[name] = item
        sizes = tuple(array.shape for array in arrays.values())
        key = *where, *((array.dtype, array.ndim) for array in arrays.values())
        spans = self._spans.get(key)
        if spans is None:
            spans = self._spans[key] = _Spans(sizes)
        found = spans.exact.get(sizes) if exact else spans.find(sizes)
        if found is None:
            found = (self._exact if exact else self._made)(frame, start, end, arrays, spans)
        return found, arrays

    def _read(self, frame: Frame, start: int, end: int) -> tuple[str, ...]:
        """Names that nodes read and don't define, and that aren't stored."""
        nodes = range(start, end)
        own = {name for index in nodes for name in frame.scope.nodes[index].outputs}
        names = dict.fromkeys(name for index in nodes for name in frame.scope.reads[index])
        given = (name for name in names if name not in own and not frame.is_empty(name))
        return tuple(name for name in given if frame.stored(name) is None)

    def _made(self, frame: Frame, start: int, end: int, arrays: Mapping[str, Array], spans: _Spans) -> Span:
        """That for these sizes, where none was made before; else one for all sizes that come, if there is one."""
        sizes: _Sizes = tuple(array.shape for array in arrays.values())
        if spans.is_general and (spans.exact or spans.general is not None):
            pattern = tuple(
                tuple(old if old == new else None for old, new in zip(known, shape, strict=True))
                for known, shape in zip(spans.pattern, sizes, strict=True)
            )
            try:
                made = self._subgraph(frame, start, end, _types(arrays, pattern), {})
            except NotOne:
                spans.is_general = False
            else:
                spans.pattern, spans.general = pattern, (pattern, made)
                return made
        return self._exact(frame, start, end, arrays, spans)

    def _exact(self, frame: Frame, start: int, end: int, arrays: Mapping[str, Array], spans: _Spans) -> Span:
        """That for these sizes; where it takes values too, it is the first node alone."""
        sizes: _Sizes = tuple(array.shape for array in arrays.values())
        if not spans.takes_values:
            try:
                return spans.keep(sizes, self._subgraph(frame, start, end, _types(arrays, sizes), {}))
            except NotOne:
                if frame.scope.nodes[start].bodies:
                    raise
        reads = frame.scope.reads[start]
        few = {name: array for name, array in arrays.items() if name in reads and array.size <= _MOST_DECIDING}
        known = {name: array for name, array in few.items() if array.dtype.kind in "iubf"}
        key = *sizes, *(array.tobytes() for array in known.values())
        found = spans.exact.get(key)
        if found is None:
            types = {name: t for name, t in _types(arrays, sizes).items() if name not in known}
            found = spans.keep(key, self._subgraph(frame, start, start + 1, types, known))
            spans.takes_values = True
        return found

    def _subgraph(
        self, frame: Frame, start: int, end: int, types: Mapping[str, TensorType], known: Mapping[str, Array]
    ) -> Span:
        """As many of the nodes as can be converted, for what they read.

        Args:
            frame: where they run.
            start: index of the first node.
            end: the index behind the last.
            types: of what they read.
            known: values of what they read.

        Raises:
            NotOne: not even the first can.
        """
        scope = frame.scope
        importer, made = self._converted(frame, start, end, types, known)
        end = start + made
        outputs = scope.live(start, end)
        tensors = {output: importer.tensors[output] for output in outputs}
        for output, tensor in tensors.items():
            importer.builder.output(output, importer.data(tensor))
        subgraph = None
        reads: tuple[str, ...] = ()
        if outputs:
            built = importer.finish()
            # Of some only the sizes are read.
            used = {name for index in range(start, end) for name in scope.reads[index]}
            built = dataclasses.replace(built, inputs=tuple(v for v in built.inputs if v.name in used))
            subgraph, reads = Subgraph(built, scope.repeats), tuple(v.name for v in built.inputs)
        lists = tuple(output for output, tensor in tensors.items() if tensor.rows is not None)
        return Span(end, subgraph, reads, scope.dead(start, end), lists)

    def _converted(
        self, frame: Frame, start: int, end: int, types: Mapping[str, TensorType], known: Mapping[str, Array]
    ) -> tuple[_Eager, int]:
        """An importer with as many of the nodes as can be converted, and how many they are."""
        scope = frame.scope
        nodes = tuple(scope.nodes[start:end])
        stored = {n: a for i in range(start, end) for n in scope.reads[i] if (a := frame.stored(n)) is not None}
        name = f"{self._record.graph.name}/{scope.record.name}/{start}"
        graph = GraphRecord(name, nodes, types, (), {**stored, **known})
        importer = _Eager(dataclasses.replace(self._record, graph=graph), self._path, self._table)
        importer.computed = known.keys()
        importer.declare(graph)
        importer.know(types)
        names = dict.fromkeys(name for index in range(start, end) for name in scope.reads[index])
        importer.tensors.update((n, Tensor(n, elements=())) for n in names if frame.is_empty(n))
        return importer, importer.convert_most(nodes)

    def type_of(self, frame: Frame, name: str) -> TensorType | None:
        """The type that a name of a scope would have if its nodes ran; None where that isn't known before they do."""
        items = {n: frame.item(n) for n in self._read(frame, 0, len(frame.scope.nodes))}
        arrays = {n: item for n, item in items.items() if item is not None and not isinstance(item, list)}
        types = _types(arrays, [array.shape for array in arrays.values()])
        if name in types:
            return types[name]
        try:
            importer, _ = self._converted(frame, 0, len(frame.scope.nodes), types, {})
        except NotOne:
            return None
        found = importer.tensors.get(name)
        return None if found is None else found.type

    def stored(self, name: str, array: Array) -> Subgraph:
        """What gives a stored tensor, with its newest data."""
        found = self._stored.get(name)
        if found is None:
            importer = Importer(self._record, self._path, self._table)
            importer.builder.output(name, importer.builder.initializer(name, array))
            found = self._stored[name] = Subgraph(importer.finish(), repeats=False)
        return found


class _Eager(Importer):
    """Converts nodes as long as it can; loops stay nodes of their own."""

    unrolls = False
    computed: Collection[str] = ()  # names of stored tensors that nodes before these gave, and that nobody trains

    def is_of_file(self, name: str) -> bool:
        return name not in self.computed

    def know(self, types: Mapping[str, TensorType]) -> None:
        """Says that for other sizes of what is read nothing is converted again, as for those read from data."""
        self._sizes_named.update(types)

    def convert_most(self, nodes: Sequence[NodeRecord]) -> int:
        """Converts nodes in order up to the first that can't be, and says how many they are.

        Raises:
            NotOne: it is the first.
        """
        for count, node in enumerate(nodes):
            try:
                self.convert(node)
                for name in filter(None, node.outputs):
                    if self.tensors[name].rows is None:
                        self.tensors[name].check()
            except ModelError as error:
                if not count:
                    raise NotOne(error) from None
                return count
        return len(nodes)


def _types(arrays: Mapping[str, Array], sizes: Sequence[Sequence[int | None]]) -> dict[str, TensorType]:
    """The types of tensors; an axis without a size gets a name."""
    found = {}
    for (name, array), shape in zip(arrays.items(), sizes, strict=True):
        dims = tuple(Dim(f"{name}.{axis}") if size is None else size for axis, size in enumerate(shape))
        found[name] = TensorType(as_dtype(array), dims)
    return found


def _fit(pattern: Sequence[Sequence[int | None]], sizes: _Sizes) -> bool:
    for known, shape in zip(pattern, sizes, strict=True):
        if known != shape:
            for size, given in zip(known, shape, strict=True):
                if size is not None and size != given:
                    return False
    return True
