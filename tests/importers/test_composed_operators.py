"""What ONNX's node tests do not show of operators of several ops: random numbers, gradients, losses, quantization."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow_onnx.loading import load_bytes
from tests.importers.peer_weights import weights
from tests.support import onnx_model

node = helper.make_node


def proto(nodes, inputs, stored=(), out=(("y", TensorProto.FLOAT),), opset=21):
    return onnx_model(nodes, inputs, [(name, kind, None) for name, kind in out], stored, opset=opset, ir_version=10)


def test_random_numbers_have_the_moments_asked_for_and_differ_by_node_and_seed():
    nodes = [
        node("RandomNormal", [], ["a"], shape=[200, 300], mean=2.0, scale=0.5, seed=3.0),
        node("RandomNormalLike", ["a"], ["b"], seed=3.0),
        node("RandomUniform", [], ["u"], shape=[60000], low=-1.0, high=3.0, dtype=TensorProto.DOUBLE),
        node("RandomUniformLike", ["u"], ["v"], dtype=TensorProto.FLOAT16),
    ]
    kinds = zip("abuv", (1, 1, TensorProto.DOUBLE, TensorProto.FLOAT16), strict=True)
    model = load_bytes(proto(nodes, [], out=list(kinds)).SerializeToString())
    found = df.Session(model).run({})
    a, b, u, v = (found[name].astype(np.float64) for name in "abuv")
    assert found["u"].dtype == np.float64 and found["v"].dtype == np.float16
    assert abs(a.mean() - 2) < 4 * 0.5 / np.sqrt(a.size) and abs(a.std() - 0.5) < 0.01
    assert abs(b.mean()) < 4 / np.sqrt(b.size) and not np.allclose((a - 2) * 2, b)
    assert abs(u.mean() - 1) < 4 * 4 / np.sqrt(12 * u.size) and u.min() >= -1 and u.max() <= 3
    assert abs(v.mean() - 0.5) < 0.02
    np.testing.assert_array_equal(df.Session(model).run({})["a"], found["a"])


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij,kj", [(3, 4), (5, 4)]), ("ii->i", [(4, 4)]), ("ii", [(4, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (3, 4, 5)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]), ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]), ("ijk->k", [(2, 3, 4)]),
        ("iji,ij->j", [(3, 4, 3), (3, 4)]), ("...->...", [(2, 3)]), ("a...,b->...ab", [(2, 3, 4), (5,)]),
    ],
)  # fmt: skip
def test_einsum(equation, shapes):
    random = np.random.default_rng(0)
    feeds = {f"x{i}": random.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}
    inputs = [(name, TensorProto.FLOAT, list(a.shape)) for name, a in feeds.items()]
    model = load_bytes(proto([node("Einsum", list(feeds), ["y"], equation=equation)], inputs).SerializeToString())
    found = df.Session(model, devices=["cpu"]).run(feeds)["y"]
    expected = np.einsum(equation, *feeds.values())
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij->ijk", "i.j->i", "ij,jk,kl->il", "ij->ii", "i,j"])
def test_equations_that_do_not_fit_are_refused(equation):
    inputs = [("x", TensorProto.FLOAT, [2, 3]), ("z", TensorProto.FLOAT, [3, 4])]
    model = proto([node("Einsum", ["x", "z"], ["y"], equation=equation)], inputs)
    with pytest.raises(df.ModelError, match=r"Einsum 'y', opset 21"):
        load_bytes(model.SerializeToString())


def test_the_loss_of_a_file_is_trained():
    """SoftmaxCrossEntropyLoss inside the file, its mean as the loss, against the Trainer's own."""
    random = np.random.default_rng(0)
    w = random.standard_normal((5, 4)).astype(np.float32)
    inputs = [("x", TensorProto.FLOAT, ["N", 5]), ("t", TensorProto.INT64, ["N"])]
    nodes = [node("MatMul", ["x", "w"], ["z"]), node("SoftmaxCrossEntropyLoss", ["z", "t"], ["y"], ignore_index=-1)]
    x, t = random.standard_normal((8, 5)).astype(np.float32), np.array([0, 1, 2, 3, -1, 0, 1, -1])
    inside = load_bytes(proto(nodes, inputs, [("w", w)]).SerializeToString())
    outside = load_bytes(proto(nodes[:1], inputs[:1], [("w", w)], [("z", TensorProto.FLOAT)]).SerializeToString())
    sgd = df.optim.SGD(lr=0.5)
    with df.Trainer(inside, loss=df.losses.output("y"), optimizer=sgd, devices=["cpu"]) as trainer:
        mine = [trainer.step({"x": x, "t": t}) for _ in range(4)]
    loss = df.losses.CrossEntropy(ignore_index=-1)
    with df.Trainer(outside, loss=loss, optimizer=sgd, devices=["cpu"]) as trainer:
        theirs = [trainer.step({"x": x, "labels": t}) for _ in range(4)]
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert mine[-1] < mine[0]


def test_a_quantized_network_runs_as_in_onnxruntime():
    random = np.random.default_rng(0)
    weight = weights(random, np.int8, (6, 3, 3, 3))
    stored = [
        ("xs", np.float32(0.02)), ("xz", np.uint8(128)), ("w", weight),
        ("ws", random.uniform(0.001, 0.01, 6).astype(np.float32)), ("wz", np.zeros(6, np.int8)),
        ("ys", np.float32(0.05)), ("yz", np.uint8(120)), ("b", random.integers(-500, 500, 6).astype(np.int32)),
    ]  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("DequantizeLinear", ["c", "ys", "yz"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    model = proto(nodes, [("x", TensorProto.FLOAT, ["N", 3, 8, 8])], stored)
    x = random.standard_normal((2, 3, 8, 8)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    found = df.Session(load_bytes(model.SerializeToString()), devices=["cpu"]).run(x)["y"]
    assert np.abs(found - expected).max() <= 0.0501  # a rounding may fall on the other side: one step
    assert (np.abs(found - expected) < 1e-6).mean() > 0.99


LOSSES = list(itertools.product(["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"], ["none", "sum", "mean"]))


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("op", "reduction"), LOSSES)
def test_what_is_ignored_changes_no_loss_and_no_gradient(op, reduction, weighted, wild):
    random = np.random.default_rng(4)
    x = random.standard_normal((4, 3, 2)).astype(np.float32)
    labels = random.integers(0, 3, (4, 2))
    labels[1, 0] = labels[3] = -1
    stored = [("w", np.array([0.5, 1, 2], np.float32))] if weighted else []
    given = [("x", TensorProto.FLOAT, x.shape), ("labels", TensorProto.INT64, labels.shape)]
    made = node(op, ["x", "labels", *(name for name, _ in stored)], ["y"], ignore_index=-1, reduction=reduction)
    model = proto([made], given, stored)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = peer.run(None, {"x": x, "labels": labels})
    spoilt = np.where((labels == -1)[:, None], np.float32(wild), x)
    loaded = load_bytes(model.SerializeToString()).graph
    joint = vjp_graph(loaded, [loaded.inputs[0]])
    seed = {"grad.y": np.ones(expected.shape, np.float32)}
    for device in ("cpu", "numpy"):
        session = df.Session(joint, devices=[device])
        plain, found = (session.run({"x": given, "labels": labels, **seed}) for given in (x, spoilt))
        np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["grad.x"], plain["grad.x"], rtol=1e-5, atol=1e-6)
        assert not found["grad.x"].transpose(0, 2, 1)[labels == -1].any()


POWERS = [
    ("int64", [4, 9, 8, 1], "float32", [0.5, 0.5, 2, -1], [2, 3, 64, 1]),
    ("uint8", [4, 9, 2], "float64", [0.5, 2, -1], [2, 81, 0]),
    ("int64", [3, -3, 2, -1, -1, 1, 2], "int64", [39, 39, 62, -3, -2, -1, -1], [3**39, -(3**39), 2**62, -1, 1, 1, 0]),
    ("int8", [0, -1, -2], "int64", [256, 257, 7], [0, -1, -128]),
    ("float32", [-1, 1.5], "int64", [(1 << 24) + 1, 2], [-1, 2.25]),
    ("float16", [2, -1], "int32", [-2, 70001], [0.25, -1]),
    ("float32", [2], "float64", [0.1], [2**0.1]),
]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(("base", "a", "exponent", "b", "expected"), POWERS)
def test_powers_have_the_type_of_the_base_and_the_value_of_both(base, a, exponent, b, expected, stored):
    a, b = np.array(a, base), np.array(b, exponent)
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in (a, b)]
    given = [("a", kinds[0], a.shape), ("b", kinds[1], b.shape)][: 1 if stored else 2]
    model = proto([node("Pow", ["a", "b"], ["y"])], given, [("b", b)] if stored else [], [("y", kinds[0])])
    for device in ("cpu", "numpy"):
        feeds = {"a": a} if stored else {"a": a, "b": b}
        found = df.Session(load_bytes(model.SerializeToString()), devices=[device]).run(feeds)["y"]
        np.testing.assert_array_equal(found, np.array(expected, base))
        assert found.dtype == base


def test_the_statistics_of_a_layer_norm_have_gradients():
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["y", "mean", "inverse"], epsilon=1e-3),
        helper.make_node("Mul", ["mean", "inverse"], ["product"]),
        helper.make_node("Add", ["y", "product"], ["z"]),
    ]
    scale = numpy_helper.from_array(np.ones(5), "scale")
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3, 5])
    z = helper.make_tensor_value_info("z", TensorProto.DOUBLE, None)
    graph = helper.make_graph(nodes, "statistics", [x], [z], [scale])
    model = load_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    random = np.random.default_rng(0)
    array, direction, seed = (random.standard_normal((3, 5)) for _ in range(3))
    found = df.vjp(model, {"x": array}, {"z": seed})["x"]
    up, down = (df.Session(model).run(array + sign * 1e-6 * direction)["z"] for sign in (1, -1))
    np.testing.assert_allclose((found * direction).sum(), ((up - down) * seed).sum() / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [
            node("ReduceL2", ["x", "axes"], ["norm"]),
            node("Max", ["norm", "least"], ["m"]),
            node("Div", ["x", "m"], ["y"]),
        ],
        [node("LpNormalization", ["x"], ["y"])],
    ],
    ids=["norm", "normalization"],
)
def test_the_norm_of_a_row_of_zeros_has_a_gradient_of_zero(nodes):
    """The slope of sqrt is infinite there; PyTorch's norms take 0, and padded rows of its models rely on it."""
    stored = [("axes", np.array([-1])), ("least", np.float32(1e-6))] if len(nodes) > 1 else []
    model = load_bytes(proto(nodes, [("x", TensorProto.FLOAT, (3, 4))], stored).SerializeToString())
    x = np.array([[1, -2, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0]], np.float32)
    seed = np.arange(12, dtype=np.float32).reshape(3, 4)
    norms = np.array([3, 1e-6 if stored else 1, 5], np.float32)[:, None]
    unit = x / norms
    expected = (seed - unit * (seed * unit).sum(1, keepdims=True)) / norms
    np.testing.assert_allclose(df.vjp(model, {"x": x}, {"y": seed})["x"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rest", [(), (5,), (2, 3), (1, 0)])
@pytest.mark.parametrize("time_axis", [0, 1])
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("free", [False, True])
def test_sequences_are_reversed_up_to_their_lengths(rest, time_axis, kind, free):
    random = np.random.default_rng(time_axis)
    steps, samples = 6, 4
    lengths = np.array([1, 6, 3, 5], np.int64)
    x = random.integers(0, 200, (samples, steps, *rest)).astype(kind)
    expected = x.copy()
    for i, n in enumerate(lengths):
        expected[i, :n] = x[i, :n][::-1]
    if time_axis == 0:
        x, expected = x.swapaxes(0, 1).copy(), expected.swapaxes(0, 1)
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    sizes = ["a", "b"] if free else list(x.shape[:2])
    inputs = [("x", dtype, [*sizes, *rest]), ("n", TensorProto.INT64, [sizes[1 - time_axis]])]
    reverse = node("ReverseSequence", ["x", "n"], ["y"], time_axis=time_axis, batch_axis=1 - time_axis)
    model = load_bytes(proto([reverse], inputs, out=[("y", dtype)], opset=17).SerializeToString())
    found = df.Session(model, ["cpu"], fallback="error").run({"x": x, "n": lengths})["y"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype


def test_the_gradient_of_reversed_sequences():
    x = np.random.default_rng(0).standard_normal((5, 3, 2)).astype(np.float32)
    lengths, weight = np.array([5, 2, 4], np.int64), np.arange(30, dtype=np.float32).reshape(x.shape)
    reverse = node("ReverseSequence", ["x", "n"], ["y"], time_axis=0, batch_axis=1)
    inputs = [("x", TensorProto.FLOAT, list(x.shape)), ("n", TensorProto.INT64, [3])]
    model = load_bytes(proto([reverse], inputs).SerializeToString())
    found = df.vjp(model, {"x": x, "n": lengths}, {"y": weight})["x"]
    expected = weight.copy()  # a reversal is its own inverse
    for i, n in enumerate(lengths):
        expected[:n, i] = weight[:n, i][::-1]
    np.testing.assert_array_equal(found, expected)
