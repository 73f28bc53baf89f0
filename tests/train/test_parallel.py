"""Several processes train as one does: the same losses and weights, whatever their number and the size of a batch."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.cli.trace import COLLECTIVES, trace_events
from dataflow.train.data.batch import Batch
from dataflow.train.parallel.collectives import BUCKET
from dataflow.train.parallel.gradient_sums import buckets
from dataflow.train.parallel.shares import share_of

JOB = Path(__file__).with_name("mpi_job.py")
MPIEXEC = shutil.which("mpiexec", path=sysconfig.get_path("scripts"))


def run(ranks, target, epochs=3, batch_size=16, accumulate=2, folder="-", resume="-", fault="-", shard="-"):
    """The finished processes."""
    pytest.importorskip("mpi4py")
    assert MPIEXEC, "the extra test installs MPICH"
    arguments = [target, epochs, batch_size, accumulate, folder, resume, fault, shard]
    command = [sys.executable, str(JOB), *map(str, arguments)]
    environment = {**os.environ, "DATAFLOW_NUM_THREADS": "1"} | ({"ALONE": "1"} if ranks == 1 else {})
    command = command if ranks == 1 else [MPIEXEC, "-n", str(ranks), *command]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def results(target, ranks):
    found = []
    for rank in range(ranks):
        with np.load(f"{target}.{rank}.npz") as file:
            found.append(dict(file))
    return found


@pytest.mark.parametrize(
    ("ranks", "batch_size", "accumulate", "epochs", "shard"), [(2, 16, 2, 13, "-"), (4, 3, 3, 5, "gradients")]
)
def test_processes_train_as_one_does(ranks, batch_size, accumulate, epochs, shard, tmp_path):
    """For fifty steps. Batches of 3 leave one of four processes without a sample, and the last of an epoch is short."""
    for count in (1, ranks):
        done = run(count, tmp_path / f"of{count}", epochs, batch_size, accumulate, shard=shard)
        assert done.returncode == 0, done.stderr
    (alone,) = results(tmp_path / "of1", 1)
    together = results(tmp_path / f"of{ranks}", ranks)
    assert len(alone["loss"]) >= 50
    for found in together:
        np.testing.assert_allclose(found["loss"], alone["loss"], rtol=1e-6)
        np.testing.assert_allclose(found["norm"], alone["norm"], rtol=1e-5)
        np.testing.assert_allclose(found["held"], alone["held"], rtol=1e-4)
        for name in ("a", "b"):
            np.testing.assert_allclose(found[name], alone[name], rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(found[name], together[0][name])
    begun = [
        found["begun"].item() for found in together
    ]  # sums, before backward ended, but for the one without samples
    assert sorted(begun) == [0] * (ranks - batch_size) + [2] * min(ranks, batch_size)
    if shard == "gradients":
        sizes = [0, 0, alone["b"].nbytes, alone["a"].nbytes]  # whose owners alone add up its gradients
        assert sorted(found["accumulated"].item() for found in together) == sizes
        # Each of two owners has a parameter, its gradient and two moments.
        assert sorted(found["kept"].item() for found in together) == [
            0,
            0,
            4 * alone["b"].nbytes,
            4 * alone["a"].nbytes,
        ]


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    assert run(1, tmp_path / "once", epochs=3).returncode == 0
    assert run(2, tmp_path / "first", epochs=2, folder=tmp_path / "kept", shard="optimizer").returncode == 0
    done = run(3, tmp_path / "then", epochs=3, folder=tmp_path / "kept", resume="auto", shard="gradients")
    assert done.returncode == 0, done.stderr
    (once,) = results(tmp_path / "once", 1)
    for found in results(tmp_path / "then", 3):
        np.testing.assert_allclose(found["loss"], once["loss"], rtol=1e-5)
        np.testing.assert_allclose(found["a"], once["a"], rtol=1e-4, atol=1e-6)
        assert found["loaded"] == 0  # no copy of the checkpoint stays


@pytest.mark.parametrize("fault", ["apart", "by hand"])
def test_processes_that_find_other_checkpoints_are_refused(fault, tmp_path):
    """Each in a folder of its own, as on machines that share none: the second one began anew, in silence."""
    assert run(1, tmp_path / "once", epochs=1, folder=tmp_path / "kept" / "0").returncode == 0
    done = run(2, tmp_path / "then", folder=tmp_path / "kept", resume="auto", fault=fault)
    assert done.returncode != 0
    assert "the processes differ in their checkpoint to go on from; give all of them one folder" in done.stderr
    assert "none in rank 1" in done.stderr


@pytest.mark.parametrize(
    ("fault", "text"), [("error", "rank 1 of 2 failed: ValueError: a callback's fault"), ("kill", "")]
)
def test_a_process_that_ends_takes_the_others_with_it(fault, text, tmp_path):
    begin = time.monotonic()
    done = run(2, tmp_path / "x", fault=fault)
    assert done.returncode != 0
    assert text in done.stderr
    if fault == "kill":
        assert "signal 9" in done.stdout + done.stderr
    assert time.monotonic() - begin < 60
    assert not list(tmp_path.glob("*.npz"))


def test_an_interrupt_of_one_process_stops_all_behind_the_same_step_and_is_saved(tmp_path):
    done = run(2, tmp_path / "x", folder=tmp_path / "kept", fault="interrupt", shard="optimizer")
    assert done.returncode != 0
    assert "interrupted; saved in" in done.stderr
    assert [(tmp_path / f"x.{rank}.step").read_text() for rank in range(2)] == ["3", "3"]
    assert [path.name for path in (tmp_path / "kept").glob("*.safetensors")] != []


def test_an_error_that_one_process_catches_leaves_no_other_waiting():
    done = run(2, "-", accumulate=1, fault="caught")
    assert done.returncode == 0, done.stderr
    assert "rank 0: rank 1 failed: InputError" in done.stdout
    assert "rank 0: 2 steps" in done.stdout and "rank 1: 2 steps" in done.stdout


# ---- what one process can see --------------------------------------------------------------------------


class Others:
    """Collectives of a job whose other processes do nothing."""

    rank, size, local = 1, 3, 3

    def sum(self, array):
        pass

    def gather(self, text):
        return ["another", text, text]

    def abort(self, error):
        raise error


class Sharing(Others):
    """The same, of which the state may be shared out."""

    def gather(self, text):
        return [text] * 3

    def sum_to(self, array, rank):
        pass

    def send(self, array, rank):
        pass


@pytest.mark.parametrize("samples", [1, 2, 3, 7, 64])
def test_shares_make_up_the_batch(samples):
    batch = Batch({"x": np.arange(samples), "scalar": np.array(5)}, np.arange(samples) + 100)
    found = []
    for rank in range(3):
        others = Others()
        others.rank = rank
        share, counts = share_of(others, batch)
        assert share.size >= 1
        if counts:
            found += share.arrays["x"].tolist()
            np.testing.assert_array_equal(share.indices, share.arrays["x"] + 100)
    assert found == list(range(samples))


def test_buckets_hold_all_names_in_order():
    sizes = {"a": 10, "b": BUCKET, "c": 1, "d": 2 * BUCKET, "e": 3}
    assert list(buckets(sizes)) == [("a",), ("b",), ("c",), ("d",), ("e",)]
    assert list(buckets({"a": 1, "b": 2})) == [("a", "b")]


def small():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 2))
    g.output("y", df.ops.matmul(x, g.parameter("w", np.ones((2, 2), np.float32))))
    return df.Model(g.build())


class Silent(Others):
    """Collectives of a job whose other process is alike."""

    rank, size, local = 0, 2, 2

    def gather(self, text):
        return [text, text]


def test_sums_are_shown_beside_the_steps():
    batch = {"x": np.ones((4, 2), np.float32), "labels": np.array([0, 1, 0, 1])}
    with df.Trainer(small(), parallel=Silent()) as trainer:
        trainer.step(batch)
        profile = trainer.profile(batch, rounds=1)["joint"]
        loss = trainer.step(batch)
        with pytest.raises(df.InputError, match="'w': several processes train it together, each with its own copy"):
            trainer.model.parameters["w"].set(np.ones((2, 2), np.float32))
    ((name, (begin, end)),) = profile.beside
    assert name == "sum w, 1 gradients" and 0 < begin <= end
    (event,) = [event for event in trace_events(profile) if event.get("cat") == COLLECTIVES]
    assert event["name"] == name
    assert np.isfinite(loss)


def test_what_does_not_fit_is_refused():
    with pytest.raises(df.InputError, match="the processes differ in their model"):
        df.Trainer(small(), parallel=Others())
    with pytest.raises(df.InputError, match="statistics of a complete batch"):
        df.Trainer(small(), parallel=Others(), batch_norm="update")
    with pytest.raises(df.InputError, match="lacks the methods sum_to and send"):
        df.Trainer(small(), parallel=Others(), shard="gradients")
    for given, says in (
        ({"optimizer": df.optim.ScheduleFreeAdamW()}, "ScheduleFreeAdamW keeps an average.*take another optimizer"),
        ({"average": "ema"}, "average= keeps an average.*leave it out"),
    ):
        with pytest.raises(df.InputError, match=says):
            df.Trainer(small(), parallel=Sharing(), shard="optimizer", **given)
    with pytest.raises(df.InputError, match="shard is 'weights'"):
        df.Trainer(small(), shard="weights")
    with pytest.raises(df.InputError, match="expected 'data'"):
        df.Trainer(small(), parallel="model")
    with pytest.raises(df.InputError, match="object with the collectives"):
        df.Trainer(small(), parallel=3)
