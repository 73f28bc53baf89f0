"""How samples are fed: changed, chosen, balanced, read ahead by threads, and all of it the same after a resume."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.train.data.balance import balanced
from tests.train.data_models import classifier


def arrays(n: int = 20) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.array([0] * (n - 5) + [1] * 3 + [2] * 2)
    return {"x": rng.normal(size=(n, 4)).astype(np.float32), "labels": labels}


class Samples:
    """Samples read one by one; some can't be read, and it is noted in which thread they are."""

    def __init__(self, n: int = 20, broken: int | None = None) -> None:
        self.arrays, self.broken = arrays(n), broken
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return len(self.arrays["x"])

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        self.threads.add(threading.get_ident())
        if row == self.broken:
            raise ValueError("truncated")
        return {key: array[row] for key, array in self.arrays.items()}


def labels_of(dataset: df.Dataset, size: int = 4, **options: object) -> list[int]:
    return [int(v) for batch in dataset.batches(size, **options) for v in batch.arrays["labels"]]


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("dataflow-data")]


def test_map_filter_take_shuffle() -> None:
    for data in (arrays(), Samples()):
        dataset = df.Dataset(data)
        assert labels_of(dataset.map(lambda s: {**s, "labels": s["labels"] * 10})) == [0] * 15 + [10] * 3 + [20] * 2
        assert labels_of(dataset.filter(lambda s: s["labels"] > 0)) == [1, 1, 1, 2, 2]
        assert len(dataset.take(3)) == 3
        assert labels_of(dataset.filter(lambda s: s["labels"] > 0).take(4).map(lambda s: s)) == [1, 1, 1, 2]
        mixed = dataset.shuffle(1)
        assert sorted(labels_of(mixed)) == labels_of(dataset) != labels_of(mixed)
        assert labels_of(mixed) == labels_of(dataset.shuffle(1)) != labels_of(dataset.shuffle(2))


def test_map_filter_take_of_ready_batches() -> None:
    dataset = df.Dataset(lambda: ({"labels": np.full(2, i)} for i in range(6)))
    doubled = dataset.map(lambda b: {"labels": b["labels"] * 2}).filter(lambda b: b["labels"][0] > 2).take(3)
    assert labels_of(doubled) == [4, 4, 6, 6, 8, 8]
    assert labels_of(doubled, start=1) == [6, 6, 8, 8]
    with pytest.raises(df.InputError, match="shuffle what it reads"):
        dataset.shuffle()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: 3, "gave int for sample 0; expected a dict"),
        (lambda s: 1 / 0, "sample 0 can't be read: ZeroDivisionError"),
        (lambda s: {"x": np.ones(1 + int(s["labels"]))}, "'x' of sample 15 has another shape"),
    ],
)
def test_functions_that_fail_say_for_which_sample(change: object, says: str) -> None:
    with pytest.raises(df.InputError, match=says):
        list(df.Dataset(arrays()).map(change).batches(20))
    with pytest.raises(df.InputError, match=r"Dataset\.map: 3 can't be called"):
        df.Dataset(arrays()).map(3)
    with pytest.raises(df.InputError, match="leaves no samples"):
        df.Dataset(arrays()).filter(lambda _: False)


def test_balance_draws_each_class_equally_often() -> None:
    dataset = df.Dataset(arrays(), balance="labels")
    labels = labels_of(dataset, shuffle=True, training=True, seed=3)
    assert len(labels) == 20
    assert sorted(np.bincount(labels)) == [6, 7, 7]
    assert labels == labels_of(dataset, shuffle=True, training=True, seed=3)
    assert labels != labels_of(dataset, shuffle=True, training=True, seed=3, epoch=1)
    assert labels_of(dataset, shuffle=True, training=True, seed=3, start=2) == labels[8:]
    assert labels_of(dataset) == arrays()["labels"].tolist()
    mapped = dataset.map(lambda s: {**s, "labels": s["labels"] + 5})
    assert labels_of(mapped, shuffle=True, training=True, seed=3) == [label + 5 for label in labels]
    counted = np.bincount(balanced(np.arange(20), arrays()["labels"], np.random.default_rng(0)), minlength=20)
    assert set(counted[:15]) == {0, 1}
    assert set(counted[15:18]) <= {2, 3}
    assert set(counted[18:]) <= {3, 4}


def test_balance_needs_classes() -> None:
    options = {"shuffle": True, "training": True}
    with pytest.raises(df.InputError, match="the labels are float64"):
        list(df.Dataset({"labels": np.zeros(4)}, balance="labels").batches(2, **options))
    with pytest.raises(df.InputError, match="balance='y': no entry of that name"):
        list(df.Dataset(arrays(), balance="y").batches(2, **options))
    with pytest.raises(df.InputError, match="balance needs shuffle=True"):
        list(df.Dataset(arrays(), balance="labels").batches(2, training=True))
    with pytest.raises(df.InputError, match="not an iterable"):
        df.Dataset(lambda: iter(()), balance="labels")


def test_drop_last_is_of_training_alone() -> None:
    dataset = df.Dataset(arrays(10), drop_last=True)
    assert [b.size for b in dataset.batches(4, training=True)] == [4, 4]
    assert [b.size for b in dataset.batches(4)] == [4, 4, 2]
    assert (dataset.count(4, training=True), dataset.count(4)) == (2, 3)


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_change_nothing_and_end(workers: int) -> None:
    samples = Samples()
    options = {"seed": 1, "shuffle": True, "training": True}
    plain = [b.arrays for b in df.Dataset(Samples()).batches(3, **options)]
    found = [b.arrays for b in df.Dataset(samples, workers=workers).batches(3, **options)]
    for one, other in zip(plain, found, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
    assert threading.get_ident() not in samples.threads
    assert readers() == []


def test_what_a_thread_raises_says_which_sample_and_ends_the_threads() -> None:
    batches = df.Dataset(Samples(broken=9), workers=2).batches(4)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(df.InputError, match="sample 9 can't be read: ValueError: truncated"):
        next(batches)
    assert readers() == []


def test_an_iterator_that_is_left_ends_its_threads() -> None:
    batches = df.Dataset(Samples(), workers=2, prefetch=4).batches(1)
    next(batches)
    assert readers()
    batches.close()
    assert readers() == []


def test_a_stream_is_read_ahead_by_one_thread() -> None:
    read: list[int] = []

    def stream() -> Iterator[dict[str, np.ndarray]]:
        for i in range(6):
            read.append(threading.get_ident())
            yield {"labels": np.full(2, i)}

    dataset = df.Dataset(stream, workers=4, prefetch=2)
    assert labels_of(dataset, 2, start=1) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(set(read)) == 1
    assert threading.get_ident() not in read
    batches = dataset.batches(2)
    next(batches)
    batches.close()
    assert readers() == []


@pytest.mark.parametrize("how", ["stop", "interrupt", "error"])
def test_a_run_that_ends_early_leaves_no_threads(how: str) -> None:
    def end(event: object) -> None:
        if how == "stop":
            event.stop()
        else:
            raise KeyboardInterrupt if how == "interrupt" else RuntimeError("mine")

    expected = {"interrupt": KeyboardInterrupt, "error": RuntimeError}.get(how)
    with df.Trainer(classifier(), devices=["numpy"]) as trainer:
        with nullcontext() if expected is None else pytest.raises(expected):
            trainer.fit(df.Dataset(Samples(), workers=2), batch_size=2, epochs=3, callbacks=[end], progress=False)
        assert trainer.steps == 1
        assert readers() == []


def test_a_run_with_all_of_it_resumes_within_an_epoch_to_the_same_bits(tmp_path: Path) -> None:
    def run(**options: object) -> np.ndarray:
        data = df.Dataset(Samples(), workers=2, drop_last=True).map(lambda s: {**s, "x": s["x"] * 2})
        model = classifier()
        with df.Trainer(model, devices=["numpy"], seed=4) as trainer:
            trainer.fit(data, batch_size=3, epochs=2, progress=False, **options)
        return np.array(model.parameters["w"].array)

    def stop(event: object) -> None:
        if event.kind == "step" and event.step == 8:
            event.stop()

    straight = run()
    run(checkpoint=tmp_path, every=8, callbacks=[stop])
    np.testing.assert_array_equal(run(checkpoint=tmp_path, resume="auto"), straight)


class IterableDataset:
    """As PyTorch's and Hugging Face's: single samples, known by the name of the class."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        return ((np.full(4, i, np.float32), i) for i in range(self.n))


class Loader:
    """As PyTorch's DataLoader: ready batches and a length, but no samples by number."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return iter([[np.ones((2, 4), np.float32), np.array([0, 1])]] * 3)


def test_iterable_datasets_give_samples_and_loaders_batches() -> None:
    dataset = df.Dataset(IterableDataset(7), keys=("x", "labels"))
    assert [b.arrays["labels"].tolist() for b in dataset.batches(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    dropping = df.Dataset(IterableDataset(7), keys=("x", "labels"), drop_last=True)
    assert [b.size for b in dropping.batches(3, training=True, start=1)] == [3]
    assert dataset.count(3) is None
    samples = df.Dataset(lambda: iter([{"labels": 1}, {"labels": 2}, {"labels": 3}]), samples=True)
    assert [b.arrays["labels"].tolist() for b in samples.batches(2)] == [[1, 2], [3]]
    loader = df.Dataset(Loader())
    assert loader.count(99) == 3
    with df.Trainer(classifier(), devices=["numpy"], optimizer="sgd") as trainer:
        trainer.fit(loader, epochs=2, progress=False)
        assert trainer.steps == 6


def test_folders_of_npy_files_are_memory_maps(tmp_path: Path) -> None:
    for key, array in arrays().items():
        np.save(tmp_path / f"{key}.npy", array)
    dataset = df.Dataset(tmp_path)
    assert labels_of(dataset) == arrays()["labels"].tolist()
    unbalanced = b"\x93NUMPY\x01\x00\x20\x00{'shape': (3, 'descr': '<f4'       \n"  # a TokenError of Python's parser
    for wrong in (b"\x93NUMPY\x01\x00 truncated", unbalanced):
        (tmp_path / "x.npy").write_bytes(wrong)
        with pytest.raises(df.InputError, match=r"x\.npy: can't be mapped into memory"):
            df.Dataset(tmp_path)


def test_options_of_feeding_are_checked() -> None:
    for options in ({"workers": -1}, {"prefetch": 0}, {"drop_last": 1}, {"balance": 3}):
        with pytest.raises(df.InputError, match=next(iter(options))):
            df.Dataset(arrays(), **options)
