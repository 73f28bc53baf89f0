"""Arrays in page-locked memory: a card reads and writes them where they lie, but not what may change before it does."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

DEVICES = ["cuda", "cpu"]
WIDTH = 3000  # a batch is large enough that it is asked where it lies


def model():
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("N", WIDTH)), g.parameter("w", np.full((WIDTH, 2), 0.01, np.float32))
    g.output("y", ops.matmul(x, w))
    return df.Model(g.build())


def trainer(devices, registry):
    return df.Trainer(model(), "mse", optimizer=df.optim.SGD(lr=1e-4), devices=devices, registry=registry)


def batch():
    random = np.random.default_rng()
    return {
        "x": random.standard_normal((8, WIDTH)).astype(np.float32),
        "labels": random.standard_normal((8, 2)).astype(np.float32),
    }


def test_steps_of_a_staged_batch_are_those_of_the_batch(cuda):
    plain, staged = trainer(DEVICES, cuda), trainer(DEVICES, cuda)
    again = batch()
    own = staged.staged(again)
    for _ in range(4):
        for key, array in batch().items():
            own[key][...] = again[key] = array
        assert staged.step(own) == plain.step(again)
    staged.close()
    assert own["x"].sum() == again["x"].sum()  # it stays while somebody holds it


def test_a_staged_batch_is_read_where_it_lies(standin, standin_registry):
    one = trainer(DEVICES, standin_registry)
    plain = batch()
    own = one.staged(plain)
    for given, expected in ((plain, 0), (own, 1)):
        standin.watch(given["x"])
        one.step(given)
        assert standin.watched == expected


def test_results_are_written_where_they_are_to_lie(standin, standin_registry):
    given = {"x": batch()["x"]}
    session = df.Session(model(), devices=DEVICES, registry=standin_registry)
    wanted = session.run(given)
    many = {"y": np.empty((40, 2), np.float32)}  # more bytes than those of small copies
    for own, expected in ((many, 0), (session.staged(many), 1)):
        standin.watch(own["y"])
        found = session.run({"x": np.concatenate([given["x"]] * 5)}, out=own)
        assert found["y"] is own["y"]
        np.testing.assert_array_equal(found["y"][-8:], wanted["y"])
        assert standin.watched == expected


def test_a_closed_session_stages_nothing():
    session = df.Session(model(), devices=["cpu"])
    with pytest.raises(df.InputError, match="'x'"):
        session.staged({"x": [1.0]})
    session.close()
    with pytest.raises(df.ModelError):
        session.staged({"x": np.zeros(3)})


def test_a_gradient_in_page_locked_memory_may_change_once_it_is_written(cuda):
    found, given = [], batch()
    for changes in (False, True):
        one = trainer(DEVICES, cuda)
        one.forward(given)
        one.backward()
        gradient = one.staged({"w": np.full((WIDTH, 2), 0.5, np.float32)})["w"]
        one.gradients["w"] = gradient
        if changes:
            gradient[...] = np.nan
        one.update()
        found.append(one.programs.state()["parameters/w"])
    np.testing.assert_array_equal(*found)


def test_without_a_card_a_staged_batch_is_a_copy():
    one = trainer(["cpu"], None)
    given = batch()
    own = one.staged({**given, "labels": given["labels"][:, ::-1]})
    np.testing.assert_array_equal(own["x"], given["x"])
    np.testing.assert_array_equal(own["labels"], given["labels"][:, ::-1])
    own["x"][...] = 0
    assert given["x"].any()


def test_what_is_no_array_is_not_staged():
    with pytest.raises(df.InputError, match="labels"):
        trainer(["cpu"], None).staged({"x": batch()["x"], "labels": object()})
