"""Graph -> ONNX nodes, for models built by hand: the lowest opset from 17 that can express them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow.errors import ModelError
from dataflow.graph import Graph, Node, Value
from dataflow.model import Model

LOWEST_OPSET = 17
IR_VERSION = 8  # of opset 17; newer opsets ask for more, see IR_OF
IR_OF = {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11, 24: 12}

_SAME: dict[str, str] = {
    "neg": "Neg", "abs": "Abs", "sign": "Sign", "relu": "Relu", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf", "floor": "Floor", "ceil": "Ceil", "round": "Round",
    "softplus": "Softplus", "softsign": "Softsign", "logical_not": "Not", "is_nan": "IsNaN", "copy": "Identity",
    "require": "Identity", "hard_swish": "HardSwish", "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div",
    "pow": "Pow", "maximum": "Max", "minimum": "Min", "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual",
    "greater": "Greater", "greater_equal": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "where": "Where", "matmul": "MatMul", "prelu": "PRelu", "clip": "Clip",
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
    "reduce_mean": "ReduceMean",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


def build_proto(model: Model, opset: int | None, ir_version: int | None) -> Any:
    """The ONNX model of a graph built by hand.

    Raises:
        ModelError: an op has no ONNX form, or not in this opset.
    """
    import onnx

    builder = _Builder(model.graph)
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
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", chosen)], ir_version=version, producer_name="dataflow"
    )


class _Builder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opset = LOWEST_OPSET
        self.constants: list[Any] = []

    def nodes(self) -> list[Any]:
        """The nodes in order; outputs under their own names at the end."""
        import onnx

        made = [n for node in self.graph.nodes for n in self.node(node)]
        for name, value in self.graph.outputs.items():
            if name != value.name:
                made.append(onnx.helper.make_node("Identity", [value.name], [name]))
        return made

    def node(self, node: Node) -> list[Any]:
        import onnx

        inputs = ["" if v is None else v.name for v in node.inputs]
        outputs = [v.name for v in node.outputs if v is not None][: len(_plain(node))]
        make: Callable[..., Any] = onnx.helper.make_node
        name, a = node.op.name, node.attributes
        if name in _SAME:
            if name == "hard_swish":
                self.opset = max(self.opset, 14)
            return [make(_SAME[name], inputs, outputs, name=node.name)]
        if name in _ATTRIBUTES:
            kind, renamed = _ATTRIBUTES[name]
            if name == "avg_pool" and any(d != 1 for d in a["dilations"]):
                self.opset = max(self.opset, 19)
                renamed = {**renamed, "dilations": "dilations"}
            given = {onnx_name: a[own] for own, onnx_name in renamed.items()}
            return [make(kind, inputs, outputs, name=node.name, **given)]
        if name == "gelu":
            self.opset = max(self.opset, 20)
            return [make("Gelu", inputs, outputs, name=node.name, approximate=a["approximate"])]
        if name == "cast":
            from .reader import CODE_OF

            return [make("Cast", inputs, outputs, name=node.name, to=CODE_OF[a["to"]])]
        if name in ("reshape", "broadcast_to"):
            shape = self.sizes(node, a["shape"], f"{outputs[0]}.shape")
            return [make("Reshape" if name == "reshape" else "Expand", [inputs[0], shape], outputs, name=node.name)]
        if name == "slice":
            parts = self.slice_parts(node, outputs[0])
            return [make("Slice", [inputs[0], *parts], outputs, name=node.name)]
        if name == "pad":
            pads = self.ints(f"{outputs[0]}.pads", a["pads"])
            return [make("Pad", [inputs[0], pads, *inputs[1:]], outputs, name=node.name, mode=a["mode"])]
        if name == "reduce_sum":
            axes = self.ints(f"{outputs[0]}.axes", a["axes"])
            return [make("ReduceSum", [inputs[0], axes], outputs, name=node.name, keepdims=a["keepdims"])]
        if name in _REDUCE:
            self.opset = max(self.opset, 18)  # from there the axes are an input
            axes = self.ints(f"{outputs[0]}.axes", a["axes"])
            return [make(_REDUCE[name], [inputs[0], axes], outputs, name=node.name, keepdims=a["keepdims"])]
        raise ModelError(f"{node.describe()}: this op has no ONNX form yet; save only what inference needs")

    def slice_parts(self, node: Node, name: str) -> list[str]:
        """Stored starts, ends, axes and steps of a slice; whole axes are left out."""
        from dataflow.types import Dim

        source = node.inputs[0].type.shape if node.inputs[0] is not None else ()
        rows = []
        a = node.attributes
        for axis, entry in enumerate(zip(a["starts"], a["stops"], a["steps"], source, strict=True)):
            start, stop, step, size = entry
            if (start, stop, step) == (0, size, 1):
                continue
            if stop == size and isinstance(size, Dim):
                stop = (1 << 63) - 1
            if isinstance(start, Dim) or isinstance(stop, Dim):
                raise ModelError(f"{node.describe()}: a slice up to the size {stop} has no ONNX form yet")
            rows.append((start, -(1 << 62) if stop < 0 else stop, axis, step))
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        labels = ("starts", "ends", "axes", "steps")
        return [self.ints(f"{name}.{label}", list(values)) for label, values in zip(labels, columns, strict=True)]

    def sizes(self, node: Node, shape: Sequence[Any], name: str) -> str:
        """A stored shape; one named dim becomes -1, or is copied where it stands."""
        from dataflow.types import Dim

        wanted: list[int] = []
        source = node.inputs[0].type.shape if node.inputs[0] is not None else ()
        for axis, size in enumerate(shape):
            if not isinstance(size, Dim):
                wanted.append(size)
            elif node.op.name == "reshape" and axis < len(source) and source[axis] == size:
                wanted.append(0)
            elif node.op.name == "broadcast_to" and axis < len(source) and source[axis] == size:
                wanted.append(1)
            else:
                wanted.append(-1)
        if wanted.count(-1) > 1 or (-1 in wanted and node.op.name != "reshape"):
            raise ModelError(f"{node.describe()}: shape {tuple(shape)} has more named sizes than ONNX can express here")
        return self.ints(name, wanted)

    def ints(self, name: str, values: Sequence[int] | range) -> str:
        self.constants.append(self.tensor(name, np.asarray(list(values), np.int64)))
        return name

    @staticmethod
    def tensor(name: str, array: Any) -> Any:
        import onnx

        return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)

    @staticmethod
    def info(name: str, value: Value) -> Any:
        import onnx

        from dataflow.types import Dim

        from .reader import CODE_OF

        shape = [str(d) if isinstance(d, Dim) else d for d in value.type.shape]
        return onnx.helper.make_tensor_value_info(name, CODE_OF[value.type.dtype], shape)


def _plain(node: Node) -> list[str]:
    """The outputs that aren't extra."""
    return [name for name in node.op.output_names(node) if not name.startswith("+")]
