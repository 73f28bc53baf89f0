"""Every loss and its gradient against what PyTorch gave in float64; what doesn't fit is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow import losses, ops
from dataflow.ir.types import dtype
from dataflow.passes.autodiff import vjp_graph
from dataflow.train.objective import Objective
from dataflow_numpy.evaluate import evaluate
from tests.support import moved_logits
from tests.train.test_losses import mean, model_of, terms

KEPT = np.load(Path(__file__).parents[1] / "recordings/losses.npz")
W = (0.5, 1.0, 2.0, 0.25, 1.5)


def teacher(after=ops.copy, dtype=df.float64):
    """A model that returns its input."""
    g = df.GraphBuilder("teacher")
    g.output("z", after(g.input("x", dtype, ("N", 5))))
    return df.Model(g.build())


CASES = {
    "cross_entropy": losses.CrossEntropy(),
    "soft": losses.CrossEntropy(),
    "soft_weighted": losses.CrossEntropy(W, 0.1),
    "soft_spatial": losses.CrossEntropy(axis=1),
    "nll": losses.NLL(W),
    "kl": losses.KL(),
    "kl_log": losses.KL(log_target=True),
    "next_token": losses.NextToken(),
    "binary": losses.BinaryCrossEntropy(),
    "binary_shares": losses.BinaryCrossEntropy(),
    "binary_pos": losses.BinaryCrossEntropy(W),
    "binary_each": losses.BinaryCrossEntropy(weights="counts"),
    "focal": losses.Focal(alpha=0.25),
    "focal_half": losses.Focal(1.5),
    "focal_classes": losses.Focal(alpha=W),
    "hinge": losses.Hinge(),
    "squared_hinge": losses.Hinge(0.5, squared=True),
    "mse": losses.MSE(),
    "mae": losses.MAE(),
    "huber": losses.Huber(1.5),
    "smooth_l1": losses.SmoothL1(0.5),
    "poisson": losses.PoissonNLL(full=True),
    "poisson_rate": losses.PoissonNLL(log_input=False),
    "dice": losses.Dice(),
    "dice_classes": losses.Dice(0.1),
    "cosine": losses.Cosine("1", 0.2),
    "cosine_vectors": losses.Cosine(),
    "triplet": losses.Triplet("1", "2"),
    "triplet_swap": losses.Triplet("1", "2", 3.0, swap=True),
    "info_nce": losses.InfoNCE("1"),
    "ctc": losses.CTC(input_lengths="times", label_lengths="counts"),
    "ctc_padded": losses.CTC(),
    "distill": losses.Distill(teacher(), 3.0, 0.3),
    "info_nce_both": losses.InfoNCE("1", 0.5, symmetric=True),
}


def case(name):
    """Outputs, entries of the batch, and what PyTorch found."""
    found = {k.removeprefix(f"{name}/"): KEPT[k] for k in KEPT.files if k.startswith(f"{name}/")}
    outputs = {k: v for k, v in found.items() if k.isdecimal()}
    entries = {k: v for k, v in found.items() if not k.isdecimal() and "gradient" not in k and k not in ("sum", "mean")}
    return outputs, entries, found


def joint(loss, outputs, entries):
    """The graph of sum and weight with its gradients in the outputs, and its arguments."""
    types = [df.TensorType(dtype(array), array.shape) for array in (*outputs.values(), *entries.values())]
    target = loss.target(*types)
    wanted = (target.labels, *target.entries)
    entries = {k: a.astype(t.dtype.numpy) for (k, a), t in zip(entries.items(), wanted, strict=False)}
    g = df.GraphBuilder("loss")
    values = {name: g.input(name, dtype(array), array.shape) for name, array in {**outputs, **entries}.items()}
    elements, weight = loss.elements(target, *values.values())
    assert elements.type.shape == weight.type.shape
    axes = tuple(range(elements.type.rank))
    g.output("loss", ops.reduce_sum(elements, axes=axes, keepdims=0))
    g.output("weight", ops.reduce_sum(weight, axes=axes, keepdims=0))
    made = g.build()
    made = vjp_graph(made, [v for v in made.inputs if v.name in outputs])
    seeds = {v.name: np.array(v.name == "grad.loss", outputs["0"].dtype) for v in made.inputs if "grad." in v.name}
    return made, {**outputs, **entries, **seeds}


def test_each_case_that_was_recorded_is_checked():
    assert {key.partition("/")[0] for key in KEPT.files} == set(CASES)


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradient_are_pytorchs(name, kind):
    outputs, entries, expected = case(name)
    graph, arguments = joint(CASES[name], {k: a.astype(kind) for k, a in outputs.items()}, entries)
    exact = kind == "float64"
    found = evaluate(graph, arguments) if exact else df.Session(graph, devices=["cpu"]).run(arguments)
    close = {"rel": 1e-9 if exact else 1e-5, "abs": 1e-9 if exact else 1e-5}
    assert found["loss"] == pytest.approx(expected["sum"], **close)
    assert found["loss"] / found["weight"] == pytest.approx(expected["mean"], **close)
    for key in outputs:
        wanted = expected[f"gradient/{key}"]
        bounds = {"rtol": close["rel"], "atol": close["abs"] * min(1.0, np.abs(wanted).max())}
        np.testing.assert_allclose(found[f"grad.{key}"], wanted, **bounds, err_msg=key)


def objective(loss, *shapes, output=None):
    """The objective of a model that returns its inputs, of these shapes."""
    g = df.GraphBuilder("m")
    for index, shape in enumerate(shapes):
        g.output(str(index), ops.copy(g.input(f"x_{index}", df.float32, shape)))
    return Objective(df.Model(g.build()), loss, output or (None if len(shapes) == 1 else "0"))


def figures(made, outputs, **batch):
    return terms(made, {str(i): a for i, a in enumerate(outputs)}, **batch)


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_add_up(name):
    """All but InfoNCE, whose negatives are the other samples of the micro-batch."""
    outputs, entries, _ = case(name)
    made = objective(CASES[name], *(("batch", *a.shape[1:]) for a in outputs.values()))
    all_at_once = figures(made, outputs.values(), **entries)
    sums = dict.fromkeys(all_at_once, 0.0)
    for rows in (slice(0, 1), slice(1, None)):
        found = figures(made, [a[rows] for a in outputs.values()], **{k: a[rows] for k, a in entries.items()})
        sums = {key: total + found[key] for key, total in sums.items()}
    alike = sums["loss"] == pytest.approx(all_at_once["loss"], rel=1e-5)
    assert alike == (not name.startswith("info_nce"))
    assert sums["weight"] == pytest.approx(all_at_once["weight"])


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_steps_and_evaluates(name):
    """With a parameter behind the values."""
    outputs, entries, expected = case(name)
    g = df.GraphBuilder("m")
    one = g.parameter("one", np.ones((), np.float32))
    for key, array in outputs.items():
        g.output(key, ops.mul(g.input(f"x_{key}", df.float32, ("batch", *array.shape[1:])), one))
    batch = {f"x_{key}": array for key, array in outputs.items()} | entries
    close = {"rel": 1e-5, "abs": 1e-6}
    with df.Trainer(df.Model(g.build()), CASES[name], output="0", devices=["cpu"]) as trainer:
        assert trainer.evaluate(batch, batch_size=len(outputs["0"]))["loss"] == pytest.approx(expected["mean"], **close)
        if np.isfinite(outputs["0"]).all():
            assert trainer.step(batch) == pytest.approx(expected["mean"], **close)
            assert trainer.model.parameters["one"].array != 1.0


def test_what_does_not_count_may_be_infinite():
    y, t = np.array([[np.inf, 1.0], [-np.inf, np.nan]], np.float32), np.ones((2, 2), np.float32)
    counts = np.array([[0.0, 2.0], [0.0, 0.0]])
    for loss in (losses.MSE(weights="counts"), losses.BinaryCrossEntropy(weights="counts")):
        graph, arguments = joint(loss, {"0": y}, {"labels": t, "counts": counts})
        found = evaluate(graph, arguments)
        assert found["weight"] == 2.0
        assert np.isfinite(found["loss"]) and np.isfinite(found["grad.0"]).all()


def test_the_mask_of_a_language_model_leaves_tokens_out():
    outputs, entries, _ = case("next_token")
    tokens = entries["labels"]
    mask = (tokens >= 0).astype(np.int64)
    labels = np.where(mask, tokens, 0)
    made = objective(losses.NextToken(mask="attention_mask"), ("batch", "T", 5))
    found = figures(made, outputs.values(), labels=labels, attention_mask=mask)
    assert found == figures(objective("next_token", ("batch", "T", 5)), outputs.values(), labels=tokens)
    guess = outputs["0"].argmax(-1)[:, :-1]
    counted = tokens[:, 1:] >= 0
    assert mean(found, "accuracy") == pytest.approx(np.mean((guess == tokens[:, 1:])[counted]))


def test_several_losses_of_one_value_and_of_others():
    outputs, entries, expected = case("dice")
    z = outputs["0"]
    both = {"0": [("dice", "masks", 2.0), ("binary_cross_entropy", "masks", 0.5)], "1": ("mse", "sizes")}
    made = objective(both, ("batch", 2, 4, 4), ("batch", 3))
    size = np.ones((3, 3), np.float32)
    found = figures(made, [z, 3 * size], masks=entries["labels"], sizes=size)
    binary = figures(objective("binary_cross_entropy", ("batch", 2, 4, 4)), [z], labels=entries["labels"])
    assert mean(found) == pytest.approx(2 * expected["mean"] + 0.5 * mean(binary) + 4.0, rel=1e-6)
    assert mean(found, "0_Dice") == pytest.approx(expected["mean"], rel=1e-6)
    assert mean(found, "0_BinaryCrossEntropy") == pytest.approx(mean(binary), rel=1e-6)
    assert mean(found, "1_loss") == 4.0
    with pytest.raises(df.InputError, match="names must differ"):
        objective({"0": ["mse", "mse"]}, ("batch", 3))
    of_one = objective([("dice", "masks", 2.0), "binary_cross_entropy"], ("batch", 2, 4, 4))
    found = figures(of_one, [z], masks=entries["labels"], labels=entries["labels"])
    assert mean(found) == pytest.approx(2 * expected["mean"] + mean(binary), rel=1e-6)
    assert objective(["mse"], ("batch", 3)).fractions.keys() == {"mae"}


def test_accuracy_of_probabilities_is_that_of_the_likeliest_class():
    outputs, entries, _ = case("soft")
    for loss in ("cross_entropy", "kl"):
        model = objective(loss, ("batch", 5))
        made = Objective(model_of(("batch", 5)), loss, None, ["accuracy", "top2"])
        found = terms(made, {"y": outputs["0"]}, **entries)
        order = np.argsort(-outputs["0"], axis=1)
        best = entries["labels"].argmax(1)
        assert mean(found, "accuracy") == pytest.approx(np.mean(order[:, 0] == best))
        assert mean(found, "top2") == pytest.approx(np.mean((order[:, :2] == best[:, None]).any(1)))
        assert model.keys == ("labels",)
    best = entries["labels"].argmax(1)
    made = Objective(model_of(("batch", 5)), losses.CrossEntropy(ignore_index=int(best[0])), None, ["accuracy"])
    assert mean(terms(made, {"y": outputs["0"]}, **entries), "accuracy") == pytest.approx(
        np.mean(outputs["0"].argmax(1) == best)
    )


class Margin:
    """A loss from elsewhere, with classes on the axis that its labels show."""

    skips, metrics, axis = (), ("accuracy",), None

    def target(self, output, labels):
        fit = [i for i in (1, 2) if output.shape[1:i] + output.shape[i + 1 :] == labels.shape[1:]]
        return losses.Target(output, df.TensorType(df.int64, labels.shape), self.axis or fit[0])

    def elements(self, target, output, labels):
        loss = ops.softmax_cross_entropy(output, labels, axis=target.axis)
        return loss, ops.add(ops.mul(loss, 0.0), 1.0)


def test_the_class_axis_that_the_declared_shape_shows_holds_for_every_loss():
    """Of (B, 3, T) with T = 3 both axes fit; what is declared decides."""
    z = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    y = np.array([[0, 1, 2], [2, 2, 0]])
    wanted = figures(objective(losses.CrossEntropy(axis=1), ("batch", 3, 3)), [z], labels=y)["loss"]
    for loss in (losses.CrossEntropy(), losses.NLL(), losses.Focal(0.0), losses.Dice()):
        made = objective(loss, ("batch", 3, "T"))
        with pytest.raises(df.InputError, match="axes"):
            figures(made, [z], labels=y)
    margin = Margin()
    bound = objective(margin, ("batch", 3, 4)).for_batch({"labels": df.TensorType(df.int64, (2, 4))})
    assert bound.losses[0].loss.axis == 1 and margin.axis is None
    found = figures(objective(Margin(), ("batch", 4)), [np.eye(2, 4, dtype=np.float32)], labels=np.array([0, 3]))
    assert mean(found, "accuracy") == 0.5
    assert figures(objective(losses.Focal(0.0, axis=1), ("batch", 3, 3)), [z], labels=y)["loss"] == wanted


REFUSED = [
    (
        "binary_cross_entropy",
        (4,),
        [0, 1, 1.5, 0],
        r"'labels' for BinaryCrossEntropy of sample 12 is 1.5",
    ),
    ("hinge", (4,), [1, -1, 0, 1], r"sample 12 is 0; expected -1 or 1"),
    ("poisson_nll", (4,), [0, 3, 2, -1], r"sample 13 is -1; expected 0 or more"),
    ("cross_entropy", (4, 2), [[0, 1], [1, 0], [0.5, -0.5], [0, 1]], r"sample 12 is -0.5 at \[1\]; expected 0 or more"),
    ("kl", (4, 2), [[0, 1], [1, 0], [0.5, 0.5], [0, -1]], r"sample 13 is -1.0 at \[1\]; expected 0 or more"),
    ("nll", (4, 2), [0, 1, 2, -100], r"sample 12 is 2; expected 0 to 1, or -100"),
    ("dice", (4, 2), [0, 1, -1, -100], r"sample 12 is -1; expected 0 to 1, or -100"),
    ("focal", (4,), [0, 1, 0, 2], r"'labels' for Focal of sample 13 is 2; expected 0 to 1"),
    ("mse", (4,), [0, 1, np.nan, 2], r"'labels' of sample 12 is NaN"),
    ("huber", (4,), [[0, 1]] * 4, r"huber: labels int64\[4, 2\] don't fit the output"),
    ("mae", (4,), ["a"] * 4, r"labels"),
    ("kl", (4, 2, 2), np.zeros((4, 2, 2)), r"kl: class probabilities .* choose with axis="),
    ("ctc", (4, 2), [0, 1, 2, 3], r"ctc: expected logits \(B, T, C\) and labels \(B, L\)"),
    ("next_token", (4, 2), [0, 1, 2, 3], r"next_token: expected logits \(B, T, classes\)"),
]


@pytest.mark.parametrize(("loss", "shape", "labels", "says"), REFUSED)
def test_labels_that_do_not_fit_are_refused(loss, shape, labels, says):
    made = objective(loss, ("batch", *shape[1:]))
    x = {"x_0": np.zeros(shape, np.float32)}
    with pytest.raises((df.InputError, TypeError), match=says):
        made.prepare({**x, "labels": np.asarray(labels)}, np.arange(10, 14))


def test_other_values_and_entries_that_do_not_fit_are_refused():
    with pytest.raises(df.ModelError, match="nowhere"):
        objective(losses.Triplet("nowhere", "1"), ("B", 3), ("B", 3))
    made = objective(losses.Triplet("1", "2"), ("B", 3), ("B", 3), ("B", 4))
    with pytest.raises(df.InputError, match=r"triplet: expected embeddings of one shape \(B, D\)"):
        made.for_batch({})
    with pytest.raises(df.InputError, match="InfoNCE reads no labels, so there is none under 'pairs'"):
        objective({"0": (losses.InfoNCE("1"), "pairs")}, ("B", 3), ("B", 3))
    with pytest.raises(df.InputError, match=r"metrics .* need a loss that names its labels"):
        Objective(model_of(("B", 3), names=("a", "b")), losses.InfoNCE("b"), "a", ["accuracy"])
    each = objective(losses.MSE(weights="w"), ("B", 3))
    with pytest.raises(df.InputError, match=r"mse: 'w' is .*expected numbers of the labels' shape"):
        each.prepare({"x_0": np.zeros((2, 3)), "labels": np.zeros((2, 3)), "w": np.zeros(2)}, None)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: losses.CTC(-1), "ctc: blank is -1"),
        (lambda: losses.Huber(0.0), "huber: delta is 0"),
        (lambda: losses.SmoothL1(-1.0), "smooth_l1: beta is -1"),
        (lambda: losses.Focal(-1.0), "focal: gamma is -1"),
        (lambda: losses.Focal(alpha=2.0), "focal: alpha is 2"),
        (lambda: losses.Dice(0.0), "dice: smooth is 0"),
        (lambda: losses.BinaryCrossEntropy(pos_weight=(1, -1)), "pos_weight: an entry is -1"),
        (lambda: losses.InfoNCE(temperature=0.0), "info_nce: temperature is 0"),
        (lambda: losses.Cosine(margin=2.0), "cosine: margin is 2"),
        (lambda: losses.NLL((1, np.nan)), "NLL: class_weights must be finite"),
        (lambda: losses.CrossEntropy(label_smoothing=1.0), "label_smoothing is 1"),
        (lambda: losses.NextToken(label_smoothing=1.0), "label_smoothing is 1"),
        (lambda: losses.Hinge("a"), "hinge: margin is 'a'"),
        (lambda: losses.MSE(weights=3), "mse: weights is 3"),
    ],
)
def test_settings_that_make_no_loss_are_refused(make, says):
    with pytest.raises(df.InputError, match=says):
        make()


def test_ctc_of_more_labels_than_fit():
    z, labels = np.zeros((2, 3, 4), np.float32), np.array([[1, 1, 1], [1, -1, -1]])
    graph, arguments = joint(losses.CTC(), {"0": z}, {"labels": labels})
    assert evaluate(graph, arguments)["loss"] == np.inf
    for major in (False, True):
        outputs = {"0": np.moveaxis(z, 0, 1) if major else z}
        graph, arguments = joint(losses.CTC(zero_infinity=True, time_major=major), outputs, {"labels": labels})
        found = df.Session(graph, devices=["cpu"]).run(arguments)
        assert found["loss"] == pytest.approx(-np.log(6 / 64), rel=1e-6)  # six paths give one label
        infeasible = found["grad.0"][:, 0] if major else found["grad.0"][0]
        assert not infeasible.any() and np.isfinite(found["grad.0"]).all()


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize(
    ("labels", "times", "counts", "says"),
    [
        ([[1, 4]], [3], [2], r"label 4 at \[0, 1\] is outside \[0, 4\), or the blank"),
        ([[0, 1]], [3], [2], r"label 0 at \[0, 0\] is outside"),
        ([[1, 1]], [4], [2], r"length 4 at \[0\] is outside \[0, 3\]"),
        ([[1, 1]], [3], [3], r"label length 3 at \[0\] is outside \[0, 2\]"),
        ([[1, 1]], [3], [-1], r"label length -1"),
    ],
)
def test_labels_and_lengths_of_ctc_are_checked(device, labels, times, counts, says):
    loss = losses.CTC(input_lengths="t", label_lengths="n")
    entries = {"labels": np.array(labels), "t": np.array(times), "n": np.array(counts)}
    graph, arguments = joint(loss, {"0": np.zeros((1, 3, 4), np.float32)}, entries)
    with pytest.raises(df.InputError, match=says):
        df.Session(graph, devices=[device], fold=False).run(arguments)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("axis", [1, 2])
def test_logits_far_from_0_have_the_losses_and_gradients_of_those_near_it(device, joined, axis):
    graph, near, far = moved_logits(axis, joined)
    run = df.Session(graph, devices=[device]).run
    expected, found = run(near), run(far)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=1e-7, err_msg=name)
