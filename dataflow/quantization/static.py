"""``df.quantize_static``: a model in QDQ form, whose products are those of 8-bit integers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from .. import ops
from ..errors import InputError, ModelError
from ..host import checks
from ..host.keywords import passed_on
from ..ir.builder import GraphBuilder
from ..ir.edits import Edit, dropped, edited
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array, float32
from ..ir.value import Value
from ..layers.layers import Layer, layers_of
from ..layers.targets import chosen
from ..model import Model
from ..passes.dead_code import eliminate_dead_code
from ..passes.quantized.large_biases import MOST_UNITS
from ..session import Session
from ..train.data.columns import listed
from ..train.data.reading import as_in_training
from ..train.losses.loss import LABELS
from ..train.prediction import bound_dataset
from .ranges import Range, Samples, closest, extremes, steps_of
from .sites import Product, groups_of, products_of
from .stored import fold_rounded

_log = logging.getLogger("dataflow")
_LARGEST = {7: 64, 8: 127}  # element of a weight; two products of a byte and 64 fit in 16 bits
_MOST = MOST_UNITS - 1024  # of a bias in steps; less what rounding their size may add


def quantize_static(
    model: Model,
    data: Any = None,
    *,
    bits: int = 7,
    targets: Sequence[str] | str | None = None,
    ranges: Literal["minmax", "mse"] = "minmax",
    train: bool = False,
    batch_size: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Model:
    """A model whose products and convolutions are those of bytes, with scales that samples of data showed.

    Weights get a scale for each output, and lie around zero. What the products read, and the operands of sums and means
    between them, are rounded to bytes by one scale and a zero point each, which make the range that the value has over
    all samples. The model has pairs of QuantizeLinear and DequantizeLinear there, as other engines read them too. A
    batch norm behind a convolution becomes part of it.

    Args:
        model: of float32; it is not changed.
        data: samples like those that the model will get, some hundreds: a Dataset or what one is made of, or one array
            where the model has one input. Labels in it aren't read. None: the model has its pairs already, of
            ``train=True``, and weights that these round become stored integers; no other option applies.
        bits: of a weight's elements, 7 or 8. On a processor with AVX2 and without VNNI onnxruntime adds products of 8
            bits in 16 and saturates, which gives wrong results, and products of 7 bits are faster here.
        targets: names and patterns of layers, see ``targets.chosen``; all by default, ``"!head"`` leaves one out.
        ranges: ``"minmax"``: from the least to the largest element; ``"mse"``: of sixteen shares of that the one for
            which the squares of what rounding changes sum to the least.
        train: the weights stay floats that are rounded in the graph: ``df.straight_through`` trains them so.
        batch_size: samples per run, 32 by default; a model with a fixed batch has its own.
        progress: as for ``df.predict``.
        options: of the Session that runs the model on the data.

    Raises:
        InputError: an option doesn't fit, data that doesn't, or there is nothing to quantize.
        ModelError: a weight or bias has elements that are not finite.
    """
    passed_on(quantize_static, options, Session)
    checks.instance("model", model, Model)
    if isinstance(bits, bool) or bits not in (7, 8):
        raise InputError(f"bits is {checks.shown(bits)}; expected 7 or 8")
    checks.text("ranges", ranges, ("minmax", "mse"))
    checks.instance("train", train, bool)
    if data is None:
        own = {"bits": (bits, 7), "targets": (targets, None), "ranges": (ranges, "minmax"), "train": (train, False)}
        given = [name for name, (value, default) in own.items() if value != default]
        given += [*(["batch_size"] if batch_size is not None else []), *options]
        if given:
            raise InputError(f"{given[0]}= is given without data, where rounded weights are stored as they are")
        return fold_rounded(model)
    if model.forms:
        raise InputError("quantize_static: a model with sequences or optionals has no batches of samples")
    graph = model.graph_with_data()
    layers = layers_of(graph, model.aliases, grouped=True)
    if targets is not None:
        layers = chosen(graph, layers, targets)
    products = products_of(graph, layers)
    if not products:
        raise InputError(
            "the model has no product or convolution with a stored float32 weight that could be quantized"
            + _why_none(layers)
        )
    for product in products:
        for stored in (product.weight, *product.added):
            if not np.isfinite(graph.initializers[stored].array).all():
                what = "the weight" if stored is product.weight else f"beside the weight {product.weight.name!r},"
                raise ModelError(f"{what} {stored.name!r} has elements that are not finite; leave it out with targets=")
    groups = groups_of(graph, products)
    read = as_in_training(data, model.metadata, labels=False)
    samples = Samples(bound_dataset(read, graph.inputs, (LABELS,)), batch_size, progress)
    found = extremes(graph, groups, samples, options)
    if ranges == "mse":
        found = closest(graph, groups, found, samples, options)
    weights = {product.weight for product in products}
    multiplied = [layer for layer in layers if any(use.node.op.name != "gather" for use in layer.uses)]
    left = [layer.weight.name for layer in multiplied if layer.weight not in weights]
    if left:
        _log.info(
            "quantize_static: %d of %d layers keep their floats, of the weights %s: something else reads these",
            len(left), len(multiplied), listed(left),
        )  # fmt: skip
    return _Quantized(model, graph, products, dict(zip(groups, found, strict=True)), bits, train).model()


def _why_none(layers: Sequence[Layer]) -> str:
    """What keeps the weights of layers from being quantized, for a message."""
    for layer in layers:
        dtype, name = layer.weight.type.dtype, layer.weight.name
        if not layer.stored and dtype.is_int:
            return f"; {name!r} is of {dtype} already"
        if dtype != float32:
            return f"; {name!r} is of {dtype}: quantize the model of float32"
        if layer.kind != "embedding":
            return f"; {name!r} is computed with before a product reads it, or read in other ways too"
    return ""


class _Quantized:
    """A model with pairs of ``quantize`` and ``dequantize`` around what its products read."""

    def __init__(
        self,
        model: Model,
        graph: Graph,
        products: Sequence[Product],
        ranges: Mapping[tuple[Value, ...], Range],
        bits: int,
        train: bool,
    ) -> None:
        self._model, self._graph, self._train = model, graph, train
        self._most = _LARGEST[bits]
        # Of a rounded value the first of its group, whose name the scale and zero point have, and these.
        self._steps = {v: (group[0], *steps_of(*range_)) for group, range_ in ranges.items() for v in group}
        self._products = {product.node: product for product in products}
        self._uses = Counter(product.weight for product in products)
        self._norms = {product.norm: product for product in products if product.norm is not None}
        plain = [product for product in products if product.norm is None]
        self._weights = {product.weight: product for product in reversed(plain)}  # of several the first
        self._biases = {product.bias: product for product in plain if product.bias is not None}
        self._names = {value.name for value in graph.values()}
        self._new: dict[Value, Value] = {}  # what readers of a value read
        self._stored: dict[Value, tuple[Value, Value]] = {}  # scale and zero point, by the first of a group
        self._edits: list[Edit] = []
        self._aliases = dict(model.aliases)
        self._scales: dict[Value, Array] = {}  # by weight

    def model(self) -> Model:
        """The model with them."""
        changed = eliminate_dead_code(rewrite(self._graph, self._replace), extras=False)
        added = {value.name for value in changed.values()} - self._names
        computed = added | {edit.old for edit in self._edits if not edit.keeps}
        source = edited(self._model.source, self._edits, computed, anew=True)
        return Model(changed, aliases=self._aliases, source=source, metadata=self._model.metadata)

    def _replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        if node in self._norms:
            return (self._folded(builder, node, self._norms[node]),)
        read = [
            new if old is None or new is None else self._read(builder, old, new)
            for old, new in zip(node.inputs, inputs, strict=True)
        ]
        same = all(now is before for now, before in zip(read, inputs, strict=True))
        return None if same else builder.again(node, read).outputs

    def _read(self, builder: GraphBuilder, old: Value, new: Value) -> Value:
        """What a node reads in the place of a value: that, rounded, where it is one of those; once for all readers."""
        if old not in self._new:
            made = new
            if old in self._steps:
                made = self._rounded(builder, old, new)
            elif old in self._weights:
                made = self._weight(builder, old.name, self._weights[old], new)
            elif old in self._biases and not self._train and self._bias_fits(self._biases[old]):
                made = self._bias(builder, old.name, self._biases[old])
            if made is not new:
                self._edits.append(Edit(old.name, made.name, readers=True, keeps=True))
            self._new[old] = made
        return self._new[old]

    def _rounded(self, builder: GraphBuilder, old: Value, x: Value) -> Value:
        """A computed value in steps of its group."""
        first, scale, zero = self._steps[old]
        if first not in self._stored:
            stored = (("scale", scale), ("zero", zero))
            made = [builder.initializer(builder.free_name(f"{first.name}.{n}"), np.asarray(a)) for n, a in stored]
            self._stored[first] = made[0], made[1]
        return self._pair(builder, old.name, x, *self._stored[first], axis=0)

    def _weight(self, builder: GraphBuilder, name: str, product: Product, w: Value | None = None) -> Value:
        """A weight in steps of each output: stored so, or ``w`` rounded in the graph where that is to be trained."""
        array, scale = self._folded_weight(product), self._scale(product)
        tensors = {"scale": scale.reshape(-1), "zero": np.zeros(scale.size, np.int8)}
        operands = [builder.initializer(builder.free_name(f"{name}.{label}"), of) for label, of in tensors.items()]
        if self._train:
            if w is None:
                w = builder.initializer(builder.free_name(f"{name}.folded"), array, role="parameter", trainable=True)
            end = (scale * np.float32(self._most)).astype(np.float32)  # bytes have an eighth bit
            kept: Value = ops.minimum(ops.maximum(w, -end), end) if self._most < _LARGEST[8] else w
            return self._pair(builder, name, kept, *operands, axis=product.axis)
        steps = np.clip(np.rint(array / scale), -self._most, self._most).astype(np.int8)
        stored = builder.initializer(builder.free_name(f"{name}.quantized"), steps)
        self._aliases[stored.name] = (name, *self._model.aliases.get(name, ()))
        return self._dequantized(builder, name, stored, *operands, axis=product.axis)

    def _bias(self, builder: GraphBuilder, name: str, product: Product) -> Value:
        """A bias in the steps of its product."""
        units = self._scale(product).reshape(-1) * self._steps[product.source][1]
        steps = np.clip(np.rint(self._offset(product) / units.astype(np.float64)), -_MOST, _MOST).astype(np.int32)
        of = {"quantized": steps, "scale": units, "zero": np.zeros(steps.size, np.int32)}
        operands = [builder.initializer(builder.free_name(f"{name}.{label}"), array) for label, array in of.items()]
        return self._dequantized(builder, name, *operands, axis=0)

    def _folded(self, builder: GraphBuilder, node: Node, product: Product) -> Value:
        """The convolution that has the batch norm behind it in its weight and bias."""
        result, name = product.result, product.weight.name
        x = self._new[product.source]
        w = self._weight(builder, name, product)
        if self._train:
            offset = self._offset(product)
            b = builder.initializer(builder.free_name(f"{name}.offset"), offset, role="parameter", trainable=True)
        else:
            b = self._bias(builder, f"{name}.offset", product)
        y: Value = ops.conv(x, w, b, **product.node.attributes, name=product.node.name)
        self._edits.append(Edit(result.name, dropped(self._model.source, result.name, self._names)))
        builder.rename(y, result.name)
        return y

    def _folded_weight(self, product: Product) -> Array:
        """A weight in float32, times what the batch norm behind its product multiplies each output by."""
        array = self._array(product.weight)
        return array if product.norm is None else array * _column(self._factor(product), array.ndim)

    def _scale(self, product: Product) -> Array:
        """Of a weight the scale of each output, as it broadcasts against it; so large that one product's bias fits."""
        if product.weight not in self._scales:
            array = self._folded_weight(product)
            others = tuple(axis for axis in range(array.ndim) if axis != product.axis)
            scale = np.abs(array).max(others, keepdims=True, initial=0) / np.float32(self._most)
            if self._uses[product.weight] == 1:
                units = _MOST * float(self._steps[product.source][1])
                least = (np.abs(self._offset(product)).astype(np.float64) / units).astype(np.float32)
                scale = np.maximum(scale, least.reshape(scale.shape) if least.size > 1 else least.max(initial=0))
            normal = scale > np.finfo(np.float32).tiny * 1024
            self._scales[product.weight] = np.where(normal, scale, 1).astype(np.float32)
        return self._scales[product.weight]

    def _bias_fits(self, product: Product) -> bool:
        """Whether a bias has at most ``_MOST`` steps, which a weight of several products doesn't see to."""
        units = self._scale(product).reshape(-1).astype(np.float64) * self._steps[product.source][1]
        return self._uses[product.weight] == 1 or bool((np.abs(self._offset(product)) <= _MOST * units).all())

    def _factor(self, product: Product) -> Array:
        """By which a batch norm multiplies each output."""
        assert product.norm is not None
        scale, _, _, variance = (self._array(v).astype(np.float64) for v in product.norm.inputs[1:])
        factor: Array = scale / np.sqrt(variance + product.norm.attributes["epsilon"])
        return factor.astype(np.float32)

    def _offset(self, product: Product) -> Array:
        """What is added to each output, in float32; nothing: an array of no elements."""
        if product.norm is None:
            return np.zeros(0, np.float32) if product.bias is None else self._array(product.bias)
        inputs = product.node.inputs
        before = self._array(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else np.float32(0)
        _, shift, mean, _ = (self._array(v).astype(np.float64) for v in product.norm.inputs[1:])
        offset: Array = shift + (before - mean) * self._factor(product)
        return offset.astype(np.float32)

    def _array(self, value: Value | None) -> Array:
        assert value is not None
        return self._graph.initializers[value].array

    def _pair(self, builder: GraphBuilder, name: str, x: Value, scale: Value, zero: Value, *, axis: int) -> Value:
        quantized: Value = ops.quantize(x, scale, zero, axis=axis)
        builder.rename(quantized, builder.free_name(f"{name}.quantized"))
        return self._dequantized(builder, name, quantized, scale, zero, axis=axis)

    @staticmethod
    def _dequantized(builder: GraphBuilder, name: str, x: Value, scale: Value, zero: Value, *, axis: int) -> Value:
        y: Value = ops.dequantize(x, scale, zero, axis=axis)
        builder.rename(y, builder.free_name(f"{name}.dequantized"))
        return y


def _column(vector: Array, rank: int) -> Array:
    """A number for each output, as it broadcasts against a convolution's weight."""
    return vector.reshape(-1, *(1,) * (rank - 1))
