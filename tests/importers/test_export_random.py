"""Random graphs of the ops that have an ONNX form: saved, they are valid, and onnxruntime computes what we compute.

Left out is what onnxruntime refuses or gets wrong: pads of nothing, repeating to size 0, the index of a maximum where
another size is 0.
"""

import numpy as np
import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import dataflow as df
from dataflow import ops

SIZES = {"n": 3, "m": 2}
UNARY = [
    "neg", "abs", "sign", "relu", "exp", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "softplus",
    "softsign", "copy", "hard_swish", "leaky_relu", "elu", "selu", "thresholded_relu", "hard_sigmoid", "gelu", "atan",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
REDUCE = ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"]


class Grown:
    """A random graph: each step adds a node over values that are there."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.builder = df.GraphBuilder(f"graph {seed}")
        dims = [df.Dim("n"), df.Dim("m"), 1, 2, 3, 4]
        if seed % 3 == 0:
            dims.append(0)
        self.values = []
        for index in range(3):
            rank = int(self.random.integers(0, 5))
            shape = [dims[int(self.random.integers(len(dims)))] for _ in range(rank)]
            self.values.append(self.builder.input(f"x{index}", df.float32, shape))
        self.stored = self.builder.parameter("w", self.random.standard_normal((4, 3)).astype(np.float32))

    def pick(self, choices):
        return choices[int(self.random.integers(len(choices)))]

    def axes(self, rank):
        return tuple(axis for axis in range(rank) if self.random.random() < 0.4)

    def step(self):
        x = self.pick(self.values)
        kind = self.pick([name for name in dir(self) if name.startswith("add_")])
        try:
            made = getattr(self, kind)(x, x.type.shape, x.type.rank)
        except df.InputError:  # the op doesn't take these
            return
        if made is not None:
            self.values.append(made)

    def add_unary(self, x, shape, rank):
        return getattr(ops, self.pick(UNARY))(x)

    def add_binary(self, x, shape, rank):
        return getattr(ops, self.pick(BINARY))(x, self.pick(self.values))

    def add_scalar(self, x, shape, rank):
        return ops.mul(x, 0.5) if self.random.random() < 0.5 else ops.clip(x, -1.0, 1.5)

    def add_comparison(self, x, shape, rank):
        other = self.pick(self.values)
        return ops.where(getattr(ops, self.pick(["less", "greater_equal", "equal"]))(x, other), x, other)

    def add_transpose(self, x, shape, rank):
        return ops.transpose(x, perm=tuple(int(i) for i in self.random.permutation(rank)))

    def add_reduce(self, x, shape, rank):
        axes = self.axes(rank)
        name = self.pick(REDUCE)
        if name in ("reduce_max", "reduce_min", "reduce_mean") and any(shape[axis] == 0 for axis in axes):
            return None  # of nothing
        return getattr(ops, name)(x, axes=axes, keepdims=int(self.random.integers(2)))

    def add_softmax(self, x, shape, rank):
        return (
            self.pick([ops.softmax, ops.log_softmax])(x, axis=int(self.random.integers(-rank, rank))) if rank else None
        )

    def add_reshape(self, x, shape, rank):
        sizes = [shape[int(i)] for i in self.random.permutation(rank)]
        if sizes and self.random.random() < 0.5:
            sizes.insert(int(self.random.integers(len(sizes) + 1)), 1)
        if len(sizes) > 1 and self.random.random() < 0.5:
            sizes[:2] = [sizes[0] * sizes[1]]
        return ops.reshape(x, shape=tuple(sizes))

    def add_broadcast(self, x, shape, rank):
        named = [n for v in self.values for n in v.type.shape]
        sizes = [self.pick(named or [2]) if n == 1 and self.random.random() < 0.7 else n for n in shape]
        if 0 in (*named, *shape):
            return None
        lead = [self.pick([2, *named]) for _ in range(int(self.random.integers(0, 2)))]
        return ops.broadcast_to(x, shape=(*lead, *sizes)) if len(lead) + rank < 6 else None

    def add_slice(self, x, shape, rank):
        ranges = []
        for size in shape:
            named = isinstance(size, df.Dim)
            step = self.pick([1, 1, 2, -1, -2, 9])
            low, high = (0, 1 if named else size) if step > 0 else (-1, (0 if named else size - 1))
            start, stop = (int(self.random.integers(low, high + 1)) for _ in range(2))
            if named or self.random.random() < 0.3:
                start, stop = (0, size) if step > 0 else (size - 1, -1)
            if named and self.random.random() < 0.4:
                start, stop, step = self.pick([(size - 1, size, 1), (0, size - 1, 1), (size - 2, 0, -1), (1, size, 2)])
            ranges.append((start, stop, step))
        starts, stops, steps = zip(*ranges, strict=True) if ranges else ((), (), ())
        return ops.slice(x, starts=starts, stops=stops, steps=steps)

    def add_pad(self, x, shape, rank):
        if 0 in shape:
            return None
        pads = tuple(int(n) for n in self.random.integers(0, 3, 2 * rank))
        return ops.pad(x, self.builder.scalar(0.25, df.float32), pads=pads, mode="constant")

    def add_concat(self, x, shape, rank):
        return (
            ops.concat(x, *[x] * int(self.random.integers(0, 3)), axis=int(self.random.integers(-rank, rank)))
            if rank
            else None
        )

    def add_gather(self, x, shape, rank):
        fixed = [axis for axis, n in enumerate(shape) if not isinstance(n, df.Dim) and n]
        if not fixed:
            return None
        axis = self.pick(fixed)
        at = self.random.integers(-shape[axis], shape[axis], self.pick([(), (2,), (0,), (2, 1)]))
        return ops.gather(x, self.builder.constant(at.astype(np.int64)), axis=axis)

    def add_matmul(self, x, shape, rank):
        return ops.matmul(x, self.stored)

    def add_arg(self, x, shape, rank):
        axis = int(self.random.integers(-rank, rank)) if rank else None
        if axis is None or 0 in shape:
            return None
        options = {"keepdims": int(self.random.integers(2)), "select_last_index": int(self.random.integers(2))}
        return ops.cast(self.pick([ops.argmax, ops.argmin])(x, axis=axis, **options), to=df.float32)

    def add_pool(self, x, shape, rank):
        options = {"kernel": (2,), "strides": (1,), "pads": (1, 0), "ceil_mode": int(self.random.integers(2))}
        return (
            self.pick([ops.max_pool, ops.avg_pool])(x, dilations=(1,), **options)
            if rank == 3 and 0 not in shape
            else None
        )


@pytest.mark.parametrize("seed", range(60))
def test_saved_as_computed(seed, tmp_path):
    grown = Grown(seed)
    for _ in range(12):
        grown.step()
    results = grown.values[3:][-6:] or grown.values[:1]
    for index, value in enumerate(results):
        grown.builder.output(f"y{index}", value)
    model = df.Model(grown.builder.build())
    path = str(tmp_path / "m.onnx")
    df.save(model, path)
    feeds = {
        name: np.asarray(np.random.default_rng(seed).standard_normal(t.bind(SIZES).sizes), np.float32)
        for name, t in model.inputs.items()
    }
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    read = {i.name for i in session.get_inputs()}
    try:
        ours = df.Session(model, devices=["cpu"]).run(feeds)
    except df.InputError:  # named sizes that don't fit each other
        with pytest.raises(Fail):
            session.run(None, {name: array for name, array in feeds.items() if name in read})
        return
    theirs = session.run(None, {name: array for name, array in feeds.items() if name in read})
    back = df.Session(df.load(path), devices=["cpu"]).run(feeds)
    for name, expected in zip(names, theirs, strict=True):
        np.testing.assert_allclose(ours[name], expected, rtol=2e-5, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(back[name], expected, rtol=2e-5, atol=2e-5, err_msg=name)
