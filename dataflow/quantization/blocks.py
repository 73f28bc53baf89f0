"""``df.quantize``: a model whose products have weights of 4 or 8 bits, in blocks of their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import ops
from ..errors import InputError, ModelError
from ..host import checks
from ..ir.builder import GraphBuilder
from ..ir.edits import Edit, dropped, edited
from ..ir.graph import Node
from ..ir.rewrite import rewrite
from ..ir.types import Array
from ..ir.value import Value
from ..layers.layers import Layer, constants_of, end_of, layers_of
from ..layers.targets import chosen
from ..model import Model
from ..passes.dead_code import eliminate_dead_code
from ..train.parameters import select

BLOCKS = (16, 32, 64, 128, 256)  # which onnxruntime runs too


def quantize(
    model: Model,
    bits: int = 4,
    block: int = 32,
    targets: Sequence[str] | str | None = None,
    symmetric: bool = True,
    keep: Sequence[str] | str = (),
) -> Model:
    """A model whose products read weights of 4 or 8 bits: a scale, and maybe a zero point, for each block of a row.

    The weights are never floats again, not in training either: products convert them block by block. They can't be
    trained; adapters beside them can, see ``df.lora``. Saved, each product is a ``MatMulNBits``.

    Args:
        model: it is not changed.
        bits: of an element: 4 or 8.
        block: elements with one scale: 16 to 256, a power of two.
        targets: names and patterns of layers, see ``targets.chosen``; all products by default.
        symmetric: zero is the middle of the range; otherwise every block has its own zero point.
        keep: names and patterns of parameters that are to be trained and therefore stay, see ``Trainer(trainable=)``.

    Raises:
        InputError: an option doesn't fit, or matches nothing that can be quantized.
        ModelError: a weight has elements that are not finite.
    """
    checks.instance("model", model, Model)
    for name, value, values in (("bits", bits, (4, 8)), ("block", block, BLOCKS)):
        if isinstance(value, bool) or value not in values:
            raise InputError(f"{name} is {checks.shown(value)}; expected one of {', '.join(map(str, values))}")
    checks.instance("symmetric", symmetric, bool, np.bool_)
    layers = [layer for layer in layers_of(model.graph, model.aliases) if can_quantize(layer)]
    if targets is not None:
        layers = chosen(model.graph, layers, targets)
    kept = set(select(model, keep)) if keep else set()
    layers = [layer for layer in layers if layer.weight.name not in kept]
    if not layers:
        beside = f" beside keep={keep!r}" if kept else ""
        raise InputError(f"the model has no product with a stored float32 weight that could be quantized{beside}")
    arrays = model.arrays()
    graph = model.graph_with_data()
    readers, constants = graph.readers(), constants_of(graph)
    layer_of = {use.node: layer for layer in layers for use in layer.uses}
    lasts = {end_of(graph, layer, use, readers, constants)[0]: use.node for layer in layers for use in layer.uses}
    made: dict[Value, tuple[Value, Value, Value | None]] = {}
    edits: list[Edit] = []
    names = {value.name for value in graph.values()}
    aliases = dict(model.aliases)

    def stored(builder: GraphBuilder, layer: Layer) -> tuple[Value, Value, Value | None]:
        """The weight's tensors, once for all nodes that read it."""
        if layer.weight not in made:
            name = layer.weight.name
            rows = layer.by_output(arrays[name])
            data = dict(zip(("blocks", "scales", "zeros"), in_blocks(name, rows, bits, block, symmetric), strict=True))
            of = {label: builder.free_name(f"{name}.{label}") for label in data}
            aliases[of["blocks"]] = (name, *aliases.get(name, ()))
            tensors = [None if a is None else builder.initializer(of[label], a) for label, a in data.items()]
            made[layer.weight] = (tensors[0], tensors[1], tensors[2])  # type: ignore[assignment]
        return made[layer.weight]

    results: dict[Node, Value] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...] | None:
        layer = layer_of.get(node)
        if layer is not None:
            blocks, scales, zeros = stored(builder, layer)
            x = inputs[0]
            assert x is not None
            how = {"size": layer.sizes[0], "bits": bits, "block": block}
            results[node] = ops.matmul_blocks(x, blocks, scales, zeros, **how, name=f"{layer.path}.quantized")
            if node not in lasts:
                return (results[node],)
        if node not in lasts:
            return None
        old = node.outputs[0]
        assert old is not None
        edits.append(Edit(old.name, dropped(model.source, old.name, names)))
        y = results[lasts[node]] if layer is not None else builder.add(node.op, inputs, node.attributes).outputs[0]
        assert y is not None
        builder.rename(y, old.name)
        return (y,)

    changed = eliminate_dead_code(rewrite(graph, replace), extras=False)
    added = {value.name for value in changed.values()} - names
    source = edited(model.source, edits, added | {edit.old for edit in edits})
    return Model(changed, aliases=aliases, source=source, metadata=model.metadata)


def can_quantize(layer: Layer) -> bool:
    """Whether a layer is products alone, with a stored weight of float32."""
    products = all(use.node.op.name == "matmul" and not use.swapped for use in layer.uses)
    type_ = layer.weight.type
    stored = layer.stored and not layer.flat  # a file's recurrent layer reads it with an axis more
    return layer.kind == "linear" and stored and products and type_.dtype.name == "float32" and type_.elements > 0


def in_blocks(name: str, weight: Array, bits: int, block: int, symmetric: bool) -> tuple[Array, Array, Array | None]:
    """Bytes, scales and zero points of a weight (rows, size), as ``matmul_blocks`` takes them.

    Symmetric, the element that is largest in magnitude is the lowest step, as onnxruntime's quantizer has it: all
    steps of the range are used.

    Raises:
        ModelError: an element is not finite.
    """
    if not np.isfinite(weight).all():
        raise ModelError(f"the weight {name!r} has elements that are not finite; leave it out with targets=")
    rows, size = weight.shape
    count, middle, most = -(-size // block), 1 << (bits - 1), (1 << bits) - 1
    blocks = np.pad(weight, ((0, 0), (0, count * block - size))).reshape(rows, count, block)
    zeros: Array
    if symmetric:
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1, keepdims=True), -1)[..., 0]
        scales, zeros = largest / np.float32(-middle), np.full((1, 1, 1), middle, np.float32)
    else:
        low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
        scales = (high - low) / np.float32(most)
        with np.errstate(divide="ignore", invalid="ignore"):
            zeros = np.where(scales == 0, 0, np.clip(np.rint(-low / scales), 0, most)).astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.where(scales[..., None] == 0, 0, np.rint(blocks / scales[..., None])) + zeros
    elements = np.clip(steps, 0, most).astype(np.uint8)
    origin = None if symmetric else _joined(zeros[..., 0].astype(np.uint8), bits)
    return _joined(elements, bits), scales.astype(np.float32), origin


def _joined(elements: Array, bits: int) -> Array:
    """Elements as bytes: of 4 bits two in each, the lower half first."""
    if bits == 8:
        return elements
    even = np.pad(elements, [(0, 0)] * (elements.ndim - 1) + [(0, elements.shape[-1] % 2)])
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << 4)
