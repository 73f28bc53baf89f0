"""Training through pairs of QuantizeLinear and DequantizeLinear."""

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx import helper

import dataflow as df

RNG = np.random.default_rng(0)
W = RNG.normal(size=(6, 4)).astype(np.float32)
X = (2 * RNG.normal(size=(8, 6))).astype(np.float32)
X_SCALE, X_ZERO = np.float32(0.02), np.uint8(120)  # -2.4 to 2.7: some of X is outside
W_SCALE = (np.abs(W).max(0) / 90).astype(np.float32)  # per column; beyond 127 steps none, so some are at the ends


@pytest.fixture
def path(tmp_path):
    """X and W quantized and dequantized, then multiplied."""
    stored = {"w": W, "xs": X_SCALE.reshape(1), "xz": X_ZERO.reshape(1), "ws": W_SCALE, "wz": np.zeros(4, np.int8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "xq"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "xd"),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], "wq", axis=1),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], "wd", axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["y"], "fc"),
    ]
    types = [helper.make_tensor_value_info(n, 1, ["N", s]) for n, s in (("x", 6), ("y", 4))]
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items()]
    graph = helper.make_graph(nodes, "qdq", types[:1], types[1:], tensors)
    file = tmp_path / "qdq.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return str(file)


def rounded(x, scale, zero, low, high):
    """The values that stand for x, and where the gradient passes."""
    steps = np.rint(x.astype(np.float64) / scale) + zero
    return (np.clip(steps, low, high) - zero) * scale, (steps >= low) & (steps <= high)


def test_gradients_pass_where_values_are_rounded(path, tmp_path):
    model = df.straight_through(df.load(path))
    x, _ = rounded(X, X_SCALE, int(X_ZERO), 0, 255)
    w, passes = rounded(W, W_SCALE, 0, -128, 127)
    np.testing.assert_allclose(model({"x": X})["y"], x @ w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model({"x": X})["y"], df.load(path)({"x": X})["y"], rtol=1e-5, atol=1e-5)
    assert [name for name, p in model.parameters.items() if p.trainable] == ["w"]
    loss = lambda g, outputs, batch: outputs["y"]  # noqa: E731 - the mean of the results
    with df.Trainer(model, loss=loss, optimizer=df.optim.SGD(lr=1.0), metrics=[]) as trainer:
        trainer.step({"x": X})
    gradient = passes * (x.T @ np.full((8, 4), 1 / 32))
    np.testing.assert_allclose(W - model.parameters["w"].array, gradient, rtol=1e-4, atol=1e-5)
    target = tmp_path / "tuned.onnx"
    df.save(model, str(target))
    before, after = onnx.load(path), onnx.load(str(target))
    assert before.graph.node == after.graph.node
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], model({"x": X})["y"], rtol=1e-4, atol=1e-4)


def test_the_gradient_by_x_is_zero_outside_of_the_range(path):
    found = df.vjp(df.straight_through(df.load(path)), {"x": X})["x"]
    _, passes = rounded(X, X_SCALE, int(X_ZERO), 0, 255)
    w, _ = rounded(W, W_SCALE, 0, -128, 127)
    assert 0 < passes.sum() < passes.size
    np.testing.assert_allclose(found, passes * w.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.INT4, onnx.TensorProto.UINT8])
def test_gradients_pass_through_pairs_of_4_bits_and_of_blocks(dtype, tmp_path):
    low, high, zero = (-8, 7, 0) if dtype == onnx.TensorProto.INT4 else (0, 255, 128)
    scale = np.repeat(np.abs(W).max() / np.array([[high - zero - 1], [high - zero + 2], [high - zero + 1]]), 4, 1)
    scale = scale.astype(np.float32)  # of two rows each; the first ends below the largest
    tensors = [onnx.numpy_helper.from_array(W, "w"), onnx.numpy_helper.from_array(scale, "s")]
    tensors.append(helper.make_tensor("z", dtype, scale.shape, [zero] * scale.size))
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["wq"], "wq", axis=0, block_size=2),
        helper.make_node("DequantizeLinear", ["wq", "s", "z"], ["wd"], "wd", axis=0, block_size=2),
        helper.make_node("MatMul", ["x", "wd"], ["y"], "fc"),
    ]
    types = [helper.make_tensor_value_info(n, 1, ["N", s]) for n, s in (("x", 6), ("y", 4))]
    graph = helper.make_graph(nodes, "qdq", types[:1], types[1:], tensors)
    file, tuned = str(tmp_path / "qdq.onnx"), str(tmp_path / "tuned.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), file)
    model = df.straight_through(df.load(file))
    w, passes = rounded(W, np.repeat(scale, 2, 0).astype(np.float64), zero, low, high)
    np.testing.assert_allclose(model({"x": X})["y"], X @ w, rtol=1e-5, atol=1e-5)
    loss = lambda g, outputs, batch: outputs["y"]  # noqa: E731 - the mean of the results
    with df.Trainer(model, loss=loss, optimizer=df.optim.SGD(lr=1.0), metrics=[]) as trainer:
        trainer.step({"x": X})
    gradient = passes * (X.T @ np.full((8, 4), 1 / 32))
    np.testing.assert_allclose(W - model.parameters["w"].array, gradient, rtol=1e-4, atol=1e-5)
    df.save(model, tuned)
    assert onnx.load(tuned).graph.node == onnx.load(file).graph.node
    np.testing.assert_allclose(df.load(tuned)({"x": X})["y"], model({"x": X})["y"], rtol=1e-5, atol=1e-5)


def test_a_model_without_pairs_is_refused():
    g = df.GraphBuilder("plain")
    g.output("y", df.ops.relu(g.input("x", df.float32, ("batch", 3))))
    with pytest.raises(df.InputError, match="no value that is quantized"):
        df.straight_through(df.Model(g.build()))


def test_adapters_train_beside_weights_that_a_quantizer_stored(tmp_path, caplog):
    """As onnxruntime's quantizer writes them: weights are integers, and what products read is quantized."""
    stored = {"one": np.rint(W * 40).astype(np.int8), "two": np.rint(W[:4] * 40).astype(np.int8)}
    stored |= {"s": np.float32(0.025), "z": np.zeros((), np.int8), "b": np.zeros(4, np.float32)}
    nodes = []
    for product, weight, read in (("h", "one", "x"), ("y", "two", "h")):
        pairs = [("QuantizeLinear", read, f"{read}q"), ("DequantizeLinear", f"{read}q", f"{read}d")]
        pairs.append(("DequantizeLinear", weight, f"{weight}d"))
        nodes += [helper.make_node(op, [of, "s", "z"], [to]) for op, of, to in pairs]
        nodes.append(helper.make_node("MatMul", [f"{read}d", f"{weight}d"], [product], product))
    types = [helper.make_tensor_value_info(n, 1, ["N", s]) for n, s in (("x", 6), ("y", 4))]
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph(nodes, "qdq", types[:1], types[1:], tensors)
    file, tuned = tmp_path / "qdq.onnx", tmp_path / "tuned.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    data = {"x": X / 4, "labels": np.arange(8) % 4}
    loaded = df.load(str(file))
    with pytest.raises(df.InputError, match=r"df\.lora\(model\) trains adapters beside them"):
        df.Trainer(loaded)
    with df.Trainer(df.lora(loaded, targets="one")) as trainer, pytest.raises(df.GradientError, match="straight_thr"):
        trainer.step(data)
    caplog.set_level("INFO", "dataflow")
    with df.Trainer(df.lora(loaded, targets="*")) as trainer:
        trainer.step(data)
    assert "the loss depends on 2 of 4 trained tensors; these stay as they are: one.lora_A.weight" in caplog.text
    model = df.lora(df.straight_through(loaded), targets="*")
    with df.Trainer(model, optimizer="adamw:lr=0.01") as trainer:
        losses = [trainer.step(data) for _ in range(10)]
    assert losses[-1] < losses[0] and all(model.parameters[a.b].array.any() for a in model.adapters)
    df.save(model, tuned)
    (y,) = onnxruntime.InferenceSession(tuned, providers=["CPUExecutionProvider"]).run(None, {"x": data["x"]})
    np.testing.assert_allclose(y, model({"x": data["x"]})["y"], atol=0.03)  # a step of h


@pytest.mark.parametrize("groups", [True, False])
def test_ones_of_a_group_norm_stay(groups, tmp_path):
    """PyTorch's older exporter writes a group norm as an instance norm with ones, behind a reshape; else they train."""
    scale, zero = np.full(1, 1 / 64, np.float32), np.zeros(1, np.int8)
    numbers = RNG.normal(size=(6, 1, 1)).astype(np.float32)
    stored = {"s": scale, "z": zero, "one": np.ones(3, np.float32), "none": np.zeros(3, np.float32), "w": numbers}
    stored |= {"groups": np.array([0, 3, -1]), "back": np.array([0, 6, 2, 2])}
    both = lambda a, b: [  # noqa: E731 - a pair
        helper.make_node("QuantizeLinear", [a, "s", "z"], [f"{a}.q"]),
        helper.make_node("DequantizeLinear", [f"{a}.q", "s", "z"], [b]),
    ]
    nodes = [
        *(helper.make_node("Reshape", ["x", "groups"], ["g"]) for _ in range(groups)),
        *both("g" if groups else "x", "h"),
        *both("one", "a"),
        helper.make_node("InstanceNormalization", ["h", "a", "none"], ["n"]),
        helper.make_node("Reshape", ["n", "back"], ["r"]),
        *both("w", "b"),
        helper.make_node("Mul", ["r", "b"], ["y"]),
    ]
    shape = [1, 6, 2, 2] if groups else [1, 3, 8]
    types = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", shape), ("y", [1, 6, 2, 2]))]
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph(nodes, "qdq", types[:1], types[1:], tensors)
    file = str(tmp_path / "norm.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    model = df.straight_through(df.load(file))
    trained = {name for name, p in model.parameters.items() if p.trainable}
    assert trained == ({"w"} if groups else {"w", "one", "none"})


def _stack(weights, pairs):
    """x (batch, 2, 6, 6) through a convolution, a pool, a layer norm, an LSTM and a product, weights behind pairs."""
    nodes, read = [], {}
    for name, array in weights.items():
        read[name] = name
        if pairs and array.ndim > 1:
            nodes += [
                helper.make_node("QuantizeLinear", [name, f"{name}.s", "zero"], [f"{name}.q"]),
                helper.make_node("DequantizeLinear", [f"{name}.q", f"{name}.s", "zero"], [f"{name}.d"]),
            ]
            read[name] = f"{name}.d"
    nodes += [
        helper.make_node("Conv", ["x", read["conv"]], ["c"]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "rows"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "gain"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", read["w"], read["u"]], ["", "h"], hidden_size=4),
        helper.make_node("MatMul", ["h", read["last"]], ["y"]),
    ]
    kind = onnx.helper.np_dtype_to_tensor_dtype(weights["conv"].dtype)
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in {**weights, "rows": np.array([0, 3, 4])}.items()]
    if pairs:
        scales = {f"{n}.s": np.float32(np.abs(a).max() / 120) for n, a in weights.items()}
        tensors += [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in scales.items()]
        tensors.append(onnx.numpy_helper.from_array(np.zeros((), np.int8), "zero"))
    types = [helper.make_tensor_value_info(n, kind, s) for n, s in (("x", ["N", 2, 6, 6]), ("y", None))]
    graph = helper.make_graph(nodes, "stack", types[:1], types[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_gradients_of_nodes_that_keep_more_than_their_result(tmp_path):
    """Norms, pools and recurrences keep results for their gradient alone; against differences in float64."""
    rng = np.random.default_rng(3)
    shapes = {"conv": (3, 2, 3, 3), "gain": (4,), "w": (1, 16, 4), "u": (1, 16, 4), "last": (4, 2)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = rng.normal(size=(2, 2, 6, 6)).astype(np.float32)
    file = tmp_path / "stack.onnx"
    onnx.save(_stack(weights, True), file)
    model = df.straight_through(df.load(str(file)))
    with df.Trainer(model, loss=lambda g, outputs, batch: outputs["y"], metrics=[]) as trainer:
        trainer.forward({"x": x})
        trainer.backward()
        found = {name: np.array(trainer.gradients[name]) / 4 for name in shapes}  # of the mean of four results
        trainer.discard()
    steps = {n: a if a.ndim == 1 else rounded(a, np.abs(a).max() / 120, 0, -128, 127)[0] for n, a in weights.items()}

    def mean(name, index, change):
        moved = {n: a.astype(np.float64) for n, a in steps.items()}
        moved[name].flat[index] += change
        evaluator = onnx.reference.ReferenceEvaluator(_stack(moved, False))
        return evaluator.run(None, {"x": x.astype(np.float64)})[0].mean()

    for name, array in weights.items():
        for index in range(0, array.size, 5):
            difference = (mean(name, index, 1e-5) - mean(name, index, -1e-5)) / 2e-5
            assert found[name].flat[index] == pytest.approx(difference, rel=1e-3, abs=2e-5), (name, index)
