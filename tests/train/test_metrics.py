"""Metrics of an evaluation against what scikit-learn gave, and closed forms."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow import metrics, ops

KEPT = np.load(Path(__file__).parents[1] / "recordings/metrics.npz")
LOSSES = {
    "classes": "cross_entropy",
    "yes": "binary_cross_entropy",
    "columns": "binary_cross_entropy",
    "numbers": "mse",
}
CASES = [key for key in KEPT.files if key.partition("/")[2] not in ("output", "labels")]


def trainer(shape, loss, chosen, device="numpy"):
    """A trainer of a model that returns its input."""
    g = df.GraphBuilder("m")
    x = g.input("x", df.float32, ("B", *shape))
    g.output("y", ops.mul(x, g.parameter("one", np.ones((), np.float32))))
    return df.Trainer(df.Model(g.build()), loss, metrics=chosen, devices=[device], trainable=["one"])


def evaluated(output, labels, loss, chosen, batch_size=16, device="numpy"):
    with trainer(output.shape[1:], loss, chosen, device) as made:
        return made.evaluate({"x": output, "labels": labels}, batch_size=batch_size)


@pytest.mark.parametrize("form", LOSSES)
def test_metrics_are_those_of_scikit_learn(form):
    """In batches of which the last is short; the mean over batches would differ."""
    output, labels = KEPT[f"{form}/output"], KEPT[f"{form}/labels"]
    names = [key.partition("/")[2] for key in CASES if key.startswith(f"{form}/")]
    plain = [name for name in names if ":" not in name]
    chosen = [plain, *([name] for name in names if ":" in name and not name.endswith(("=binary",)))]
    found = {}
    for each in chosen:
        made = evaluated(output, labels, LOSSES[form], each, device="cpu" if len(each) > 1 else "numpy")
        found |= {name: made[name.replace(":average=", "_")] for name in each}
    assert set(found) == {name for name in names if not name.endswith("=binary")}
    for name, figure in found.items():
        # What the graph computes is float32; the rest is exact.
        close = 1e-6 if name in ("perplexity", "rmse", "mae", "accuracy", "top2") else 1e-9
        np.testing.assert_allclose(figure, KEPT[f"{form}/{name}"], rtol=close, err_msg=name)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_of_equal_logits_the_first_is_the_answer(device):
    """As in a stable order, whose first is that of argmax; of a row with NaN nothing is right."""
    logits = np.random.default_rng(0).normal(size=(60, 5, 3)).round().astype(np.float32)
    logits[:9] = 0.5
    logits[9:12] = -np.inf
    logits[12:15, 2] = np.nan
    logits[15:18] = np.nan
    labels = np.arange(180).reshape(60, 3) % 5
    found = evaluated(logits, labels, "cross_entropy", ["accuracy", "top1", "top2", "top5", "top9"], device=device)
    order = np.argsort(-np.where(np.isnan(logits), np.inf, logits), axis=1, kind="stable")
    real = ~np.isnan(np.take_along_axis(logits, labels[:, None], 1))[:, 0]
    for k in (1, 2, 5, 9):
        expected = ((order[:, :k] == labels[:, None]).any(1) & real).mean()
        assert found[f"top{k}"] == pytest.approx(expected, rel=1e-6), k
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == labels).mean(), rel=1e-6)


def test_no_label_is_the_sign_of_a_logit_that_is_nan():
    logits, labels = np.array([np.nan, 1.0, -1.0, np.nan], np.float32), np.array([0, 1, 0, 1], np.float32)
    assert evaluated(logits, labels, "binary_cross_entropy", ["accuracy"])["accuracy"] == 0.5


def test_scores_of_minus_infinity_are_one_threshold():
    """What a mask hides: half of it is right, in whatever order."""
    for labels in ([1, 0, 1, 0, 1], [1, 1, 0, 1, 0]):
        metric = metrics.PRAUC()
        metric.update(np.array([[2.0], *[[-np.inf]] * 4], np.float32), np.array(labels, np.float32)[:, None])
        assert metric.result() == pytest.approx(1 / 3 + 2 / 3 * 3 / 5)


def test_calibration_of_logits_of_float64():
    output, labels = KEPT["classes/output"], KEPT["classes/labels"]
    g = df.GraphBuilder("m")
    x = g.input("x", df.float32, ("B", output.shape[1]))
    exact = ops.cast(ops.mul(x, g.parameter("one", np.ones((), np.float32))), to=df.float64)
    g.output("y", exact)
    with df.Trainer(df.Model(g.build()), metrics=["ece"], devices=["numpy"]) as made:
        found = made.evaluate({"x": output, "labels": labels})["ece"]
    assert found == pytest.approx(evaluated(output, labels, "cross_entropy", ["ece"])["ece"], rel=1e-6)


def test_a_figure_per_class_and_of_one_class():
    output, labels = KEPT["classes/output"], KEPT["classes/labels"]
    found = evaluated(output, labels, "cross_entropy", [metrics.Recall("each"), metrics.Precision("each"), "confusion"])
    matrix = found["confusion"]
    right, wanted = np.diag(matrix), matrix.sum(1)
    np.testing.assert_allclose(found["recall"], np.where(wanted, right / np.maximum(wanted, 1), 0.0))
    np.testing.assert_allclose(found["precision"], right / np.maximum(matrix.sum(0), 1))
    two, kinds = output[:, :2], np.where(labels > 1, -100, labels)
    counted, yes = kinds >= 0, two[:, 1] > two[:, 0]
    found = evaluated(two, kinds, "cross_entropy", [metrics.Precision("binary")])
    expected = (yes & (kinds == 1)).sum() / (yes & counted).sum()
    assert found["precision_binary"] == pytest.approx(expected)
    assert matrix.sum() == 65 and matrix.dtype == np.int64


def test_segments_and_masks_count_pixels():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(5, 3, 4, 4)).astype(np.float32), rng.integers(0, 3, (5, 4, 4))
    y[0, 0, 0] = -100
    found = evaluated(z, y, "cross_entropy:axis=1", ["iou:average=each", "confusion", "roc_auc"], 2)
    best, counts = z.argmax(1), y >= 0
    both = [((best == c) & (y == c)).sum() / (((best == c) | (y == c)) & counts).sum() for c in range(3)]
    np.testing.assert_allclose(found["iou"], both)
    assert found["confusion"].sum() == 79
    masks = (rng.uniform(size=z.shape) < 0.3).astype(np.float32)
    found = evaluated(z, masks, "dice", None, 2)
    shown = z > 0
    each = [(shown[:, c] & (masks[:, c] > 0)).sum() / (shown[:, c] | (masks[:, c] > 0)).sum() for c in range(3)]
    assert found["iou"] == pytest.approx(np.mean(each))


def test_calibration_is_the_gap_between_confidence_and_accuracy():
    output, labels = KEPT["yes/output"], KEPT["yes/labels"]
    found = evaluated(output, labels, "binary_cross_entropy", ["ece:bins=4"])["ece"]
    sure = 1 / (1 + np.exp(-np.abs(output.astype(np.float64))))
    right, bins = (output > 0) == labels, np.minimum(sure * 4, 3).astype(int)
    gaps = [abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(4)]
    assert found == pytest.approx(sum(gaps) / 70, rel=1e-5)
    z, y = KEPT["classes/output"][5:], KEPT["classes/labels"][5:]
    p = np.exp(z.astype(np.float64)) / np.exp(z.astype(np.float64)).sum(1, keepdims=True)
    bins = np.minimum(p.max(1) * 15, 14).astype(int)
    gaps = [abs((p.argmax(1) == y)[bins == b].sum() - p.max(1)[bins == b].sum()) for b in range(15)]
    assert evaluated(z, y, "cross_entropy", ["ece"])["ece"] == pytest.approx(sum(gaps) / 65, rel=1e-5)


def test_an_ignored_label_may_be_a_class():
    z, y = KEPT["classes/output"], KEPT["classes/labels"].clip(0)
    names = ["f1", "roc_auc", "mcc", "perplexity", "confusion"]
    found = evaluated(z, y, df.losses.CrossEntropy(ignore_index=0), names)
    wanted = evaluated(z, np.where(y == 0, -100, y), "cross_entropy", names)
    for name in names:
        np.testing.assert_array_equal(found[name], wanted[name])


def test_what_is_not_defined_is_nan_or_zero():
    z = np.array([[1.0, 0.0], [2.0, 0.0]], np.float32)
    found = evaluated(z, np.array([0, 0]), "cross_entropy", ["roc_auc", "pr_auc", "mcc", "f1:average=binary"])
    assert math.isnan(found["roc_auc"]) and math.isnan(found["pr_auc"])
    assert found["mcc"] == found["f1_binary"] == 0.0
    ignored = evaluated(z, np.array([-100, -100]), "cross_entropy", ["roc_auc", "f1", "perplexity", "ece"])
    assert math.isnan(ignored["roc_auc"]) and math.isnan(ignored["perplexity"])
    assert ignored["f1"] == 0.0 == ignored["ece"]
    one = evaluated(z[:1], z[:1], "mse", ["r2"])
    assert math.isnan(one["r2"])
    same = evaluated(z, np.ones_like(z), "mse", ["r2"])
    assert same["r2"] == 0.0 and evaluated(np.ones_like(z), np.ones_like(z), "mse", ["r2"])["r2"] == 1.0


class Median:
    """A metric of the user's, in plain numpy: the median difference."""

    name = "median"

    def __init__(self):
        self.differences = []

    def update(self, output, labels):
        self.differences.append(np.abs(output - labels))

    def result(self):
        return np.median(np.concatenate(self.differences))


def test_an_object_with_update_and_result_is_a_metric():
    output, labels = KEPT["numbers/output"], KEPT["numbers/labels"]
    median = Median()
    with trainer((3,), "mse", [median, "mae"]) as made:
        for _ in range(2):  # each evaluation has a fresh copy
            found = made.evaluate({"x": output, "labels": labels}, batch_size=16)
            assert found["median"] == np.median(np.abs(output - labels))
    assert median.differences == []


def test_training_reports_them_for_validation_alone(caplog):
    data = {"x": KEPT["classes/output"], "labels": KEPT["classes/labels"]}
    with trainer((4,), "cross_entropy", ["f1", "accuracy", "confusion"]) as made:
        history = made.fit(data, data, epochs=2, batch_size=16, progress=False)
        assert len(history["val_f1"]) == 2 and "f1" not in history and "accuracy" in history
        assert "val_confusion" not in history  # no number
        with caplog.at_level(logging.INFO, "dataflow"):
            made.fit(data, batch_size=16, progress=False)
    assert "f1, confusion: computed on validation data, and there is none" in caplog.text


@pytest.mark.parametrize(
    ("chosen", "loss", "says"),
    [
        (["r2"], "cross_entropy", "metric 'r2' compares numbers"),
        (["perplexity"], "mse", "metric 'perplexity' needs classes"),
        *((["mae", name], "mse", f"metric '{name}' needs classes") for name in ("accuracy", "f1", "ece", "confusion")),
        *(([name], "binary_cross_entropy", f"metric '{name}' compares numbers") for name in ("mae", "r2", "rmse")),
        (["f1:average=most"], "cross_entropy", "f1: average is 'most'"),
        (["f1:average=binary"], "cross_entropy", "f1: average='binary' is for two classes, and there are 4 classes"),
        (
            [metrics.Recall("binary")],
            "binary_cross_entropy",
            "recall: .* there are 4 columns of labels; expected micro",
        ),
        (["ece:bins=0"], "cross_entropy", "ece: bins is 0"),
        (["f1", "f1"], "cross_entropy", "names must differ"),
        ([3], "mse", "3 is neither a name nor a function"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(chosen, loss, says):
    labels = np.zeros(2, np.int64) if loss == "cross_entropy" else np.zeros((2, 4), np.float32)
    with pytest.raises(df.InputError, match=says):
        evaluated(np.zeros((2, 4), np.float32), labels, loss, chosen)


def test_of_several_outputs_each_has_the_metrics_that_fit_its_loss():
    rng = np.random.default_rng(8)
    scores, numbers, targets = rng.normal(size=(3, 12, 4)).astype(np.float32)
    g = df.GraphBuilder("heads")
    for name in ("scores", "numbers"):
        g.output(name, ops.copy(g.input(f"x_{name}", df.float32, ("n", 4))))
    data = {"x_scores": scores, "x_numbers": numbers, "kinds": rng.integers(0, 4, 12), "targets": targets}
    losses = {"scores": ("cross_entropy", "kinds"), "numbers": ("mse", "targets")}
    found = df.evaluate(df.Model(g.build()), data, losses, ["accuracy", "rmse"], devices=["cpu"])
    assert found["scores_accuracy"] == pytest.approx((scores.argmax(1) == data["kinds"]).mean())
    assert found["numbers_rmse"] == pytest.approx(np.sqrt(np.mean(np.square(numbers - targets))), rel=1e-6)
    assert {"scores_rmse", "numbers_accuracy"}.isdisjoint(found)


def test_elements_of_weight_0_count_in_no_metric_whatever_their_labels_are():
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(40, 3)).astype(np.float32)
    there = rng.random((40, 3)) < 0.6
    there[:8, 1] = False  # a column of the first batch without labels
    there[:9, 2], there[9:, 2] = True, False
    g = df.GraphBuilder("scaled")
    x = g.input("x", df.float32, ("batch", 3))
    g.output("y", df.ops.mul(x, g.parameter("one", np.float32(1))))
    model = df.Model(g.build())

    yes = (rng.random((40, 3)) < 0.4).astype(np.float32)
    chosen = ["accuracy", "precision", "recall", "iou", "mcc", "confusion", "roc_auc", "pr_auc", "ece"]
    loss = df.losses.BinaryCrossEntropy(weights="there")
    for wild in (np.nan, -7.0, 1.0):
        data = {"x": logits, "labels": np.where(there, yes, wild), "there": there}
        found = df.evaluate(model, data, loss, chosen, batch_size=8)
        z, t, p = logits.astype(np.float64), yes > 0.5, logits > 0
        own = [(z[there[:, c], c], t[there[:, c], c]) for c in range(3)]
        hits = np.array([((s > 0) & w).sum() for s, w in own])
        assert found["accuracy"] == pytest.approx((p == t)[there].mean())
        assert found["precision"] == pytest.approx(np.mean(hits / [(s > 0).sum() for s, _ in own]))
        assert found["recall"] == pytest.approx(np.mean(hits / [w.sum() for _, w in own]))
        assert found["iou"] == pytest.approx(np.mean(hits / [((s > 0) | w).sum() for s, w in own]))
        assert found["mcc"] == pytest.approx(np.corrcoef(p[there], t[there])[0, 1])
        matrix = [[(there & (t == a) & (p == b)).sum() for b in (False, True)] for a in (False, True)]
        assert found["confusion"].tolist() == matrix
        areas = [(s[w][:, None] > s[~w]).mean() for s, w in own]
        assert found["roc_auc"] == pytest.approx(np.mean(areas))
        steps = [[(w & (s >= at)).sum() / (s >= at).sum() for at in s[w]] for s, w in own]
        assert found["pr_auc"] == pytest.approx(np.mean([np.mean(each) for each in steps]))
        sure = 1 / (1 + np.exp(-np.abs(z[there])))
        bins = np.minimum(sure * 15, 14).astype(int)
        gaps = [abs(((p == t)[there] - sure)[bins == b].sum()) for b in range(15)]
        assert found["ece"] == pytest.approx(sum(gaps) / there.sum(), rel=1e-5)

    wanted = logits + rng.normal(size=(40, 3))
    for wild in (np.nan, 1e6):
        data = {"x": logits, "labels": np.where(there, wanted, wild), "there": there.astype(np.int64)}
        found = df.evaluate(model, data, df.losses.MSE(weights="there"), ["mae", "rmse", "r2"], batch_size=8)
        gap = logits - wanted
        assert found["loss"] == pytest.approx((gap[there] ** 2).mean(), rel=1e-5)
        assert found["mae"] == pytest.approx(np.abs(gap[there]).mean(), rel=1e-5)
        assert found["rmse"] == pytest.approx(np.sqrt((gap[there] ** 2).mean()), rel=1e-5)
        columns = [(gap[there[:, c], c], wanted[there[:, c], c]) for c in range(3)]
        assert found["r2"] == pytest.approx(
            np.mean([1 - (e**2).sum() / ((w - w.mean()) ** 2).sum() for e, w in columns])
        )
        with df.Trainer(model.copy(), df.losses.MSE(weights="there"), "sgd:lr=0.01,momentum=0") as trainer:
            trainer.fit(data, epochs=1, batch_size=40, progress=False)
            slope = 2 * (gap * logits)[there].mean()
            assert trainer.model.parameters["one"].array == pytest.approx(1 - 0.01 * slope, rel=1e-5)
    with pytest.raises(df.InputError, match="'labels' of sample 0 is NaN"):
        df.evaluate(model, data | {"labels": np.full((40, 3), np.nan)}, "mse:weights=there", [])
