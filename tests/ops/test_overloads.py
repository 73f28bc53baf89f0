"""Operators, slicing and methods of values, against NumPy's own."""

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate
from tests.ops.operated import agrees, computed, refused

RANDOM = np.random.default_rng(7)
X = RANDOM.uniform(0.5, 2.0, (3, 4)).astype(np.float32)
Y = RANDOM.uniform(0.5, 2.0, (3, 4)).astype(np.float32)
CUBE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


# ---- arithmetic ---------------------------------------------------------------------------------------

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("function", ARITHMETIC, ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", [2, 0.5, np.float32(1.5), np.float64(1.5), np.int64(3)], ids=repr)
def test_arithmetic_with_values_numbers_and_arrays_on_either_side(function, other):
    agrees(function, X, Y)
    agrees(function, X, Y[:1])
    agrees(lambda x: function(x, np.float32(other)), X)
    found, declared = computed(lambda x: function(other, x), X)
    np.testing.assert_allclose(found, function(np.float32(other), X), rtol=1e-6)
    assert declared.dtype == df.float32
    # Of another dtype and shape than the value: NumPy must leave the operation to the value.
    for array in (Y.astype(np.float64), Y[0].tolist(), np.arange(1, 5)):
        found, declared = computed(lambda x, array=array: function(array, x), X)
        np.testing.assert_allclose(found, function(np.float32(array), X), rtol=1e-6)
        assert declared == df.TensorType(df.float32, (3, 4))


def test_matmul_on_either_side_and_negation():
    agrees(operator.matmul, X, Y.T.copy())
    agrees(lambda x: x @ Y.T, X)
    agrees(lambda x: Y.T @ x, X)
    agrees(operator.neg, X)
    agrees(lambda x: -((x @ Y.T) ** 2) / 3 + 1, X)
    refused(lambda x: x @ np.ones(4), "two axes or more; reshape vectors")


def test_sum_of_a_list_of_values():
    found, _ = computed(lambda x, y: sum([x, y, x]), X, Y)
    np.testing.assert_allclose(found, X + Y + X, rtol=1e-6)


def test_integers_stay_integers_and_exact():
    integers = np.array([[1, -2, 3]], np.int64)
    agrees(lambda x: x * 3 - 1 + np.array([2**40, 0, 1]), integers)
    found, declared = computed(lambda x: 2.0 * x, integers)  # a whole number, though a float
    assert declared.dtype == df.int64 and found.tolist() == [[2, -4, 6]]
    refused(lambda x: x * 0.5, r"mul of 'x', which is int64\[3, 4\], and 0.5.*cast the value", dtype=np.int64)
    refused(lambda x: x + np.array([1.0, 2.5, 0.0, 0.0]), "add of 'x'.*int64", dtype=np.int64)
    refused(lambda x: x + 300, "what uint8 can hold", dtype=np.uint8)
    refused(lambda x: -1 - x, "what uint8 can hold", dtype=np.uint8)
    refused(lambda x: x + np.nan, "what int32 can hold", dtype=np.int32)
    refused(lambda x: x + 2, "what bool can hold", dtype=np.bool_)
    refused(lambda x: x / 2, "/ of 'x'.*cast it first, or use df.ops.div", dtype=np.int64)
    refused(lambda x: 2 / x, "/ of 'x'", dtype=np.int64)


@pytest.mark.parametrize(
    "other", ["text", None, 1j, object(), [[1, 2], [3]]], ids=["str", "none", "complex", "o", "ragged"]
)
def test_other_operands_are_refused(other):
    g = df.GraphBuilder()
    with pytest.raises(df.InputError, match=r"add of 'x', which is float32\[3\], and .*what float32 can hold"):
        g.input("x", df.float32, (3,)) + other


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize(
    "masked",
    [
        lambda x: x * (x != 0),
        lambda x: (x == 0) + x,
        lambda x: x - (x == 0),
        lambda x: df.ops.mul(x, x != 0),
        lambda x: df.ops.where(x == 0, 1, x),
        lambda x: df.ops.add(True, x),
    ],
    ids=["operator", "left", "sub", "op", "where", "op-left"],
)
def test_bools_of_python_are_no_numbers_since_comparisons_of_values_give_them(masked, dtype):
    refused(masked, r"of 'x', which is \w+\[3, 4\], and (True|False).*df.ops.equal\(x, y\).*df.ops.where", dtype=dtype)


def test_bools_of_python_stand_beside_bools_and_arrays_of_them_beside_numbers():
    found, _ = computed(lambda x: df.ops.logical_xor(x, True), np.array([True, False]))
    assert found.tolist() == [False, True]
    agrees(lambda x: x * np.array([True, False, True, True]), X)


def test_dtypes_of_two_values_are_not_mixed():
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, (3,)), g.input("y", df.float64, (3,))
    with pytest.raises(df.InputError, match=r"float32\[3\] and float64\[3\].*cast.*test_overloads.py:\d+"):
        x + y


def test_two_byte_floats_take_numbers_and_their_own_arrays():
    for dtype in (df.float16, df.bfloat16):
        g = df.GraphBuilder()
        y = (g.input("x", dtype, (2,)) * 1.5 + np.ones(2, dtype.numpy)) / 2
        assert y.type == df.TensorType(dtype, (2,))
        g.output("y", y)
        found = evaluate(g.build(), {"x": np.array([1, 3], dtype.numpy)})["y"]
        np.testing.assert_array_equal(found.astype(np.float32), [1.25, 2.75])


def test_values_of_different_graphs_do_not_mix():
    one, other = df.GraphBuilder(), df.GraphBuilder()
    with pytest.raises(df.ModelError, match="belongs to another graph"):
        one.input("x", df.float32, (3,)) + other.input("y", df.float32, (3,))


def test_comparison_is_identity_and_values_are_no_sequences():
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, (3,)), g.input("y", df.float32, (3,))
    assert x == x and x != y and len({x, y}) == 2 and [y, x].index(x) == 1
    for use in (iter, tuple, lambda v: 1.0 in v):
        with pytest.raises(TypeError, match=r"not iterable|not a container"):
            use(x)
    compared = {operator.lt: "less", operator.le: "less_equal", operator.gt: "greater", operator.ge: "greater_equal"}
    for compare, name in compared.items():
        with pytest.raises(TypeError, match=rf"'x' is a node's result.*use df.ops.{name}\(x, y\)"):
            compare(x, y)
        with pytest.raises(TypeError, match="which <, <=, > and >= don't compare"):
            compare(0.5, x)
    with pytest.raises(TypeError, match="no truth value"):
        bool(x)


# ---- slicing ------------------------------------------------------------------------------------------

KEYS = [
    np.s_[1], np.s_[-1], np.s_[1, 2, 3], np.s_[:], np.s_[...], np.s_[()], np.s_[..., 0], np.s_[0, ..., -1],
    np.s_[:, 1:3], np.s_[::-1], np.s_[::2, ::-2], np.s_[..., ::-3], np.s_[None], np.s_[:, None, 1], np.s_[..., None],
    np.s_[None, ..., None, 2], np.s_[-100:100], np.s_[100:], np.s_[:-100], np.s_[5:2], np.s_[2:0:-1],
    np.s_[-10:-20:-1], np.s_[1, 1:1, None], np.s_[np.int64(1)],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_slices_are_numpys(key):
    agrees(operator.itemgetter(key), CUBE)


@settings(max_examples=150)
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
def test_random_slices_are_numpys(data, shape):
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    g = df.GraphBuilder()
    y = g.input("x", df.float32, shape)[key]
    g.output("y", y)
    expected = array[key]
    assert y.shape == np.shape(expected)
    feeds = {"x": array}
    graph = g.build()
    np.testing.assert_array_equal(evaluate(graph, feeds)["y"], expected)


def test_slices_run_on_the_c_device_and_have_gradients():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, CUBE.shape)
    g.output("y", x[1:, None, ::-2, 3] * 2)
    graph = g.build()
    found = df.Session(graph, devices=["cpu"]).run({"x": CUBE})["y"]
    np.testing.assert_array_equal(found, CUBE[1:, None, ::-2, 3] * 2)
    dy = RANDOM.standard_normal(found.shape).astype(np.float32)
    expected = np.zeros_like(CUBE)
    expected[1:, None, ::-2, 3] = 2 * dy
    joint = vjp_graph(graph, graph.inputs)
    np.testing.assert_array_equal(evaluate(joint, {"x": CUBE, "grad.y": dy})["grad.x"], expected)


def test_what_reads_everything_adds_no_node():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 4))
    assert x[:] is x and x[...] is x and x[()] is x and x[0:, :4] is x
    assert not g.nodes()


@pytest.mark.parametrize("n", [3, 7])
@pytest.mark.parametrize(
    "key",
    [np.s_[-1], np.s_[0], np.s_[1:], np.s_[:-1], np.s_[-2:], np.s_[::-1], np.s_[::2], np.s_[:2, 1], np.s_[None, 1::2]],
    ids=repr,
)
def test_slices_of_a_named_size(key, n):
    g = df.GraphBuilder()
    y = g.input("x", df.float32, ("n", 4))[key]
    g.output("y", y)
    array = np.arange(n * 4, dtype=np.float32).reshape(n, 4)
    assert y.type.bind({"n": n}).shape == array[key].shape
    for device in ("numpy", "cpu"):
        np.testing.assert_array_equal(df.Session(g.build(), devices=[device]).run({"x": array})["y"], array[key])


def test_a_range_that_leaves_a_named_size_is_an_error_when_it_is_known():
    g = df.GraphBuilder()
    g.output("y", g.input("x", df.float32, ("n", 4))[:5])
    session = df.Session(g.build(), devices=["numpy"])
    assert session.run({"x": np.ones((5, 4), np.float32)})["y"].shape == (5, 4)
    with pytest.raises(df.InputError, match="0:5:1 leaves an axis of size 3"):
        session.run({"x": np.ones((3, 4), np.float32)})


def test_bad_slices_are_refused():
    refused(lambda x: x[3], r"slice of 'x', axis 0: index 3 is outside float32\[3, 4\]; its size is 3")
    refused(lambda x: x[0, -5], "axis 1: index -5 is outside")
    refused(lambda x: x[0, 0, 0], r"3 indices for float32\[3, 4\], which has 2 axes")
    refused(lambda x: x[..., ...], "comes 2 times")
    refused(lambda x: x[::0], "axis 0: the step is 0")
    refused(lambda x: x[1.0], "axis 0: got 1.0; expected an int, a slice, None or ...")
    refused(lambda x: x[:, 0.5:], "axis 1: got 0.5")
    refused(lambda x: x["a"], "axis 0: got 'a'")
    refused(lambda x: x[True], "df.ops.where for a mask")
    refused(lambda x: x[:, [0, 1]], r"axis 1: got \[0, 1\].*df.ops.gather\(x, indices, axis=1\)")
    refused(lambda x: x[np.array([0, 1])], "use df.ops.gather")
    refused(lambda x: x[x], "is a value; use df.ops.gather")
    refused(lambda x: x[x:], "is a value")


# ---- methods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(60,), (-1,), (4, -1), (-1, 5, 2, 1), ((3, 20),), ([-1, 6],), (np.int64(2), -1)], ids=repr
)
def test_reshape(shape):
    agrees(lambda x: x.reshape(*shape), CUBE)


def test_reshape_of_other_sizes():
    agrees(lambda x: x.reshape(()), np.ones((1, 1), np.float32))
    agrees(lambda x: x.reshape(0, 5), np.ones((0, 2), np.float32))
    agrees(lambda x: x.reshape(-1, 2), np.ones((0, 2), np.float32))
    n = df.Dim("n")
    for shape, expected in (((-1, 4), (n * 3, 4)), ((n, -1), (n, 12)), ((-1,), (n * 12,))):
        g = df.GraphBuilder()
        y = g.input("x", df.float32, (n, 3, 4)).reshape(shape)
        assert y.shape == expected
        g.output("y", y)
        array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        found = df.Session(g.build(), devices=["numpy"]).run({"x": array})["y"]
        np.testing.assert_array_equal(found, array.reshape(y.type.bind({"n": 2}).sizes))
    refused(lambda x: x.reshape(5, -1), r"reshape of 'x': no size instead of -1 in \(5, -1\) gives the elements of")
    refused(lambda x: x.reshape(-1, -1), "-1 comes 2 times")
    refused(lambda x: x.reshape(-2, -6), "negative size")
    refused(lambda x: x.reshape(5, 2), "has 12 elements, shape")
    refused(lambda x: x.reshape(6.0, 2), "reshape of 'x': got 6.0; expected an int")
    refused(lambda x: x.reshape(-1, 0), "no size instead of -1", shape=(0, 3))


@pytest.mark.parametrize("perm", [(), (1, 0, 2), ((2, 0, 1),), (-1, 0, 1), ([0, 2, 1],)], ids=repr)
def test_transpose(perm):
    agrees(lambda x: x.transpose(*perm), CUBE)


def test_bad_transposes_are_refused():
    refused(lambda x: x.transpose(0, 0), r"perm \(0, 0\) is no order")
    refused(lambda x: x.transpose(0), "is no order")
    refused(lambda x: x.transpose(0, 2), "axis 2 of a tensor of rank 2")
    refused(lambda x: x.transpose("a", "b"), "got 'a'")


@pytest.mark.parametrize("axes", [None, 0, -1, (0, 2), [1], (), np.int64(1)], ids=repr)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_sum_and_mean(name, axes, keepdims, device):
    array = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
    g = df.GraphBuilder()
    y = getattr(g.input("x", df.float32, array.shape), name)(axes, keepdims=keepdims)
    g.output("y", y)
    axis = tuple(axes) if isinstance(axes, list) else axes
    expected = getattr(array.astype(np.float64), name)(axis=axis, keepdims=keepdims)
    assert y.shape == expected.shape
    np.testing.assert_allclose(
        df.Session(g.build(), devices=[device]).run({"x": array})["y"], expected, rtol=1e-5, atol=1e-6
    )


def test_bad_reductions_are_refused():
    refused(lambda x: x.sum(2), "axis 2 of a tensor of rank 2")
    refused(lambda x: x.sum((0, -2)), "name an axis twice")
    refused(lambda x: x.sum("a"), "got 'a'")
    refused(lambda x: x.mean(), "reduce_mean: expected a float type", dtype=np.int64)


def test_nodes_of_operators_name_the_users_line():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3, 4))
    y = x[1:] * 2
    assert all("test_overloads.py" in node.origin for node in g.nodes())
    assert [n.op.name for n in g.nodes()] == ["slice", "mul"] and y.builder is g


def test_a_number_beside_a_condition_has_the_dtype_of_the_other_operand():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("y", df.ops.where(df.ops.less(x, 0.0), 0.5, x))
    found = df.Session(g.build(), devices=["numpy"]).run({"x": np.array([-1, 2, -3], np.float32)})["y"]
    np.testing.assert_array_equal(found, np.array([0.5, 2, 0.5], np.float32))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda x: df.ops.relu(x=x),
            "relu: none of its inputs is a value.*; operands have no names in a call: give 'x'",
        ),
        (lambda x: df.ops.matmul(x, b=x), "matmul: input 'b' is missing; operands have no names in a call: give 'b'"),
        (lambda x: df.ops.softmax(x, y=x), "unknown attribute 'y'; it has: axis; operands have no names.*give 'y'"),
        (lambda x: df.ops.concat([x, x], axis=0), r"operands are no list: give them one by one, concat\(a, b\)"),
        (lambda x: df.ops.reshape(x, shape=(-1,)), r"give every size, .*e.g. x.shape\[0\]; x.reshape\(...\)"),
    ],
    ids=["relu", "matmul", "softmax", "concat", "reshape"],
)
def test_operands_are_given_by_position(call, says):
    refused(call, says)
