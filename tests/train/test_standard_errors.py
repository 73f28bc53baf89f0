"""Standard errors of evaluations: over samples, in any order, against float64 formulas of what each sample gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import losses, ops
from dataflow.train.metrics.sample_moments import SampleMoments, with_moments

DEVICES = ["numpy", "cpu"]
SAMPLES, CLASSES = 60, 3


def model(shape: tuple[int, ...] = (CLASSES,)) -> df.Model:
    """Outputs are inputs times a parameter of ones."""
    g = df.GraphBuilder("scores")
    x = g.input("x", df.float32, ("batch", *shape))
    g.output("z", ops.mul(x, g.parameter("scale", np.ones(shape[-1], np.float32))))
    g.output("v", ops.reduce_mean(x, axes=(len(shape),), keepdims=1))
    g.output("u", ops.mul(x, 2.0))
    return df.Model(g.build())


def sorted_samples() -> dict[str, np.ndarray]:
    """Samples by class, of which each is harder than the one before."""
    labels = np.repeat(np.arange(CLASSES), SAMPLES // CLASSES)
    x = np.random.default_rng(0).normal(size=(SAMPLES, CLASSES)) + 3.0 * (labels == 0)[:, None] * np.eye(CLASSES)[0]
    return {"x": x.astype(np.float32), "labels": labels}


def log_losses(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Cross-entropies of class numbers on the last axis."""
    x = x.astype(np.float64)
    logs = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, labels[..., None], -1)[..., 0]


def ratio_error(s: np.ndarray, w: np.ndarray) -> float:
    """The standard error of sum s / sum w, of independent samples."""
    residuals = s - s.sum() / w.sum() * w
    return float(np.sqrt(len(s) / (len(s) - 1) * (residuals**2).sum()) / w.sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch_size", [7, 20, 60, 64])
def test_errors_depend_neither_on_the_order_nor_on_the_batch_size(device: str, batch_size: int) -> None:
    given = sorted_samples()
    found = log_losses(given["x"], given["labels"])
    expected = found.std(ddof=1) / np.sqrt(SAMPLES)
    order = np.random.default_rng(1).permutation(SAMPLES)
    for data in (given, {name: array[order] for name, array in given.items()}):
        figures = df.evaluate(model(), data, output="z", devices=device, batch_size=batch_size)
        assert figures["loss"] == pytest.approx(found.mean(), rel=1e-5)
        assert figures["loss_error"] == pytest.approx(expected, rel=1e-4)


def test_weights_of_samples_and_ignored_labels() -> None:
    given = sorted_samples()
    weight = np.random.default_rng(2).uniform(0.2, 2.0, SAMPLES).astype(np.float32)
    weight[5] = 0.0
    found = log_losses(given["x"], given["labels"])
    ignored = np.arange(SAMPLES) % 11 == 3
    data = {**given, "labels": np.where(ignored, -100, given["labels"]), "sample_weight": weight}
    figures = df.evaluate(model(), data, output="z", devices="cpu", batch_size=8)
    counted = ~ignored & (weight > 0)
    w = weight.astype(np.float64)[counted]
    assert figures["loss_error"] == pytest.approx(ratio_error(found[counted] * w, w), rel=1e-4)


def test_positions_of_a_sample_are_no_samples() -> None:
    """Sequences of other lengths: the sum of each and its number of labels."""
    random = np.random.default_rng(3)
    x = (random.normal(size=(SAMPLES, 5, CLASSES)) + random.normal(size=(SAMPLES, 1, CLASSES)) * 2).astype(np.float32)
    labels = random.integers(0, CLASSES, (SAMPLES, 5))
    there = np.arange(5) < random.integers(1, 6, SAMPLES)[:, None]
    found = np.where(there, log_losses(x, labels), 0.0)
    data = {"x": x, "labels": np.where(there, labels, -100)}
    figures = df.evaluate(model((5, CLASSES)), data, output="z", devices="cpu", batch_size=8)
    assert figures["loss_error"] == pytest.approx(ratio_error(found.sum(1), there.sum(1)), rel=1e-4)


def test_several_losses() -> None:
    """Their sum has the error of the sum: of the same samples they aren't independent."""
    given = sorted_samples()
    values = np.random.default_rng(4).normal(size=(SAMPLES, 1)).astype(np.float32)
    loss = {"z": (losses.CrossEntropy(), "labels", 1.0), "v": (losses.MSE(), "values", 0.5)}
    figures = df.evaluate(model(), {**given, "values": values}, loss, [], devices="cpu", batch_size=7)
    one = log_losses(given["x"], given["labels"])
    other = (given["x"].astype(np.float64).mean(1) - values[:, 0]) ** 2
    expected = {"z_loss": one, "v_loss": other, "loss": one + 0.5 * other}
    for name, each in expected.items():
        assert figures[name] == pytest.approx(each.mean(), rel=1e-5), name
        assert figures[f"{name}_error"] == pytest.approx(each.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-4), name


def test_functions() -> None:
    """One number per sample has the error of samples; one per batch that of batches."""

    def each(g: df.GraphBuilder, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        return ops.reduce_sum(ops.mul(outputs["z"], outputs["z"]), axes=(1,), keepdims=0)

    def mean(g: df.GraphBuilder, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        return ops.reduce_mean(each(g, outputs, batch), axes=(0,), keepdims=0)

    given = sorted_samples()
    figures = df.evaluate(model(), given, mean, [each], devices="cpu", batch_size=20)
    found = (given["x"].astype(np.float64) ** 2).sum(1)
    assert figures["each_error"] == pytest.approx(found.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-4)
    batches = found.reshape(3, 20).mean(1)
    assert figures["loss_error"] == pytest.approx(batches.std(ddof=1) / np.sqrt(3), rel=1e-4)


def test_metrics_of_numbers_do_not_depend_on_the_order() -> None:
    """Of one's own metric of elements too, and beside weights of samples, which metrics don't read."""

    class Beyond:
        name, fraction, mode = "beyond", False, "min"

        def sums(self, target: Any, output: Any, labels: Any) -> Any:
            raise AssertionError("its elements are known")

        def elements(self, target: Any, output: Any, labels: Any) -> tuple[Any, Any]:
            found = ops.maximum(ops.sub(output, labels), 0.0)
            return found, ops.add(ops.mul(found, 0.0), 1.0)

    values = np.sort(np.random.default_rng(7).normal(size=(SAMPLES, CLASSES)), 0).astype(np.float32)
    data = {"x": np.zeros((SAMPLES, CLASSES), np.float32), "labels": values}
    weight = np.where(np.arange(SAMPLES) % 2, 0, 2).astype(np.float32)
    for given in (data, {**data, "sample_weight": weight}):
        figures = df.evaluate(model(), given, "mse", ["mae", Beyond()], output="z", devices="cpu", batch_size=10)
        upcast = values.astype(np.float64)
        for name, each in (("mae", abs(upcast)), ("beyond", np.maximum(-upcast, 0.0))):
            assert figures[name] == pytest.approx(each.mean(), rel=1e-5)
            expected = each.mean(1).std(ddof=1) / np.sqrt(SAMPLES)
            assert figures[f"{name}_error"] == pytest.approx(expected, rel=1e-4), name
    squares = (values[::2].astype(np.float64) ** 2).mean(1)
    assert figures["loss_error"] == pytest.approx(squares.std(ddof=1) / np.sqrt(SAMPLES // 2), rel=1e-4)


def test_a_derived_metric_that_replaces_the_sums_alone_is_what_they_say() -> None:
    class Doubled(df.metrics.MeanAbsoluteError):
        name = "doubled"

        def sums(self, target: Any, output: Any, labels: Any) -> Any:
            total, count = super().sums(target, output, labels)
            return ops.mul(total, 2.0), count

    data = {"x": sorted_samples()["x"], "labels": np.zeros((SAMPLES, CLASSES), np.float32)}
    figures = df.evaluate(model(), data, "mse", ["mae", Doubled()], output="z", devices="cpu", batch_size=20)
    assert figures["doubled"] == pytest.approx(2 * figures["mae"], rel=1e-6)
    batches = 2 * abs(data["x"].astype(np.float64)).reshape(3, -1).mean(1)
    assert figures["doubled_error"] == pytest.approx(batches.std(ddof=1) / np.sqrt(3), rel=1e-4)


@pytest.mark.parametrize("metric", ["accuracy", "top2"])
def test_shares_of_several_answers_count_samples(metric: str) -> None:
    """Pixels of an image are right together; labels that don't count are no answers."""
    random = np.random.default_rng(8)
    labels = random.integers(0, CLASSES, (SAMPLES, 40))
    x = random.normal(size=(SAMPLES, 40, CLASSES)) / 4
    x += np.eye(CLASSES)[labels] * random.normal(size=(SAMPLES, 1, 1))  # some images are easy
    there = np.arange(40) < random.integers(1, 41, SAMPLES)[:, None]
    data = {"x": x.astype(np.float32), "labels": np.where(there, labels, -100)}
    figures = df.evaluate(model((40, CLASSES)), data, "cross_entropy", [metric], output="z", devices="cpu")
    own = np.take_along_axis(x, labels[..., None], -1)
    right = ((x > own).sum(-1) < (1 if metric == "accuracy" else 2)) & there
    share = right.sum() / there.sum()
    assert figures[metric] == pytest.approx(share, rel=1e-5)
    expected = ratio_error(right.sum(1), there.sum(1))
    assert figures[f"{metric}_error"] == pytest.approx(expected, rel=1e-4)
    assert expected > 2 * np.sqrt(share * (1 - share) / there.sum())  # as if each pixel was for itself


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("metric", ["accuracy", "top2"])
def test_shares_of_several_answers_count_samples_in_training(metric: str, accumulate: int) -> None:
    """As in evaluation: their error was that of pixels, each taken for itself; also where a run goes on."""
    random = np.random.default_rng(8)
    labels = random.integers(0, CLASSES, (SAMPLES, 40))
    x = random.normal(size=(SAMPLES, 40, CLASSES)) / 4
    x += np.eye(CLASSES)[labels] * random.normal(size=(SAMPLES, 1, 1))
    there = np.arange(40) < random.integers(1, 41, SAMPLES)[:, None]
    data = {"x": x.astype(np.float32), "labels": np.where(there, labels, -100)}
    made, options = model((40, CLASSES)), {"output": "z", "devices": ["cpu"], "accumulate": accumulate}
    with df.Trainer(made, "cross_entropy", "sgd:lr=0,momentum=0", metrics=[metric], **options) as trainer:
        history = trainer.fit(data, epochs=1, batch_size=8, progress=False)
        expected = trainer.evaluate(data)
        terms = trainer.forward({name: array[:8] for name, array in data.items()})
    assert all(np.ndim(term) == 0 for term in terms.values())
    assert history[metric][-1] == pytest.approx(expected[metric], rel=1e-6)
    assert history[f"{metric}_error"][-1] == pytest.approx(expected[f"{metric}_error"], rel=1e-5)


def test_shares_of_a_run_that_goes_on(tmp_path: Path) -> None:
    """The figures of an epoch that is interrupted and of one that isn't are the same bits."""
    random = np.random.default_rng(3)
    x = random.normal(size=(SAMPLES, 4, CLASSES)).astype(np.float32)
    data = {"x": x, "labels": random.integers(0, CLASSES, (SAMPLES, 4))}
    rows = []
    for stops in (False, True):
        with df.Trainer(model((4, CLASSES)), output="z", devices=["cpu"], seed=1) as trainer:
            calls = [lambda event: event.stop()] if stops else []
            folder = tmp_path if stops else None
            history = trainer.fit(data, batch_size=8, progress=False, callbacks=calls, checkpoint=folder, every=1)
        if stops:
            with df.Trainer(model((4, CLASSES)), output="z", devices=["cpu"], seed=1) as trainer:
                history = trainer.fit(data, batch_size=8, progress=False, checkpoint=tmp_path, resume="auto")
        rows.append([history[name][-1] for name in ("accuracy", "accuracy_error")])
    assert rows[0] == rows[1]


def test_means_that_float32_can_only_hold_by_sample_do_not_depend_on_the_batch_size() -> None:
    """The sum over a batch was infinite, and beside an infinite loss stood the error of a finite one."""
    values = np.where(np.arange(SAMPLES) % 2, 0.9e38, 0.4e38).astype(np.float32)[:, None]
    data = {"x": np.zeros((SAMPLES, CLASSES), np.float32), "labels": values}
    each = values.astype(np.float64)[:, 0]
    for batch_size in (1, 20, 60):
        figures = df.evaluate(model(), data, "mae", output="v", devices="cpu", batch_size=batch_size)
        for name in ("loss", "mae"):
            assert figures[name] == pytest.approx(each.mean(), rel=1e-6)
            assert figures[f"{name}_error"] == pytest.approx(each.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-6)


def test_shares_of_several_yes_and_no_count_samples_and_of_one_answers() -> None:
    random = np.random.default_rng(9)
    x = (random.normal(size=(SAMPLES, 1)) + random.normal(size=(SAMPLES, CLASSES)) / 4).astype(np.float32)
    data = {"x": x, "labels": np.ones((SAMPLES, CLASSES), np.float32)}
    figures = df.evaluate(model(), data, "binary_cross_entropy", output="z", devices="cpu", batch_size=7)
    right = (x > 0).mean(1)
    assert figures["accuracy_error"] == pytest.approx(right.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-4)
    data["labels"] = data["labels"][:, :1]
    figures = df.evaluate(model(), data, "binary_cross_entropy", output="v", devices="cpu", batch_size=7)
    share = figures["accuracy"]
    assert figures["accuracy_error"] == pytest.approx(np.sqrt(share * (1 - share) / SAMPLES), rel=1e-5)


def test_an_infinite_loss_leaves_the_error_of_a_metric() -> None:
    given = {"x": np.full((SAMPLES, CLASSES), 1e30, np.float32), "labels": np.zeros((SAMPLES, CLASSES), np.float32)}
    given["x"][::2] = 2e30
    figures = df.evaluate(model(), given, "mse", ["mae"], output="z", devices="cpu", batch_size=SAMPLES)
    assert figures["loss"] == np.inf
    each = given["x"].astype(np.float64).mean(1)
    assert figures["mae_error"] == pytest.approx(each.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-4)


def test_losses_that_hardly_differ() -> None:
    """Their spread isn't lost beside their size."""
    values = np.linspace(-1e-3, 1e-3, SAMPLES).astype(np.float32)[:, None]
    data = {"x": np.full((SAMPLES, CLASSES), 30.0, np.float32), "labels": values}
    figures = df.evaluate(model(), data, "mse", [], output="v", devices="cpu", batch_size=SAMPLES)
    found = (np.float32(30.0) - values).astype(np.float64)[:, 0] ** 2
    assert figures["loss_error"] == pytest.approx(found.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-3)


def test_one_sample_has_no_error_and_one_batch_has() -> None:
    given = sorted_samples()
    alone = {name: array[:1] for name, array in given.items()}
    assert "loss_error" not in df.evaluate(model(), alone, output="z", devices="cpu")
    assert df.evaluate(model(), given, output="z", devices="cpu", batch_size=SAMPLES)["loss_error"] > 0


def test_errors_of_shares_add_up() -> None:
    """Sums of shares of a batch, as processes have them, one of which has no sample."""
    random = np.random.default_rng(5)
    s, w = random.normal(size=20), random.uniform(0.5, 1.0, 20)
    together, joined = SampleMoments(), SampleMoments()
    terms: dict[str, Any] = {"loss:each": s, "loss:each_weight": w}
    shares: list[dict[str, Any]] = [{name: t[i : i + 5] for name, t in terms.items()} for i in range(0, 20, 5)]
    shares.append({name: np.zeros(1) for name in terms})
    moments = [with_moments(share) for share in shares]
    together.add(with_moments(terms))
    joined.add({name: np.sum([term[name] for term in moments], axis=0) for name in moments[0]})
    expected = ratio_error(s, w)
    assert together.errors({})["loss"] == pytest.approx(expected)
    assert joined.errors({})["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["cross_entropy", "focal", "dice", "mse", "mae", "huber", "binary_cross_entropy"])
def test_each_loss_gives_what_each_sample_adds(name: str) -> None:
    """Against the losses of samples that are evaluated alone."""
    numbers = name in ("mse", "mae", "huber", "binary_cross_entropy")
    labels = np.eye(8, CLASSES, dtype=np.float32) if numbers else np.arange(8) % CLASSES
    data = {"x": np.random.default_rng(6).normal(size=(8, CLASSES)).astype(np.float32), "labels": labels}
    together = df.evaluate(model(), data, name, [], output="z", devices="numpy", batch_size=8)
    rows = [{key: array[i : i + 1] for key, array in data.items()} for i in range(8)]
    alone = [df.evaluate(model(), row, name, [], output="z", devices="numpy")["loss"] for row in rows]
    assert together["loss_error"] == pytest.approx(np.std(alone, ddof=1) / np.sqrt(8), rel=1e-4)


def test_figures_count_their_own_samples() -> None:
    """Of one label a loss has no error, whatever counts elsewhere; and it has that of the samples that count in it."""
    given = sorted_samples()
    loss = {"z": (losses.CrossEntropy(), "labels", 1.0), "u": (losses.CrossEntropy(), "others", 0.5)}

    def one(g: df.GraphBuilder, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        return ops.reduce_sum(outputs["z"], axes=(1,), keepdims=0)

    numbers = np.arange(SAMPLES)
    few = {
        "x": given["x"],
        "labels": np.where(numbers < 5, given["labels"], -100),
        "others": np.where(numbers == 30, given["labels"], -100),
    }
    figures = df.evaluate(model(), few, loss, [one], devices="cpu", batch_size=7)
    assert "u_loss_error" not in figures and figures["one_error"] > 0
    found = log_losses(given["x"], given["labels"])[:5]
    assert figures["z_loss_error"] == pytest.approx(found.std(ddof=1) / np.sqrt(5), rel=1e-4)
    residuals = (found - found.mean()) / 5  # and 0 of the sixth sample that counts in a loss
    assert figures["loss_error"] == pytest.approx(np.sqrt(6 / 5 * (residuals**2).sum()), rel=1e-4)
    alone = {**given, "sample_weight": (numbers == 3).astype(np.float32)}
    assert "loss_error" not in df.evaluate(model(), alone, "cross_entropy", [one], output="z", devices="cpu")


def test_an_infinite_loss_leaves_the_errors_of_others() -> None:
    given = sorted_samples()
    loss = {"z": (losses.CrossEntropy(), "labels", 1.0), "v": (losses.MSE(), "values", 0.5)}
    values = np.full((SAMPLES, 1), 3e38, np.float32)
    figures = df.evaluate(model(), {**given, "values": values}, loss, [], devices="cpu", batch_size=7)
    found = log_losses(given["x"], given["labels"])
    assert figures["v_loss"] == np.inf and "v_loss_error" not in figures
    assert figures["z_loss_error"] == pytest.approx(found.std(ddof=1) / np.sqrt(SAMPLES), rel=1e-4)


def test_a_loss_of_the_batch_alone_is_evaluated() -> None:
    """Elements without an axis of samples; there is no error by samples."""

    class OfBatch:
        metrics, skips = (), ()

        def target(self, output: Any, labels: Any) -> losses.Target:
            return losses.Target(output, df.TensorType(df.int64, labels.shape))

        def elements(self, target: losses.Target, output: Any, labels: Any) -> tuple[Any, Any]:
            mean = ops.reduce_mean(output, axes=(0, 1), keepdims=0)
            return mean, ops.add(ops.mul(mean, 0.0), 1.0)

    given = sorted_samples()
    figures = df.evaluate(model(), given, OfBatch(), [], output="z", devices="cpu", batch_size=20)
    assert figures["loss"] == pytest.approx(given["x"].astype(np.float64).mean(), rel=1e-4)
