"""Training of models in QDQ form: random layers whose floats are quantized and dequantized, with adapters too.

An interpreter of these few operators in float64 judges results and files, which onnxruntime runs as well; gradients
are compared with its differences, in which each value is held at the step to which it was rounded.
"""

from __future__ import annotations

import functools
import random as standard
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import dataflow as df

from .findings import Finding, Outcome, ended_by
from .making import Array, ops
from .referee import Referee

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535), "int4": (-8, 7),
          "uint4": (0, 15)}  # fmt: skip
PROTO = {name: getattr(TensorProto, name.upper()) for name in RANGES}
UNARY = {
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Identity": lambda x: x,
}
TIE = 5e-4  # of a step of 4 or 8 bits: nearer to the middle between two, rounding may give either
TIE_OF_INTEGERS = 2e-2  # where integers are multiplied, to whose steps a bias of floats is rounded
STEP = 1e-4
CLOSE = 2e-4  # of the largest result
OF_GRADIENT = 3e-4


@dataclass(frozen=True)
class Scheme:
    """How a tensor is quantized: numbers of its shape, or that broadcast."""

    dtype: str
    scale: Array
    zero: Array
    axis: int | None  # None: one scale
    block: int  # 0: none
    with_zero: bool

    def full(self, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Scale and zero point of each element."""
        scale, zero = self.scale.astype(np.float64), self.zero.astype(np.float64)
        if self.axis is None:
            return np.broadcast_to(scale.reshape(()), shape), np.broadcast_to(zero.reshape(()), shape)
        if self.block:
            size = shape[self.axis]
            return tuple(np.repeat(v, self.block, self.axis).take(range(size), self.axis) for v in (scale, zero))  # type: ignore[return-value]
        along = [1] * len(shape)
        along[self.axis] = -1
        return np.broadcast_to(scale.reshape(along), shape), np.broadcast_to(zero.reshape(along), shape)

    def steps(self, x: Array) -> Array:
        """The whole numbers before they are kept in the range."""
        scale, zero = self.full(x.shape)
        return x / scale + zero


class Tie(Exception):
    """A value lies in the middle between two steps."""


@dataclass
class Net:
    """Steps of a small network: ("qdq", x, y, scheme), ("matmul" | "gemm" | "conv", x, w, bias, y), (unary, x, y).

    Attributes:
        stored: initializers by name, as the file has them.
        steps: in their order.
        shapes: of values for a batch of 2.
        opset: of the file.
    """

    stored: dict[str, Array] = field(default_factory=dict)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    opset: int = 17

    def run(
        self,
        feeds: Mapping[str, Array],
        stored: Mapping[str, Array],
        held: dict[str, tuple[Array, Array]] | None = None,
        adapters: Mapping[str, tuple[Array, Array, float]] | None = None,
        tie: float = TIE,
    ) -> Array:
        """The result in float64. A ``held`` that is empty is filled, another one replaces what rounds."""
        known = {**{k: v.astype(np.float64) for k, v in stored.items()}, **feeds}
        filling = held is not None and not held
        for kind, *names in self.steps:
            if kind == "qdq":
                x, y, scheme = names
                if held is not None and not filling:
                    passed, rest = held[y]
                    known[y] = np.where(passed, known[x], 0.0) + rest
                    continue
                exact, (low, high) = scheme.steps(known[x]), RANGES[scheme.dtype]
                scale, zero = scheme.full(known[x].shape)
                inside = (exact > low - 0.5 - tie) & (exact < high + 0.5 + tie) & (high < 256)
                ends = np.minimum(np.abs(exact - low + 0.5), np.abs(exact - high - 0.5))
                if (inside & (np.abs(np.abs(exact - np.floor(exact)) - 0.5) < tie)).any() or (
                    ends < max(tie, high * 1e-6)
                ).any():
                    raise Tie
                known[y] = (np.clip(np.rint(exact), low, high) - zero) * scale
                if held is not None and filling:
                    passed = (exact > low - 0.5) & (exact < high + 0.5)
                    held[y] = passed, known[y] - np.where(passed, known[x], 0.0)
            elif kind == "dequantize":
                q, y, scheme = names
                scale, zero = scheme.full(known[q].shape)
                known[y] = (known[q] - zero) * scale
            elif kind in ("matmul", "gemm", "conv"):
                x, w, bias, y, base = names
                known[y] = _product(kind, known[x], known[w])
                if bias is not None:
                    known[y] = known[y] + known[bias].reshape(-1, *[1] * (known[y].ndim - 2))
                if adapters and base in adapters:
                    a, b, factor = adapters[base]
                    known[y] = known[y] + factor * (known[x] @ a.T) @ b.T
            else:
                x, y = names
                known[y] = UNARY[kind](known[x])
        return known["y"]


def _product(kind: str, x: Array, w: Array) -> Array:
    if kind == "conv":
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
        return np.einsum("nchwij,ocij->nohw", windows, w)
    return x @ (w.T if kind == "gemm" else w)


class _Maker:
    """Makes a network."""

    def __init__(self, random: standard.Random) -> None:
        self.random, self.arrays = random, np.random.default_rng(random.getrandbits(32))
        self.net = Net(opset=random.choice((13, 17, 19, 21, 21, 21)))
        self.count = 0

    def name(self, of: str) -> str:
        self.count += 1
        return f"{of}{self.count}"

    def initializer(self, name: str, array: Array, dtype: str | None = None) -> str:
        """A tensor of the file."""
        self.net.stored[name] = array
        if dtype in ("int4", "uint4"):
            tensor = helper.make_tensor(name, PROTO[dtype], array.shape, array.astype(np.int64).ravel().tolist())
        else:
            tensor = numpy_helper.from_array(array if dtype is None else array.astype(dtype), name)
        self.net.tensors.append(tensor)
        return name

    def scheme(self, x: Array, *, weight: bool, stored: bool = False) -> Scheme:
        """How a tensor like this one is quantized; ``stored``: the file has the integers, whose type needs no zero."""
        random, recent = self.random, self.net.opset >= 21
        dtype = random.choice(("int8", "uint8", "int8", *(("int16", "uint16", "int4", "uint4") if recent else ())))
        axis, block = None, 0
        if weight and random.random() < 0.6:
            axis = random.randrange(x.ndim)
            if recent and random.random() < 0.4:
                block = random.randint(1, x.shape[axis])
        if axis is None:
            most = np.abs(x).max(initial=0.1)
        elif block:
            blocks = [np.abs(p) for p in np.split(x, range(block, x.shape[axis], block), axis)]
            most = np.concatenate([p.max(axis, keepdims=True) for p in blocks], axis) + 0.05
        else:
            most = np.abs(x).max(tuple(i for i in range(x.ndim) if i != axis)) + 0.05
        low, high = RANGES[dtype]
        signed = low < 0
        reach = random.choice((0.5, 0.9, 1.01, 1.3))  # of the range: below 1 some are beyond its ends
        steps = (high - low) / 2 * (0.5 if dtype == "int8" and weight else 1.0)  # onnxruntime's sums of pairs overflow
        scale = np.asarray(most * reach / steps, np.float32)
        without = signed if stored else dtype == "uint8" and not weight
        with_zero = not without or random.random() < 0.7
        zero = np.zeros(scale.shape) if signed or not with_zero else np.full(scale.shape, (high + 1) // 2)
        if random.random() < 0.5 and with_zero and not (weight and signed):
            zero = zero + self.arrays.integers(-2, 3, scale.shape)
        if axis is None and random.random() < 0.3:
            scale, zero = scale.reshape(1), np.reshape(zero, 1)
        return Scheme(dtype, scale, np.asarray(zero), axis, block, with_zero)

    def operands(self, name: str, scheme: Scheme) -> list[str]:
        found = [self.initializer(f"{name}.scale", scheme.scale)]
        if scheme.with_zero:
            found.append(self.initializer(f"{name}.zero", scheme.zero, scheme.dtype))
        return found

    def attributes(self, scheme: Scheme, rank: int) -> dict[str, int]:
        found: dict[str, int] = {}
        if scheme.axis is not None:
            found["axis"] = scheme.axis if self.random.random() < 0.5 else scheme.axis - rank
        if scheme.block:
            found["block_size"] = scheme.block
        return found

    def pair(self, x: str, value: Array, *, weight: bool) -> str:
        """A pair of nodes behind a value."""
        scheme, y = self.scheme(value, weight=weight), self.name("q")
        operands, how = self.operands(y, scheme), self.attributes(scheme, value.ndim)
        self.net.nodes.append(helper.make_node("QuantizeLinear", [x, *operands], [f"{y}.q"], f"{y}.q", **how))
        self.net.nodes.append(helper.make_node("DequantizeLinear", [f"{y}.q", *operands], [y], y, **how))
        self.net.steps.append(("qdq", x, y, scheme))
        return y

    def weight(self, base: str, array: Array) -> str:
        """A stored weight as a product reads it."""
        kind = self.random.random()
        if kind < 0.15:
            return self.initializer(base, array)
        if kind < 0.6:
            return self.pair(self.initializer(base, array), array, weight=True)
        scheme, y = self.scheme(array, weight=True, stored=True), self.name("d")
        integers = np.clip(np.rint(scheme.steps(array)), *RANGES[scheme.dtype])
        self.initializer(base, integers, scheme.dtype)
        operands, how = self.operands(y, scheme), self.attributes(scheme, array.ndim)
        self.net.nodes.append(helper.make_node("DequantizeLinear", [base, *operands], [y], y, **how))
        self.net.steps.append(("dequantize", base, y, scheme))
        return y


def make(random: standard.Random) -> tuple[bytes, Net, dict[str, Array], tuple[int, ...]]:
    """A file, what it is, an input, and the shape of the result."""
    m = _Maker(random)
    batch = random.randint(1, 5)
    x, current = "x", m.arrays.standard_normal((batch, random.randint(2, 8))).astype(np.float32)
    if random.random() < 0.3:
        current = m.arrays.standard_normal((batch, random.randint(1, 4), 5, 4)).astype(np.float32)
    feeds = {"x": current}
    value = current.astype(np.float64)
    layers = random.randint(1, 3)
    for index in range(layers):
        if random.random() < 0.7:
            x = m.pair(x, value, weight=False)
        if value.ndim == 4 and random.random() < 0.3:
            y = m.name("flat")
            m.net.nodes.append(helper.make_node("Flatten", [x], [y], y))
            m.net.steps.append(("Flatten", x, y))
            x, value = y, value.reshape(batch, -1)
        kind = "conv" if value.ndim == 4 else random.choice(("matmul", "gemm"))
        out, width = random.randint(1, 6), value.shape[1]
        shape = (out, width, *(random.randint(1, 2) for _ in range(2)))
        shape = shape if kind == "conv" else (out, width) if kind == "gemm" else (width, out)
        array = (m.arrays.standard_normal(shape) / np.sqrt(np.prod(shape) / out)).astype(np.float32)
        base = f"w{index}"
        w = m.weight(base, array)
        with_bias = kind != "matmul" and random.random() < 0.5
        bias = m.initializer(f"b{index}", m.arrays.standard_normal(out).astype(np.float32)) if with_bias else None
        y = f"z{index}"
        inputs = [x, w] if bias is None else [x, w, bias]
        how: dict[str, Any] = {"transB": 1} if kind == "gemm" else {}
        m.net.nodes.append(
            helper.make_node({"matmul": "MatMul", "gemm": "Gemm", "conv": "Conv"}[kind], inputs, [y], y, **how)
        )
        m.net.steps.append((kind, x, w, bias, y, base))
        x, value = y, _product(kind, value, array.astype(np.float64))
        if random.random() < 0.6:
            name, y = random.choice(("Relu", "Tanh")), m.name("a")
            m.net.nodes.append(helper.make_node(name, [x], [y], y))
            m.net.steps.append((name, x, y))
            x, value = y, UNARY[name](value)
    if random.random() < 0.2:
        x = m.pair(x, value, weight=False)
    m.net.nodes.append(helper.make_node("Identity", [x], ["y"], "y"))
    m.net.steps.append(("Identity", x, "y"))
    types = [helper.make_tensor_value_info(n, 1, ["N", *s[1:]]) for n, s in (("x", current.shape), ("y", value.shape))]
    graph = helper.make_graph(m.net.nodes, "quantized", types[:1], types[1:], m.net.tensors)
    opset = helper.make_opsetid("", m.net.opset)
    data = helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()
    return data, m.net, feeds, value.shape


def target(seed: int, case: int) -> Outcome:
    """A network of a case; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    data, net, feeds, shape = make(random)
    text = onnx.printer.to_text(onnx.ModelProto.FromString(data))
    with tempfile.TemporaryDirectory() as folder:
        try:
            for what, wrong in faults(data, net, feeds, shape, random, Path(folder)):
                kinds = " ".join(sorted({f"{s[3].dtype}{'/' if s[3].block else ''}" for s in net.steps if len(s) == 4}))
                return Outcome("different", (Finding("different", f"{what} | {kinds}", f"{wrong}\n{text}"),))
        except Tie:
            return Outcome("a tie")
        except df.DataflowError as error:
            where = f"{type(error).__name__} {str(error)[:60]}"
            return Outcome("refused", (Finding("refused", where, f"{error}\n{text}"),))
        except Exception as error:
            return ended_by(error, text)
    return Outcome("ran")


def faults(
    data: bytes, net: Net, feeds: dict[str, Array], shape: tuple[int, ...], random: standard.Random, folder: Path
) -> Iterator[tuple[str, str]]:
    """What is wrong with a file, with training through its pairs, and with what is saved then."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    loaded = df.load(str(path))
    held: dict[str, tuple[Array, Array]] = {}
    exact = net.run(feeds, net.stored, held)
    device = random.choice(("cpu", "cpu", "numpy"))
    options = {"devices": [device], "threads": random.choice((1, 2)), "fuse": random.random() < 0.8}
    for found in compared(f"loaded {device}", _results(loaded, feeds, options), exact):
        net.run(feeds, net.stored, tie=TIE_OF_INTEGERS)
        yield found
    if any(step[0] == "qdq" for step in net.steps):
        model = df.straight_through(loaded)
        yield from compared(f"straight through {device}", _results(model, feeds, options), exact)
    else:
        model = loaded
    adapters: dict[str, tuple[Array, Array, float]] = {}
    products = [step for step in net.steps if step[0] in ("matmul", "gemm")]
    if random.random() < 0.5 and products and any(step[5] in _adaptable(model) for step in products):
        names = [step[5] for step in products if step[5] in _adaptable(model)]
        rank, also = random.choice((1, 2, 5)), [n for n, p in model.parameters.items() if p.trainable]
        model = df.lora(model, rank, random.choice((1, 16)), targets=names, also=also if random.random() < 0.5 else ())
        arrays = np.random.default_rng(random.getrandbits(32))
        for adapter in model.adapters:
            for name in adapter.tensors:
                array = model.parameters[name].array
                model.parameters[name].set((0.3 * arrays.standard_normal(array.shape)).astype(np.float32))
        held = {}
        adapters = _adapters(model)
        exact = net.run(feeds, net.stored, held, adapters)
        yield from compared(f"adapted {device}", _results(model, feeds, options), exact)
    if any(p.trainable for p in model.parameters.values()):
        yield from _trained(net, model, feeds, shape, held, random, options)
    stored = {n: model.parameters[n].array if n in model.parameters else a for n, a in net.stored.items()}
    exact = net.run(feeds, stored, None, _adapters(model) if adapters else None)
    yield from compared(f"trained {device}", _results(model, feeds, options), exact)
    target = folder / "trained.onnx"
    df.save(model, str(target))
    for found in compared(f"read again {device}", _results(df.load(str(target)), feeds, options), exact):
        net.run(feeds, stored, None, _adapters(model) if adapters else None, TIE_OF_INTEGERS)
        yield found
    theirs = _referee().results(target.read_bytes(), feeds)
    if theirs is not None:
        yield from compared("onnxruntime", theirs["y"], exact)


def _adaptable(model: df.Model) -> set[str]:
    """Names of stored weights whose layers can have adapters."""
    from dataflow.adapters.lora import candidates

    return {layer.weight for layer in candidates(model)}


def _adapters(model: Any) -> dict[str, tuple[Array, Array, float]]:
    """By the name of the weight."""
    return {
        a.weight: (model.parameters[a.a].array.astype(float), model.parameters[a.b].array.astype(float), a.scale)
        for a in model.adapters
    }


def _results(model: df.Model, feeds: dict[str, Array], options: dict[str, Any]) -> Array:
    with df.Session(model, **options) as session:
        return session.run(feeds)["y"]


def compared(what: str, found: Array, exact: Array) -> Iterator[tuple[str, str]]:
    """How results differ by more than rounding."""
    bad = ~(np.abs(found - exact) <= CLOSE * np.abs(exact).max(initial=1e-3))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        yield what, f"{int(bad.sum())} of {bad.size}, first at {list(at)}: {found[at]}, expected {exact[at]}"


def _trained(
    net: Net, model: Any, feeds: dict[str, Array], shape: tuple[int, ...], held: Any, random: standard.Random,
    options: dict[str, Any],
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """A step, and the gradients that it took."""
    arrays = np.random.default_rng(random.getrandbits(32))
    c = arrays.standard_normal(shape).astype(np.float32)
    names = [name for name, p in model.parameters.items() if p.trainable]
    adapters = getattr(model, "adapters", ())
    before = {name: model.parameters[name].array.copy() for name in names}

    def loss(g: Any, outputs: Any, batch: Any) -> Any:
        return ops.mul(outputs["y"], batch["c"])

    def at(changed: dict[str, Array]) -> float:
        stored = {**net.stored, **changed}
        beside = {a.weight: (stored[a.a], stored[a.b], a.scale) for a in adapters}
        return float((net.run(feeds, stored, held, beside) * c).mean())

    start = {name: array.astype(np.float64) for name, array in before.items()}
    exact, here = {}, at(start)
    for name, array in start.items():
        slopes = np.zeros((4, *array.shape))
        for index in np.ndindex(array.shape):
            ends = []
            for by in (STEP, -STEP, STEP / 2, -STEP / 2):
                moved = array.copy()
                moved[index] += by
                ends.append(at({**start, name: moved}))
            slopes[(..., *index)] = [(ends[2] - ends[3]) / STEP, (ends[0] - ends[1]) / (2 * STEP),
                                     (ends[0] - here) / STEP, (here - ends[1]) / STEP]  # fmt: skip
        size = np.abs(slopes).max(initial=1e-6)
        smooth = (np.abs(slopes[0] - slopes[1]) < 1e-5 * size) & (np.abs(slopes[2] - slopes[3]) < 1e-2 * size)
        exact[name] = np.where(smooth, slopes[0], np.nan)
    largest = max((np.nanmax(np.abs(g), initial=0.0) for g in exact.values()), default=0.0)
    rate = 0.05 / max(largest, 1e-6)
    blocks = random.choice((1, 1, 2)) if shape[0] > 1 else 1
    with df.Trainer(model, loss, df.optim.SGD(lr=rate), trainable=names, metrics=[], tie=False, accumulate=blocks,
                    memory=random.choice((None, "1x")), **options) as trainer:  # fmt: skip
        for rows in np.array_split(np.arange(shape[0]), blocks):
            trainer.step({**{k: a[rows] for k, a in feeds.items()}, "c": c[rows]})
    for name, array in before.items():
        found = (array.astype(np.float64) - model.parameters[name].array) / rate
        wanted = exact[name]
        bad = ~np.isnan(wanted) & ~(np.abs(found - wanted) <= OF_GRADIENT * max(largest, 1e-6))
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            text = f"{name!r} at {list(where)}: {found[where]}, expected {wanted[where]}, the largest is {largest}"
            yield f"gradient {options['devices'][0]}", text


@functools.cache
def _referee() -> Referee:
    return Referee(plain=True)
