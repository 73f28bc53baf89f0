"""Which stored floats are trained by default: what a file notes of them, else how they are stored and read."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.file.noted import CALL, FOLDED, REWRITTEN, SIGNATURE
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
RANDOM = np.random.default_rng(0)
STORED = {
    name: RANDOM.standard_normal(shape).astype(np.float32)
    for name, shape in {
        "fc.weight": (4, 4),
        "rope.inv_freq": (4,),
        "val_7": (4, 4),
        "val_9": (4,),
        "scale": (1,),
        "decay": (4,),
        "val_11": (4,),
    }.items()
}


def model(*, constant=()):
    """A product, sums, factors and an exponent; of what is named by ``constant`` nodes have the data."""
    nodes = [
        node("Constant", [], [name], value=numpy_helper.from_array(STORED[name], name)) for name in sorted(constant)
    ]
    nodes += [
        node("MatMul", ["x", "fc.weight"], ["a"]),
        node("Mul", ["a", "rope.inv_freq"], ["b"]),
        node("MatMul", ["b", "val_7"], ["c"]),
        node("Add", ["c", "val_9"], ["d"]),
        node("Mul", ["d", "scale"], ["e"]),
        node("Exp", ["decay"], ["f"]),
        node("Mul", ["e", "f"], ["g"]),
        node("Tanh", ["val_11"], ["h"]),
        node("Mul", ["g", "h"], ["y"]),
    ]
    stored = [(name, array) for name, array in STORED.items() if name not in constant]
    return onnx_model(nodes, [("x", 1, ["rows", 4])], [("y", 1, ["rows", 4])], stored)


def trained(proto):
    return {name for name, p in load_bytes(proto.SerializeToString()).parameters.items() if p.trainable}


def note(entry, key, value):
    found = entry.metadata_props.add()
    found.key, found.value = key, value


def noted(signature):
    """The model as PyTorch's exporter writes it: val_7 and val_11 were computed of parameters, val_9 of a buffer."""
    proto = model()
    note(proto.graph, SIGNATURE, signature)
    computed = {"val_7": "['fc2.weight', 'val_3']", "val_9": "['rope.inv_freq', 'val_3', 'sin']", "val_11": "['decay']"}
    for name, sources in computed.items():
        value = proto.graph.value_info.add()
        value.name = name
        note(value, FOLDED, sources)
    return proto


def test_the_signature_says_what_is_a_parameter():
    lines = [
        f"p_{i}: PARAMETER target='{name}'" for i, name in enumerate(("fc.weight", "fc2.weight", "scale", "decay"))
    ]
    lines += ["b_rope_inv_freq: BUFFER target='rope.inv_freq' persistent=False", "x: USER_INPUT"]
    text = "\n# inputs\n" + "\n".join(lines) + "\n\n# outputs\ny: USER_OUTPUT\n"
    assert trained(noted(text)) == {"fc.weight", "val_7", "scale", "decay", "val_11"}


@pytest.mark.parametrize("text", ["", "nonsense", "p: PARAMETER target=", "# inputs\nx: USER_INPUT\n"])
def test_without_one_it_is_what_layers_read(text):
    assert trained(noted(text)) == {"fc.weight", "val_7", "rope.inv_freq", "val_9"}


@pytest.mark.parametrize("rule", ["RemoveOptionalBiasFromGemm", "SuccessiveClipRelu", None])
def test_a_trainer_names_biases_that_the_exporter_left_out(rule, caplog):
    """As the notes of torch 2.13 and onnxscript 0.7 have them, where a layer's bias is zeros."""
    proto = model()
    text = "p_fc_weight: PARAMETER target='fc.weight'\np_fc_bias: PARAMETER target='fc.bias'\nx: USER_INPUT"
    note(proto.graph, SIGNATURE, text)
    (product,) = (n for n in proto.graph.node if n.output[0] == "a")
    call = "%linear : [num_users=1] = call_function[target=aten.linear.default](args = (%x, %p_fc_weight, %p_fc_bias))"
    note(product, CALL, call)
    if rule is not None:
        note(product, REWRITTEN, rule)
    loaded = load_bytes(proto.SerializeToString())
    for made in (loaded, loaded.append("z", lambda v: df.ops.mul(v, 2.0), of="y")):
        caplog.clear()
        df.Trainer(made, "mse", output="y", devices=["cpu"]).close()
        said = "lacks 1 parameters of its network, first fc.bias, so they aren't trained" in caplog.text
        assert said == (rule == "RemoveOptionalBiasFromGemm")


def test_constants_beside_initializers_are_no_parameters():
    assert trained(model(constant={"rope.inv_freq", "val_9"})) == {"fc.weight", "val_7"}


def test_where_all_are_constants_they_are():
    assert trained(model(constant=STORED)) == {"fc.weight", "val_7", "rope.inv_freq", "val_9"}


def rotary(inverse, kind):
    """Queries, rotated by angles of positions, behind a layer whose weight is learned; no exporter's notes."""
    positions = node("Cast", ["ids"], ["positions"], to=1)
    angles = [
        positions,
        node("Unsqueeze", ["positions", "last"], ["column"]),
        node("MatMul" if kind == "matmul" else "Mul", ["column", "inv_freq"], ["half"]),
        node("Concat", ["half", "half"], ["angles"], axis=-1),
        node("Cos", ["angles"], ["cos"]),
        node("Sin", ["angles"], ["sin"]),
    ]
    tables = [node("Gather", ["cos_table", "ids"], ["cos"]), node("Gather", ["sin_table", "ids"], ["sin"])]
    rest = [
        node("MatMul", ["x", "weight"], ["q"]),
        node("Mul", ["q", "cos"], ["a"]),
        node("Mul", ["q", "sin"], ["b"]),
        node("Sub", ["a", "b"], ["c"]),
        node("Add", ["c", "table"], ["y"]),
    ]
    angle = np.arange(6)[:, None] * np.concatenate([inverse, inverse])
    stored = [("weight", RANDOM.standard_normal((8, 8)).astype(np.float32))]
    stored += [("table", RANDOM.uniform(-1, 1, (6, 8)).astype(np.float32))]  # learned, of as many positions
    if kind == "tables":
        stored += [("cos_table", np.cos(angle).astype(np.float16).astype(np.float32))]
        stored += [("sin_table", np.sin(angle).astype(np.float16).astype(np.float32))]
    else:
        stored += [("inv_freq", inverse[None].astype(np.float32)), ("last", np.array([-1]))]
    nodes = (tables if kind == "tables" else angles) + rest
    return onnx_model(nodes, [("x", 1, [6, 8]), ("ids", 7, [6])], [("y", 1, [6, 8])], stored)


@pytest.mark.parametrize("kind", ["matmul", "mul", "tables"])
def test_frequencies_and_waves_of_positions_are_no_weights(kind):
    """As in a decoder that was optimized behind its export, so that nothing notes which tensors are parameters."""
    inverse = 10000.0 ** (-np.arange(4) / 4)
    assert trained(rotary(inverse, kind)) == {"weight", "table"}


@pytest.mark.parametrize("by_turns", [True, False])
def test_a_table_of_waves_that_is_added_is_no_weight(by_turns):
    angle = np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    both = np.stack([np.sin(angle), np.cos(angle)], axis=-1 if by_turns else 1).reshape(6, 8).astype(np.float32)
    nodes = [node("MatMul", ["x", "weight"], ["h"]), node("Add", ["h", "pe"], ["y"])]
    both[1] = 0  # for what pads
    stored = [("weight", RANDOM.standard_normal((8, 8)).astype(np.float32)), ("pe", both)]
    assert trained(onnx_model(nodes, [("x", 1, [6, 8])], [("y", 1, [6, 8])], stored)) == {"weight"}
    stored[1] = ("pe", both * np.float32(1.2))
    assert trained(onnx_model(nodes, [("x", 1, [6, 8])], [("y", 1, [6, 8])], stored)) == {"weight", "pe"}


def test_weights_of_angles_that_a_network_gives_are_trained():
    """Of what a layer gives, or of inputs alone where only the sine is taken."""
    nodes = [
        node("MatMul", ["x", "first"], ["h"]),
        node("Sin", ["h"], ["a"]),
        node("MatMul", ["a", "second"], ["angle"]),
        node("Sin", ["angle"], ["s"]),
        node("Cos", ["angle"], ["c"]),
        node("Concat", ["s", "c"], ["y"], axis=-1),
    ]
    stored = [("first", STORED["fc.weight"]), ("second", STORED["val_7"])]
    proto = onnx_model(nodes, [("x", 1, ["n", 4])], [("y", 1, ["n", 8])], stored)
    assert trained(proto) == {"first", "second"}


def named_by_the_older_exporter(producer="pytorch", called="/head/Add"):
    """A product with a bias of one element, a learned factor, and what the exporter computed."""
    random = np.random.default_rng(0)
    stored = {
        "fc.weight": random.standard_normal((3, 1)),
        "head.bias": np.zeros(1),
        "scale": np.array(1.5),
        "onnx::Mul_7": np.array(0.3),
        "unread.gate": np.array(0.1),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["m"]),
        helper.make_node("Add", ["m", "head.bias"], ["a"], name=called),
        helper.make_node("Mul", ["a", "scale"], ["b"]),
        helper.make_node("Mul", ["b", "onnx::Mul_7"], ["c"]),
        helper.make_node("Sub", ["c", "unread.gate"], ["y"]),
    ]
    x, y = ("x", TensorProto.FLOAT, ["N", 3]), ("y", TensorProto.FLOAT, ["N", 1])
    arrays = [(name, array.astype(np.float32)) for name, array in stored.items()]
    proto = onnx_model(nodes, [x], [y], arrays)
    proto.producer_name = producer
    return proto


def test_tensors_of_one_element_that_a_module_names_are_no_literals():
    proto = named_by_the_older_exporter()
    assert trained(proto) == {"fc.weight", "head.bias", "scale"}
    made = load_bytes(proto.SerializeToString())
    assert not made.parameters["unread.gate"].trainable
    assert "onnx::Mul_7" not in made.parameters
    data = {"x": np.ones((4, 3), np.float32), "labels": np.zeros((4, 1), np.float32)}
    with df.Trainer(made, "mse", "sgd:lr=0.1", trainable=["unread.gate", "head.bias"], devices=["cpu"]) as trainer:
        trainer.step(data)
    assert made.parameters["unread.gate"].array != np.float32(0.1)
    assert made.parameters["head.bias"].array != 0


def test_elsewhere_a_name_without_a_module_says_nothing():
    assert trained(named_by_the_older_exporter(producer="tf2onnx")) == {"fc.weight"}
    assert trained(named_by_the_older_exporter(called="node_Add_1")) == {"fc.weight", "head.bias"}


@pytest.mark.parametrize(("low", "high", "kept"), [(-1e4, 0, False), (0, 1, False), (-1e4, 0.5, True), (-1, 0, True)])
def test_a_mask_that_onnxruntime_folded_is_no_parameter(low, high, kept):
    mask = np.where(np.tri(4, dtype=bool), high, low).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "/Trilu_output_0"], ["y"])]
    stored = [("w", STORED["fc.weight"]), ("/Trilu_output_0", mask)]
    proto = onnx_model(nodes, [("x", 1, [4, 4])], [("y", 1, [4, 4])], stored)
    assert trained(proto) == {"w", "/Trilu_output_0"} if kept else {"w"}


@pytest.mark.parametrize("value", [0.0, None])
@pytest.mark.parametrize("first", [False, True])
def test_a_slice_of_a_vector_that_is_added_is_a_bias(value, first):
    """As of queries, keys and values in one, whichever operand it is, and if it is yet to be trained."""
    bias = RANDOM.standard_normal(12).astype(np.float32) if value is None else np.full(12, value, np.float32)
    operands = ["s", "h"] if first else ["h", "s"]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Slice", ["in_proj.bias", "begin", "end"], ["s"]),
        node("Add", operands, ["y"]),
    ]
    ends = [(name, np.array([at])) for name, at in (("begin", 4), ("end", 8))]
    stored = [("w", STORED["fc.weight"]), ("in_proj.bias", bias), *ends]
    assert trained(onnx_model(nodes, [("x", 1, [4, 4])], [("y", 1, [4, 4])], stored)) == {"w", "in_proj.bias"}


@pytest.mark.parametrize("kind", ["Add", "Mul"])
@pytest.mark.parametrize("first", [False, True])
def test_a_vector_with_axes_behind_it_is_a_weight_whichever_operand_it_is(kind, first):
    """As the scale of channels in ``self.weight[:, None, None] * x``, a norm of images or a layer's scale."""
    operands = ["seen", "x"] if first else ["x", "seen"]
    nodes = [
        node("Unsqueeze", ["norm.weight", "axis"], ["column"]),
        node("Unsqueeze", ["column", "next"], ["seen"]),
        node(kind, operands, ["y"]),
    ]
    scale = RANDOM.standard_normal(4).astype(np.float32)
    stored = [("norm.weight", scale), ("axis", np.array([1])), ("next", np.array([2]))]
    proto = onnx_model(nodes, [("x", 1, [2, 4, 3, 3])], [("y", 1, [2, 4, 3, 3])], stored)
    assert trained(proto) == {"norm.weight"}
