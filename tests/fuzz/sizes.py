"""Models with named sizes: random ONNX graphs whose nodes compute with sizes, each for several bindings.

What a generator knows of a tensor, it knows for every binding: its shape, and of a tensor of sizes its numbers too. So
most models are valid for all bindings, and onnxruntime says what they give.
"""

from __future__ import annotations

import random as standard
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

from .findings import Finding, Outcome, allowed, finding_of

NAMES = ("n", "m", "k")
BINDINGS = 3
MOST = 4000  # elements of a tensor
Shapes = tuple[tuple[int, ...], ...]  # one per binding


@dataclass
class Model:
    """A model that grows.

    Attributes:
        sizes: of the names, one row per binding.
        floats: name and shapes of float32 tensors.
        numbers: int64 scalars: name, and value per binding.
    """

    random: standard.Random
    sizes: list[dict[str, int]]
    nodes: list[Any] = field(default_factory=list)
    stored: dict[str, Any] = field(default_factory=dict)
    floats: list[tuple[str, Shapes]] = field(default_factory=list)
    numbers: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """The name of the first output of a new node."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, array: Any, dtype: Any = np.int64) -> str:
        """The name of a stored tensor."""
        name = f"c{len(self.stored)}"
        self.stored[name] = np.array(array, dtype)
        return name

    def keep(self, name: str, shapes: Sequence[Sequence[int]]) -> None:
        """Enters a float tensor, if it is small."""
        found = tuple(tuple(int(n) for n in shape) for shape in shapes)
        if max(int(np.prod(shape)) for shape in found) <= MOST and len(found[0]) <= 5:
            self.floats.append((name, found))

    def number(self, low: int, high: int) -> tuple[str, tuple[int, ...]] | None:
        """A size with values between these, if there is one."""
        fitting = [n for n in self.numbers if all(low <= v <= high for v in n[1])]
        return self.random.choice(fitting) if fitting else None

    def vector(self, names: Sequence[str]) -> str:
        """Scalars as a list."""
        axes = self.constant([0])
        return self.add("Concat", [self.add("Unsqueeze", [n, axes]) for n in names], axis=0)


def _axis(model: Model, shapes: Shapes) -> int | None:
    return model.random.randrange(len(shapes[0])) if shapes[0] else None


def read_size(model: Model, x: str, shapes: Shapes) -> None:
    axis = _axis(model, shapes)
    if axis is not None:
        found = model.add("Gather", [model.add("Shape", [x]), model.constant(axis)])
        model.numbers.append((found, tuple(shape[axis] for shape in shapes)))


def compute_size(model: Model, *_: Any) -> None:
    """Arithmetic with one or two sizes."""
    if not model.numbers:
        return
    (a, left), (b, right) = model.random.choice(model.numbers), model.random.choice(model.numbers)
    if model.random.random() < 0.4:
        number = model.random.choice([1, 2, 3, -1, 5])
        b, right = model.constant(number), (number,) * BINDINGS
    rules: dict[str, Callable[[int, int], int]] = {
        "Add": lambda p, q: p + q, "Sub": lambda p, q: p - q, "Mul": lambda p, q: p * q, "Max": max, "Min": min,
        "Div": lambda p, q: int(p / q), "Mod": lambda p, q: p % q,
    }  # fmt: skip
    op = model.random.choice([*rules, "Where", "half"])
    if op in ("Div", "Mod") and 0 in right:
        return
    if op == "half":
        real = model.add("Cast", [a], to=TensorProto.FLOAT)
        up = model.add("Ceil", [model.add("Mul", [real, model.constant(0.5, np.float32)])])
        found, values = model.add("Cast", [up], to=TensorProto.INT64), tuple(-(-p // 2) for p in left)
    elif op == "Where":
        compared = model.random.choice(["Equal", "Less", "Greater"])
        test = {"Equal": int.__eq__, "Less": int.__lt__, "Greater": int.__gt__}[compared]
        c, other = model.random.choice(model.numbers)
        found = model.add("Where", [model.add(compared, [a, b]), c, a])
        values = tuple(r if test(p, q) else p for p, q, r in zip(left, right, other, strict=True))
    else:
        found, values = model.add(op, [a, b]), tuple(rules[op](p, q) for p, q in zip(left, right, strict=True))
    if all(abs(v) < 1000 for v in values):
        model.numbers.append((found, values))


def reshape(model: Model, x: str, shapes: Shapes) -> None:
    """Two neighbouring axes as one, by a computed or an open size."""
    if len(shapes[0]) < 2:
        return
    at = model.random.randrange(len(shapes[0]) - 1)
    shape = model.add("Shape", [x])
    axes = [model.add("Gather", [shape, model.constant(i)]) for i in range(len(shapes[0]))]
    joined = model.add("Mul", [axes[at], axes[at + 1]])
    if model.random.random() < 0.5 and all(all(s) for s in shapes):
        joined = model.constant(-1)
    shape = model.vector([*axes[:at], joined, *axes[at + 2 :]])
    found = model.add("Reshape", [x, shape], allowzero=int(joined not in model.stored))
    model.keep(found, [(*s[:at], s[at] * s[at + 1], *s[at + 2 :]) for s in shapes])


def expand(model: Model, x: str, shapes: Shapes) -> None:
    chosen = model.number(1, 6)
    if chosen is not None:
        name, values = chosen
        wider = model.add("Unsqueeze", [x, model.constant([0])])
        shape = model.add("Concat", [model.vector([name]), model.add("Shape", [x])], axis=0)
        if model.random.random() < 0.5:  # ones there: the operand's own sizes
            shape = model.vector([name, *[model.constant(1)] * len(shapes[0])])
        found = model.add("Expand", [wider, shape])
        model.keep(found, [(v, *s) for v, s in zip(values, shapes, strict=True)])


def slice_(model: Model, x: str, shapes: Shapes) -> None:
    axis, first, last = _axis(model, shapes), model.number(-9, 9), model.number(-9, 9)
    if axis is None or first is None or last is None:
        return
    end, ends = last
    if model.random.random() < 0.3:
        number = model.random.choice([(1 << 31) - 1, (1 << 63) - 1, -1])
        end, ends = model.constant(number), (number,) * BINDINGS
    step = model.random.choice([1, 1, 2])
    operands = [x, model.vector([first[0]]), model.vector([end]), model.constant([axis]), model.constant([step])]
    sizes = [len(range(s[axis])[a:b:step]) for s, a, b in zip(shapes, first[1], ends, strict=True)]
    found = model.add("Slice", operands)
    model.keep(found, [(*s[:axis], n, *s[axis + 1 :]) for s, n in zip(shapes, sizes, strict=True)])


def tile(model: Model, x: str, shapes: Shapes) -> None:
    axis, chosen = _axis(model, shapes), model.number(0, 3)
    if axis is not None and chosen is not None:
        one = model.constant(1)
        repeats = model.vector([chosen[0] if i == axis else one for i in range(len(shapes[0]))])
        sizes = [s[axis] * v for s, v in zip(shapes, chosen[1], strict=True)]
        found = model.add("Tile", [x, repeats])
        model.keep(found, [(*s[:axis], n, *s[axis + 1 :]) for s, n in zip(shapes, sizes, strict=True)])


def pad(model: Model, x: str, shapes: Shapes) -> None:
    axis, before, after = _axis(model, shapes), model.number(0, 3), model.number(0, 3)
    if axis is not None and before is not None and after is not None:
        zero, rank = model.constant(0), len(shapes[0])
        pads = [before[0] if i == axis else after[0] if i == axis + rank else zero for i in range(2 * rank)]
        sizes = [s[axis] + p + q for s, p, q in zip(shapes, before[1], after[1], strict=True)]
        found = model.add("Pad", [x, model.vector(pads)])
        model.keep(found, [(*s[:axis], n, *s[axis + 1 :]) for s, n in zip(shapes, sizes, strict=True)])


def indices(model: Model, x: str, shapes: Shapes) -> None:
    """A range as long as the last axis, added to it."""
    if shapes[0]:
        length = model.add("Gather", [model.add("Shape", [x]), model.constant(-1)])
        at = model.add("Range", [model.constant(0), length, model.constant(1)])
        if model.numbers and model.random.random() < 0.5:  # a mask by a size
            mask = model.add("Less", [at, model.random.choice(model.numbers)[0]])
            found = model.add("Where", [mask, x, model.constant(-1.5, np.float32)])
        else:
            found = model.add("Add", [x, model.add("Cast", [at], to=TensorProto.FLOAT)])
        model.keep(found, shapes)


def branch(model: Model, x: str, shapes: Shapes) -> None:
    """One of two forms of a tensor by a comparison of sizes; they may differ in shape and rank."""
    if len(model.numbers) < 2 or not shapes[0]:
        return
    (a, left), (b, right) = model.random.sample(model.numbers, 2)
    condition, number = model.add("Less", [a, b]), len(model.nodes)
    wider = model.random.random() < 0.5

    def body(name: str, node: Any) -> Any:
        return helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=node.output[0])])

    zero = model.constant([0])
    then = helper.make_node("Unsqueeze" if wider else "Abs", [x, zero] if wider else [x], [f"t{number}"])
    other = helper.make_node("Neg", [x], [f"e{number}"])
    found = model.add("If", [condition], then_branch=body("then", then), else_branch=body("else", other))
    taken = [p < q for p, q in zip(left, right, strict=True)]
    ranks = [(1, *s) if wider and t else s for s, t in zip(shapes, taken, strict=True)]
    if len({len(s) for s in ranks}) > 1:  # back to one rank
        found, ranks = model.add("ReduceSum", [found], keepdims=0), [()] * BINDINGS
    model.keep(found, ranks)


def combine(model: Model, x: str, shapes: Shapes) -> None:
    """An elementwise operator on two tensors that broadcast for all bindings."""
    y, others = model.random.choice(model.floats)
    try:
        found = [np.broadcast_shapes(a, b) for a, b in zip(shapes, others, strict=True)]
    except ValueError:
        return
    model.keep(model.add(model.random.choice(["Add", "Mul", "Max", "Sub"]), [x, y]), found)


def reduce(model: Model, x: str, shapes: Shapes) -> None:
    axis = _axis(model, shapes)
    if axis is not None:
        keep = model.random.randrange(2)
        op = model.random.choice(["ReduceSum", "ReduceMean"])
        axes = {"axes": [axis]} if op == "ReduceMean" else {}
        if axes and any(s[axis] == 0 for s in shapes):
            return
        operands = [x] if axes else [x, model.constant([axis])]
        found = model.add(op, operands, keepdims=keep, **axes)
        model.keep(found, [(*s[:axis], *([1] * keep), *s[axis + 1 :]) for s in shapes])


def move(model: Model, x: str, shapes: Shapes) -> None:
    order = list(range(len(shapes[0])))
    model.random.shuffle(order)
    if order:
        model.keep(model.add("Transpose", [x], perm=order), [tuple(s[i] for i in order) for s in shapes])


def join(model: Model, x: str, shapes: Shapes) -> None:
    axis = _axis(model, shapes)
    y, others = model.random.choice(model.floats)
    if axis is not None and all(
        len(a) == len(b) and all(p == q for i, (p, q) in enumerate(zip(a, b, strict=True)) if i != axis)
        for a, b in zip(shapes, others, strict=True)
    ):
        sums = [(*a[:axis], a[axis] + b[axis], *a[axis + 1 :]) for a, b in zip(shapes, others, strict=True)]
        model.keep(model.add("Concat", [x, y], axis=axis), sums)


def multiply(model: Model, x: str, shapes: Shapes) -> None:
    if len(shapes[0]) >= 2:
        order = [*range(len(shapes[0]) - 2), len(shapes[0]) - 1, len(shapes[0]) - 2]
        found = model.add("MatMul", [x, model.add("Transpose", [x], perm=order)])
        model.keep(found, [(*s[:-1], s[-2]) for s in shapes])


def fill(model: Model, *_: Any) -> None:
    chosen, other = model.number(0, 6), model.number(1, 6)
    if chosen is not None and other is not None:
        value = numpy_helper.from_array(np.float32([0.25]))
        found = model.add("ConstantOfShape", [model.vector([chosen[0], other[0]])], value=value)
        model.keep(found, list(zip(chosen[1], other[1], strict=True)))


def change(model: Model, x: str, shapes: Shapes) -> None:
    op = model.random.choice(["Softmax", "Tanh", "Relu", "Neg"])
    if op != "Softmax" or shapes[0]:
        model.keep(model.add(op, [x]), shapes)


STEPS = (
    read_size, read_size, compute_size, compute_size, compute_size, reshape, expand, slice_, tile, pad, indices, branch,
    combine, combine, combine, reduce, move, join, multiply, fill, change,
)  # fmt: skip


def made(seed: int, case: int) -> tuple[onnx.ModelProto, list[dict[str, Any]]]:
    """The model of a case, and feeds per binding."""
    random = standard.Random(f"{seed}/{case}")
    sizes = [{name: random.choice([1, 1, 2, 3, 4, 5]) for name in NAMES} for _ in range(BINDINGS)]
    model = Model(random, sizes)
    for index in range(random.randrange(1, 4)):
        shape = [random.choice([*NAMES, *NAMES, 1, 2]) for _ in range(random.randrange(1, 4))]
        name = f"x{index}"
        model.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        model.keep(name, [[row.get(n, n) for n in shape] for row in sizes])
    bound = dict(model.floats)
    for _ in range(random.randrange(4, 24)):
        random.choice(STEPS)(model, *random.choice(model.floats))
    used = {name for node in model.nodes for name in node.input}
    outputs = [n for n, _ in model.floats if n not in used and n not in bound][:3] or [model.floats[-1][0]]
    results = [onnx.ValueInfoProto(name=n) for n in outputs if n not in bound]
    if not results:
        results = [onnx.ValueInfoProto(name=model.add("Abs", [model.floats[0][0]]))]
    for info in results:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    stored = [numpy_helper.from_array(array, name) for name, array in model.stored.items()]
    graph = helper.make_graph(model.nodes, "sizes", model.inputs, results, stored)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    arrays = np.random.default_rng([seed, case])
    feeds = [
        {name: arrays.standard_normal(shapes[index]).astype(np.float32) for name, shapes in bound.items()}
        for index in range(BINDINGS)
    ]
    return proto, feeds


def target(seed: int, case: int) -> Outcome:
    """What comes of a case; see ``campaign.Target``."""
    import onnxruntime

    proto, feeds = made(seed, case)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    data = proto.SerializeToString()
    try:
        theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception:
        return Outcome("onnxruntime refuses")
    try:
        session = df.Session(load_bytes(data), devices=["cpu"], threads=1)
    except Exception as error:
        finding = Finding("different", f"refused loading: {_kind(error)}", f"{error}\n{_text(proto)}")
        return Outcome("refused loading", (finding if allowed(error) else finding_of(error, "loading"),))
    word = "onnxruntime refuses"
    for given in feeds:
        try:
            expected = theirs.run(None, given)
        except Exception:
            continue
        word = "ran" if word == "onnxruntime refuses" else word
        try:
            found = session.run(given)
        except Exception as error:
            finding = Finding("different", f"refused running: {_kind(error)}", f"{error}\n{_text(proto)}")
            return Outcome("refused running", (finding if allowed(error) else finding_of(error, "running"),))
        for info, array in zip(proto.graph.output, expected, strict=True):
            ours = found[info.name]
            if _differ(ours, array) and _is_reference(proto, given, info.name, ours):
                word = "onnxruntime errs"  # its products over an axis of size 0 hold whatever was in memory
            elif _differ(ours, array):
                alike = ours.shape == array.shape
                shapes = f"{info.name}: {ours.shape} instead of {array.shape}" if not alike else info.name
                names = " ".join(sorted({node.op_type for node in proto.graph.node}))
                text = f"{shapes}, with { ({n: a.shape for n, a in given.items()}) }\n{_text(proto)}"
                return Outcome("different", (Finding("different", names, text),))
    return Outcome(word)


def _differ(ours: Any, expected: Any) -> bool:
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    alike = ours.shape == expected.shape
    return not alike or not np.allclose(ours, expected, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


def _is_reference(proto: onnx.ModelProto, given: dict[str, Any], name: str, ours: Any) -> bool:
    """Whether a result is what ONNX's own reference gives."""
    from onnx.reference import ReferenceEvaluator

    try:
        (expected,) = ReferenceEvaluator(proto).run([name], given)
    except Exception:  # it can't run the model, so it says nothing
        return False
    return not _differ(ours, expected)


def _kind(error: BaseException) -> str:
    import re

    return re.sub(r"'[^']*'|[\d.]+", "#", str(error))[:120]


def _text(proto: onnx.ModelProto) -> str:
    return str(onnx.printer.to_text(proto))
