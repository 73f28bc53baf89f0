"""What plugins offer is gathered once, conflicts name both sides, and a plugin that fails stops nobody else."""

from types import ModuleType

import pytest

import dataflow as df
from dataflow.plugin.hookspecs import Converter, hookimpl
from dataflow.plugin.registry import load


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
    with pytest.raises(df.PluginError) as caught:
        _ = registry.converters
    text = "operator 'Twice' of the domain 'org.example' since 1 is offered twice: by a and by b"
    assert text in str(caught.value)
