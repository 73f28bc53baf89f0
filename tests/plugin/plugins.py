"""Plugins, registries and models for tests of what authors of plugins get wrong."""

from types import ModuleType

import dataflow as df
from dataflow.plugin import Kernel, OperandSpec, hookimpl
from dataflow.plugin.registry import load

ANY = OperandSpec(strided=True)


def plugin(name="mine", **hooks):
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def with_op(op, code):
    """A registry with an op that has a kernel on the reference."""
    kernel = Kernel(op.name, "its reference", (ANY,) * len(op.inputs), (ANY,) * len(op.outputs), code)
    return load(
        [
            plugin(
                dataflow_ops=lambda: [op],
                dataflow_kernels=lambda device: [kernel] if device.role == "reference" else [],
            )
        ]
    )


def model_of(build, *shapes):
    g = df.GraphBuilder()
    g.output("y", build(*(g.input(f"x{i}", df.float32, shape) for i, shape in enumerate(shapes))))
    return df.Model(g.build())


def leaving(at, x):
    raise SystemExit(4)
