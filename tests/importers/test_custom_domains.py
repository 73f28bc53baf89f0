"""Operators of other domains: a plugin's converters import them; without one they are refused with a remedy."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.plugin.hookspecs import Converter, hookimpl
from dataflow.plugin.registry import load as load_registry
from dataflow_onnx.converters import Collector
from dataflow_onnx.file.records import GraphRecord
from dataflow_onnx.importer import Importer
from dataflow_onnx.shape_eval import Known
from dataflow_onnx.tensor import Tensor
from tests import support
from tests.support import onnx_model

DOMAIN = "org.example"
node = helper.make_node
operator = Collector(DOMAIN)


@operator("Dense")
def dense(
    c: Importer,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    group: int = 1,
    steps: Sequence[int] = (),
    table: np.ndarray | None = None,
) -> df.Value:
    assert group == -3 and steps == (5, 6)  # ONNX's own operators take none below 1
    np.testing.assert_array_equal(table, np.ones((1, 2)))
    y = df.ops.matmul(c.value(x), c.weight(w))
    return y if bias is None else df.ops.add(y, c.weight(bias))


@operator("Shift")
def shift_down(c: Importer, x: Tensor) -> df.Value:
    return df.ops.sub(c.value(x), 1.0)


@operator("Shift", since=3)
def shift(c: Importer, x: Tensor, *, by: float = 1.0) -> df.Value:
    return df.ops.add(c.value(x), by)


@operator("Halves")
def halves(c: Importer, x: Tensor) -> Known:
    """Half of each size, which may be named."""
    return Known(np.array([n // 2 for n in c.sizes(x, "the sizes")], object), df.int64)


@operator("Within")
def within(c: Importer, *, body: GraphRecord) -> tuple[Tensor, ...]:
    """The results of a body."""
    return tuple(c.inlined(body))


@operator("Broken")
def broken(c: Importer, x: Tensor) -> df.Value:
    raise LookupError("no such entry")


@operator("Nothing")
def nothing(c: Importer, x: Tensor) -> None:
    return None


@operator("Vague")
def vague(c: Importer, x: Tensor, *, by) -> df.Value:
    return c.value(x)


def plugin(converters=operator.converters, **hooks):
    module = ModuleType("example")
    module.onnx_converters = hookimpl(lambda: list(converters))
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


@pytest.fixture(scope="module")
def registry():
    return load_registry([plugin()])


def stored(**arrays):
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def model(nodes, initializers=(), version=1, shape=("batch", 4), domain=DOMAIN, rank=2):
    inputs, outputs = [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, [None] * rank)]
    proto = onnx_model(nodes, inputs, outputs, initializers, domains=[domain] if domain else [])
    for entry in proto.opset_import[1:]:
        entry.version = version
    return proto


def written(tmp_path, *args, **options):
    path = tmp_path / "model.onnx"
    path.write_bytes(model(*args, **options).SerializeToString())
    return str(path)


def refusal(path, registry):
    return support.refusal(df.ModelError, df.load, path, registry=registry)


@pytest.mark.parametrize(("version", "expected"), [(1, -1.0), (2, -1.0), (3, 2.5), (7, 2.5)])
def test_the_version_of_the_domain_chooses_the_converter(tmp_path, registry, version, expected):
    attributes = {"by": 2.5} if version >= 3 else {}
    path = written(tmp_path, [node("Shift", ["x"], ["y"], domain=DOMAIN, **attributes)], version=version)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = df.Session(df.load(path, registry=registry), registry=registry).run(x)["y"]
    np.testing.assert_array_equal(found, x + np.float32(expected))


def test_a_model_trains_and_keeps_its_nodes(tmp_path, registry):
    random = np.random.default_rng(0)
    w, b = random.standard_normal((4, 3), np.float32), np.zeros(3, np.float32)
    ones = numpy_helper.from_array(np.ones((1, 2)))
    nodes = [
        node("Dense", ["x", "w", "b"], ["h"], name="first", domain=DOMAIN, group=-3, steps=[5, 6], table=ones),
        node("Relu", ["h"], ["r"]),
        node("Shift", ["r"], ["y"], name="second", domain=DOMAIN, by=0.5),
    ]
    path = written(tmp_path, nodes, stored(w=w, b=b), version=3)
    loaded = df.load(path, registry=registry)
    assert {name for name, p in loaded.parameters.items() if p.trainable} == {"w", "b"}
    batch = {"x": random.standard_normal((8, 4), np.float32), "labels": random.random((8, 3), np.float32)}
    with df.Trainer(loaded, loss="mse", optimizer=df.optim.SGD(0.1), registry=registry) as trainer:
        losses = [trainer.step(batch) for _ in range(20)]
    assert losses[-1] < losses[0]
    saved = str(tmp_path / "trained.onnx")
    df.save(loaded, saved, registry=registry)
    before, after = onnx.load(path), onnx.load(saved)
    onnx.checker.check_model(after)
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.opset_import) == list(before.opset_import)
    arrays = {t.name: numpy_helper.to_array(t) for t in after.graph.initializer}
    assert (arrays["w"] != w).any()
    again = df.Session(df.load(saved, registry=registry), registry=registry).run(batch["x"])["y"]
    np.testing.assert_allclose(again, np.maximum(batch["x"] @ arrays["w"] + arrays["b"], 0) + 0.5, rtol=1e-5, atol=1e-6)


def test_a_converter_may_use_an_op_of_its_plugin(tmp_path):
    triple = df.Op(
        "org_example.triple",
        inputs=("x",),
        infer=lambda x: x,
        decompose=lambda x: df.ops.mul(x, 3.0),
    )
    own = Collector(DOMAIN)

    @own("Triple")
    def convert(c, x):
        return c.builder.add(triple, (c.value(x),), {}).outputs[0]

    registry = load_registry([plugin(own.converters, dataflow_ops=lambda: [triple])])
    path = written(tmp_path, [node("Triple", ["x"], ["y"], domain=DOMAIN)])
    x = np.ones((2, 4), np.float32)
    assert (df.Session(df.load(path, registry=registry), registry=registry).run(x)["y"] == 3).all()


def test_an_operator_of_onnx_that_is_newer_than_the_importer(tmp_path):
    own = Collector("ai.onnx")

    @own("Anew", since=7)
    def anew(c, x):
        raise NotImplementedError

    registry = load_registry([plugin(own.converters)])
    path = written(tmp_path, [node("Anew", ["x"], ["y"], name="it")], domain="")
    assert "ai.onnx.Anew, opset 18" in refusal(path, load_registry())
    assert "Anew 'it', opset 18, converted by" in refusal(path, registry)


def test_an_operator_that_has_a_converter_is_a_conflict(tmp_path):
    registry = load_registry([plugin([Converter("", "Relu", 99, shift)])])
    assert "test_custom_domains.shift converts 'Relu', which dataflow converts" in registry.plugins[-1].problem
    df.load(written(tmp_path, [node("Relu", ["x"], ["y"])], domain=""), registry=registry)


def test_sizes_pass_through_a_converter(tmp_path, registry):
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Halves", ["s"], ["h"], domain=DOMAIN),
        node("Concat", ["h", "two"], ["pairs"], axis=0),
        node("Reshape", ["x", "pairs"], ["y"]),
    ]
    loaded = df.load(written(tmp_path, nodes, stored(two=[4]), shape=("batch", 6), rank=3), registry=registry)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert df.Session(loaded, registry=registry).run(x)["y"].shape == (2, 3, 4)


def test_a_converter_takes_bodies_and_stands_in_them(tmp_path, registry):
    result = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([node("Shift", ["x"], ["inner"], domain=DOMAIN)], "body", [], [result])
    path = written(tmp_path, [node("Within", [], ["y"], domain=DOMAIN, body=body)])
    x = np.ones((2, 4), np.float32)
    assert (df.Session(df.load(path, registry=registry), registry=registry).run(x)["y"] == 0).all()


def test_a_function_of_the_file_comes_before_a_converter(tmp_path, registry):
    proto = model([node("Shift", ["x"], ["y"], domain=DOMAIN)])
    negative = [node("Neg", ["a"], ["b"])]
    proto.functions.append(helper.make_function(DOMAIN, "Shift", ["a"], ["b"], negative, proto.opset_import[:1]))
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.ones((2, 4), np.float32)
    assert (df.Session(df.load(str(path), registry=registry), registry=registry).run(x)["y"] == -1).all()


@pytest.mark.parametrize(
    ("name", "attributes", "texts"),
    [
        ("Broken", {}, ["the converter failed: LookupError: no such entry"]),
        ("Nothing", {}, ["its converter gives a NoneType"]),
        ("Vague", {"by": 1}, ["'by'", "needs an annotation"]),
        ("Shift", {"by": 2}, ["attribute 'by'", "expected a float"]),
        ("Shift", {"to": 2.0}, ["attribute 'to'"]),
        ("Dense", {}, ["1 inputs; expected 2 to 3"]),
    ],
)
def test_what_fails_names_node_opset_and_converter(tmp_path, registry, name, attributes, texts):
    path = written(tmp_path, [node(name, ["x"], ["y"], name="it", domain=DOMAIN, **attributes)], version=4)
    text = refusal(path, registry)
    for expected in (path, f"{DOMAIN}.{name} 'it', opset 4, converted by", "test_custom_domains.", *texts):
        assert expected in text


def test_what_has_no_converter_is_refused_with_its_domain_and_a_remedy(tmp_path, registry):
    path = written(tmp_path, [node("Unheard", ["x"], ["y"], name="it", domain=DOMAIN)], version=5)
    for expected in ("org.example.Unheard, opset 5", "'it'", "A plugin can bring converters", "onnx_converters"):
        assert expected in refusal(path, registry)
    path = written(tmp_path, [node("Sampling", ["x", "x"], ["y"], domain="com.microsoft")], domain="com.microsoft")
    for expected in ("com.microsoft.Sampling, opset 1", "onnxruntime", "onnx_converters"):
        assert expected in refusal(path, registry)
    path = written(tmp_path, [node("Shift", ["x"], ["y"], domain="org.other")])
    assert "org.other.Shift, a domain that the file declares no opset for" in refusal(path, registry)


def test_onnxruntimes_own_domain_need_not_be_declared(tmp_path):
    nodes = [node("BiasGelu", ["x", "bias"], ["y"], domain="com.microsoft")]
    path = written(tmp_path, nodes, stored(bias=np.ones(4, np.float32)))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (expected,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(df.Session(df.load(path)).run({"x": x})["y"], expected, rtol=1e-5)


def test_a_version_older_than_every_converter_is_reported(tmp_path):
    registry = load_registry([plugin([Converter(DOMAIN, "Shift", 3, shift)])])
    path = written(tmp_path, [node("Shift", ["x"], ["y"], domain=DOMAIN)], version=2)
    assert "org.example.Shift, opset 2, which is converted from opset 3 on" in refusal(path, registry)


@operator("ToDouble")
def to_double(c: Importer, x: Tensor) -> df.Value:
    return df.ops.cast(c.value(x), to=df.float64)


@pytest.mark.parametrize("shape", [("batch", 4), None])
def test_a_result_of_another_dtype_than_its_output_names_the_converter(tmp_path, registry, shape):
    proto = onnx_model(
        [node("ToDouble", ["x"], ["y"], name="n", domain=DOMAIN)],
        [("x", TensorProto.FLOAT, ("batch", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        domains=[DOMAIN],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    text = refusal(str(path), registry)
    assert f"{DOMAIN}.ToDouble 'n', opset 1, converted by {__name__}.to_double: output 'y' is float64[batch, 4]" in text
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    path.write_bytes(proto.SerializeToString())
    assert df.load(str(path), registry=registry).outputs["y"].dtype == df.float64
