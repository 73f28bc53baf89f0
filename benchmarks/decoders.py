"""Decoders with a cache, as exporters write them: random weights, named sizes, the cache as inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from bert import Writer
from onnx import TensorProto, helper


@dataclass(frozen=True)
class Shape:
    """Of a decoder.

    Attributes:
        rotary: positions turn queries and keys, the norms have no mean and the product is gated, as in Llama; else
            positions are learned, as in GPT-2.
    """

    layers: int
    width: int
    heads: int
    shared: int  # heads of the cache
    inner: int
    words: int
    rotary: bool

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.width // self.heads


SHAPES = {
    "gpt, 12 layers of 768": Shape(12, 768, 12, 12, 3072, 8000, rotary=False),
    "gpt, 2 layers of 64": Shape(2, 64, 4, 4, 256, 100, rotary=False),
    "llama, 12 layers of 768": Shape(12, 768, 12, 4, 2048, 8000, rotary=True),
    "llama, 2 layers of 64": Shape(2, 64, 4, 2, 172, 100, rotary=True),
}
POSITIONS = 2048


def decoder(shape: Shape) -> onnx.ModelProto:
    """The model: ``input_ids`` and the cache to ``logits`` and the cache."""
    g = Writer()
    length = g("Gather", g("Shape", "input_ids"), g.constant(np.array(1)))
    past = g("Gather", g("Shape", "past_key_values.0.key"), g.constant(np.array(2)))
    total = g("Add", past, length)
    zero, one = g.constant(np.array(0)), g.constant(np.array(1))
    positions = g("Range", past, total, one)
    rows = g("Unsqueeze", positions, g.constant(np.array([1])))
    seen = g("LessOrEqual", g("Range", zero, total, one), rows)
    mask = g("Where", seen, g.scalar(0.0), g.scalar(-1e9))
    x = g("Gather", g.weight(shape.words, shape.width), "input_ids")
    turns = None
    if shape.rotary:
        rates = g.constant((1e4 ** (-np.arange(shape.head // 2) * 2 / shape.head)).astype(np.float32))
        angles = g("Mul", g("Cast", rows, to=TensorProto.FLOAT), rates)
        turns = g("Cos", angles), g("Sin", angles)
    else:
        x = g("Add", x, g("Gather", g.weight(POSITIONS, shape.width), positions))
    present = []
    for layer in range(shape.layers):
        y, *cache = attention(g, shape, norm(g, shape, x), f"past_key_values.{layer}", mask, turns)
        present += cache
        x = g("Add", x, y)
        x = g("Add", x, perceptron(g, shape, norm(g, shape, x)))
    logits = g("MatMul", norm(g, shape, x), g.weight(shape.width, shape.words))
    parts = [f"{layer}.{part}" for layer in range(shape.layers) for part in ("key", "value")]
    for name, value in [("logits", logits), *((f"present.{p}", v) for p, v in zip(parts, present, strict=True))]:
        g.nodes.append(helper.make_node("Identity", [value], [name]))
    info, sizes = helper.make_tensor_value_info, ("batch", shape.shared, "past", shape.head)
    inputs = [info("input_ids", TensorProto.INT64, ("batch", "new"))]
    inputs += [info(f"past_key_values.{part}", TensorProto.FLOAT, sizes) for part in parts]
    outputs = [info("logits", TensorProto.FLOAT, ("batch", "new", shape.words))]
    outputs += [info(f"present.{p}", TensorProto.FLOAT, ("batch", shape.shared, "all", shape.head)) for p in parts]
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def norm(g: Writer, shape: Shape, x: str) -> str:
    """Layer norm, or that of root mean squares."""
    scale = g.weight(shape.width, around=1.0)
    if not shape.rotary:
        return g("LayerNormalization", x, scale, g.weight(shape.width), axis=-1)
    mean = g("ReduceMean", g("Pow", x, g.scalar(2.0)), g.constant(np.array([-1])))
    root = g("Sqrt", g("Add", mean, g.scalar(1e-5)))
    return g("Mul", scale, g("Div", x, root))


def perceptron(g: Writer, shape: Shape, x: str) -> str:
    """The two products of a layer behind its attention, or the three of a gated one."""
    up = g("MatMul", x, g.weight(shape.width, shape.inner))
    if shape.rotary:
        gate = g("MatMul", x, g.weight(shape.width, shape.inner))
        inner = g("Mul", g("Mul", gate, g("Sigmoid", gate)), up)
    else:
        inner = g("Gelu", g("Add", up, g.weight(shape.inner)), approximate="tanh")
    y = g("MatMul", inner, g.weight(shape.inner, shape.width))
    return y if shape.rotary else g("Add", y, g.weight(shape.width))


def attention(
    g: Writer, shape: Shape, x: str, past: str, mask: str, turns: tuple[str, str] | None
) -> tuple[str, str, str]:
    """What attention adds, and the cache."""

    def heads(count: int) -> str:
        y = g("MatMul", x, g.weight(shape.width, count * shape.head))
        y = y if shape.rotary else g("Add", y, g.weight(count * shape.head))
        return g("Transpose", g("Reshape", y, g.constant(np.array([0, 0, count, shape.head]))), perm=[0, 2, 1, 3])

    def turned(y: str) -> str:
        if turns is None:
            return y
        cos, sin = turns
        half, last = shape.head // 2, g.constant(np.array([-1]))
        a, b = (
            g("Slice", y, g.constant(np.array([begin])), g.constant(np.array([begin + half])), last)
            for begin in (0, half)
        )
        first = g("Sub", g("Mul", a, cos), g("Mul", b, sin))
        second = g("Add", g("Mul", a, sin), g("Mul", b, cos))
        return g("Concat", first, second, axis=-1)

    def repeated(y: str) -> str:
        """Each head of the cache for as many of the queries as share it."""
        if shape.shared == shape.heads:
            return y
        times = shape.heads // shape.shared
        y = g("Unsqueeze", y, g.constant(np.array([2])))
        y = g("Expand", y, g.constant(np.array([1, 1, times, 1, 1])))
        return g("Reshape", y, g.constant(np.array([0, shape.heads, -1, shape.head])))

    q = turned(heads(shape.heads))
    key = g("Concat", f"{past}.key", turned(heads(shape.shared)), axis=2)
    value = g("Concat", f"{past}.value", heads(shape.shared), axis=2)
    scores = g("MatMul", q, g("Transpose", repeated(key), perm=[0, 1, 3, 2]))
    scores = g("Add", g("Mul", scores, g.scalar(shape.head**-0.5)), mask)
    y = g("MatMul", g("Softmax", scores, axis=-1), repeated(value))
    y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), g.constant(np.array([0, 0, shape.width])))
    return g("MatMul", y, g.weight(shape.width, shape.width)), key, value
