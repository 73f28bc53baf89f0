"""Lists and tensors that a loop only appends to: the loop is one node, for any sizes, and trains."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import dataflow as df
from dataflow_onnx.loading import load_bytes

onnxruntime.set_default_logger_severity(3)
RNG = np.random.default_rng(3)
HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
CONSTANTS = """
  yes = Constant <value = bool {1}> ()
  zero = Constant <value = float {0}> ()
  first = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  axis = Constant <value = int64[1] {0}> ()
  shape = Shape (x)
  n = Gather (shape, first)
  d = Gather <axis = 0> (x, first)
  start = Sub (d, d)
"""


def file(text):
    return parser.parse_model(f"{HEADER}\n{text.replace('CONSTANTS', CONSTANTS)}").SerializeToString()


# A recurrence whose states are listed: from nothing, and from the first state on.
LISTED = """
listed (float[T, 3] x) => (float[T, 3] y, float[U, 3] z, int64 length, seq(float) all) { CONSTANTS
  empty = SequenceEmpty <dtype = 1> ()
  begun = SequenceConstruct (start)
  last, all, more = Loop (n, yes, start, empty, begun)
    <body = step (int64 i, bool c, float[3] h, seq(float) s, seq(float) t)
    => (bool go, float[3] next, seq(float) u, seq(float) v) {
    go = Identity (c)
    row = Gather (x, i)
    sum = Add (row, h)
    next = Tanh (sum)
    u = SequenceInsert (s, next)
    twice = Add (next, next)
    w = SequenceInsert (t, twice)
    v = Identity (w)
  }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
  z = ConcatFromSequence <axis = -1, new_axis = 1> (more)
  length = SequenceLength (more)
}
"""

# What a branch appends, in both branches; in another branch within one of them too.
BRANCHED = """
branched (float[T, 3] x) => (float[U] y, float[V, 3] negative) { CONSTANTS
  empty = SequenceEmpty <dtype = 1> ()
  all, negative = Loop (n, yes, empty)
    <body = step (int64 i, bool c, seq(float) s) => (bool go, seq(float) t, float[3] r) {
    go = Identity (c)
    row = Gather (x, i)
    sum = ReduceSum <keepdims = 0> (row)
    p = Greater (sum, zero)
    t = If (p)
      <then_branch = keep () => (seq(float) a) { a = SequenceInsert (s, row) },
       else_branch = other () => (seq(float) b) {
         least = ReduceMin <keepdims = 0> (row)
         low = Less (least, sum)
         b = If (low) <then_branch = minus () => (seq(float) e) { neg = Neg (row)
                                                               e = SequenceInsert (s, neg) },
                       else_branch = nothing () => (seq(float) f) { f = SequenceInsert (s, start) }> }>
    r = Neg (row)
  }>
  y = ConcatFromSequence <axis = 0> (all)
}
"""

# Tensors that grow along an axis, from one that is there before.
GROWN = """
grown (float[T, 3] x, float[2, 1] begin) => (float[U] y, float[2, V] z, float[W] w) { CONSTANTS
  y, z, w = Loop (n, yes, start, begin, start) <body = step (int64 i, bool c, float[K] s, float[2, L] t, float[O] e)
      => (bool go, float[M] u, float[2, N] v, float[P] f) {
    go = Identity (c)
    row = Gather (x, i)
    u = Concat <axis = 0> (s, row)
    twice = Unsqueeze (row, axis)
    both = Concat <axis = 0> (twice, twice)
    v = Concat <axis = -1> (t, both)
    f = Concat <axis = 0> (row, e)
  }>
}
"""

# The best path: the second loop reads the list that the first made, from its end.
READ = """
best (float[T, 3] x, float[3, 3] w) => (int64[U] path) { CONSTANTS
  ends = SequenceEmpty <dtype = 7> ()
  scores, back = Loop (n, yes, d, ends) <body = forth (int64 i, bool c, float[3] v, seq(int64) s)
      => (bool go, float[3] next, seq(int64) t) {
    go = Identity (c)
    one_axis = Constant <value = int64[1] {1}> ()
    column = Unsqueeze (v, one_axis)
    all = Add (column, w)
    most = ReduceMax <axes = [0], keepdims = 0> (all)
    which = ArgMax <axis = 0, keepdims = 0> (all)
    row = Gather (x, i)
    next = Add (most, row)
    t = SequenceInsert (s, which)
  }>
  last = ArgMax <axis = 0, keepdims = 0> (scores)
  begun = SequenceConstruct (last)
  count = SequenceLength (back)
  end, states = Loop (count, yes, last, begun) <body = back_again (int64 k, bool e, int64 state, seq(int64) p)
      => (bool on, int64 before, seq(int64) q) {
    on = Identity (e)
    rest = Sub (count, one)
    at = Sub (rest, k)
    pointers = SequenceAt (back, at)
    before = Gather (pointers, state)
    q = SequenceInsert (p, before)
  }>
  path = ConcatFromSequence <axis = 0, new_axis = 1> (states)
}
"""

# As many rows as data say; a number below zero is none.
COUNTED = """
counted (float[T, 3] x, int64 count) => (float[U, 3] y, float[V, 3] z) { CONSTANTS
  empty = SequenceEmpty <dtype = 1> ()
  all, y = Loop (count, yes, empty) <body = step (int64 i, bool c, seq(float) s)
      => (bool go, seq(float) t, float[3] r) {
    go = Identity (c)
    row = Gather (x, i)
    t = SequenceInsert (s, row)
    r = Neg (row)
  }>
  begun = SequenceConstruct (start)
  some, others = Loop (count, yes, begun) <body = again (int64 j, bool e, seq(float) p)
      => (bool on, seq(float) q, float[3] o) {
    on = Identity (e)
    entry = Gather (x, j)
    q = SequenceInsert (p, entry)
    o = Identity (entry)
  }>
  z = ConcatFromSequence <axis = 0, new_axis = 1> (some)
}
"""

# A list that an iteration reads, whose last element it is; one that grows at its beginning; a tensor too.
NOT_ONLY = """
other (float[T, 3] x) => (float[U, 3] y, float[V, 3] z, float[W] w) { CONSTANTS
  begun = SequenceConstruct (start)
  a, b, w = Loop (n, yes, begun, begun, start) <body = step (int64 i, bool c, seq(float) s, seq(float) t, float[K] v)
      => (bool go, seq(float) u, seq(float) g, float[L] m) {
    go = Identity (c)
    row = Gather (x, i)
    before = SequenceAt (s, i)
    sum = Add (row, before)
    u = SequenceInsert (s, sum)
    g = SequenceInsert (t, row, first)
    m = Concat <axis = 0> (row, v)
  }>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (a)
  z = ConcatFromSequence <axis = 0, new_axis = 1> (b)
}
"""


def rows(*counts):
    return [{"x": RNG.standard_normal((n, 3), np.float32)} for n in counts]


def check(text, several, is_one_graph=True):
    data = file(text)
    loaded = load_bytes(data)
    assert ("deferred" in [node.op.name for node in loaded.graph.nodes]) != is_one_graph
    peer = onnxruntime.InferenceSession(data)
    names = [output.name for output in peer.get_outputs()]
    for device in ("cpu", "numpy"):
        session = df.Session(loaded, devices=[device], fallback="allow")
        for feeds in [*several, several[0]]:
            found, expected = session.run(feeds), peer.run(None, feeds)
            for name, wanted in zip(names, expected, strict=True):
                made, others = (v if isinstance(v, list) else [v] for v in (found[name], wanted))
                assert len(made) == len(others)
                for one, other in zip(made, others, strict=True):
                    assert one.shape == other.shape
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_lists_of_states():
    check(LISTED, rows(4, 7, 1, 12), is_one_graph=False)  # a list is an output
    stacked = LISTED.replace(", seq(float) all)", ")")
    check(stacked, rows(4, 7, 1, 12))


def test_both_branches_append():
    check(BRANCHED, rows(5, 9, 1))


def test_names_that_the_file_has_are_left_to_it():
    """What a branch appends gets a name, which here is that of a row."""
    proto = parser.parse_model(f"{HEADER}\n{BRANCHED.replace('CONSTANTS', CONSTANTS)}")

    def rename(graph):
        for node in graph.node:
            node.input[:] = ["t/appended" if name == "row" else name for name in node.input]
            node.output[:] = ["t/appended" if name == "row" else name for name in node.output]
            for attribute in node.attribute:
                rename(attribute.g)

    rename(proto.graph)
    (feeds,) = rows(6)
    loaded = load_bytes(proto.SerializeToString())
    assert "deferred" not in [node.op.name for node in loaded.graph.nodes]
    np.testing.assert_array_equal(df.Session(loaded, devices=["cpu"]).run(feeds)["negative"], -feeds["x"])


def test_tensors_that_grow_along_an_axis():
    check(GROWN, [{**feeds, "begin": np.ones((2, 1), np.float32)} for feeds in rows(4, 1, 9)])


def test_a_list_that_another_loop_reads():
    w = RNG.standard_normal((3, 3), np.float32)
    check(READ, [{**feeds, "w": w} for feeds in rows(4, 9, 1)])


@pytest.mark.parametrize("counts", [(3, 5, 1, 5), (2, 0, 4), (0, 3)])
def test_as_many_as_data_say(counts):
    feeds = [{"x": RNG.standard_normal((6, 3), np.float32), "count": np.array(n)} for n in counts]
    check(COUNTED, feeds)
    session = df.Session(load_bytes(file(COUNTED)), devices=["cpu"])
    assert session.run({**feeds[0], "count": np.array(-2)})["y"].shape == (0, 3)


def test_lists_that_are_more_than_appended_to():
    check(NOT_ONLY, rows(4, 2, 5), is_one_graph=False)


def test_a_tensor_that_grows_from_what_data_chose():
    """Its size is read from data: no other size makes what the loop carries one of a fixed shape."""
    text = """
ones (float[T, 3] x, int64 count) => (float[U, 3] y) { CONSTANTS
  sums = ReduceSum <keepdims = 0> (x, last)
  positive = Greater (sums, zero)
  chosen = Compress <axis = 0> (x, positive)
  row = Unsqueeze (start, axis)
  y = Loop (count, yes, chosen) <body = b (int64 i, bool c, float[K, 3] a) => (bool go, float[L, 3] r) {
    go = Identity (c)
    r = Concat <axis = 0> (a, row)
  }>
}
""".replace("CONSTANTS", "CONSTANTS\n  last = Constant <value = int64[1] {1}> ()")
    check(text, [{**feeds, "count": np.array(n)} for feeds, n in zip(rows(3, 5, 5, 2), (2, 0, 4, 1), strict=True)])


def test_very_many_iterations_run_on_the_host_and_train_as_nodes():
    data = file(NOT_ONLY)
    session, (feeds,) = df.Session(load_bytes(data), devices=["cpu"]), rows(530)
    for made, expected in zip(
        session.run(feeds).values(), onnxruntime.InferenceSession(data).run(None, feeds), strict=True
    ):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
    assert session._loaded()._interpreted.is_needed
    found = df.vjp(load_bytes(data), feeds, devices=["cpu"])["x"]
    later = np.arange(530, 0, -1)[:, None]  # a row is in the running sums from its own on, and once in z and w
    np.testing.assert_allclose(found, np.broadcast_to(later + 2, (530, 3)), rtol=1e-4)


def test_no_row_at_all():
    session = df.Session(load_bytes(file(LISTED.replace(", seq(float) all)", ")"))), devices=["cpu"])
    with pytest.raises(df.InputError):  # there is no first row
        session.run(np.zeros((0, 3), np.float32))


def test_gradients_pass_through_what_was_appended():
    text = LISTED.replace(", int64 length, seq(float) all)", ")")
    loaded = load_bytes(file(text))
    x = RNG.standard_normal((5, 3), np.float32)
    found = df.vjp(loaded, {"x": x}, devices=["cpu"])
    peer = onnxruntime.InferenceSession(file(text))

    def total(values):
        return sum(float(np.sum(a, dtype=np.float64)) for a in peer.run(None, {"x": values.astype(np.float32)}))

    numeric = np.zeros_like(x, np.float64)
    for at in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[at] = 1e-2
        numeric[at] = (total(x + step) - total(x - step)) / 2e-2
    np.testing.assert_allclose(found["x"], numeric, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("count", "offset"), [(1, 0), (2, 0), (1, -4), (2, -4)])
def test_windows_that_an_iteration_takes_out(count, offset):
    """TorchScript's x[i:i+1]: of a fixed size, but where it leaves the axis, which is an error here as there."""
    text = f"""
windows (float[T, 3] x, int64 most) => (float[U, {count}, 3] y) {{ CONSTANTS
  off = Constant <value = int64 {{{offset}}}> ()
  count = Constant <value = int64 {{{count}}}> ()
  y = Loop (most, yes) <body = step (int64 i, bool c) => (bool go, float[{count}, 3] r) {{
    go = Identity (c)
    from = Add (i, off)
    to = Add (from, count)
    begin = Unsqueeze (from, axis)
    end = Unsqueeze (to, axis)
    r = Slice (x, begin, end, axis)
  }}>
}}
"""
    most = 4 if not offset else 4 - count  # a window that begins before the first row and ends behind it is empty
    check(text, [{**feeds, "most": np.array(n)} for feeds, n in zip(rows(5, 9), (most, most), strict=True)])
    session = df.Session(load_bytes(file(text)), devices=["cpu"])
    with pytest.raises(df.InputError, match=r"gather: index 5 .* is out"):
        session.run({**rows(5)[0], "most": np.array(6)})
