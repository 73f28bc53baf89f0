"""Graph -> ONNX nodes, for models built by hand, in the lowest opset from 17 that can express them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from dataflow import Dim, DType, Graph, Node, Value
from dataflow.errors import ModelError
from dataflow.plugin import Exporter, Model

from .value_types import CODE_OF

LOWEST_OPSET = 17
MICROSOFT = "com.microsoft"  # the domain of onnxruntime's own operators
IR_VERSION = 8  # of opset 17; newer opsets ask for more, see IR_OF
IR_OF = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12, 25: 13}
_OPSET_OF_DTYPE = {  # in which operators that move elements take them too
    "float8_e4m3fn": 21, "float8_e4m3fnuz": 21, "float8_e5m2": 21, "float8_e5m2fnuz": 21, "int4": 21, "uint4": 21,
    "float4_e2m1fn": 23, "float8_e8m0fnu": 24, "int2": 25, "uint2": 25,
}  # fmt: skip

_FAR = (1 << 63) - 1  # a start or an end that is clamped to the end of the axis

_SAME: dict[str, str] = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "relu": "Relu", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "softplus": "Softplus", "softsign": "Softsign", "logical_not": "Not", "is_nan": "IsNaN", "copy": "Identity",
    "require": "Identity", "stop_gradient": "Identity", "hard_swish": "HardSwish", "add": "Add", "sub": "Sub",
    "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min", "equal": "Equal", "less": "Less",
    "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And",
    "logical_or": "Or", "logical_xor": "Xor", "where": "Where", "matmul": "MatMul", "prelu": "PRelu", "clip": "Clip",
}  # fmt: skip
_ATTRIBUTES: dict[str, tuple[str, dict[str, str]]] = {
    "leaky_relu": ("LeakyRelu", {"alpha": "alpha"}),
    "elu": ("Elu", {"alpha": "alpha"}),
    "selu": ("Selu", {"alpha": "alpha", "gamma": "gamma"}),
    "celu": ("Celu", {"alpha": "alpha"}),
    "thresholded_relu": ("ThresholdedRelu", {"alpha": "alpha"}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": "alpha", "beta": "beta"}),
    "mod": ("Mod", {"fmod": "fmod"}),
    "transpose": ("Transpose", {"perm": "perm"}),
    "concat": ("Concat", {"axis": "axis"}),
    "gather": ("Gather", {"axis": "axis"}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "log_softmax": ("LogSoftmax", {"axis": "axis"}),
    "argmax": ("ArgMax", {"axis": "axis", "keepdims": "keepdims", "select_last_index": "select_last_index"}),
    "argmin": ("ArgMin", {"axis": "axis", "keepdims": "keepdims", "select_last_index": "select_last_index"}),
    "batch_norm": ("BatchNormalization", {"epsilon": "epsilon"}),
    "lrn": ("LRN", {"size": "size", "alpha": "alpha", "beta": "beta", "bias": "bias"}),
    "conv": ("Conv", {"strides": "strides", "pads": "pads", "dilations": "dilations", "groups": "group"}),
    "max_pool": (
        "MaxPool",
        {"kernel": "kernel_shape", "strides": "strides", "pads": "pads", "dilations": "dilations",
         "ceil_mode": "ceil_mode"},
    ),
    "avg_pool": (
        "AveragePool",
        {"kernel": "kernel_shape", "strides": "strides", "pads": "pads", "ceil_mode": "ceil_mode",
         "count_include_pad": "count_include_pad"},
    ),
}  # fmt: skip
_REDUCE = {
    "reduce_sum": "ReduceSum",
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def build_proto(model: Model, exporters: Mapping[str, Exporter], opset: int | None, ir_version: int | None) -> Any:
    """The ONNX model of a graph built by hand.

    Args:
        model: with the graph.
        exporters: by name of the op, of those that plugins brought.
        opset: of the file; None: the lowest that can express it.
        ir_version: of the file; None: that of the opset.

    Raises:
        ModelError: an op has no ONNX form, or not in this opset.
    """
    builder = _Builder(model.graph, exporters)
    nodes = builder.nodes()
    needed = max(builder.opset, LOWEST_OPSET)
    if opset is not None and opset < needed:
        raise ModelError(f"opset={opset}: the model needs {needed}")
    chosen = opset or needed
    arrays = model.arrays()
    read = {name for node in nodes for name in node.input} | {v.name for v in model.graph.outputs.values()}
    stored = [builder.tensor(name, array) for name, array in arrays.items() if name in read]
    graph = onnx.helper.make_graph(
        nodes,
        model.graph.name or "graph",
        [builder.info(v.name, v) for v in model.graph.inputs],
        [builder.info(name, v) for name, v in model.graph.outputs.items()],
        [*stored, *builder.constants],
    )
    version = ir_version or IR_OF.get(chosen, IR_VERSION)
    opsets = [onnx.helper.make_opsetid(*pair) for pair in [("", chosen), *builder.domains.items()]]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="dataflow")


def nodes_of(graph: Graph, nodes: Sequence[Node], opset: int, taken: Collection[str]) -> tuple[list[Any], list[Any]]:
    """Some nodes of a graph as ONNX nodes, with the tensors that these read beside the graph's values.

    Args:
        graph: has the nodes.
        nodes: in order.
        opset: that they are written for.
        taken: names that no tensor made here may have.

    Raises:
        ModelError: an op has no ONNX form, or only in a later opset.
    """
    builder = _Builder(graph, {})
    builder.names |= set(taken)
    builder.note_sizes(list(graph.values()))
    for node in nodes:
        builder.checked(node)
    if builder.opset > max(opset, LOWEST_OPSET):
        raise ModelError(f"the file has opset {opset}; what was added needs {builder.opset}")
    return builder.protos, builder.constants


class _Builder:
    def __init__(self, graph: Graph, exporters: Mapping[str, Exporter]) -> None:
        self.graph = graph
        self.exporters = exporters
        self.domains: dict[str, int] = {}  # versions of those that operators have beside ONNX's own
        self.opset = LOWEST_OPSET
        self.constants: list[Any] = []
        self.protos: list[Any] = []
        self.names = {value.name for value in graph.values()} | set(graph.outputs)
        self.size_tensors: dict[Any, str] = {}  # of named sizes that a node reads, one element each
        self.axes: dict[Any, tuple[str, int]] = {}  # where a named size can be read: value and axis

    def nodes(self) -> list[Any]:
        """The nodes in order; outputs under their own names at the end.

        Raises:
            ModelError: an op has no ONNX form, with its attributes and sizes.
        """
        newest = (_OPSET_OF_DTYPE.get(value.type.dtype.name, 0) for value in self.graph.values())
        self.opset = max([self.opset, *newest])
        self.note_sizes(self.graph.inputs)
        for node in self.graph.nodes:
            self.checked(node)
            self.note_sizes([value for value in node.outputs[: len(_plain(node))] if value is not None])
        for name, value in self.graph.outputs.items():
            if name != value.name:
                self.add("Identity", [value.name], [name])
        return self.protos

    def checked(self, node: Node) -> None:
        """Adds a node as ``node`` does.

        Raises:
            ModelError: it has no ONNX form.
        """
        try:
            self.node(node)
        except ModelError as error:
            raise ModelError(f"{node.describe()}: {error}") from None
        except Exception as error:  # whatever onnx makes of an attribute
            raise ModelError(f"{node.describe()}: it has no ONNX form with these attributes: {error}") from error

    def note_sizes(self, values: Sequence[Value]) -> None:
        """Records which values named sizes can be read from."""
        for value in values:
            for axis, size in enumerate(value.type.shape):
                if isinstance(size, Dim):
                    self.axes.setdefault(size, (value.name, axis))

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> None:
        self.protos.append(onnx.helper.make_node(kind, inputs, outputs, name=name, **attributes))

    def node(self, node: Node) -> None:
        """Adds the ONNX nodes that a node of the graph is written as."""
        inputs = ["" if v is None else v.name for v in node.inputs]
        outputs = [v.name for v in node.outputs if v is not None][: len(_plain(node))]
        add: Callable[..., None] = functools.partial(self.add, outputs=outputs, name=node.name)
        name, a = node.op.name, node.attributes
        first = node.inputs[0] if node.inputs else None
        if name == "matmul" and first is not None:
            inputs[1] = self.in_dtype(node.inputs[1], first.type.dtype)
        if name in _SAME:
            add(_SAME[name], inputs)
        elif first is not None and _does_nothing(node):
            add("Identity", inputs[:1])
        elif name in _ATTRIBUTES:
            kind, renamed = _ATTRIBUTES[name]
            if name == "avg_pool" and any(d != 1 for d in a["dilations"]):
                self.opset = max(self.opset, 19)
                renamed = {**renamed, "dilations": "dilations"}
            if any(isinstance(n, Dim) for n in a.get("pads", ())):
                raise ModelError(f"pads that depend on a named size, {a['pads']}, have no ONNX form; fix the size")
            if name == "mod" and not a["fmod"] and first is not None and first.type.dtype.is_float:
                raise ModelError("the remainder of floats with the divisor's sign has no ONNX form yet; use fmod=1")
            add(kind, inputs, **{onnx_name: a[own] for own, onnx_name in renamed.items()})
        elif name == "gelu":
            self.opset = max(self.opset, 20)
            add("Gelu", inputs, approximate=a["approximate"])
        elif name == "layer_norm":
            if not a["center"] or node.inputs[1:2] in ((), (None,)):
                raise ModelError("normalization without a scale, or without taking off the mean, has no ONNX form")
            add("LayerNormalization", inputs, axis=a["axis"], epsilon=a["epsilon"])
        elif name == "matmul_blocks":
            add("MatMulNBits", inputs, domain=self.domain(MICROSOFT, 1), **self.in_blocks(node))
        elif name == "dropout":
            add("Dropout", [inputs[0], self.number(f"{outputs[0]}.ratio", a["ratio"])])
        elif name == "cast":
            fit = {"saturate": 0} if not a["saturate"] and a["to"].name.startswith("float8") else {}
            power = {"round_mode": a["round_mode"]} if a["to"].name == "float8_e8m0fnu" else {}
            add("Cast", inputs, to=CODE_OF[a["to"]], **fit, **power)
        elif name == "reshape":
            shape, kept = self.reshaped(node, outputs[0])
            add("Reshape", [inputs[0], shape], **({"allowzero": 1} if kept else {}))
        elif name == "broadcast_to":
            add("Expand", [inputs[0], self.expanded(node, outputs[0])])
        elif name == "slice":
            add("Slice", [inputs[0], *self.slice_operands(node, outputs[0])])
        elif name == "pad":
            add("Pad", [inputs[0], self.sizes(f"{outputs[0]}.pads", a["pads"]), *inputs[1:]], mode=a["mode"])
        elif name in _REDUCE:
            if name != "reduce_sum":
                self.opset = max(self.opset, 18)  # from there the axes are an input
            add(_REDUCE[name], [inputs[0], self.ints(f"{outputs[0]}.axes", a["axes"])], keepdims=a["keepdims"])
        elif name in self.exporters:
            self.exported(node, self.exporters[name])
        else:
            raise ModelError(
                "this op has no ONNX form; save only what inference needs, or offer one by the hook onnx_exporters if "
                "it is an op of yours"
            )

    def exported(self, node: Node, exporter: Exporter) -> None:
        """Adds the operator that a plugin writes its op as."""
        inputs, outputs = (["" if v is None else v.name for v in values] for values in (node.inputs, node.outputs))
        own = {key: value for key, value in node.attributes.items() if value is not None}
        given = own if exporter.attributes is None else exporter.attributes(node)
        attributes = {key: CODE_OF[value] if isinstance(value, DType) else value for key, value in given.items()}
        proto = onnx.helper.make_node(exporter.operator, inputs, outputs, node.name)
        proto.domain = self.domain(exporter.domain, exporter.version)
        proto.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        self.protos.append(proto)

    def domain(self, name: str, version: int) -> str:
        """The name, of a domain whose version is written to the file.

        Raises:
            ModelError: another operator needs another version.
        """
        if name in ("", "ai.onnx"):
            self.opset = max(self.opset, version)
            return ""
        if self.domains.setdefault(name, version) != version:
            raise ModelError(
                f"version {version} of {name} is needed, and version {self.domains[name]} for another node"
            )
        return name

    def in_dtype(self, value: Value | None, dtype: DType) -> str:
        """The name of a value in a dtype: ONNX's operators take operands of one."""
        assert value is not None
        if value.type.dtype == dtype:
            return value.name
        made = self.unique(f"{value.name}.cast")
        self.add("Cast", [value.name], [made], to=CODE_OF[dtype])
        return made

    @staticmethod
    def in_blocks(node: Node) -> dict[str, int]:
        """The attributes of a product with a weight in blocks.

        Raises:
            ModelError: it is one of a gradient.
        """
        scale, a = node.inputs[2], node.attributes
        if a["transposed"] or scale is None:
            raise ModelError("the product with the transposed weight has no ONNX form")
        return {"K": a["size"], "N": scale.type.sizes[0], "bits": a["bits"], "block_size": a["block"]}

    # ---- sizes ----------------------------------------------------------------------------------------

    def slice_operands(self, node: Node, name: str) -> list[str]:
        """Starts, ends, axes and steps of a slice; axes that are kept entirely are left out."""
        assert node.inputs[0] is not None and node.outputs[0] is not None
        a = node.attributes
        sizes = zip(node.inputs[0].type.shape, node.outputs[0].type.shape, strict=True)
        rows: list[tuple[Any, Any, int, int]] = []
        for axis, ((size, left), entry) in enumerate(
            zip(sizes, zip(a["starts"], a["stops"], a["steps"], strict=True), strict=True)
        ):
            start, stop, step = entry
            if (start, stop, step) == (0, size, 1):
                continue
            if not isinstance(left, Dim) and left == 0:
                start, stop, step = 0, 0, 1  # -1 is before the first element here, and the last one there
            if step < 0 and start == size - 1:
                start = _FAR
            if not isinstance(stop, Dim) and stop < 0:
                stop = -_FAR
            start, stop = (_from_the_end(at, size) if isinstance(at, Dim) else at for at in (start, stop))
            rows.append((start, stop, axis, step))
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        labels = ("starts", "ends", "axes", "steps")
        return [self.sizes(f"{name}.{label}", values) for label, values in zip(labels, columns, strict=True)]

    def reshaped(self, node: Node, name: str) -> tuple[str, bool]:
        """The shape of a reshape, and whether a 0 in it is a size.

        Where no size is 0, a named one is copied from the same axis of the operand (0), and one more is inferred (-1).
        """
        assert node.inputs[0] is not None
        shape, source = node.attributes["shape"], node.inputs[0].type.shape
        if 0 in shape:
            return self.sizes(name + ".shape", shape), True
        wanted: list[int] = []
        for axis, size in enumerate(shape):
            if not isinstance(size, Dim):
                wanted.append(size)
            else:
                wanted.append(0 if axis < len(source) and source[axis] == size else -1)
        if wanted.count(-1) > 1:
            return self.sizes(name + ".shape", shape), True
        return self.ints(name + ".shape", wanted), False

    def expanded(self, node: Node, name: str) -> str:
        """The shape of an expansion; the operand's own named sizes are 1."""
        assert node.inputs[0] is not None
        shape, source = node.attributes["shape"], node.inputs[0].type.shape
        own = (1,) * (len(shape) - len(source)) + source
        return self.sizes(
            name + ".shape", [1 if isinstance(n, Dim) and n == have else n for n, have in zip(shape, own, strict=True)]
        )

    def sizes(self, name: str, sizes: Sequence[Any]) -> str:
        """Numbers and named sizes as a tensor: stored, or joined by a node.

        Raises:
            ModelError: a named size is the size of no value.
        """
        if not any(isinstance(n, Dim) for n in sizes):
            return self.ints(name, sizes)
        rows = [self.size(n) if isinstance(n, Dim) else self.ints(f"{name}.{i}", [n]) for i, n in enumerate(sizes)]
        made = self.unique(name)
        self.add("Concat", rows, [made], axis=0)
        return made

    def size(self, size: Any) -> str:
        """A named size as a tensor of one element."""
        if size not in self.size_tensors:
            if size not in self.axes:
                raise ModelError(f"the size {size} is that of no value before it, which ONNX could read it from")
            value, axis = self.axes[size]
            self.size_tensors[size] = self.unique(f"{value}.size{axis}")
            self.add("Shape", [value], [self.size_tensors[size]], start=axis, end=axis + 1)
        return self.size_tensors[size]

    def number(self, name: str, value: float) -> str:
        """A stored number in float32; its name."""
        made = self.unique(name)
        self.constants.append(self.tensor(made, np.float32(value)))
        return made

    def ints(self, name: str, values: Sequence[int] | range) -> str:
        """A stored list of integers; its name."""
        made = self.unique(name)
        self.constants.append(self.tensor(made, np.asarray(list(values), np.int64)))
        return made

    def unique(self, name: str) -> str:
        """A name that is not yet used."""
        count, made = 0, name
        while made in self.names:
            count += 1
            made = f"{name}.{count}"
        self.names.add(made)
        return made

    @staticmethod
    def tensor(name: str, array: Any) -> Any:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)

    @staticmethod
    def info(name: str, value: Value) -> Any:
        shape = [str(d) if isinstance(d, Dim) else d for d in value.type.shape]
        return onnx.helper.make_tensor_value_info(name, CODE_OF[value.type.dtype], shape)


def _from_the_end(at: Any, size: Any) -> Any:
    """A named start or end as ONNX counts from the end of an axis; itself where that isn't known."""
    left = size - at
    if isinstance(left, Dim) or left < 0:
        return at
    return -left if left else _FAR


def _does_nothing(node: Node) -> bool:
    """Whether a node gives its operand as it is; an empty list of axes means something else in ONNX."""
    name, a = node.op.name, node.attributes
    if name in _REDUCE:
        return not tuple(a["axes"])
    rank = node.inputs[0].type.rank if node.inputs[0] is not None else 0
    return name in ("transpose", "slice", "pad") and rank == 0


def _plain(node: Node) -> list[str]:
    """The outputs that aren't extra."""
    return [name for name in node.op.output_names(node) if not name.startswith("+")]
