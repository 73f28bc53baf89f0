"""Static quantization: ranges, scales and what is rounded, against NumPy, onnxruntime and its quantizer."""

import logging

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from onnxruntime.quantization import quantize_static as peer

import dataflow as df
from dataflow import ops
from tests.quantization.models import DATA, DIGITS, in_runtime, linear, off, random


def residual():
    """Grouped and plain convolutions, a batch norm, a residual sum, pools and a product; the sum is an output too."""
    g = df.GraphBuilder()
    one = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    x = g.input("x", df.float32, ("batch", 3, 10, 10))
    y = ops.conv(x, g.parameter("w1", random(8, 3, 3, 3, seed=1)), None, **one, groups=1)
    y = ops.batch_norm(
        y,
        g.parameter("scale", 1 + random(8, seed=2) / 4),
        g.parameter("shift", random(8, seed=3)),
        g.constant(random(8, seed=4), "mean"),
        g.constant(1 + random(8, seed=5) ** 2, "variance"),
    )
    y = ops.relu(y)
    z = ops.conv(
        y, g.parameter("w2", random(8, 4, 3, 3, seed=6) / 6), g.parameter("b2", random(8, seed=7)), **one, groups=2
    )
    total = ops.relu(ops.add(y, z))
    g.output("total", total)
    y = ops.max_pool(total, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    y = ops.conv(
        y,
        g.parameter("w3", random(6, 8, 1, 1, seed=8) / 3),
        None,
        strides=(1, 1),
        pads=(0,) * 4,
        dilations=(1, 1),
        groups=1,
    )
    y = ops.reduce_mean(y, axes=(2, 3), keepdims=False)
    g.output("y", ops.matmul(y, g.parameter("head", random(6, 4, seed=9))))
    return df.Model(g.build())


def loaded(model, tmp_path):
    """The model through a file."""
    df.save(model, tmp_path / "float.onnx")
    return df.load(str(tmp_path / "float.onnx"))


@pytest.mark.parametrize("bits", [7, 8])
def test_a_product_is_that_of_rounded_numbers(bits):
    x, model = random(40, 12), linear()
    found = df.Session(df.quantize_static(model, x, bits=bits, progress=False)).run({"x": x})["y"]
    w, b = random(12, 5, seed=1).astype(np.float64), random(5, seed=2).astype(np.float64)
    scale = (float(x.max()) - float(x.min())) / 255
    zero = round(-float(x.min()) / scale)
    steps = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
    scales = np.abs(w).max(0) / {7: 64, 8: 127}[bits]
    expected = steps @ np.rint(w / scales) * scale * scales + np.rint(b / (scale * scales)) * scale * scales
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [7, 8])
def test_a_saved_network_runs_in_onnxruntime_with_the_same_results(tmp_path, bits):
    model = loaded(residual(), tmp_path)
    x = random(32, 3, 10, 10)
    made = df.quantize_static(model, {"x": x}, bits=bits, progress=False)
    path = tmp_path / "bytes.onnx"
    df.save(made, path)
    given = {"x": random(4, 3, 10, 10, seed=11)}
    exact, ours, again = (df.Session(m).run(given) for m in (model, made, df.load(str(path))))
    theirs = in_runtime(path, given)
    for name in exact:
        assert off(ours[name], exact[name]) < 0.05
        np.testing.assert_array_equal(again[name], ours[name])
        assert off(theirs[name], ours[name]) < 0.01  # a sum in floats may round to the next step
    graph = onnx.load(path).graph
    assert not [n for n in graph.node if n.op_type == "BatchNormalization"]
    assert {t.data_type for t in graph.initializer if t.name.endswith(".quantized")} == {
        3,
        6,
    }  # int8, and int32 of biases
    assert [v.name for v in graph.input] == ["x"]
    onnx.checker.check_model(str(path), full_check=True)


def test_what_is_an_output_too_keeps_its_floats(tmp_path):
    model = loaded(residual(), tmp_path)
    x = random(16, 3, 10, 10)
    made = df.quantize_static(model, x, progress=False)
    total = df.Session(made).run({"x": x})["total"]
    assert len(np.unique(total)) > 1000


def test_a_kernel_of_bytes_computes_each_product_and_sum():
    made = df.quantize_static(residual(), random(16, 3, 10, 10), progress=False)
    plan = df.Session(made, ["cpu"], fallback="error").plan({"x": (2, 3, 10, 10)})
    found = {step.node.op.name for item in plan.items for step in item.steps}
    assert {"conv_requantized", "matmul_dequantized"} <= found
    assert not {"conv", "matmul", "batch_norm"} & found


def test_a_batch_norm_is_folded_into_its_convolution():
    """The same integers as of a convolution whose weight was multiplied before."""
    one = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    w, b = random(4, 3, 3, 3, seed=1), random(4, seed=2)
    scale, shift, mean, variance = (
        1 + random(4, seed=3) / 4,
        random(4, seed=4),
        random(4, seed=5),
        1 + random(4, seed=6) ** 2,
    )
    models = []
    for folded in (False, True):
        g = df.GraphBuilder()
        x = g.input("x", df.float32, ("batch", 3, 6, 6))
        factor = scale / np.sqrt(variance + 1e-5)
        if folded:
            y = ops.conv(
                x,
                g.parameter("w", w * factor[:, None, None, None]),
                g.parameter("b", shift + (b - mean) * factor),
                **one,
            )
        else:
            y = ops.conv(x, g.parameter("w", w), g.parameter("b", b), **one)
            stored = (g.constant(a, n) for a, n in ((mean, "mean"), (variance, "variance")))
            y = ops.batch_norm(y, g.parameter("scale", scale), g.parameter("shift", shift), *stored, epsilon=1e-5)
        g.output("y", y)
        models.append(df.quantize_static(df.Model(g.build()), random(8, 3, 6, 6), progress=False))
    plain, other = (model.arrays() for model in models)
    np.testing.assert_array_equal(plain["w.quantized"], other["w.quantized"])
    np.testing.assert_allclose(plain["w.offset.quantized"], other["b.quantized"], atol=1)


def test_scales_are_those_of_onnxruntimes_quantizer(tmp_path):
    x = np.load(DATA)["x"][:64]

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.batches = iter([{"x": x}])

        def get_next(self):
            return next(self.batches, None)

    path = tmp_path / "peer.onnx"
    forms = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QDQ}
    logging.disable(logging.WARNING)
    try:
        peer(DIGITS, str(path), Reader(), per_channel=True, reduce_range=True, **forms)
    finally:
        logging.disable(logging.NOTSET)
    theirs = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    ours = df.quantize_static(df.load(DIGITS), x, progress=False).arrays()
    compared = 0
    for name, array in ours.items():
        stem, _, kind = name.rpartition(".")
        other = theirs.get(
            f"{stem}_{'quantized' if kind == 'quantized' else 'scale' if kind == 'scale' else 'zero_point'}"
        )
        if other is not None and kind == "scale":
            np.testing.assert_allclose(array, other, rtol=1e-5)
            compared += 1
        elif other is not None and kind == "quantized" and array.dtype == np.int8:
            assert np.abs(array.astype(int) - other).max() <= 1
            assert (array == other).mean() > 0.999
            compared += 1
    assert compared >= 8


def test_the_range_of_least_error_is_that_of_the_least_sum_of_squares():
    x = random(30000, 12)
    x[0, 0] = 12.0
    made = df.quantize_static(linear(), x, ranges="mse", batch_size=10000, progress=False)
    scale, zero = made.arrays()["x.scale"], made.arrays()["x.zero"]

    def squares(share):
        low, high = float(x.min()) * share, float(x.max()) * share
        step = (high - low) / 255
        origin = np.rint(-low / step)
        rounded = (np.clip(np.rint(x / step) + origin, 0, 255) - origin) * step
        return ((x - rounded).astype(np.float64) ** 2).sum(), step, origin

    best = min(squares(1 - k / 20) for k in range(16))
    assert best[0] < 0.9 * squares(1)[0]
    np.testing.assert_allclose((scale, zero), best[1:], rtol=1e-5)


def test_layers_that_are_left_out_keep_their_floats(tmp_path):
    model = df.load(DIGITS)
    x = np.load(DATA)["x"][:64]
    every, some = (df.quantize_static(model, x, targets=t, progress=False) for t in (None, ["*", "!classifier*"]))
    kept = {name for name, array in some.arrays().items() if array.dtype == np.float32 and array.ndim > 1}
    assert kept == {"classifier.weight"}
    assert not [array for array in every.arrays().values() if array.dtype == np.float32 and array.ndim > 1]
    df.save(some, tmp_path / "part.onnx")
    given = {"x": x[:8]}
    assert off(in_runtime(tmp_path / "part.onnx", given)["logits"], df.Session(some).run(given)["logits"]) < 0.01


def test_values_of_no_elements_change_no_range():
    """As where a detector finds nothing for a sample: rows of which none is chosen."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", "count", 4))
    g.output("y", ops.matmul(ops.relu(ops.matmul(x, g.parameter("w", random(4, 3)))), g.parameter("v", random(3, 2))))
    model, x = df.Model(g.build()), random(4, 5, 4, seed=3)
    batches = [{"x": x[:2]}, {"x": x[:2, :0]}, {"x": x[2:]}]
    for ranges in ("minmax", "mse"):
        made = df.quantize_static(model, lambda: iter(batches), ranges=ranges, progress=False)
        plain = df.quantize_static(model, lambda: iter([{"x": x}]), ranges=ranges, progress=False)
        for name, array in plain.arrays().items():
            np.testing.assert_array_equal(made.arrays()[name], array)
    none = df.quantize_static(model, lambda: iter(batches[1:2]), progress=False)
    assert none.arrays()["x.scale"] == 1


def test_a_look_up_of_rows_is_no_layer_that_keeps_its_floats(caplog):
    g = df.GraphBuilder()
    rows = ops.gather(g.parameter("table", random(9, 4)), g.input("x", df.int64, ("batch",)), axis=0)
    g.output("y", ops.matmul(rows, g.parameter("w", random(4, 2, seed=1))))
    with caplog.at_level(logging.INFO, "dataflow"):
        df.quantize_static(df.Model(g.build()), np.arange(9), progress=False)
    assert "keep their floats" not in caplog.text


def test_a_bias_far_larger_than_its_products_keeps_its_value():
    """It has 32 bits, so that the weight's steps are as large as it needs."""
    g = df.GraphBuilder()
    y = ops.matmul(g.input("x", df.float32, ("batch", 4)), g.parameter("w", np.full((4, 2), 1e-9, np.float32)))
    g.output("y", ops.add(y, g.parameter("b", np.array([3e3, -7.0], np.float32))))
    x = random(8, 4)
    found = df.Session(df.quantize_static(df.Model(g.build()), x, progress=False)).run({"x": x})["y"]
    np.testing.assert_allclose(found, np.broadcast_to([3e3, -7.0], (8, 2)), rtol=1e-6)


def test_a_fixed_batch_is_filled_up():
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("x", df.float32, (8, 4)), g.parameter("w", random(4, 2))))
    made = df.quantize_static(df.Model(g.build()), random(13, 4, seed=1), progress=False)
    scale = made.arrays()["x.scale"]
    x = random(13, 4, seed=1)
    np.testing.assert_allclose(scale, (x.max() - x.min()) / 255, rtol=1e-6)


def test_what_does_not_fit_is_refused():
    x = random(4, 12)
    with pytest.raises(df.InputError, match="bits is 4; expected 7 or 8"):
        df.quantize_static(linear(), x, bits=4)
    with pytest.raises(df.InputError, match="no samples"):
        df.quantize_static(linear(), x[:0], progress=False)
    with pytest.raises(df.InputError, match="'x' of the model has elements that are not finite"):
        df.quantize_static(linear(), np.full((2, 12), np.nan, np.float32), progress=False)
    with pytest.raises(df.InputError, match="bits= is given without data"):
        df.quantize_static(linear(), bits=8)
    with pytest.raises(df.InputError, match="threads= is given without data"):
        df.quantize_static(linear(), threads=1)
    with pytest.raises(df.InputError, match="train is 1; expected a bool"):
        df.quantize_static(linear(), x, train=1)
    with pytest.raises(df.InputError, match="no stored tensor is quantized"):
        df.quantize_static(linear())
    with pytest.raises(df.InputError, match=r"the model has no product .*; 'w.quantized' is of int8 already"):
        df.quantize_static(df.quantize_static(linear(), x, progress=False), x)
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("x", df.float16, (2, 2)), g.parameter("w", np.eye(2, dtype=np.float16))))
    with pytest.raises(df.InputError, match="'w' is of float16: quantize the model of float32"):
        df.quantize_static(df.Model(g.build()), np.eye(2, dtype=np.float16))
    g = df.GraphBuilder()
    g.output("y", ops.relu(g.input("x", df.float32, (2,))))
    with pytest.raises(df.InputError, match="the model has no product"):
        df.quantize_static(df.Model(g.build()), random(2))
    broken = linear()
    broken.parameters["w"].set(np.full((12, 5), np.inf, np.float32))
    with pytest.raises(df.ModelError, match="weight 'w' has elements that are not finite"):
        df.quantize_static(broken, x)
