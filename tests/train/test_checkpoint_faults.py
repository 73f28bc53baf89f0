"""Checkpoints that are damaged, of others, older or newer, and folders that can't be written: nothing changes before
a checkpoint is known to be good, and each gets its own message."""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.train import checkpoint
from dataflow.train.callbacks import Event
from dataflow.train.checkpoint import Checkpoint

QUIET: dict[str, Any] = {"progress": False}
EVERY: dict[str, Any] = {"every": 2, "batch_size": 8, **QUIET}


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a safetensors file, and what comes behind it."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def rewrite(path: Path, header: dict[str, Any], tensors: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + tensors)


def as_first_form(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Header, counters and tensors of ``path`` as the first version of the form had them, without a digest."""
    header, tensors = header_of(path)
    metadata = header["__metadata__"]
    metadata["format"] = "dataflow checkpoint 1"
    del metadata["digest"]
    counters = json.loads(metadata["counters"])
    for key in ("data", "optimizer"):
        del counters[key]
    return header, counters, tensors


def with_counters(header: dict[str, Any], counters: dict[str, Any]) -> dict[str, Any]:
    return {**header, "__metadata__": {**header["__metadata__"], "counters": json.dumps(counters)}}


def saved(linear: ModuleType, folder: Path) -> Path:
    """The newest of three checkpoints of a run."""
    data = linear.data(32, noise=0.3)
    linear.trainer().fit(data, validation=data, early_stop=df.EarlyStop(), epochs=1, checkpoint=folder, **EVERY)
    return checkpoint.files(folder)[-1]


def assert_untouched(trainer: Any, before: dict[str, np.ndarray]) -> None:
    assert trainer.steps == 0
    for name, array in trainer.programs.state().items():
        np.testing.assert_array_equal(array, before[name])


def paths(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the entries of a JSON value are."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at] * bool(at) + [position for key, value in inner for position in paths(value, (*at, key))]


def changed(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy in which the entry ``at`` is ``value``, or missing where that is ``...``."""
    found = copy.deepcopy(tree)
    holder = found
    for key in at[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    return found


def test_metadata_of_any_kind_is_checked_before_weights_change(linear: ModuleType, tmp_path: Path) -> None:
    """Every entry of a file without a digest, missing and of other types: ours or harmless, and whole or nothing."""
    path = saved(linear, tmp_path)
    header, counters, tensors = as_first_form(path)
    data = linear.data(32, noise=0.3)
    options = {"validation": data, "early_stop": df.EarlyStop(), "epochs": 2, **EVERY}
    spoiled = [
        with_counters(header, changed(counters, at, value))
        for at in paths(counters)
        for value in (..., None, -1, "x", [], {}, True, 10**400)
    ]
    names = [name for name in header if name != "__metadata__"]
    spoiled += [changed(header, (n, key), value) for n in names for key in header[n] for value in (None, "I32")]
    spoiled += [changed(header, ("__metadata__", key), value) for key in header["__metadata__"] for value in (..., "x")]
    trainer = linear.trainer()
    before = trainer.programs.state()
    refused = 0
    for number, mutant in enumerate(random.Random(0).sample(spoiled, 250)):
        file = tmp_path / f"{number}.safetensors"
        rewrite(file, mutant, tensors)
        try:
            trainer.fit(data, resume=file, **options)
        except df.InputError as error:
            refused += 1
            assert file.name in str(error)
            assert_untouched(trainer, before)
        else:
            assert trainer.steps >= 4
            trainer = linear.trainer()
    assert refused > 100


def test_any_changed_byte_is_noticed(linear: ModuleType, tmp_path: Path) -> None:
    path = saved(linear, tmp_path)
    good = path.read_bytes()
    rng = random.Random(1)
    for position in [*rng.sample(range(len(good)), 150), *range(len(good) - 20, len(good))]:
        path.write_bytes(good[:position] + bytes([good[position] ^ (1 << rng.randrange(8))]) + good[position + 1 :])
        with pytest.raises(df.InputError):
            checkpoint.load(path)
    for size in rng.sample(range(len(good)), 20):
        path.write_bytes(good[:size])
        with pytest.raises(checkpoint.DamagedCheckpoint):
            checkpoint.load(path)
    path.write_bytes(good)
    checkpoint.load(path)


def test_the_newest_that_is_complete_is_resumed_from(
    linear: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(linear, tmp_path)
    data = bytearray(path.read_bytes())
    data[-2] ^= 4  # a bit of a weight
    path.write_bytes(data)
    options = {"validation": linear.data(32), "early_stop": df.EarlyStop(), "checkpoint": tmp_path, **EVERY}
    trainer = linear.trainer()
    with caplog.at_level("INFO", "dataflow"):
        trainer.fit(linear.data(32, noise=0.3), epochs=1, resume="auto", **options)
    assert f"checkpoint skipped: {path}: damaged: its digest" in caplog.text
    assert f"resumed from {tmp_path / 'step-000000002.safetensors'}" in caplog.text
    assert checkpoint.load(path).counters["steps"] == 4  # written anew when the run came there again
    for file in checkpoint.files(tmp_path):
        file.write_bytes(b"\x08")
    with pytest.raises(df.InputError, match=r"none of the 2 checkpoints can be used; to begin anew"):
        linear.trainer().fit(linear.data(32), epochs=1, resume="auto", **options)


def test_a_damaged_file_of_a_later_step_never_costs_a_good_one(tmp_path: Path) -> None:
    tensors = {"parameters/w": np.ones(3, np.float32)}
    for step in (1, 9):
        checkpoint.save(tmp_path, step, Checkpoint(tensors, {"steps": step}, "x"), keep=1)
    checkpoint.files(tmp_path)[-1].write_bytes(b"torn")
    for step in (2, 3):
        checkpoint.save(tmp_path, step, Checkpoint(tensors, {"steps": step}, "x"), keep=1)
        found = checkpoint.newest(tmp_path)
        assert found is not None
        assert found[1].counters["steps"] == step


def test_older_newer_and_foreign_files_are_distinguished(
    linear: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(linear, tmp_path)
    data, options = linear.data(32), {"epochs": 2, **EVERY}
    header, counters, tensors = as_first_form(path)
    older = tmp_path / "older.safetensors"
    rewrite(older, with_counters(header, counters), tensors)
    trainer = linear.trainer()
    with caplog.at_level("INFO", "dataflow"):
        trainer.fit(data, resume=older, **options)
    assert "written by an older version, without a digest" in caplog.text
    assert trainer.steps == 8

    header["__metadata__"]["format"] = "dataflow checkpoint 3"
    folder = tmp_path / "newer"
    folder.mkdir()
    rewrite(folder / "step-000000009.safetensors", header, tensors)
    with pytest.raises(checkpoint.NewerCheckpoint, match=r"newer version of dataflow, in form 3.*update dataflow"):
        linear.trainer().fit(data, checkpoint=folder, resume="auto", **options)

    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3)}, str(tmp_path / "foreign.safetensors"))
    for name, message in (
        ("foreign.safetensors", "no checkpoint of this form"),
        ("missing.safetensors", "No such file"),
        ("newer", r"is a folder; expected a checkpoint of it; resume='auto' with checkpoint="),
    ):
        with pytest.raises(df.InputError, match=message):
            linear.trainer().fit(data, resume=tmp_path / name, **options)

    class Other(df.optim.SGD):
        pass

    with pytest.raises(df.InputError, match="the optimizers differ: SGD there, Other here"):
        linear.trainer(optimizer=Other(lr=0.1, momentum=0.9)).fit(data, resume=path, **options)


def missing(tensors: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: missing(t, "optimizer/velocity/w"), "no 'optimizer/velocity/w'"),
        (lambda t: missing(t, "parameters/w"), "no 'parameters/w'"),
        (lambda t: missing(t, "best/parameters/b"), "no 'best/parameters/b'"),
        (lambda t: {}, "none of the trained parameters"),
        (lambda t: {**t, "else": t["parameters/w"]}, "'else' is no tensor of a run"),
        (lambda t: {**t, "optimizer/m/w": t["parameters/w"]}, "'optimizer/m/w' is no tensor of the optimizer"),
        (lambda t: {**t, "optimizer/velocity/w": np.zeros(7)}, r"'w' is float64\[7\] there and float32\[3, 1\] here"),
        (lambda t: {**t, "best/parameters/b": np.zeros(7)}, "'b' is float64"),
    ],
)
def test_tensors_that_are_no_state_of_the_run_are_refused(
    linear: ModuleType, tmp_path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], message: str
) -> None:
    found = checkpoint.load(saved(linear, tmp_path))
    file = checkpoint.save(
        tmp_path / "changed", 4, Checkpoint(change(dict(found.tensors)), found.counters, found.fingerprint), keep=1
    )
    trainer = linear.trainer()
    before = trainer.programs.state()
    with pytest.raises(df.InputError, match=message):
        trainer.fit(linear.data(32), resume=file, epochs=2, **EVERY)
    assert_untouched(trainer, before)


# ---- folders ------------------------------------------------------------------------------------------


FAULTS = {
    "quota": (errno.EDQUOT, "write"),
    "full": (errno.ENOSPC, "sync"),
    "stale": (errno.ESTALE, "rename"),
    "read-only": (errno.EROFS, "open"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_save_that_fails_leaves_the_run_and_the_older_files(
    linear: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    number, where = FAULTS[fault]
    data, options = linear.data(64, noise=0.3), {"epochs": 2, "checkpoint": tmp_path, **EVERY}
    uninterrupted = linear.trainer()
    uninterrupted.fit(data, **{**options, "checkpoint": tmp_path / "whole"})
    broken: list[int] = []

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    def breaks(event: Event) -> None:
        if event.step == 4 and not broken:
            broken.append(event.step)
            target = {"write": (checkpoint, "write_tensors"), "sync": (os, "fsync"), "rename": (Path, "replace")}
            patch.setattr(*target.get(where, (Path, "open")), failing)

    trainer = linear.trainer()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="earlier ones stay") as error:
        trainer.fit(data, callbacks=[breaks], **options)
    assert error.value.errno == number
    assert error.value.filename == str(tmp_path / "step-000000004.safetensors")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["step-000000002.safetensors"]
    assert (trainer.steps, trainer.pending) == (4, 0)
    trainer.fit(data, resume="auto", **options)
    np.testing.assert_array_equal(trainer.programs.w, uninterrupted.programs.w)


LIMITED = """
import resource, sys
import numpy as np
from dataflow.train.checkpoint import Checkpoint, save
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save(sys.argv[1], 2, Checkpoint({"parameters/w": np.ones(100_000)}, {}, "x"), keep=2)
except OSError as error:
    print(error.errno, error.filename)
"""


def test_a_disk_that_takes_only_some_bytes(tmp_path: Path) -> None:
    """The system's own refusal, by a limit on the size of files."""
    checkpoint.save(tmp_path, 1, Checkpoint({"parameters/w": np.ones(3)}, {}, "x"), keep=2)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), str(tmp_path / "step-000000002.safetensors")]
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.safetensors"]


def test_a_folder_that_can_not_be_made_is_refused_before_training(linear: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = linear.trainer()
    for folder in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/dataflow")):
        with pytest.raises((OSError, df.InputError), match=folder.name):
            trainer.fit(linear.data(), checkpoint=folder, **QUIET)
    assert trainer.steps == 0


def test_a_folder_that_is_removed_while_training_is_made_again(linear: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def remove(event: Event) -> None:
        if event.step == 3:
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    trainer = linear.trainer()
    trainer.fit(linear.data(64), checkpoint=folder, callbacks=[remove], **EVERY)
    found = checkpoint.newest(folder)
    assert found is not None
    assert found[1].counters["steps"] == trainer.steps == 8


def test_a_second_run_does_not_write_to_the_folder_of_a_first(linear: ModuleType, tmp_path: Path) -> None:
    seen: list[str] = []

    def second(event: Event) -> None:
        if not seen:
            with pytest.raises(df.InputError, match="another run writes its checkpoints here"):
                linear.trainer().fit(linear.data(), checkpoint=tmp_path, **QUIET)
            seen.append(event.kind)

    data = linear.data(64)
    linear.trainer().fit(data, checkpoint=tmp_path, callbacks=[second], **EVERY)
    assert seen == ["step"]
    with pytest.raises(df.InputError, match=r"step-000000008.* is of a later step than 0.*resume='auto'"):
        linear.trainer().fit(data, checkpoint=tmp_path, **EVERY)
    assert len(checkpoint.files(tmp_path)) == 3


def test_weights_that_an_update_spoiled_are_not_saved(linear: ModuleType, tmp_path: Path) -> None:
    trainer = linear.trainer()

    def spoil(event: Event) -> None:
        if event.step == 4:
            trainer.programs.w[0] = np.inf

    with pytest.raises(df.DataflowError, match=r"not saved after 4 optimizer steps: parameters/w not finite"):
        trainer.fit(linear.data(64), checkpoint=tmp_path, callbacks=[spoil], **EVERY)
    assert [checkpoint.step_of(path) for path in checkpoint.files(tmp_path)] == [2]


# ---- data ---------------------------------------------------------------------------------------------


def interrupted(linear: ModuleType, data: Any, folder: Path, at: int) -> None:
    def stop(event: Event) -> None:
        if event.kind == "step" and event.step == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        linear.trainer().fit(data, epochs=3, checkpoint=folder, callbacks=[stop], **EVERY)


def test_data_that_changed_is_said(linear: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = linear.data(32)
    interrupted(linear, data, tmp_path, 3)
    options = {"epochs": 3, "checkpoint": tmp_path, "resume": "auto", **EVERY}
    with pytest.raises(df.InputError, match="within an epoch over 32 samples, and the data has 24 now"):
        linear.trainer().fit({key: array[:24] for key, array in data.items()}, **options)
    for other in (
        {**data, "x": data["x"] + 1},
        {**data, "x": data["x"].astype(np.float64)},
        {**data, "sample_weight": np.ones(32)},
    ):
        caplog.clear()
        interrupted(linear, data, tmp_path / str(len(other)) / str(other["x"].dtype), 3)
        with caplog.at_level("WARNING", "dataflow"):
            linear.trainer().fit(other, **{**options, "checkpoint": tmp_path / str(len(other)) / str(other["x"].dtype)})
        assert "the data changed since" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", "dataflow"):
        linear.trainer().fit(data, **options)
    assert caplog.text == ""


def test_another_number_of_samples_is_said_between_epochs(
    linear: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    linear.trainer().fit(linear.data(32), epochs=1, checkpoint=tmp_path, batch_size=8, **QUIET)
    trainer = linear.trainer()
    with caplog.at_level("WARNING", "dataflow"):
        trainer.fit(linear.data(40), epochs=2, checkpoint=tmp_path, resume="auto", batch_size=8, **QUIET)
    assert "not bit for bit, since these changed: samples" in caplog.text
    assert trainer.steps == 4 + 5


def test_batches_that_end_sooner_than_before_are_refused(linear: ModuleType, tmp_path: Path) -> None:
    data = linear.data(64)

    def batches(count: int) -> df.Dataset:
        return df.Dataset(lambda: ({k: v[8 * i : 8 * i + 8] for k, v in data.items()} for i in range(count)))

    interrupted(linear, batches(8), tmp_path, 5)
    with pytest.raises(df.InputError, match="ended after 3 batches, but the run goes on after 5"):
        linear.trainer().fit(batches(3), epochs=3, checkpoint=tmp_path, resume="auto", **EVERY)
