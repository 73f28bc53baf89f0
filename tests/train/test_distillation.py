"""A student follows a teacher that runs within its training program."""

import numpy as np
import pytest

import dataflow as df
from dataflow import losses, ops
from dataflow_numpy.evaluate import evaluate
from tests.train.test_loss_values import case, figures, joint, objective, teacher


def classifier(name, width, seed):
    """x (N, 3) to logits of 5 classes."""
    rng = np.random.default_rng(seed)
    g = df.GraphBuilder(name)
    x = g.input("x", df.float32, ("N", 3))
    w, v = (g.parameter(n, rng.normal(size=s).astype(np.float32)) for n, s in (("w", (3, width)), ("v", (width, 5))))
    g.output("z", ops.matmul(ops.tanh(ops.matmul(x, w)), v))
    return df.Model(g.build())


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_a_student_follows_its_teacher(alpha, tmp_path):
    """Its weights are named like the student's, stay what they are, and need no gradients; a run goes on as it was."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3)).astype(np.float32)
    model = classifier("teacher", 16, 1)
    before = {name: p.array.copy() for name, p in model.parameters.items()}
    logits = model({"x": x})["z"]
    batch = {"x": x} if alpha == 1.0 else {"x": x, "labels": logits.argmax(1)}
    runs = []
    for folder, epochs in (("a", (6,)), ("b", (3, 6))):
        for last in epochs:
            loss = losses.Distill(model, 2.0, alpha)
            with df.Trainer(
                classifier("student", 4, 2), loss, "adamw:lr=0.05", devices=["cpu"], accumulate=2
            ) as trainer:
                saved = {"checkpoint": tmp_path / folder, "resume": "auto"}
                runs.append(trainer.fit(batch, epochs=last, batch_size=16, progress=False, **saved)["loss"])
                assert set(trainer.programs.trained) == {"w", "v"}
                found = trainer.evaluate(batch)
    assert runs[0] == runs[2] and runs[0][:3] == runs[1]
    assert runs[0][-1] < runs[0][0] and found["loss"] < runs[0][0]
    assert all((model.parameters[name].array == array).all() for name, array in before.items())


def test_the_class_axis_is_that_of_the_declared_shape():
    """Of (B, 3, T) with T = 3 both axes would fit the labels."""
    z = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    g = df.GraphBuilder("teacher")
    g.output("z", ops.mul(g.input("x_0", df.float32, ("N", 3, "T")), 2.0))
    labels = np.array([[0, 1, 2], [2, 2, 0]])
    for axis in (1, 2):
        found = figures(objective(losses.Distill(df.Model(g.build()), axis=axis), (2, 3, 3)), [z], labels=labels)
        p, q = (np.moveaxis(scale * z.astype(np.float64), axis, -1) for scale in (0.5, 1.0))
        p, q, hard = (a - np.log(np.exp(a).sum(-1, keepdims=True)) for a in (p, q, 2 * p))
        soft = (np.exp(q) * (q - p)).sum(-1)
        own = np.take_along_axis(hard, labels[..., None], -1)[..., 0]
        assert found["loss"] == pytest.approx((0.5 * 4 * soft - 0.5 * own).sum(), rel=1e-5)


def test_a_teacher_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(df.ModelError, match="nowhere"):
        losses.Distill(teacher(), output="nowhere")
    with pytest.raises(df.InputError, match=r"the teacher's inputs are x, of which \['y'\] is none"):
        losses.Distill(teacher(), inputs={"y": "x"})
    with pytest.raises(df.InputError, match="alpha is 2"):
        losses.Distill(teacher(), alpha=2.0)
    with pytest.raises((df.ModelError, OSError), match=r"none\.onnx"):
        losses.Distill(str(tmp_path / "none.onnx"))
    softened = losses.Distill(teacher(lambda x: ops.softmax(x, axis=-1), df.float32))
    plain = losses.Distill(teacher(dtype=df.float32))
    outputs, entries, _ = case("distill")
    z = {"0": np.nan_to_num(outputs["0"])}
    values = [evaluate(*joint(loss, z, entries))["loss"] for loss in (softened, plain)]
    assert values[0] == values[1]  # the input of the softmax is followed
    made = objective(losses.Distill(teacher(), inputs={"x": "other"}), ("batch", 4))
    assert made.keys == ("labels", "other")
    with pytest.raises(df.InputError, match=r"the teacher gives .*expected one shape"):
        figures(made, [np.zeros((6, 4), np.float32)], labels=entries["labels"].clip(0, 3), other=entries["x"])
