"""Models of which some nodes can only be converted once sizes, or values, are known."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from dataflow import Dim, Graph, TensorType, Value, float32, ops
from dataflow.errors import DataflowError, ModelError
from dataflow.plugin import Form, Given, GraphBuilder, Listed, Wanted, element_name, eliminate_dead_code

from .converters import Table
from .file.inferred import inferred_types
from .file.records import Array, ModelRecord, NodeRecord
from .free_batch import Freed, batch_axis
from .importer import Importer
from .operands import Undetermined
from .tensor import Unsized


class Anew(Protocol):
    """See ``Specialize``; ``specialized`` of a file."""

    def __call__(
        self, types: Mapping[str, Given], values: Mapping[str, Array], *, most_iterations: int = ...
    ) -> Graph | Wanted | Listed:
        """The graph, of loops at most so many iterations."""


_Make = Callable[[Mapping[str, TensorType], int], tuple[Listed | None, bool]]
_MOST_GUESSES = 16  # values, and elements of each
# Sizes for which a graph is made to see what it stores: images need as many pixels as networks halve them.
_TRIED = (2, 32, 1, 4, 8, 16, 64, 256)


def specialized(
    record: ModelRecord,
    path: str,
    table: Table,
    nodes: Sequence[NodeRecord],
    outputs: Sequence[str],
    freed: Freed | None,
    types: Mapping[str, Given],
    values: Mapping[str, Array],
    *,
    most_iterations: int = Importer.most_iterations,
) -> Graph | Wanted | Listed:
    """The graph of a file for inputs of these types, or what must be known first; see ``Specialize``.

    Args:
        record: of the file.
        path: for errors.
        table: of converters.
        nodes: those that the outputs need.
        outputs: names.
        freed: a batch size that was made free.
        types: of the inputs, every size fixed; or as the file declares them, for a graph of any sizes.
        values: computed ones that are known.
        most_iterations: of loops may become nodes.

    Raises:
        ModelError: a node doesn't fit the inputs.
    """
    importer = Importer(record, path, table, freed=freed, values=values, types=types)
    importer.most_iterations = most_iterations
    named = any(isinstance(given, TensorType) and not given.is_bound for given in types.values())
    importer.is_for_values = named
    try:
        importer.run(record.graph, nodes, outputs)
    except Undetermined as error:
        wanted, builder = error.value, importer.builder
        if wanted.builder is not builder:
            raise ModelError(f"{error}, in a body") from None
        if wanted.name in values:
            raise ModelError(f"{error}; it is known, and must be more than that") from None
        if named and (error.repeats or not wanted.type.is_bound or importer.static.is_static(wanted)):
            raise ModelError(f"{error}; sizes decide about it, or iterations") from None
        builder.output(wanted.name, wanted)
        return Wanted(eliminate_dead_code(importer.finish()), wanted.name, str(error), error.repeats)
    if not importer.lengths:
        return importer.finish()
    return Listed(importer.finish() if importer.builder.outputs() else None, importer.lengths)


class _Guessing(Importer):
    """Goes on where a value is wanted, with a guess of it: a node is converted again, those before it are not."""

    most_iterations = 64  # few say what a loop stores and what ranks its results have; a guess may make it endless

    def __init__(self, first: Importer, types: Mapping[str, TensorType], guess: int) -> None:
        self.guess, self.guessed = guess, dict[str, Array]()
        super().__init__(
            first.record, first.path, first.table, freed=first.freed, values=self.guessed, types=dict(types)
        )

    def convert(self, node: NodeRecord) -> None:
        while True:
            try:
                super().convert(node)
                return
            except Undetermined as error:
                value, known = error.value, self.guessed
                if value.builder is not self.builder or value.name in known or not _is_guessed(value, known):
                    raise
                known[value.name] = np.full(value.type.sizes, self.guess, value.type.dtype.numpy)


def deferred_graph(
    importer: Importer,
    nodes: Sequence[NodeRecord],
    outputs: Sequence[str],
    specialize: Anew,
    why: ModelError,
    *,
    needs_example: bool = False,
) -> Graph:
    """A graph with the inputs, stored tensors and outputs of a model, but one node that stands for all of its nodes.

    Args:
        importer: of an attempt to convert the file for all sizes.
        nodes: those that the outputs need.
        outputs: names.
        specialize: makes the graph for given inputs.
        why: the attempt failed.
        needs_example: there must be sizes for which the model is a graph.

    Raises:
        ModelError: ``why``, or the file doesn't say what rank an output has, and it can't be found.
    """
    record = importer.record
    inputs = {v.name: v.type for v in importer.builder.inputs()}

    def make(types: Mapping[str, TensorType], guess: int) -> tuple[Listed | None, bool]:
        """The graph for inputs of these types, or None; and whether it took guesses of values."""
        guessing = _Guessing(importer, types, guess)
        try:
            guessing.run(record.graph, nodes, outputs)
            graph = guessing.finish() if guessing.builder.outputs() else None
            return Listed(graph, guessing.lengths), bool(guessing.guessed)
        except DataflowError as error:
            refused.add(_of_any_size(error))
            return None, bool(guessing.guessed)

    refused: set[str] = set()
    declared = {name: form for name, form in record.graph.forms.items() if name in inputs or name in outputs}
    examples = [] if any(name in declared for name in inputs) else list(_examples(inputs, make, specialize))
    if not examples and (needs_example or (isinstance(why, Unsized) and refused == {_of_any_size(why)})):
        raise why  # of no sizes, or whatever they are
    example = next((found for found, guessed in examples if not guessed), None)
    builder = GraphBuilder(record.graph.name or "onnx")
    operands = [builder.input(name, t.dtype, t.shape) for name, t in inputs.items()]
    graphs = [found.graph for found, _ in examples if found.graph is not None]
    stored = {v.name: data for graph in graphs for v, data in graph.initializers.items() if data.role != "constant"}
    operands += [builder.keep(name, data) for name, data in stored.items()]
    labels = {n.outputs[0]: tuple(*n.attributes.values()) for n in record.graph.nodes if n.op == "ZipMap"}
    infer = functools.cache(lambda: inferred_types(record))
    types, forms = [], {name: form for name, form in declared.items() if name in inputs}
    for name in outputs:
        if name in labels:
            found: TensorType | Form = TensorType(float32, (Dim(f"{name}.rows"), len(labels[name])))
        else:
            found = _type(name, record, infer, example, str(why))
            if importer.freed is not None and isinstance(found, TensorType):
                found = _freed_type(name, found, example)
        if isinstance(found, Form):
            forms[name], found = found, found.placeholder(name)
        types.append(found)
    attributes = {"dtypes": tuple(t.dtype for t in types), "shapes": tuple(t.shape for t in types), "why": str(why)}
    attributes["forms"] = tuple((name, f.dtype, f.sequence, f.optional) for name, f in forms.items())
    attributes["maps"] = (
        *record.graph.vocabularies.items(),
        *((name, labels[name]) for name in outputs if name in labels),
    )
    made = builder.add(ops.deferred, operands, attributes, output_names=outputs).outputs
    for name, value in zip(outputs, made, strict=True):
        assert value is not None
        builder.output(name, value)
    return builder.finish()


def _of_any_size(error: DataflowError) -> str:
    """What an error says, without the sizes of its types and numbers."""
    return re.sub(r"\[[^][]*\]|\d+", "", str(error))


def _examples(inputs: Mapping[str, TensorType], make: _Make, specialize: Anew) -> Iterator[tuple[Listed, bool]]:
    """The graph for some sizes, if there is one that needs no values; else some for guessed values.

    Of the latter, which are said to be guessed, stored tensors are as in any, but not what ranks outputs have.
    """
    names = sorted({name for t in inputs.values() for n in t.shape if isinstance(n, Dim) for name in n.names})
    for size in _TRIED if names else _TRIED[:1]:
        types = {n: t.bind(dict.fromkeys(names, size)) for n, t in inputs.items()}
        found = [make(types, 0)]
        if found[0][1]:
            found.append(make(types, 1))
        made = [(graph, guessed) for graph, guessed in found if graph is not None]
        if not made and found[0][1]:  # a node may not be one that can be converted again
            anew = [_guessed(types, specialize, guess) for guess in (0, 1)]
            made = [(graph, True) for graph in anew if graph is not None]
        yield from made
        if made:
            return


def _guessed(types: Mapping[str, TensorType], specialize: Anew, guess: int) -> Listed | None:
    """The graph where each value that it wants to know is ``guess``, made anew with each; None: there is none."""
    values: dict[str, Array] = {}
    while len(values) < _MOST_GUESSES:
        try:
            made = specialize(types, values, most_iterations=_Guessing.most_iterations)
        except DataflowError:
            return None
        if not isinstance(made, Wanted):
            return made if isinstance(made, Listed) else Listed(made, {})
        value = made.graph.outputs[made.name]
        if not _is_guessed(value, values):
            return None
        values[made.name] = np.full(value.type.sizes, guess, value.type.dtype.numpy)
    return None


def _is_guessed(value: Value, others: Collection[str]) -> bool:
    """Whether a value is small enough to be guessed, beside others that were."""
    return value.type.is_bound and value.type.elements <= _MOST_GUESSES and len(others) < _MOST_GUESSES


def _freed_type(name: str, found: TensorType, example: Listed | None) -> TensorType:
    """The type of an output for any batch size: what the file declares is for its own."""
    graph = None if example is None else example.graph
    known = graph.outputs[name].type.shape if graph is not None and name in graph.outputs else found.shape
    shape = [n if batch_axis((n,)) == 0 else Dim(f"{name}.{axis}") for axis, n in enumerate(known)]
    return TensorType(found.dtype, tuple(shape))


def _type(
    name: str, record: ModelRecord, infer: Callable[[], Mapping[str, TensorType]], example: Listed | None, why: str
) -> TensorType | Form:
    """The type of an output: what the file declares, or what it is for some sizes."""
    declared, form = record.graph.declared.get(name), record.graph.forms.get(name)
    if declared is not None:
        return declared
    if form is not None and (form.sequence or form.optional):
        return form
    if example is not None and example.graph is not None:
        outputs = example.graph.outputs
        if name in outputs:
            found = outputs[name].type
            return TensorType(found.dtype, tuple(Dim(f"{name}.{axis}") for axis in range(found.rank)))
        if example.lengths.get(name):
            return Form(outputs[element_name(name, 0)].type.dtype, sequence=True, optional=False)
    inferred = infer().get(name)
    if inferred is not None:
        return inferred
    if form is not None:
        return form
    raise ModelError(f"{why}; and the output {name!r} has no type in the file")
