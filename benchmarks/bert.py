"""BERT-base (12 layers, width 768, 12 heads) over 128 words, with random weights.

The graph is what PyTorch's exporter writes for it: dense layers as MatMul and Add, GELU by Erf, a mask that is added.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, PLACES, LENGTH, WIDTH, HEADS, INNER, LAYERS = 30522, 512, 128, 768, 12, 3072, 12


class Writer:
    """Collects nodes and weights of a graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.random = np.random.default_rng()

    def __call__(self, op: str, *inputs: str, **attributes: object) -> str:
        """The output of a new node."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"stored_{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int, around: float = 0.0) -> str:
        return self.constant((self.random.standard_normal(shape) * 0.02 + around).astype(np.float32))

    def scalar(self, number: float) -> str:
        return self.constant(np.array(number, np.float32))

    def dense(self, x: str, width: int, to: int) -> str:
        return self("Add", self.weight(to), self("MatMul", x, self.weight(width, to)))

    def norm(self, x: str) -> str:
        scale, bias = self.weight(WIDTH, around=1.0), self.weight(WIDTH)
        return self("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def heads(self, x: str, order: tuple[int, ...]) -> str:
        split = self("Reshape", x, self.constant(np.array([0, LENGTH, HEADS, WIDTH // HEADS])))
        return self("Transpose", split, perm=order)

    def attention(self, x: str, mask: str) -> str:
        q, v = (self.heads(self.dense(x, WIDTH, WIDTH), (0, 2, 1, 3)) for _ in range(2))
        k = self.heads(self.dense(x, WIDTH, WIDTH), (0, 2, 3, 1))
        scores = self("Div", self("MatMul", q, k), self.scalar((WIDTH / HEADS) ** 0.5))
        y = self("MatMul", self("Softmax", self("Add", scores, mask), axis=-1), v)
        joined = self("Transpose", y, perm=(0, 2, 1, 3))
        return self("Reshape", joined, self.constant(np.array([0, LENGTH, WIDTH])))

    def gelu(self, x: str) -> str:
        inner = self("Add", self("Erf", self("Div", x, self.scalar(2**0.5))), self.scalar(1.0))
        return self("Mul", self("Mul", x, inner), self.scalar(0.5))


def bert(batch: int) -> onnx.ModelProto:
    """The encoder: words and which of them count, (B, 128) each, to states (B, 128, 768)."""
    g = Writer()
    masked = g("Sub", g.scalar(1.0), g("Cast", "mask", to=TensorProto.FLOAT))
    masked = g("Unsqueeze", g("Mul", masked, g.scalar(-10000.0)), g.constant(np.array([1, 2])))
    x = g("Add", g("Gather", g.weight(WORDS, WIDTH), "words"), g.weight(1, LENGTH, WIDTH))
    x = g.norm(x)
    for _ in range(LAYERS):
        x = g.norm(g("Add", g.dense(g.attention(x, masked), WIDTH, WIDTH), x))
        x = g.norm(g("Add", g.dense(g.gelu(g.dense(x, WIDTH, INNER)), INNER, WIDTH), x))
    words, mask = (helper.make_tensor_value_info(n, TensorProto.INT64, [batch, LENGTH]) for n in ("words", "mask"))
    states = helper.make_tensor_value_info(x, TensorProto.FLOAT, [batch, LENGTH, WIDTH])
    graph = helper.make_graph(g.nodes, "bert", [words, mask], [states], g.stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds_of(batch: int) -> dict[str, np.ndarray]:
    """Random words, of which the last tenth does not count."""
    mask = np.ones((batch, LENGTH), np.int64)
    mask[:, LENGTH * 9 // 10 :] = 0
    return {"words": np.random.default_rng().integers(0, WORDS, (batch, LENGTH)), "mask": mask}
