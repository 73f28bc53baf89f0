"""Models whose data decide which nodes there are: one graph of all sizes for the data that came, not one for each."""

import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow.execute.special_forms import SpecialForms
from dataflow_onnx import deferred, loading
from dataflow_onnx.loading import load_bytes

GROWING = """
<ir_version: 9, opset_import: ["" : 20]>
growing (float[batch, new, 4] x, float[batch, past, 4] past_self, bool[1] use_cache) => (y, present, inner)
<float[4, 4] w = {1, 2, 3, 4, 0, 1, 0, 2, 5, 1, 1, 1, -1, 0, 2, 1}, int64[1] one = {1}>
{
    h = MatMul(x, w)
    y0, present = If(use_cache) <
        then_branch = later () => (y1, all1) {
            all1 = Concat<axis = 1>(past_self, h)
            sum1 = ReduceSum(all1, one)
            y1 = Add(h, sum1)
        },
        else_branch = first () => (y2, all2) {
            all2 = Neg(h)
            y2 = Relu(h)
        }>
    inner = Mul(y0, y0)
    y = Add(inner, h)
}
"""

COMPUTED = """
<ir_version: 9, opset_import: ["" : 20]>
computed (float[rows, 4] x, int64[n] k) => (y)
<float zero = {0}, int64[1] one = {1}, int64[1] begin = {0}>
{
    most = ReduceMax<keepdims = 0>(x)
    good = Greater(most, zero)
    h = If(good) <
        then_branch = doubled () => (h1) { h1 = Concat<axis = 0>(x, x) },
        else_branch = same () => (h2) { h2 = Neg(x) }>
    axis = Slice(k, begin, one)
    y = ReduceSum<keepdims = 0>(h, axis)
}
"""

# Sizes decide about the nodes of one branch: it is made for each of them.
HALF = """
<ir_version: 9, opset_import: ["" : 20]>
half (float[rows, 4] x, bool[1] which) => (y)
<int64 zero = {0}, int64[1] first = {0}, int64[1] last = {-1}, int64 single = {1}, float[4, 4] w = {1, 2, 3, 4, 0, 1, 0, 2, 5, 1, 1, 1, -1, 0, 2, 1}>
{
    m = MatMul(x, w)
    h = If(which) <
        then_branch = doubled () => (h1) { h1 = Concat<axis = 0>(m, m) },
        else_branch = squeezed () => (h2) {
            s = Shape(m)
            rows = Gather(s, zero)
            alone = Equal(rows, single)
            h2 = If(alone) <
                then_branch = a () => (a1) { a1 = Squeeze(m, first) },
                else_branch = b () => (b1) { b1 = Neg(m) }>
        }>
    y = ReduceSum<keepdims = 0>(h, last)
}
"""  # noqa: E501


def parsed(text):
    proto = onnx.parser.parse_model(text)
    for output in proto.graph.output:
        if not output.type.tensor_type.elem_type:
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return proto


@pytest.fixture
def conversions(monkeypatch):
    """What is converted: the types and values for which a graph is made."""
    made = []
    for module in (deferred, loading):
        plain = module.specialized

        def counted(*given, plain=plain, **options):
            made.append(given[-2:])
            return plain(*given, **options)

        monkeypatch.setattr(module, "specialized", counted)
    return made


def check(session, reference, feeds):
    found = session.run(feeds)
    for name, expected in zip(reference.output_names, reference.run(None, feeds), strict=True):
        assert found[name].shape == expected.shape
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)


def fed(rng, new, past, cached, batch=1):
    x, kept = (rng.standard_normal((batch, n, 4), np.float32) for n in (new, past))
    return {"x": x, "past_self": kept, "use_cache": np.array([cached])}


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_branches_of_other_sizes_are_converted_once_each(conversions, device):
    proto = parsed(GROWING)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), [device]), ReferenceEvaluator(proto)
    rng = np.random.default_rng(0)
    check(session, reference, fed(rng, 3, 1, cached=False))
    check(session, reference, fed(rng, 1, 3, cached=True))
    conversions.clear()
    for past in range(4, 24):
        check(session, reference, fed(rng, 1, past, cached=True))
    assert not conversions
    assert device != "cpu" or len(session.plans) < 6  # the others are a series
    for new, past, cached, batch in [(2, 3, True, 1), (2, 9, False, 2), (5, 2, True, 3), (1, 7, False, 1)]:
        check(session, reference, fed(rng, new, past, cached, batch))
    assert not conversions


def test_inner_values_and_arrays_that_are_given(conversions):
    proto = parsed(GROWING)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), ["cpu"]), ReferenceEvaluator(proto)
    rng = np.random.default_rng(1)
    for past in range(2, 8):
        feeds = fed(rng, 1, past, cached=past % 3 > 0)
        expected = dict(zip(reference.output_names, reference.run(None, feeds), strict=True))
        found = session.run(feeds, outputs=["inner", "h"])
        assert list(found) == ["inner", "h"]
        np.testing.assert_allclose(found["inner"], expected["inner"], rtol=1e-5)
        out = np.empty_like(expected["y"])
        session.run(feeds, out={"y": out})
        np.testing.assert_allclose(out, expected["y"], rtol=1e-5)
    assert len(conversions) == 3  # what must be known, and the graph for either value
    wrong = fed(rng, 1, 4, cached=True)
    with pytest.raises(df.InputError):
        session.run({**wrong, "past_self": np.zeros((2, 4, 4), np.float32)})
    with pytest.raises(df.InputError):
        session.run({**wrong, "use_cache": np.array([True, False])})
    check(session, reference, wrong)


def test_values_that_are_inputs_are_looked_up_at_once(monkeypatch):
    """Also where they are others in each run."""
    proto = parsed(GROWING)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), ["cpu"]), ReferenceEvaluator(proto)
    rng, called = np.random.default_rng(6), []
    plain = SpecialForms.made
    monkeypatch.setattr(SpecialForms, "made", lambda *given: called.append(given) or plain(*given))
    for past in range(2, 10):
        check(session, reference, fed(rng, 1, past, cached=past % 2 > 0))
        if past == 4:
            assert called
            called.clear()
    assert not called
    wrong = fed(rng, 1, 4, cached=True)
    with pytest.raises(df.InputError, match="batch"):
        session.run({**wrong, "past_self": np.zeros((2, 4, 4), np.float32)})


def test_newest_weights():
    proto = parsed(GROWING)
    loaded, rng = load_bytes(proto.SerializeToString()), np.random.default_rng(2)
    session = df.Session(loaded, ["cpu"])
    feeds = [fed(rng, 1, past, cached=past > 2) for past in range(2, 6)]
    before = [session.run(f)["h"] if "h" in session.model.outputs else session.run(f, ["h"])["h"] for f in feeds]
    loaded.parameters["w"].set(loaded.parameters["w"].array * 2)
    session.reload()
    for f, h in zip(feeds, before, strict=True):
        np.testing.assert_allclose(session.run(f, ["h"])["h"], 2 * h, rtol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_values_that_are_computed_are_checked_in_each_run(conversions, device):
    proto = parsed(COMPUTED)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), [device]), ReferenceEvaluator(proto)
    rng = np.random.default_rng(3)
    for number in range(40):
        x = np.abs(rng.standard_normal((1 + number % 7, 4), np.float32))
        axis = number // 20
        check(session, reference, {"x": x if number % 8 < 5 else -x, "k": np.array([axis] * (1 + number % 3))})
    assert len(conversions) <= 8  # 2 values of either branch and axis


def test_what_sizes_decide_is_made_for_them_alone(conversions):
    """The other branch is one graph."""
    proto = parsed(HALF)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), ["cpu"]), ReferenceEvaluator(proto)
    rng = np.random.default_rng(4)
    for rows, which in [(2, True), (3, True), (1, False), (4, False), (5, True), (6, True), (1, True), (4, True)]:
        check(session, reference, {"x": rng.standard_normal((rows, 4), np.float32), "which": np.array([which])})
    named = [values for types, values in conversions if not types["x"].is_bound]
    assert len(named) == 3
    assert {int(types["x"].sizes[0]) for types, _ in conversions if types["x"].is_bound} <= {1, 2, 4, 32}


def test_threads_with_other_values():
    proto = parsed(GROWING)
    session, reference = df.Session(load_bytes(proto.SerializeToString()), ["cpu"]), ReferenceEvaluator(proto)
    failed = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for number in range(30):
                check(session, reference, fed(rng, 1 + seed % 2, number + 1, cached=bool(rng.integers(2))))
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_random_numbers_that_decide():
    """The run draws what decides about it once: both come from one key."""
    proto = parsed(
        COMPUTED.replace("most = ReduceMax<keepdims = 0>(x)", "r = RandomNormalLike(x) most = ReduceMax(r)")
        .replace("axis = Slice(k, begin, one)", "sum = Neg(most)")
        .replace("y = ReduceSum<keepdims = 0>(h, axis)", "y = Identity(h)")
        .replace("most = ReduceMax(r)", "most = ReduceSum<keepdims = 0>(r)")
    )
    session = df.Session(load_bytes(proto.SerializeToString()), ["cpu"], seed=5)
    other = df.Session(load_bytes(proto.SerializeToString()), ["numpy"], seed=5)
    lengths = set()
    for rows in (2, 3, 3, 2, 4, 5, 3, 3, 3, 2, 6, 1):
        feeds = {"x": np.ones((rows, 4), np.float32), "k": np.zeros(1, np.int64)}
        found, again = session.run(feeds, ["y", "most"]), other.run(feeds, ["y", "most"])
        np.testing.assert_allclose(found["most"], again["most"], rtol=1e-4)
        assert len(found["y"]) == (2 * rows if found["most"] > 0 else rows)
        np.testing.assert_array_equal(found["y"], again["y"])
        lengths.add(bool(found["most"] > 0))
    assert lengths == {False, True}
