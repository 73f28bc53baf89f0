"""What the kit finds in a plugin beside its kernels: gradients, decompositions, libraries that are old."""

import dataclasses
import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin import Converter, Exporter, Kernel, OperandSpec, PythonDevice, hookimpl
from dataflow.plugin.registry import load
from dataflow.testing import Operand, Sample, check_device, check_plugin
from dataflow.testing.freshness import stale_library

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/file_format"))
dataflow_mlp = importlib.import_module("dataflow_mlp")


def swish(**declared):
    return df.Op("mine", ("x",), lambda x: x, doc="y = x / (1 + exp(-x))", **declared)


def checked(op, *, kernel=True, differentiated=(0,)):
    """What fails of a plugin with this op, by variant."""
    anything = OperandSpec(strided=True)
    reference = Kernel("mine", "mine", (anything,), (anything,), lambda attributes, x: x / (1 + np.exp(-x)))
    module = ModuleType("mine")
    module.dataflow_ops = hookimpl(lambda: [op])
    module.dataflow_kernels = hookimpl(lambda device: [reference] if kernel and device.name == "numpy" else [])
    module.dataflow_samples = hookimpl(lambda: [Sample(op, (Operand((3, 5)),), gradient=differentiated)])
    found = list(check_plugin("mine", registry=load([module])))
    assert any(outcome.status == "passed" for outcome in found)
    return {outcome.variant: outcome.text for outcome in found if outcome.status in ("failed", "untested")}


def said(**hooks):
    """What is said of the files of a plugin, by name."""
    module = ModuleType("mine")
    for hook, records in hooks.items():
        setattr(module, hook, hookimpl(lambda records=records: records))
    found = check_plugin("mine", registry=load([module]))
    return {o.sample: (o.status, o.text) for o in found if o.variant == "file"}


def test_a_format_that_keeps_a_model_passes():
    assert said(dataflow_formats=dataflow_mlp.dataflow_formats()) == {"format .mlp": ("passed", "")}


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"load": lambda: None}, "failed", r"load can't be called as load\(path, \*\*options\): too many positional"),
        (
            {"converts": True, "load": lambda path: None},
            "failed",
            r"load\(path, converters=converters, .*unexpected key",
        ),
        ({"save": lambda model: None}, "failed", r"save can't be called as save\(model, path, .*too many positional"),
        ({"save": lambda model, path: None}, "failed", "wrote no file"),
        ({"load": lambda path: 1 / 0}, "failed", "small.mlp: load of the plugin mine failed: ZeroDivisionError"),
        ({"load": lambda path: 5}, "failed", "load of the plugin mine gave int; expected a Model"),
        ({"load": lambda path: zeros(path)}, "failed", "gives something else after it was written and read"),
        ({"save": lambda model, path: refuse()}, "not claimed", "a small model of two layers: no such layers"),
        ({"save": None}, "passed", ""),
    ],
)
def test_a_format_that_can_not_be_used_is_caught(changed, status, text):
    (form,) = dataflow_mlp.dataflow_formats()
    (found,) = said(dataflow_formats=[dataclasses.replace(form, **changed)]).values()
    assert found[0] == status
    assert re.search(text, found[1]), found[1]


def zeros(path):
    model = dataflow_mlp.load(path)
    for parameter in model.parameters.values():
        parameter.set(0 * parameter.array)
    return model


def refuse():
    raise df.InputError("no such layers")


def test_an_exporter_of_an_op_that_nobody_declares_is_caught():
    found = said(onnx_exporters=[Exporter("minne", "org.mine", "Mine"), Exporter("mine", "org.mine", "Mine")],
                 dataflow_ops=[swish(decompose=composed)])  # fmt: skip
    assert found["exporter minne"] == ("failed", "it is for an op that nobody declares; near: mine")
    assert found["exporter mine"] == ("passed", "")


SCALED = df.Op("scaled_by", ("x",), lambda x, by: x, attributes={"by": 1.0}, decompose=lambda x, by: df.ops.mul(x, by))


def scaled(importer, x, *, by: float = 1.0):
    return SCALED(importer.value(x), by=by)


def scaled_without_default(importer, x):
    return SCALED(importer.value(x))


def widened(importer, x, *, by: float = 1.0):
    return df.ops.cast(scaled(importer, x, by=by), to=df.float64)


def summed(importer, x, *, by: float = 1.0):
    return df.ops.reduce_sum(scaled(importer, x, by=by), axes=(0,))


def forgets(importer, x, *, by: float = 1.0):
    return SCALED(importer.value(x))


@pytest.mark.parametrize(
    ("function", "attributes", "says"),
    [
        (scaled, None, ""),
        (scaled, lambda node: {"by": float(node.attributes["by"])}, ""),
        (None, None, ""),
        (None, lambda node: {"by": object()}, "no ONNX form with these attributes"),
        (scaled, lambda node: {"by": 1 / 0}, "attributes of the exporter of 'scaled_by' failed: ZeroDivisionError"),
        (scaled, lambda node: {}, "y0 has other values after it was written and read"),
        (scaled, lambda node: {"by": "2.5"}, "attribute 'by' is the str '2.5'; expected a float"),
        (forgets, None, "y0 has other values after it was written and read"),
        (scaled_without_default, None, "inputs or attributes don't fit the operator: attribute 'by'"),
        (widened, None, r"widened: output 'y0' is float64\[3, 5\], and the file declares it as float32\[3, 5\]"),
        (summed, None, r"y0 is \[1, 5\] after it was written and read, and was \[3, 5\]"),
    ],
)
def test_an_exporter_and_a_converter_give_each_sample_again(function, attributes, says):
    found = said(
        dataflow_ops=[SCALED],
        dataflow_samples=[Sample(SCALED, (Operand((3, 5)),), {"by": 2.5})],
        onnx_exporters=[Exporter("scaled_by", "org.mine", "Scaled", attributes=attributes)],
        onnx_converters=[] if function is None else [Converter("org.mine", "Scaled", 1, function)],
    )
    status, text = found["exporter scaled_by"]
    assert status == ("failed" if says else "passed"), text
    assert re.search(says, text), text


def composed(x):
    return df.ops.mul(x, df.ops.sigmoid(x))


def rule(scale):
    """The gradient, times a scale."""

    def gradient(node, dy):
        (x,) = node.inputs
        s = df.ops.sigmoid(x)
        slope = df.ops.add(s, df.ops.mul(df.ops.mul(x, s), df.ops.sub(1.0, s)))
        return df.ops.mul(df.ops.mul(dy, slope), scale)

    return gradient


@pytest.mark.parametrize("op", [swish(decompose=composed), swish(gradient=rule(1.0))])
def test_right_ops_pass(op):
    assert checked(op) == {}


def test_a_wrong_second_derivative_is_caught():
    """A rule whose value is right and whose nodes have the derivative of something else."""

    def gradient(node, dy):
        return df.ops.stop_gradient(rule(1.0)(node, dy))

    found = checked(swish(gradient=gradient))
    assert [*found] == ["second"] and "by central differences" in found["second"]


def test_a_gradient_that_no_sample_reaches_is_untested():
    op = df.Op("mine", ("x",), lambda x: x, gradient=rule(7.0))
    found = checked(op, differentiated=())
    assert found == {"gradient": "its rule gives a gradient by x, and no sample of the op differentiates by it"}


def test_a_kernel_that_only_ran_without_elements_is_untested():
    anything = OperandSpec(strided=True)

    def narrow(node):
        return None if node.inputs[1].type.shape[-1:] == (8,) else "b isn't (K, 8)"

    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            return [
                Kernel("matmul", "narrow", (anything,) * 2, (anything,), lambda at, a, b: a @ b * 7, accepts=narrow)
            ]

    module = ModuleType("mine")
    module.dataflow_devices = hookimpl(lambda: [Own()])
    found = [o for o in check_device("own", registry=load([module]), select="matmul") if o.status == "untested"]
    assert [o.text for o in found if "samples is taken" in o.text]


def test_an_op_without_a_kernel_is_compared_with_its_decomposition():
    assert checked(swish(decompose=composed), kernel=False) == {}


def test_a_wrong_gradient_is_caught():
    found = checked(swish(gradient=rule(1.001)))
    assert [*found] == ["gradient"] and "by central differences" in found["gradient"]


@pytest.mark.parametrize("other", [df.float64, df.float16])
def test_a_gradient_of_another_type_is_caught(other):
    """Right where the kit computes, in float64, or nowhere."""
    found = checked(swish(gradient=lambda node, dy: df.ops.cast(rule(1.0)(node, dy), to=other)))
    assert f"its rule gave {other}[3, 5] for 'x0', which is float32[3, 5]" in found["gradient"]


def test_a_missing_gradient_is_named():
    assert "raised GradientError" in checked(swish())["gradient"]


def test_a_decomposition_that_is_another_function_is_caught():
    found = checked(swish(decompose=df.ops.relu))
    assert found["decomposition"] == "y0: the decomposition gives other results than the kernel of the reference"


def test_a_library_that_is_older_than_a_source_is_named(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    for name in ("__init__.py", "native.c", "native.so"):
        (package / name).touch()
    os.utime(package / "native.c", (1e9, 1e9))
    assert stale_library(str(package / "__init__.py")) is None
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "source.cu").touch()
    os.utime(tmp_path / "source.cu", (4e9, 4e9))
    assert stale_library(str(package / "__init__.py")) == "native.so is older than source.cu: build it again"
