"""The op ``swish``, y = x / (1 + exp(-beta x)): declaration, reference in NumPy, samples, and a kernel for CUDA."""

from pathlib import Path

import numpy as np

import dataflow as df
from dataflow.plugin import Kernel, Op, OperandSpec, hookimpl
from dataflow.testing import Operand, Sample

LIBRARY = Path(__file__).parent / "swish.so"


def _in_smaller_ops(x, beta):
    return df.ops.mul(x, df.ops.sigmoid(df.ops.mul(x, beta)))


# The decomposition into smaller ops gives it a gradient and runs on devices that have no kernel for it. As a pattern
# the same ops are matched in graphs that were written without swish, which then use the kernel too.
swish = Op(
    "swish",
    inputs=("x",),
    infer=lambda x, beta: x,
    attributes={"beta": 1.0},
    decompose=_in_smaller_ops,
    pattern=(df.Pattern(_in_smaller_ops),),
    inplace=((0, 0),),
    doc="y = x / (1 + exp(-beta x)), elementwise.",
)


def _reference(attributes, x):
    return (x / (1 + np.exp(-attributes["beta"] * x))).astype(x.dtype)


@hookimpl
def dataflow_ops():
    """The declaration."""
    return [swish]


@hookimpl
def dataflow_kernels(device):
    """A reference for every machine, and the library's kernel for cards."""
    if device.role == "reference":
        anything = OperandSpec(strided=True)
        return [Kernel("swish", "swish numpy", (anything,), (anything,), _reference)]
    if device.name == "cuda" and LIBRARY.exists():
        return df.kernels_of(LIBRARY)
    return []


@hookimpl
def dataflow_samples():
    """What the conformance kit tries."""
    shapes = ((), (0,), (1000,), (3, 5, 7))
    return [Sample(swish, (Operand(shape),), {"beta": 1.5}, gradient=(0,)) for shape in shapes]
