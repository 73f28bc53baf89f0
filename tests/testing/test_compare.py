"""``compare`` finds the node that is wrong, and no other, and writes it as a model of its own."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow import ops
from dataflow.cli import main as cli
from dataflow.plugin import Kernel, OperandSpec, PythonDevice, registry
from dataflow.plugin.registry import load
from dataflow.testing.compare import compare, write_reproducer
from tests.importers.peer_weights import saturates
from tests.models.data import probes
from tests.support import TESTS, DevicePlugin, graph_of, onnx_model, refusal

ANY = OperandSpec(strided=True)


class Wrong(PythonDevice):
    """A device whose only kernel adds a thousandth of the largest element to one."""

    name = "wrong"

    def __init__(self, op, code, operands):
        self.op, self.code, self.operands = op, code, operands

    def kernels(self):
        return [Kernel(self.op, f"wrong {self.op}", (ANY,) * self.operands, (ANY,), self.wrong)]

    def wrong(self, attributes, *operands):
        y = self.code(*operands)
        y.flat[-1] += 1e-3 * np.abs(y).max()
        return y


def wrong(op, code, operands=1):
    return load([DevicePlugin(Wrong(op, code, operands))])


TANH = wrong("tanh", np.tanh)


def chain(*names):
    """An ONNX file's model: unary operators, one after the other."""
    values = ["x", *(f"v{i}" for i in range(1, len(names))), "y"]
    nodes = [
        helper.make_node(n, [a], [b], name=f"node{i}")
        for i, (n, a, b) in enumerate(zip(names, values[:-1], values[1:], strict=True))
    ]
    return onnx_model(nodes, [("x", TensorProto.FLOAT, ["n", 5])], opset=17, ir_version=8)


def loaded(tmp_path, model):
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return df.load(str(path))


def test_what_is_not_on_the_device_is_said_once(tmp_path, caplog):
    model = loaded(tmp_path, chain("Exp", "Sin", "Tanh", "Cos"))
    compare(model, {"x": np.ones((2, 5), np.float32)}, ["wrong"], reference="numpy", registry=TANH)
    (text,) = (record.getMessage() for record in caplog.records)
    assert "of the work runs on" in text


X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


@pytest.mark.parametrize("reference", ["numpy", "onnxruntime"])
@pytest.mark.parametrize("family", ["bert", "branch"])
def test_families_agree_with_both_references(family, reference):
    model = df.load(str(TESTS / f"models/{family}.onnx"))
    found = compare(model, probes(family)[0], "cpu", reference=reference)
    assert not found.differences
    assert found.compared > 3
    assert found.outputs.keys() == {"y"}
    assert found.outputs["y"] < 1e-5


@pytest.mark.parametrize("reference", ["numpy", "onnxruntime"])
def test_a_wrong_kernel_is_found_where_it_runs_and_nowhere_behind(tmp_path, reference):
    model = loaded(tmp_path, chain("Sigmoid", "Tanh", "Exp", "Tanh", "Neg"))
    found = compare(model, X, ["wrong", "cpu"], reference=reference, registry=TANH)
    assert [d.value for d in found.differences] == ["v2", "v4"]
    assert "'node1'" in found.differences[0].node
    assert found.differences[0].error == pytest.approx(1e-3, rel=1e-2)
    assert "at [2, 4] " in found.differences[0].text
    assert "1 of 15 elements differ" in found.differences[0].text
    assert found.worst in found.differences
    assert found.compared == 5
    assert found.outputs["y"] > 1e-4


def test_the_reproducer_is_the_files_own_node(tmp_path):
    model = loaded(tmp_path, chain("Sigmoid", "Tanh", "Exp"))
    found = compare(model, X, ["wrong", "cpu"], registry=TANH)
    target = tmp_path / "one.onnx"
    write_reproducer(model, found.differences[0], str(target))
    (node,) = onnx.load(target).graph.node
    assert (node.op_type, node.name) == ("Tanh", "node1")
    with np.load(tmp_path / "one.npz") as file:
        given = dict(file)
    assert given.keys() == {"v1"}
    (right,) = onnxruntime.InferenceSession(target).run(None, given)
    np.testing.assert_allclose(right, np.tanh(1 / (1 + np.exp(-X))), rtol=1e-5)
    assert "exists already" in refusal(df.InputError, write_reproducer, model, found.differences[0], str(target))


def test_a_reference_that_saturates_is_called_so(tmp_path):
    node = helper.make_node("MatMulInteger", ["x", "b"], ["y"])
    inputs, results = [("x", TensorProto.UINT8, [2, 8])], [("y", TensorProto.INT32, None)]
    model = loaded(tmp_path, onnx_model([node], inputs, results, [("b", np.full((8, 3), 3, np.int8))]))
    found = compare(model, np.full((2, 8), 9, np.uint8), ["cpu"])
    assert not found.differences
    assert ("saturate" in found.reference) == saturates()


def test_a_model_built_by_hand_has_a_reproducer_too(tmp_path):
    graph, feeds = graph_of(lambda g, x: ops.tanh(ops.exp(x)), X)
    model = df.Model(graph)
    found = compare(model, feeds, ["wrong", "cpu"], reference="numpy", registry=TANH)
    write_reproducer(model, found.differences[0], str(tmp_path / "one.onnx"))
    assert onnx.load(tmp_path / "one.onnx").graph.node[0].op_type == "Tanh"
    assert "comes from no file" in refusal(df.InputError, compare, model, feeds)


def test_gradients_are_compared_node_by_node(tmp_path):
    model = loaded(tmp_path, chain("Relu", "Tanh", "Exp"))
    bad = wrong("relu_grad", lambda dy, y: np.where(y > 0, dy, 0), operands=2)
    found = compare(model, X, ["wrong", "cpu"], reference="numpy", training=True, registry=bad)
    (only,) = found.differences
    assert "grad.x" in found.outputs
    write_reproducer(model, only, str(tmp_path / "one.onnx"))
    assert df.load(str(tmp_path / "one.onnx")).graph.nodes
    with np.load(tmp_path / "one.npz") as file:
        assert len(file.files) >= 2
    assert "no gradients" in refusal(df.InputError, compare, model, X, training=True)


def test_inputs_are_kept_where_no_reproducer_can_be_written(tmp_path):
    g = df.GraphBuilder()
    g.output("y", df.ops.cofactor(g.input("x", df.float32, (2, 2))))
    model = df.Model(g.build())
    bad = wrong("cofactor", lambda x: np.array([[x[1, 1], -x[1, 0]], [-x[0, 1], x[0, 0]]]))
    x = {"x": np.array([[1, 2], [3, 4]], np.float32)}
    (only,) = compare(model, x, ["wrong", "cpu"], reference="numpy", registry=bad).differences
    with pytest.raises(df.ModelError, match="no ONNX form"):
        write_reproducer(model, only, str(tmp_path / "one.onnx"))
    with np.load(tmp_path / "one.npz") as file:
        np.testing.assert_array_equal(file["x"], x["x"])


def test_shapes_that_depend_on_data_are_compared_in_one_run(tmp_path):
    nodes = [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Transpose", ["found"], ["y"])]
    model = loaded(tmp_path, onnx_model(nodes, [("x", TensorProto.FLOAT, [3, 5])], [("y", TensorProto.INT64, None)]))
    found = compare(model, X, "cpu")
    assert found.outputs == {"y": 0.0}
    assert not found.differences


@pytest.mark.parametrize("reference", ["numpy", "onnxruntime"])
def test_a_model_that_is_made_for_some_sizes_alone_is_compared_node_by_node(tmp_path, reference):
    crop = helper.make_node("CenterCropPad", ["h", "four"], ["y"], axes=[2])
    nodes = [helper.make_node("Sigmoid", ["x"], ["h"]), crop]
    outputs, stored = [("y", TensorProto.FLOAT, None)], [("four", np.array([4]))]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, [1, 2, "size"])], outputs, stored, opset=18)
    model = loaded(tmp_path, proto)
    assert model.graph.nodes[-1].op.name == "deferred"
    found = compare(model, {"x": np.ones((1, 2, 5), "f4")}, "cpu", reference=reference)
    assert found.compared == 2
    assert not found.differences


def test_the_command_says_what_differs_and_exits_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "default_registry", lambda: TANH)
    onnx.save(chain("Exp", "Tanh"), tmp_path / "model.onnx")
    target = tmp_path / "one.onnx"
    codes = []
    for arguments in (["--device", "wrong", "--device", "cpu", "-o", str(target)], ["--device", "cpu", "--json"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["compare", str(tmp_path / "model.onnx"), "--shape", "x=3,5", *arguments])
        codes.append(stopped.value.code)
    assert codes == [1, 0]
    text = capsys.readouterr().out
    assert "2 values compared with onnxruntime" in text
    assert "first: Tanh 'node1'" in text
    assert '"differ": 0' in text
    assert target.exists()


def test_a_subgraph_of_a_file_needs_only_what_it_reads(tmp_path):
    model = loaded(tmp_path, chain("Sigmoid", "Tanh", "Exp", "Neg"))
    found = str(tmp_path / "subgraph.onnx")
    df.save(model, found, inputs={"v1": model.inputs["x"]}, outputs=["v3", "v2"])
    kept = df.load(found)
    assert list(kept.inputs) == ["v1"]
    assert list(kept.outputs) == ["v3", "v2"]
    np.testing.assert_allclose(df.Session(kept, "cpu").run(X)["v3"], np.exp(np.tanh(X)), rtol=1e-5)
    df.save(model, found, outputs="all", overwrite=True)
    assert list(df.load(found).outputs) == ["v1", "v2", "v3", "y"]
    assert "no value 'z'" in refusal(df.InputError, df.save, model, found, outputs=["z"], overwrite=True)
    graph, _ = graph_of(lambda g, x: ops.exp(x), X)
    assert "built by hand" in refusal(df.InputError, df.save, df.Model(graph), str(tmp_path / "b.onnx"), outputs="all")


def test_a_subgraph_keeps_what_bodies_read_of_the_graph_around_them(tmp_path):
    model = df.load(str(TESTS / "models/branch.onnx"))
    df.save(model, str(tmp_path / "subgraph.onnx"), outputs=["y"])
    found = df.load(str(tmp_path / "subgraph.onnx"))
    for probe in probes("branch"):
        np.testing.assert_array_equal(
            df.Session(found, "cpu").run(probe)["y"], df.Session(model, "cpu").run(probe)["y"]
        )
