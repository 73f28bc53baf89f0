"""Random graphs of integers and bools, each node beside what NumPy's arrays give: the results are equal to the bit."""

from __future__ import annotations

import math
import random as standard
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.types import dtype as dtype_of
from dataflow.ir.value import Value

from .findings import Outcome, different, ended_by
from .making import Array

ops = df.ops
INSTRUCTION_SETS = ("avx512", "avx2", "portable")
UNSIGNED = (df.uint8, df.uint16, df.uint32, df.uint64)
INTEGERS = (df.int8, df.int16, df.int32, df.int64, *UNSIGNED)
SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 70)
MOST = 20_000  # elements of a value
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cpu", {"threads": 1}),
    ("cpu", {"threads": 2, "fold": False}),
    ("cpu", {"threads": 1, "fuse": False}),
    ("numpy", {}),
)
BINARY: tuple[tuple[str, Callable[..., Array]], ...] = (
    ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("maximum", np.maximum), ("minimum", np.minimum),
    ("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor),
    ("div", np.fmod), ("mod", np.mod), ("mod", np.fmod),
)  # fmt: skip
COMPARE: tuple[tuple[str, Callable[..., Array]], ...] = (
    ("equal", np.equal), ("less", np.less), ("less_equal", np.less_equal), ("greater", np.greater),
    ("greater_equal", np.greater_equal),
)  # fmt: skip
LOGICAL: tuple[tuple[str, Callable[..., Array]], ...] = (
    ("logical_and", np.logical_and), ("logical_or", np.logical_or), ("logical_xor", np.logical_xor),
)  # fmt: skip
REDUCE: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min),
)  # fmt: skip
SCATTER: tuple[tuple[str, Any], ...] = (
    ("add", np.add), ("mul", np.multiply), ("max", np.maximum), ("min", np.minimum),
)  # fmt: skip


class Maker:
    """Adds random nodes to a builder, and computes the same on arrays.

    Args:
        random: decides everything.
        builder: gets the nodes.

    Attributes:
        pairs: values and what they are.
        feeds: of the inputs.
    """

    def __init__(self, random: standard.Random, builder: df.GraphBuilder) -> None:
        self.random, self.g = random, builder
        self.pairs: list[tuple[Value, Array]] = []
        self.feeds: dict[str, Array] = {}
        self.arrays = np.random.default_rng(random.getrandbits(32))
        self.palette = random.sample(SIZES, 3)
        self.kinds: Sequence[Callable[[], tuple[Any, Array]]] = (
            self.binary, self.binary, self.binary, self.unary, self.cast, self.cast, self.compare, self.where,
            self.reduce, self.view, self.view, self.scan, self.index, self.floats, self.shift, self.product, self.pad,
            self.power, self.top, self.scatter, self.one_hot, self.quantized,
        )  # fmt: skip

    def data(self, dtype: df.DType, shape: tuple[int, ...]) -> Array:
        """Any numbers, or small ones with a few of the largest."""
        if dtype == df.bool_:
            return self.arrays.random(shape) < 0.5
        limits = np.iinfo(dtype.numpy)
        if self.random.random() < 0.5:
            return self.arrays.integers(limits.min, limits.max, shape, dtype=dtype.numpy, endpoint=True)
        found = self.arrays.integers(max(int(limits.min), -6), 7, shape).astype(dtype.numpy)
        if found.size:
            found.flat[self.random.randrange(found.size)] = self.random.choice([limits.min, limits.max, 0])
        return found

    def leaf(self, dtype: df.DType | None = None, shape: tuple[int, ...] | None = None) -> tuple[Value, Array]:
        """A new input or constant."""
        if shape is None:
            shape = tuple(self.random.choice(self.palette) for _ in range(self.random.choice([1, 2, 2, 3])))
        array = self.data(dtype or self.random.choice((*INTEGERS, df.bool_)), shape)
        if self.random.random() < 0.25:
            self.pairs.append((self.g.constant(array), array))
        else:
            name = f"x{len(self.feeds)}"
            self.feeds[name] = array
            self.pairs.append((self.g.input(name, dtype_of(array), shape), array))
        return self.pairs[-1]

    def number(self, value: int, like: Array) -> Value:
        """A stored scalar of the dtype of an array."""
        return self.g.constant(np.array(value, like.dtype))

    def pick(self, dtypes: Sequence[df.DType] = INTEGERS, rank: int = 0) -> tuple[Value, Array]:
        """A value of one of these dtypes with so many axes at least, later ones more often, or a fresh one."""
        found = [p for p in self.pairs if p[0].type.dtype in dtypes and p[1].ndim >= rank]
        if not found or self.random.random() < 0.08:
            shape = tuple(self.random.choice(self.palette) for _ in range(max(rank, 1)))
            return self.leaf(self.random.choice(dtypes), shape)
        return found[max(self.random.randrange(len(found)), self.random.randrange(len(found)))]

    def beside(self, x: Value, a: Array) -> tuple[Value, Array]:
        """A value of the same dtype that broadcasts with it."""

        def meets(other: Array) -> bool:
            return all(1 in (p, q) or p == q for p, q in zip(other.shape[::-1], a.shape[::-1], strict=False))

        found = [p for p in self.pairs if p[0].type.dtype == x.type.dtype and meets(p[1])]
        if found and self.random.random() < 0.6:
            return self.random.choice(found)
        shape = tuple(1 if self.random.random() < 0.3 else d for d in a.shape)
        return self.leaf(x.type.dtype, shape[self.random.randint(0, len(shape)) if self.random.random() < 0.4 else 0 :])

    # ---- nodes ----------------------------------------------------------------------------------------

    def binary(self) -> tuple[Any, Array]:
        (x, a) = self.pick()
        (y, b) = self.beside(x, a)
        if self.random.random() < 0.3:
            (x, a), (y, b) = (y, b), (x, a)
        name, function = self.random.choice(BINARY)
        if name in ("div", "mod"):
            y, b = ops.maximum(y, self.number(1, b)), np.maximum(b, np.array(1, b.dtype))
        if name == "div":
            return ops.div(x, y), (a - function(a, b)) // b  # towards zero
        if name == "mod":
            return ops.mod(x, y, fmod=function is np.fmod), function(a, b)
        return getattr(ops, name)(x, y), function(a, b)

    def unary(self) -> tuple[Any, Array]:
        x, a = self.pick()
        low, high = sorted((self.random.randint(0, 60), self.random.randint(0, 60)))
        zero, most = np.array(0, a.dtype), np.array(high, a.dtype)
        return self.random.choice(
            (
                lambda: (ops.neg(x), np.negative(a)),
                lambda: (ops.abs(x), np.abs(a)),
                lambda: (ops.sign(x), np.sign(a)),
                lambda: (ops.bitwise_not(x), np.invert(a)),
                lambda: (ops.relu(x), np.maximum(a, zero)),
                lambda: (
                    ops.clip(x, self.number(low, a), self.number(high, a)),
                    np.clip(a, np.array(low, a.dtype), most),
                ),
            )
        )()

    def cast(self) -> tuple[Any, Array]:
        x, a = self.pick((*INTEGERS, df.bool_))
        to = self.random.choice((*INTEGERS, df.bool_))
        return ops.cast(x, to=to), a.astype(to.numpy)

    def compare(self) -> tuple[Any, Array]:
        x, a = self.pick((*INTEGERS, df.bool_))
        y, b = self.beside(x, a)
        name, function = self.random.choice(LOGICAL if x.type.dtype == df.bool_ else COMPARE)
        return getattr(ops, name)(x, y), function(a, b)

    def where(self) -> tuple[Any, Array]:
        x, a = self.pick((*INTEGERS, df.bool_))
        y, b = self.beside(x, a)
        shape = np.broadcast_shapes(a.shape, b.shape)
        c, chosen = self.leaf(df.bool_, tuple(1 if self.random.random() < 0.3 else d for d in shape))
        return ops.where(c, x, y), np.where(chosen, a, b)

    def reduce(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        axes = tuple(sorted(self.random.sample(range(a.ndim), self.random.randint(1, a.ndim))))
        name, function = self.random.choice(REDUCE)
        more = {} if name in ("max", "min") else {"dtype": a.dtype}
        kept = self.random.random() < 0.5
        made = getattr(ops, f"reduce_{name}")(x, axes=axes, keepdims=kept)
        return made, np.asarray(function(a, axis=axes, keepdims=kept, **more))

    def view(self) -> tuple[Any, Array]:
        x, a = self.pick((*INTEGERS, df.bool_), rank=1)
        kind, axis = self.random.randrange(5), self.random.randrange(a.ndim)
        if kind == 0:
            perm = tuple(self.random.sample(range(a.ndim), a.ndim))
            return ops.transpose(x, perm=perm), a.transpose(perm)
        if kind == 1:
            return ops.reshape(x, shape=(a.size,)), a.reshape(-1)
        if kind == 2:
            starts = tuple(self.random.randrange(d) for d in a.shape)
            steps = tuple(self.random.choice([1, 1, 2, -1, -2]) for _ in a.shape)
            stops = tuple(-1 if step < 0 else d for d, step in zip(a.shape, steps, strict=True))
            at = zip(starts, a.shape, steps, strict=True)
            slices = tuple(slice(start, None if step < 0 else d, step) for start, d, step in at)
            return ops.slice(x, starts=starts, stops=stops, steps=steps), a[slices]
        if kind == 3:
            shape = (self.random.choice([2, 3]), *a.shape)
            return ops.broadcast_to(x, shape=shape), np.broadcast_to(a, shape)
        return ops.concat(x, x, axis=axis), np.concatenate([a, a], axis)

    def scan(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        axis, reverse, exclusive = self.random.randrange(a.ndim), *(self.random.random() < 0.5 for _ in range(2))
        along = (slice(None),) * axis + (slice(None, None, -1),)
        b = a[along] if reverse else a
        sums = np.cumsum(b, axis, dtype=a.dtype)
        sums = sums - b if exclusive else sums
        made = ops.cumsum(x, axis=axis, exclusive=exclusive, reverse=reverse)
        return made, sums[along] if reverse else sums

    def index(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        axis, kind = self.random.randrange(a.ndim), self.random.randrange(4)
        if kind < 2:
            op, function = ((ops.argmax, np.argmax), (ops.argmin, np.argmin))[kind]
            return op(x, axis=axis, keepdims=True), function(a, axis, keepdims=True).astype(np.int64)
        if kind == 2:
            at = self.arrays.integers(0, a.shape[axis], self.random.randint(1, 5))
            return ops.gather(x, self.g.constant(at), axis=axis), np.take(a, at, axis)
        shape = tuple(self.random.randint(1, d) for d in a.shape)
        at = self.arrays.integers(-a.shape[axis], a.shape[axis], shape)
        along = tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(shape))
        return ops.gather_elements(x, self.g.constant(at), axis=axis), np.take_along_axis(a[along], at, axis)

    def floats(self) -> tuple[Any, Array]:
        """By floats and back, in the range of the dtype."""
        x, a = self.pick()
        dtype, to = self.random.choice((df.float32, df.float64)), self.random.choice(INTEGERS)
        y, b = ops.cast(x, to=dtype), a.astype(dtype.numpy)
        if self.random.random() < 0.7:
            y, b = ops.mul(y, 0.5), b * dtype.numpy.type(0.5)
        limits = np.iinfo(to.numpy)
        low, high = max(int(limits.min), -1000), min(int(limits.max), 1000)
        y = ops.minimum(ops.maximum(y, float(low)), float(high))
        return ops.cast(y, to=to), np.trunc(np.clip(b, low, high)).astype(to.numpy)

    def shift(self) -> tuple[Any, Array]:
        x, a = self.pick(UNSIGNED)
        by, left = self.random.randrange(a.dtype.itemsize * 8), self.random.random() < 0.5
        function = np.left_shift if left else np.right_shift
        return ops.bit_shift(x, self.number(by, a), left=left), function(a, np.array(by, a.dtype))

    def product(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=2)
        columns = self.random.choice([1, 3, 8, 17, 40])
        if x.type.dtype in (df.int8, df.uint8) and self.random.random() < 0.7:
            y, b = self.leaf(self.random.choice((df.int8, df.uint8)), (a.shape[-1], columns))
            return ops.matmul_integer(x, y, None, None), np.matmul(a.astype(np.int32), b.astype(np.int32))
        y, b = self.leaf(x.type.dtype, (a.shape[-1], columns))
        return ops.matmul(x, y), np.matmul(a, b)

    def pad(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        pads = tuple(self.random.randint(0, 2) for _ in range(2 * a.ndim))
        mode: Any = self.random.choice(["constant", "edge"])
        pairs = list(zip(pads[: a.ndim], pads[a.ndim :], strict=True))
        return ops.pad(x, pads=pads, mode=mode), np.pad(a, pairs, mode=mode)

    def power(self) -> tuple[Any, Array]:
        x, a = self.pick()
        exponent = np.array([self.random.randint(0, 4)], a.dtype)
        return ops.pow(x, self.g.constant(exponent)), np.power(a, exponent)

    def top(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        axis, largest = self.random.randrange(a.ndim), self.random.random() < 0.5
        count = self.random.randint(1, a.shape[axis])
        values, at = ops.topk(x, k=count, axis=axis, largest=largest)
        order = np.argsort(np.invert(a) if largest else a, axis=axis, kind="stable")  # of equal ones the first
        order = np.take(order, range(count), axis)
        self.pairs.append((values, np.take_along_axis(a, order, axis)))
        return at, order.astype(np.int64)

    def scatter(self) -> tuple[Any, Array]:
        x, a = self.pick(rank=1)
        axis, (name, function) = self.random.randrange(a.ndim), self.random.choice(SCATTER)
        at = self.arrays.integers(0, a.shape[axis], a.shape)
        y, b = self.leaf(x.type.dtype, a.shape)
        where = [*np.indices(a.shape)]
        where[axis] = at
        found = a.copy()
        function.at(found, tuple(where), b)
        return ops.scatter_elements(x, self.g.constant(at), y, axis=axis, reduction=name), found

    def one_hot(self) -> tuple[Any, Array]:
        x, a = self.pick((df.int32, df.int64))
        depth = self.random.randint(1, 9)
        within = np.mod(a, np.array(depth, a.dtype))
        made = ops.one_hot(ops.cast(ops.mod(x, self.number(depth, a)), to=df.int64), depth=depth, axis=-1)
        return ops.cast(made, to=df.bool_), np.arange(depth) == within[..., None]

    def quantized(self) -> tuple[Any, Array]:
        """Real numbers of integers, and integers of these: all scales are powers of two."""
        x, a = self.pick((df.int8, df.uint8, df.int16, df.uint16, df.int32))
        to = self.random.choice((df.int8, df.uint8, df.int16, df.uint16))
        before, behind = (np.float32(2.0 ** self.random.randint(-3, 3)) for _ in range(2))
        zero = np.array(self.random.randint(0, 20), to.numpy)
        real = ops.dequantize(x, self.g.constant(before), self.number(0, a))
        limits = np.iinfo(to.numpy)
        rounded = np.rint(a.astype(np.float32) * before / behind).astype(np.float64) + zero
        made = ops.quantize(real, self.g.constant(behind), self.g.constant(zero))
        return made, np.clip(rounded, limits.min, limits.max).astype(to.numpy)


def target(seed: int, case: int) -> Outcome:
    """One graph on all devices; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    builder = df.GraphBuilder("integers")
    maker = Maker(random, builder)
    try:
        with np.errstate(all="ignore"):
            maker.leaf()
            for _ in range(random.randint(2, 16)):
                made = random.choice(maker.kinds)()
                if math.prod(made[1].shape) <= MOST:
                    maker.pairs.append(made)
        chosen = [random.choice(maker.pairs[-6:]) for _ in range(random.randint(1, 4))]
        for index, (value, _) in enumerate(chosen):
            builder.output(f"y{index}", value)
        graph = builder.build()
    except Exception as error:
        return ended_by(error, "building", "failed")
    for device, options in VARIANTS:
        label = f"{device} {options}"
        try:
            results = df.Session(graph, devices=[device], fallback="allow", **options).run(maker.feeds)
        except Exception as error:
            return ended_by(error, label, "failed")
        for index, (_, expected) in enumerate(chosen):
            found = results[f"y{index}"]
            if found.dtype != expected.dtype or found.shape != expected.shape or not np.array_equal(found, expected):
                return different(label, graph, f"{label}: y{index} is {found}, expected {expected}")
    return Outcome("ran")
