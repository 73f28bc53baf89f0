"""Weights of 4 and 8 bits in blocks: what they stand for, their files, and adapters beside them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.kernel import Targets
from dataflow.passes.quantized.integers import expand_blocks
from dataflow.quantization.blocks import in_blocks

RECORDINGS = Path(__file__).parents[1] / "recordings"
WORDS = {"words": np.random.default_rng(0).integers(0, 9, (6, 5))}
LABELS = {"labels": np.arange(6) % 3}


def load(file="adapters"):
    return df.load(str(RECORDINGS / f"{file}.onnx"))


def results(model):
    (found,) = model(WORDS).values()
    return found


def in_runtime(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, WORDS)[0]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_elements_are_the_nearest_steps(bits, symmetric):
    """No element is further from its step than half of one; beyond the last, where the range isn't even, one."""
    weight = np.random.default_rng(1).normal(size=(7, 40)).astype(np.float32)
    weight[2] = 0.0
    weight[3, :16] = 3.0
    blocks, scales, zeros = in_blocks("w", weight, bits, 16, symmetric)
    low = blocks & 15 if bits == 4 else blocks
    elements = np.stack([low, blocks >> 4], -1).reshape(7, 3, 16) if bits == 4 else low
    origin = np.full((7, 3), 1 << (bits - 1))
    if zeros is not None:
        origin = np.stack([zeros & 15, zeros >> 4], -1).reshape(7, 4)[:, :3] if bits == 4 else zeros
    found = ((elements.astype(np.float64) - origin[..., None]) * scales[..., None]).reshape(7, 48)[:, :40]
    step = np.repeat(np.abs(scales), 16, 1)[:, :40]
    assert (np.abs(found - weight) <= (1.0 if symmetric else 0.51) * step * (1 + 1e-5)).all()
    assert (np.abs(found - weight) <= 0.5001 * step).mean() > (0.9 if symmetric else 0.97)
    np.testing.assert_array_equal(found[2], 0.0)


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True)])
@pytest.mark.parametrize("file", ["adapters", "adapters_script"])
def test_a_saved_model_runs_in_onnxruntime_with_the_same_results(tmp_path, file, bits, symmetric):
    model = df.quantize(load(file), bits, 16, symmetric=symmetric)
    np.testing.assert_allclose(results(model), results(load(file)), atol=0.1 if bits == 4 else 0.01)
    path = tmp_path / "quantized.onnx"
    df.save(model, str(path))
    np.testing.assert_allclose(in_runtime(path), results(model), atol=1e-6)
    np.testing.assert_array_equal(results(df.load(str(path))), results(model))
    proto = onnx.load(str(path))
    assert sum(n.op_type == "MatMulNBits" for n in proto.graph.node) == 9
    before = {t.name: t for t in onnx.load(str(RECORDINGS / f"{file}.onnx")).graph.initializer}
    kept = [t for t in proto.graph.initializer if t.name in before]
    assert all(before[t.name] == t for t in kept)
    assert len(before) - len(kept) == 9  # the float weights are gone


def test_adapters_train_on_a_quantized_base(tmp_path):
    """As on a base of floats with the values that the blocks stand for."""
    model = df.quantize(load(), 4, 16)
    stood = load()
    for name, parameter in stood.parameters.items():
        if f"{name}.blocks" in model.arrays():
            weight = parameter.array
            transposed = name == "head.weight"
            rows = weight if transposed else weight.T
            blocks, scales, _ = in_blocks(name, rows, 4, 16, True)
            elements = np.stack([blocks & 15, blocks >> 4], -1).reshape(len(rows), -1, 16).astype(np.float32)
            found = ((elements - 8) * scales[..., None]).reshape(len(rows), -1)[:, : rows.shape[1]]
            parameter.set(found if transposed else found.T)
    losses = []
    for base in (model, stood):
        made = df.lora(base, rank=2, targets=["q", "v", "head"], seed=3)
        with df.Trainer(made, optimizer=df.optim.SGD(lr=0.1)) as trainer:
            losses.append([trainer.step({**WORDS, **LABELS}) for _ in range(10)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
    made = df.lora(model, rank=2, targets=["q"])
    with pytest.raises(df.ModelError, match="computes its weight"):
        df.merge_lora(made)
    df.save(made, str(tmp_path / "nodes.onnx"))
    np.testing.assert_allclose(in_runtime(tmp_path / "nodes.onnx"), results(made), atol=1e-6)
    df.save_adapters(made, tmp_path / "adapters")
    np.testing.assert_array_equal(results(df.load_adapters(model, tmp_path / "adapters")), results(made))
    assert [adapter.path for adapter in made.adapters] == ["layers.0.q", "layers.1.q"]


def decoder(size=64, layers=2, words=96, length=16):
    rng = np.random.default_rng(0)
    g = df.GraphBuilder("decoder")

    def weight(name, *shape):
        return g.parameter(f"{name}.weight", (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))

    ids = g.input("ids", df.int64, ("batch", length))
    x = ops.gather(weight("embed", words, size), ids, axis=0)
    for i in range(layers):
        q, k, v = (ops.matmul(x, weight(f"layers.{i}.{name}", size, size)) for name in "qkv")
        scores = ops.softmax(ops.matmul(q, ops.transpose(k, perm=(0, 2, 1))), axis=-1)
        x = ops.add(x, ops.matmul(ops.matmul(scores, v), weight(f"layers.{i}.out", size, size)))
        up = ops.relu(ops.matmul(x, weight(f"layers.{i}.up", size, 4 * size)))
        x = ops.add(x, ops.matmul(up, weight(f"layers.{i}.down", 4 * size, size)))
    g.output("y", ops.matmul(x, weight("head", size, words)))
    return df.Model(g.build())


def test_a_step_has_no_floats_of_a_quantized_weight():
    """The plan of a step: weights in their bits, and the adapters alone with two moments."""
    base = decoder()
    model = df.lora(df.quantize(base, 4, 32), rank=2)
    adapters = sum(model.parameters[name].array.nbytes for adapter in model.adapters for name in adapter.tensors)
    quantized = sum(a.nbytes for name, a in model.arrays().items() if name.endswith((".blocks", ".scales")))
    floats = sum(p.array.nbytes for name, p in base.parameters.items() if name != "embed.weight")
    assert quantized < floats / 6
    with df.Trainer(model, optimizer="adamw") as trainer:
        zeros = np.zeros((2, 16), np.int64)
        trainer.step({"ids": zeros, "labels": zeros})
        plan = trainer.plans()["step"]
    embedding = base.parameters["embed.weight"].array.nbytes
    assert not plan.prepacks
    assert plan.memory["weights"] <= quantized + embedding + adapters + 8192  # aligned, with constants
    assert plan.memory["state"] <= 3 * adapters + 64 * 3 * len(trainer.trainable)
    largest = 4 * 2 * 16 * 4 * 64  # bytes of the widest activation
    assert plan.memory["arena"] < 12 * largest


def test_a_gemm_with_its_bias_inside_is_replaced(tmp_path):
    rng = np.random.default_rng(3)
    stored = [
        onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in (("w", (4, 40)), ("b", (4,)))
    ]
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w", "b"], ["h"], "fc", transB=1),
        onnx.helper.make_node("Relu", ["h"], ["y"], "act"),
    ]
    types = [onnx.helper.make_tensor_value_info(n, 1, ["batch", s]) for n, s in (("x", 40), ("y", 4))]
    graph = onnx.helper.make_graph(nodes, "g", types[:1], types[1:], stored)
    path = tmp_path / "gemm.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7), path)
    model = df.quantize(df.load(str(path)), 8, 16)
    df.save(model, str(tmp_path / "q.onnx"))
    proto = onnx.load(str(tmp_path / "q.onnx"))
    assert [n.op_type for n in proto.graph.node] == ["MatMulNBits", "Add", "Relu"]
    x = rng.normal(size=(3, 40)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], model({"x": x})["y"], rtol=1e-5, atol=1e-5)


def test_a_device_without_the_product_gets_floats_once():
    """They are folded when the plan is made, not computed in every run."""
    targets = Targets({"card": {}}, lambda node: ("card", "cpu"), lambda node: "")
    model = df.quantize(load(), 4, 16)
    expanded = expand_blocks(model.graph, targets)
    assert "matmul_blocks" not in [node.op.name for node in expanded.nodes]
    np.testing.assert_allclose(results(df.Model(expanded)), results(model), atol=1e-6)


def normalized(dtype=np.float32):
    """A layer norm between two products; gradients read what it computes beside its result."""
    rng = np.random.default_rng(0)
    g = df.GraphBuilder("g")
    x = ops.matmul(
        g.input("x", getattr(df, np.dtype(dtype).name), (6, 16)),
        g.parameter("body", rng.normal(size=(16, 16)).astype(dtype)),
    )
    ones, zeros = (g.parameter(f"norm.{i}", np.full(16, 1 - i, dtype)) for i in range(2))
    x = ops.layer_norm(x, ones, zeros)
    head = g.parameter("last", rng.normal(size=(16, 3)).astype(dtype))
    g.output("y", ops.add(ops.matmul(x, head), g.parameter("last.bias", np.zeros(3, dtype))))
    return df.Model(g.build())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: df.lora(df.quantize(model, 4, 16), rank=2, targets="*"),
        lambda model: model.with_outputs("y"),
        lambda model: model.replace("y", lambda v: ops.mul(v, 1.0)),
        lambda model: model.freeze({"last": model.arrays()["last"]}),
    ],
    ids=["quantize", "with_outputs", "replace", "freeze"],
)
def test_a_changed_graph_trains(change):
    batch = {"x": np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32), "labels": np.arange(6) % 3}
    with df.Trainer(change(normalized()), optimizer="sgd:lr=0.01") as trainer:
        losses = [trainer.step(batch) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_adapters_train_beside_normalizations_of_16_bits():
    model = df.lora(normalized(np.float16), rank=2, targets="*")
    batch = {"x": np.random.default_rng(1).normal(size=(6, 16)).astype(np.float16), "labels": np.arange(6) % 3}
    with df.Trainer(model, optimizer="adamw:lr=0.01") as trainer:
        losses = [trainer.step(batch) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_what_is_trained_stays():
    """The last layer is not another one because its weight has few bits."""
    with pytest.raises(
        df.InputError, match=r"'head' stands for layers with weights of few bits.*quantize\(keep='head'\)"
    ):
        df.Trainer(df.quantize(normalized(), 4, 16), trainable="head")
    model = df.quantize(normalized(), 4, 16, keep="head")
    assert {"body.blocks", "last"} <= set(model.arrays())
    with df.Trainer(model, trainable="head") as trainer:
        assert trainer.trainable == ("last", "last.bias")
    with pytest.raises(df.InputError, match=r"no product .* beside keep=\['body', 'last'\]"):
        df.quantize(normalized(), keep=["body", "last"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bits": 3}, "bits is 3"),
        ({"block": 24}, "block is 24"),
        ({"symmetric": 1}, "symmetric"),
        ({"targets": "conv"}, "matches no layer"),
    ],
)
def test_what_does_not_fit_is_refused(options, text):
    with pytest.raises(df.InputError, match=text):
        df.quantize(load(), **options)


def test_weights_that_are_not_finite_are_refused():
    model = load()
    weight = model.parameters["head.weight"]
    weight.set(np.full(weight.type.sizes, np.nan, np.float32))
    with pytest.raises(df.ModelError, match=r"'head.weight' has elements that are not finite"):
        df.quantize(model)


def test_scales_of_a_quantized_table_get_no_adapter(tmp_path):
    """GatherBlockQuantized looks up elements and scales: the latter are no embedding."""
    rng = np.random.default_rng(0)
    stored = {"table": rng.integers(0, 256, (20, 16)).astype(np.uint8), "w": rng.normal(size=(32, 3))}
    stored["scales"] = rng.uniform(0.1, 1, (20, 2))
    names = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4, "domain": "com.microsoft"}
    nodes = [
        onnx.helper.make_node("GatherBlockQuantized", ["table", "ids", "scales"], ["e"], "/embed/Gather", **names),
        onnx.helper.make_node("MatMul", ["e", "w"], ["y"], "/fc/MatMul"),
    ]
    types = [onnx.helper.make_tensor_value_info(n, k, s) for n, k, s in (("ids", 7, ["N", 5]), ("y", 1, ["N", 5, 3]))]
    tensors = [
        onnx.numpy_helper.from_array(a if a.dtype == np.uint8 else a.astype(np.float32), n) for n, a in stored.items()
    ]
    graph = onnx.helper.make_graph(nodes, "g", types[:1], types[1:], tensors)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    model = df.lora(df.load(str(tmp_path / "m.onnx")), rank=2, targets="*")
    assert [adapter.weight for adapter in model.adapters] == ["w"]
    batch = {"ids": rng.integers(0, 20, (4, 5)), "labels": rng.integers(0, 3, (4, 5))}
    with df.Trainer(model, optimizer=df.optim.AdamW(lr=0.1), metrics=[]) as trainer:
        losses = [trainer.step(batch) for _ in range(5)]
    assert losses[-1] < losses[0]
    df.save(model, tmp_path / "tuned.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "tuned.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"ids": batch["ids"]})
    np.testing.assert_allclose(y, model({"ids": batch["ids"]})["y"], rtol=1e-4, atol=1e-4)
