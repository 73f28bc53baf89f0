"""What plugins offer is gathered once, conflicts name both sides, and a plugin that fails stops nobody else."""

import json
import re
import sys
from types import ModuleType

import pytest

import dataflow as df
from dataflow.ir.kernel import Kernel, OperandSpec
from dataflow.passes.pipeline import Pass
from dataflow.plugin.device import Device
from dataflow.plugin.hookspecs import Converter, Exporter, Format, Named, hookimpl
from dataflow.plugin.registry import load
from dataflow.testing import check_plugin


def plugin(name, **hooks):
    """A module with these hooks."""
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def converter(since=1):
    return Converter("org.example", "Twice", since, lambda importer, x: None)


def test_converters_of_plugins_are_gathered():
    newer, older = converter(3), converter(1)
    registry = load([plugin("a", onnx_converters=lambda: [newer]), plugin("b", onnx_converters=lambda: [older])])
    assert set(registry.converters) == {newer, older}


def test_an_operator_that_two_plugins_offer_names_both():
    registry = load(
        [plugin("a", onnx_converters=lambda: [converter()]), plugin("b", onnx_converters=lambda: [converter()])]
    )
    assert problems(registry) == {"b": "operator 'org.example.Twice, since 1' is offered twice: by a and by b"}
    assert len(registry.converters) == 1


def problems(registry):
    return {p.name: p.problem for p in registry.plugins if p.problem}


class Lamp(Device):
    """A device of no use."""

    name = "lamp"

    def open(self, options, precision="float32"):
        raise NotImplementedError

    def kernels(self):
        return []


def shine(name="shine"):
    return df.Op(name, ("x",), lambda x: x, decompose=df.ops.neg, doc="-x")


def test_what_a_plugin_offers_twice_over_another_names_both_and_the_earlier_stays():
    one = plugin("one", dataflow_ops=lambda: [shine()], dataflow_devices=lambda: [Lamp()])
    ops = plugin("ops", dataflow_ops=lambda: [shine("dim"), shine()])
    devices = plugin("devices", dataflow_devices=lambda: [Lamp()])
    relu = plugin("relu", dataflow_ops=lambda: [shine("relu")])
    itself = plugin("itself", dataflow_ops=lambda: [shine("dark"), shine("dark")])
    registry = load([one, ops, devices, relu, itself])
    assert problems(registry) == {
        "ops": "op 'shine' is offered twice: by one and by ops",
        "devices": "device 'lamp' is offered twice: by one and by devices",
        "relu": "op 'relu' is offered twice: by dataflow and by relu",
        "itself": "op 'dark' is offered twice: by itself and by itself",
    }
    assert {"shine", "lamp"} == {"shine", "lamp"} & {*registry.ops, *registry.devices}
    assert not {"dim", "dark"} & {*registry.ops}


def test_a_plugin_that_is_set_aside_takes_no_name():
    """What clashes with a plugin that clashes itself is kept."""
    one = plugin("one", dataflow_ops=lambda: [shine()])
    both = plugin("both", dataflow_ops=lambda: [shine(), shine("dim")])
    other = plugin("other", dataflow_ops=lambda: [shine("dim")])
    assert [*problems(load([one, both, other]))] == ["both"]


def test_an_op_that_nothing_computes_sets_its_plugin_aside():
    bare = df.Op("bare", ("x",), lambda x: x, doc="y = x")
    problem, text = "bare", "op 'bare' needs a kernel on numpy or a decomposition"
    assert problems(load([plugin("bare", dataflow_ops=lambda: [bare])])) == {problem: text}

    def refused(device):
        raise RuntimeError("no")

    def kernels(device):
        spec = OperandSpec()
        return [Kernel("bare", "bare", (spec,), (spec,), lambda attributes, x: x)] if device.name == "numpy" else []

    brings = plugin("brings", dataflow_kernels=kernels)
    assert "bare" in load([plugin("bare", dataflow_ops=lambda: [bare]), brings]).ops
    fails = plugin("fails", dataflow_kernels=kernels, dataflow_formats=lambda: refused(None))
    assert {*problems(load([plugin("bare", dataflow_ops=lambda: [bare]), fails]))} == {"bare", "fails"}


def test_passes_that_can_not_be_ordered_set_one_plugin_aside():
    def of(name, **order):
        made = Pass(name, "fuse", lambda graph, context: graph, **order)
        return plugin(name, dataflow_passes=lambda: [made])

    found = load([of("a", before=("b",)), of("b", before=("a",)), of("c", after=("fuse",))])
    assert [*problems(found)] == ["a", "b"]  # each refers to the other
    assert "in a circle" in problems(found)["b"]
    assert {"a", "b", "c"} & {one.name for one in found.passes} == {"c"}
    assert [*problems(load([of("c", after=("nothing",)), of("d")]))] == ["c"]


def problem(name, **hooks):
    """Why a plugin is set aside; another one is not."""
    registry = load([plugin(name, **hooks), plugin("good", dataflow_ops=lambda: [shine()])])
    assert "shine" in registry.ops and "numpy" in registry.devices
    assert set(problems(registry)) == {name}
    return registry, problems(registry)[name]


def lamp(**attributes):
    """A device with these attributes."""
    return type("Odd", (Lamp,), attributes)()


def test_a_device_that_can_not_be_described_sets_its_plugin_aside():
    def raising(self):
        raise OSError("gone")

    for device, text in (
        (lamp(name="a:b"), "a device has the name 'a:b'; expected a word without colons"),
        (lamp(ordinal=-1), "device 'lamp' has the ordinal -1; expected 0 or more"),
        (lamp(role="last"), "device 'lamp' has the role 'last'; there are: accelerator, host, reference"),
        (lamp(unavailable=property(raising)), r"OSError: gone \(test_registry.py:\d+\)"),
        (lamp(kernels=lambda self: ["relu"]), "TypeError: expected Kernel records, got str"),
        (lamp(kernels=lambda self: 1), "TypeError: 'int' object is not iterable"),
    ):
        assert re.search(text, problem("bad", dataflow_devices=lambda device=device: [device])[1])


def test_whatever_a_plugin_raises_stops_only_itself():
    class Strange(BaseException):
        pass

    def leaving():
        sys.exit("no license")

    def strange():
        raise Strange("odd")

    left, odd = problem("bad", dataflow_ops=leaving)[1], problem("bad", dataflow_devices=strange)[1]
    assert re.fullmatch(r"dataflow_ops: SystemExit: no license \(test_registry.py:\d+\)", left)
    assert re.fullmatch(r"dataflow_devices: Strange: odd \(test_registry.py:\d+\)", odd)

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load([plugin("bad", dataflow_ops=interrupted)])


def test_a_function_with_the_name_of_a_hook_is_marked_as_one():
    module = ModuleType("bad")
    module.dataflow_ops = list
    assert problems(load([module])) == {"bad": "dataflow_ops: not marked with @hookimpl"}
    assert problems(load([ModuleType("empty")]))["empty"].startswith("it has no hook; there are: dataflow_ops, ")


def test_a_plugin_that_fails_is_set_aside_with_all_that_it_offered():
    def failing():
        raise RuntimeError("no license")

    registry, text = problem("bad", dataflow_ops=lambda: [shine("dim")], dataflow_formats=failing)
    assert text.startswith("dataflow_formats: RuntimeError: no license (test_registry.py:")
    assert "dim" not in registry.ops


def test_a_device_whose_kernels_fail_is_set_aside():
    class Broken(Lamp):
        def kernels(self):
            raise RuntimeError("it is off")

    registry, text = problem("bad", dataflow_devices=lambda: [Broken()])
    assert text.startswith("kernels of the device lamp: RuntimeError: it is off (test_registry.py:")
    assert "lamp" not in registry.devices


def test_hooks_are_called_with_the_arguments_that_they_take():
    seen = []
    load([plugin("none", dataflow_kernels=lambda: seen.append("none") or [])])
    load([plugin("one", dataflow_kernels=lambda device: seen.append(device.name) or [])])
    assert "none" in seen and "numpy" in seen


def test_a_hook_that_is_none_or_takes_what_it_does_not_get_sets_its_plugin_aside():
    assert "unknown hook 'dataflow_opps'" in problem("bad", dataflow_opps=lambda: None)[1]
    assert "Argument(s) {'registry'}" in problem("bad", dataflow_ops=lambda registry: [])[1]
    assert (
        problem("bad", dataflow_ops=lambda: ["relu"])[1] == "dataflow_ops: TypeError: expected AnyOp records, got str"
    )
    text = "dataflow_devices: TypeError: expected Device records, got Op without ordinal, memory"
    assert problem("bad", dataflow_devices=lambda: [shine("dim")])[1].startswith(text)
    assert "'int' object is not iterable" in problem("bad", dataflow_ops=lambda: 1)[1]


def test_a_hook_may_give_nothing_and_says_so():
    assert load([plugin("quiet", dataflow_ops=lambda: ())]).plugins[-1].problem is None
    expected = "dataflow_ops: TypeError: returned None; expected a list of AnyOp records, [] for nothing"
    assert problem("bad", dataflow_ops=lambda: None)[1] == expected  # without a return
    text = "dataflow_kernels: TypeError: returned None; expected a list of Kernel records, [] for nothing"
    assert problem("bad", dataflow_kernels=lambda device: None)[1] == text


def test_what_python_notices_is_said_with_the_line_of_the_plugin():
    line = re.search(r"\(([^()]*)\)$", problem("bad", dataflow_ops=lambda: json.loads("{"))[1])[1]
    assert re.fullmatch(r"test_registry.py:\d+", line)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Format("jml", print, None), "expected lower case with one dot, as '.onnx', got 'jml'"),
        (lambda: Format(".JML", print, None), "expected lower case with one dot, as '.onnx', got '.JML'"),
        (lambda: Format(".jml", None, None), "format '.jml': expected load, save or both, got neither"),
        (lambda: Format(".jml", 3, None), "format '.jml': expected a function as load, got 3"),
        (lambda: Named("", 3), "expected text without spaces, .*, got ''"),
        (lambda: Named("a b:c=1", 4), "expected text without spaces, .*, got 'a b:c=1'"),
        (lambda: Converter("org.example", "", 1, print), "expected the name of an operator, got ''"),
        (lambda: Converter("org.example", "A", 0, print), "converter of 'A': expected since of 1 or more, got 0"),
        (lambda: Converter("org.example", "A", 1, 2), "converter of 'A': expected a function, got 2"),
        (lambda: Converter(None, "A", 1, print), "converter of 'A': expected a domain, '' or text, got None"),
        (lambda: Exporter("a", "org.example", "A", 1, 2), "op 'a': expected a function as attributes, got 2"),
        (lambda: Exporter(None, "org.example", "A"), "expected the name of an op and a domain, got None"),
    ],
)
def test_a_record_that_nobody_could_use_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_what_a_plugin_offers_is_known_by_hook():
    registry = load([plugin("one", dataflow_ops=lambda: [shine()], dataflow_samples=lambda: ["sample"])])
    assert {hook: len(records) for hook, records in registry.offered_by("one").items()} == {
        "dataflow_ops": 1,
        "dataflow_samples": 1,
    }
    with pytest.raises(df.InputError, match=r"there is no plugin 'two'; there are: .*one"):
        registry.offered_by("two")
    with pytest.raises(df.PluginError, match="plugin bad was set aside: dataflow_samples: TypeError"):
        load([plugin("bad", dataflow_samples=lambda: 1)]).offered_by("bad")


def test_the_kit_fails_on_what_a_plugin_offers_and_can_not_be_used():
    class Needy:
        def __init__(self, size):
            self.size = size

    def bad():
        return [Named("needy", Needy), Named("three", 3)]

    registry = load([plugin("bad", dataflow_losses=bad, dataflow_ops=lambda: [shine()])])
    found = {outcome.sample: (outcome.status, outcome.text) for outcome in check_plugin("bad", registry=registry)}
    assert found["shine"] == ("untested", "the plugin declares it, and has no sample")
    assert found["loss needy"][0] == "failed" and "'size'" in found["loss needy"][1]
    assert found["loss three"] == ("failed", "it is int, which is no loss")
