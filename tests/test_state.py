"""State of a session: what a run leaves for the next."""

import numpy as np
import onnx
import pytest

import dataflow as df
from tests.decoders import inputs, text_of

STATE = {"present": "past"}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "decoder.onnx"
    onnx.save(onnx.parser.parse_model(text_of("all")), path)
    return df.load(path)


@pytest.fixture(params=["cpu", "numpy", "remote"])
def devices(request, remote):
    return {"devices": [request.param] if request.param != "remote" else ["remote", "cpu"], "registry": remote}


def tokens(lengths, batch=1):
    """Inputs but the cache of runs of so many tokens."""
    rng = np.random.default_rng(sum(lengths))
    past = 0
    for new in lengths:
        mask = (rng.random((batch, past + new)) < 0.8).astype(np.int64)
        yield {"x": rng.standard_normal((batch, new, 8), np.float32), "mask": mask}
        past += new


def with_cache(session, runs, past):
    """The results where the caller gives the cache."""
    for fed in runs:
        found = session.run({**fed, "past": past})
        past = found["present"]
        yield found


@pytest.mark.parametrize(("batch", "lengths"), [(1, [5] + [1] * 20), (2, [3, 1, 1, 1, 1, 4, 1, 1]), (1, [1] * 9)])
def test_the_cache_is_kept(decoder, devices, batch, lengths):
    session, other = df.Session(decoder, state=STATE, **devices), df.Session(decoder, **devices)
    for _ in range(2):
        runs = list(tokens(lengths, batch))
        expected = list(with_cache(other, runs, np.zeros((batch, 2, 0, 4), np.float32)))
        for number, fed in enumerate(runs):
            found = session.run(fed)
            assert list(found) == ["y"]
            np.testing.assert_array_equal(found["y"], expected[number]["y"], f"run {number}")
        np.testing.assert_array_equal(session.state["past"], expected[-1]["present"])
        session.reset()
        assert not session.state


def test_a_token_is_not_planned(decoder):
    session = df.Session(decoder, ["cpu"], state=STATE)
    for fed in tokens([4] + [1] * 50):
        session.run(fed)
    assert len(session.plans) == 3  # of the prompt, of a token, and of all others


def test_state_lies_on_the_first_device(decoder, remote):
    session = df.Session(decoder, ["remote", "cpu"], state=STATE, registry=remote)
    for fed in tokens([4] + [1] * 5):
        session.run(fed)
    for plan in session.plans:
        memory = {arena.name: (arena.kind, arena.memory) for arena in plan.arenas}
        assert (memory["past"], memory["present"]) == (("before", "remote:0"), ("after", "remote:0"))
        returned = [name for name, kind in memory.items() if kind[0] == "output"]
        assert returned == ["y"]


def test_state_is_read_and_set(decoder, devices):
    session = df.Session(decoder, state=STATE, **devices)
    runs = list(tokens([4, 1, 1, 1]))
    for fed in runs[:2]:
        session.run(fed)
    saved = session.state
    assert saved["past"].shape == (1, 2, 5, 4)
    ends = []
    for _ in range(2):
        session.run(runs[2])
        ends.append(session.run(runs[3], outputs=["present", "y"]))
        np.testing.assert_array_equal(ends[-1]["present"], session.state["past"])
        ends[-1]["present"][...] = 7  # the caller's own
        session.reset(saved)
    np.testing.assert_array_equal(ends[0]["y"], ends[1]["y"])
    assert list(ends[0]) == ["present", "y"]


def test_sessions_have_their_own_state_and_a_run_that_fails_changes_none(decoder):
    one, two = (df.Session(decoder, ["cpu"], state=STATE) for _ in range(2))
    runs = list(tokens([3, 1, 1]))
    for fed in runs:
        one.run(fed)
    assert not two.state
    before = one.state["past"]
    with pytest.raises(df.InputError, match=r"mask|total"):
        one.run({"x": runs[2]["x"], "mask": np.ones((2, 1), np.int64)})
    one.reload()
    np.testing.assert_array_equal(one.state["past"], before)
    one.run({"x": runs[2]["x"], "mask": np.ones((1, 6), np.int64)})
    assert one.state["past"].shape == (1, 2, 6, 4)


def test_state_of_a_fixed_size_begins_with_zeros(devices):
    g = df.GraphBuilder()
    x, h = g.input("x", df.float32, ("batch", 3)), g.input("h", df.float32, ("batch", 3))
    after = df.ops.tanh(df.ops.add(x, df.ops.mul(h, 0.5)))
    g.output("after", after)
    g.output("y", df.ops.mul(after, 2.0))
    session = df.Session(df.Model(g.build()), state={"after": "h"}, **devices)
    for batch in (2, 1):
        expected = np.zeros((batch, 3), np.float32)
        for step in range(5):
            given = np.full((batch, 3), step, np.float32)
            expected = np.tanh(given + expected / 2)
            np.testing.assert_allclose(session.run(given)["y"], 2 * expected, rtol=1e-5)
        if batch == 2:
            with pytest.raises(df.InputError, match="batch"):
                session.run(np.zeros((1, 3), np.float32))
        session.reset()


def test_what_does_not_fit_is_refused(decoder):
    for state, text in (
        ({"presnt": "past"}, "no output 'presnt'; do you mean 'present'"),
        ({"present": "pasts"}, "no input 'pasts'; do you mean 'past'"),
        ({"y": "past"}, r"'y' is float32\[batch, new, 8\]; the input 'past', which it becomes, is"),
        ({"present": "mask"}, "'mask', which it becomes, is int64"),
        ({"present": 3}, "no input 3"),
    ):
        with pytest.raises(df.InputError, match=text):
            df.Session(decoder, ["cpu"], state=state)
    with pytest.raises(df.InputError, match="state is"):
        df.Session(decoder, ["cpu"], state=[("present", "past")])
    twice = {"present.0": "past.0", "present.1": "past.0"}
    with pytest.raises(df.InputError, match=r"several outputs become the input 'past.0'"):
        df.Session(named(["past.0"], ["present.0", "present.1"]), ["cpu"], state=twice)
    session, fed = df.Session(decoder, ["cpu"], state=STATE), inputs(4)
    with pytest.raises(df.InputError, match=r"'past': the session keeps this as state; .* session.reset"):
        session.run(fed)
    with pytest.raises(df.InputError, match=r"read it by session.state"):
        session.run({"x": fed["x"], "mask": fed["mask"]}, out={"present": fed["past"]})
    for values, text in (
        ({"x": fed["x"]}, "'x' is no state; the state: past"),
        ({"past": fed["past"].astype(np.float64)}, r"astype\(np.float32\)"),
        ({"past": fed["past"][0]}, "rank 4 is expected"),
        ({"past": fed["past"][:, :1]}, "axis 1 must be 2"),
    ):
        with pytest.raises(df.InputError, match=text):
            session.reset(values)
    with pytest.raises(df.ModelError, match=r"profile one without"):
        session.profile(fed)
    for call in (lambda s: s.state, lambda s: s.reset()):
        with pytest.raises(df.ModelError, match="has no state"):
            call(df.Session(decoder, ["cpu"]))


def named(inputs_, outputs):
    g = df.GraphBuilder()
    values = [g.input(name, df.float32, ("batch", 2, "past", 4)) for name in inputs_]
    for name in outputs:
        g.output(name, df.ops.relu(values[0]))
    return df.Model(g.build())


@pytest.mark.parametrize(
    ("inputs_", "outputs"),
    [
        (["past_key_values.0.key", "past_key_values.0.value"], ["present.0.key", "present.0.value"]),
        (["past_key_values.0.decoder.key"], ["present.0.decoder.key"]),
        (["past.1.key"], ["present.1.key"]),
        (["past_0", "past_1"], ["present_0", "present_1"]),
        (["past_key_self_0", "past_value_self_0"], ["present_key_self_0", "present_value_self_0"]),
        (["past_key_values_0_key"], ["present_key_values_0_key"]),
    ],
)
def test_a_cache_is_found_by_its_names(inputs_, outputs):
    assert df.cache_state(named(["x", *inputs_], ["y", *outputs])) == dict(zip(outputs, inputs_, strict=True))


def test_a_cache_without_usual_names_is_refused():
    with pytest.raises(df.InputError, match=r"no output goes with the inputs past.1.key; expected .* Pair them"):
        df.cache_state(named(["past.0.key", "past.1.key"], ["present.0.key"]))
    with pytest.raises(df.InputError, match=r"no input is named past"):
        df.cache_state(named(["x"], ["present.0.key"]))


def test_what_cross_attention_reads_needs_no_output():
    past = ["past_key_values.0.decoder.key", "past_key_values.0.encoder.key"]
    pairs = {"present.0.decoder.key": past[0]}
    assert df.cache_state(named(["x", *past], ["y", *pairs])) == pairs
    assert df.cache_state(named(["past_key_self_0", "past_key_cross_0"], ["present_key_self_0"])) == {
        "present_key_self_0": "past_key_self_0"
    }
    with pytest.raises(df.InputError, match=r"no output goes with the inputs past_key_values.0.encoder.key"):
        df.cache_state(named(["x", past[1]], ["y"]))


MERGED = """
<ir_version: 9, opset_import: ["" : 20]>
merged (float[batch, new, 4] x, float[BATCH, length, 4] encoder, float[batch, past, 4] past_self,
        float[batch, kept, 4] past_cross, bool[1] use_cache)
    => (float[batch, new, 4] y, float[b0, all, 4] present_self, float[b1, read, 4] present_cross)
{
    y, present_self, present_cross = If(use_cache) <
        then_branch = later () => (float[batch, new, 4] y1, float[b0, all, 4] self1, float[b1, read, 4] cross1) {
            axis1 = Constant<value_ints = [1]>()
            self1 = Concat<axis = 1>(past_self, x)
            sum1 = ReduceSum(past_cross, axis1)
            own1 = ReduceSum(self1, axis1)
            both1 = Add(sum1, own1)
            y1 = Add(x, both1)
            cross1 = Constant<value = float[0, 1, 4] {}>()
        },
        else_branch = first () => (float[batch, new, 4] y2, float[b0, all, 4] self2, float[b1, read, 4] cross2) {
            axis2 = Constant<value_ints = [1]>()
            self2 = Identity(x)
            cross2 = Add(encoder, encoder)
            sum2 = ReduceSum(cross2, axis2)
            own2 = ReduceSum(self2, axis2)
            both2 = Add(sum2, own2)
            y2 = Add(x, both2)
        }>
}
"""


@pytest.mark.parametrize("batch", ["batch", "2"])
def test_an_empty_batch_leaves_the_state_as_it_was(tmp_path, devices, batch):
    """The branch of a merged decoder that reads the cache of its cross attention gives an empty one."""
    model = onnx.parser.parse_model(MERGED.replace("BATCH", batch).replace("[batch, kept", f"[{batch}, kept"))
    onnx.save(model, tmp_path / "merged.onnx")
    pairs = {"present_self": "past_self", "present_cross": "past_cross"}
    session = df.Session(df.load(tmp_path / "merged.onnx"), state=pairs, **devices)
    rng = np.random.default_rng(0)
    for again in range(2):
        if again and devices["devices"] == ["cpu"]:
            assert len(session.plans) < 8  # those of the first tokens, and a series
        encoder = rng.standard_normal((2, 5, 4), np.float32)
        x = rng.standard_normal((2, 14, 4), np.float32)
        for begin, end in [(0, 3), (3, 4), (4, 5), (5, 7), *zip(range(7, 14), range(8, 15), strict=True)]:
            found = session.run({"x": x[:, begin:end], "encoder": encoder, "use_cache": np.array([begin > 0])})["y"]
            sums = 2 * encoder.sum(1, keepdims=True) + x[:, :end].sum(1, keepdims=True)
            np.testing.assert_allclose(found, x[:, begin:end] + sums, rtol=0, atol=1e-5)
            np.testing.assert_array_equal(session.state["past_cross"], 2 * encoder)
        session.reset()


OWN_STATE = """
<ir_version: 9, opset_import: ["" : 20]>
own (float[batch, new, 4] x, float[batch, past, 4] past_self, float[1] past_sum)
    => (float[batch, new, 4] y, float[b0, all, 4] present_self, float[1] present_sum)
<float[1] limit = {3}, int64[3] axes = {0, 1, 2}>
{
    small = Less(past_sum, limit)
    y, present_self = If(small) <
        then_branch = later () => (float[batch, new, 4] y1, float[b0, all, 4] self1) {
            self1 = Concat<axis = 1>(past_self, x)
            mean1 = ReduceMean<keepdims = 1>(self1, axes)
            y1 = Add(x, mean1)
        },
        else_branch = first () => (float[batch, new, 4] y2, float[b0, all, 4] self2) {
            self2 = Neg(x)
            y2 = Mul(x, x)
        }>
    all = ReduceMax<keepdims = 0>(x, axes)
    one = Constant<value_ints = [1]>()
    present_sum = Reshape(all, one)
}
"""


def test_state_that_decides_what_is_computed(tmp_path, devices):
    """It is read where it lies."""
    onnx.save(onnx.parser.parse_model(OWN_STATE), tmp_path / "own.onnx")
    pairs = {"present_self": "past_self", "present_sum": "past_sum"}
    model = df.load(tmp_path / "own.onnx")
    session, other = df.Session(model, state=pairs, **devices), df.Session(model, **devices)
    rng = np.random.default_rng(0)
    state = {"past_self": np.zeros((2, 0, 4), np.float32), "past_sum": np.zeros(1, np.float32)}
    for number in range(30):
        x = np.clip(rng.standard_normal((2, 2 if number == 5 else 1, 4), np.float32), -2.5, 2.5)
        x[0, 0, 0] = 4 if number % 11 == 10 else 0
        expected = other.run({"x": x, **state})
        np.testing.assert_allclose(session.run({"x": x})["y"], expected["y"], rtol=1e-6, atol=1e-6)
        state = {name: expected[output] for output, name in pairs.items()}
        for name, array in session.state.items():
            np.testing.assert_array_equal(array, state[name])
    assert len(session.plans) < 20 or devices["devices"] != ["cpu"]  # most tokens are those of a series


def test_runs_between_tokens_change_what_comes_next(decoder):
    """A token follows the last of a series without another look at sizes, unless the state is no longer that."""
    session, other = df.Session(decoder, ["cpu"], state=STATE), df.Session(decoder, ["cpu"])
    past = np.zeros((1, 2, 0, 4), np.float32)
    for number, fed in enumerate(tokens([4] + [1] * 9 + [3] + [1] * 9)):
        if number == 7:
            past = past[:, :, : past.shape[2]] * 2
            session.reset({"past": past})
        if number == 9:
            with pytest.raises(df.InputError):
                session.run({**fed, "x": np.zeros((1, 2, 8), np.float32)})
        names = ["present", "y"] if number in (5, 6) else None
        found = session.run(fed, names)
        expected = other.run({**fed, "past": past})
        past = expected["present"]
        np.testing.assert_array_equal(found["y"], expected["y"], f"run {number}")
        if names:
            np.testing.assert_array_equal(found["present"], past)
        if number == 12:
            np.testing.assert_array_equal(session.state["past"], past)


def test_state_that_does_not_fit_leaves_what_there_was(decoder):
    session = df.Session(decoder, ["cpu"], state=STATE, limits=df.Limits(bytes=1 << 20))
    first, second = tokens([3, 2])
    session.run(first)
    before = session.state["past"]
    with pytest.raises(df.LimitExceeded, match="of the limit of 1048576 bytes are left"):
        session.reset({"past": np.ones((1, 2, 100_000, 4), np.float32)})
    np.testing.assert_array_equal(session.state["past"], before)
    expected = df.Session(decoder, ["cpu"]).run({**second, "past": before})
    np.testing.assert_array_equal(session.run(second)["y"], expected["y"])
    np.testing.assert_array_equal(session.state["past"], expected["present"])


def test_a_named_size_that_the_output_has_as_a_number_begins_as_that(devices):
    g = df.GraphBuilder()
    past = g.input("past", df.float32, ("batch", "past", "size"))
    x = g.input("x", df.float32, ("batch", "new", 3))
    g.output("present", df.ops.concat(past, x, axis=1))
    session = df.Session(df.Model(g.build()), state={"present": "past"}, **devices)
    for count in (2, 3):
        session.run({"x": np.ones((1, count, 3), np.float32)})
    np.testing.assert_array_equal(session.state["past"], np.ones((1, 5, 3), np.float32))
