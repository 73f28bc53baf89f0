"""Random nodes without a seed draw anew in each run of a session, reproducibly."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow.passes.random_keys import KEY_INPUT
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

F, X = TensorProto.FLOAT, np.zeros((2, 3), np.float32)


def loaded(*arguments, **options):
    return load_bytes(onnx_model(*arguments, **options).SerializeToString())


def noisy(operator="RandomNormalLike", **seed):
    nodes = [helper.make_node(operator, ["x"], ["n"], **seed), helper.make_node("Add", ["x", "n"], ["y"])]
    return loaded(nodes, [("x", F, ["b", 3])], [("y", F, ["b", 3])])


def drawn(session, count=3, x=X):
    return [session.run({"x": x})["y"].copy() for _ in range(count)]


@pytest.mark.parametrize("operator", ["RandomNormalLike", "RandomUniformLike"])
def test_each_run_draws_anew_and_a_new_session_the_same_again(operator):
    model = noisy(operator)
    first = drawn(df.Session(model, devices=["cpu"]))
    assert len({array.tobytes() for array in first}) == 3
    for device in ("cpu", "numpy"):
        np.testing.assert_allclose(drawn(df.Session(model, devices=[device])), first, atol=1e-6)
    others = drawn(df.Session(model, devices=["cpu"], seed=1))
    assert not {array.tobytes() for array in first} & {array.tobytes() for array in others}


def test_nodes_with_a_seed_draw_the_same_each_time():
    assert len({array.tobytes() for array in drawn(df.Session(noisy(seed=3.0), devices=["cpu"]))}) == 1


def test_a_seed_outside_its_range_is_refused():
    for seed in (-1, 1 << 63, 0.5):
        with pytest.raises(df.InputError, match="seed"):
            df.Session(noisy(), seed=seed)


def test_the_key_is_no_input_of_the_user():
    """It is neither asked for nor taken, and sizes that grow don't change who draws what."""
    session = df.Session(noisy(), devices=["cpu"])
    with pytest.raises(df.InputError, match="unknown"):
        session.run({"x": X, KEY_INPUT: np.zeros(2, np.uint64)})
    results = [session.run({"x": np.zeros((rows, 3), np.float32)})["y"] for rows in range(1, 9)]
    again = df.Session(noisy(), devices=["numpy"])
    for rows, expected in enumerate(results, 1):
        found = again.run({"x": np.zeros((rows, 3), np.float32)})["y"]
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert session.plan({"x": (4, 3)}).outputs.keys() == {"y"}
    fresh = df.Session(noisy(), devices=["cpu"])
    fresh.plan({"x": (2, 3)})  # is no run
    np.testing.assert_array_equal(fresh.run({"x": X})["y"], drawn(df.Session(noisy(), devices=["cpu"]), 1)[0])
    assert session.profile({"x": X}, rounds=2).outputs["y"].shape == (2, 3)


def test_multinomial_samples_follow_the_distribution_over_runs():
    nodes = [helper.make_node("Multinomial", ["x"], ["y"], sample_size=1)]
    model = loaded(nodes, [("x", F, [1, 3])], [("y", TensorProto.INT32, [1, 1])])
    chances = np.array([[0.5, 0.3, 0.2]], np.float32)
    with df.Session(model, devices=["cpu"]) as session:
        found = [int(array[0, 0]) for array in drawn(session, 2000, np.log(chances))]
    # Pearson's chi-squared of 2 degrees of freedom; 18.4 has a probability of 1e-4.
    expected = chances[0] * 2000
    assert float((((np.bincount(found, minlength=3) - expected) ** 2) / expected).sum()) < 18.4


def test_sizes_that_depend_on_data():
    """Several programs make up a run: it has one key."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["at"]),
        helper.make_node("Shape", ["at"], ["sizes"]),
        helper.make_node("ConstantOfShape", ["sizes"], ["c"]),
        helper.make_node("RandomUniformLike", ["c"], ["y"]),
    ]
    model = loaded(nodes, [("x", F, ["n"])], [("y", F, [None, None])])
    x = np.array([1, 0, 2, 3], np.float32)
    first = drawn(df.Session(model, devices=["cpu"]), x=x)
    assert first[0].shape == (1, 3)
    assert len({array.tobytes() for array in first}) == 3
    np.testing.assert_allclose(drawn(df.Session(model, devices=["numpy"]), x=x), first, atol=1e-6)


def test_state_that_grows():
    """A decoder that samples: each token is drawn anew, where its runs are a series too."""
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["u"]),
        helper.make_node("Concat", ["past", "u"], ["present"], axis=0),
        helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
    ]
    model = loaded(
        nodes, [("x", F, [1, 2]), ("past", F, ["t", 2])], [("y", F, []), ("present", F, ["t2", 2])], opset=17
    )
    kept = []
    for device in ("cpu", "numpy"):
        with df.Session(model, devices=[device], state={"present": "past"}) as session:
            for _ in range(12):
                session.run({"x": np.zeros((1, 2), np.float32)})
            kept.append(session.state["past"])
    np.testing.assert_allclose(kept[0], kept[1], atol=1e-6)
    assert len(np.unique(kept[0])) == 24


def looping(fed):
    """Three iterations, or as many as are fed, of two random nodes in a loop, and one beside it."""
    declare = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("RandomNormal", [], ["r"], shape=[2]),
            helper.make_node("RandomUniform", [], ["u"], shape=[2]),
            helper.make_node("Add", ["s", "r"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [declare("i", TensorProto.INT64, []), declare("go", TensorProto.BOOL, []), declare("s", F, [2])],
        [declare("go2", TensorProto.BOOL, []), *(declare(name, F, [2]) for name in ("s2", "r", "u"))],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["y", "rs", "us"], body=body),
        helper.make_node("RandomNormal", [], ["o"], shape=[2]),
    ]
    inputs = [("x", F, [2]), *([("n", TensorProto.INT64, [])] if fed else [])]
    outputs = [("y", F, [2]), ("rs", F, [None, 2]), ("us", F, [None, 2]), ("o", F, [2])]
    return loaded(nodes, inputs, outputs, [] if fed else [("n", np.array(3, np.int64))])


@pytest.mark.parametrize("fed", [False, True])
def test_each_iteration_draws_anew(fed):
    feeds = {"x": np.zeros(2, np.float32), **({"n": np.int64(3)} if fed else {})}
    runs = {}
    for device in ("cpu", "numpy"):
        with df.Session(looping(fed), devices=[device], fallback="allow") as session:
            runs[device] = [session.run(feeds) for _ in range(2)]
    for one, other in zip(runs["cpu"], runs["numpy"], strict=True):
        for name, array in one.items():
            np.testing.assert_allclose(array, other[name], atol=1e-6)
        np.testing.assert_allclose(one["y"], one["rs"].sum(0), atol=1e-5)
    drawn = [array.ravel() for found in runs["cpu"] for name, array in found.items() if name != "y"]
    assert len(np.unique(np.concatenate(drawn))) == 2 * 14


def summing(name, inner=None):
    """The body of a scan: rows of random numbers, or of another scan's; and a sum."""
    declare = helper.make_tensor_value_info
    makes = (
        helper.make_node("RandomNormalLike", ["row"], ["r"])
        if inner is None
        else helper.make_node("Scan", ["row", "x"], ["last", "r"], body=inner, num_scan_inputs=1)
    )
    results = [declare("s2", F, [2]), declare("r", F, [2] if inner is None else [3, 2])]
    nodes = [makes, helper.make_node("Add", ["s", "r" if inner is None else "last"], ["s2"])]
    return helper.make_graph(nodes, name, [declare("s", F, [2]), declare("row", F, [2])], results)


def scanned(names, body):
    return helper.make_node("Scan", ["z", "x"], names, body=body, num_scan_inputs=1)


def test_no_two_iterations_of_nested_loops_draw_the_same():
    """Nor do those of a loop beside them."""
    nodes = [
        scanned(["t", "all"], summing("outer", summing("inner"))),
        scanned(["u", "second"], summing("other")),
        helper.make_node("RandomNormalLike", ["x"], ["third"]),
    ]
    outputs = [("all", F, [3, 3, 2]), ("second", F, [3, 2]), ("third", F, [3, 2])]
    model = loaded(nodes, [("x", F, [3, 2])], outputs, [("z", np.zeros(2, np.float32))], opset=17)
    with df.Session(model, devices=["cpu"]) as session:
        found = session.run({"x": np.zeros((3, 2), np.float32)})
    assert len(np.unique(np.concatenate([found[name].ravel() for name, *_ in outputs]))) == 18 + 6 + 6


def test_a_loop_that_decides_draws_what_it_draws_in_the_run():
    """Beside a loop before it, which decides nothing."""
    yes = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["h1"], axis=0)],
        "yes",
        [],
        [helper.make_tensor_value_info("h1", F, None)],
    )
    no = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["h2"])], "no", [], [helper.make_tensor_value_info("h2", F, None)]
    )
    nodes = [
        scanned(["before", "rows"], summing("first")),
        scanned(["sum", "more"], summing("second")),
        helper.make_node("ReduceSum", ["sum"], ["drawn"], keepdims=0),
        helper.make_node("Greater", ["drawn", "zero"], ["good"]),
        helper.make_node("If", ["good"], ["h"], then_branch=yes, else_branch=no),
        helper.make_node("Add", ["h", "before"], ["y"]),
    ]
    stored = [("z", np.zeros(2, np.float32)), ("zero", np.array(0, np.float32))]
    model = loaded(nodes, [("x", F, ["n", 2])], [("y", F, [None, 2]), ("drawn", F, [])], stored, opset=17)
    seen = set()
    with df.Session(model, devices=["cpu"]) as session:
        for number in range(20):
            rows = 1 + number % 3
            found = session.run({"x": np.ones((rows, 2), np.float32)})
            assert len(found["y"]) == (2 * rows if found["drawn"] > 0 else rows)
            seen.add(bool(found["drawn"] > 0))
    assert seen == {False, True}


def test_branches_draw_anew():
    """A branch that draws nothing beside one that does."""
    declare = helper.make_tensor_value_info
    noise = helper.make_graph([helper.make_node("RandomNormalLike", ["x"], ["a"])], "then", [], [declare("a", F, [3])])
    same = helper.make_graph([helper.make_node("Identity", ["x"], ["b"])], "else", [], [declare("b", F, [3])])
    nodes = [helper.make_node("If", ["on"], ["y"], then_branch=noise, else_branch=same)]
    model = loaded(nodes, [("on", TensorProto.BOOL, []), ("x", F, [3])], [("y", F, [3])])
    with df.Session(model, devices=["cpu"]) as session:
        first, second, third = (
            session.run({"on": np.array(on), "x": np.ones(3, np.float32)})["y"] for on in (True, True, False)
        )
    assert len(np.unique([*first, *second])) == 6 and third.tolist() == [1, 1, 1]


def test_each_iteration_on_the_host_draws_anew():
    """A loop whose nodes data decide is run by the host, node by node."""
    shapes = [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("s", F, ["k"])]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go2"]),
            helper.make_node("RandomNormalLike", ["s"], ["r"]),
            helper.make_node("Concat", ["s", "r"], ["s2"], axis=0),
        ],
        "body",
        [helper.make_tensor_value_info(*shape) for shape in shapes],
        [helper.make_tensor_value_info("go2", TensorProto.BOOL, []), helper.make_tensor_value_info("s2", F, ["k2"])],
    )
    nodes = [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)]
    model = loaded(nodes, [("n", TensorProto.INT64, []), ("x", F, [1])], [("y", F, ["m"])])
    with df.Session(model, devices=["cpu"]) as session:
        found = [session.run({"n": np.int64(3), "x": np.zeros(1, np.float32)})["y"] for _ in range(2)]
    assert all(len(np.unique(array)) == 8 for array in found), found
    assert not np.isin(found[0][1:], found[1][1:]).any()
