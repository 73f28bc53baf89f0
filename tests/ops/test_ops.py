"""Declarations of the basic ops: shape rules, views and decompositions, against NumPy's own."""

import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dataflow as df
from dataflow.ir.graph import Node
from dataflow.ir.op import AnyOp
from dataflow.ir.types import contiguous_strides
from dataflow.ir.value import Value
from dataflow.ops import activation, arithmetic, linalg, reduce
from dataflow.ops.gather import OPS as GATHER
from dataflow.ops.shape import OPS as SHAPE
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES
from dataflow_numpy.evaluate import evaluate
from dataflow_numpy.kernels import KERNELS

ops = df.ops
BASIC = {op.name for ops_ in (*(f.OPS for f in (activation, arithmetic, linalg, reduce)), GATHER, SHAPE) for op in ops_}
SETTINGS = settings(max_examples=150)


def f32(*shape):
    return df.TensorType(df.float32, shape)


# ---- the collection -----------------------------------------------------------------------------------


def test_every_declaration_of_every_family_is_collected_once():
    declared = []
    for path in Path(linalg.__file__).parent.glob("*.py"):
        if path.stem in ("__init__", "infer"):
            continue
        family = importlib.import_module(f"dataflow.ops.{path.stem}")
        own = {id(v): v for v in vars(family).values() if isinstance(v, AnyOp)}
        assert {id(op) for op in family.OPS} <= own.keys(), f"{path.stem}.OPS has an op that is no name of the module"
        declared += own.values()
    assert {op.name for op in declared} == {op.name for op in ops.ALL}
    assert len({op.name for op in ops.ALL}) == len(ops.ALL)
    assert all(getattr(ops, op.name) is op for op in ops.ALL)
    assert set(dir(ops)) == {"ALL", *(op.name for op in ops.ALL)}


def test_an_unknown_op_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"no op 'sigmoidd'; nearest: sigmoid"):
        ops.sigmoidd  # noqa: B018


@pytest.mark.parametrize("op", ops.ALL, ids=lambda op: op.name)
def test_declarations_hold_together(op):
    assert op.name in KERNELS, "no reference"
    assert op.doc, "no doc"
    variadic = any(name.endswith("*") for name in (*op.inputs, *op.outputs))
    for result, operand in op.inplace:
        assert result < len(op.outputs) or variadic
        assert operand < len(op.inputs) or variadic
    if op.view is not None:
        assert len(op.inputs) == len(op.outputs) == 1
        assert op.gradient is not None and op.cheap


def test_attributes_are_completed_in_order():
    assert ops.selu.complete({"gamma": 2}) == {"alpha": 1.67326319217681884765625, "gamma": 2.0}
    assert type(ops.selu.complete({"gamma": 2})["gamma"]) is float
    assert list(ops.slice.attributes) == ["starts", "stops", "steps"]
    assert list(ops.slice_grad.attributes) == ["shape", "starts", "stops", "steps"]
    assert ops.reshape.complete({"shape": [2, 3]}) == {"shape": (2, 3)}
    with pytest.raises(df.InputError, match="elu: unknown attribute 'gamma'; it has: alpha"):
        ops.elu.complete({"gamma": 1.0})
    with pytest.raises(df.InputError, match="reshape: attribute 'shape' is missing"):
        ops.reshape.complete({})


# ---- shapes -------------------------------------------------------------------------------------------


@SETTINGS
@given(shapes=st.lists(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), min_size=2, max_size=2))
def test_broadcasting_is_numpys(shapes):
    types = [df.TensorType(df.float32, s) for s in shapes]
    try:
        expected = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(df.InputError, match="don't broadcast"):
            ops.add.infer(*types)
        return
    assert ops.add.infer(*types) == f32(*expected)
    assert ops.less.infer(*types) == df.TensorType(df.bool_, expected)
    flag = df.TensorType(df.bool_, shapes[0])
    assert ops.where.infer(flag, *types) == f32(*expected)
    assert ops.broadcast_to.infer(types[0], shape=expected) == f32(*expected)
    assert ops.sum_to.infer(f32(*expected), shape=shapes[1]) == types[1]


@SETTINGS
@given(a=hnp.array_shapes(min_dims=2, max_dims=4, max_side=3), b=hnp.array_shapes(min_dims=2, max_dims=4, max_side=3))
def test_products_have_numpys_shapes(a, b):
    try:
        expected = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(df.InputError, match="matmul"):
            ops.matmul.infer(f32(*a), f32(*b))
        return
    assert ops.matmul.infer(f32(*a), f32(*b)) == f32(*expected)


def named(type_):
    """The type with a name for each size above one, the same for equal sizes."""
    return df.TensorType(type_.dtype, tuple(df.Dim(f"d{s}") if s > 1 else s for s in type_.shape))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op.name in BASIC], ids=lambda s: s.name)
def test_types_are_inferred_and_hold_for_named_sizes_too(sample):
    (node,) = sample.build().nodes
    types = [None if v is None else v.type for v in node.inputs]
    declared = [v.type for v in node.outputs]
    found = evaluate(sample.build(), sample.feeds())
    assert [(t.shape, t.dtype.numpy) for t in declared] == [(y.shape, y.dtype) for y in found.values()]
    sizes = {f"d{s}": s for t in types if t is not None for s in t.shape}
    symbolic = sample.op.infer(*[None if t is None else named(t) for t in types], **node.attributes)
    assert [t.bind(sizes) for t in several(symbolic)] == declared


def several(results):
    """The results of an op of one or of more."""
    return results if isinstance(results, tuple) else (results,)


# ---- decompositions -----------------------------------------------------------------------------------

OF_THEIR_TYPES = {"matmul_rounded"}  # takes 16 bits and gives float32, whatever dtype is asked for
COMPOSITE = [s for s in SAMPLES if s.op.name in BASIC and s.op.decompose is not None]


@pytest.mark.parametrize("sample", COMPOSITE, ids=lambda s: s.name)
def test_decompositions_equal_the_reference(sample):
    (node,) = sample.build().nodes
    g = df.GraphBuilder()
    # In double: the graph's own constants, as 0.01, would be rounded to float32.
    double = {df.float32: df.float64, df.float16: df.float64, df.bfloat16: df.float64}
    if sample.op.name in OF_THEIR_TYPES:
        double = {}
    operands = [
        None if v is None else g.input(v.name, double.get(v.type.dtype, v.type.dtype), v.type.shape)
        for v in node.inputs
    ]
    made = several(sample.op.decompose(*operands, **node.attributes))
    for index, (y, value) in enumerate(zip(made, node.outputs, strict=True)):
        assert y.shape == value.shape
        assert y.type.dtype == double.get(value.type.dtype, value.type.dtype)
        g.output(f"y{index}", y)
    feeds = sample.feeds()
    expected = evaluate(sample.build(), feeds, dtype=np.float64)
    graph = g.build()
    assert sample.op.name not in {n.op.name for n in graph.nodes}
    found = evaluate(graph, feeds, dtype=np.float64)
    assert found.keys() == expected.keys()
    for name, y in found.items():
        near = {"rtol": 1e-5, "atol": 1e-5} if sample.op.name in OF_THEIR_TYPES else {"rtol": 1e-9, "atol": 1e-12}
        np.testing.assert_allclose(y, expected[name], **near)


# ---- views --------------------------------------------------------------------------------------------


def view_of(op, array, **attributes):
    """What the declaration says is the view of ``array``, or None; reads the array's own memory."""
    source = Value("x", df.TensorType(df.float32, array.shape))
    complete = op.complete(attributes)
    result = Value("y", op.infer(source.type, **complete))
    step = array.itemsize
    found = op.view(Node(op, "n", (source,), (result,), complete), tuple(s // step for s in array.strides))
    if found is None:
        return None
    assert all(type(s) is int for s in (found.offset, *found.strides))
    memory = owner(array).reshape(-1)
    at = (address(array) - address(memory)) // step + found.offset
    return np.lib.stride_tricks.as_strided(memory[at:], result.type.sizes, [s * step for s in found.strides])


def owner(array):
    while array.base is not None:
        array = array.base
    return array


def address(array):
    return array.__array_interface__["data"][0]


@st.composite
def strided(draw, min_dims=0):
    """An array whose axes are turned, cut and reversed."""
    shape = draw(hnp.array_shapes(min_dims=min_dims, max_dims=4, min_side=1, max_side=4))
    array = np.ascontiguousarray(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        key = draw(st.tuples(*[st.sampled_from([np.s_[:], np.s_[::-1], np.s_[::2], np.s_[1:]])] * array.ndim))
        array = array[(*key, ...)]  # with it, rank 0 stays an array
    return array


@SETTINGS
@given(data=st.data(), array=strided())
def test_reshape_is_a_view_exactly_where_numpy_says_so(data, array):
    assume(array.size)
    factors = [d for d in array.shape if d > 1]
    shape = []
    for size in data.draw(st.permutations(factors)) if data.draw(st.booleans()) else factors:
        split = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        shape += [split, size // split]
    while len(shape) > 1 and data.draw(st.booleans()):  # two neighbours become one axis
        at = data.draw(st.integers(0, len(shape) - 2))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    found = view_of(ops.reshape, array, shape=tuple(shape))
    expected = array.reshape(shape)
    assert (found is None) == (not np.shares_memory(expected, array))
    if found is not None:
        np.testing.assert_array_equal(found, expected)


@SETTINGS
@given(data=st.data(), array=strided(min_dims=1))
def test_other_views_read_what_numpys_read(data, array):
    perm = tuple(data.draw(st.permutations(range(array.ndim))))
    np.testing.assert_array_equal(view_of(ops.transpose, array, perm=perm), array.transpose(perm))
    shape = (
        *data.draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)),
        *(3 if d == 1 else d for d in array.shape),
    )
    np.testing.assert_array_equal(view_of(ops.broadcast_to, array, shape=shape), np.broadcast_to(array, shape))
    g = df.GraphBuilder()
    key = tuple(data.draw(st.slices(d)) for d in array.shape)
    y = g.input("x", df.float32, array.shape)[key]
    if g.nodes():
        (node,) = g.nodes()
        np.testing.assert_array_equal(view_of(ops.slice, array, **node.attributes), array[key])
    assert y.shape == array[key].shape


def test_views_of_nothing():
    for shape in ((0,), (3, 0), (0, 1, 2)):
        empty = np.zeros((0, 3), np.float32)
        assert view_of(ops.reshape, empty, shape=shape).shape == shape
    empty = np.zeros((3,), np.float32)
    assert view_of(ops.slice, empty, starts=(3,), stops=(3,), steps=(1,)).shape == (0,)
    assert contiguous_strides((0, 3)) == (3, 1)


# ---- refusals -----------------------------------------------------------------------------------------

X, I, B = ((3, 4), "float32"), ((3, 4), "int64"), ((3, 4), "bool")
REFUSED = [
    (ops.add, [X, ((3, 5), "float32")], {}, r"add: shapes \(3, 4\) and \(3, 5\) don't broadcast: axis 1 is 4 and 5"),
    (ops.add, [X, I], {}, r"add: operands are float32\[3, 4\] and int64\[3, 4\]; give both one dtype with cast"),
    (ops.less, [X, I], {}, "less: operands are"),
    (ops.logical_and, [X, X], {}, "logical_and: expected bool, got float32.*compare first"),
    (ops.logical_or, [B, I], {}, "logical_or: expected bool, got int64"),
    (ops.logical_xor, [B, ((5,), "bool")], {}, "don't broadcast"),
    (ops.logical_not, [I], {}, "logical_not: expected bool"),
    (ops.bitwise_not, [X], {}, "bitwise_not: expected integers, got float32"),
    (ops.where, [X, X, X], {}, "where: expected bool"),
    (ops.exp, [I], {}, "exp: expected a float type, got int64.*use cast first"),
    (ops.cast, [X], {"to": "float17"}, "'float17' is no dtype; expected one of float32"),
    (ops.clip, [X, ((1,), "float32")], {}, "clip: bounds are scalars of float32"),
    (ops.clip, [X, None, ((), "float64")], {}, "clip: bounds are scalars of float32"),
    (ops.prelu, [X, ((2, 3, 4), "float32")], {}, "prelu: slope .* doesn't broadcast to x"),
    (ops.reduce_sum, [X], {"axes": None}, r"reduce_sum: axes is None; expected all that are meant, e.g. axes=\(0, 1\)"),
    (ops.reduce_sum, [X], {"axes": 1}, "reduce_sum: axes is 1"),
    (ops.reduce_max, [X], {"axes": (2,)}, "reduce_max: axis 2 of a tensor of rank 2; expected -2 to 1"),
    (ops.reduce_min, [X], {"axes": (1, -1)}, "reduce_min: axes .* name an axis twice"),
    (ops.reduce_mean, [I], {"axes": (0,)}, "reduce_mean: expected a float type"),
    (ops.argmax, [X], {"axis": 2}, "argmax: axis 2"),
    (ops.argmin, [X], {"axis": -3}, "argmin: axis -3"),
    (ops.argmin, [((0, 3), "float32")], {"axis": 0}, r"argmin: axis 0 of float32\[0, 3\] has no elements"),
    (ops.sum_to, [X], {"shape": (2, 4)}, "sum_to: .* does not come from broadcasting"),
    (ops.reshape, [X], {"shape": (5, 2)}, r"reshape: float32\[3, 4\] has 12 elements, shape \(5, 2\) has 10"),
    (ops.reshape, [X], {"shape": (-3, -4)}, r"reshape: shape \(-3, -4\) has a negative size"),
    (ops.transpose, [X], {"perm": (0, 0)}, r"transpose: perm \(0, 0\) is no order of the 2 axes"),
    (ops.broadcast_to, [X], {"shape": (4, 3)}, "broadcast_to: .* does not broadcast to"),
    (ops.broadcast_to, [X], {"shape": (-1, 3, 4)}, "negative size"),
    (ops.slice, [X], {"starts": (0,), "stops": (3,), "steps": (1,)}, "has 2 axes, got 1 starts"),
    (ops.slice, [X], {"starts": (0, 0), "stops": (3, 5), "steps": (1, 1)}, "0:5:1 leaves an axis of size 4"),
    (ops.slice, [X], {"starts": (0, 0), "stops": (3, 4), "steps": (1, 0)}, "has a zero"),
    (ops.slice_grad, [X], {"shape": (3, 4), "starts": (0, 0), "stops": (3, 4), "steps": (1, 2)}, "slice_grad: got"),
    (ops.pad, [X], {"pads": (1, 1)}, "4 pads are needed; got 2"),
    (ops.pad, [X], {"pads": (0,) * 4, "mode": "mirror"}, "mode 'mirror'; expected one of constant, reflect, edge"),
    (ops.pad, [X], {"pads": (2, 0, -2, 0), "mode": "reflect"}, "reflecting 2 elements of axis 0, which has 1"),
    (ops.pad, [X], {"pads": (2, 0, -3, 0), "mode": "wrap"}, "axis 0 of .* has no elements to repeat"),
    (ops.pad, [X], {"pads": (-2, 0, -2, 0)}, "axis 0 of .* gets size -1"),
    (ops.pad, [X], {"pads": (3, 0, 0, 0), "mode": "reflect"}, "reflecting 3 elements of axis 0, which has 3"),
    (ops.concat, [X, ((3, 5), "float32")], {"axis": 0}, "concat: .* does not fit"),
    (ops.concat, [X, I], {"axis": 0}, "concat: .* does not fit"),
    (ops.concat, [(("n", 1), "float32"), ((3, 1), "float32"), ((5, 1), "float32")], {"axis": 1}, "does not fit"),
    (ops.gather, [X, X], {}, "gather: indices are float32.*expected int32 or int64"),
    (ops.gather, [X, I], {"axis": 2}, "gather: axis 2"),
    (ops.index_add, [I, ((3,), "float32")], {"size": 4}, "fewer axes than indices"),
    (ops.index_add, [((2,), "int64"), X], {"size": 4}, "don't hold a row per index"),
    (ops.one_hot, [X], {"depth": 3}, "one_hot: indices are float32"),
    (ops.matmul, [X, X], {}, "matmul: inner sizes differ: a is .*; transpose one of them"),
    (ops.matmul, [X, ((4,), "float32")], {}, "two axes or more; reshape vectors first"),
    (ops.add, [X], {}, "add: input 'b' is missing"),
    (ops.add, [X, X, X], {}, "add: takes 2 inputs .a, b., got 3"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attributes", "text"), REFUSED, ids=lambda v: getattr(v, "name", ""))
def test_what_does_not_fit_is_refused(op, inputs, attributes, text):
    g = df.GraphBuilder()
    operands = [None if i is None else g.input(f"x{n}", i[1], i[0]) for n, i in enumerate(inputs)]
    with pytest.raises(df.InputError, match=text + r".*\[node 'mine' \(test_ops.py:\d+\)\]"):
        op(*operands, name="mine", **attributes)
    assert not g.nodes()


def test_sources_refuse_too():
    g = df.GraphBuilder()
    with pytest.raises(df.InputError, match=r"full: shape .* has a negative size"):
        g.add(ops.full, (), {"shape": (2, -1), "value": 0.0})
    with pytest.raises(df.InputError, match="range_: delta is 0"):
        g.add(ops.range_, (), {"limit": 3, "delta": 0})


@SETTINGS
@given(start=st.integers(-9, 9), limit=st.integers(-9, 9), delta=st.integers(-4, 4).filter(bool))
def test_ranges_are_numpys(start, limit, delta):
    g = df.GraphBuilder()
    y = g.add(ops.range_, (), {"start": start, "limit": limit, "delta": delta}).outputs[0]
    g.output("y", y)
    expected = np.arange(start, limit, delta)
    assert y.type == df.TensorType(df.int64, expected.shape)
    np.testing.assert_array_equal(evaluate(g.build(), {})["y"], expected)


def test_costs_count_operations():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3, 4))
    y = ops.reduce_sum(ops.matmul(x, g.input("w", df.float32, (4, 5))), axes=(0, 1))
    costs = {n.op.name: n.op.cost(n) for n in g.nodes()}
    assert costs == {"matmul": 2 * 2 * 3 * 4 * 5, "reduce_sum": 30}
    assert y.shape == (1, 1, 5)


@pytest.mark.parametrize("op", [ops.reduce_sum, ops.reduce_prod, ops.reduce_max])
def test_strings_are_not_reduced(op):
    g = df.GraphBuilder()
    x = g.input("x", df.string, (2, 2))
    with pytest.raises(df.InputError, match=rf"{op.name}: expected numbers.*, got string\[2, 2\]"):
        op(x, axes=(0,), keepdims=True)


def test_sums_of_bools_are_refused():
    """NumPy counts, and a bool says only whether there are any."""
    g = df.GraphBuilder()
    held = ops.greater(g.input("x", df.float32, (4,)), 0.0)
    for op in (ops.reduce_sum, ops.reduce_prod):
        with pytest.raises(df.InputError, match=r"reduce_\w+: expected numbers, got bool\[4\]; use cast first"):
            op(held, axes=(0,))
    assert ops.reduce_max(held, axes=(0,)).type.dtype == df.bool_


def test_numbers_between_which_a_condition_chooses_keep_their_dtype():
    g = df.GraphBuilder()
    held = ops.greater(g.input("x", df.float32, (3,)), 0.0)
    choices = {"floats": (2.0, 0.5), "mixed": (3, 0.5), "ints": (3, 0), "bools": (True, False)}
    for name, numbers in choices.items():
        g.output(name, ops.where(held, *numbers))
    with pytest.raises(df.InputError, match=r"0.7 is no bool, and the other operand is"):
        ops.equal(held, 0.7)
    with pytest.raises(df.InputError, match=r"0.5 is no bool"):
        ops.where(held, held, 0.5)
    assert ops.where(held, np.float32(3), 0).type.dtype == df.float32
    assert ops.where(held, held, 0).type.dtype == df.bool_
    for value in (ops.equal(held, 1), ops.logical_or(held, 0), ops.pad(held, 1, pads=(1, 0))):
        assert value.type.dtype == df.bool_
    x = np.array([1, -1, 2], np.float32)
    for name, array in df.Session(g.build(), ["numpy"]).run({"x": x}).items():
        np.testing.assert_array_equal(array, np.where(x > 0, *choices[name]))
        assert array.dtype == {"ints": "i8", "bools": "?"}.get(name, "f4")


def test_an_axis_may_have_more_elements_than_its_indices_have_numbers():
    from dataflow_numpy.arrays import check_indices

    found = check_indices(np.array([-1, 2**31 - 1], np.int32), 2**32, "gather")
    assert found.tolist() == [2**32 - 1, 2**31 - 1]


def test_every_op_shows_its_declaration_to_help() -> None:
    for op in default_registry().ops.values():
        found = inspect.signature(op)
        assert op.doc.strip()[:20] in op.__doc__ and op.__doc__.startswith(f"{op.name}(")
        assert [*found.parameters][: len(op.inputs)] == [name.rstrip("?*") for name in op.inputs]
    assert (
        str(inspect.signature(df.ops.conv)) == "(x, w, bias=None, /, *, strides=1 per axis, pads=0 per axis, "
        "dilations=1 per axis, groups=1, name=None)"
    )
    assert df.ops.relu.__doc__ == "relu(x, /, *, name=None) -> y\n\ny = max(x, 0)"
    assert df.ops.softmax_cross_entropy.__doc__.split("\n")[0].endswith("-> loss")
    inspect.signature(df.ops.concat).bind(1, 2, 3, axis=0)
    assert [inspect.getdoc(kind).split()[0] for kind in (df.Op, df.MultiOp)] == ["A", "A"]
    assert [*inspect.signature(df.Op).parameters][:3] == ["name", "inputs", "infer"]


def test_a_running_sum_of_the_reference_is_rounded_once():
    """Sums of thousands of one value, each rounded to float32, were off by a ten thousandth."""
    x = np.full((1, 17001), 0.49252, np.float32)
    g = df.GraphBuilder()
    g.output("y", df.ops.cumsum(g.input("x", df.float32, x.shape), axis=1))
    found = df.Session(df.Model(g.build()), ["numpy"]).run({"x": x})["y"]
    np.testing.assert_allclose(found, np.cumsum(x, 1, np.float64), rtol=1e-7)
