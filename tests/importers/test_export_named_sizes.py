"""Graphs with named sizes as files, their gradients too: onnxruntime computes at any sizes what a session does."""

import numpy as np
import onnxruntime
import pytest

import dataflow as df
from dataflow import ops

T, H, W, B = (df.Dim(name) for name in "THWB")
SIZES = [{"T": 5, "A": 2, "B": 2, "K": 3, "H": 6, "W": 5}, {"T": 4, "A": 1, "B": 3, "K": 1, "H": 7, "W": 8}]
SIZES.append({"T": 9, "A": 3, "B": 1, "K": 2, "H": 5, "W": 6})
POOL = {"kernel": (2, 3), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
STRIDED = {**POOL, "strides": (2, 2)}
PADDED = {**STRIDED, "pads": (1, 1, 0, 2)}
APART = {**POOL, "kernel": (2, 2), "dilations": (2, 1), "pads": (1, 1, 1, 0)}
ROWS, IMAGES = ("T", 3), ("B", 2, "H", "W")
FILTER = np.random.default_rng(0).standard_normal((4, 2, 3, 2)).astype(np.float32)


def conv(v, **options):
    window = {"strides": (2, 1), "pads": (1, 0, 0, 1), "dilations": (1, 2), **options}
    return ops.conv(v, v.builder.constant(FILTER), **window)


CASES = {
    "product": (("B", 4, "K", 3), lambda v: v.reshape(-1, *v.shape[2:])),
    "two products": (("B", 4, "K", 3), lambda v: v.reshape(2, B * 2, df.Dim("K") * 3)),
    "quotient": (ROWS, lambda v: v[: T // 2]),
    "from a quotient on": (ROWS, lambda v: v[T // 2 : T - 1]),
    "a quotient of what is negative": (ROWS, lambda v: v[: (3 - T) // 2 + T]),
    "last": (ROWS, lambda v: v[-1]),
    "last rows": (ROWS, lambda v: v[-3:]),
    "reversed": (ROWS, lambda v: v[::-1]),
    "every other backwards": (ROWS, lambda v: v[-2:0:-2]),
    "inner rows, perhaps none": (ROWS, lambda v: v[2:-2]),
    "behind each other": (("A", "T", 3), lambda v: ops.concat(v, ops.sin(v), v, axis=1)),
    "max_pool": (IMAGES, lambda v: ops.max_pool(v, **POOL)),
    "max_pool, strided": (IMAGES, lambda v: ops.max_pool(v, **STRIDED)),
    "max_pool, padded": (IMAGES, lambda v: ops.max_pool(v, **PADDED)),
    "avg_pool": (IMAGES, lambda v: ops.avg_pool(v, **POOL)),
    "avg_pool, strided": (IMAGES, lambda v: ops.avg_pool(v, **STRIDED)),
    "avg_pool, padded": (IMAGES, lambda v: ops.avg_pool(v, **PADDED)),
    "avg_pool, padded and counted": (IMAGES, lambda v: ops.avg_pool(v, **PADDED, count_include_pad=True)),
    "avg_pool, apart": (IMAGES, lambda v: ops.avg_pool(v, **APART)),
    **{
        f"pad, {mode}": (IMAGES, lambda v, mode=mode: ops.pad(v, pads=(0, 0, 2, 0, 0, 0, 1, 3), mode=mode))
        for mode in ("constant", "reflect", "edge", "wrap")
    },
    "conv": (IMAGES, conv),
    "conv, pool and mean": (IMAGES, lambda v: ops.max_pool(ops.relu(conv(v)), **POOL).mean((2, 3))),
}


def agrees(graph, path, shape, seed):
    df.save(df.Model(graph), str(path), overwrite=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ours, again = df.Session(graph), df.Session(df.load(str(path)))
    names = [o.name for o in theirs.get_outputs()]
    for sizes in SIZES:
        x = np.random.default_rng(seed).standard_normal([sizes.get(n, n) for n in shape]).astype(np.float32)
        expected = dict(zip(names, theirs.run(None, {"x": x}), strict=True))
        for session in (ours, again):
            found = session.run({"x": x})
            for name in names:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_named_sizes_forward_and_in_gradients(name, tmp_path):
    shape, function = CASES[name]
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, shape), g.parameter("w", np.ones((), np.float32))
    y = ops.sin(function(x * w))
    g.output("y", y)
    g.output("l", y.sum())
    graph = g.build()
    agrees(graph, tmp_path / "forward.onnx", shape, 1)
    agrees(df.value_and_grad(graph, ["x", "w"], of="l"), tmp_path / "gradient.onnx", shape, 2)


@pytest.mark.parametrize(
    ("size", "number"),
    [
        (5 * T, lambda t: 5 * t),
        (T * T + 1, lambda t: t * t + 1),
        ((3 - T) // 2 + T, lambda t: (3 - t) // 2 + t),
        ((T + 7) // (T + 1), lambda t: (t + 7) // (t + 1)),
    ],
    ids=["product", "square", "halves", "quotient"],
)
def test_sizes_are_computed_in_the_file(size, number, tmp_path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("T", 1))
    g.output("y", ops.broadcast_to(x.sum(), shape=(size, 2)))
    g.output("n", g.add(ops.sizes, (), {"values": (size,), "shape": ()}).outputs[0])
    agrees(g.build(), tmp_path / "m.onnx", ("T", 1), 0)
    assert df.load(str(tmp_path / "m.onnx"))(np.ones((4, 1), np.float32))["n"] == number(4)


def test_sizes_that_others_decide_are_computed_in_the_file(tmp_path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("T", 1))
    both = df.plugin.broadcast_size([T, df.Dim("A")])
    size = df.plugin.least_size([T, both, 7])
    y = g.input("y", df.float32, ("A", 1))
    g.output("z", ops.broadcast_to((x.sum() + y.sum()), shape=(size, both)))
    path = str(tmp_path / "m.onnx")
    df.save(df.Model(g.build()), path)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for t, a in ((4, 4), (9, 9), (1, 3), (5, 1)):
        given = {"x": np.ones((t, 1), np.float32), "y": np.ones((a, 1), np.float32)}
        assert theirs.run(None, given)[0].shape == (min(t, max(t, a), 7), max(t, a))


@pytest.mark.parametrize(
    ("function", "shape", "text"),
    [
        (
            lambda v: ops.avg_pool(v, **POOL, ceil_mode=True),
            IMAGES,
            r"^avg_pool_grad 'grad/.*with ceil_mode",
        ),
        (
            lambda v: ops.avg_pool(v, **POOL),
            ("B", "K", 6, 6),
            r"^avg_pool_grad 'grad/.*channels .*size, \(K\)",
        ),
    ],
    ids=["ceil", "channels"],
)
def test_what_has_no_form_is_refused_by_node(function, shape, text, tmp_path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, shape)
    g.output("l", function(x).sum())
    with pytest.raises(df.ModelError, match=text):
        df.save(df.Model(df.value_and_grad(g.build())), str(tmp_path / "m.onnx"))
    assert list(tmp_path.iterdir()) == []
