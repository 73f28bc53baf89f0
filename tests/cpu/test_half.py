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


def test_every_float16_is_cast_to_the_bit():
    """Also where a NaN is near, whose bits stay, and in rows of any length."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    near = np.concatenate([np.nextafter(finite.astype(np.float32), np.float32(s)) for s in (-np.inf, np.inf)])
    halves = (finite.astype(np.float64)[1:] + finite.astype(np.float64)[:-1]) / 2  # ties
    ends = [65504, 65519.996, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan, -0.0, 2**-24, 2**-25, 2**-26]
    floats = np.concatenate([near, halves.astype(np.float32), np.array(ends, np.float32)])
    for length in (1, 7, 8, 17, 255, 257, 5000, len(every)):
        g = df.GraphBuilder()
        g.output("found", df.ops.cast(g.input("x", float16, (length,)), to=float32))
        with df.Session(df.Model(g.build()), ["cpu"], threads=1, fallback="error") as session:
            for begin in range(0, len(every), 7919 if length > 1000 else 20011):
                x = np.resize(every[begin:], length)
                found = session.run(x)["found"]
                numbers = ~np.isnan(x)
                np.testing.assert_array_equal(
                    found[numbers].view(np.uint32), x[numbers].astype(np.float32).view(np.uint32)
                )
                kept = (x.view(np.uint16) & 0x3FF).astype(np.uint32) << 13
                np.testing.assert_array_equal((found.view(np.uint32) & 0x7FFFFF)[~numbers], kept[~numbers])
    with np.errstate(over="ignore"):
        rounded = floats.astype(np.float16)
    for order in (slice(None), slice(None, None, -1)):
        x = floats[order]
        g = df.GraphBuilder()
        g.output("y", df.ops.cast(g.input("x", float32, x.shape), to=float16))
        found = df.Session(df.Model(g.build()), ["cpu"], threads=1, fallback="error").run(x)["y"]
        np.testing.assert_array_equal(
            found.view(np.uint16), np.where(np.isnan(x), np.float16(np.nan), rounded[order]).view(np.uint16)
        )


@pytest.mark.parametrize("dtype", STEPS, ids=str)
def test_one_op_between_casts_is_a_program_that_casts(dtype):
    """With operands that broadcast, have strides or are one element; the bits of the three nodes one by one."""
    random = np.random.default_rng(0)
    x = (3 * random.standard_normal((5, 1300))).astype(dtype.numpy)
    x[0, :4] = [np.nan, np.inf, -np.inf, -0.0]
    row, one = x[1], x[2:3, :1]
    transposed = np.ascontiguousarray(x.T)
    cases = [
        (df.ops.tanh, (x,)), (df.ops.maximum, (x, row)), (df.ops.sub, (one, x)), (df.ops.add, (x, transposed)),
        (df.ops.mul, (x[:, :0], row[:0])), (df.ops.neg, (one,)),
    ]  # fmt: skip
    for op, arrays in cases:
        results = []
        for fuse in (True, False):
            g = df.GraphBuilder()
            given = [g.input(f"x{i}", dtype, a.shape) for i, a in enumerate(arrays)]
            last = [df.ops.transpose(v, perm=(1, 0)) if v.type.shape == transposed.shape else v for v in given]
            g.output("y", op(*last))
            session = df.Session(df.Model(g.build()), ["cpu"], threads=1, fuse=fuse, fallback="error")
            feeds = {f"x{i}": a for i, a in enumerate(arrays)}
            results.append(session.run(feeds)["y"])
            names = [node.op for node in session.placement({k: v.shape for k, v in feeds.items()})]
            assert (names == ["fused_elementwise"]) == fuse or results[-1].size == 0, names
        np.testing.assert_array_equal(results[0].view(np.uint16), results[1].view(np.uint16), err_msg=op.name)
