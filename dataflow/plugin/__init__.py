"""The surface for authors of plugins in Python: what an op, a device, a kernel, a pass or a hook is made of.

With the public names of ``dataflow`` and of its modules ``errors``, ``ops``, ``losses``, ``optim``, ``schedules`` and
``testing`` it is all that a plugin needs, and all that the plugins of this project use. Names are loaded when first
used: they stand in many rooms.
"""

from __future__ import annotations

import importlib
from typing import Any

_NAMES = {
    # hooks, and the records that they give
    "HOOKS": "plugin.hookspecs",
    "Converter": "plugin.hookspecs",
    "Exporter": "plugin.hookspecs",
    "Format": "plugin.hookspecs",
    "Load": "plugin.hookspecs",
    "Save": "plugin.hookspecs",
    "hookimpl": "plugin.hookspecs",
    "Named": "plugin.hookspecs",
    "Registry": "plugin.registry",
    "Context": "passes.pipeline",
    "Pass": "passes.pipeline",
    # ops and graphs
    "AnyOp": "ir.op",
    "Attribute": "ir.op",
    "DECOMPOSED": "ir.op",
    "Decompose": "ir.op",
    "Differentiate": "ir.op",
    "Gradient": "ir.op",
    "Infer": "ir.op",
    "REQUIRED": "ir.op",
    "REQUIRED_DTYPE": "ir.op",
    "Replace": "ir.rewrite",
    "View": "ir.op",
    "Builder": "ir.value",
    "Edit": "ir.edits",
    "Edited": "ir.edits",
    "in_file": "ir.edits",
    "Graph": "ir.graph",
    "GraphBuilder": "ir.builder",
    "Initializer": "ir.graph",
    "Node": "ir.graph",
    "MultiOp": "ir.op",
    "Op": "ir.op",
    "Pattern": "ir.op",
    "PerAxis": "ir.op",
    "Value": "ir.value",
    "Model": "model",
    # element types and sizes
    "DTYPES": "ir.types",
    "MOST_AXES": "ir.types",
    "Array": "ir.types",
    "DType": "ir.types",
    "Dim": "ir.dims",
    "Size": "ir.dims",
    "TensorType": "ir.types",
    "broadcast_size": "ir.dims",
    "dtype": "ir.types",
    "rewrite": "ir.rewrite",
    # devices in C
    "CDevice": "cdevice.library",
    "devices_of": "cdevice.library",
    "kernels_of": "cdevice.library",
    # devices in Python
    "PythonDevice": "execute.python_device",
    "call_kernel": "execute.python_device",
    # kernels, and devices of any other kind
    "HOST": "ir.kernel",
    "Backend": "plugin.device",
    "BoundSegment": "plugin.device",
    "Buffer": "plugin.device",
    "Device": "plugin.device",
    "Kernel": "ir.kernel",
    "LoweredNode": "ir.lowered",
    "Operand": "ir.operand",
    "OperandSpec": "ir.kernel",
    "PrepackRequest": "plugin.device",
    "Precision": "plugin.device",
    "Prepared": "plugin.device",
    "Refused": "plugin.device",
    "Role": "plugin.device",
    "BaseTensor": "ir.lowered",
    "Segment": "ir.plan",
    "Step": "ir.plan",
    "Unavailable": "plugin.device",
    "add_gradients": "passes.autodiff",
    "address_of": "cdevice.host_memory",
    "array_at": "cdevice.host_memory",
    # what is chosen by name in training; df.losses, df.optim and df.schedules have the core's
    "Callback": "train.callbacks",
    "Event": "train.callbacks",
    "Gathered": "train.metrics",
    "Loss": "train.losses",
    "Metric": "train.metrics",
    "Optimizer": "train.optimizers",
    "Schedule": "train.optimizers",
    "Slot": "train.optimizers",
    "Grouped": "train.optimizers",
    "scalars": "train.optimizers.terms",
    "scaled": "train.optimizers.terms",
    "toward": "train.optimizers.terms",
    "Target": "train.losses",
    "pair": "train.losses",
    "summed": "train.losses",
    # what a long computation asks so that it can be cancelled
    "limited": "host.limits",
    "poll": "host.limits",
    # a file that is complete or isn't there
    "new_file": "host.new_file",
    # graphs of which some sizes are computed, or which are made for some inputs alone
    "Argument": "ir.specialize",
    "Compute": "ir.specialize",
    "Form": "ir.specialize",
    "Given": "ir.specialize",
    "Interpreter": "ir.specialize",
    "Listed": "ir.specialize",
    "SizeNotKnown": "ir.dims",
    "SizeValues": "passes.size_values",
    "SizesRefused": "ir.specialize",
    "Specialize": "ir.specialize",
    "Subgraph": "ir.specialize",
    "Wanted": "ir.specialize",
    "at_least": "ir.dims",
    "bind": "passes.bind_shapes",
    "default_registry": "plugin.registry",
    "element_name": "ir.specialize",
    "eliminate_dead_code": "passes.dead_code",
    "has_reads": "passes.size_values",
    "least_size": "ir.dims",
    "terms_of": "ir.dims",
    # what kernels and converters of some ops share with their declarations
    "REDUCTIONS": "ops.fused",
    "program_steps": "ops.fused",
    "affine_positions": "ops.grid_sample",
    "col2im_elements": "ops.conv",
    "coordinates_of": "ops.resize",
    "tap_positions": "ops.grid_sample",
    "taps": "ops.resize",
    "UNSEEDED": "ops.random",
    # the conformance kit
    "Sample": "testing.sample",
    "check_device": "testing.conformance",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"dataflow.{_NAMES[name]}"), name)
    if name == "__all__":  # for import *, which asks for it
        return [*_NAMES]
    raise AttributeError(f"module 'dataflow.plugin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
