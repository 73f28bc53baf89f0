"""Gives a classifier another number of classes: ``df.replace_head``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import InputError, ModelError
from .host import checks
from .host.class_names import with_class_names
from .host.numbers import integer
from .ir.builder import GraphBuilder
from .ir.graph import Graph, Initializer, Node
from .ir.rewrite import rewrite
from .ir.types import Array
from .ir.value import Value
from .layers.layers import module_paths
from .model import Model
from .ops.infer import product
from .ops.shape import reshape

MOST_CLASSES = 1 << 31
_BETWEEN = frozenset(
    {"softmax", "log_softmax", "sigmoid", "copy", "cast", "reshape", "add", "transpose", "reduce_mean"}
)


@dataclass(frozen=True, slots=True)
class Head:
    """The last layer with weights.

    Attributes:
        node: the matmul or conv.
        weight: its stored tensor.
        axis: of the classes in the weight.
        bias: stored tensors added to its result, each with the axis of the classes.
    """

    node: Node
    weight: Value
    axis: int
    bias: tuple[tuple[Value, int], ...]

    @property
    def classes(self) -> int:
        """How many it has."""
        return int(self.weight.type.sizes[self.axis])


def replace_head(
    model: Model,
    classes: int,
    at: str | None = None,
    keep: Sequence[int] | Mapping[int, int] | None = None,
    seed: int = 0,
) -> Model:
    """A model whose last layer gives ``classes`` results; everything else stays as it is.

    The new weight is uniform within 1 / sqrt(fan in), as PyTorch begins a layer; the new bias is zero.

    Args:
        model: a classifier; it is not changed.
        classes: how many the new one has.
        at: name of the node, its weight, the weight's alias or its module, where the choice isn't clear.
        keep: old classes that stay: a sequence puts them first in that order, a mapping goes from old to new.
        seed: of the new weights.

    Raises:
        ModelError: it isn't clear which layer is the head; lists the candidates.
        InputError: an option doesn't fit.
    """
    checks.instance("model", model, Model)
    checks.optional("at", at, str)
    classes, seed = integer("classes", classes, 1, MOST_CLASSES), integer("seed", seed, 0)
    head = _find(model, at)
    kept = _kept_classes(keep, head.classes, classes)
    arrays = model.arrays()
    generator = np.random.default_rng(seed)
    graph = model.graph_with_data()
    old = {value.name: value for value in graph.initializers}
    new: dict[Value, Initializer] = {}
    changes = {head.weight.name: (head.axis, True)} | {value.name: (axis, False) for value, axis in head.bias}
    for name, (axis, random) in changes.items():
        array = _resized(arrays[name], axis, classes, kept, generator if random else None)
        new[old[name]] = dataclasses.replace(graph.initializers[old[name]], array=array, trainable=True)
    try:
        graph = rewrite(graph, _reshaped, initializers=new)
    except InputError as error:
        raise ModelError(
            f"the model can't have {classes} classes: what follows the head {head.node.describe()} is made for "
            f"{head.classes}: {error}"
        ) from None
    # The names of the classes before mean nothing now.
    return Model(graph, aliases=model.aliases, source=model.source, metadata=with_class_names(model.metadata, None))


def _reshaped(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...] | None:
    """A reshape of what has another size along one axis, with the axis of its result that is this one; else None.

    Raises:
        InputError: no axis is.
    """
    before, x, y = node.inputs[0] if node.inputs else None, inputs[0] if inputs else None, node.outputs[0]
    if node.op is not reshape or before is None or x is None or y is None or x.type.shape == before.type.shape:
        return None
    changed = [axis for axis, (old, new) in enumerate(zip(before.type.shape, x.type.shape, strict=True)) if old != new]
    if len(changed) == 1:
        (axis,) = changed
        size, outer = before.type.shape[axis], product(before.type.shape[:axis])
        for index, found in enumerate(y.type.shape):
            if found == size and product(y.type.shape[:index]) == outer:
                shape = (*y.type.shape[:index], x.type.shape[axis], *y.type.shape[index + 1 :])
                return builder.add(reshape, [x], {"shape": shape}, name=node.name, output_names=[y.name]).outputs
    raise InputError(f"{node.describe()} makes {y.type} of {before.type}")


def _resized(
    array: Array, axis: int, classes: int, kept: Mapping[int, int], generator: np.random.Generator | None
) -> Array:
    """The array with ``classes`` entries along ``axis``; kept ones in their kept, others random or zero."""
    shape = tuple(classes if i == axis else d for i, d in enumerate(array.shape))
    if generator is None:
        made = np.zeros(shape, array.dtype)
    else:
        bound = 1.0 / math.sqrt(max(array.size // array.shape[axis], 1))
        made = generator.uniform(-bound, bound, shape).astype(array.dtype)
    for before, after in kept.items():
        index = [slice(None)] * array.ndim
        target = list(index)
        index[axis], target[axis] = slice(before, before + 1), slice(after, after + 1)
        made[tuple(target)] = array[tuple(index)]
    return made


def _kept_classes(keep: Sequence[int] | Mapping[int, int] | None, old: int, new: int) -> dict[int, int]:
    if keep is not None and not isinstance(keep, (Mapping, Sequence)):
        raise InputError(f"keep is {checks.shown(keep)}; expected a sequence or a mapping of classes")
    listed = keep.items() if isinstance(keep, Mapping) else [(c, i) for i, c in enumerate(keep or ())]
    pairs = {integer("keep: a class", before, 0): integer("keep: a class", after, 0) for before, after in listed}
    for before, after in pairs.items():
        if not 0 <= before < old or not 0 <= after < new:
            raise InputError(f"keep: class {before} to {after}: the old head has {old} classes, the new one {new}")
    if len(set(pairs.values())) != len(pairs) or (not isinstance(keep, Mapping) and len(pairs) != len(keep or ())):
        raise InputError(f"keep: {keep} names a class twice")
    return pairs


def _find(model: Model, at: str | None) -> Head:
    """The head: the layer named ``at``, or the one between which and the output stand no other weights."""
    graph = model.graph
    makers = graph.producers()
    candidates = [h for node in graph.nodes if (h := _layer(graph, node, makers)) is not None]
    listed = "; ".join(f"{h.node.name!r} (weight {h.weight.name!r}, {h.classes} results)" for h in candidates[-5:])
    if at is not None and candidates:
        for head in candidates:
            names = (head.weight.name, *model.aliases.get(head.weight.name, ()))
            if at in (head.node.name, *names, *module_paths(names)):
                return head
        raise ModelError(f"at={at!r} names no layer with weights; candidates: {listed}")
    by_node = {head.node: head for head in candidates}
    found: dict[Node, Head] = {}
    for value in graph.outputs.values():
        current: Value | None = value
        while current is not None and current in makers:
            node = makers[current]
            if node in by_node:
                found[node] = by_node[node]
                break
            if node.op.name not in _BETWEEN:
                break
            computed = [v for v in node.inputs if v is not None and v not in graph.initializers]
            current = computed[0] if len(computed) == 1 else None
    if len(found) != 1:
        if not candidates:
            raise ModelError(
                "no product or convolution reads a stored weight of floats, which could get other classes: "
                "model.with_outputs([hidden]).append(...) gives a model of quantized weights another last layer"
            )
        raise ModelError(f"it isn't clear which layer is the head; name it with at=; candidates: {listed}")
    (head,) = found.values()
    readers = [n for n in graph.nodes if head.weight in n.inputs]
    if len(readers) > 1:
        raise ModelError(
            f"the weight {head.weight.name!r} of the head is read by {len(readers)} nodes; name one with at="
        )
    return head


def _layer(graph: Graph, node: Node, makers: Mapping[Value, Node]) -> Head | None:
    """A matmul or conv with a stored weight, with the biases behind it."""
    if node.op.name not in ("matmul", "conv") or node.inputs[1] is None:
        return None
    weight, axis = node.inputs[1], node.inputs[1].type.rank - 1 if node.op.name == "matmul" else 0
    while weight in makers and makers[weight].op.name == "transpose":
        view = makers[weight]
        axis = view.attributes["perm"][axis]
        assert view.inputs[0] is not None
        weight = view.inputs[0]
    if weight not in graph.initializers or not weight.type.dtype.is_float:
        return None
    classes = weight.type.sizes[axis]
    bias: list[tuple[Value, int]] = []
    if node.op.name == "conv" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias.append((node.inputs[2], 0))
    current = node.outputs[0]
    readers = graph.readers()
    while current is not None:
        following = readers.get(current, [])
        if len(following) != 1 or following[0].op.name != "add":
            break
        added = next((v for v in following[0].inputs if v is not current), None)
        if added is not None and added in graph.initializers and classes in added.type.sizes:
            bias.append((added, len(added.type.sizes) - 1 - added.type.sizes[::-1].index(classes)))
        current = following[0].outputs[0]
    if any(value not in graph.initializers for value, _ in bias):
        return None
    return Head(node, weight, axis, tuple(bias))
