"""Random models of layers as exporters write them: products in every form, convolutions, look-ups, shared weights."""

from __future__ import annotations

import random as standard
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from .making import Array

ACTIVATIONS = ("Relu", "Tanh", "LeakyRelu", "Identity")


@dataclass(frozen=True)
class Layered:
    """A file and what its model is fed."""

    model: bytes
    feeds: dict[str, Array]


class _Layers:
    """Adds nodes to a chain of values (rows, columns)."""

    def __init__(self, random: standard.Random) -> None:
        self.random = random
        self.numbers = np.random.default_rng(random.getrandbits(32))
        self.nodes: list[object] = []
        self.stored: dict[str, Array] = {}
        self.rows, self.columns = random.choice((1, 2, 5, 9)), random.choice((1, 3, 4, 8, 17))
        self.named = random.random() < 0.5  # as modules are, or numbered as exporters do

    def add(self, operator: str, inputs: list[str], **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], f"{operator}_{len(self.nodes)}", **attributes))
        return name

    def keep(self, array: Array, word: str = "weight") -> str:
        number = len(self.stored)
        name = f"block.{number}.{word}" if self.named else f"onnx::{word}_{number}"
        self.stored[name] = array
        return name

    def weight(self, *shape: int) -> str:
        """A stored matrix, maybe one that there is."""
        same = [n for n, a in self.stored.items() if a.shape == shape and a.dtype == np.float32]
        if same and self.random.random() < 0.5:
            return self.random.choice(same)
        array = (self.numbers.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        if self.random.random() < 0.1:  # pruned
            array[:, self.random.randrange(shape[1])] = 0
            array[self.random.randrange(shape[0])] = 0
        return self.keep(array)

    def outputs(self) -> int:
        """A number of columns: often that of now, so that weights are read again."""
        return self.random.choice((self.columns, self.columns, 1, 2, 6, 16, 33))

    def product(self, x: str) -> str:
        """x @ w by one of the forms that files have; the weight may be transposed, scaled or on the left."""
        n, k, m = self.outputs(), self.columns, self.rows
        kind = self.random.choice(
            ("matmul", "matmul", "transposed", "gemm", "gemm", "gemm", "left", "scaled", "batched")
        )
        bias = [self.keep(self.numbers.standard_normal(n).astype(np.float32), "bias")]
        bias = bias if self.random.random() < 0.6 else []
        if kind == "gemm":
            over, back = self.random.randint(0, 1), self.random.randint(0, 1)
            w = self.weight(n, k) if over else self.weight(k, n)
            x = self.add("Transpose", [x], perm=[1, 0]) if back else x
            how = {"alpha": 0.5, "beta": -2.0} if self.random.random() < 0.3 else {}
            y = self.add("Gemm", [x, w, *bias], transB=over, transA=back, **how)
            self.columns = n
            return y
        if kind == "left":
            w = self.weight(n, m)
            y = self.add("MatMul", [w, x])
            self.rows = n
            return y
        if kind == "transposed":
            w = self.add("Transpose", [self.weight(n, k)], perm=[1, 0])
        elif kind == "scaled":
            half = self.keep(np.full(self.random.choice(((), (n,))), 0.5, np.float32), "scale")
            w = self.add("Mul", [self.weight(k, n), half])
        else:
            w = self.weight(k, n)
        if kind == "batched":
            shape = self.keep(np.array([1, -1, k]), "shape")
            y = self.add("MatMul", [self.add("Reshape", [x, shape]), w])
            y = self.add("Reshape", [y, self.keep(np.array([-1, n]), "shape")])
        else:
            y = self.add("MatMul", [x, w])
        for name in bias:
            y = self.add("Add", [y, name] if self.random.random() < 0.7 else [name, y])
        self.columns = n
        return y

    def convolution(self, x: str) -> str:
        """A convolution over the columns, or over a square of them, in one or more groups."""
        side = int(np.sqrt(self.columns))
        if side * side == self.columns and side > 1:
            inner, window = (self.rows, 1, side, side), self.random.choice(((1, 1), (2, 2), (1, 2)))
        else:
            inner, window = (self.rows, 1, self.columns), self.random.choice(((1,), (2,)))
        if min(inner[2:]) < max(window):
            return x
        y = self.add("Reshape", [x, self.keep(np.array(inner), "shape")])
        channels, sizes = 1, list(inner[2:])
        for _ in range(self.random.randint(1, 2)):
            groups = self.random.choice((1, 1, channels)) if channels in (1, 2, 4) else 1
            outputs = self.random.choice((2, 4)) * (groups if groups <= 4 else 1)
            w = self.weight(outputs, channels // groups, *window)
            bias = [self.keep(self.numbers.standard_normal(outputs).astype(np.float32), "bias")]
            pads = [self.random.randint(0, 1)] * (2 * len(window))
            strides = [self.random.choice((1, 1, 2))] * len(window)
            if any(s + 2 * pads[0] < w_ for s, w_ in zip(sizes, window, strict=True)):
                break
            y = self.add("Conv", [y, w, *bias[: self.random.randint(0, 1)]], group=groups, pads=pads, strides=strides)
            sizes = [(s + 2 * pads[0] - w_) // strides[0] + 1 for s, w_ in zip(sizes, window, strict=True)]
            channels = outputs
        self.columns = channels * int(np.prod(sizes))
        return self.add("Reshape", [y, self.keep(np.array([self.rows, self.columns]), "shape")])

    def mixed(self, x: str) -> str:
        """Uses of weights beside layers: added, or summed."""
        w = self.weight(self.rows, self.columns)
        return self.add(self.random.choice(("Add", "Mul", "Sub")), [x, w])


def layered(random: standard.Random) -> Layered:
    """A model of one to five layers whose results are all returned."""
    layers = _Layers(random)
    feeds: dict[str, Array] = {}
    inputs = []
    if random.random() < 0.4:
        count = random.choice((3, 8, 17))
        table = layers.weight(count, layers.columns)
        feeds["x"] = layers.numbers.integers(-count if random.random() < 0.3 else 0, count, layers.rows)
        inputs.append(helper.make_tensor_value_info("x", TensorProto.INT64, [layers.rows]))
        x = layers.add("Gather", [table, "x"])
        if random.random() < 0.5:  # an output layer with the table's weight
            x = layers.add("Tanh", [x])
            if random.random() < 0.5:
                x = layers.add("MatMul", [x, layers.add("Transpose", [table], perm=[1, 0])])
            else:
                x = layers.add("Gemm", [x, table], transB=1)
            layers.columns = count
    else:
        feeds["x"] = layers.numbers.standard_normal((layers.rows, layers.columns)).astype(np.float32)
        inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [layers.rows, layers.columns]))
        x = "x"
    results = []
    for _ in range(random.randint(1, 5)):
        kind = random.random()
        add = layers.product if kind < 0.65 else layers.convolution if kind < 0.9 else layers.mixed
        x = add(x)
        if random.random() < 0.3 and x != "x":
            results.append(x)
        if random.random() < 0.6:
            x = layers.add(random.choice(ACTIVATIONS), [x])
    if x == "x":
        x = layers.add("Identity", [x])
    outputs = [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys([*results, x])]
    for value in outputs:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    stored = [numpy_helper.from_array(array, name) for name, array in layers.stored.items()]
    graph = helper.make_graph(layers.nodes, "layers", inputs, outputs, stored)
    opset = helper.make_opsetid("", random.choice((11, 13, 17, 21)))
    return Layered(helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString(), feeds)
