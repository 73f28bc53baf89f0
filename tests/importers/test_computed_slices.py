"""Slices whose ends are computed from sizes, or counted from the last element of a named axis, against ONNX Runtime."""

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import ints, onnx_model

FAR = 1 << 62
ENDS = ("n - m", 0, 2, -1, -2, -5, FAR, -FAR)


def sliced(start, end, step):
    """A file that slices the rows of x, of N, and has a y of M."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Shape", ["y"], ["m"], start=0, end=1),
        helper.make_node("Sub", ["n", "m"], ["n - m"]),
        helper.make_node("Slice", ["x", f"{start}", f"{end}", "0", f"{step}"], ["z"]),
    ]
    stored = [ints(f"{number}", number) for number in {0, start, end, step} - {"n - m"}]
    inputs = [("x", TensorProto.FLOAT, ["N", 3]), ("y", TensorProto.FLOAT, ["M"])]
    return onnx_model(nodes, inputs, [("z", TensorProto.FLOAT, None)], stored, opset=17, ir_version=8)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_ends_are_taken_as_the_standard_has_them(step):
    """A computed end that is negative counts from the last element; backwards, a slice begins in the axis."""
    wrong = []
    for start, end in itertools.product(ENDS, ENDS):
        data = sliced(start, end, step).SerializeToString()
        theirs, ours = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), load_bytes(data)
        for n, m in ((8, 3), (8, 9), (8, 12), (3, 20), (3, 2), (1, 1), (4, 4)):
            given = {"x": np.arange(3 * n, dtype=np.float32).reshape(n, 3), "y": np.ones(m, np.float32)}
            (expected,), found = theirs.run(None, given), ours(given)["z"]
            if found.shape != expected.shape or (found != expected).any():
                wrong.append((start, end, n, m, expected.shape, found.shape))
    assert not wrong


def test_an_end_that_another_size_makes_negative_is_not_taken_for_none(tmp_path):
    """Nor where it is the graph's own: NumPy counts from the end then, and the size would be another."""
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, ("N", 3)), g.input("y", df.float32, ("M",))
    g.output("z", df.ops.sin(x[: x.shape[0] - y.shape[0]]))
    session = df.Session(g.build())
    with pytest.raises(df.InputError, match="negative"):
        session.run({"x": np.ones((8, 3), np.float32), "y": np.ones(9, np.float32)})
    assert session.run({"x": np.ones((8, 3), np.float32), "y": np.ones(6, np.float32)})["z"].shape == (2, 3)


@pytest.mark.parametrize("step", [1, 2, -1])
@pytest.mark.parametrize("formula", ["Sub", "Mod"])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_ends_that_are_negative_for_some_sizes_alone(formula, number, step):
    """1 - n is 0 where n is 1, and counts from the first element then; 3 modulo n is never negative."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node(formula, ["number", "n"], ["at"]),
        helper.make_node("Slice", ["y", "at", "last", "1", "step"], ["behind"]),
        helper.make_node("Slice", ["y", "first", "at", "1", "step"], ["ahead"]),
    ]
    ends = {"first": 0, "last": FAR} if step > 0 else {"first": -1, "last": -FAR}
    stored = [ints("number", number), ints("1", 1), ints("step", step), *(ints(*end) for end in ends.items())]
    inputs = [("x", TensorProto.FLOAT, ["N"]), ("y", TensorProto.FLOAT, [2, 4])]
    outputs = [("behind", TensorProto.FLOAT, None), ("ahead", TensorProto.FLOAT, None)]
    data = onnx_model(nodes, inputs, outputs, stored, opset=17, ir_version=8).SerializeToString()
    theirs, ours = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), load_bytes(data)
    y = np.arange(8, dtype=np.float32).reshape(2, 4)
    for n in (1, 2, 3, 4, 5, 9):
        given = {"x": np.ones(n, np.float32), "y": y}
        for found, expected in zip(ours(given).values(), theirs.run(None, given), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"n = {n}")


def table_rows(offset):
    """A file that takes the rows ``offset - n`` to ``offset - 1 + n`` of a table, n the number of positive elements."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["indices"]),
        helper.make_node("Shape", ["indices"], ["n"], start=1, end=2),
        helper.make_node("Sub", [f"{offset}", "n"], ["begin"]),
        helper.make_node("Add", [f"{offset - 1}", "n"], ["stop"]),
        helper.make_node("Slice", ["table", "begin", "stop", "0"], ["rows"]),
        helper.make_node("Shape", ["rows"], ["width"]),
        helper.make_node("Div", ["width", "2"], ["half"]),
        helper.make_node("Slice", ["rows", "0", "half", "0"], ["z"]),
    ]
    stored = [ints(f"{number}", number) for number in (0, 2, offset, offset - 1)]
    stored.append(helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]))
    inputs = [("x", TensorProto.FLOAT, ["N"]), ("table", TensorProto.FLOAT, [2 * offset - 1])]
    outputs = [("rows", TensorProto.FLOAT, None), ("z", TensorProto.FLOAT, None)]
    return onnx_model(nodes, inputs, outputs, stored, opset=17, ir_version=8)


def test_a_position_in_a_table_less_a_size_of_data_counts_from_the_first():
    """As a table of relative positions is read, for a size that no input has; beyond the table it is an error."""
    data = table_rows(50).SerializeToString()
    theirs, session = onnxruntime.InferenceSession(data), df.Session(load_bytes(data), devices=["cpu"])
    table = np.arange(99, dtype=np.float32)
    for n in (1, 5, 31, 50):
        x = np.ones(n + 3, np.float32)
        x[1:4] = -1
        given = {"x": x, "table": table}
        for expected, found in zip(theirs.run(None, given), session.run(given).values(), strict=True):
            np.testing.assert_array_equal(found, expected)
    with pytest.raises(df.InputError, match="negative"):
        session.run({"x": np.ones(60, np.float32), "table": table})


GROWING = """<ir_version: 8, opset_import: ["" : 17]>
growing (int64 n, float[K] start) => (float[E] y) {
  yes = Constant <value = bool {1}> ()
  two = Constant <value = int64 {2}> ()
  one = Constant <value = int64 {1}> ()
  axis = Constant <value = int64[1] {0}> ()
  far = Constant <value = int64[1] {100}> ()
  y = Loop (n, yes, start) <body = main (int64 i, bool c, float[A] v) => (bool d, float[B] r) {
    odd = Mod (i, two)
    first = Unsqueeze (odd, axis)
    even = Sub (one, odd)
    step_of_one = Add (even, odd)
    step = Unsqueeze (step_of_one, axis)
    part = Slice (v, first, far, axis, step)
    r = Concat <axis = 0> (part, v)
    d = Identity (c)
  }>
}"""


def test_a_slice_by_computed_steps_reads_what_the_loop_carries():
    """The node is made for these values, which an earlier node gave: they are no weights, which others could set."""
    data = parser.parse_model(GROWING).SerializeToString()
    theirs = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    session = df.Session(load_bytes(data), devices=["cpu"], fallback="allow")
    for n, size in ((1, 3), (3, 3), (3, 5), (2, 4)):
        given = {"n": np.array(n), "start": np.arange(1, size + 1, dtype=np.float32)}
        (expected,) = theirs.run(None, given)
        np.testing.assert_array_equal(session.run(given)["y"], expected)


# What PyTorch's tracing exporter writes for ``pad(x, (0, 0, n - 5, n - 5))``: amounts of the last axis first, reversed.
PADDED = """
<ir_version: 8, opset_import: ["" : 17]>
padded (float[B, N, 2] x) => (y)
<int64[1] five = {5}, int64[2] none = {0, 0}, int64[1] rest = {6}, int64[2] pairs = {-1, 2}, int64[1] last = {-1},
 int64[1] far = {-9223372036854775807}, int64[1] first = {0}>
{
  n = Shape <start = 1, end = 2> (x)
  more = Sub (n, five)
  given = Concat <axis = 0> (none, more, more)
  count = Shape (given)
  missing = Sub (rest, count)
  zeros = ConstantOfShape <value: tensor = int64[1] {0}> (missing)
  all = Concat <axis = 0> (given, zeros)
  rows = Reshape (all, pairs)
  reversed = Slice (rows, last, far, first, last)
  columns = Transpose <perm = [1, 0]> (reversed)
  pads = Reshape (columns, last)
  y = Pad (x, pads)
}
"""


def test_amounts_of_padding_that_are_put_in_order_stay_sizes():
    data = parser.parse_model(PADDED).SerializeToString()
    model, theirs = load_bytes(data), onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert str(model.outputs["y"].shape[1]) == "-10 + 3*N"
    for batch, length in ((2, 7), (1, 5), (3, 4), (2, 9)):
        x = np.arange(batch * length * 2, dtype=np.float32).reshape(batch, length, 2)
        np.testing.assert_array_equal(model(x)["y"], theirs.run(None, {"x": x})[0])
