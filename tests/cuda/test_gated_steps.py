"""A step that waits for the card once has the bits of its programs run apart, and changes nothing where it must not."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.cdevice.sequence import NativeItems
from dataflow.train.nonfinite import NonFiniteLoss

CLASSES = 3
FUSED = {
    "adamw": {"optimizer": df.optim.AdamW(lr=0.01)},
    "sgd": {"optimizer": df.optim.SGD(lr=0.05, momentum=0.9)},
    "clipped": {"optimizer": df.optim.AdamW(lr=0.01), "clip_norm": 0.05},
    "scaled": {"optimizer": df.optim.AdamW(lr=0.01), "loss_scale": 64.0},
    "groups": {
        "optimizer": df.optim.AdamW(lr=0.01, groups=(df.optim.Group("w", lr_factor=0.1), df.optim.Group("v", freeze=1)))
    },
}
COMPOSED = {
    "average": {"optimizer": df.optim.AdamW(lr=0.01), "average": df.optim.EMA(0.9)},
    "clip_value": {"optimizer": df.optim.AdamW(lr=0.01), "clip_value": 0.01},
    "adamax": {"optimizer": df.optim.Adamax(lr=0.01)},
    "scale": {"optimizer": df.optim.AdamW(lr=0.01), "loss_scale": "dynamic"},
}


def model():
    """Two products and sqrt between them: finite where x is 0, but of infinite slope."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    w, v = (g.parameter(n, random.random(s).astype(np.float32)) for n, s in (("w", (4, 5)), ("v", (5, CLASSES))))
    g.output("y", ops.matmul(ops.sqrt(ops.matmul(x, w)), v))
    return df.Model(g.build())


def batches(count):
    random = np.random.default_rng(1)
    x = random.random((count, 6, 4), np.float32) + 0.5
    labels = random.integers(0, CLASSES, (count, 6))
    return [{"x": a, "labels": b} for a, b in zip(x, labels, strict=True)]


def trainer(registry, **options):
    loss = df.losses.CrossEntropy(ignore_index=-1)
    return df.Trainer(model(), loss, devices=["cuda", "cpu"], registry=registry, **options)


def state(trained):
    return {name: array.tobytes() for name, array in trained.programs.state().items()}


def apart(trained, batch):
    """A step of programs that run one by one, and its loss."""
    terms = trained.forward(batch)
    trained.backward()
    trained.update()
    return float(terms["loss"]) / float(terms["weight"])


@pytest.mark.parametrize("name", [*FUSED, *COMPOSED])
def test_a_step_has_the_bits_of_its_programs(name, cuda):
    options = {**FUSED, **COMPOSED}[name]
    with trainer(cuda, **options) as one, trainer(cuda, **options) as other:
        for batch in batches(3):
            assert one.step(batch) == apart(other, batch)
            assert state(one) == state(other)
        assert one.steps == other.steps == 3
        found, expected = (programs.gradients() for programs in (one.programs, other.programs))
        assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in expected.items()}
        assert any("optimizer/gate" in plan.outputs for plan in one.plans().values()) == (name in FUSED)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(
    ("what", "words"),
    [("loss", "the loss is nan after 1 optimizer steps"), ("gradient", "but the gradient of 'w' is not finite")],
)
def test_a_step_that_is_not_finite_changes_nothing(name, what, words, cuda):
    good, bad, last = batches(3)
    bad["x"] = np.full_like(bad["x"], np.nan if what == "loss" else 0.0)
    with trainer(cuda, **FUSED[name]) as trained, trainer(cuda, **FUSED[name]) as other:
        trained.step(good)
        other.step(good)
        before = state(trained)
        for _ in range(2):
            with pytest.raises(NonFiniteLoss, match=words):
                trained.step(bad)
            assert trained.pending == 0
            assert trained.steps == 1
        assert state(trained) == before
        assert trained.step(last) == other.step(last)
        assert state(trained) == state(other)


@pytest.mark.parametrize("name", FUSED)
def test_a_step_in_which_no_sample_counts_changes_nothing(name, cuda):
    good, ignored, _ = batches(3)
    ignored["labels"] = np.full_like(ignored["labels"], -1)
    with trainer(cuda, **FUSED[name]) as trained:
        trained.step(good)
        before = state(trained)
        trained.step(ignored)
        assert (trained.steps, trained.pending) == (1, 0)
        assert state(trained) == before


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_step_in_which_a_kernel_notes_a_fault_changes_nothing(name, cuda):
    g = df.GraphBuilder()
    x = g.input("x", df.int64, ("batch",))
    w = g.parameter("w", np.random.default_rng(0).random((7, CLASSES)).astype(np.float32))
    g.output("y", ops.gather(w, x, axis=0))
    labels = np.array([0, 1, 2])
    with df.Trainer(df.Model(g.build()), devices=["cuda", "cpu"], registry=cuda, **FUSED[name]) as trained:
        for steps in (1, 2, 3):
            trained.step({"x": np.array([1, 2, 3]), "labels": labels})
            before = state(trained)
            with pytest.raises(df.InputError, match="9 is out of range for size 7"):
                trained.step({"x": np.array([1, 9, 3]), "labels": labels})
            assert (trained.steps, trained.pending) == (steps, 0)
            assert state(trained) == before
            assert any("optimizer/gate" in plan.outputs for plan in trained.plans().values())


@pytest.mark.parametrize("name", ["adamw", "scaled"])
def test_a_step_of_which_the_host_computes_some_runs_apart(name, cuda, refusing):
    """Ctrl-C ends what the host computes, and what a kernel notes there isn't known on the card."""
    with trainer(refusing(1, "cuda", cuda), **FUSED[name]) as trained:
        for batch in batches(3):
            trained.step(batch)
            assert not trained.programs._making.gates.possible
        assert {segment.device for segment in trained.plans()["step"].segments} == {"cuda", "cpu"}


def test_squares_beyond_float32_of_finite_gradients_are_no_error(cuda):
    """Without a norm to clip they aren't needed."""
    batch = batches(1)[0]
    weights = {**batch, "sample_weight": np.full(6, 1e25, np.float32)}
    with trainer(cuda, **FUSED["adamw"]) as one, trainer(cuda, **FUSED["adamw"]) as other:
        assert one.step(weights) == apart(other, weights)
        assert state(one) == state(other)
        assert one.steps == 1


def test_a_step_of_another_form_between_steps_changes_none(cuda):
    """The arrays of the step before are used again where the batch has its form."""
    first, second, third = batches(3)
    second = {name: array[:4] for name, array in second.items()}
    given = [first, second, third, first, {"labels": third["labels"], "x": third["x"]}]
    with trainer(cuda, **FUSED["adamw"]) as one, trainer(cuda, **FUSED["adamw"]) as other:
        losses = []
        for batch in given:
            losses.append(one.step(batch))
            one.evaluate(first)
        assert losses == [apart(other, batch) for batch in given]
        assert state(one) == state(other)


def test_fit_has_the_figures_of_steps_of_their_own(cuda):
    data = {name: np.concatenate([batch[name] for batch in batches(4)]) for name in ("x", "labels")}
    rows = []
    for keeps in (False, True):
        with trainer(cuda, **FUSED["adamw"]) as trained:
            trained.keeps_gradients = keeps
            events = []

            def report(event, events=events):
                events.append((event.kind, event.step, {k: v for k, v in event.metrics.items() if k != "seconds"}))

            report.reads_gradients = keeps
            trained.fit(data, epochs=2, batch_size=6, callbacks=[report], progress=False)
            rows.append((events[:4], events[-1][1], state(trained)))
    assert rows[0] == rows[1]


def test_a_step_is_its_batch_and_then_one_graph_and_one_wait(cuda, monkeypatch):
    calls = []
    run = NativeItems.run
    monkeypatch.setattr(NativeItems, "run", lambda self, *given: calls.append(len(self._items)) or run(self, *given))
    batch = batches(1)[0]
    with trainer(cuda, **FUSED["adamw"]) as trained:
        trained.step(batch)
        calls.clear()
        trained.step(batch)
        (plan,) = trained.plans().values()
    assert calls == [2, 9]  # inputs and labels; what the update reads of the host, and all else
    assert len(plan.segments) == 1
    kinds = [type(item).__name__ for item in plan.items]
    assert kinds == [*["Transfer"] * 3, "Segment", *["Transfer"] * 6, "Wait"]


def test_what_runs_between_a_begun_copy_and_its_run_changes_no_result(cuda):
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, (8,)), g.input("y", df.float32, (8,))
    g.output("z", df.ops.sub(x, y))
    session = df.Session(df.Model(g.build()), devices=["cuda", "cpu"], registry=cuda)
    given = {name: np.random.default_rng().standard_normal(8).astype(np.float32) for name in "xy"}
    other = {name: np.zeros(8, np.float32) for name in "xy"}
    session.run(given)
    (bound,) = session._loaded().program(given, None).bounds
    for between in ((), (other,), (given,)):
        bound.begin({"x": given["x"]})
        for arrays in (*between, given):
            found = {"z": np.empty(8, np.float32)}
            bound.run(arrays, found)
            np.testing.assert_array_equal(found["z"], arrays["x"] - arrays["y"])
        bound.begin({"x": given["x"]})  # for a run that never comes
        given["x"] += 1
