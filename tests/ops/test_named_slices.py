"""Slices along an axis of a named size: NumPy's results, or an error that says which axis they leave."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

KEYS = [
    slice(start, stop, step)
    for start in (None, 0, 1, 3, -1, -3)
    for stop in (None, 0, 2, 3, -1, -4)
    for step in (1, 2, -1, -2)
]
KEYS = [*KEYS[::3], slice(2, -5), slice(1, 1, -2), slice(1, None), slice(None, -1), slice(1, -1)]
N = df.Dim("N")


def of_a_graph(function, **options):
    g = df.GraphBuilder()
    d = g.input("d", df.float32, ("N", 3))
    y = function(d)
    g.output("y", y)
    graph = g.build()
    return df.Session(graph, **options), df.Model(graph), y.type


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.start}:{key.stop}:{key.step}")
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_what_a_slice_of_a_named_size_gives_is_what_numpy_gives(key, device):
    session, _, declared = of_a_graph(lambda d: d[key] * 2, devices=[device])
    for n in (4, 6, 5, 3, 2, 1, 0):
        array = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        try:
            found = session.run({"d": array})["y"]
        except df.InputError as error:
            assert f"leaves an axis of size {n}" in str(error) and f"here N = {n}" in str(error)
            most = n if key.step is None or key.step > 0 else n - 1
            assert not all(end is None or -n <= end <= most for end in (key.start, key.stop))
            continue
        np.testing.assert_array_equal(found, array[key] * 2)
        assert declared.bind({"N": n}).shape == found.shape


def test_the_gradient_of_a_sum_of_no_element_is_zero():
    _, model, _ = of_a_graph(lambda d: ops.sin(d[2:-5, 1]).sum() + ops.sin(d[1:-1]).mean())
    for n in (9, 6):
        array = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        expected = np.zeros_like(array)
        expected[1:-1] += np.cos(array[1:-1]) / (3 * (n - 2))
        expected[2:-5, 1] += np.cos(array[2:-5, 1])
        np.testing.assert_allclose(df.vjp(model, {"d": array})["d"], expected, atol=1e-6)


@pytest.mark.parametrize("key", [(slice(2, -5), 0), (slice(2, -5), None), (slice(1, -1), slice(1, 2))], ids=repr)
def test_what_reads_an_empty_slice_gets_its_shape_and_has_a_gradient(key):
    _, model, declared = of_a_graph(lambda d: ops.sin(d[key]) + 1)
    for n in (6, 9, 1):
        array = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        found = model(array)["y"]
        np.testing.assert_allclose(found, np.sin(array[key]) + 1, rtol=1e-6)
        assert declared.bind({"N": n}).shape == found.shape
        expected = np.zeros_like(array)
        expected[key if key[1] is not None else key[0]] = np.cos(array[key if key[1] is not None else key[0]])
        np.testing.assert_allclose(df.vjp(model, {"d": array})["d"], expected, atol=1e-6)


def test_sizes_that_count_an_empty_slice_as_less_than_nothing_are_refused_with_that_reason():
    session, _, _ = of_a_graph(lambda d: ops.concat(d[2:-5], d, axis=0))
    assert session.run({"d": np.ones((7, 3), np.float32)})["y"].shape == (7, 3)
    with pytest.raises(df.InputError, match=r"'slice' has no elements along the axis of size -7 \+ N, .* as less"):
        session.run({"d": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize(
    "function",
    [
        lambda d: ops.broadcast_to(d[2:-5].sum(), shape=(d[2:-5].shape[0] + 3, 2)),
        lambda d: d[:, : d[2:-5].shape[0] + 3],
        lambda d: d.builder.add(ops.sizes, (), {"values": (d[2:-5].shape[0] + 3,), "shape": ()}).outputs[0],
    ],
    ids=["shape", "end", "data"],
)
def test_what_is_computed_of_the_size_of_an_empty_slice_is_refused(function):
    session, _, _ = of_a_graph(lambda d: ops.copy(function(d)))
    assert session.run({"d": np.ones((7, 3), np.float32)})["y"].shape in ((3, 2), (7, 3), ())
    with pytest.raises(df.InputError, match=r"it reads the size .*-4 \+ N.*, and -7 \+ N.* is -1; here N = 6"):
        session.run({"d": np.ones((6, 3), np.float32)})


@pytest.mark.parametrize(
    ("function", "theirs"),
    [
        (lambda d: d[: d.shape[0] // 2], lambda a: a[: len(a) // 2]),
        (lambda d: d[N // 2 :], lambda a: a[len(a) // 2 :]),
        (lambda d: d[-N:], lambda a: a[-len(a) :]),
        (lambda d: d[N - 1], lambda a: a[len(a) - 1]),
        (lambda d: d[N - 2 :: -1], lambda a: a[len(a) - 2 :: -1]),
        (lambda d: d[: N - 2, 1], lambda a: a[: len(a) - 2, 1]),
    ],
    ids=["half", "from-half", "from-the-end", "last", "back", "all-but-two"],
)
def test_sizes_are_ends_and_indices(function, theirs):
    session, model, declared = of_a_graph(lambda d: function(d) * 2)
    for n in (2, 5, 6, 7):
        array = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        np.testing.assert_array_equal(session.run({"d": array})["y"], theirs(array) * 2)
        assert declared.bind({"N": n}).shape == theirs(array).shape
        seen = np.zeros_like(array)
        theirs(seen)[...] = 2
        np.testing.assert_array_equal(df.vjp(model, {"d": array})["d"], seen)


def test_a_size_is_an_end_in_an_axis_of_a_fixed_size():
    session, _, declared = of_a_graph(lambda d: d[:, : N - 1])
    assert declared.shape == (N, N - 1)
    assert session.run({"d": np.ones((3, 3), np.float32)})["y"].shape == (3, 2)
    with pytest.raises(df.InputError, match="0:4:1 leaves an axis of size 3"):
        session.run({"d": np.ones((5, 3), np.float32)})


def test_a_size_of_the_other_sign_is_refused_when_it_is_known():
    session, _, _ = of_a_graph(lambda d: d[: N - 2])
    with pytest.raises(df.InputError, match=r"slice of 'd', axis 0: the index or end -2 \+ N is negative.*N = 1"):
        session.run({"d": np.ones((1, 3), np.float32)})
    session, _, _ = of_a_graph(lambda d: d[-N:])
    with pytest.raises(df.InputError, match=r"the index or end -1\*N is 0, which doesn't count from the end"):
        session.run({"d": np.ones((0, 3), np.float32)})
    with pytest.raises(df.InputError, match=r"slice of 'd', axis 0: the step is the size N; expected an int"):
        of_a_graph(lambda d: d[::N])


def test_a_name_is_no_size_of_a_shape():
    with pytest.raises(df.InputError, match=r"broadcast_to: shape \(2, N, 3\) has the text 'N'.*df.Dim\('N'\)"):
        of_a_graph(lambda d: ops.broadcast_to(d, shape=(2, "N", 3)))
    assert of_a_graph(lambda d: ops.broadcast_to(d, shape=(2, N, 3)))[2].shape == (2, N, 3)
