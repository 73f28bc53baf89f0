"""RNN, GRU and LSTM with every option against onnxruntime, and gradients of the unusual ones by differences."""

import dataclasses
import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import dataflow as df
from dataflow.ir.graph import Initializer
from dataflow.passes.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6
ENDS = [4, 5, 2]


def network(kind, *, direction="forward", bias=True, ends=False, start=False, peepholes=False, opset=14, steps=STEPS,
            batch=BATCH, **attributes):  # fmt: skip
    """A model of one node, and what it is fed."""
    random = np.random.default_rng(5)
    n, d = GATES[kind], 2 if direction == "bidirectional" else 1

    def normal(*shape):
        return (0.5 * random.standard_normal(shape)).astype(np.float32)

    stored = {"W": normal(d, n * HIDDEN, INPUTS), "R": normal(d, n * HIDDEN, HIDDEN)}
    names = ["X", "W", "R"] + [""] * (5 if kind == "LSTM" else 3)
    if bias:
        stored["B"], names[3] = normal(d, 2 * n * HIDDEN), "B"
    feeds = {"X": normal(steps, batch, INPUTS) * 2}
    if ends:
        feeds["ends"], names[4] = np.resize(np.array(ENDS, np.int32), batch), "ends"
    if start:
        feeds["h"], names[5] = normal(d, batch, HIDDEN), "h"
        if kind == "LSTM":
            feeds["c"], names[6] = normal(d, batch, HIDDEN), "c"
    if peepholes:
        stored["P"], names[7] = normal(d, 3 * HIDDEN), "P"
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    attributes["hidden_size"] = HIDDEN
    if direction != "forward":
        attributes["direction"] = direction
    node = helper.make_node(kind, names, outputs, **attributes)
    given = [(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for k, a in feeds.items()]
    model = onnx_model([node], given, outputs, stored.items(), opset=opset, ir_version=8)
    return model.SerializeToString(), feeds


def compare(kind, **options):
    data, feeds = network(kind, **options)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    expected = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    model = load_bytes(data)
    results = {"reference": evaluate(model.graph, feeds)}
    for devices in (["cpu"], ["numpy"]):
        own = df.Session(model, devices=devices)
        results[devices[0]] = own.run(feeds)
        if devices == ["cpu"]:
            assert {p.device for p in own.placement({n: a.shape for n, a in feeds.items()})} == {"cpu"}
    for where, found in results.items():
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-6, err_msg=f"{where} {name}")


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("bias", "ends", "start"), list(itertools.product([False, True], repeat=3)))
def test_directions_lengths_and_starts(kind, direction, bias, ends, start):
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    compare(kind, direction=direction, bias=bias, ends=ends, start=start, **more)


UNUSUAL = [
    ("GRU", {}),
    ("GRU", {"ends": True, "start": True, "direction": "bidirectional"}),
    ("GRU", {"clip": 0.4, "linear_before_reset": 1}),
    ("GRU", {"clip": 0.4}),
    ("GRU", {"activations": ["HardSigmoid", "Softsign"], "linear_before_reset": 1, "bias": False}),
    ("GRU", {"activations": ["Sigmoid", "LeakyRelu"], "activation_alpha": [0.3]}),
    ("LSTM", {"peepholes": True}),
    ("LSTM", {"peepholes": True, "direction": "bidirectional", "ends": True, "start": True}),
    ("LSTM", {"clip": 0.3}),
    ("LSTM", {"clip": 0.3, "peepholes": True, "start": True}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"activations": ["HardSigmoid", "Relu", "Elu"], "activation_alpha": [0.1, 0.7], "activation_beta": [0.4]}),
    (
        "LSTM",
        {
            "direction": "bidirectional",
            "activations": ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "ScaledTanh", "Softsign"],
            "activation_alpha": [1.5],
            "activation_beta": [0.6],
        },
    ),
    ("RNN", {"activations": ["Relu"]}),
    ("RNN", {"activations": ["Relu"], "ends": True, "start": True, "direction": "reverse"}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
    ("RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.2]}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.5]}),
    ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3, 0.7], "activation_beta": [0.2]}),
    ("GRU", {"activations": ["Elu", "Tanh"], "activation_alpha": [0.3, 0.7], "activation_beta": [0.2, 0.2]}),
    ("LSTM", {"activations": ["Tanh", "Softsign", "Elu"], "activation_alpha": [0.6] * 3, "activation_beta": [0.2] * 3}),
    ("RNN", {"activations": ["Softplus"], "clip": 0.5}),
    ("RNN", {"activations": ["Tanh", "Relu"], "direction": "bidirectional", "ends": True}),
    ("RNN", {"activations": ["Tanh"], "clip": 0.2}),
]


@pytest.mark.parametrize(("kind", "options"), UNUSUAL, ids=str)
def test_options(kind, options):
    compare(kind, **options)


SMOOTH = [(kind, options) for kind, options in UNUSUAL if "ThresholdedRelu" not in options.get("activations", ())]


@pytest.mark.parametrize(("kind", "options"), SMOOTH, ids=str)
def test_gradients_of_options(kind, options):
    data, feeds = network(kind, **options)
    graph = load_bytes(data).graph
    wrt = [v for v in (*graph.inputs, *graph.initializers) if v.type.dtype.is_float and v.type.rank]
    joint = vjp_graph(graph, wrt)
    random = np.random.default_rng(0)
    feeds = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    u = {n: random.standard_normal(v.type.sizes) for n, v in graph.outputs.items()}
    found = evaluate(joint, {**feeds, **{f"grad.{n}": a for n, a in u.items()}}, dtype=np.float64)
    step = 1e-6
    for value in wrt:
        direction = random.standard_normal(value.type.sizes)
        sides = []
        for sign in (1, -1):
            moved = {n: a + sign * step * direction if n == value.name else a for n, a in feeds.items()}
            changed = graph
            if value in graph.initializers:
                data_ = graph.initializers[value].array + sign * step * direction
                changed = with_data(graph, value, data_)
            sides.append(evaluate(changed, moved, dtype=np.float64))
        expected = sum(float((u[n] * (sides[0][n] - sides[1][n])).sum()) / (2 * step) for n in u)
        along = float((direction * found[f"grad.{value.name}"]).sum())
        assert along == pytest.approx(expected, rel=1e-5, abs=1e-5), value.name


def with_data(graph, value, array):
    """The graph with other data for an initializer, kept in double precision."""
    stored = {**graph.initializers, value: Initializer(array)}
    return dataclasses.replace(graph, initializers=stored)


@pytest.mark.parametrize("kind", GATES)
def test_batch_first_layout(kind):
    """onnxruntime refuses it: the same as turning inputs and results by hand."""
    plain, feeds = network(kind, start=True, direction="bidirectional")
    swapped, _ = network(kind, start=True, direction="bidirectional", layout=1, steps=BATCH, batch=STEPS)
    model = onnx.load_from_string(swapped)
    for value in model.graph.input:
        shape = feeds[value.name].shape
        for dim, size in zip(value.type.tensor_type.shape.dim, (shape[1], shape[0], shape[2]), strict=True):
            dim.dim_value = size
    swapped = {n: np.ascontiguousarray(a.swapaxes(0, 1)) for n, a in feeds.items()}
    one = df.Session(load_bytes(plain), devices=["cpu"]).run(feeds)
    two = df.Session(load_bytes(model.SerializeToString()), devices=["cpu"]).run(swapped)
    np.testing.assert_array_equal(one["Y"].transpose(2, 0, 1, 3), two["Y"])
    for name in set(one) - {"Y"}:
        np.testing.assert_array_equal(one[name].swapaxes(0, 1), two[name])


@pytest.mark.parametrize("opset", [7, 14, 22])
@pytest.mark.parametrize("kind", GATES)
def test_opsets(kind, opset):
    compare(kind, opset=opset)


@pytest.mark.parametrize("kind", GATES)
def test_one_step(kind):
    compare(kind, steps=1, direction="bidirectional")


def test_no_steps_give_the_initial_state():
    data, feeds = network("LSTM", steps=0, start=True, direction="bidirectional")
    found = df.Session(load_bytes(data), devices=["cpu"]).run(feeds)
    assert found["Y"].shape == (0, 2, BATCH, HIDDEN)
    np.testing.assert_array_equal(found["Y_h"], feeds["h"])
    np.testing.assert_array_equal(found["Y_c"], feeds["c"])


REFUSED = [
    ("LSTM", {"direction": "sideways"}, "'direction' is 'sideways'"),
    ("LSTM", {"activations": ["Sigmoid", "Tanh"]}, "activations has 2 entries; forward needs 3"),
    ("GRU", {"activations": ["Sigmoid", "Sine"]}, "the activation 'sine' is not known"),
    ("RNN", {"activations": ["Affine"]}, "needs a number in activation_alpha"),
    ("RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.1]}, "needs a number in activation_beta"),
    (
        "GRU",
        {"activations": ["Tanh", "Elu"], "activation_alpha": [0.1, 0.2]},
        "1 numbers more than",
    ),  # which of the two
    ("LSTM", {"layout": 2}, "'layout' is 2"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_refused(kind, options, message):
    with pytest.raises(df.ModelError, match=message):
        load_bytes(network(kind, **options)[0])


def test_weights_that_do_not_fit_are_refused():
    model = onnx.load_from_string(network("GRU")[0])
    for tensor in model.graph.initializer:
        if tensor.name == "B":
            tensor.CopyFrom(numpy_helper.from_array(np.zeros((1, 5), np.float32), "B"))
    with pytest.raises(df.ModelError, match=r"B is float32\[1, 5\]; expected the shape \(1, 36\)"):
        load_bytes(model.SerializeToString())


def test_weights_that_the_file_puts_together_are_trained():
    """Exporters leave large weights as they are, with nodes behind them that order their gates."""
    model = onnx.load_from_string(network("LSTM", direction="bidirectional")[0])
    rows = 4 * HIDDEN
    nodes, stored = [], []
    for tensor in list(model.graph.initializer):
        if tensor.name != "R":
            continue
        array = numpy_helper.to_array(tensor)
        model.graph.initializer.remove(tensor)
        for index in range(2):  # each direction by itself, its last gate in front
            name, slices = f"weight{index}", []
            stored.append(numpy_helper.from_array(np.roll(array[index], HIDDEN, axis=0), name))
            for begin, end in ((HIDDEN, rows), (0, HIDDEN)):
                ends = [f"{name}.from{begin}.{i}" for i in range(2)]
                stored += [numpy_helper.from_array(np.array([at]), n) for at, n in zip((begin, end), ends, strict=True)]
                slices.append(f"{name}.part{begin}")
                nodes.append(helper.make_node("Slice", [name, *ends], [slices[-1]]))
            nodes.append(helper.make_node("Concat", slices, [f"{name}.ordered"], axis=0))
            stored.append(numpy_helper.from_array(np.array([0]), f"{name}.axes"))
            nodes.append(helper.make_node("Unsqueeze", [f"{name}.ordered", f"{name}.axes"], [f"{name}.row"]))
        nodes.append(helper.make_node("Concat", ["weight0.row", "weight1.row"], ["R"], axis=0))
    model.graph.initializer.extend(stored)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    plain, feeds = network("LSTM", direction="bidirectional")
    one, two = load_bytes(plain), load_bytes(model.SerializeToString())
    assert {n for n, p in two.parameters.items() if p.trainable} == {"W", "B", "weight0", "weight1"}
    expected, found = df.vjp(one, feeds, devices=["cpu"]), df.vjp(two, feeds, devices=["cpu"])
    for index in range(2):
        gradient = np.roll(expected["R"][index], HIDDEN, axis=0)
        np.testing.assert_allclose(found[f"weight{index}"], gradient, rtol=1e-5, atol=1e-6)
