"""Loops whose data decide which nodes there are run on the host, their nodes on devices; beside onnxruntime."""

import threading

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow_onnx.importer import Importer
from dataflow_onnx.interpret import control_flow
from dataflow_onnx.loading import load_bytes

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
onnxruntime.set_default_logger_severity(3)  # of constants that a random program does not read
RNG = np.random.default_rng(7)
TABLE, OUT = RNG.standard_normal((20, 16), np.float32), RNG.standard_normal((16, 20), np.float32)

# Tokens until the third comes, or there are n: a decoder without a cache.
GROWING = f"""{HEADER}
decode (int64 n, int64[1] start, float[20, 16] table, float[16, 20] out) => (int64[T] ids, float[S] scores) {{
  yes = Constant <value = bool {{1}}> ()
  last = Constant <value = int64[1] {{-1}}> ()
  end = Constant <value = int64 {{3}}> ()
  flat = Constant <value_ints = [0]> ()
  none = Constant <value = float[1] {{0}}> ()
  ids, scores = Loop (n, yes, start, none) <body = step (int64 i, bool c, int64[K] seen, float[L] before)
      => (bool go, int64[M] grown, float[N] after) {{
    token = Gather <axis = 0> (seen, last)
    row = Gather <axis = 0> (table, token)
    t = Tanh (row)
    logits = MatMul (t, out)
    next = ArgMax <axis = 1, keepdims = 0> (logits)
    grown = Concat <axis = 0> (seen, next)
    best = ReduceMax <axes = [1], keepdims = 0> (logits)
    after = Concat <axis = 0> (before, best)
    one = Squeeze (next)
    ended = Equal (one, end)
    go = Not (ended)
  }}>
}}
"""

# A row or twice its negative for each row of x, as a sequence that becomes a matrix; and how many were negated.
APPENDED = f"""{HEADER}
rows (float[T, 4] x) => (float[U, 4] y, int64 negated, seq(float) all) {{
  yes = Constant <value = bool {{1}}> ()
  zero = Constant <value = float {{0}}> ()
  first = Constant <value = int64 {{0}}> ()
  one = Constant <value = int64 {{1}}> ()
  shape = Shape (x)
  n = Gather (shape, first)
  empty = SequenceEmpty <dtype = 1> ()
  all, negated = Loop (n, yes, empty, first) <body = each (int64 i, bool c, seq(float) s, int64 k)
      => (bool d, seq(float) t, int64 m) {{
    d = Identity (c)
    row = Gather (x, i)
    sum = ReduceSum <keepdims = 0> (row)
    p = Greater (sum, zero)
    t, m = If (p)
      <then_branch = keep () => (seq(float) a, int64 ka) {{ a = SequenceInsert (s, row)
                                                        ka = Identity (k) }},
       else_branch = negate () => (seq(float) b, int64 kb) {{ minus = Neg (row)
                                                          t1 = SequenceInsert (s, minus)
                                                          b = SequenceInsert (t1, minus)
                                                          kb = Add (k, one) }}>
  }}>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
}}
"""

# The largest of what is left, until nothing is: each takes away what is within 0.5 of it.
SUPPRESSED = f"""{HEADER}
suppress (float[T] x) => (float[U] kept) {{
  half = Constant <value = float {{0.5}}> ()
  nothing = Constant <value = int64 {{0}}> ()
  order = Constant <value = int64[1] {{0}}> ()
  size = Size (x)
  some = Greater (size, nothing)
  none = Slice (x, order, order)
  left, kept = Loop ("", some, x, none) <body = take (int64 i, bool c, float[K] v, float[J] taken)
      => (bool go, float[L] rest, float[M] more) {{
    top = ReduceMax <keepdims = 1> (v)
    more = Concat <axis = 0> (taken, top)
    gap = Sub (top, v)
    far = Greater (gap, half)
    rest = Compress <axis = 0> (v, far)
    count = Size (rest)
    go = Greater (count, nothing)
  }}>
}}
"""

# Divisors of each number, stacked as counts: a loop that grows within a loop.
NESTED = f"""{HEADER}
divisors (int64[T] numbers) => (int64[U] all, int64[T] counts) {{
  yes = Constant <value = bool {{1}}> ()
  one = Constant <value = int64 {{1}}> ()
  zero = Constant <value = int64 {{0}}> ()
  axis = Constant <value = int64[1] {{0}}> ()
  count = Size (numbers)
  none = Slice (numbers, axis, axis)
  all, counts = Loop (count, yes, none) <body = outer (int64 i, bool c, int64[K] before)
      => (bool d, int64[L] after, int64 made) {{
    d = Identity (c)
    number = Gather (numbers, i)
    found = Loop (number, yes, none) <body = inner (int64 j, bool e, int64[M] some) => (bool f, int64[N] more) {{
      f = Identity (e)
      divisor = Add (j, one)
      rest = Mod (number, divisor)
      divides = Equal (rest, zero)
      more = If (divides) <then_branch = take () => (int64[A] a) {{ row = Unsqueeze (divisor, axis)
                                                                  a = Concat <axis = 0> (some, row) }},
                           else_branch = leave () => (int64[B] b) {{ b = Identity (some) }}>
    }}>
    after = Concat <axis = 0> (before, found)
    made = Size (found)
  }}>
}}
"""

# A scan over rows that joins those with a positive sum; and a map over tensors that are as long as data say.
JOINED = f"""{HEADER}
join (float[T, 3] x, float[3] start) => (float[U] joined, float[V] mapped) {{
  zero = Constant <value = float {{0}}> ()
  axis = Constant <value = int64[1] {{0}}> ()
  joined = Scan <num_scan_inputs = 1, body = each (float[K] v, float[3] row) => (float[L] w) {{
    sum = ReduceSum <keepdims = 0> (row)
    p = Greater (sum, zero)
    w = If (p) <then_branch = take () => (float[A] a) {{ a = Concat <axis = 0> (v, row) }},
                else_branch = leave () => (float[B] b) {{ b = Identity (v) }}>
  }}> (start, x)
  positive = Greater (joined, zero)
  chosen = Compress <axis = 0> (joined, positive)
  several = SplitToSequence <axis = 0> (chosen)
  doubled = SequenceMap <body = twice (float[C] s) => (float[D] t) {{ t = Add (s, s) }}> (several)
  ones = SequenceConstruct (start)
  length = SequenceLength (doubled)
  nothing = Constant <value = int64 {{0}}> ()
  some = Greater (length, nothing)
  kept = If (some) <then_branch = these () => (seq(float) f) {{ f = Identity (doubled) }},
                    else_branch = others () => (seq(float) g) {{ g = Identity (ones) }}>
  mapped = ConcatFromSequence <axis = 0> (kept)
}}
"""


def model(text, **stored):
    """The file; ``stored`` are initializers in place of inputs."""
    proto = parser.parse_model(text)
    for name, array in stored.items():
        (entry,) = [i for i in proto.graph.input if i.name == name]
        proto.graph.input.remove(entry)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto.SerializeToString()


def interprets(session):
    return session._loaded()._interpreted.is_needed


def check(data, several, devices=("cpu", "numpy"), interpreted=True):
    """Each run gives what onnxruntime's gives, with new inputs and with those of before."""
    peer = onnxruntime.InferenceSession(data)
    names = [output.name for output in peer.get_outputs()]
    for device in devices:
        session = df.Session(load_bytes(data), devices=[device], fallback="allow")
        for feeds in [*several, *several[:2]]:
            found, expected = session.run(feeds), peer.run(None, feeds)
            for name, wanted in zip(names, expected, strict=True):
                made, others = (v if isinstance(v, list) else [v] for v in (found[name], wanted))
                assert len(made) == len(others)
                for one, other in zip(made, others, strict=True):
                    assert one.dtype == other.dtype
                    assert one.shape == other.shape
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert interprets(session) == interpreted


def test_ids_that_grow_until_a_token_comes():
    feeds = [{"n": np.array(n), "start": np.array([s])} for n, s in ((5, 1), (30, 2), (12, 7), (30, 5), (0, 4), (1, 9))]
    check(model(GROWING, table=TABLE, out=OUT), feeds)


def test_a_branch_that_appends_to_a_sequence():
    rows = (3, 8, 5, 8, 1)
    check(model(APPENDED), [{"x": RNG.standard_normal((n, 4), np.float32)} for n in rows])


def test_a_loop_that_ends_when_nothing_is_left():
    check(model(SUPPRESSED), [{"x": RNG.standard_normal(n, np.float32)} for n in (4, 9, 20, 20, 1, 0, 33)])


def test_a_loop_that_grows_in_a_loop_that_grows():
    feeds = [np.array(n) for n in ([6, 4], [12, 1, 7], [2], [0, 3], np.zeros(0, np.int64), [1, 2, 3, 4, 5, 6])]
    check(model(NESTED), [{"numbers": n} for n in feeds])


def test_a_scan_and_a_map_whose_lengths_data_decide():
    """Beside ONNX's reference: in onnxruntime what a scan carries can't change its shape."""
    data = model(JOINED)
    session, peer = df.Session(load_bytes(data), devices=["cpu"]), ReferenceEvaluator(data)
    several = [{"x": RNG.standard_normal((n, 3), np.float32), "start": np.ones(3, np.float32)} for n in (2, 6, 6, 9)]
    for feeds in several:
        for made, expected in zip(session.run(feeds).values(), peer.run(None, feeds), strict=True):
            np.testing.assert_array_equal(made, expected)
    nothing = session.run({"x": np.zeros((4, 3), np.float32), "start": -np.ones(3, np.float32)})
    np.testing.assert_array_equal(nothing["mapped"], [-1, -1, -1])  # of an empty sequence the reference makes no map
    assert interprets(session)


def test_a_native_loop_gives_a_list_to_the_host(monkeypatch):
    """Rows are listed by a loop that is one node, and left out by one that isn't."""
    text = f"""{HEADER}
rows (float[T, 3] x) => (float[U, 3] y, int64 length) {{
  yes = Constant <value = bool {{1}}> ()
  zero = Constant <value = float {{0}}> ()
  first = Constant <value = int64 {{0}}> ()
  shape = Shape (x)
  n = Gather (shape, first)
  empty = SequenceEmpty <dtype = 1> ()
  all = Loop (n, yes, empty) <body = each (int64 i, bool c, seq(float) s) => (bool d, seq(float) t) {{
    d = Identity (c)
    row = Gather (x, i)
    tan = Tanh (row)
    t = SequenceInsert (s, tan)
  }}>
  some = Loop (n, yes, empty) <body = choose (int64 j, bool e, seq(float) p) => (bool f, seq(float) q) {{
    f = Identity (e)
    entry = SequenceAt (all, j)
    sum = ReduceSum <keepdims = 0> (entry)
    positive = Greater (sum, zero)
    q = If (positive) <then_branch = take () => (seq(float) a) {{ a = SequenceInsert (p, entry) }},
                       else_branch = leave () => (seq(float) b) {{ b = Identity (p) }}>
  }}>
  y = ConcatFromSequence <axis = 0, new_axis = 1> (some)
  length = SequenceLength (all)
}}
"""
    run, names = control_flow.loop, []
    monkeypatch.setitem(
        control_flow.OPERATORS, "Loop", lambda node, *given: names.append(node.outputs[0]) or run(node, *given)
    )
    check(model(text), [{"x": RNG.standard_normal((n, 3), np.float32)} for n in (6, 9, 4)], devices=["cpu"])
    assert set(names) == {"some"}


def branches(count):
    """One after another, each of which doubles a vector or negates it, as an entry of ``x`` says."""
    body = "".join(
        f"""i{k} = Constant <value_int = {k}> ()  v{k} = Gather (x, i{k})  c{k} = Greater (v{k}, zero)
        y{k + 1} = If (c{k}) <then_branch = t{k} () => (float[A{k}] r{k}) {{ r{k} = Concat <axis = 0> (y{k}, x) }},
        else_branch = e{k} () => (float[B{k}] s{k}) {{ s{k} = Neg (y{k}) }}> """
        for k in range(count)
    )
    last = f"y = Identity (y{count})"
    first = "zero = Constant <value_float = 0.0> () y0 = Exp (x)"
    return f"{HEADER} g (float[8] x) => (float[M] y) {{ {first} {body} {last} }}"


def all_combinations(session):
    """Runs all combinations of six branches beside onnxruntime; gives how often the file was converted."""
    peer = onnxruntime.InferenceSession(model(branches(6)))
    loaded, converted = session._loaded(), []
    convert = loaded._convert
    loaded._convert = lambda *given: converted.append(given) or convert(*given)
    for index in np.random.default_rng(1).permutation(64):
        x = np.array([1 if index >> k & 1 else -1 for k in range(8)], np.float32) * np.float32(0.3)
        np.testing.assert_allclose(session.run(x)["y"], peer.run(None, {"x": x})[0], rtol=1e-6)
    return len(converted)


def test_branches_that_combine_again_and_again_are_decided_one_by_one():
    session = df.Session(load_bytes(model(branches(6))), devices=["cpu"])
    assert all_combinations(session) < 64  # 127 for all forms of it, and of more branches twice as many for each
    assert session._loaded()._interpreted.is_cheaper
    few = df.Session(load_bytes(model(branches(3))), devices=["cpu"])
    for index in np.random.default_rng(1).permutation(8).tolist() * 3:
        few.run(np.array([1 if index >> k & 1 else -1 for k in range(8)], np.float32))
    assert not few._loaded()._interpreted.is_cheaper  # all forms of it are kept


def test_a_form_runs_what_the_interpreter_refuses(monkeypatch):
    session = df.Session(load_bytes(model(branches(6))), devices=["cpu"])

    def refuse(*_):
        raise df.InputError("not here")

    monkeypatch.setattr(session._loaded()._interpreted._interpreter, "run", refuse)
    all_combinations(session)
    assert not session._loaded()._interpreted.is_needed


def test_the_newest_weights_run():
    data = model(GROWING, table=TABLE, out=OUT)
    loaded = load_bytes(data)
    session = df.Session(loaded, devices=["cpu"])
    feeds = {"n": np.array(9), "start": np.array([1])}
    before = session.run(feeds)
    loaded.parameters["table"].set(-TABLE)
    np.testing.assert_array_equal(session.run(feeds)["scores"], before["scores"])
    session.reload()
    expected = onnxruntime.InferenceSession(model(GROWING, table=-TABLE, out=OUT)).run(None, feeds)
    for source in (session, df.Session(loaded.copy(), devices=["cpu"])):
        for name, wanted in zip(("ids", "scores"), expected, strict=True):
            np.testing.assert_allclose(source.run(feeds)[name], wanted, rtol=1e-5)


def test_a_stored_tensor_in_a_sequence_is_the_newest():
    text = APPENDED.replace("float[T, 4] x)", "float[T, 4] x, float[4] w)").replace(
        "a = SequenceInsert (s, row)", "a = SequenceInsert (s, w)"
    )
    loaded = load_bytes(model(text, w=np.full(4, 2, np.float32)))
    x = np.ones((3, 4), np.float32)
    session = df.Session(loaded, devices=["cpu"])
    np.testing.assert_array_equal(session.run(x)["y"], np.full((3, 4), 2))
    if "w" in loaded.parameters:
        loaded.parameters["w"].set(np.full(4, 5, np.float32))
        session.reload()
        np.testing.assert_array_equal(session.run(x)["y"], np.full((3, 4), 5))


def test_inner_values_and_arrays_of_the_caller():
    session = df.Session(load_bytes(model(SUPPRESSED)), devices=["cpu"])
    x = np.array([1.0, 0.9, 0.2, -3, 0.1], np.float32)
    found = session.run(x, outputs=["size", "left", "kept", "x"])
    assert list(found) == ["size", "left", "kept", "x"]
    assert (int(found["size"]), found["left"].shape) == (5, (0,))
    np.testing.assert_array_equal(found["kept"], np.array([1, 0.2, -3], np.float32))
    found["x"][...] = 0
    assert x[0] == 1
    out = np.empty(3, np.float32)
    assert session.run(x, out={"kept": out})["kept"] is out
    np.testing.assert_array_equal(out, found["kept"])
    with pytest.raises(df.InputError, match=r"out\['kept'\]: expected float32\[3\]"):
        session.run(x, out={"kept": np.empty(4, np.float32)})
    with pytest.raises(df.InputError, match="no output 'keep'"):
        session.run(x, out={"keep": out})


def test_a_loop_that_a_guess_makes_endless_is_not_unrolled_for_long(monkeypatch):
    """Loading looks what a loop stores, and of what rank its results are, with a guess of its condition."""
    text = f"""{HEADER}
add (bool go, float[1] y) => (float[T] z, float[U, 1] all) {{
  z, all = Loop ("", go, y) <body = b (int64 i, bool c, float[K] v) => (bool d, float[L] w, float[M] s) {{
    five = Constant <value = float[5] {{1, 2, 3, 4, 5}}> ()
    one = Constant <value = int64 {{1}}> ()
    axis = Constant <value = int64[1] {{0}}> ()
    next = Add (i, one)
    start = Unsqueeze (i, axis)
    end = Unsqueeze (next, axis)
    entry = Slice (five, start, end)
    w = Add (v, entry)
    s = Identity (w)
    d = Identity (c)
  }}>
}}
"""
    made, inlined = [], Importer.inlined
    monkeypatch.setattr(Importer, "inlined", lambda self, *given: made.append(1) or inlined(self, *given))
    session = df.Session(load_bytes(model(text)), devices=["cpu"], limits=df.Limits(seconds=2))
    assert len(made) < 500
    found = session.run({"go": np.array(False), "y": np.ones(1, np.float32)})
    np.testing.assert_array_equal(found["z"], [1])
    with pytest.raises(df.LimitExceeded, match="more than 2 seconds"):
        session.run({"go": np.array(True), "y": np.ones(1, np.float32)})


def test_an_endless_loop_ends_at_the_limit():
    text = SUPPRESSED.replace("go = Greater (count, nothing)", "go = GreaterOrEqual (count, nothing)").replace(
        "rest = Compress <axis = 0> (v, far)",
        "all = Compress <axis = 0> (v, far)\n    rest = Concat <axis = 0> (v, all)",
    )
    session = df.Session(load_bytes(model(text)), devices=["cpu"], limits=df.Limits(seconds=2))
    with pytest.raises(df.LimitExceeded, match="more than 2 seconds"):
        session.run(np.array([1.0], np.float32))


def test_threads_run_one_session():
    session = df.Session(load_bytes(model(SUPPRESSED)), devices=["cpu"])
    peer = onnxruntime.InferenceSession(model(SUPPRESSED))
    wrong = []

    def run(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.standard_normal(rng.integers(1, 12), np.float32)
            if not np.array_equal(session.run(x)["kept"], peer.run(None, {"x": x})[0]):
                wrong.append(x)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            APPENDED.replace("y = Concat", "at = SequenceAt (all, one)\n  y = Concat"),
            r"SequenceAt 'at', opset 17: the position is 1; expected one from -1 to 0",
        ),
        (
            APPENDED.replace("minus = Neg (row)", "minus = Cast <to = 11> (row)"),
            r"SequenceInsert 't1', opset 17: it puts float32 and float64 into one sequence",
        ),
        (
            APPENDED.replace("minus = Neg (row)", "minus = Neg (s)"),
            r"Neg 'minus', opset 17: it reads a sequence, or an optional without an element; expected tensors",
        ),
    ],
)
def test_what_is_refused_names_the_node(text, message):
    proto = parser.parse_model(text)
    if "SequenceAt" in text:
        proto.graph.output.append(onnx.helper.make_tensor_value_info("at", onnx.TensorProto.FLOAT, None))
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    with pytest.raises(df.InputError, match=message):
        session.run(np.concatenate([np.ones((1, 4)), -np.ones((3, 4))])[: 1 if "SequenceAt" in text else 4].astype("f"))


# ---- random loops ---------------------------------------------------------------------------------------

STATEMENTS = {
    "append": "{o} = Concat <axis = 0> ({v}, one)",
    "twice": "{o} = Concat <axis = 0> ({v}, {v})",
    "tail": "{o} = Slice ({v}, at1, far)",
    "half": "{o} = Mul ({v}, half)",
    "shift": "{o}_a = Gather (x, {i})\n{o} = Add ({v}, {o}_a)",
    "choose": "{o}_a = Gather (x, {i})\n{o}_b = Greater ({v}, {o}_a)\n{o} = Compress <axis = 0> ({v}, {o}_b)",
    "tile": "{o}_a = Mod ({i}, two)\n{o}_b = Add ({o}_a, one_i)\n{o}_c = Unsqueeze ({o}_b, axis)\n"
    "{o} = Tile ({v}, {o}_c)",
    "range": "{o}_a = Size ({v})\n{o}_b = Range (zero_i, {o}_a, one_i)\n{o}_c = Cast <to = 1> ({o}_b)\n"
    "{o} = Add ({v}, {o}_c)",
    "top": "{o}_a = Size ({v})\n{o}_b = Min ({o}_a, two)\n{o}_c = Unsqueeze ({o}_b, axis)\n"
    "{o}, {o}_d = TopK ({v}, {o}_c)",
    "list": "{o}_a = SequenceConstruct ({v}, one)\n{o}_p = Mod ({i}, two)\n{o}_b = SequenceInsert ({o}_a, {v}, {o}_p)\n"
    "{o} = ConcatFromSequence <axis = 0> ({o}_b)",
    "sum": "{o}_a = ReduceSum <keepdims = 1> ({v})\n{o} = Concat <axis = 0> ({o}_a, {v})",
}


@st.composite
def programs(draw, depth=0, prefix="s"):
    """Statements that make of a vector another one, of another length: ops, branches and loops."""
    lines, v = [], "{v}"
    for number in range(draw(st.integers(1, 3))):
        o = f"{prefix}{number}"
        kind = draw(st.sampled_from([*STATEMENTS, "if", "loop"] if depth < 2 else [*STATEMENTS]))
        if kind in STATEMENTS:
            lines.append(STATEMENTS[kind].replace("{v}", v).replace("{o}", o))
        elif kind == "if":
            lines.append(f"{o}_a = ReduceSum <keepdims = 0> ({v})\n{o}_p = Greater ({o}_a, zero)")
            made = []
            for label in ("t", "e"):
                text, last = draw(programs(depth + 1, f"{o}{label}"))
                text = f"{text}\n{o}{label}_r = Identity ({last})".replace("{v}", v)
                made.append(f"b{o}{label} () => (float[{o}{label}D] {o}{label}_r) {{ {text} }}")
            lines.append(f"{o} = If ({o}_p) <then_branch = {made[0]}, else_branch = {made[1]}>")
        else:
            text, last = draw(programs(depth + 1, f"{o}l"))
            text = text.replace("{v}", f"{o}_v").replace("{i}", f"{o}_i")
            last = last.replace("{v}", f"{o}_v")
            lines.append(
                f"{o} = Loop (two, yes, {v}) <body = b{o} (int64 {o}_i, bool {o}_c, float[{o}K] {o}_v) "
                f"=> (bool {o}_d, float[{o}L] {o}_r) {{ {text}\n{o}_r = Identity ({last})\n"
                f"{o}_n = Size ({o}_r)\n{o}_d = Less ({o}_n, many) }}>"
            )
        v = o
    return "\n".join(lines), v


@settings(max_examples=25)
@given(programs(), st.integers(0, 2**31))
def test_random_loops_give_what_onnxruntime_gives(program, seed):
    text, last = program
    data = model(f"""{HEADER}
random (int64 n, float[4] x, float[K] start) => (float[E] y, int64 made) {{
  yes = Constant <value = bool {{1}}> ()
  zero = Constant <value = float {{0}}> ()
  half = Constant <value = float {{0.5}}> ()
  one = Constant <value = float[1] {{1}}> ()
  at1 = Constant <value = int64[1] {{1}}> ()
  far = Constant <value = int64[1] {{100000}}> ()
  two = Constant <value = int64 {{2}}> ()
  many = Constant <value = int64 {{40}}> ()
  one_i = Constant <value = int64 {{1}}> ()
  zero_i = Constant <value = int64 {{0}}> ()
  axis = Constant <value = int64[1] {{0}}> ()
  y = Loop (n, yes, start) <body = main (int64 i, bool c, float[A] v) => (bool d, float[B] r) {{
    {text.replace("{v}", "v").replace("{i}", "i")}
    r = Identity ({last.replace("{v}", "v")})
    k = Size (r)
    d = Less (k, many)
  }}>
  made = Size (y)
}}
""")
    peer = onnxruntime.InferenceSession(data)
    session = df.Session(load_bytes(data), devices=["cpu"], fallback="allow")
    rng = np.random.default_rng(seed)
    for n, size in ((1, 3), (3, 3), (3, 5), (2, 0), (4, 5)):
        start, x = rng.standard_normal(size, np.float32), rng.standard_normal(4, np.float32)
        feeds = {"n": np.array(n), "x": x, "start": start}
        found, expected = session.run(feeds), peer.run(None, feeds)
        np.testing.assert_allclose(found["y"], expected[0], rtol=1e-4, atol=1e-4, equal_nan=True)
        assert found["made"] == expected[1]
