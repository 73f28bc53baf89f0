"""Bodies of the file as graphs: values of the graph around them that they read become inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dataflow import Graph, GraphBuilder, TensorType, Value, bool_, ops
from dataflow.errors import ModelError

from .file.records import Array, GraphRecord, free_names, shapes_of_progress
from .importer import Importer
from .shape_eval import Known
from .tensor import Tensor


class Body:
    """A body that is being imported.

    Attributes:
        results: its outputs.
        captured: names of what it reads of the graph around it, apart from sizes.
    """

    def __init__(
        self,
        outer: Importer,
        record: GraphRecord,
        types: Sequence[TensorType],
        *,
        loop: bool = False,
        always: bool = False,
    ):
        """Converts the nodes.

        Args:
            outer: importer of the graph around it.
            record: the body of the file.
            types: of its inputs, as they are given.
            loop: it is one of a ``Loop``, whose iteration and condition are given as scalars.
            always: the condition is true whenever the body runs, and not among ``types``.

        Raises:
            ModelError: it doesn't fit, or reads what nobody defines.
        """
        self.outer, self.record = outer, record
        self.inner = Importer(outer.record, outer.path, outer.table, outer, outer.freed)
        self.builder = self.inner.builder = GraphBuilder(record.name or "body")
        self.captured: list[str] = []
        names = list(record.inputs)
        shapes = dict(zip(names, shapes_of_progress(record), strict=False)) if loop else {}
        if always:
            name = names.pop(1)
            true: Array = np.full(shapes[name], True, object)
            self.inner.tensors[name] = Tensor(name, None, None, Known(true, bool_))
        if len(names) != len(types):
            raise ModelError(f"the body {record.name!r} has {len(names)} inputs; {len(types)} are given")
        self.inputs: list[Value] = []
        for name, type_ in zip(names, types, strict=True):
            self.inputs.append(self.builder.input(name, type_.dtype, type_.shape))
            shape = shapes.get(name, type_.shape)
            value = self.inputs[-1] if shape == type_.shape else ops.reshape(self.inputs[-1], shape=shape)
            self.inner.tensors[name] = Tensor(name, value)
            self.inner.claimed.add(self.inputs[-1])
        for name, array in record.initializers.items():
            self._hoist(name, array)
        for name in free_names(record):
            self._capture(name)
        self.inner.convert_all(record.nodes)
        for name in record.outputs:
            if name not in self.inner.tensors:
                raise ModelError(f"the result {name!r} of the body {record.name!r} is computed by no node")
        self.results = [self.inner.tensors[name] for name in record.outputs]

    def _hoist(self, name: str, array: Array) -> None:
        """Stored tensors of a body belong to the graph around it, where they can be trained."""
        tensor = self.outer.stored(name, array)
        if tensor.known is not None:
            self.inner.tensors[name] = tensor
            return
        if self.outer.define(name, tensor):
            self._capture(name)
        else:  # another one has the name, and is trained and saved under it
            self.inner.tensors[name] = Tensor(name, self.builder.constant(array, name))

    def _capture(self, name: str) -> None:
        if name in self.inner.tensors:
            return
        outer = self.outer.tensors.get(name)
        if outer is None:
            raise ModelError(f"the body {self.record.name!r} reads {name!r}, which nothing before it defines")
        if outer.known is not None:
            self.inner.tensors[name] = Tensor(name, None, outer.array, outer.known)
            return
        type_ = self.outer.data(outer).type
        value = self.builder.input(name, type_.dtype, type_.shape)
        self.inner.tensors[name] = Tensor(name, value, outer=outer) if outer.rows is None else Tensor(name, rows=value)
        self.inner.claimed.add(value)
        self.captured.append(name)

    def take(self, names: Sequence[str]) -> None:
        """Gives the body the inputs of ``names`` too, behind its own and in this order."""
        for name in names:
            if name not in self.captured:
                outer = self.outer.tensors[name]
                type_ = self.outer.data(outer).type
                value = self.builder.input(name, type_.dtype, type_.shape)
                self.inner.tensors.setdefault(
                    name, Tensor(name, value) if outer.rows is None else Tensor(name, rows=value)
                )
        self.captured = list(names)

    def graph(self, results: Sequence[int] | None = None, order: Sequence[int] | None = None) -> Graph:
        """The body as a graph.

        Args:
            results: indices of the outputs that it has; all by default.
            order: indices of its own inputs; captures follow.
        """
        made = {v for node in self.builder.nodes() for v in node.outputs}
        for index in range(len(self.results)) if results is None else results:
            value = self.inner.value(self.results[index])
            if value not in made:  # passed on, or given twice: each result is a value of its own
                value = ops.copy(value)
            made.discard(value)
            self.builder.output(f"{index}.{self.record.outputs[index]}", value)
        built = self.inner.finish()
        by_name = {value.name: value for value in built.inputs}
        own = [self.inputs[i] for i in (range(len(self.inputs)) if order is None else order)]
        return dataclasses.replace(built, inputs=(*own, *(by_name[name] for name in self.captured)))
