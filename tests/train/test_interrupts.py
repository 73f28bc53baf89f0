"""Ctrl-C at every line of a run: what is saved resumes to the bits of a run that nobody interrupted."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.train.callbacks import Event
from dataflow.train.interrupts import InterruptsHeld
from dataflow.train.watch.clock import FIGURES

FILES = ("train/fit.py", "train/trainer.py", "train/checkpoint.py", "train/history.py", "train/interrupts.py")
QUIET: dict[str, Any] = {"progress": False}


class InterruptAt:
    """A tracer that sends SIGINT to this process at the ``wanted``-th line of the training code; counts lines."""

    def __init__(self, wanted: int | None = None) -> None:
        self.wanted, self.seen = wanted, 0

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if kind == "line":
            self.seen += 1
            if self.seen == self.wanted:
                signal.raise_signal(signal.SIGINT)
        return self

    def run(self, function: Callable[[], Any]) -> bool:
        """Whether ``function`` was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def run_of(linear: ModuleType, folder: Path, every: Any, stop: bool) -> tuple[Any, Callable[[], df.train.History]]:
    """A trainer and its run, which ends by an early stop where ``stop``."""
    data = linear.data(20, noise=0.3)
    trainer = linear.trainer(accumulate=2, seed=4, optimizer=df.optim.SGD(lr=0.03, momentum=0.9, schedule="cosine"))
    rule = df.EarlyStop("val_loss", patience=1, min_delta=10.0 if stop else 0.0)
    options = {"epochs": 3, "batch_size": 4, "checkpoint": folder, "every": every, "early_stop": rule, **QUIET}
    return trainer, lambda: trainer.fit(data, validation=data, resume="auto", **options)


def outcome(trainer: Any, history: df.train.History) -> tuple[Any, ...]:
    columns = {name: column for name, column in history.epochs.items() if name not in FIGURES}
    return trainer.programs.state(), columns, history.steps, trainer.steps


def assert_same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert found[0].keys() == expected[0].keys()
    for name, array in expected[0].items():
        np.testing.assert_array_equal(found[0][name], array)
    assert found[1:] == expected[1:]


# Between open() and its with statement nothing but the collector closes a file.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("every", "stop"), [("epoch", False), (1, False), ("epoch", True), (2, True)])
def test_a_run_interrupted_at_any_line_resumes_bit_for_bit(
    linear: ModuleType, tmp_path: Path, every: Any, stop: bool
) -> None:
    uninterrupted, run = run_of(linear, tmp_path / "whole", every, stop)
    lines = InterruptAt()
    expected: list[Any] = []
    assert not lines.run(lambda: expected.append(run()))
    wanted = outcome(uninterrupted, expected[0])
    interrupted = 0
    for line in range(1, lines.seen, lines.seen // 23):
        folder = tmp_path / str(line)
        interrupted += InterruptAt(line).run(run_of(linear, folder, every, stop)[1])
        trainer, again = run_of(linear, folder, every, stop)
        assert_same(outcome(trainer, again()), wanted)
    assert interrupted > 15


@pytest.mark.parametrize("kind", ["step", "epoch", "end"])
def test_a_callback_may_be_interrupted(linear: ModuleType, tmp_path: Path, kind: str) -> None:
    data = linear.data(20, noise=0.3)
    options = {
        "epochs": 3, "batch_size": 4, "val_split": 0.2, "early_stop": df.EarlyStop("val_loss", patience=1), **QUIET
    }  # fmt: skip
    uninterrupted = linear.trainer()
    expected = outcome(uninterrupted, uninterrupted.fit(data, **options))
    seen: list[str] = []

    def interrupt(event: Event) -> None:
        seen.append(event.kind)
        if event.kind == kind:
            signal.raise_signal(signal.SIGINT)

    trainer = linear.trainer()
    for _ in range(40):  # each of its events is interrupted once
        try:
            history = trainer.fit(data, checkpoint=tmp_path, resume="auto", callbacks=[interrupt], **options)
        except KeyboardInterrupt:
            trainer = linear.trainer()
            if kind == "end":
                history = trainer.fit(data, checkpoint=tmp_path, resume="auto", **options)
                break
        else:
            break
    assert kind in seen
    assert_same(outcome(trainer, history), expected)


def test_an_interrupt_waits_for_what_must_be_complete() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt), InterruptsHeld(), InterruptsHeld():
        signal.raise_signal(signal.SIGINT)
        done.append(1)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_trainer_goes_on_from_its_last_step(linear: ModuleType) -> None:
    """Micro-batches that wait when Ctrl-C arrives are forgotten, by the trainer too."""
    data = linear.data(20)
    trainer = linear.trainer(accumulate=2)
    run, calls = trainer.programs.forward_backward, []

    def interrupted(batch: Any, *, first: bool) -> Any:
        calls.append(first)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(batch, first=first)

    trainer.programs.forward_backward = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, batch_size=4, **QUIET)
    assert (trainer.steps, trainer.pending) == (1, 0)
    trainer.fit(data, batch_size=4, **QUIET)
    assert calls == [True, False, True, False, *[True, False] * 2, True]


@pytest.mark.filterwarnings("error")
def test_an_interrupt_that_arrived_in_a_destructor_waits_for_its_end():
    """However long it lasts: what a destructor raises is lost."""
    ended = []

    class Dropped:
        def __del__(self):
            with InterruptsHeld(later=True):
                signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        Dropped()
        time.sleep(60)
    assert ended


def test_ctrl_c_while_a_trainer_is_dropped_is_raised_afterwards():
    """A destructor can raise nothing; the weights go back to the model all the same."""
    g = df.GraphBuilder()
    g.output("y", g.input("x", df.float32, ("b", 2)) @ g.parameter("w", np.ones((2, 2), np.float32)))
    model = df.Model(g.build())
    trainer = df.Trainer(model, "mse", df.optim.SGD(lr=0.1), threads=1)
    x = np.ones((1, 2), np.float32)
    trainer.step({"x": x, "labels": 0 * x})
    trained, newest = model.parameters["w"].array, trainer.programs.newest

    def interrupted(name):
        signal.raise_signal(signal.SIGINT)
        return newest(name)

    trainer.programs.newest = interrupted
    with pytest.raises(KeyboardInterrupt):
        del trainer
        time.sleep(60)
    assert not np.array_equal(trained, np.ones((2, 2)))
    np.testing.assert_array_equal(model.parameters["w"].array, trained)
    df.Trainer(model, "mse", threads=1).close()
