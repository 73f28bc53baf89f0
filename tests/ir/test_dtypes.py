"""Every op with every element type: refused when the node is made, or computed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.types import DTYPES
from dataflow.testing.sample import Sample
from dataflow.testing.samples import SAMPLES

ops = df.ops
SMALL_TYPES = [d for d in DTYPES if d.bits in (2, 4)]
POOLED = [df.bfloat16, df.float16, df.float8e4m3fn, df.int4, df.int8, df.uint8]


def smallest_samples() -> dict[str, Sample]:
    """One of each op, with as many operands as it takes."""
    found: dict[str, tuple[tuple[int, int], Sample]] = {}
    for sample in SAMPLES:
        shapes = [o.shape for o in sample.inputs if o is not None]
        if not sample.bodies and not any(0 in s for s in shapes):
            cost = (-len(shapes), sum(int(np.prod(s)) for s in shapes))
            if sample.op.name not in found or cost < found[sample.op.name][0]:
                found[sample.op.name] = (cost, sample)
    return {op: sample for op, (_, sample) in found.items()}


def with_dtype(sample: Sample, old: df.DType, new: df.DType) -> Sample:
    """The sample with operands and attributes of one dtype in another; values that it fixes are left to chance."""
    inputs = tuple(
        o
        if o is None or o.dtype != old
        else dataclasses.replace(
            o, dtype=new, kind="normal", value=np.full(o.shape, "a") if new.kind == "s" else None, low=0, high=2
        )
        for o in sample.inputs
    )
    attributes = {k: new if isinstance(v, df.DType) and v == old else v for k, v in sample.attributes.items()}
    return dataclasses.replace(sample, inputs=inputs, attributes=attributes)


SMALLEST = smallest_samples()
OF_DATA = {
    "nonzero",
    "roi_align",
    "roi_align_grad",
    "max_roi_pool",
    "max_roi_pool_grad",
    "tree_ensemble",
}  # refuse some


@pytest.mark.parametrize("op", SMALLEST)
def test_an_op_computes_with_a_dtype_or_refuses_it_when_the_node_is_made(op: str) -> None:
    sample = SMALLEST[op]
    for old in {o.dtype for o in sample.inputs if o is not None}:
        for new in DTYPES:
            tried = with_dtype(sample, old, new)
            try:
                graph = tried.build()
            except df.InputError:
                continue
            feeds = {f"x{i}": array for i, array in enumerate(tried.arrays()) if array is not None}
            session = df.Session(graph, ["numpy"], fold=False)
            session.plan({name: array.shape for name, array in feeds.items()})
            try:
                found = session.run(feeds)
            except df.InputError as error:  # the data: how many are not zero, which labels there are
                assert op in OF_DATA or "is outside" in str(error), new
                continue
            assert {k: a.dtype for k, a in found.items()} == {k: v.type.dtype.numpy for k, v in graph.outputs.items()}


@pytest.mark.parametrize("dtype", [df.bfloat16, df.float16, df.float8e4m3fn, df.int4, df.int8, df.uint8])
def test_maxima_and_their_indices_in_every_dtype(dtype: df.DType) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0 if dtype.kind == "u" else -8, 8, (2, 3, 6, 5)).astype(dtype.numpy)
    g = df.GraphBuilder()
    x = g.input("x", dtype, values.shape)
    window = {"kernel": (2, 3), "strides": (2, 1), "pads": (1, 1, 0, 1), "dilations": (1, 1)}
    for name, value in zip(("y", "indices"), g.add(ops.max_pool, (x,), window).outputs, strict=True):
        assert value is not None
        g.output(name, value)
    found = df.Session(g.build(), ["numpy"]).run(values)
    for n, c, i, j in np.ndindex(*found["y"].shape):
        rows, columns = (slice(max(2 * i - 1, 0), 2 * i + 1), slice(max(j - 1, 0), j + 2))
        sliced = values[n, c, rows, columns].astype(np.float32)
        first = np.unravel_index(sliced.argmax(), sliced.shape)
        assert float(found["y"][n, c, i, j]) == sliced.max()
        assert found["indices"][n, c, i, j] == (rows.start + first[0]) * 5 + columns.start + first[1]


# ---- types of less than a byte ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("dtype", SMALL_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, 4, 2)], ids=str)
def test_small_types_through_views_copies_and_results(device: str, dtype: df.DType, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    low, high = (-2, 2) if dtype.kind == "i" else (0, 4)
    values = random.integers(low, high, shape).astype(np.float32)
    array = values.astype(dtype.numpy)
    rank = len(shape)
    g = df.GraphBuilder()
    x = g.input("x", dtype, shape)
    stored = g.constant(array)
    ranges: dict[str, Any] = {
        "starts": tuple(d - 1 for d in shape), "stops": (-1,) * rank, "steps": (-2,) * rank
    }  # fmt: skip
    sliced = ops.slice(x, **ranges) if rank else x
    transposed = ops.transpose(x, perm=tuple(reversed(range(rank))))
    g.output("copy", ops.copy(x))
    g.output("stored", ops.copy(stored))
    g.output("sliced", sliced)
    g.output("transposed", transposed)
    g.output("float", ops.cast(sliced, to=df.float32))
    g.output("back", ops.cast(ops.cast(transposed, to=df.float32), to=dtype))
    if rank:
        g.output("twice", ops.concat(x, stored, axis=0))
    session = df.Session(g.build(), [device])
    plan = session.plan({"x": shape})
    assert all(arena.bytes >= array.size for arena in plan.arenas if arena.kind in ("input", "weights"))
    found = session.run(array)
    every = tuple(slice(None, None, -2) for _ in shape)
    expected = {
        "copy": values, "stored": values, "sliced": values[every], "transposed": values.transpose(),
        "float": values[every], "back": values.transpose(),
    }  # fmt: skip
    if rank:
        expected["twice"] = np.concatenate([values, values])
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name].astype(np.float32), wanted, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_in_memory_are_numpys_and_in_files_bytes_hold_several_elements(dtype: df.DType) -> None:
    if dtype.kind != "s":
        assert dtype.nbytes(7) == 7 * dtype.numpy.itemsize
        assert dtype.packed_nbytes(7) == -(-7 * dtype.bits // 8)


@pytest.mark.parametrize("given", [np.float64, np.dtype("float64"), float])
def test_attributes_take_numpys_dtypes_as_inputs_do(given: Any) -> None:
    g = df.GraphBuilder()
    x, index = g.input("x", given, (2,)), g.input("index", np.int64, (2,))
    assert ops.cast(ops.cast(x, to=np.int8), to=given).type == x.type
    for dtype in (given, "float64"):
        assert ops.one_hot(index, depth=3, dtype=dtype).type == df.TensorType(df.float64, (2, 3))
    assert g.nodes()[0].attributes["to"] is df.int8
    for dtype in ("text", 3, None):
        with pytest.raises(df.InputError, match="is no dtype; expected one of float32"):
            ops.one_hot(index, depth=3, dtype=dtype)
