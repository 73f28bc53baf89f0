"""Transforms, running products, determinants, unique entries, linear attention: against NumPy, onnxruntime, onnx."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
RANDOM = np.random.default_rng(5)


def proto(made, feeds, stored=(), outputs=("y",), opset=27):
    """A model of one node: inputs of the feeds' types, outputs of any type."""
    inputs = [(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    found = [helper.make_value_info(n, helper.TypeProto()) if isinstance(n, str) else (*n, None) for n in outputs]
    return onnx_model([made], inputs, found, list(stored), opset=opset, ir_version=11).SerializeToString()


def run(model, feeds):
    return df.Session(load_bytes(model), devices=["cpu"]).run(feeds)


def check_gradient(model, feeds, wrt):
    """The gradient along a random direction equals the difference quotient, in float64."""
    graph = load_bytes(model).graph
    doubles = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    joint = vjp_graph(graph, [v for v in graph.inputs if v.name in wrt])
    plain = evaluate(graph, doubles, dtype=np.float64)
    up = {n: RANDOM.standard_normal(a.shape) for n, a in plain.items() if a.dtype.kind == "f"}
    along = {n: RANDOM.standard_normal(doubles[n].shape) for n in wrt}
    found = evaluate(joint, {**doubles, **{f"grad.{n}": a for n, a in up.items()}}, dtype=np.float64)
    step = 1e-6
    ends = [
        evaluate(graph, {n: a + s * along[n] if n in wrt else a for n, a in doubles.items()}, dtype=np.float64)
        for s in (step, -step)
    ]
    expected = sum((up[n] * (ends[0][n] - ends[1][n])).sum() for n in up) / (2 * step)
    np.testing.assert_allclose(sum((along[n] * found[f"grad.{n}"]).sum() for n in wrt), expected, rtol=1e-5, atol=1e-7)
    narrow = df.Session(joint, devices=["cpu"]).run({**feeds, **{f"grad.{n}": a.astype("f") for n, a in up.items()}})
    for name in wrt:
        np.testing.assert_allclose(narrow[f"grad.{name}"], found[f"grad.{name}"], rtol=2e-3, atol=1e-3)


# ---- transforms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 5, 9, 12])
@pytest.mark.parametrize(("inverse", "onesided", "width"), list(itertools.product((0, 1), (0, 1), (1, 2))))
def test_dft(inverse, onesided, width, length):
    x = RANDOM.standard_normal((2, 9, 3, width)).astype(np.float32)
    stored = [("axis", np.array(1)), *([("n", np.array(length))] if length else [])]
    made = node("DFT", ["x", "n" if length else "", "axis"], ["y"], inverse=inverse, onesided=onesided)
    model = proto(made, {"x": x}, stored)
    z = x[..., 0] if width == 1 else x[..., 0] + 1j * x[..., 1]
    if onesided and inverse:
        expected = np.fft.irfft(z, n=length, axis=1)[..., None]
    else:
        y = (np.fft.ifft if inverse else np.fft.fft)(z, n=length, axis=1)
        y = y[:, : y.shape[1] // 2 + 1] if onesided else y
        expected = np.stack([y.real, y.imag], axis=-1)
    found = run(model, {"x": x})["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    check_gradient(model, {"x": x}, ["x"])


def test_a_dft_of_named_sizes_is_that_of_fixed_ones():
    x = RANDOM.standard_normal((2, 10, 1)).astype(np.float32)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "n", 1])
    for attributes in ({"onesided": 1}, {}, {"inverse": 1}, {"inverse": 1, "onesided": 1}):
        made = node("DFT", ["x"], ["y"], axis=1, **attributes)
        model = load_bytes(onnx_model([made], [value], opset=17).SerializeToString())
        for size in (10, 1, 7):
            given = {"x": x[:, :size]}
            if size == 1 and len(attributes) == 2:
                continue  # 2 (1 - 1) points
            fixed = run(proto(made, given, opset=17), given)["y"]
            np.testing.assert_array_equal(df.Session(model, devices=["cpu"]).run(given)["y"], fixed)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_dft_of_other_floats_is_computed_as_exactly_as_they_are(dtype):
    x = RANDOM.standard_normal((1, 30, 2)).astype(dtype)
    expected = np.fft.fft(x[..., 0].astype(float) + 1j * x[..., 1], axis=1)
    found = run(proto(node("DFT", ["x"], ["y"], axis=1), {"x": x}, opset=17), {"x": x})["y"]
    assert found.dtype == dtype
    limit = 4 * np.finfo(dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, rtol=0, atol=limit)


@pytest.mark.parametrize(("window", "length", "onesided"), [(8, None, 1), (None, 7, 1), (8, 8, 0), (None, None, 1)])
def test_stft(window, length, onesided):
    x = RANDOM.standard_normal((2, 37, 1)).astype(np.float32)
    stored = [("step", np.array(3))]
    stored += [("window", np.hanning(window).astype(np.float32))] if window else []
    stored += [("length", np.array(length))] if length else []
    names = ["x", "step", "window" if window else "", "length" if length else ""]
    model = proto(node("STFT", names, ["y"], onesided=onesided), {"x": x}, stored, [("y", TensorProto.FLOAT)], opset=17)
    if window and length:
        (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    else:
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-4, atol=2e-5)
    check_gradient(model, {"x": x}, ["x"])


def test_stft_of_a_signal_without_the_axis_of_one_number():
    """As PyTorch's older exporter writes it."""
    x = RANDOM.standard_normal((2, 40)).astype(np.float32)
    stored = [("step", np.array(4)), ("window", np.hanning(8).astype(np.float32))]
    made = node("STFT", ["x", "step", "window"], ["y"], onesided=1)
    model = proto(made, {"x": x}, stored, [("y", TensorProto.FLOAT)], opset=17)
    (expected,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-4, atol=2e-5)


def test_a_mel_matrix_of_another_rate_and_dtype():
    numbers = [("bands", np.array(20)), ("length", np.array(256)), ("rate", np.array(16000))]
    stored = [*numbers, ("low", np.array(20, np.float32)), ("high", np.array(7600, np.float32))]
    made = node("MelWeightMatrix", [name for name, _ in stored], ["y"], output_datatype=TensorProto.DOUBLE)
    model = proto(made, {}, stored, [("y", TensorProto.DOUBLE)], opset=17)
    (expected,) = ReferenceEvaluator(model).run(None, {})
    np.testing.assert_allclose(run(model, {})["y"], expected, rtol=1e-12)


# ---- running products, determinants, bits -------------------------------------------------------------


@pytest.mark.parametrize(("exclusive", "reverse", "axis"), list(itertools.product((0, 1), (0, 1), (0, -1))))
def test_a_running_product_has_a_gradient_at_zeros_too(exclusive, reverse, axis):
    x = RANDOM.standard_normal((3, 5)).astype(np.float32)
    x[1, 1] = x[1, 3] = x[2, 0] = 0
    made = node("CumProd", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
    model = proto(made, {"x": x}, [("axis", np.array(axis))])
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(run(model, {"x": x})["y"], expected, rtol=1e-5)
    check_gradient(model, {"x": x}, ["x"])


def test_a_running_product_that_begins_with_an_infinity():
    x = np.array([np.inf, 2, -1], np.float32)
    model = proto(node("CumProd", ["x", "axis"], ["y"]), {"x": x}, [("axis", np.array(0))])
    np.testing.assert_array_equal(run(model, {"x": x})["y"], [np.inf, np.inf, -np.inf])


def test_determinants_have_gradients_where_there_is_no_inverse():
    x = RANDOM.standard_normal((4, 3, 3)).astype(np.float32)
    x[1, 2] = 2 * x[1, 0]
    x[2] = 0
    model = proto(node("Det", ["x"], ["y"]), {"x": x}, opset=22)
    np.testing.assert_allclose(run(model, {"x": x})["y"], np.linalg.det(x.astype(float)), rtol=1e-5, atol=1e-6)
    check_gradient(model, {"x": x}, ["x"])


def test_bits_move_out_of_a_number():
    x, by = np.array([-128, -1, 1, 127], np.int8)[:, None], np.array([-1, 0, 1, 7, 8, 127], np.int8)
    expected = {"LEFT": [0, 1, 2, 7, None, None], "RIGHT": [None, 0, 1, 7, None, None]}
    for direction in expected:
        model = proto(node("BitShift", ["x", "by"], ["y"], direction=direction), {"x": x, "by": by}, opset=28)
        doubles = x.astype(object)
        inside = (by >= 0) & (by < 8)
        if direction == "LEFT":
            exact = np.where(inside, (doubles * 2 ** np.where(inside, by, 0).astype(object)) % 256, 0)
        else:
            exact = np.where(inside, doubles // 2 ** np.where(inside, by, 0).astype(object), np.where(x < 0, -1, 0))
        np.testing.assert_array_equal(run(model, {"x": x, "by": by})["y"], exact.astype(np.int64).astype(np.int8))


# ---- unique entries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int8, np.float64])
@pytest.mark.parametrize(("axis", "ordered"), list(itertools.product((None, 0, 1, -1), (0, 1))))
def test_unique(axis, ordered, dtype):
    x = RANDOM.integers(0, 2, (4, 3, 2)).astype(dtype)
    x[:, 2] = x[:, 0]
    x[3] = x[1]
    attributes = {} if axis is None else {"axis": axis}
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    outputs = [("y", kind), *((name, TensorProto.INT64) for name in ("first", "ids", "counts"))]
    made = node("Unique", ["x"], [name for name, _ in outputs], sorted=ordered, **attributes)
    model = proto(made, {"x": x}, outputs=outputs, opset=11)
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    found = run(model, {"x": x})
    for (name, _), other in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(found[name], other, name)


def test_unique_entries_have_a_gradient():
    x = np.array([3, 1, 3, 2, 1], np.float32)
    graph = load_bytes(proto(node("Unique", ["x"], ["y"]), {"x": x}, outputs=[("y", 1)], opset=11)).graph
    joint = vjp_graph(graph, list(graph.inputs))
    found = df.Session(joint, devices=["cpu"]).run({"x": x, "grad.y": np.array([10, 20, 30], np.float32)})
    np.testing.assert_array_equal(found["grad.x"], [30, 10, 0, 20, 0])


# ---- linear attention, convolutions with a state ------------------------------------------------------


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_has_gradients(rule, past):
    batch, length, heads, readers, size, width = 2, 3, 2, 4, 3, 2
    shapes = {"q": (batch, length, readers * size), "k": (batch, length, heads * size)}
    shapes["v"] = (batch, length, heads * width)
    shapes |= {"past": (batch, heads, size, width)} if past else {}
    shapes |= {"decay": (batch, length, heads * (size if past else 1))} if rule.startswith("gated") else {}
    shapes |= {"beta": (batch, length, 1 if past else heads)} if rule.endswith("delta") else {}
    feeds = {n: (RANDOM.standard_normal(s) * 0.5).astype(np.float32) for n, s in shapes.items()}
    names = [n if n in feeds else "" for n in ("q", "k", "v", "past", "decay", "beta")]
    made = node("LinearAttention", names, ["y", "last"], update_rule=rule, q_num_heads=readers, kv_num_heads=heads)
    model = proto(made, feeds, outputs=("y", "last"))
    found = run(model, feeds)
    for name, expected in zip(("y", "last"), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    check_gradient(model, feeds, list(feeds))


@pytest.mark.parametrize("given", [{"beta"}, {"decay"}, set()])
def test_linear_attention_refuses_operands_that_its_rule_does_not_read(given):
    feeds = {n: np.zeros((1, 2, 4), np.float32) for n in ("q", "k", "v", *given)}
    names = [n if n in feeds else "" for n in ("q", "k", "v", "past", "decay", "beta")]
    made = node("LinearAttention", names, ["y", "last"], q_num_heads=1, kv_num_heads=1)
    with pytest.raises(df.ModelError, match="update_rule is 'gated_delta', which doesn't fit"):
        load_bytes(proto(made, feeds, outputs=("y", "last")))


@pytest.mark.parametrize(
    ("domain", "readers", "heads", "keys"), [("", 2, 4, 4), ("com.microsoft", 3, 4, 4), ("com.microsoft", 4, 4, 3)]
)
def test_linear_attention_refuses_heads_that_do_not_fit(domain, readers, heads, keys):
    feeds = {n: np.zeros((1, 2, 2 * count), np.float32) for n, count in (("q", readers), ("k", keys), ("v", heads))}
    sizes = {"q_num_heads": readers, "kv_num_heads": heads, "update_rule": "linear"}
    made = node("LinearAttention", list(feeds), ["y", "last"], domain=domain, **sizes)
    model = ModelProto.FromString(proto(made, feeds, outputs=("y", "last")))
    if domain:
        model.opset_import.add(domain=domain, version=1)
    with pytest.raises(df.ModelError, match=r"heads of (queries|keys) don't fit 4 of"):
        load_bytes(model.SerializeToString())


def test_a_convolution_with_a_state_goes_on_where_it_stopped():
    x = RANDOM.standard_normal((2, 3, 9)).astype(np.float32)
    w, bias = RANDOM.standard_normal((3, 1, 4)).astype(np.float32), RANDOM.standard_normal(3).astype(np.float32)
    feeds = {"x": x, "w": w, "bias": bias}
    made = node("CausalConvWithState", ["x", "w", "bias"], ["y", "state"], activation="silu")
    model = proto(made, feeds, outputs=("y", "state"))
    first = run(model, feeds)
    check_gradient(model, feeds, ["x", "w", "bias"])
    made = node("CausalConvWithState", ["x", "w", "bias", "past"], ["y", "state"], activation="silu")
    state, found = np.zeros((2, 3, 3), np.float32), []
    for i in range(9):
        more = {**feeds, "x": x[:, :, i : i + 1], "past": state}
        step = run(proto(made, more, outputs=("y", "state")), more)
        found.append(step["y"])
        state = step["state"]
    np.testing.assert_allclose(np.concatenate(found, axis=2), first["y"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state, first["state"])


def test_graphs_of_attention_may_use_one_name_and_read_what_is_around_them():
    feeds = {n: RANDOM.standard_normal((1, 2, 3, 4)).astype(np.float32) for n in "qkv"}
    feeds["slope"] = np.array(0.3, np.float32)
    value = helper.make_tensor_value_info("s", TensorProto.FLOAT, None)

    def body(op):
        out = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
        return helper.make_graph([node(op, ["s", "slope"], ["t"])], "body", [value], [out])

    made = node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview")
    made.attribute.append(helper.make_attribute("score_mod", body("Mul")))
    made.attribute.append(helper.make_attribute("prob_mod", body("Add")))
    inputs = [(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()]
    model = onnx_model([made], inputs, opset=26, domains=["ai.onnx.preview"], ir_version=11).SerializeToString()
    scores = feeds["q"] @ feeds["k"].swapaxes(-1, -2) / 2 * 0.3
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) + 0.3
    np.testing.assert_allclose(run(model, feeds)["y"], weights @ feeds["v"], rtol=1e-5, atol=1e-6)
    check_gradient(model, feeds, list(feeds))


# ---- chance -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.25, None])
def test_a_dropout_node_in_training_mode_drops(ratio):
    x = np.ones((100, 200), np.float32)
    stored = [("mode", np.array(True)), *([("r", np.array(ratio, np.float32))] if ratio else [])]
    made = node("Dropout", ["x", "r" if ratio else "", "mode"], ["y", "mask"])
    model = proto(made, {"x": x}, stored, outputs=("y", "mask"), opset=22)
    found, share = run(model, {"x": x}), ratio or 0.5
    assert abs(found["mask"].mean() - (1 - share)) < 0.02
    np.testing.assert_allclose(found["y"], np.where(found["mask"], np.float32(1 / (1 - share)), 0), rtol=1e-6)


def test_bernoullis_chances():
    x = np.repeat(np.array([[0.0], [0.2], [0.9], [1.0]], np.float32), 20000, axis=1)
    found = run(proto(node("Bernoulli", ["x"], ["y"], dtype=TensorProto.INT64), {"x": x}, opset=22), {"x": x})["y"]
    assert found.dtype == np.int64 and set(np.unique(found)) == {0, 1}
    np.testing.assert_allclose(found.mean(axis=1), x[:, 0], atol=0.015)
    assert found[0].sum() == 0 and found[3].all()


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_multinomial_draws_classes_as_often_as_they_are_probable(dtype):
    logits = np.log(np.array([[1, 2, 5, 0], [7, 1, 1, 1]], np.float32) + 1e-30).astype(np.float32)
    made = proto(node("Multinomial", ["x"], ["y"], dtype=dtype, sample_size=4000, seed=3.0), {"x": logits}, opset=22)
    found = run(made, {"x": logits})["y"]
    assert found.shape == (2, 4000) and found.dtype == (np.int32 if dtype == TensorProto.INT32 else np.int64)
    shares = [np.bincount(row, minlength=4) / 4000 for row in found]
    np.testing.assert_allclose(shares, [[0.125, 0.25, 0.625, 0], [0.7, 0.1, 0.1, 0.1]], atol=0.03)
    with pytest.raises(df.ModelError, match="sample_size 0"):
        run(proto(node("Multinomial", ["x"], ["y"], sample_size=0), {"x": logits}, opset=22), {"x": logits})
