"""Branches and loops within loops run natively: files in which nobody unrolled anything, beside onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import dataflow as df
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes

# Per number: how many steps of Collatz's sequence lead to 1, a branch within a loop within a scan.
COLLATZ = """
<ir_version: 8, opset_import: ["" : 17]>
collatz (int64[6] starts, int64 most) => (int64[6] steps, int64 total) {
  one = Constant <value = int64 {1}> ()
  none = Constant <value = int64 {0}> ()
  total, steps = Scan <num_scan_inputs = 1, body = each (int64 sum_in, int64 start) => (int64 sum_out, int64 made) {
    is_one = Equal (start, one)
    goes = Not (is_one)
    last, made = Loop (most, goes, start, none)
      <body = step (int64 i, bool go, int64 n, int64 count) => (bool on, int64 next, int64 more) {
        two = Constant <value = int64 {2}> ()
        zero = Constant <value = int64 {0}> ()
        rest = Mod (n, two)
        even = Equal (rest, zero)
        next = If (even)
          <then_branch = half () => (int64 a) { a = Div (n, two) },
           else_branch = odd () => (int64 b) {
             three = Constant <value = int64 {3}> ()
             thrice = Mul (n, three)
             b = Add (thrice, one)
           }>
        at_end = Equal (next, one)
        on = Not (at_end)
        more = Add (count, one)
      }>
    sum_out = Add (sum_in, made)
  }> (none, starts)
}
"""

# Rows of a table added up in a loop within a loop, from a row that the outer one reads, unless an entry is negative.
TABLE = """
<ir_version: 8, opset_import: ["" : 17]>
table (float[3] start, float[5, 4, 3] rows, float[3] weights)
    => (float[3] end, float[5, 3] kept, float[5, 4, 3] inner) {
  end, kept, inner = Scan <num_scan_inputs = 1, body = outer (float[3] state, float[4, 3] row)
      => (float[3] next, float[3] seen, float[4, 3] sums) {
    last, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = inside (float[3] sum, float[3] entry)
        => (float[3] more, float[3] shown) {
      least = ReduceMin <keepdims = 0> (entry)
      zero = Constant <value = float {0}> ()
      below = Less (least, zero)
      more = If (below)
        <then_branch = leave () => (float[3] a) { a = Mul (sum, weights) },
         else_branch = take () => (float[3] b) { t = Add (sum, entry)
                                                 b = Tanh (t) }>
      shown = Add (more, state)
    }> (state, row)
    next = Mul (last, weights)
    seen = Identity (next)
  }> (start, rows)
}
"""


def arrays_of(name):
    """Inputs of a model."""
    random = np.random.default_rng(3)
    if name == "collatz":
        return {"starts": np.array([1, 2, 27, 97, 6, 871]), "most": np.array(1000)}
    shapes = {"start": (3,), "rows": (5, 4, 3), "weights": (3,)}
    return {n: (random.standard_normal(s) + 0.7).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize(("name", "text"), [("collatz", COLLATZ), ("table", TABLE)])
def test_bodies_within_bodies_run_natively(name, text, tmp_path):
    file = parser.parse_model(text)
    onnx.checker.check_model(file, full_check=True)
    model, data = load_bytes(file.SerializeToString()), arrays_of(name)
    session = df.Session(model, devices=["cpu"], fallback="error")
    found = session.run(data)
    peer = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    df.save(model, str(tmp_path / "saved.onnx"))
    again = df.Session(df.load(str(tmp_path / "saved.onnx")), devices=["cpu"], fallback="error").run(data)
    for label, expected in zip(found, peer.run(list(found), data), strict=True):
        np.testing.assert_allclose(found[label], expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(again[label], found[label])
    if name == "collatz":
        assert found["steps"].tolist() == [0, 1, 111, 118, 8, 178]
    assert len(session.plan().segments) == 1
    nodes = session.placement()
    assert nodes
    assert {node.device for node in nodes} == {"cpu"}


def test_gradients_pass_through_bodies_within_bodies():
    model, data = load_bytes(parser.parse_model(TABLE).SerializeToString()), arrays_of("table")
    shapes = {"end": (3,), "kept": (5, 3), "inner": (5, 4, 3)}
    seeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    found, exact = (df.vjp(model, data, seeds, devices=[d]) for d in ("cpu", "numpy"))
    for name, expected in exact.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    step = 1e-6
    at = {name: array.astype(np.float64) for name, array in data.items()}

    def total(moved):
        return sum(float(a.sum()) for a in evaluate(model.graph, moved, dtype=np.float64).values())

    for name, index in (("start", (1,)), ("rows", (2, 1, 0)), ("weights", (2,))):
        up, down = ({n: a.copy() for n, a in at.items()} for _ in range(2))
        up[name][index] += step
        down[name][index] -= step
        slope = (total(up) - total(down)) / (2 * step)
        np.testing.assert_allclose(found[name][index], slope, rtol=1e-4, atol=1e-5)


# Per image: a sum over the patches of its grid, as vision encoders of Qwen-VL have it.
GRIDS = """
<ir_version: 8, opset_import: ["" : 17]>
grids (int64[N, 2] grid, float[1] rate) => (float[N] sums, float total) {
  none = Constant <value = float {0}> ()
  total, sums = Scan <num_scan_inputs = 1, body = each (float sum_in, int64[2] size) => (float sum_out, float made) {
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    count = ReduceProd <keepdims = 0> (size)
    patches = Range (zero, count, one)
    at = Cast <to = 1> (patches)
    scaled = Mul (at, rate)
    bent = Tanh (scaled)
    made = ReduceSum <keepdims = 0> (bent)
    sum_out = Add (sum_in, made)
  }> (none, grid)
}
"""


def test_a_scan_whose_iterations_have_lengths_of_their_own():
    """Data decide them, so iterations are nodes for the grids that come."""
    proto = parser.parse_model(GRIDS)
    model = load_bytes(proto.SerializeToString())
    session, peer = df.Session(model, devices=["cpu"]), onnxruntime.InferenceSession(proto.SerializeToString())
    for grid in ([[2, 3], [4, 4]], [[4, 4], [2, 3]], [[1, 1]], [[5, 2], [1, 7], [3, 3]]):
        feeds = {"grid": np.array(grid), "rate": np.array([0.1], np.float32)}
        for made, expected in zip(session.run(feeds).values(), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(made, expected, rtol=1e-6)
        slopes = [np.sum((at := np.arange(a * b)) / np.cosh(0.1 * at) ** 2) for a, b in grid]
        found = df.vjp(model, feeds, {"sums": np.ones(len(grid), np.float32), "total": np.zeros((), np.float32)})
        np.testing.assert_allclose(found["rate"], [sum(slopes)], rtol=1e-5)


@pytest.mark.parametrize("length", ["5", "N"])
def test_a_scan_whose_body_fits_no_sizes_is_refused_at_load(length):
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    misfit (float[{length}, 3] x) => (float[{length}, 4] y) {{
      y = Scan <num_scan_inputs = 1, body = each (float[3] row) => (float[4] made) {{
        four = Constant <value = float[4] {{1, 2, 3, 4}}> ()
        made = Add (row, four)
      }}> (x)
    }}
    """
    with pytest.raises(df.ModelError, match=r"Add 'made'.*don't broadcast"):
        load_bytes(parser.parse_model(text).SerializeToString())


# Iterations and conditions of one element, as TensorFlow's converter writes them before opset 11.
PROGRESS = """
<ir_version: 8, opset_import: ["" : 10]>
rows (float[4, 3] x, int64 n, bool[1] yes, float most) => (float[4, K] end, float[M, 4] picked) {{
  three = Constant <value = int64 {{3}}> ()
  always = Constant <value = bool[1] {{1}}> ()
  end, picked = Loop ({limit}, x) <body = b (int64[1] i, bool[1] go, float[4, {width}] a)
      => (bool[1] on, float[4, {after}] next, float[4] row) {{
    half = Constant <value = float {{0.5}}> ()
    one = Gather <axis = 1> (a, i)
    row = Squeeze <axes = [1]> (one)
    scaled = Mul (a, half)
    {step}
    top = ReduceMax <keepdims = 0> (next)
    small = Less (top, most)
    {on}
  }}>
}}
"""
STAYS, GROWS = "next = Add (scaled, one)", "next = Concat <axis = 1> (scaled, one)"
ENDLESS, ENDS = "on = Identity (go)", "on = And (small, go)"


@pytest.mark.parametrize(
    ("limit", "step", "on"),
    [
        ("three, always", STAYS, ENDLESS),
        ("n, yes", STAYS, ENDLESS),
        ("three, yes", STAYS, ENDS),
        ("three, always", GROWS, ENDLESS),
        ("n, yes", GROWS, ENDS),
    ],
    ids=["scan", "loop", "condition", "unrolled", "host"],
)
def test_iterations_and_conditions_that_bodies_declare_with_one_element(limit, step, on):
    width = {"width": 3, "after": 3} if step == STAYS else {"width": "L", "after": "M"}
    text = PROGRESS.format(limit=limit, step=step, on=on, **width)
    data = parser.parse_model(text).SerializeToString()
    session, peer = df.Session(load_bytes(data), devices=["cpu"]), onnxruntime.InferenceSession(data)
    x = np.random.default_rng(3).random((4, 3), np.float32)
    for most in (9.0, 1.2, 0.8):
        feeds = {"x": x, "n": np.array(3), "yes": np.array([True]), "most": np.array(most, np.float32)}
        for made, expected in zip(session.run(feeds).values(), peer.run(None, feeds), strict=True):
            assert made.shape == expected.shape
            np.testing.assert_allclose(made, expected, rtol=1e-6)


# The condition is what it reads, as a damaged file may have it.
CIRCLE = """
<ir_version: 8, opset_import: ["" : 17]>
circle (int64 n, bool go, float[2] first) => (float[2] last) {
  last, rows = Loop (n, go, first)
    <body = step (int64 i, bool on, float[2] x) => (bool going, float[2] y, float[2] row) {
      going = Identity (going)
      y = Add (x, x)
      row = Identity (y)
    }>
}
"""


def test_a_body_whose_condition_is_itself_is_refused():
    """What follows a condition to where it is made must end."""
    model = load_bytes(parser.parse_model(CIRCLE).SerializeToString())
    feeds = {"n": np.array(2), "go": np.array(True), "first": np.ones(2, np.float32)}
    with pytest.raises(df.InputError, match="it reads 'going', which nothing before it defines"):
        df.Session(model, devices=["cpu"]).run(feeds)
