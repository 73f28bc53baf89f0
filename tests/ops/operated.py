"""What operators and methods of values give, beside NumPy's."""

import numpy as np
import pytest

import dataflow as df
from dataflow_numpy.evaluate import evaluate


def computed(function, *arrays):
    """What ``function`` of values gives for these arrays, and the type that the graph declares for it."""
    g = df.GraphBuilder()
    values = [g.input(f"x{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
    y = function(*values)
    g.output("y", y)
    return evaluate(g.build(), {f"x{i}": a for i, a in enumerate(arrays)})["y"], y.type


def agrees(function, *arrays):
    found, declared = computed(function, *arrays)
    expected = function(*arrays)
    assert declared.shape == found.shape == expected.shape
    assert declared.dtype.numpy == found.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def refused(function, match, *, dtype=np.float32, shape=(3, 4)):
    g = df.GraphBuilder()
    with pytest.raises(df.InputError, match=match):
        function(g.input("x", dtype, shape))
