"""The layers of a graph that can have an adapter: products, convolutions and look-ups with a constant weight."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..ir.graph import Graph, Node
from ..ir.types import Array
from ..ir.value import Value

Kind = Literal["linear", "conv", "embedding"]
WEIGHT_AT = {"matmul": 1, "matmul_blocks": 1, "conv": 1, "gather": 0}  # of the weight among the operands
_TWICE = re.compile(r"(^|\.)([^.]+)\.\2\.(\d+)(?=\.|$)")
_KIND: dict[str, Kind] = {"matmul": "linear", "matmul_blocks": "linear", "conv": "conv", "gather": "embedding"}


@dataclass(frozen=True, slots=True)
class Use:
    """A node that reads a layer's weight.

    Attributes:
        node: the product, convolution or look-up.
        swapped: a product whose operand is the transpose of what the layer's first node reads.
    """

    node: Node
    swapped: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """A constant weight and what reads it.

    Attributes:
        weight: the stored tensor; of one that is computed from several, as a dequantized one is, the largest.
        kind: of the first node that looks up rows of it, else of the first that reads it.
        sizes: of what that node reads: (inputs, outputs) of a product, (outputs, inputs, *window) of a convolution,
            (rows, features) of a look-up.
        stored: the operand of all of them is the stored tensor, perhaps with axes of size 1 more or less, or its
            transpose, so that a change of it can be stored.
        alone: nothing else reads the stored tensor, so that a change of it changes these nodes alone.
        transposed: it is the transpose.
        uses: in the order of the graph.
        paths: names of the layer's module, the likeliest first of those that no other layer has.
        names: all that patterns match.
    """

    weight: Value
    kind: Kind
    sizes: tuple[int, ...]
    stored: bool
    alone: bool
    transposed: bool
    uses: tuple[Use, ...]
    paths: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """The name of its module."""
        return self.paths[0]

    @property
    def flat(self) -> bool:
        """Whether the stored tensor has other axes than what is read of it."""
        return self.stored and self.weight.type.sizes != (self.sizes[::-1] if self.transposed else self.sizes)

    def by_output(self, array: Array) -> Array:
        """The stored tensor's data with the outputs first, then the inputs, and the window of a convolution."""
        if self.kind == "conv":
            return array.reshape(self.sizes)
        return array.reshape(self.sizes[::-1]) if self.transposed else array.reshape(self.sizes).T


def layers_of(graph: Graph, aliases: Mapping[str, tuple[str, ...]], *, grouped: bool = False) -> list[Layer]:
    """Every layer, in the order of the graph.

    Args:
        graph: any.
        aliases: of stored tensors, see ``Model.aliases``.
        grouped: convolutions of groups too, which have no adapters.
    """
    origins = _Origins(graph, grouped)
    found: dict[Value, list[tuple[Node, _Origin]]] = {}
    for node in graph.nodes:
        if (origin := origins.of_weight(node)) is not None:
            found.setdefault(origin.stored, []).append((node, origin))
    biases = _biases(graph)
    layers = []
    for weight, reads in found.items():
        beside = [biases[node].removesuffix("bias") + "weight" for node, _ in reads if node in biases]
        layers.append(_layer(weight, reads, (*aliases.get(weight.name, ()), *beside), origins.readers(weight)))
    return _with_own_paths(layers)


def _with_own_paths(layers: Sequence[Layer]) -> list[Layer]:
    """The layers with a path each that no other has: tensors of adapters are called so.

    Exporters give products of one module its name, and a table's weight that of the output layer which shares it. A
    layer whose module has a name besides leaves the shared one to the other layer.
    """
    shared = _shared_paths(layers)
    freed = []
    for layer in layers:
        named = [path for path in layer.paths if path not in shared and not _is_numbered(path)]
        left = tuple(path for path in layer.paths if path not in shared) if named else layer.paths
        freed.append(dataclasses.replace(layer, paths=left))
    shared = _shared_paths(freed)
    found = []
    for layer in freed:
        own = next((path for path in layer.paths if path not in shared), layer.weight.name)
        found.append(dataclasses.replace(layer, paths=tuple(dict.fromkeys((own, *layer.paths)))))
    return found


def _shared_paths(layers: Sequence[Layer]) -> frozenset[str]:
    counts = Counter(path for layer in layers for path in layer.paths)
    return frozenset(path for path, count in counts.items() if count > 1)


def _is_numbered(name: str) -> bool:
    """An exporter made the name."""
    return "::" in name or name.startswith(("node_", "val_"))


def _biases(graph: Graph) -> dict[Node, str]:
    """Names like ``encoder.q.bias`` of what is added to products: they name a module whose weight has a number."""
    stored = {value for value in graph.initializers if value.name.endswith(".bias")}
    makers = graph.producers()
    found: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op.name == "add" and (bias := next((v for v in node.inputs if v in stored), None)) is not None:
            product = next((makers[v] for v in node.inputs if v is not None and v in makers), None)
            if product is not None:
                found[product] = bias.name
    return found


def constants_of(graph: Graph) -> frozenset[Value]:
    """The values of a graph that no input changes."""
    return _Origins(graph).values()


def _layer(
    weight: Value, reads: Sequence[tuple[Node, _Origin]], aliases: tuple[str, ...], readers: Collection[Node | None]
) -> Layer:
    """The layer of nodes that read a weight; ``readers`` are all of the stored tensor, see ``_Origins.readers``."""
    node, origin = next(((n, o) for n, o in reads if n.op.name == "gather"), reads[0])
    kind = _KIND[node.op.name]
    same = [(n, o) for n, o in reads if (n.op.name == "conv") == (kind == "conv")]
    uses = tuple(Use(n, o.transposed != origin.transposed) for n, o in same)
    operand = node.inputs[WEIGHT_AT[node.op.name]]
    assert operand is not None
    sizes = operand.type.sizes
    if node.op.name == "matmul_blocks":
        ends = node.attributes["size"], sizes[0]
        sizes = ends[::-1] if node.attributes["transposed"] else ends
    paths = module_paths((weight.name, *aliases))
    names = tuple(dict.fromkeys((weight.name, *aliases, *paths)))
    stored = all(o.direct and n.op.name != "matmul_blocks" for n, o in same)
    alone = {use.node for use in uses}.issuperset(readers)
    return Layer(weight, kind, sizes, stored, alone, origin.transposed, uses, paths, names)


def module_paths(names: Sequence[str]) -> tuple[str, ...]:
    """Dotted names of the module that a weight belongs to, by the names that the weight has; the likeliest first.

    ``encoder.q.weight`` and ``/encoder/q/MatMul.weight`` are of ``encoder.q``; what exporters number comes last. Of a
    sequence of modules that is called PyTorch's older exporter, which begins names with ``/``, writes the name twice:
    ``/layers/layers.0/fc/MatMul.weight`` is of ``layers.0.fc``.
    """
    traced = any(name.startswith("/") for name in names)
    found = []
    for index, name in enumerate(names):
        module = name.removesuffix(".weight")
        if name.startswith("/"):
            module = ".".join(module.strip("/").split("/")[:-1])
        numbered = _is_numbered(name) or module == name
        once = _TWICE.sub(r"\1\2.\3", module) if traced and index else module
        for written, path in enumerate(dict.fromkeys((once, module))):
            if path:
                found.append((numbered, written, name.startswith("/"), path))
    ordered = dict.fromkeys(path for *_, path in sorted(found, key=lambda entry: entry[:3]))
    return tuple(ordered) or (names[0],)


@dataclass(frozen=True, slots=True)
class _Origin:
    """The stored tensor that an operand is: ``direct`` or not, ``transposed``, or ``sliced``, of fewer elements."""

    stored: Value
    direct: bool = True
    transposed: bool = False
    sliced: bool = False


class _Origins:
    """Follows operands of a graph to the stored tensors that they are computed from alone."""

    def __init__(self, graph: Graph, grouped: bool = False) -> None:
        self._grouped = grouped
        self._of: dict[Value, _Origin] = {value: _Origin(value) for value in graph.initializers}
        self._readers: dict[Value, set[Node | None]] = {}  # of stored tensors, as they are or transposed
        for node in graph.nodes:
            self._follow(node)
        for value in graph.outputs.values():
            self._note(value, None)

    def _follow(self, node: Node) -> None:
        """Notes the origin of what a node of constants computes."""
        sources = [None if v is None else self._of.get(v) for v in node.inputs]
        known = [source for source in sources if source is not None]
        flat = _is_reshape(node) and known != [] and known[0].direct and not known[0].transposed
        if not (_is_transpose(node) or flat):
            for value in node.inputs:
                self._note(value, node)
        if not known or node.op.effects != "none" or node.bodies:
            return
        if any(v is not None and v not in self._of for v in node.inputs):
            return
        if _is_transpose(node):
            made = dataclasses.replace(known[0], transposed=not known[0].transposed)
        elif flat:
            made = known[0]
        else:
            largest = max(known, key=lambda source: (source.stored.type.elements, not source.sliced))
            bound = [v.type.elements for v in node.outputs if v is not None and v.type.is_bound]
            sliced = largest.sliced or any(count < largest.stored.type.elements for count in bound)
            made = _Origin(largest.stored, False, largest.transposed, sliced)
        self._of.update(dict.fromkeys((v for v in node.outputs if v is not None), made))

    def _note(self, value: Value | None, reader: Node | None) -> None:
        origin = None if value is None else self._of.get(value)
        if origin is not None and origin.direct:
            self._readers.setdefault(origin.stored, set()).add(reader)

    def readers(self, stored: Value) -> Collection[Node | None]:
        """The nodes that read a stored tensor, as it is or transposed; None where the graph returns it."""
        return self._readers.get(stored, ())

    def values(self) -> frozenset[Value]:
        """All that is stored or computed from stored tensors alone."""
        return frozenset(self._of)

    def of_weight(self, node: Node) -> _Origin | None:
        """The origin of a node's weight; None of one that can't have an adapter."""
        position = WEIGHT_AT.get(node.op.name)
        if position is None:
            return None
        weight, other = node.inputs[position], node.inputs[1 - position]
        origin = None if weight is None else self._of.get(weight)
        # A slice of a stored tensor, as the matrix of one of two directions is, has no name of its own.
        if origin is None or weight is None or other in self._of or origin.sliced:
            return None
        if node.op.name == "matmul_blocks":
            return origin
        if not weight.type.dtype.is_float:
            return None
        if node.op.name == "conv":
            return origin if self._grouped or node.attributes["groups"] == 1 else None
        if weight.type.rank != 2 or (node.op.name == "gather" and node.attributes["axis"] != 0):
            return None
        return origin


def _is_reshape(node: Node) -> bool:
    """Whether a node adds or removes axes of size 1."""
    x, y = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op.name != "reshape" or x is None or y is None or y.type.rank < 2:
        return False
    return [size for size in x.type.shape if size != 1] == [size for size in y.type.shape if size != 1]


def _is_transpose(node: Node) -> bool:
    return node.op.name == "transpose" and node.attributes["perm"] == (1, 0)


def end_of(
    graph: Graph, layer: Layer, use: Use, readers: Mapping[Value, Sequence[Node]], constants: Collection[Value]
) -> tuple[Node, Value | None]:
    """The node whose result is the layer's: that of the weight, or of a constant bias behind it; and the bias."""
    node, y = use.node, use.node.outputs[0]
    if layer.kind == "conv":
        return node, node.inputs[2] if len(node.inputs) > 2 else None
    reading = readers.get(y, ()) if y is not None and y not in graph.outputs.values() else ()
    if len(reading) == 1 and reading[0].op.name == "add":
        bias = next((v for v in reading[0].inputs if v is not y), None)
        if bias is not None and bias in constants and bias.type.rank <= 1:
            return reading[0], bias
    return node, None
