"""Random graphs by the builder: chains that fuse, views of every kind, and every op of the conformance kit."""

from __future__ import annotations

import functools
import math
import random as standard
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.value import Value
from dataflow.testing import SAMPLES, Operand, Sample

ops = df.ops
Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
MOST = 3000  # elements of a value
UNARY = ("neg", "copy", "sin", "cos", "tanh", "sigmoid", "relu", "softplus", "gelu", "abs", "erf", "atan", "elu",
         "leaky_relu", "softsign", "mish", "hard_swish", "celu", "floor", "sign", "sqrt", "log", "reciprocal",
         "exp", "hard_sigmoid", "selu", "round", "ceil")  # fmt: skip
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div", "pow", "add", "mul")
COMPARE = ("equal", "less", "less_equal", "greater", "greater_equal")
GROWING = {"exp", "matmul", "conv", "pow", "cumsum", "reduce_prod", "sinh", "cosh", "div", "reciprocal", "mul"}
# attention_grad: with a logsumexp that is not of its scores its probabilities overflow; gradients of attention have it.
# Trees and patterns are data of a form of their own, and numbers of a code ascend; of bitcast any bits may come.
LEFT_OUT = {
    "read_shape", "nonzero", "sgd_step", "adamw_step", "max_pool_grad", "loop", "scan", "if_", "attention_grad",
    "attention_grad_sums", "bitcast", "encode_blocks",
    "tree_ensemble", "string_concat", "string_case", "string_split", "string_split_count",
    "string_token_count", "string_tokens", "regex_full_match", "murmur_hash",
}  # fmt: skip


@functools.cache
def small_samples() -> dict[str, list[Sample]]:
    """The kit's samples of no more than a few thousand elements, by op; of gradients' ops those that stand alone."""
    found: dict[str, list[Sample]] = {}
    for sample in SAMPLES:
        largest = max((math.prod(o.shape) for o in sample.inputs if o is not None), default=0)
        elements = math.prod(sample.attributes.get("shape", ()) or (1,))
        if max(largest, elements) <= MOST and sample.op.name not in LEFT_OUT and not sample.bodies:
            found.setdefault(sample.op.name, []).append(sample)
    return found


@dataclass(repr=False)
class Made:
    """A graph and what it is fed.

    Attributes:
        operands: what each input's data is drawn from.
    """

    graph: df.Graph
    feeds: dict[str, Array]
    operands: dict[str, Operand] = field(default_factory=dict)

    def __repr__(self) -> str:
        """What fits on a page."""
        return str(self.graph)[:3000]


class Maker:
    """Adds random nodes to a builder.

    Args:
        random: decides everything.
        builder: gets the nodes.
        depth: how many bodies are around; in a body what is fresh is a constant.
        nests: bodies may have bodies.
    """

    def __init__(self, random: standard.Random, builder: df.GraphBuilder, depth: int = 0, nests: bool = True) -> None:
        self.random, self.g, self.depth, self.nests = random, builder, depth, nests
        self.values: list[Value] = []
        self.operands: dict[str, Operand] = {}
        self.feeds: dict[str, Array] = {}
        self.arrays = np.random.default_rng(random.getrandbits(32))
        self.palette = random.sample(SIZES, 3)

    # ---- leaves ---------------------------------------------------------------------------------------

    def shape(self, most: int = 4) -> tuple[int, ...]:
        """A random shape of few elements; now and then with a zero."""
        rank = self.random.choice([0, 1, 1, 2, 2, 2, 3, 3, 4][: 2 * most + 1])
        found = tuple(self.random.choice(self.palette) for _ in range(rank))
        while math.prod(found) > MOST:
            found = found[1:]
        if found and self.random.random() < 0.03:
            found = (0, *found[1:])
        return found

    def leaf(self, operand: Operand) -> Value:
        """A new input, parameter or constant."""
        array = operand.array(self.arrays)
        if operand.dtype.is_float and operand.value is None and self.random.random() < 0.01 and array.size:
            array.flat[self.random.randrange(array.size)] = self.random.choice([np.nan, np.inf, -np.inf, -0.0, 1e-40])
        kind = self.random.random()
        if self.depth or kind < 0.15:
            return self.g.constant(array)
        if kind < 0.3:
            return self.g.parameter(self.g.unique("w") + "p", array)
        name = f"x{len(self.operands)}"
        self.operands[name], self.feeds[name] = operand, array
        return self.g.input(name, operand.dtype, operand.shape)

    def floats(self) -> list[Value]:
        """The float32 values so far."""
        return [v for v in self.values if v.type.dtype == df.float32]

    def pick(self, wanted: Any = None) -> Value:
        """A float32 value that ``wanted`` takes, a fresh one where there is none; later ones more often."""
        found = [v for v in self.floats() if wanted is None or wanted(v)]
        if not found or self.random.random() < 0.05:
            shape = self.shape()
            value = self.leaf(Operand(shape))
            self.values.append(value)
            return value if wanted is None or wanted(value) else self.pick(wanted)
        return found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    # ---- adapting -------------------------------------------------------------------------------------

    def fit(self, value: Value, operand: Operand) -> Value:
        """The value with the operand's shape and range, by views where possible."""
        shape, have = operand.shape, value.type.sizes
        need = math.prod(shape)
        if have != shape:
            if len(have) == len(shape) and all(a >= b for a, b in zip(have, shape, strict=True)):
                value = self.slice_to(value, shape)
            elif 0 in have or not need:
                return self.leaf(operand)
            elif len(have) <= len(shape) and all(a in (1, b) for a, b in zip(have[::-1], shape[::-1], strict=False)):
                value = ops.broadcast_to(value, shape=shape)
            else:
                count = math.prod(have)
                flat = ops.reshape(value, shape=(count,))
                if count < need:
                    times = -(-need // count)
                    flat = ops.reshape(ops.broadcast_to(flat, shape=(times, count)), shape=(times * count,))
                value = ops.reshape(self.slice_to(flat, (need,)) if flat.type.sizes != (need,) else flat, shape=shape)
        return self.range(value, operand.kind)

    def range(self, value: Value, kind: str) -> Value:
        """The value in the range that an operand of this kind has."""
        if kind == "positive":
            return ops.add(ops.abs(value), 0.5)
        if kind == "unit":
            return ops.mul(ops.sin(value), 0.9)
        if kind == "away":
            return ops.add(ops.mul(ops.tanh(value), 0.3), 1.0)
        return value

    def slice_to(self, value: Value, shape: tuple[int, ...]) -> Value:
        """A slice of this shape, with any start, step and direction."""
        starts, stops, steps = [], [], []
        for have, need in zip(value.type.sizes, shape, strict=True):
            step = self.random.choice([s for s in (1, 1, 2, 3) if (need - 1) * s < have] or [1])
            start = self.random.randint(0, max(have - max(need - 1, 0) * step - 1, 0))
            if need and self.random.random() < 0.3:
                last = start
                start, step = start + (need - 1) * step, -step
                stop = last - 1
            else:
                stop = start + max(need - 1, -1) * step + 1 if need else start
            starts.append(start)
            stops.append(stop)
            steps.append(step)
        return ops.slice(value, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    # ---- nodes ----------------------------------------------------------------------------------------

    def node(self) -> None:
        """One random node, with what it takes around it."""
        kinds = (self.unary, self.unary, self.binary, self.binary, self.view, self.view, self.reduce, self.matmul,
                 self.sample, self.sample, self.rest)  # fmt: skip
        made = self.attended() if self.random.random() < 0.04 else self.random.choice(kinds)()
        for value in made if isinstance(made, (tuple, list)) else (made,):
            if value is not None and math.prod(value.type.sizes) <= MOST:
                self.keep(value)

    def keep(self, value: Value) -> None:
        """Enters a value; those that grow are tamed mostly."""
        node = self.g.nodes()[-1] if self.g.nodes() else None
        if node is not None and node.op.name in GROWING and value.type.dtype == df.float32:
            kind = self.random.random()
            value = ops.tanh(value) if kind < 0.3 else ops.mul(value, 0.25) if kind < 0.8 else value
        self.values.append(value)

    def unary(self) -> Value:
        name, x = self.random.choice(UNARY), self.pick()
        if name in ("sqrt", "log", "reciprocal"):
            x = self.range(x, "positive")
        return getattr(ops, name)(x)

    def binary(self) -> Any:
        x = self.pick()
        shape = x.type.sizes

        def meets(v: Value) -> bool:
            return all(1 in (a, b) or a == b for a, b in zip(shape[::-1], v.type.sizes[::-1], strict=False))

        kind = self.random.random()
        if kind < 0.5:
            y = self.pick(meets)
        elif kind < 0.6:
            return getattr(ops, self.random.choice(("add", "mul", "maximum")))(x, round(self.random.gauss(0, 1), 2))
        else:
            other = tuple(1 if self.random.random() < 0.3 else d for d in shape)
            y = self.leaf(Operand(other[self.random.randint(0, len(shape)) :] if self.random.random() < 0.5 else other))
        name = self.random.choice(BINARY)
        if name == "div":
            y = self.range(y, "away")
        if name == "pow":
            x, y = self.range(x, "positive"), ops.tanh(y)
        if self.random.random() < 0.3 and name not in ("div", "pow"):
            x, y = y, x
        if self.random.random() < 0.1:
            return ops.where(getattr(ops, self.random.choice(COMPARE))(x, y), x, y)
        return getattr(ops, name)(x, y)

    def view(self) -> Any:
        x = self.pick() if self.random.random() < 0.85 else self.random.choice(self.values)
        shape, kind = x.type.sizes, self.random.randrange(6)
        if kind == 0 and shape:
            return ops.transpose(x, perm=tuple(self.random.sample(range(len(shape)), len(shape))))
        if kind == 1:
            before = self.random.choice([(), (1,), (2,), (3, 1)])
            stretched = (self.random.choice(self.palette) if d == 1 else d for d in shape)
            return ops.broadcast_to(x, shape=(*before, *stretched))
        if kind == 2 and shape:
            return self.slice_to(x, tuple(self.random.randint(min(d, 1), d) for d in shape))
        if kind == 3:
            count = math.prod(shape)
            divisor = self.random.choice([d for d in (1, 2, 3, 4, 5, 8) if count % d == 0])
            shapes = [(count,), (divisor, count // divisor), (count // divisor, 1, divisor), (*shape, 1), (1, *shape)]
            return ops.reshape(x, shape=self.random.choice(shapes))
        if kind == 4 and shape:
            axis = self.random.randrange(len(shape))
            rest = (*shape[:axis], *shape[axis + 1 :])

            def beside(v: Value) -> bool:
                sizes = v.type.sizes
                return v.type.dtype == x.type.dtype and len(sizes) == len(shape) and (
                    (*sizes[:axis], *sizes[axis + 1 :]) == rest
                )  # fmt: skip

            others = [v for v in self.values if beside(v)]
            return ops.concat(*[self.random.choice([x, *others]) for _ in range(self.random.randint(1, 3))], axis=axis)
        if kind == 5 and shape and 0 not in shape and x.type.dtype == df.float32:
            pads = tuple(self.random.randint(-1 if d > 2 else 0, 2) for d in (*shape, *shape))
            mode = self.random.choice(["constant", "constant", "edge"])
            return ops.pad(x, pads=tuple(max(p, 0) for p in pads) if mode == "edge" else pads, mode=mode)
        return x

    def reduce(self) -> Any:
        x = self.pick(lambda v: v.type.shape)
        rank = len(x.type.shape)
        axes = tuple(sorted(self.random.sample(range(rank), self.random.randint(1, rank))))
        name = self.random.choice(("sum", "mean", "sum", "mean", "max", "min"))
        if 0 in x.type.sizes and name in ("max", "min", "mean"):
            name = "sum"
        kind = self.random.random()
        if kind < 0.2:
            return getattr(ops, self.random.choice(("softmax", "log_softmax")))(x, axis=axes[0])
        if kind < 0.3 and 0 not in x.type.sizes:
            return ops.layer_norm(x, axis=axes[0] - rank)[0]
        return getattr(ops, f"reduce_{name}")(x, axes=axes, keepdims=self.random.randint(0, 1))

    def matmul(self) -> Any:
        x = self.pick(lambda v: len(v.type.shape) >= 2)
        inner = x.type.sizes[-1]
        found = [v for v in self.floats() if len(v.type.shape) == 2 and v.type.sizes[0] == inner]
        columns = self.random.choice(SIZES)
        weight = Operand((inner, columns), value=None)
        w = self.random.choice(found) if found and self.random.random() < 0.4 else self.leaf(weight)
        y = ops.matmul(x, w)
        if self.random.random() < 0.5:
            y = ops.add(y, self.leaf(Operand((w.type.sizes[1],))))
            y = ops.relu(y) if self.random.random() < 0.5 else y
        return ops.mul(y, 0.25)

    def attended(self) -> Value:
        """Attention node by node, of operands that views and broadcasts give."""
        sizes = self.random.choices((1, 2, 3, 4, 5, 8), k=6)
        lead, (m, n, d, e) = tuple(sizes[: self.random.randint(0, 2)]), sizes[2:]

        def operand(*shape: int) -> Value:
            some = tuple(1 if self.random.random() < 0.15 else size for size in shape)
            x = self.fit(self.pick(), Operand(some))
            return ops.broadcast_to(x, shape=shape) if some != shape and self.random.random() < 0.7 else x

        def product(a: Value, b: Value) -> Value:
            """Of operands whose last axes may be 1 by now."""
            inner = max(a.type.sizes[-1], b.type.sizes[-2])
            a = ops.broadcast_to(a, shape=(*a.type.sizes[:-1], inner))
            return ops.matmul(a, ops.broadcast_to(b, shape=(*b.type.sizes[:-2], inner, b.type.sizes[-1])))

        q, v = operand(*lead, m, d), operand(*lead, n, e)
        kt = operand(*lead, d, n) if self.random.random() < 0.4 else self.swapped(operand(*lead, n, d))
        if self.random.random() < 0.3:
            q = ops.mul(q, 0.5)
        scores = ops.mul(product(q, kt), 0.25) if self.random.random() < 0.6 else product(q, kt)
        if self.random.random() < 0.5:
            mask = self.fit(self.pick(), Operand(tuple(1 if self.random.random() < 0.3 else s for s in (*lead, m, n))))
            scores = ops.add(scores, mask)
        return product(ops.softmax(scores, axis=-1), v)

    def swapped(self, x: Value) -> Value:
        """With the last two axes in the other order."""
        rank = len(x.type.sizes)
        return ops.transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))

    def sample(self) -> Any:
        """An op of the conformance kit, on adapted values or fresh data."""
        table = small_samples()
        sample = self.random.choice(table[self.random.choice(sorted(table))])
        inputs: list[Value | None] = []
        for operand in sample.inputs:
            if operand is None:
                inputs.append(None)
            elif operand.dtype == df.float32 and operand.value is None and self.random.random() < 0.6:
                inputs.append(self.fit(self.pick(), operand))
            else:
                inputs.append(self.leaf(operand))
        node = self.g.add(sample.op, inputs, sample.attributes)
        names = sample.op.output_names(node)
        return [v for v, name in zip(node.outputs, names, strict=True) if name[0] != "+"]  # not what backward keeps

    def rest(self) -> Any:
        """Integers, bools and casts."""
        kind = self.random.randrange(5)
        integers = [v for v in self.values if v.type.dtype in (df.int32, df.int64)]
        if kind == 0 or not integers:
            dtype = self.random.choice((df.int32, df.int64))
            return self.leaf(Operand(self.shape(3), dtype, "range", -5, 9))
        x = self.random.choice(integers)
        if kind == 1:
            same = [v for v in integers if v.type == x.type]
            name = self.random.choice(("add", "sub", "mul", "maximum", "equal", "less"))
            return getattr(ops, name)(x, self.random.choice(same))
        if kind == 2:
            return ops.mul(ops.cast(ops.minimum(ops.maximum(x, -9), 9), to=df.float32), 0.125)
        if kind == 3:
            y = self.pick()
            return ops.cast(ops.mul(ops.tanh(y), 7.0), to=x.type.dtype)
        return ops.cast(ops.cast(self.pick(), to=df.float64), to=df.float32)


def make_graph(random: standard.Random, nests: bool = True) -> Made:
    """A random graph of up to two dozen nodes, with one to four outputs; ``nests``: bodies may have bodies."""
    from .bodies import with_body

    g = df.GraphBuilder("random")
    maker = Maker(random, g, nests=nests)
    for _ in range(random.randint(1, 3)):
        maker.values.append(maker.leaf(Operand(maker.shape())))
    for _ in range(random.randint(1, 12)):
        if random.random() < 0.06:
            for value in with_body(maker):
                maker.keep(value)
        else:
            maker.node()
    later = maker.values[-6:]
    for index in range(random.randint(1, 4)):
        g.output(f"y{index}", random.choice(later if index else later[-2:]))
    return Made(g.build(), maker.feeds, maker.operands)
