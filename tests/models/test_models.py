"""Families of models as PyTorch's two exporters write them: run, trained, and on a forced mix of devices."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import dataflow as df
from dataflow.cdevice.host_memory import allocated
from tests.models import data as made

FOLDER = Path(__file__).parent

OPTIMIZER = df.optim.AdamW(lr=3e-3, weight_decay=0.01, no_decay=())
FILES = [f"{family}{end}" for family in made.FAMILIES for end in ("", "_script")]


def family_of(file):
    return file.removesuffix("_script")


def recorded(file):
    with np.load(FOLDER / f"{family_of(file)}.npz") as data:
        return {key: data[key] for key in data.files}


def path_of(file):
    return str(FOLDER / f"{file}.onnx")


@pytest.mark.parametrize("file", FILES)
def test_outputs_are_as_near_to_float64_as_those_of_onnxruntime(file):
    data = recorded(file)
    engine = onnxruntime.InferenceSession(path_of(file), providers=["CPUExecutionProvider"])
    session = df.Session(df.load(path_of(file)), devices=["cpu"], fallback="error")
    for index, probe in enumerate(made.probes(family_of(file))):
        exact = data[f"outputs{index}"]
        (theirs,) = engine.run(None, probe)
        (ours,) = session.run(probe).values()
        rounding = np.finfo(np.float32).eps * np.abs(exact).max()
        allowed = 4 * max(np.abs(theirs - exact).max(), rounding)
        assert ours.shape == exact.shape
        assert np.abs(ours - exact).max() <= allowed
        outputs = np.concatenate([data["outputs0"].ravel(), data["outputs1"].ravel()])
        assert np.ptp(outputs) > 100 * allowed  # what is compared can differ
        nodes = session.placement({k: v.shape for k, v in probe.items()})
        assert {p.device for p in nodes} == {"cpu"}
        plan = session.plan({k: v.shape for k, v in probe.items()})
        assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes


def train(file, *, steps=made.STEPS, devices=("cpu",), registry=None, scale=None, **options):
    """Losses, first gradients by parameter of PyTorch, and the trainer's plans; ``scale`` falsifies one gradient."""
    data = recorded(file)
    model = df.load(path_of(file))
    loss = "mse" if family_of(file) == "regression" else "cross_entropy"
    losses, gradients = [], {}
    rows = data["script_names" if file.endswith("_script") else "names"]
    with df.Trainer(
        model, loss=loss, optimizer=OPTIMIZER, devices=list(devices), registry=registry, **options
    ) as trainer:
        for batch in made.batches(family_of(file))[:steps]:
            losses.append(trainer.step(batch))
            if not gradients:
                own = {n: g / trainer.gradient_weight for n, g in trainer.programs.gradients().items()}
                if scale is not None:
                    own[trainer.trainable[scale]] *= np.float32(1.05)
                for name, initializer, transposed in rows:
                    if initializer in own:
                        gradients[name] = own[initializer].T if transposed == "1" else own[initializer]
        plans = trainer.programs.plans()
    return np.array(losses), gradients, plans, model


def deviations(file, losses, gradients):
    """The largest relative deviations of losses and of gradients."""
    data = recorded(file)
    wanted = data["losses"][: len(losses)]
    expected = {k.removeprefix("gradient/"): g for k, g in data.items() if k.startswith("gradient/")}
    assert set(gradients) == set(expected)
    # a gradient that is zero in exact arithmetic (a bias before a norm) is compared with the others' size
    typical = np.median([np.linalg.norm(g) for g in expected.values()])
    errors = {
        n: np.linalg.norm(gradients[n].reshape(g.shape) - g) / max(np.linalg.norm(g), 1e-3 * typical)
        for n, g in expected.items()
    }
    return np.max(np.abs(losses - wanted) / wanted), max(errors.values())


@pytest.mark.parametrize("file", FILES)
def test_training_follows_pytorch(file):
    losses, gradients, plans, _ = train(file)
    loss, gradient = deviations(file, losses, gradients)
    assert losses[-1] < 0.8 * losses[0]
    assert loss < 1e-3
    assert gradient < 1e-4
    for name, plan in plans.items():
        assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes, name
        assert {s.device for s in plan.segments} == {"cpu"}, name


@pytest.mark.parametrize("family", made.FAMILIES)
def test_the_comparison_sees_one_gradient_scaled_by_a_twentieth(family):
    losses, gradients, _, _ = train(family, steps=1, scale=-1)
    _, gradient = deviations(family, losses, gradients)
    assert gradient > 1e-4


@pytest.mark.parametrize("third", [0, 1, 2])
@pytest.mark.parametrize("family", made.FAMILIES)
def test_a_forced_mix_of_devices_gives_the_same(family, third, refusing):
    file = family + ("_script" if third == 1 else "")
    registry = refusing(third)
    losses, gradients, plans, _ = train(file, steps=6, devices=["cpu", "numpy"], registry=registry)
    loss, gradient = deviations(file, losses, gradients)
    assert loss < 1e-3
    assert gradient < 1e-4
    assert {s.device for s in plans["step"].segments} == {"cpu", "numpy"}


@pytest.mark.parametrize("family", ["vit", "bert", "gpt", "mobile"])
def test_a_device_with_its_own_memory_runs_nodes(family, remote):
    losses, gradients, _, _ = train(family, steps=4, devices=["remote", "cpu"], registry=remote)
    loss, gradient = deviations(family, losses, gradients)
    assert loss < 1e-3
    assert gradient < 1e-4


@pytest.mark.parametrize("file", ["gpt", "gpt_script"])
def test_a_tied_embedding_trains_as_one_and_is_saved_everywhere(file, tmp_path):
    _, _, _, model = train(file, steps=3)
    rows = recorded(file)["script_names" if file.endswith("_script") else "names"]
    copies = [(own, transposed) for name, own, transposed in rows if name == "words.weight"]
    assert len(copies) == 2  # the exporter wrote it twice
    tuned = str(tmp_path / "tuned.onnx")
    df.save(model, tuned)
    start, end = df.load(path_of(file)), df.load(tuned)
    first, second = (end.parameters[own].array for own, _ in copies)
    transposed = copies[0][1] != copies[1][1]
    np.testing.assert_array_equal(first, second.T if transposed else second)
    assert not np.array_equal(first, start.parameters[copies[0][0]].array)
    (probe, _) = made.probes("gpt")
    (theirs,) = onnxruntime.InferenceSession(tuned).run(None, probe)
    np.testing.assert_allclose(df.Session(end).run(probe)["y"], theirs, rtol=1e-4, atol=1e-5)


def test_tied_weights_can_be_trained_apart():
    model = df.load(path_of("gpt"))
    with df.Trainer(model, devices=["cpu"], tie=False) as apart, df.Trainer(model.copy(), devices=["cpu"]) as together:
        assert not apart.ties
        assert len(apart.trainable) == len(together.trainable) + 1
        assert "with" in together.described()


def unrolled(copied, bias):
    """Two steps of a recurrence that begins with zeros; ``copied``: the first product was computed by an exporter."""
    g = df.GraphBuilder()
    weight = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)
    x, w, b = g.input("x", df.float32, (2, 2, 3)), g.parameter("w", weight), g.parameter("b", bias)
    first = g.parameter("first", np.tile(bias, (1, 2, 1))) if copied else b
    state = df.ops.tanh(df.ops.add(df.ops.slice(x, starts=(0, 0, 0), stops=(1, 2, 3), steps=(1, 1, 1)), first))
    more = df.ops.add(df.ops.matmul(state, w), b)
    g.output("y", df.ops.tanh(df.ops.add(df.ops.slice(x, starts=(1, 0, 0), stops=(2, 2, 3), steps=(1, 1, 1)), more)))
    return df.Model(g.build())


def test_a_bias_that_an_exporter_repeated_for_each_sample_trains_as_one(tmp_path):
    random = np.random.default_rng(4)
    bias = random.standard_normal(3).astype(np.float32)
    batch = {"x": random.standard_normal((2, 2, 3)).astype(np.float32), "labels": np.ones((1, 2, 3), np.float32)}
    models, losses = [unrolled(copied, bias) for copied in (True, False)], []
    for model in models:
        with df.Trainer(model, "mse", df.optim.SGD(lr=0.1), devices=["cpu"], tie=True) as trainer:
            losses.append([trainer.step(batch) for _ in range(3)])
    copied, one = models
    np.testing.assert_allclose(*losses, rtol=1e-6)
    np.testing.assert_allclose(copied.parameters["b"].array, one.parameters["b"].array, rtol=1e-6)
    df.save(copied, str(tmp_path / "tuned.onnx"))
    saved = df.load(str(tmp_path / "tuned.onnx")).parameters["first"].array
    np.testing.assert_array_equal(saved, np.tile(copied.parameters["b"].array, (1, 2, 1)))
    assert not np.array_equal(saved[0, 0], bias)


def test_two_hundred_lengths_leave_memory_bounded():
    """Constants that depend on a length, like its causal mask, are freed with the plans that read them."""
    random = np.random.default_rng(0)
    session = df.Session(df.load(path_of("gpt")), devices=["cpu"], plans=4)
    before, largest = allocated()[0], 0
    for _ in range(200):
        x = random.integers(0, made.WORDS, (int(random.integers(1, 9)), int(random.integers(2, 33))))
        session.run(x)
        plan = session.plan(x.shape)
        largest = max(largest, sum(a.bytes for a in plan.arenas if a.kind not in ("input", "output")))
    assert allocated()[0] - before <= 4 * largest


@pytest.mark.parametrize("file", ["vit_scopes", "vit_script"])
def test_unreadable_names_have_aliases_by_module(file):
    model = df.load(path_of(file))
    (name,) = [n for n, p in model.parameters.items() if "layers.1.fc1.weight" in p.aliases]
    assert not name.startswith("layers")  # the exporter transposed it and lost the name
    with df.Trainer(model, trainable=["layers.1.*"], devices=["cpu"]) as trainer:
        assert name in trainer.trainable
        assert len(trainer.trainable) == 12
