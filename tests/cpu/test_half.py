"""Models of float16 and bfloat16 on the CPU: every op that a float32 kernel computes, against float64."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

import dataflow as df
from dataflow.execute.python_device import call_kernel
from dataflow.ir.types import DType, bfloat16, float16, float32, float64
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES

LARGEST = 2_000  # elements of an operand
STEPS = {float16: 2.0**-10, bfloat16: 2.0**-7}  # from one number to the next, relative: float32 may round to either
BY_OP = defaultdict(list)
for _sample in SAMPLES:
    if not _sample.bodies and all(o is None or np.prod(o.shape) <= LARGEST for o in _sample.inputs):
        BY_OP[_sample.op.name].append(_sample)


def in_dtype(sample, dtype):
    """The sample with a dtype for float32, or None where it has none."""
    inputs = [dataclasses.replace(o, dtype=dtype) if o and o.dtype == float32 else o for o in sample.inputs]
    attributes = {k: dtype if isinstance(v, DType) and v == float32 else v for k, v in sample.attributes.items()}
    if inputs == [*sample.inputs] and attributes == sample.attributes:
        return None
    return dataclasses.replace(sample, inputs=tuple(inputs), attributes=attributes)


def run(graph, feeds):
    """The results on the CPU, and the devices that computed them."""
    session = df.Session(graph, ["cpu"], threads=1)
    results = session.run(feeds)
    return results, {node.device for node in session.placement({k: v.shape for k, v in feeds.items()})}


@pytest.mark.parametrize("dtype", STEPS, ids=str)
@pytest.mark.parametrize("op", BY_OP)
def test_an_op_computes_in_float32_and_rounds_once(op, dtype):
    kernel = default_registry().reference_kernels[op][0]
    for plain in BY_OP[op]:
        sample = in_dtype(plain, dtype)
        if sample is None:
            continue
        try:
            graph = sample.build()
        except df.DataflowError:
            continue  # the op has no such operands
        with np.errstate(over="ignore"):  # what float16 has no number for is infinite
            feeds, given = sample.feeds(), sample.arrays()
        results, used = run(graph, feeds)
        assert used <= {"cpu"} or used <= {"cpu"} | run(plain.build(), plain.feeds())[1], f"{sample.name} ran on {used}"
        (node,) = graph.nodes
        arrays = [a.astype(np.float64) if a is not None and a.dtype == dtype.numpy else a for a in given]
        attributes = {k: float64 if v == dtype else v for k, v in node.attributes.items()}
        expected = call_kernel(kernel.code, node, arrays, attributes)
        for index, (value, exact) in enumerate(zip(node.outputs, expected, strict=False)):
            found, wanted = results[f"y{index}"], np.asarray(exact)
            assert found.dtype == value.type.dtype.numpy and found.shape == value.type.shape
            if value.type.dtype != dtype:
                np.testing.assert_allclose(found, wanted.astype(found.dtype), 1e-6, err_msg=sample.name)
                continue
            with np.errstate(over="ignore"):
                wanted, found = wanted.astype(dtype.numpy).astype(np.float64), found.astype(np.float64)
            largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
            with np.errstate(invalid="ignore"):
                near = np.abs(found - wanted) <= STEPS[dtype] * np.maximum(np.abs(wanted), 0.05 * largest)
            right = near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))
            assert right.all(), f"{sample.name}: {found[~right][:3]} instead of {wanted[~right][:3]}"
