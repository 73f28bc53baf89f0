"""Sizes that are computed from sizes: found once for those that come again, and by the newest data otherwise."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.passes import size_values
from dataflow.passes.size_values import CompletedSizes
from dataflow.plugin.registry import default_registry

KERNELS = default_registry().reference_kernels


def number_of(g, size):
    """A size as a value, int64[1]."""
    node = g.add(ops.full, (), {"shape": (size, 1), "value": 1, "dtype": df.int64})
    return ops.reduce_sum(node.outputs[0], axes=(0,), keepdims=0)


def halves():
    """A graph of n, whose size m = n / 2 - 1 and, where k is known, whose l = n + k are computed."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n",))
    n = number_of(g, x.type.shape[0])
    one, two = (g.constant(np.array([number])) for number in (1, 2))
    g.output("y", ops.read_shape(ops.sub(ops.div(n, two), one), sizes=(df.Dim("m"),)))
    g.output("z", ops.read_shape(ops.add(n, number_of(g, df.Dim("k"))), sizes=(df.Dim("l"),)))
    return g.build()


@pytest.fixture
def counted(monkeypatch):
    calls = []

    def noted(*arguments):
        calls.append(dict(arguments[1]))
        return original(*arguments)

    original = size_values.completed
    monkeypatch.setattr(size_values, "completed", noted)
    return calls


def test_the_same_sizes_are_computed_once(counted):
    sizes = CompletedSizes(halves())
    for _ in range(3):
        found = sizes.of({"n": 8}, KERNELS)
        assert found == {"n": 8, "m": 3}
        found["m"] = 99  # the caller's own
        assert sizes.of({"n": 10}, KERNELS) == {"n": 10, "m": 4}
    assert counted == [{"n": 8}, {"n": 10}]
    assert sizes.of({"n": 8, "m": 3, "k": 1}, KERNELS) == {"n": 8, "m": 3, "k": 1, "l": 9}
    assert sizes.of({"n": 8, "m": 3, "k": 1, "l": 9}, KERNELS) == {"n": 8, "m": 3, "k": 1, "l": 9}
    assert len(counted) == 3  # where all are known nothing is


def test_sizes_that_are_refused_are_refused_again(counted):
    sizes = CompletedSizes(halves())
    for _ in range(2):
        with pytest.raises(df.InputError, match="its size is computed, and is -1"):
            sizes.of({"n": 0}, KERNELS)
    assert len(counted) == 2


def test_a_bounded_number_is_kept(counted, monkeypatch):
    monkeypatch.setattr(size_values, "MOST_KEPT", 4)
    sizes = CompletedSizes(halves())
    for n in [*range(2, 12), *range(2, 12)]:
        assert sizes.of({"n": n}, KERNELS) == {"n": n, "m": n // 2 - 1}
        assert len(sizes._kept) <= 4


def test_outputs_of_runs_whose_sizes_depend_on_data():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n",))
    positive = ops.greater(x, g.constant(np.float32(0)))
    count = ops.read_shape(
        ops.reduce_sum(ops.cast(positive, to=df.int64), axes=(0,), keepdims=1), sizes=(df.Dim("hits"),)
    )
    found = ops.gather(x, ops.reshape(ops.nonzero(positive, count=df.Dim("hits")), shape=(df.Dim("hits"),)), axis=0)
    g.output("count", count)
    g.output("hits", found)
    session = df.Session(g.build(), devices=["numpy"])
    for given in ([1, -1, 2], [-1, -2, -3], [3, 4, 5], [1, -1, 2]):
        data = np.array(given, np.float32)
        hits = data[data > 0].tolist()
        for names in (None, ["hits"], ["count", "hits"], ["hits"], ["count"]):
            results = session.run({"x": data}, outputs=names)
            assert list(results) == (names or ["count", "hits"])
            assert "hits" not in results or results["hits"].tolist() == hits
            assert "count" not in results or results["count"].tolist() == [len(hits)]
    with pytest.raises(df.ModelError, match="no value 'others'"):
        session.run({"x": data}, outputs=["others"])
