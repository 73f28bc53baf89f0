"""Outputs and figures of a model for a dataset: in batches, in the order of the samples."""

import copy

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

X = np.arange(22, dtype=np.float32).reshape(11, 2)


def model(rows="B", columns=2, more=False):
    """y = x w, and perhaps outputs without an axis of samples."""
    g = df.GraphBuilder("m")
    x = g.input("x", df.float32, (rows, columns))
    w = g.parameter("w", np.array([[1.0, 2.0], [0.5, -1.0]], np.float32))
    g.output("y", ops.matmul(x, w) if columns == 2 else ops.copy(x))
    if more:
        g.output("w2", ops.mul(w, 2.0))
        g.output("total", ops.reduce_sum(x, axes=(0, 1), keepdims=0))
    return df.Model(g.build())


def trainer(made=None):
    return df.Trainer(made or model(), "mse", devices=["numpy"])


class Samples:
    """As PyTorch's datasets."""

    def __init__(self, labelled):
        self.labelled = labelled

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return (X[index], X[index] * 0) if self.labelled else (X[index],)


@pytest.mark.parametrize(
    "data",
    [
        X,
        (X,),
        {"x": X},
        {"x": X, "labels": 3 * X},
        df.Dataset({"x": X}),
        Samples(True),
        Samples(False),
        [{"x": row} for row in X],
        lambda: ({"x": X[i : i + 3], "labels": X[i : i + 3]} for i in range(0, 11, 3)),
    ],
    ids=["array", "tuple", "dict", "labels", "dataset", "pairs", "singles", "list", "stream"],
)
def test_outputs_for_all_samples_in_batches(data):
    wanted = model()({"x": X})["y"]
    with trainer() as made:
        runs = []
        predict, made.programs.predict = made.programs.predict, lambda a: runs.append(a) or predict(a)
        found = made.predict(data, batch_size=4, progress=False)
    assert len(runs) >= 3
    np.testing.assert_array_equal(found["y"], wanted)
    session = df.Session(model(), devices=["numpy"])
    for given in (session, model()):
        np.testing.assert_array_equal(df.predict(given, data, batch_size=4, progress=False)["y"], wanted)


def test_arrays_without_a_batch_size_are_one_run():
    with trainer() as made:
        for inputs in (X, (X,), {"x": X}, X.tolist()):
            np.testing.assert_array_equal(made.predict(inputs)["y"], model()({"x": X})["y"])
        with pytest.raises(df.InputError, match="unknown inputs: labels"):
            made.predict({"x": X, "labels": X})


def test_the_order_is_that_of_the_dataset_whatever_the_batches_are(tmp_path):
    np.savez(tmp_path / "data.npz", x=X, labels=X)
    shuffled = df.Dataset({"x": X}).shuffle(3)
    order = shuffled.rows
    wanted = model()({"x": X})["y"]
    with trainer() as made:
        np.testing.assert_array_equal(made.predict(tmp_path / "data.npz", progress=False)["y"], wanted)
        np.testing.assert_array_equal(made.predict(shuffled, batch_size=3, progress=False)["y"], wanted[order])
        twice = shuffled._with(_subset=np.array([4, 0, 4]))
        np.testing.assert_array_equal(made.predict(twice, batch_size=2, progress=False)["y"], wanted[[4, 0, 4]])
        source = shuffled._source
        source.order = lambda rows, size, generator: rows[::-1]  # as that of texts by length
        np.testing.assert_array_equal(made.predict(shuffled, batch_size=3, progress=False)["y"], wanted[order])


def test_a_fixed_batch_is_filled_up():
    found = df.predict(model(rows=4), X, progress=False)
    np.testing.assert_array_equal(found["y"], model()({"x": X})["y"])
    with pytest.raises(df.InputError, match=r"batch_size is 3; the model takes .*so 4 samples at a time"):
        df.predict(model(rows=4), X, batch_size=3)


def test_outputs_without_an_axis_of_samples_are_refused():
    made = model(more=True)
    found = df.predict(made, X, outputs="y", batch_size=4, progress=False)
    assert list(found) == ["y"]
    for name in ("w2", "total"):
        with pytest.raises(df.InputError, match=f"output '{name}' is .*choose others with outputs="):
            df.predict(made, X, outputs=["y", name])
    with pytest.raises(df.InputError, match="output 'w2'"):
        df.predict(made, X)
    lengths = iter(({"x": X[:, :1]}, {"x": X}))
    with pytest.raises(df.InputError, match=r"output 'y' is \[11, 2\] for a batch and \[11, 1\] for others; pad"):
        df.predict(model(columns="T"), lengths, progress=False)
    with pytest.raises(df.ModelError, match="nowhere"):
        df.predict(made, X, outputs="nowhere")
    with trainer() as held, pytest.raises(df.InputError, match=r"\['z'\] are none of the outputs y"):
        held.predict(X, outputs="z")
    with pytest.raises(df.InputError, match="missing: 'x'"):
        df.predict(made, {"z": X}, outputs="y")
    with pytest.raises(df.InputError, match="devices can't be set"):
        df.predict(df.Session(made), X, devices=["numpy"])


def test_evaluating_changes_nothing_and_needs_nothing_to_train():
    made = model()
    with trainer(made) as held:
        held.step({"x": X, "labels": X})
        found = df.evaluate(made, {"x": X, "labels": X}, "mse", ["r2", "mae"], batch_size=4, devices=["numpy"])
        wanted = held.evaluate({"x": X, "labels": X}, batch_size=4)
        weights = made.parameters["w"].array.copy()
    y = X @ weights
    assert found["loss"] == wanted["loss"] == pytest.approx(np.mean((y - X) ** 2), rel=1e-6)
    assert found["mae"] == pytest.approx(np.mean(np.abs(y - X)), rel=1e-6)
    plain = df.evaluate(model(columns="T"), {"x": X, "labels": X}, "mae", devices=["numpy"])
    assert plain["loss"] == 0.0
    with pytest.raises(df.InputError, match="no loss 'fuzzy'"):
        df.evaluate(made, {"x": X}, "fuzzy")


@pytest.mark.parametrize("batch_size", [None, 4])
def test_predict_takes_floats_of_other_widths_as_training_does(batch_size):
    wanted, exact = model()({"x": X})["y"], X.astype(np.float64)
    with trainer() as made:
        made.evaluate({"x": exact, "labels": X})
        np.testing.assert_array_equal(made.predict({"x": exact}, batch_size=batch_size)["y"], wanted)
        np.testing.assert_array_equal(made.predict(X.astype(np.float16), batch_size=batch_size)["y"], wanted)
        with pytest.raises(df.InputError, match=r"input 'x': expected float32\[B, 2\], got.* complex64.*astype"):
            made.predict({"x": X.astype(np.complex64)}, batch_size=batch_size)
    np.testing.assert_array_equal(df.predict(model(), {"x": exact}, devices=["numpy"])["y"], wanted)


def test_a_fixed_batch_is_refused_before_any_work():
    labels = np.zeros((11, 2), np.float32)
    text = r"{}: the model takes 4 samples at a time, and 11 come in batches of {}.*load the model with"
    with trainer(model(rows=4)) as found:
        before = found.model.parameters["w"].array.copy()
        for size in (4, 32):
            with pytest.raises(df.InputError, match=text.format("fit", size)):
                found.fit({"x": X, "labels": labels}, batch_size=size, progress=False)
            with pytest.raises(df.InputError, match=text.format("evaluate", size)):
                found.evaluate({"x": X, "labels": labels}, batch_size=size)
        data = df.Dataset({"x": X, "labels": labels})
        with pytest.raises(df.InputError, match=r"leaves 3 over; give batch_size=4 and the first 8 .*take\(8\)"):
            found.evaluate(data)
        assert found.evaluate(data.take(8), batch_size=4)["loss"] >= 0  # as the message says
        with pytest.raises(df.InputError, match=r"leaves 3 over; load the model with batch='free' \(--batch free\)"):
            found.evaluate(data.take(3), batch_size=4)
        np.testing.assert_array_equal(found.model.parameters["w"].array, before)
        dataset = df.Dataset({"x": X, "labels": labels}, drop_last=True)
        found.fit(dataset, batch_size=4, progress=False)
        assert found.steps == 2
        assert found.evaluate({"x": X[:8], "labels": labels[:8]}, batch_size=4)["loss"] >= 0


def test_a_class_or_a_setting_that_is_no_callback_is_named():
    with pytest.raises(df.InputError, match=r"loss: MSE is a class; give an object of it, MSE\(\.\.\.\)"):
        df.Trainer(model(), df.losses.MSE)
    with trainer() as found, pytest.raises(df.InputError, match="EarlyStop is given as early_stop="):
        found.fit({"x": X, "labels": X}, callbacks=[df.callbacks.EarlyStop()], progress=False)


def test_a_deep_copy_is_a_copy():
    made = model()
    twin = copy.deepcopy({"model": made})["model"]
    with df.Trainer(twin, "mse", "sgd:lr=0.1", devices=["numpy"]) as found:
        found.step({"x": X, "labels": X})
    assert not np.array_equal(twin.parameters["w"].array, made.parameters["w"].array)


def test_a_step_without_samples_is_refused():
    with trainer() as found, pytest.raises(df.InputError, match="step: the batch has no samples"):
        found.step({"x": X[:0], "labels": X[:0]})


def test_a_mask_is_not_lost_in_silence():
    masked = np.ma.array(X, mask=X > 5)
    with trainer() as found:
        for given in (found.step, lambda batch: found.fit(batch, progress=False)):
            with pytest.raises(df.InputError, match=r"x.*a masked array.*give its filled\(\) values"):
                given({"x": masked, "labels": X})
        assert found.step({"x": masked.filled(0), "labels": X}) >= 0
