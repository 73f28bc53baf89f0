"""A NaN is never lost, and what infinities make of it: the cpu against the reference in double precision."""

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES
from dataflow_numpy.evaluate import evaluate

ops = df.ops
KERNELS = default_registry().kernels["cpu"]


# How many results there are, which elements are read or which integers result depends on values; a transform of real
# numbers leaves out the products with a sine of 0.
BY_VALUE = {"nonzero", "non_max_suppression", "max_roi_pool", "max_roi_pool_grad", "dft"}


def small(sample):
    """Whether it is quick, and one of what the cpu computes from floats that can be chosen."""
    (node,) = sample.build().nodes
    size = sum(int(np.prod(o.shape)) for o in sample.inputs if o is not None)
    taken = any(kernel.refuses(node) is None for kernel in KERNELS.get(sample.op.name, ()))
    return taken and not node.bodies and 0 < size < 3000 and sample.op.name not in BY_VALUE


def with_nan(sample):
    """The sample's data with a NaN in one float operand at a time."""
    for index, array in enumerate(sample.arrays()):
        if array is not None and array.dtype == np.float32 and array.size:
            feeds = {name: a.copy() for name, a in sample.feeds().items()}
            at = np.random.default_rng(sample.seed + index).integers(array.size)
            feeds[f"x{index}"].reshape(-1)[at] = np.nan
            yield index, feeds


@pytest.mark.parametrize("op", sorted({sample.op.name for sample in SAMPLES if small(sample)}))
def test_a_nan_is_never_lost(op):
    for sample in [s for s in SAMPLES if s.op.name == op and small(s)][:6]:
        graph = sample.build()
        session = df.Session(graph, devices=["cpu"], fold=False)
        for index, feeds in with_nan(sample):
            with np.errstate(all="ignore"):
                expected = evaluate(graph, feeds, dtype=np.float64)
            for name, found in session.run(feeds).items():
                if found.dtype.kind == "f":
                    lost = np.isnan(expected[name]) & ~np.isnan(found)
                    assert not lost.any(), f"{sample.name}: of x{index} in {name} at {np.argwhere(lost)[0]}"


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_an_infinity_in_a_row_that_is_not_centered(device):
    """The mean square is infinite and its inverse 0: what is finite becomes 0, and infinity times 0 is NaN."""
    x = np.arange(1, 11, dtype=np.float32).reshape(2, 5)
    x[1, 3] = np.inf
    g = df.GraphBuilder()
    made = ops.layer_norm(g.input("x", df.float32, x.shape), axis=-1, epsilon=0.0, center=0)
    g.output("y", made[0] if isinstance(made, tuple) else made)
    found = df.Session(df.Model(g.build()), devices=[device]).run({"x": x})["y"]
    np.testing.assert_allclose(found[0], x[0] / np.sqrt(11), rtol=1e-6)
    np.testing.assert_array_equal(found[1], [0, 0, 0, np.nan, 0])


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("bounds", [(np.nan, 1.0), (0.0, np.nan), (None, np.nan), (np.nan, None)])
def test_a_bound_that_is_no_number(device, bounds):
    x = np.array([-1.0, 0.5, 2.0, np.inf], np.float32)
    g = df.GraphBuilder()
    ends = [None if b is None else g.input(f"b{i}", df.float32, ()) for i, b in enumerate(bounds)]
    g.output("y", ops.clip(g.input("x", df.float32, x.shape), *ends))
    feeds = {f"b{i}": np.float32(b) for i, b in enumerate(bounds) if b is not None}
    assert np.isnan(df.Session(df.Model(g.build()), devices=[device]).run({"x": x, **feeds})["y"]).all()
