"""A model, node by node: each node computes from the reference's values, so that one difference makes no others."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from ..errors import InputError
from ..execute.arguments import checked_inputs
from ..execute.execution import DeviceChoice
from ..execute.graph_of_inputs import graph_of_inputs
from ..ir.builder import GraphBuilder
from ..ir.edits import is_by_hand
from ..ir.graph import Graph, Node
from ..ir.types import Array, TensorType, int8, uint8
from ..ir.value import Value
from ..model import Model
from ..model_files import load, save
from ..ops.quantized import matmul_integer
from ..passes.autodiff import vjp_graph
from ..passes.dynamic_regions import depends_on_data
from ..plugin.registry import Registry, registry_of
from ..session import Session

Reference = Literal["numpy", "onnxruntime"]
TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 5e-3}
"""Of the largest value of a result, by dtype; Winograd's convolutions and long sums round more than one operation."""
_COARSE = 5e-2  # of other floats


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A value that differs by more than rounding.

    Attributes:
        node: what computes it.
        value: its name.
        error: the largest difference as a share of the reference's largest value; infinite where shape, dtype or
            what is finite differ.
        text: how it differs.
        subgraph: the nodes that compute it, from what the reference knows.
        arguments: the reference's values that it was computed from, and the inputs of the model.
    """

    node: str
    value: str
    error: float
    text: str
    subgraph: Graph = field(repr=False)
    arguments: Mapping[str, Array] = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What ``compare`` found.

    Attributes:
        reference: its name and version.
        compared: how many values.
        skipped: values of which there is nothing to compare with, with the reason.
        differences: of single nodes, in the order of the graph.
        outputs: the error of each result of the complete model, run as usual.
    """

    reference: str
    compared: int
    skipped: Mapping[str, str]
    differences: tuple[Difference, ...]
    outputs: Mapping[str, float]

    @property
    def worst(self) -> Difference | None:
        """The one with the largest error; None without any."""
        return max(self.differences, key=lambda d: d.error, default=None)


def compare(
    model: Model,
    inputs: Any,
    devices: Sequence[DeviceChoice] | DeviceChoice | None = None,
    *,
    reference: Reference = "onnxruntime",
    training: bool = False,
    tolerance: float | None = None,
    registry: Registry | None = None,
) -> Comparison:
    """Runs a model node by node from the reference's values, then in one run.

    Args:
        model: what is compared; with onnxruntime one of an ONNX file, whose nodes are then compared.
        inputs: as for ``Session.run``.
        devices: in order of preference, as for Session.
        reference: the NumPy device, or onnxruntime, where it is installed.
        training: also the nodes that compute gradients of float inputs and parameters; with NumPy alone.
        tolerance: the largest error that is rounding; by default that of the dtype, see ``TOLERANCES``.
        registry: of plugins.

    Raises:
        InputError: inputs don't fit, or the reference can't be used.
    """
    arguments = checked_inputs(model.graph.inputs, inputs)
    graph = graph_of_inputs(
        model.graph_with_data(), model.specialized, arguments, registry_of(registry).reference_kernels,
        lambda graph: Session(graph).run(arguments),
    )  # fmt: skip
    if training:
        if reference != "numpy":
            raise InputError("training is compared with the reference 'numpy': onnxruntime computes no gradients here")
        graph, arguments = _with_gradients(graph, model, arguments)
    if reference == "onnxruntime":
        known, version = _of_onnxruntime(model, arguments)
    else:
        known, version = None, "numpy"
    walk = _Walk(graph, devices, known, tolerance, registry)
    walk.run(arguments)
    complete = Session(graph, devices, registry=registry).run(arguments)
    outputs = {name: _error(array, walk.values[graph.outputs[name]]) for name, array in complete.items()}
    return Comparison(version, walk.compared, walk.skipped, tuple(walk.differences), outputs)


def _with_gradients(graph: Graph, model: Model, arguments: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph with its gradients, and arguments with random cotangents."""
    if depends_on_data(graph):
        raise InputError("training: the model has shapes that depend on data, which have no gradient in one run")
    stored = model.parameters
    wrt = [v for v in graph.inputs if v.type.dtype.is_float]
    wrt += [v for v in graph.initializers if v.name in stored and v.type.dtype.is_float]
    joint = vjp_graph(graph, wrt)
    random = np.random.default_rng(0)
    given = dict(arguments)
    for value in joint.inputs:
        if value.name not in given:
            given[value.name] = random.standard_normal(value.type.sizes).astype(value.type.dtype.numpy)
    return joint, given


def _of_onnxruntime(model: Model, arguments: Mapping[str, Array]) -> tuple[dict[str, Array], str]:
    """Every value of the file by onnxruntime, without its own changes to the graph."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError("onnxruntime is not installed; compare with the reference 'numpy'") from None
    if is_by_hand(model.source):
        raise InputError("this model comes from no file; compare it with the reference 'numpy'")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "values.onnx")
        save(model, path, outputs="all")
        try:
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            names = [value.name for value in session.get_outputs()]
            results = session.run(names, {v.name: arguments[v.name] for v in session.get_inputs()})
        except Exception as error:  # its errors have no common class of their own
            raise InputError(f"onnxruntime can't run the model: {error}; compare with the reference 'numpy'") from None
        saturates = _multiplies_mixed_signs(model.graph) and _saturates(onnxruntime, path)
    known = {name: found for name, found in zip(names, results, strict=True) if isinstance(found, np.ndarray)}
    version = f"onnxruntime {onnxruntime.__version__}"
    return known, f"{version} (whose products of uint8 and int8 saturate on this processor)" if saturates else version


def _multiplies_mixed_signs(graph: Graph) -> bool:
    """Whether a node reads both uint8 and int8."""
    return any({uint8, int8} <= {v.type.dtype for v in node.inputs if v is not None} for node in graph.nodes)


def _saturates(onnxruntime: ModuleType, path: str) -> bool:
    """Whether its products of uint8 and int8 do so: without VNNI it adds pairs of them in 16 bits."""
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    g = GraphBuilder()
    g.output("y", matmul_integer(g.input("a", uint8, a.shape), g.input("b", int8, b.shape)))
    save(Model(g.build()), path, overwrite=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return bool((session.run(["y"], {"a": a, "b": b})[0] != 64 * 255 * 127).any())


class _Walk:
    """Goes through a graph, subgraph by subgraph.

    Attributes:
        values: the reference's, or ours where it has none.
    """

    def __init__(
        self,
        graph: Graph,
        devices: Sequence[DeviceChoice] | DeviceChoice | None,
        known: Mapping[str, Array] | None,
        tolerance: float | None,
        registry: Registry | None,
    ) -> None:
        self._graph, self._devices, self._known = graph, devices, known
        self._tolerance, self._registry = tolerance, registry
        self._arguments: Mapping[str, Array] = {}
        self.values: dict[Value, Array] = {value: data.array for value, data in graph.initializers.items()}
        self.compared = 0
        self.skipped: dict[str, str] = {}
        self.differences: list[Difference] = []

    def run(self, arguments: Mapping[str, Array]) -> None:
        """Fills everything, from the arguments on."""
        self._arguments = arguments
        self.values.update({value: arguments[value.name] for value in self._graph.inputs})
        for subgraph in subgraphs(self._graph, by_origin=self._known is not None):
            given = {value.name: self.values[value] for value in subgraph.inputs}
            # The complete model says what isn't on a named device: once, not for each node.
            found = Session(subgraph, self._devices, registry=self._registry, fallback="allow").run(given)
            expected: Mapping[str, Array] = (
                Session(subgraph, "numpy", fuse=False, registry=self._registry).run(given)
                if self._known is None
                else self._known
            )
            random = any(node.op.effects == "random" for node in subgraph.nodes) and self._known is not None
            for name, value in subgraph.outputs.items():
                self.values[value] = expected.get(name, found[name])
                if random or name not in expected:
                    self.skipped[name] = "random" if random else "the reference doesn't have it"
                else:
                    self._look(subgraph, given, name, found[name], expected[name])

    def _look(self, subgraph: Graph, given: Mapping[str, Array], name: str, found: Array, expected: Array) -> None:
        self.compared += 1
        error = _error(found, expected)
        tolerance = self._tolerance or _tolerance(expected)
        if error <= tolerance:
            return
        last = subgraph.producers()[subgraph.outputs[name]]
        text = _described(found, expected, tolerance)
        self.differences.append(
            Difference(last.origin or last.describe(), name, error, text, subgraph, {**self._arguments, **given})
        )


def subgraphs(graph: Graph, *, by_origin: bool) -> Iterator[Graph]:
    """The graph as subgraphs that can be run one after the other: node by node, or all nodes of one origin together.

    Where shapes depend on data, the complete graph is the only one.
    """
    if depends_on_data(graph):
        yield graph
        return
    readers = graph.readers()
    results = set(graph.outputs.values())
    key = (lambda node: node.origin or node.name) if by_origin else (lambda node: node.name)
    for _, group in itertools.groupby(graph.nodes, key):
        nodes = tuple(group)
        yield _subgraph(graph, nodes, readers, results)


def _subgraph(graph: Graph, nodes: tuple[Node, ...], readers: Mapping[Value, list[Node]], results: set[Value]) -> Graph:
    """The graph of some nodes; its results are what is read elsewhere."""
    own = set(nodes)
    made = [v for node in nodes for v in node.outputs if v is not None]
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in made)
    stored = {v: graph.initializers[v] for v in read if v in graph.initializers}
    outputs = {v.name: v for v in made if v in results or any(reader not in own for reader in readers.get(v, ()))}
    if not outputs:  # nobody reads it, and it has an effect
        outputs = {v.name: v for v in made}
    return Graph(tuple(v for v in read if v not in stored), outputs, nodes, stored, name=graph.name)


def write_reproducer(model: Model, difference: Difference, path: str, *, overwrite: bool = False) -> None:
    """Writes what computes a differing value as ONNX, and its inputs beside it as npz.

    Of a model from a file it is the file's own node, with the reference's values as its inputs.

    Raises:
        ModelError: the node has no ONNX form; the npz is written nevertheless.
        InputError: a file is there already.
    """
    beside = Path(path).with_suffix(".npz")
    if not overwrite and (beside.exists() or Path(path).exists()):
        raise InputError(f"{path} or {beside} exists already; overwrite=True (--force) replaces them")
    given = dict(difference.arguments)
    try:
        written = _written(model, difference, path)
        given = {name: given[name] for name in written.inputs}
    finally:
        data: Any = given
        np.savez(beside, **data)


def _written(model: Model, difference: Difference, path: str) -> Model:
    """The reproducer, written and read again."""
    types = {v.name: TensorType(v.type.dtype, difference.arguments[v.name].shape) for v in difference.subgraph.inputs}
    if not is_by_hand(model.source):
        try:
            save(model, path, overwrite=True, inputs=types, outputs=[difference.value])
            return load(path)
        except InputError:  # a value that the file doesn't have, of a gradient or within an operator
            pass
    save(Model(difference.subgraph), path, overwrite=True)
    return load(path)


def _tolerance(array: Array) -> float:
    if array.dtype.kind not in "fcV":
        return 0.0
    return TOLERANCES.get(array.dtype.name, _COARSE)


def _error(found: Any, expected: Any) -> float:
    """The largest difference as a share of the largest expected value."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if a.dtype.kind not in "fcV":
        return float(np.mean(a != b)) if a.size else 0.0
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    finite = np.isfinite(y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if not same[~finite].all():
        return float("inf")
    if not finite.any():
        return 0.0
    off = np.abs(x - y)[finite].max()
    largest = np.abs(y[finite]).max()
    return float(off / largest) if largest > 0 else (0.0 if off == 0 else float("inf"))


def _described(found: Any, expected: Any, tolerance: float) -> str:
    """Where two arrays differ most, and in how many elements by more than ``tolerance`` of the largest."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
    least = 0.0
    if a.dtype.kind in "fV":
        x, y = a.astype(np.float64), b.astype(np.float64)
        off = np.abs(x - y)
        off[(x == y) | (np.isnan(x) & np.isnan(y))] = 0
        off[np.isnan(off)] = np.inf
        least = tolerance * np.abs(y[np.isfinite(y)]).max(initial=0.0)
    else:
        off = (a != b).astype(np.float64)
    at = np.unravel_index(int(off.argmax()), off.shape)
    count = f"{int((off > least).sum())} of {off.size} elements differ"
    return f"at {[int(i) for i in at]} {a[at]} instead of {b[at]}, {count}"
