"""What goes wrong in data, files and functions of users is said in their terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from tests.train.test_trainable import waiting
from tests.train.test_training import data, model


def test_a_function_that_fails_names_its_line() -> None:
    def loss(g: Any, outputs: Any, batch: Any) -> Any:
        return outputs["z"] - batch["other"]

    with (
        df.Trainer(model(), loss, devices=["cpu"]) as trainer,
        pytest.raises(
            df.InputError, match=r"the loss function failed at test_faults.py:\d+: KeyError: 'other'"
        ) as caught,
    ):
        trainer.step(data())
    assert isinstance(caught.value.__cause__, KeyError)


def test_labels_are_numbers_of_the_classes_that_a_model_names(tmp_path: Path) -> None:
    made, path = model(), tmp_path / "data.csv"
    made.metadata = {"classes": '["a", "b", "c"]'}
    rows = np.column_stack([data()["x"], data()["labels"] % 3])
    np.savetxt(path, rows, fmt="%.6g", delimiter=",", header="x0,x1,x2,x3,x4,x5,labels", comments="")
    table = df.Dataset(str(path), columns=[f"x{i}" for i in range(6)])
    found = df.evaluate(made, table, devices=["cpu"])
    wanted = df.evaluate(made, {"x": rows[:, :6].astype(np.float32), "labels": rows[:, 6].astype(int)}, devices=["cpu"])
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    named = np.array(["a", "b", "c"], object)[rows[:, 6].astype(int)]
    lines = [",".join([*(f"{v:.6g}" for v in row[:6]), name]) for row, name in zip(rows, named, strict=True)]
    path.write_text("\n".join(["x0,x1,x2,x3,x4,x5,labels", *lines]))
    assert df.evaluate(made, table, devices=["cpu"])["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_columns_of_a_file_with_many_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text(",".join(f"c{i}" for i in range(10)) + "\n" + ",".join(map(str, range(10))) + "\n")
    with df.Trainer(model(), devices=["cpu"]) as trainer, pytest.raises(df.InputError, match="'c7' and 2 more"):
        trainer.evaluate(df.Dataset(str(path), columns=["c0"]))


def test_a_statistic_that_is_stored_once_for_two_uses_is_not_updated() -> None:
    g = df.GraphBuilder("network")
    x, zeros = (
        g.input("x", df.float32, ("batch", 2, 3)),
        g.initializer("zeros", np.zeros(2, np.float32), role="statistic"),
    )
    ones = g.initializer("ones", np.ones(2, np.float32), role="statistic")
    scale = g.parameter("scale", np.ones(2, np.float32))
    h = ops.batch_norm(x, scale, zeros, zeros, ones, epsilon=1e-5)
    g.output("y", ops.reduce_mean(h, axes=(2,), keepdims=False))
    made = df.Model(g.build())
    with pytest.raises(
        df.InputError, match=r"'zeros', a running statistic of batch_norm.* stored once for several uses"
    ):
        df.Trainer(made, batch_norm="update")
    df.Trainer(made, devices=["cpu"]).close()


def test_targets_in_a_model_that_waits_for_its_inputs() -> None:
    for make in (lambda: df.lora(waiting(), targets="first"), lambda: df.quantize(waiting(), targets="first")):
        with pytest.raises(df.InputError, match="converted anew for each form of its inputs"):
            make()
