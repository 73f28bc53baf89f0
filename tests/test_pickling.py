"""Models in pickles and copies: they compute the same, elsewhere too, and lose nothing."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.ir import pickled_ops
from dataflow.plugin import Op
from tests.models import data as made

FILES = Path(__file__).parent
ops = df.ops
RANDOM = np.random.default_rng(6)


def again(model):
    return pickle.loads(pickle.dumps(model))


def alike(model, twin, feeds, **options):
    """Asserts that both give the same for all feeds."""
    sessions = [df.Session(one, ["cpu", "numpy"], **options) for one in (model, twin)]
    for given in feeds:
        first, second = (session.run(given) for session in sessions)
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name], err_msg=name)


def by_hand():
    """Named sizes, expressions of them, and stored tensors of several dtypes."""
    g = df.GraphBuilder("by hand")
    x = g.input("x", df.float32, ("batch", "steps", 4))
    y = ops.tanh(df.nn.linear(g, x, 3, seed=2)) * g.constant(np.float32([1, 2, 3]))
    half = x.shape[1] // 2
    g.output("first", y[:, :half].reshape(x.shape[0], half * 3))
    narrow = g.constant(np.arange(3).astype(df.bfloat16.numpy), "narrow")
    g.output("narrow", ops.cast(narrow, to=df.float32) + y)
    g.output("text", g.constant(np.array(["a", "ß"], object), "text"))
    g.output("small", ops.cast(g.constant(np.arange(-3, 4).astype(df.int4.numpy), "small"), to=df.int32))
    return df.Model(g.build(), metadata={"who": "we"})


def sequences(sizes):
    return [{"x": RANDOM.standard_normal((2, n, 4)).astype(np.float32)} for n in sizes]


def test_a_model_by_hand_with_named_sizes_and_all_kinds_of_constants():
    model = by_hand()
    for twin in (again(model), copy.deepcopy(model), again(again(model))):
        alike(model, twin, sequences([2, 5]))
        assert twin.metadata == {"who": "we"} and twin.inputs == model.inputs and str(twin.graph) == str(model.graph)
        assert [p.trainable for p in twin.parameters.values()] == [p.trainable for p in model.parameters.values()]
        with pytest.raises(ValueError, match="read-only"):
            next(iter(twin.graph.initializers.values())).array[...] = 0


def test_a_trained_model_is_sent_as_it_is_now_and_trained_on():
    g = df.GraphBuilder()
    g.output("y", df.nn.linear(g, g.input("x", df.float32, ("n", 4)), 2))
    model = df.Model(g.build())
    x = RANDOM.standard_normal((16, 4)).astype(np.float32)
    data = {"x": x, "labels": x @ RANDOM.standard_normal((4, 2)).astype(np.float32)}
    before = again(model)
    with df.Trainer(model, "mse", "adamw", devices=["cpu"]) as trainer:
        trainer.fit(data, epochs=2, progress=False)
        while_trained = again(model)
        with pytest.raises(df.InputError, match=r"Trainer can't be pickled.*send its model"):
            pickle.dumps(trainer)
    alike(model, while_trained, [{"x": x}])
    alike(model, again(model), [{"x": x}])
    assert not np.array_equal(before.parameters["linear/weight"].array, model.parameters["linear/weight"].array)
    twins = [again(model), model.copy()]
    for twin in twins:
        with df.Trainer(twin, "mse", "adamw", devices=["cpu"], threads=1) as trainer:
            trainer.fit(data, epochs=2, progress=False)
    alike(*twins, [{"x": x}])
    twins[0].parameters["linear/bias"].set(np.zeros(2, np.float32))
    assert model.parameters["linear/bias"].array.any()


@pytest.mark.parametrize("file", ["branch", "branch_script", "recurrence", "recurrence_script", "gpt", "mobile"])
def test_files_with_control_flow_and_open_sizes(file, tmp_path):
    """Against outputs that PyTorch computed in float64, too."""
    family = file.removesuffix("_script")
    model = df.load(FILES / f"models/{file}.onnx")
    twin = again(model)
    probes = made.probes(family)
    alike(model, twin, probes)
    with np.load(FILES / f"models/{family}.npz") as exact:
        for index, probe in enumerate(probes):
            (found,) = df.Session(twin, ["cpu"]).run(probe).values()
            np.testing.assert_allclose(found, exact[f"outputs{index}"], rtol=1e-3, atol=1e-4)
    assert {n: p.aliases for n, p in twin.parameters.items()} == {n: p.aliases for n, p in model.parameters.items()}
    for one, name in ((model, "model"), (twin, "twin")):
        df.save(one, tmp_path / f"{name}.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == (tmp_path / "twin.onnx").read_bytes()


def test_adapters_of_a_file_whose_sizes_are_open():
    model = df.lora(df.load(FILES / "models/gpt.onnx"), rank=2)
    name = next(n for n, p in model.parameters.items() if p.trainable)
    model.parameters[name].set(RANDOM.standard_normal(model.parameters[name].type.sizes).astype(np.float32))
    twin = again(model)
    alike(model, twin, made.probes("gpt"))
    alike(df.merge_lora(model), df.merge_lora(twin), made.probes("gpt"))
    alike(df.merge_lora(model), again(df.merge_lora(model)), made.probes("gpt"))


def test_graphs_of_gradients_and_plans_of_fused_nodes():
    """Graphs as passes make them: nodes that keep something for backward, and the bodies of fused ones."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3, 4))
    g.output(
        "y",
        ops.reduce_sum(
            ops.max_pool(ops.exp(x).reshape(1, 1, 3, 4), kernel=(2, 2), strides=(1, 1)),
            axes=(0, 1, 2, 3),
            keepdims=False,
        ),
    )
    graph = df.value_and_grad(g.build())
    feeds = {"x": RANDOM.standard_normal((3, 4)).astype(np.float32)}
    alike(df.Model(graph), df.Model(again(graph)), [feeds])
    body = df.GraphBuilder()
    a = body.input("a", df.float32, (3, 4))
    body.output("b", ops.sigmoid(a) * a)
    g = df.GraphBuilder()
    x, go = g.input("x", df.float32, (3, 4)), g.input("go", df.bool_, ())
    other = df.GraphBuilder()
    other.output("b", ops.neg(other.input("a", df.float32, (3, 4))))
    (y,) = ops.if_(go, x, bodies=(body.build(), other.build()))
    g.output("y", y)
    model = df.Model(g.build())
    alike(model, again(model), [feeds | {"go": np.array(go)} for go in (True, False)])


def test_ops_of_plugins_are_found_by_name_and_others_refused(monkeypatch):
    op = Op("halved", ("x",), lambda x: x, decompose=lambda x: ops.mul(x, 0.5))
    g = df.GraphBuilder()
    g.output("y", op(g.input("x", df.float32, (3,))))
    model = df.Model(g.build())
    with pytest.raises(df.InputError, match=r"op 'halved' can't be pickled: no installed plugin offers it"):
        pickle.dumps(model)
    assert copy.deepcopy(op) is copy.copy(op) is op and copy.deepcopy(model).graph is model.graph
    with monkeypatch.context() as patched:
        known = {**pickled_ops._ops(), "halved": op}
        patched.setattr(pickled_ops, "_ops", lambda: known)
        data = pickle.dumps(model)
        twin = pickle.loads(data)
        assert twin.graph.nodes[0].op is op
    alike(model, twin, [{"x": np.float32([1, 2, 3])}])
    with pytest.raises(df.PluginError, match=r"node of op 'halved', which no plugin offers; install the one that does"):
        pickle.loads(data)


def test_another_process_computes_the_same(tmp_path):
    model = by_hand()
    (feeds,) = sequences([4])
    (tmp_path / "sent").write_bytes(pickle.dumps((model, feeds)))
    code = (
        "import pickle, sys; from pathlib import Path; import numpy as np; folder = Path(sys.argv[1]); "
        "model, feeds = pickle.loads((folder / 'sent').read_bytes()); "
        "(folder / 'back').write_bytes(pickle.dumps(model(feeds, devices=['cpu', 'numpy'])))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    expected = model(feeds, devices=["cpu", "numpy"])
    found = pickle.loads((tmp_path / "back").read_bytes())
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_session_says_what_to_send():
    session = df.Session(by_hand(), ["cpu", "numpy"])
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(df.InputError, match=r"a Session can't be pickled or copied.*send its model, session.model"):
            use(session)


def test_numbers_that_a_converter_stores_are_no_parameters_of_a_pickle_either(tmp_path):
    scaled = helper.make_node("Scaler", ["x"], ["h"], domain="ai.onnx.ml", offset=[1.0, 2.0], scale=[0.5, 3.0])
    weight = numpy_helper.from_array(RANDOM.standard_normal((2, 3)).astype(np.float32), "w")
    types = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 2), ("y", 3))]
    nodes = [scaled, helper.make_node("MatMul", ["h", "w"], ["y"])]
    graph = helper.make_graph(nodes, "scaled", types[:1], types[1:], [weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "scaled.onnx")
    model = df.load(str(tmp_path / "scaled.onnx"))
    assert list(model.parameters) == list(again(model).parameters) == ["w"]
