from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dataflow import InputError
from dataflow.train.data.batch import Request
from dataflow.train.data.dataset import Dataset


def arrays(n: int = 10) -> dict[str, np.ndarray]:
    return {"x": np.arange(n * 2, dtype=np.float32).reshape(n, 2), "labels": np.arange(n)}


def all_labels(dataset: Dataset, size: int = 3, **options: object) -> list[int]:
    return [int(v) for batch in dataset.batches(size, **options) for v in batch.arrays["labels"]]


def test_batches_in_order_with_a_short_last_one() -> None:
    batches = list(Dataset(arrays()).batches(4))
    assert [b.size for b in batches] == [4, 4, 2]
    assert batches[1].indices.tolist() == [4, 5, 6, 7]
    np.testing.assert_array_equal(batches[2].arrays["x"], arrays()["x"][8:])


def test_shuffle_depends_on_seed_and_epoch_alone() -> None:
    dataset = Dataset(arrays(50))
    first = all_labels(dataset, seed=1, epoch=0, shuffle=True)
    assert first == all_labels(Dataset(arrays(50)), seed=1, epoch=0, shuffle=True)
    assert sorted(first) == list(range(50))
    assert first != list(range(50))
    assert first != all_labels(dataset, seed=1, epoch=1, shuffle=True)
    assert first != all_labels(dataset, seed=2, epoch=0, shuffle=True)


def test_start_skips_complete_batches_of_the_same_order() -> None:
    dataset = Dataset(arrays(11))
    every = all_labels(dataset, seed=3, epoch=2, shuffle=True)
    assert all_labels(dataset, seed=3, epoch=2, shuffle=True, start=2) == every[6:]


def test_x_and_labels_stay_together() -> None:
    for batch in Dataset(arrays(20)).batches(3, shuffle=True):
        np.testing.assert_array_equal(batch.arrays["x"][:, 0], 2 * batch.arrays["labels"])
        np.testing.assert_array_equal(batch.indices, batch.arrays["labels"])


def test_split_is_random_disjoint_and_by_seed() -> None:
    dataset = Dataset(arrays(40))
    train, held = dataset.split(0.25, seed=5)
    assert len(train) == 30
    assert len(held) == 10
    assert sorted(all_labels(train) + all_labels(held)) == list(range(40))
    assert all_labels(held) != list(range(10))
    assert all_labels(dataset.split(0.25, seed=5)[1]) == all_labels(held)
    assert all_labels(dataset.split(0.25, seed=6)[1]) != all_labels(held)


def test_a_split_is_shuffled_within_itself() -> None:
    train, held = Dataset(arrays(40)).split(0.25, seed=5)
    assert sorted(all_labels(train, shuffle=True)) == all_labels(train)
    assert held.count(3) == 4


@pytest.mark.parametrize("fraction", [1.0, 0.01, -0.5])
def test_a_split_with_an_empty_side_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="leaves one side empty"):
        Dataset(arrays()).split(fraction, seed=0)


def test_npz_and_memory_map(tmp_path: object) -> None:
    path = f"{tmp_path}/d.npz"
    np.savez(path, **arrays())
    assert all_labels(Dataset(path)) == list(range(10))
    np.save(f"{tmp_path}/x.npy", arrays()["x"])
    mapped = np.load(f"{tmp_path}/x.npy", mmap_mode="r")
    batch = next(iter(Dataset({"x": mapped, "labels": np.arange(10)}).batches(4, start=1)))
    np.testing.assert_array_equal(batch.arrays["x"], arrays()["x"][4:8])


def test_a_file_that_is_no_npz_is_refused_with_its_name(tmp_path: object) -> None:
    path = f"{tmp_path}/d.npz"
    for wrong in (b"not a zip", b"PK\x03\x04 truncated", b""):
        Path(path).write_bytes(wrong)
        with pytest.raises(InputError, match=r"d\.npz"):
            Dataset(path)
    np.save(f"{tmp_path}/one.npy", np.zeros(3))
    with pytest.raises(InputError, match="without a name"):
        Dataset(f"{tmp_path}/one.npy")


class Samples:
    def __init__(self, as_tuple: bool) -> None:
        self.as_tuple = as_tuple

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> object:
        x, y = [float(index), 1.0], index
        return (x, y) if self.as_tuple else {"x": x, "labels": y}


def test_samples_as_dicts_and_tuples() -> None:
    for dataset in (Dataset(Samples(False)), Dataset(Samples(True), keys=("x", "labels"))):
        batches = list(dataset.batches(2))
        assert [b.arrays["x"].shape for b in batches] == [(2, 2), (2, 2), (1, 2)]
        assert all_labels(dataset) == list(range(5))
    assert all_labels(Dataset(Samples(True)).bound(Request({}, ("x", "labels")))) == list(range(5))
    with pytest.raises(InputError, match="tuples of 2, but knows 1 names"):
        list(Dataset(Samples(True)).bound(Request({}, ("x",))).batches(2))


def test_samples_of_several_shapes_are_refused_with_the_sample() -> None:
    ragged = [{"x": [0.0] * (1 + (i == 3)), "labels": i} for i in range(5)]
    with pytest.raises(InputError, match="'x' of sample 3 has another shape"):
        list(Dataset(ragged).batches(5))


def test_many_samples_are_read_at_once_where_the_data_can() -> None:
    class Fast(Samples):
        def __getitems__(self, rows: list[int]) -> list[object]:
            return [{"x": [0.0], "labels": 100 + r} for r in rows]

    assert all_labels(Dataset(Fast(False))) == [100, 101, 102, 103, 104]


def test_arrays_by_to_numpy_and_dunder_array() -> None:
    class Column:
        def to_numpy(self) -> np.ndarray:
            return np.arange(4)

    class Tensor:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.ones((4, 2), np.float32)

    class Broken:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            raise RuntimeError("lives elsewhere")

    dataset = Dataset({"x": Tensor(), "labels": Column()})
    assert all_labels(dataset) == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"data\['x'\].*lives elsewhere"):
        Dataset({"x": Broken()})


def test_iterables_of_batches() -> None:
    ready = [(np.ones((2, 2)), np.array([0, 1])), (np.ones((1, 2)), np.array([2]))]
    dataset = Dataset(lambda: iter(ready), keys=("x", "labels"))
    assert dataset.length is None
    assert all_labels(dataset) == [0, 1, 2]
    assert all_labels(dataset, start=1) == [2]
    once = Dataset(iter(ready), keys=("x", "labels"))
    assert all_labels(once) == [0, 1, 2]
    with pytest.raises(InputError, match="function that makes an iterator"):
        all_labels(once)
    with pytest.raises(InputError, match="validation="):
        dataset.split(0.5, seed=0)


def test_rename_and_drop() -> None:
    dataset = Dataset({"x": np.zeros(3), "y": np.arange(3), "idx": np.arange(3)}, rename={"y": "labels", "idx": None})
    assert dataset.keys() == ("x", "labels")
    with pytest.raises(InputError, match=r"rename has \['z'\]"):
        Dataset({"x": np.zeros(3)}, rename={"z": "labels"})
    with pytest.raises(InputError, match="two entries are called 'x'"):
        Dataset({"x": np.zeros(3), "y": np.zeros(3)}, rename={"y": "x"})


def test_missing_and_unknown_keys_are_listed_together() -> None:
    dataset = Dataset({"image": np.zeros(3), "target": np.zeros(3)})
    with pytest.raises(InputError, match=r"missing: 'x', 'labels'; unknown: 'image', 'target'.*rename"):
        dataset.check_keys(("x", "labels"), ("sample_weight",))
    Dataset({**arrays(), "sample_weight": np.ones(10)}).check_keys(("x", "labels"), ("sample_weight",))


def test_lengths_must_agree() -> None:
    with pytest.raises(InputError, match="'x' has 3, 'labels' has 4"):
        Dataset({"x": np.zeros(3), "labels": np.zeros(4)})
    with pytest.raises(InputError, match="no samples"):
        Dataset({"x": np.zeros((0, 2))})
    with pytest.raises(InputError, match="no axis of samples"):
        Dataset({"x": np.zeros(3), "labels": np.float32(1)})


def test_nan_in_labels_names_the_sample() -> None:
    labels = np.zeros((30, 2), np.float32)
    labels[17, 1] = np.nan
    dataset = Dataset({"x": np.zeros(30), "labels": labels})
    with pytest.raises(InputError, match="'labels' of sample 17 is NaN"):
        dataset.refuse_nan(("labels",))
    Dataset({"x": np.full(30, np.nan), "labels": np.zeros(30)}).refuse_nan(("labels",))


@pytest.mark.parametrize("data", [3, None, np.zeros(3)])
def test_what_is_no_data_is_refused(data: object) -> None:
    with pytest.raises(InputError, match="Dataset"):
        Dataset(data)


class Broken:
    """Samples, the fourth of which can't be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if index == 3:
            raise self.error
        return {"x": np.ones(2, np.float32)}


def test_what_reading_raises_says_where() -> None:
    with pytest.raises(InputError, match="sample 3 can't be read: ZeroDivisionError: oops"):
        list(Dataset(Broken(ZeroDivisionError("oops"))).batches(2))
    with pytest.raises(FileNotFoundError):
        list(Dataset(Broken(FileNotFoundError("3.png"))).batches(2))

    def stream():
        yield {"x": np.ones((2, 2))}
        raise RuntimeError("lost")

    with pytest.raises(InputError, match="batch 1 can't be read: RuntimeError: lost"):
        list(Dataset(stream).batches(2))
    with pytest.raises(InputError, match="the function gave int; expected an iterable"):
        list(Dataset(lambda: 3).batches(2))
