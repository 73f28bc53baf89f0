"""Ops of plugins in files: operators of a domain of their own, or of ONNX's."""

import dataclasses
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow.plugin import Converter, Exporter, Op, hookimpl
from dataflow.plugin.registry import load as load_registry
from tests.support import refusal

DOMAIN = "org.example"


def scaled_sum(x, low=None, high=None, *, factor, powers, to):
    found = x
    for operand, power in zip((low, high), powers, strict=True):
        if operand is not None:
            found = df.ops.add(found, df.ops.pow(operand, float(power)))
    return df.ops.cast(df.ops.mul(found, factor), to=to)


mix = Op(
    "mix",
    ("x", "low?", "high?"),
    lambda x, low=None, high=None, *, factor, powers, to: df.TensorType(to, x.shape),
    attributes={"factor": 1.0, "powers": (1, 2), "to": df.float32},
    decompose=scaled_sum,
    doc="factor (x + low^powers[0] + high^powers[1]) of a dtype.",
)
gate = Op(
    "gate",
    ("x",),
    lambda x, slope: x,
    attributes={"slope": 0.5},
    decompose=lambda x, slope: df.ops.clip(df.ops.add(df.ops.mul(x, slope), 0.5), 0.0, 1.0),
    doc="min(max(slope x + 1/2, 0), 1).",
)


def convert(importer, x, low=None, high=None, *, factor: float = 9.0, powers: Sequence[int] = (), to: int = 0):
    assert to == onnx.TensorProto.DOUBLE
    operands = [None if operand is None else importer.value(operand) for operand in (x, low, high)]
    return mix(*operands, factor=factor, powers=tuple(powers), to=df.float64)


MIX = Exporter("mix", DOMAIN, "Mix", 3)
GATE = Exporter("gate", "", "HardSigmoid", 22, lambda node: {"alpha": node.attributes["slope"], "beta": 0.5})


def registry_with(*exporters, ops=(mix, gate), name="example"):
    module = ModuleType(name)
    module.dataflow_ops = hookimpl(lambda: list(ops))
    module.onnx_converters = hookimpl(lambda: [Converter(DOMAIN, "Mix", 3, convert)])
    module.onnx_exporters = hookimpl(lambda: [Exporter(*e) if isinstance(e, tuple) else e for e in exporters])
    return load_registry([module])


def built():
    g = df.GraphBuilder()
    x, low, high = (g.input(name, df.float32, ("n", 3)) for name in ("x", "low", "high"))
    first = mix(gate(x, slope=0.25), None, high, factor=2, to=df.float64)
    g.output("y", mix(df.ops.cast(first, to=df.float32), low, factor=0.5, powers=(2, 1), to=df.float64))
    return df.Model(g.build())


def test_what_is_written_is_read_again(tmp_path):
    registry, path = registry_with(MIX, GATE), str(tmp_path / "model.onnx")
    df.save(built(), path, registry=registry)
    proto = onnx.load(path)
    assert [list(n.input)[1:] for n in proto.graph.node if n.op_type == "Mix"] == [["", "high"], ["low"]]
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 22, DOMAIN: 3}
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 3)).astype(np.float32) for name in ("x", "low", "high")}
    models = built(), df.load(path, registry=registry)
    found = [df.Session(model, ["numpy"], registry=registry).run(feeds)["y"] for model in models]
    gated = np.clip(0.25 * feeds["x"].astype(np.float64) + 0.5, 0, 1)
    expected = 0.5 * (2 * (gated + feeds["high"].astype(np.float64) ** 2) + feeds["low"].astype(np.float64) ** 2)
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-6)


def test_without_an_exporter_an_op_is_written_as_it_decomposes(tmp_path):
    path, model = str(tmp_path / "model.onnx"), built()
    df.save(model, path, registry=registry_with())
    written = onnx.load(path)
    assert {entry.domain for entry in written.opset_import} == {""}
    feeds = {n: np.arange(6, dtype=np.float32).reshape(2, 3) / k for k, n in enumerate(("x", "low", "high"), 2)}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = df.Session(model, devices=["numpy"], registry=registry_with()).run(feeds)["y"]
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-6)


def test_what_has_no_form_is_refused(tmp_path):
    path = str(tmp_path / "model.onnx")
    bare = dataclasses.replace(mix, name="bare", decompose=None)
    g = df.GraphBuilder()
    g.output("y", bare(g.input("x", df.float32, (3,)), to=df.float64))
    with pytest.raises(df.ModelError, match=r"bare.*no ONNX form.*onnx_exporters"):
        df.save(df.Model(g.build()), path, registry=registry_with(ops=(mix, gate, bare)))
    with pytest.raises(df.ModelError, match="no ONNX form with these attributes"):
        df.save(built(), path, registry=registry_with(MIX, Exporter("gate", DOMAIN, "Gate", 3, lambda node: {"a": ()})))
    text = refusal(df.ModelError, df.save, built(), path, registry=registry_with(MIX, Exporter("gate", DOMAIN, "Gate")))
    assert f"version 3 of {DOMAIN} is needed, and version 1 for another node" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("exporters", "says"),
    [
        ([Exporter("relu", DOMAIN, "Relu")], "operator for the op 'relu' is offered twice: by dataflow and by example"),
        ([MIX, Exporter("mix", DOMAIN, "Other")], "operator for the op 'mix' is offered twice"),
        ([("mix", DOMAIN, "")], "op 'mix': expected the name of an operator, got ''"),
        ([("mix", DOMAIN, "Mix", 0)], "op 'mix': expected a version of 1 or more, got 0"),
    ],
)
def test_plugins_whose_exporters_are_wrong_are_set_aside(exporters, says):
    (problem,) = [p.problem for p in registry_with(*exporters).plugins if p.name == "example"]
    assert says in problem
