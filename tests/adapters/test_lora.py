"""Adapters against what PEFT recorded, their files, and what they must refuse."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow import ops
from dataflow.adapters.merge import can_merge

RECORDINGS = Path(__file__).parents[1] / "recordings"
FILES = ("adapters", "adapters_script")
TARGETS = ["embed", "q", "v", "out", "conv"]
VARIANTS = {
    "lora": {"rank": 2, "alpha": 4},
    "rslora": {"rank": 3, "alpha": 2, "rank_stabilized": True},
    "dora": {"rank": 2, "alpha": 4, "dora": True},
}


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDINGS / "adapters.npz") as file:
        return dict(file)


def load(file="adapters"):
    return df.load(str(RECORDINGS / f"{file}.onnx"))


def started(recorded, file, variant):
    """The model with the adapters that PEFT began with."""
    model = df.lora(load(file), targets=TARGETS, **VARIANTS[variant])
    first = f"{variant}/first/"
    names = {name.removeprefix(first) for name in recorded if name.startswith(first)}
    assert names == {name for adapter in model.adapters for name in adapter.tensors}
    for name in names:
        model.parameters[name].set(recorded[first + name])
    return model


def trained(model, recorded, steps=20, **options):
    """The losses of the recorded steps."""
    batch = {"words": recorded["words"], "labels": recorded["labels"]}
    with df.Trainer(model, optimizer=df.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.0), **options) as trainer:
        return [trainer.step(batch) for _ in range(steps)]


def twice(recorded):
    """Two batches of the size that the files have."""
    return {name: np.concatenate([recorded[name]] * 2) for name in ("words", "labels")}


def results(model, recorded):
    (found,) = model({"words": recorded["words"]}).values()
    return found


def in_runtime(path, recorded):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"words": recorded["words"]})[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("file", FILES)
def test_twenty_steps_follow_peft(recorded, file, variant):
    model = started(recorded, file, variant)
    np.testing.assert_allclose(trained(model, recorded), recorded[f"{variant}/losses"], rtol=2e-5)
    merged = df.merge_lora(model)
    weights = {adapter.path: adapter for adapter in model.adapters}
    for name in recorded:
        if name.startswith(f"{variant}/merged/"):
            path = name.rpartition("/")[2]
            found = merged.parameters[weights[path].weight].array
            found = found.T if weights[path].kind == "linear" else found
            np.testing.assert_allclose(found, recorded[name], atol=2e-5)
    np.testing.assert_allclose(results(merged, recorded), results(model, recorded), atol=2e-5)
    np.testing.assert_array_equal(results(df.unmerge_lora(merged), recorded), results(model, recorded))


@pytest.mark.parametrize("file", FILES)
def test_a_folder_of_pefts_is_loaded(recorded, file):
    model = df.load_adapters(load(file), RECORDINGS / "adapters_peft")
    assert {adapter.scale for adapter in model.adapters} == {1.5, 2.5}
    np.testing.assert_allclose(results(model, recorded), recorded["peft/results"], atol=1e-5)
    assert {n for n, p in model.parameters.items() if p.trainable and "lora" not in n} == {"head.weight", "head.bias"}


@pytest.mark.parametrize("options", [{}, {"dora": True}, {"rank_stabilized": True, "also": ["head.*"], "dropout": 0.1}])
@pytest.mark.parametrize("file", FILES)
def test_all_three_forms_of_saving_hold_the_same_model(recorded, tmp_path, file, options):
    model = df.lora(load(file), rank=2, targets=TARGETS, **options)
    trained(model, recorded, 3)
    expected = results(model, recorded)
    nodes, merged, folder = tmp_path / "nodes.onnx", tmp_path / "merged.onnx", tmp_path / "adapters"
    df.save(model, str(nodes))
    df.save(df.merge_lora(model), str(merged))
    df.save_adapters(model, folder)
    onnx.checker.check_model(str(nodes), full_check=True)
    for path in (nodes, merged):
        np.testing.assert_allclose(in_runtime(path, recorded), expected, atol=1e-5)
        np.testing.assert_allclose(results(df.load(str(path)), recorded), expected, atol=1e-5)
    again = df.load_adapters(load(file), folder)
    np.testing.assert_array_equal(results(again, recorded), expected)
    df.save_adapters(again, tmp_path / "again")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("file", FILES)
def test_a_saved_file_keeps_all_that_did_not_change(recorded, tmp_path, file):
    model = df.lora(load(file), rank=2, targets=["q"])
    trained(model, recorded, 2)
    before = onnx.load(str(RECORDINGS / f"{file}.onnx"))
    for name, made in (("nodes", model), ("merged", df.merge_lora(model))):
        df.save(made, str(tmp_path / f"{name}.onnx"))
    after, merged = (onnx.load(str(tmp_path / f"{name}.onnx")) for name in ("nodes", "merged"))
    stored = {t.name: t.SerializeToString() for t in after.graph.initializer}
    assert all(stored[t.name] == t.SerializeToString() for t in before.graph.initializer)
    kept = [node for node in after.graph.node if ".lora/" not in node.name]
    changed = [
        a for a, b in zip(before.graph.node, kept, strict=True) if a.SerializeToString() != b.SerializeToString()
    ]
    assert len(changed) == len(model.adapters)
    assert before.graph.output == after.graph.output
    assert before.graph.node == merged.graph.node
    weights = {adapter.weight for adapter in model.adapters}
    new = {t.name: t for t in merged.graph.initializer}
    assert {t.name for t in before.graph.initializer if t != new[t.name]} == weights


def test_metadata_stays(tmp_path):
    base = load()
    base.metadata["labels"] = "a,b,c"
    model = df.lora(df.dropout(df.quantize(base, 8, 16), 0.1, "head"), rank=1)
    df.save(model, str(tmp_path / "m.onnx"))
    assert df.load(str(tmp_path / "m.onnx")).metadata["labels"] == "a,b,c"
    assert df.merge_lora(df.lora(base, rank=1)).metadata == base.metadata


def test_attention_is_found_without_names(recorded):
    for file in FILES:
        model = df.lora(load(file))
        assert [adapter.path for adapter in model.adapters] == [f"layers.{i}.{name}" for i in (0, 1) for name in "qkv"]
        np.testing.assert_array_equal(results(model, recorded), results(load(file), recorded))


def test_only_adapters_have_gradients_and_moments(recorded, tmp_path):
    """Counted in the variables of the trainer, in its plan and in a checkpoint."""
    model = df.lora(load(), rank=1, targets=["q"])
    names = {name for adapter in model.adapters for name in adapter.tensors}
    with df.Trainer(model, optimizer="adamw", accumulate=2) as trainer:
        assert set(trainer.trainable) == names
        trainer.fit(twice(recorded), batch_size=6, checkpoint=tmp_path, progress=False)
    from safetensors.numpy import load_file

    (path,) = tmp_path.glob("*.safetensors")
    saved = load_file(path)
    adapters = sum(model.parameters[name].array.size for name in names)
    assert sum(array.size for name, array in saved.items() if array.dtype == np.float32) <= 4 * adapters + 8
    assert {name.rpartition("optimizer/")[2].partition("/")[2] or name for name in saved} >= names
    assert not any("head" in name or "val_" in name for name in saved)


def test_a_run_goes_on_from_a_checkpoint(recorded, tmp_path):
    data = twice(recorded)
    finals = []
    for epochs in ((4,), (2, 4)):
        for end in epochs:
            model = df.lora(load(), rank=2, dropout=0.2)
            with df.Trainer(model, dropout=True) as trainer:
                folder = tmp_path / str(len(epochs))
                trainer.fit(data, batch_size=6, epochs=end, checkpoint=folder, resume="auto", progress=False)
        finals.append(results(model, recorded))
    np.testing.assert_array_equal(*finals)


def shared(transposed):
    """A network that looks up rows of a table and multiplies by it or its transpose."""
    rng = np.random.default_rng(0)
    g = df.GraphBuilder("shared")
    words = g.input("words", df.int64, ("batch", 5))
    table = g.parameter("table", rng.normal(size=(9, 9)).astype(np.float32) / 9)
    x = df.ops.gather(table, words, axis=0)
    operand = df.ops.transpose(table, perm=(1, 0)) if transposed else table
    g.output("y", df.ops.reduce_mean(df.ops.matmul(df.ops.tanh(x), operand), axes=(1,), keepdims=False))
    return df.Model(g.build())


@pytest.mark.parametrize("transposed", [False, True])
def test_a_weight_that_two_nodes_read_has_one_adapter(recorded, transposed):
    model = df.lora(shared(transposed), rank=2, targets="table")
    (adapter,) = model.adapters
    assert adapter.kind == "embedding"
    before = results(model, recorded)
    trained(model, recorded, 5)
    assert abs(results(model, recorded) - before).max() > 1e-2
    np.testing.assert_allclose(results(df.merge_lora(model), recorded), results(model, recorded), rtol=2e-6, atol=2e-6)


def one_module(table):
    """Queries and keys whose weights have the name of one module, which a table's weight has besides."""
    rng = np.random.default_rng(0)
    g = df.GraphBuilder("g")
    x = ops.gather(g.parameter("out.weight", table), g.input("words", df.int64, ("batch", 5)), axis=0)
    q, k = (ops.matmul(x, g.parameter(f"val_{i}", rng.normal(size=(8, 8)).astype(np.float32) / 3)) for i in range(2))
    scores = ops.softmax(ops.matmul(q, ops.transpose(k, perm=(0, 2, 1))), axis=-1)
    y = ops.reduce_mean(ops.matmul(scores, x), axes=(1,), keepdims=False)
    g.output("y", ops.matmul(y, g.parameter("val_2", np.ascontiguousarray(table.T))))
    aliases = {f"val_{i}": ("attention.weight", "/attention/MatMul.weight") for i in range(2)}
    return df.Model(g.build(), aliases=aliases | {"out.weight": ("embed.weight",), "val_2": ("out.weight",)})


@pytest.mark.parametrize("dora", [False, True])
def test_layers_of_one_module_have_an_adapter_each(recorded, tmp_path, dora):
    base = one_module(np.random.default_rng(1).normal(size=(9, 8)).astype(np.float32))
    model = df.lora(base, rank=2, targets="*", dora=dora)
    paths = {adapter.weight: adapter.path for adapter in model.adapters}
    assert paths == {"out.weight": "embed", "val_0": "val_0", "val_1": "val_1", "val_2": "out"}
    assert len({name for adapter in model.adapters for name in adapter.tensors}) == (12 if dora else 8)
    trained(model, recorded, 5, tie=False)
    merged = df.merge_lora(model)
    np.testing.assert_allclose(results(merged, recorded), results(model, recorded), rtol=1e-5, atol=1e-5)
    df.save_adapters(model, tmp_path / "adapters")
    again = df.load_adapters(base, tmp_path / "adapters")
    assert np.array_equal(results(again, recorded), results(model, recorded))


def gemm(tmp_path, alpha, transposed, opset=17):
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(4, 6) if transposed else (6, 4)).astype(np.float32)
    stored = [onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(np.ones(4, np.float32), "b")]
    node = onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], "gemm", alpha=alpha, beta=0.5, transB=int(transposed))
    types = [onnx.helper.make_tensor_value_info(n, 1, ["batch", s]) for n, s in (("x", 6), ("y", 4))]
    graph = onnx.helper.make_graph([node], "gemm", types[:1], types[1:], stored)
    path = tmp_path / "gemm.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8), path)
    return str(path)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("dora", [False, True])
def test_a_product_with_factors(tmp_path, alpha, transposed, dora):
    model = df.lora(df.load(gemm(tmp_path, alpha, transposed)), rank=2, targets="w", dora=dora)
    rng = np.random.default_rng(2)
    for name in model.adapters[0].tensors:
        old = model.parameters[name].array
        model.parameters[name].set(old + rng.normal(size=old.shape).astype(np.float32))
    x = rng.normal(size=(3, 6)).astype(np.float32)
    expected = model({"x": x})["y"]
    np.testing.assert_allclose(df.merge_lora(model)({"x": x})["y"], expected, rtol=1e-5, atol=1e-5)
    target = tmp_path / "nodes.onnx"
    if alpha != 1.0 or dora:  # the product without its factor, or its scaled bias, is no value of the file
        with pytest.raises(df.ModelError, match="save the model merged"):
            df.save(model, str(target))
    else:
        df.save(model, str(target))
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)


def test_an_old_file_gets_nodes_that_its_opset_has(tmp_path):
    path = gemm(tmp_path, 1.0, True, opset=9)
    df.save(df.lora(df.load(path), targets="w"), str(tmp_path / "plain.onnx"))
    onnxruntime.InferenceSession(str(tmp_path / "plain.onnx"), providers=["CPUExecutionProvider"])
    with pytest.raises(df.ModelError, match="opset 9"):
        df.save(df.lora(df.load(path), targets="w", dora=True), str(tmp_path / "dora.onnx"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": -1}, "alpha"),
        ({"dropout": 1.0}, "dropout"),
        ({"dora": 1}, "dora"),
        ({"targets": "*.query"}, "matches no layer.*candidates: 'embed'"),
        ({"targets": ["q", "!*"]}, "leave no layer"),
        ({"targets": "conv", "also": ["conv.weight"]}, "has an adapter"),
        ({"also": ["nothing"]}, "matches no parameter"),
    ],
)
def test_what_does_not_fit_is_refused(options, text):
    with pytest.raises(df.InputError, match=text):
        df.lora(load(), **options)


def test_a_model_without_attention_lists_candidates(tmp_path):
    with pytest.raises(df.InputError, match=r"no attention was found.*'gemm'"):
        df.lora(df.load(gemm(tmp_path, 1.0, True)))


def test_adapters_on_adapters_and_changes_of_merged_weights_are_refused():
    model = df.lora(load(), rank=1)
    with pytest.raises(df.InputError, match="merge them first"):
        df.lora(model)
    with pytest.raises(df.InputError, match="has no adapters"):
        df.merge_lora(load())
    merged = df.merge_lora(model)
    merged.parameters["head.bias"].set(np.zeros(3, np.float32))
    with pytest.raises(df.InputError, match="have changed"):
        df.unmerge_lora(merged)


def damaged(tmp_path, change, file="adapter_config.json"):
    folder = tmp_path / "peft"
    folder.mkdir()
    for path in (RECORDINGS / "adapters_peft").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    path = folder / file
    if file.endswith("json"):
        settings = json.loads(path.read_text())
        path.write_text(json.dumps(settings | change))
    else:
        path.write_bytes(path.read_bytes()[:change])
    return folder


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"use_dora": True}, "expected.*magnitude"),
        ({"alpha_pattern": {"(a+)+$": 2}}, "regular expressions"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, change, text):
    with pytest.raises(df.InputError, match=text):
        df.load_adapters(load(), damaged(tmp_path, change))


def test_damaged_folders_are_refused(tmp_path):
    with pytest.raises(df.InputError, match="can't be read as adapters"):
        df.load_adapters(load(), damaged(tmp_path, 100, "adapter_model.safetensors"))
    with pytest.raises(df.InputError, match="can't be read as PEFT's settings"):
        df.load_adapters(load(), tmp_path)


def test_a_model_exported_from_within_another_module_gets_its_adapters(recorded, tmp_path):
    """The file's names begin with a module more than PEFT's."""
    proto = onnx.load(str(RECORDINGS / "adapters_script.onnx"))
    for node in proto.graph.node:
        node.name = node.name.replace("/", "/model/", 1)
        for index, name in enumerate(node.input):
            node.input[index] = f"model.{name}" if name.endswith((".weight", ".bias")) else name
    for tensor in proto.graph.initializer:
        tensor.name = f"model.{tensor.name}" if tensor.name.endswith((".weight", ".bias")) else tensor.name
    onnx.save(proto, tmp_path / "inner.onnx")
    model = df.load_adapters(df.load(str(tmp_path / "inner.onnx")), RECORDINGS / "adapters_peft")
    np.testing.assert_allclose(results(model, recorded), recorded["peft/results"], atol=1e-5)


def test_modules_within_containers_that_are_called_have_the_names_that_pytorch_gives_them():
    """PyTorch's exporter writes /layers/layers.0/fc/MatMul for the module layers.0.fc, and numbers its weight."""
    g = df.GraphBuilder("containers")
    h = g.input("x", df.float32, ("n", 4))
    aliases = {}
    for index, path in enumerate(("/layers/layers.0/fc", "/layers/layers.1/fc", "/head/head.2")):
        h = ops.matmul(h, g.parameter(f"onnx::MatMul_{index}", np.eye(4, dtype=np.float32) + index))
        scope = path.strip("/").replace("/", ".")
        aliases[f"onnx::MatMul_{index}"] = (f"{path}/MatMul.weight", f"{scope}.weight")
    g.output("y", h)
    model = df.lora(df.Model(g.build(), aliases=aliases), targets=["layers.0.fc", "fc", "head.2"])
    assert [adapter.path for adapter in model.adapters] == ["layers.0.fc", "layers.1.fc", "head.2"]


@pytest.mark.parametrize("how", ["added", "scaled", "returned", "multiplied"])
def test_a_weight_that_something_else_reads_too_is_not_merged(how):
    """It would change with the layer."""
    g = df.GraphBuilder("shared")
    x, w = g.input("x", df.float32, (4, 4)), g.parameter("w", np.eye(4, dtype=np.float32))
    y = ops.matmul(x, w)
    other = {
        "added": lambda: ops.add(x, w),
        "scaled": lambda: ops.matmul(x, ops.mul(w, 0.5)),
        "returned": lambda: ops.transpose(w, perm=(1, 0)),
        "multiplied": lambda: ops.matmul(w, x),
    }[how]
    g.output("y", y)
    g.output("other", other())
    base = df.Model(g.build())
    model = df.lora(base, targets="*")
    assert not can_merge(model)
    with pytest.raises(df.ModelError, match=r"other nodes read its weight 'w' too|computes its weight"):
        df.merge_lora(model)
    given = {"x": np.arange(16, dtype=np.float32).reshape(4, 4) / 16}
    if how == "scaled":  # one of its products has another weight: neither quantized nor with one magnitude
        with pytest.raises(df.InputError, match="no product with a stored float32 weight"):
            df.quantize(base, bits=8)
        with pytest.raises(df.ModelError, match="computes its weight"):
            df.lora(base, targets="*", dora=True)
    else:
        small = df.quantize(base, bits=8)
        np.testing.assert_allclose(small(given)["other"], base(given)["other"], atol=1e-6)


@pytest.mark.parametrize("dora", [False, True])
def test_rows_of_zeros_and_weights_without_elements_have_adapters(dora):
    g = df.GraphBuilder("zeros")
    x, w = g.input("x", df.float32, (2, 4)), np.eye(4, 5, dtype=np.float32)  # the last output is 0
    g.output("y", ops.matmul(x, g.parameter("w", w)))
    g.output("outer", ops.matmul(ops.reshape(x, shape=(8, 1)), g.constant(np.full((1, 1), 2, np.float32))))
    g.output("none", ops.matmul(ops.slice(x, starts=(0, 0), stops=(2, 0), steps=(1, 1)), g.parameter("empty", w[:0])))
    base = df.Model(g.build())
    given = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    model = df.lora(base, targets="*", dora=dora)
    merged = df.merge_lora(model)
    for found in (model(given), merged(given)):
        for name, array in base(given).items():
            np.testing.assert_allclose(found[name], array, atol=1e-6)


def test_layers_within_bodies_are_named_as_left_out(caplog):
    body = df.GraphBuilder("step")
    state, row = (body.input(name, df.float32, (4, 3)) for name in ("state", "row"))
    weight = body.input("weight", df.float32, (3, 3))
    body.output("state", df.ops.tanh(df.ops.add(df.ops.matmul(state, weight), row)))
    g = df.GraphBuilder("net")
    x, inner = g.input("x", df.float32, (5, 4, 3)), g.parameter("inner", np.eye(3, dtype=np.float32))
    start = g.input("start", df.float32, (4, 3))
    last, *_ = df.ops.scan(start, x, inner, n_carries=1, n_xs=1, bodies=(body.build(),))
    g.output("y", df.ops.matmul(last, g.parameter("head", np.ones((3, 2), np.float32))))
    with caplog.at_level("INFO", "dataflow"):
        adapted = df.lora(df.Model(g.build()), rank=2, targets="*")
    assert "stored matrices that they read: 1, first inner" in caplog.text
    assert any("head" in name and "lora" in name for name in adapted.parameters)


def recurrent(path, directions):
    """A file with an LSTM, whose matrices have an axis of directions, and a product."""
    random = np.random.default_rng(0)

    def stored(name, *shape):
        return onnx.numpy_helper.from_array(random.standard_normal(shape).astype(np.float32) / 2, name)

    nodes = [
        onnx.helper.make_node(
            "LSTM", ["x", "w", "r"], ["h"], hidden_size=4, direction="bidirectional" if directions == 2 else "forward"
        ),
        onnx.helper.make_node("ReduceMean", ["h"], ["m"], axes=[0, 1], keepdims=0),
        onnx.helper.make_node("MatMul", ["m", "f"], ["y"]),
    ]
    f32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", f32, [5, "b", 3])],
        [onnx.helper.make_tensor_value_info("y", f32, ["b", 2])],
        [stored("w", directions, 16, 3), stored("r", directions, 16, 4), stored("f", 4, 2)],
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return df.load(path)


@pytest.mark.parametrize("dora", [False, True])
def test_the_input_matrix_of_a_recurrent_layer_has_an_adapter_that_merges(tmp_path, dora):
    """It is stored with an axis of one direction, and the file's node reads it so."""
    model = df.lora(recurrent(str(tmp_path / "m.onnx"), 1), rank=2, targets="*", dora=dora)
    assert {adapter.weight for adapter in model.adapters} == {"w", "f"}
    x = np.random.default_rng(1).standard_normal((5, 6, 3)).astype(np.float32)
    with df.Trainer(model, optimizer=df.optim.SGD(lr=0.5)) as trainer:
        for _ in range(5):
            trainer.step({"x": x, "labels": np.arange(6) % 2})
    expected = model({"x": x})["y"]
    merged = df.merge_lora(model)
    assert merged.arrays()["w"].shape == (1, 16, 3)
    np.testing.assert_allclose(merged({"x": x})["y"], expected, atol=1e-5)
    df.save(merged, str(tmp_path / "merged.onnx"))
    saved = onnxruntime.InferenceSession(str(tmp_path / "merged.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(saved, expected, atol=1e-5)


def test_slices_of_a_stored_tensor_have_no_adapter(tmp_path):
    """Those of the directions of a recurrent layer, or of layers in one tensor, are other matrices."""
    model = recurrent(str(tmp_path / "m.onnx"), 2)
    assert [adapter.weight for adapter in df.lora(model, targets="*").adapters] == ["f"]
    with pytest.raises(df.InputError, match=r"'w' is the stored tensor 'w', which no product.* reads as one matrix"):
        df.lora(model, targets="w")
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("b", 3)), g.parameter("w", np.ones((2, 3, 3), np.float32))
    for index in range(2):
        x = ops.matmul(x, w[index])
    g.output("y", ops.matmul(x, g.parameter("f", np.ones((3, 2), np.float32))))
    assert [adapter.weight for adapter in df.lora(df.Model(g.build()), targets="*").adapters] == ["f"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_weight_divided_by_its_norm_has_an_adapter(swapped):
    """It is computed of the weight and of what is smaller, in either order."""
    g = df.GraphBuilder()
    x, v, gain = (
        g.input("x", df.float32, ("b", 4)),
        g.parameter("v", np.ones((4, 3), np.float32)),
        np.ones(3, np.float32),
    )
    factor = ops.div(g.parameter("g", gain), ops.sqrt(ops.reduce_sum(ops.mul(v, v), axes=(0,), keepdims=False)))
    g.output("y", ops.matmul(x, ops.mul(factor, v) if swapped else ops.mul(v, factor)))
    assert [adapter.weight for adapter in df.lora(df.Model(g.build()), targets="v").adapters] == ["v"]


def test_magnitudes_of_a_vector_that_is_read_as_a_column(tmp_path):
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("b", 4)), g.parameter("w", np.arange(1, 5, dtype=np.float32).reshape(1, 4))
    g.output("y", ops.matmul(x, ops.reshape(w, shape=(4, 1))))
    model = df.lora(df.Model(g.build()), rank=2, targets="w", dora=True)
    given = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    np.testing.assert_allclose(model(given)["y"], given["x"] @ [[1], [2], [3], [4]], rtol=1e-5)
    np.testing.assert_allclose(df.merge_lora(model)(given)["y"], model(given)["y"], rtol=1e-5)


@pytest.mark.parametrize("use", [df.merge_lora, lambda model: df.save_adapters(model, "unused")])
def test_an_edited_model_says_that_edits_come_first(use):
    model = df.lora(load(), targets=TARGETS)
    with pytest.raises(df.InputError, match="edits of a model, such as with_outputs, come before"):
        use(model.with_outputs(list(model.outputs)))
