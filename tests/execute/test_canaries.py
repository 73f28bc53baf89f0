"""Models whose values lie apart train as others do, and no kernel writes between their values."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

import dataflow as df
from dataflow.execute import canaries
from dataflow.execute.canaries import CANARY
from dataflow.planning.offsets import PAGE, values_apart
from tests.support import recorded, recording


def train(file, steps=2, *, devices=("cpu",), registry=None):
    """Losses, and for each program what is damaged beside its values."""
    data = recorded(file)
    samples = data["x"][:steps].astype(np.float32 if data["x"].dtype.kind == "f" else np.int64)
    with df.Trainer(recording(file), devices=devices, registry=registry) as trainer:
        losses = [
            trainer.step({"x": x, "labels": y.astype(np.int64)})
            for x, y in zip(samples, data["y"][:steps], strict=True)
        ]
        programs = [*trainer.programs.engine.programs.values()]
        damages = [bound.damage() for program in programs for bound in program.bounds]
    return losses, damages


@pytest.mark.parametrize("file", ["mlp", "cnn", "lstm"])
def test_no_kernel_of_a_training_writes_between_values(file):
    expected, _ = train(file)
    with values_apart():
        losses, damages = train(file)
    assert losses == expected
    assert damages
    assert damages == [None] * len(damages)


class Late:
    """A backend whose copies are done when it is waited for, from where the array was."""

    def __init__(self):
        self.memory = bytearray(64)
        self.waiting = []

    def write(self, buffer, offset, array):
        self.waiting.append((offset, array.ctypes.data, array.nbytes))

    def sync(self):
        for offset, address, size in self.waiting:
            self.memory[offset : offset + size] = ctypes.string_at(address, size)
        self.waiting.clear()


def test_noise_lives_until_the_device_has_read_it():
    backend = Late()
    devices = SimpleNamespace(allocate=lambda memory, size: backend.memory, backend_of=lambda memory: backend)
    buffer = canaries.allocate(devices, "late:0", 64, [])
    assert not backend.waiting and set(buffer) == {CANARY}
    rows = [("a", SimpleNamespace(bytes=8), 16), ("b", SimpleNamespace(bytes=4), 32)]
    canaries.poison(devices, "late:0", buffer, rows, 7)
    assert not backend.waiting and [i for i, byte in enumerate(buffer) if byte == 7] == [*range(16, 24), *range(32, 36)]


def test_a_byte_that_was_written_is_named_by_the_value_beside_it():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("y", df.ops.exp(df.ops.softmax(x, axis=0)))
    with values_apart():
        session = df.Session(df.Model(g.build()), devices=["cpu"])
        session.run(np.zeros(3, np.float32))
    (program,) = session._loaded().engine.programs.values()
    (bound,) = program.bounds
    assert bound.damage() is None
    (index,) = program.plan.lifetimes
    (row,) = program.plan.lifetimes[index]
    name, life, offset = row
    memory = np.asarray(bound._buffers[index])
    assert offset == 2 * PAGE - 64  # the value ends with its page, as far as its alignment allows
    for at in (offset - 1, offset + life.bytes):
        memory[at] = 0
        assert bound.damage() == f"host: bytes beside {name} were written"
        memory[at] = CANARY
    assert bound.damage() is None
