"""Weights that a network computes from stored tensors, in files of PyTorch's older exporter: trained by default."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
RANDOM = np.random.default_rng(0)
FLOAT = TensorProto.FLOAT


def file(nodes, stored, producer="pytorch"):
    """The older exporter's file of nodes between x and y, of four columns."""
    arrays = [(name, np.asarray(a, np.float32) if name != "axes" else np.array(a)) for name, a in stored.items()]
    proto = onnx_model(nodes, [("x", FLOAT, ["N", 4])], [("y", FLOAT, ["N", 4])], arrays)
    proto.graph.node[0].name = f"/{proto.graph.node[0].op_type}"
    proto.producer_name = producer
    return proto


def trained(proto):
    return {name for name, p in load_bytes(proto.SerializeToString()).parameters.items() if p.trainable}


def column():
    return RANDOM.uniform(0.5, 1.5, 4)


FUNCTIONS = ["Abs", "Elu", "Exp", "LogSoftmax", "Relu", "Sigmoid", "Softmax", "Softplus", "Tanh"]


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("shown", [False, True])
def test_what_a_function_is_computed_of_alone_is_trained(kind, shown):
    views = [node("Unsqueeze", ["gate", "axes"], ["seen"])] if shown else []
    nodes = [*views, node(kind, ["seen" if shown else "gate"], ["f"]), node("Mul", ["x", "f"], ["y"])]
    stored = {"gate": column(), "axes": [0]}
    assert trained(file(nodes, stored)) == {"gate"}
    assert trained(file(nodes, stored, "tf2onnx")) == set()
    stored["onnx::Exp_7"] = stored.pop("gate")
    renamed = [node(n.op_type, ["onnx::Exp_7" if i == "gate" else i for i in n.input], n.output) for n in nodes]
    assert trained(file(renamed, stored)) == set()


def test_learned_numbers_are_trained_and_literals_are_not():
    nodes = [
        node("Exp", ["logit_scale"], ["e"]),
        node("Mul", ["x", "e"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Pow", ["b", "pool.p"], ["c"]),
        node("Pow", ["c", "onnx::Pow_9"], ["d"]),
        node("Max", ["d", "pool.eps"], ["y"]),
    ]
    stored = {"logit_scale": 2.0, "pool.p": [3.0], "onnx::Pow_9": 0.5, "pool.eps": 1e-6}
    assert trained(file(nodes, stored)) == {"logit_scale", "pool.p"}


@pytest.mark.parametrize("one_first", [False, True])
def test_scales_learned_as_their_difference_from_one_are_trained(one_first):
    """As LayerNorm of a width times 1 + gamma; a multiple of what inputs are normalized by stays as it is."""
    read = ["gamma", "one"]
    nodes = [
        node("Constant", [], ["one"], value_float=1.0),
        node("Constant", [], ["two"], value_float=2.0),
        node("Add", read[::-1] if one_first else read, ["scale"]),
        node("Mul", ["center", "two"], ["moved"]),
        node("Mul", ["x", "scale"], ["a"]),
        node("Sub", ["a", "moved"], ["y"]),
    ]
    model = load_bytes(file(nodes, {"gamma": column() - 1, "center": column()}).SerializeToString())
    assert [name for name, p in model.parameters.items() if p.trainable] == ["gamma"]
    x, gamma = RANDOM.standard_normal((3, 4)).astype(np.float32), model.parameters["gamma"].array
    y = x * (gamma + 1) - 2 * model.parameters["center"].array
    with df.Trainer(model, "mse", df.optim.SGD(lr=0.5), devices=["cpu"]) as trainer:
        trainer.step({"x": x, "labels": np.zeros_like(y)})
    expected = gamma - 0.5 * (2 * y * x).sum(0) / y.size
    np.testing.assert_allclose(model.parameters["gamma"].array, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Add", "Concat", "Mul", "Sub"])
def test_what_is_computed_of_one_tensor_and_of_numbers_is_trained(kind):
    """Multiples, squares and differences from numbers, by whatever name."""
    operands = ["scaled", "x"] if kind == "Sub" else ["x", "scaled"]
    options = {"axis": 0} if kind == "Concat" else {}
    nodes = [
        node("Constant", [], ["two"], value_float=2.0),
        node("Pow", ["gate", "two"], ["square"]),
        node("Sub", ["two", "square"], ["difference"]),
        node("Neg", ["difference"], ["scaled"]),
        node(kind, operands, ["y"], **options),
    ]
    assert trained(file(nodes, {"gate": column()[None]})) == {"gate"}


def test_a_number_that_another_is_added_to_stays_as_it_is():
    """Epsilon of a graph isomorphism network is a buffer unless its user asks for more; the file looks the same."""
    nodes = [
        node("Constant", [], ["one"], value_float=1.0),
        node("Add", ["eps", "one"], ["scale"]),
        node("Mul", ["x", "scale"], ["a"]),
        node("MatMul", ["a", "w"], ["y"]),
    ]
    assert trained(file(nodes, {"eps": [0.1], "w": RANDOM.standard_normal((4, 4))})) == {"w"}


def test_masked_matrices_are_trained_and_their_masks_are_not():
    nodes = [node("Mul", ["kernel", "seen"], ["masked"]), node("MatMul", ["x", "masked"], ["y"])]
    stored = {"kernel": RANDOM.standard_normal((4, 4)), "seen": np.tril(np.ones((4, 4)))}
    assert trained(file(nodes, stored)) == {"kernel"}


@pytest.mark.parametrize("shown", [False, True])
def test_tokens_that_are_repeated_are_trained(shown):
    """As a token of classes for each row, in a shape of its own before that."""
    views = [node("Unsqueeze", ["token", "axes"], ["row"])] if shown else []
    repeated = node("Tile", ["row" if shown else "token", "counts"], ["rows"])
    proto = file([*views, repeated, node("Concat", ["rows", "x"], ["y"], axis=0)], {"token": column()[:4]})
    if not shown:
        proto.graph.initializer[0].dims.insert(0, 1)
    for name, numbers in {"axes": [0], "counts": [3, 1]}.items():
        proto.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(numbers)], numbers))
    assert trained(proto) == {"token"}


def test_what_inputs_are_normalized_by_stays_as_it_is():
    """Buffers and centers alike are subtracted from inputs, or divide them; such a tensor is named by who wants it."""
    nodes = [node("Sub", ["x", "mean"], ["a"]), node("Div", ["a", "std"], ["b"]), node("MatMul", ["b", "w"], ["y"])]
    stored = {"mean": column(), "std": column(), "w": RANDOM.standard_normal((4, 4))}
    assert trained(file(nodes, stored)) == {"w"}
    model = load_bytes(file(nodes, stored).SerializeToString())
    with df.Trainer(model, "mse", devices=["cpu"]) as trainer:
        assert trainer.described().endswith("16 of 24 numbers: w; not trained unless trainable= names them: mean, std")
    with df.Trainer(model, "mse", trainable=["*", "mean"], devices=["cpu"]) as trainer:
        assert trainer.trainable == ("mean", "w")
        assert trainer.described().endswith("unless trainable= names them: std")


def test_weights_by_their_mean_are_trained():
    nodes = [
        node("ReduceMean", ["w", "axes"], ["m"]),
        node("Sub", ["w", "m"], ["centered"]),
        node("MatMul", ["x", "centered"], ["y"]),
    ]
    assert trained(file(nodes, {"w": RANDOM.standard_normal((4, 4)), "axes": [0]})) == {"w"}


def test_weight_norm_trains_as_its_formula_says():
    """Lengths and directions of rows, as torch.nn.utils.parametrizations.weight_norm is exported."""
    names = [f"fc.parametrizations.weight.original{i}" for i in (0, 1)]
    nodes = [
        node("ReduceL2", [names[1], "axes"], ["norm"]),
        node("Div", [names[1], "norm"], ["rows"]),
        node("Mul", ["rows", names[0]], ["w"]),
        node("Gemm", ["x", "w", "fc.bias"], ["y"], transB=1),
    ]
    length, rows, bias = RANDOM.uniform(1, 2, (4, 1)), RANDOM.standard_normal((4, 4)), column()
    proto = file(nodes, {names[0]: length, names[1]: rows, "fc.bias": bias, "axes": [1]})
    assert trained(proto) == {*names, "fc.bias"}
    model = load_bytes(proto.SerializeToString())
    x, labels = RANDOM.standard_normal((2, 6, 4)).astype(np.float32)
    with df.Trainer(model, "mse", "sgd:lr=0.5,momentum=0", devices=["cpu"]) as trainer:
        trainer.step({"x": x, "labels": labels})
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / norm
    slope = 2 * (x @ (length * unit).T + bias - labels).T @ x / labels.size  # of the loss by the weight
    along = (slope * unit).sum(axis=1, keepdims=True)
    expected = [length - 0.5 * along, rows - 0.5 * length / norm * (slope - along * unit)]
    for name, array in zip(names, expected, strict=True):
        np.testing.assert_allclose(model.parameters[name].array, array, rtol=1e-5, atol=1e-6)


def test_weights_that_a_batch_norm_standardizes_train_as_its_formula_says():
    """Of a convolution, as timm's and BiT's; PyTorch's older exporter numbers their weight, for it has another shape.

    What it stores beside for running statistics, which nobody reads, and tables are named or not as they are of use.
    """
    random = np.random.default_rng(0)
    weight, column_of = "onnx::BatchNormalization_9", "onnx::ReduceMean_11"
    nodes = [
        node("ReduceMean", [column_of, "axes"], ["mean"], keepdims=0),
        node("Mul", ["mean", "mean"], ["var"]),
        node(
            "BatchNormalization", [weight, "one", "zero", "mean", "var"], ["s", "m", "v"], epsilon=1e-6, training_mode=1
        ),
        node("Reshape", ["s", "sizes"], ["w"]),
        node("Reshape", ["x", "image"], ["xs"]),
        node("Conv", ["xs", "w", "conv.bias"], ["c"]),
        node("Reshape", ["c", "rows"], ["r"]),
        node("Max", ["r", "onnx::Max_12"], ["a"]),
        node("Max", ["a", "onnx::Max_13"], ["y"]),
    ]
    nodes[2:2] = [
        node("Constant", [], [name], value_floats=[value] * 4) for name, value in (("one", 1.0), ("zero", 0.0))
    ]
    rows, bias = random.standard_normal((4, 4)), random.uniform(0.5, 1.5, 4)
    table = -80.0 - np.arange(256).reshape(64, 4)
    sizes = {"axes": [0, 1], "sizes": [4, 4, 1, 1], "image": [-1, 4, 1, 1], "rows": [-1, 4]}
    arrays = [(name, np.array(value, np.int64)) for name, value in sizes.items()]
    floats = {
        weight: rows[None],
        column_of: np.tile(rows.T, (1, 16, 1)),
        "conv.bias": bias,
        "onnx::Max_12": table,
        "onnx::Max_13": np.full((64, 4), -90.0),
    }
    arrays += [(name, np.asarray(value, np.float32)) for name, value in floats.items()]
    proto = onnx_model(nodes, [("x", FLOAT, [64, 4])], [("y", FLOAT, [64, 4])], arrays, opset=18)
    proto.producer_name = "pytorch"
    model = load_bytes(proto.SerializeToString())
    x, labels = random.standard_normal((2, 64, 4)).astype(np.float32)
    with df.Trainer(model, "mse", "sgd:lr=0.5,momentum=0", devices=["cpu"]) as trainer:
        assert trainer.trainable == (weight, "conv.bias")
        assert trainer.described().endswith("not trained unless trainable= names them: onnx::Max_12")
        trainer.step({"x": x, "labels": labels})
    deviation = np.sqrt(rows.var(axis=1, keepdims=True) + 1e-6)
    unit = (rows - rows.mean(axis=1, keepdims=True)) / deviation
    slope = 2 * (x @ unit.T + bias - labels).T @ x / labels.size  # of the loss by the standardized weight
    along = (slope * unit).mean(axis=1, keepdims=True)
    expected = rows - 0.5 * (slope - slope.mean(axis=1, keepdims=True) - along * unit) / deviation
    np.testing.assert_allclose(model.parameters[weight].array[0], expected, rtol=1e-5, atol=1e-6)


COMPUTED = {
    "masked": [node("Mul", ["fc.weight", "mask"], ["w"])],
    "scaled": [node("Mul", ["fc.weight", "half"], ["w"])],
    "lower": [node("Trilu", ["fc.weight"], ["w"], upper=0)],
    "normalized": [node("LayerNormalization", ["fc.weight", "ones"], ["w"])],
    "joined": [node("Split", ["fc.weight"], ["a", "b"], num_outputs=2), node("Concat", ["b", "a"], ["w"], axis=0)],
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_what_is_called_a_weight_is_one_whatever_is_computed_of_it(kind):
    """And it trains by its gradient: central differences of the loss."""
    weight = RANDOM.standard_normal((4, 4)).astype(np.float32)
    stored = {"fc.weight": weight, "mask": np.tri(4), "half": 0.5, "ones": np.ones(4)}
    nodes = [*COMPUTED[kind], node("MatMul", ["x", "w"], ["y"])]
    used = {name for n in nodes for name in n.input}
    proto = file(nodes, {name: array for name, array in stored.items() if name in used})
    assert trained(proto) == {"fc.weight", "ones"} & used
    x, target = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)

    def loss(model):
        return float(((model(x)["y"].astype(np.float64) - target) ** 2).mean())

    model = load_bytes(proto.SerializeToString())
    with df.Trainer(model, "mse", "sgd:lr=1e-2,momentum=0", trainable="fc.weight", devices=["cpu"]) as trainer:
        before = trainer.step({"x": x, "labels": target})
    step = model.parameters["fc.weight"].array.astype(np.float64) - weight
    gained = before - loss(model)
    np.testing.assert_allclose(gained, (step**2).sum() / 1e-2, rtol=0.1)


def test_the_vectors_of_a_frozen_batch_norm_are_buffers():
    """As detectors compute it in each run: of a weight, a bias and running statistics that are all buffers."""
    nodes = [
        node("Add", ["bn.running_var", "epsilon"], ["v"]),
        node("Sqrt", ["v"], ["d"]),
        node("Div", ["bn.weight", "d"], ["scale"]),
        node("Mul", ["bn.running_mean", "scale"], ["m"]),
        node("Sub", ["bn.bias", "m"], ["shift"]),
        node("Mul", ["x", "scale"], ["h"]),
        node("Add", ["h", "shift"], ["z"]),
        node("MatMul", ["z", "fc.weight"], ["y"]),
    ]
    names = ("bn.running_var", "bn.running_mean", "bn.weight", "bn.bias")
    stored = {name: column() for name in names} | {"epsilon": 1e-5, "fc.weight": RANDOM.standard_normal((4, 4))}
    assert trained(file(nodes, stored)) == {"fc.weight"}
