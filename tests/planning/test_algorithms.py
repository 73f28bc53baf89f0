"""Which algorithm a kernel uses: avoided by name, timed and kept, taken over from a checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.errors import InputError
from dataflow.execute import autotune
from dataflow.ir.plan import Plan
from dataflow.planning.verify import check_plan


def planes(seed: int = 0) -> tuple[df.Model, dict[str, np.ndarray]]:
    """Two convolutions that several algorithms take, and their input."""
    random = np.random.default_rng(seed)
    g = df.GraphBuilder("planes")
    x = g.input("x", df.float32, (4, 24, 30, 30))
    w = g.parameter("w", random.standard_normal((32, 24, 3, 3)).astype(np.float32))
    v = g.parameter("v", random.standard_normal((32, 32, 1, 1)).astype(np.float32))
    y = ops.conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
    g.output("y", ops.conv(y, v, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1))
    return df.Model(g.build()), {"x": random.standard_normal((4, 24, 30, 30)).astype(np.float32)}


def algorithms(session: df.Session, feeds: dict[str, np.ndarray]) -> list[str]:
    """The last word of the kernels of the convolutions."""
    return [step.kernel.split()[-1] for step in session.profile(feeds, rounds=1).steps if step.op.startswith("conv")]


def reference(model: df.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return df.Session(model, ["numpy"]).run(feeds)["y"]


def error(model: df.Model, feeds: dict[str, np.ndarray], **how: object) -> float:
    y = df.Session(model, ["cpu"], **how).run(feeds)["y"]  # type: ignore[arg-type]
    expected = reference(model, feeds)
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def test_the_kernel_says_what_it_goes_by() -> None:
    model, feeds = planes()
    assert algorithms(df.Session(model, ["cpu"]), feeds) == ["winograd", "pointwise"]


def test_taps_that_are_far_apart_are_not_read_by_splitting_the_rows_between_them() -> None:
    """Each row of the output would split 103 rows for the seven that it reads: eight times as slow as others."""
    found = {}
    for dilation in (1, 17):
        g = df.GraphBuilder("far")
        x, pad = g.input("x", df.float32, (1, 12, 128, 24)), 3 * dilation
        w = g.parameter("w", np.ones((20, 12, 7, 1), np.float32))
        g.output("y", ops.conv(x, w, strides=(1, 1), pads=(pad, 0, pad, 0), dilations=(dilation, 1), groups=1))
        feeds = {"x": np.ones((1, 12, 128, 24), np.float32)}
        (found[dilation],) = algorithms(df.Session(df.Model(g.build()), ["cpu"]), feeds)
    assert found[1] == "few_channels"
    assert found[17] != "few_channels"


def test_what_is_avoided_is_not_used_where_there_is_another() -> None:
    model, feeds = planes()
    found = df.Algorithms(avoid="winograd")
    assert "winograd" not in algorithms(df.Session(model, ["cpu"], algorithms=found), feeds)
    assert error(model, feeds, algorithms=found) < 1e-6
    everything = df.Algorithms(avoid=["winograd", "pointwise", "few_channels", "padded", "direct", "shifted"])
    assert algorithms(df.Session(model, ["cpu"], algorithms=everything), feeds) == ["winograd", "pointwise"]


@pytest.mark.parametrize("name", ["winograd", "pointwise", "few_channels", "padded", "direct", "shifted"])
def test_every_algorithm_computes_the_same(name: str) -> None:
    model, feeds = planes()
    found = df.Algorithms(avoid={"winograd", "pointwise", "few_channels", "padded", "direct", "shifted"} - {name})
    assert name in algorithms(df.Session(model, ["cpu"], algorithms=found), feeds)
    assert error(model, feeds, algorithms=found) < 2e-6


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("avoid", [(), ("winograd",), ("winograd", "pointwise"), ("winograd", "pointwise", "direct")])
def test_gradients_go_by_what_is_left(strides: tuple[int, int], avoid: tuple[str, ...]) -> None:
    random = np.random.default_rng(1)
    g = df.GraphBuilder("gradient")
    dy = g.input("dy", df.float32, (3, 32, 20 // strides[0], 20 // strides[1]))
    w = g.parameter("w", random.standard_normal((32, 24, 3, 3)).astype(np.float32))
    window = {"strides": strides, "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    g.output("y", ops.conv_grad_input(dy, w, input_shape=(3, 24, 20, 20), **window))
    model = df.Model(g.build())
    feeds = {"dy": random.standard_normal(dy.type.sizes).astype(np.float32)}
    found = df.Algorithms(avoid=avoid)
    assert not {*avoid} & {*algorithms(df.Session(model, ["cpu"], algorithms=found), feeds)}
    assert error(model, feeds, algorithms=found) < 2e-6


def test_what_was_timed_is_kept_and_not_timed_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, feeds = planes()
    file = tmp_path / "algorithms.json"
    with caplog.at_level(logging.INFO, "dataflow"):
        first = df.Session(model, ["cpu"], algorithms=df.Algorithms(file))
        y = first.run(feeds)["y"]
        assert sum("timed conv" in r.message for r in caplog.records) == 2
        caplog.clear()
        again = df.Algorithms(file)
        assert np.array_equal(df.Session(model, ["cpu"], algorithms=again).run(feeds)["y"], y)
        assert not caplog.records
    (nodes,) = json.loads(file.read_text())["machines"].values()
    assert len(nodes) == len(again.used) == 2
    for key, seconds in nodes.items():
        assert again.used[key] in seconds
        assert all(s > 0 for s in seconds.values())


def test_every_algorithm_is_timed_with_its_weight_constant_and_prepacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[Plan] = []

    class Recorded(autotune.Program):
        def __init__(self, plan: Plan, *rest: object) -> None:
            timed.append(plan)
            super().__init__(plan, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(autotune, "Program", Recorded)
    model, feeds = planes()
    df.Session(model, ["cpu"], algorithms=df.Algorithms(tmp_path / "algorithms.json")).run(feeds)
    assert len(timed) > 3
    for plan in timed:
        check_plan(plan)
        (weight,) = plan.stored.values()
        assert plan.arenas[weight.arena].kind in ("weights", "source")
        (step,) = plan.segments[0].steps
        assert all(operand is not None for operand in step.prepacks)
        assert len(step.prepacks) == len(step.prepared.prepacks)


def test_the_file_decides(tmp_path: Path) -> None:
    model, feeds = planes()
    file = tmp_path / "algorithms.json"
    df.Session(model, ["cpu"], algorithms=df.Algorithms(file)).run(feeds)
    data = json.loads(file.read_text())
    for nodes in data["machines"].values():
        for seconds in nodes.values():
            seconds["direct"] = min(seconds.values()) / 2
    file.write_text(json.dumps(data))
    found = df.Algorithms(file)
    assert algorithms(df.Session(model, ["cpu"], algorithms=found), feeds) == ["direct", "direct"]
    assert set(found.used.values()) == {"direct"}
    assert found.fingerprint != df.Algorithms().fingerprint


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "null", '{"format": "other", "machines": {}}',
        '{"format": "dataflow algorithms 1", "machines": {"m": {"n": {"direct": "x"}}}}',
        '{"format": "dataflow algorithms 1", "machines": [1]}',
    ],
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "algorithms.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"algorithms\.json"):
        df.Algorithms(file)


def test_a_resumed_run_goes_by_the_checkpoints_algorithms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, feeds = planes()
    random = np.random.default_rng(3)
    data = df.Dataset({"x": np.repeat(feeds["x"], 2, 0), "labels": random.standard_normal((8, 32, 30, 30), np.float32)})

    def trained(resume: bool, algorithms: df.Algorithms, epochs: int) -> np.ndarray:
        fresh, _ = planes()
        trainer = df.Trainer(fresh, "mse", devices=["cpu"], metrics=[], algorithms=algorithms)
        how = {"checkpoint": tmp_path, "resume": "auto" if resume else None}
        trainer.fit(data, epochs=epochs, batch_size=4, **how)  # type: ignore[arg-type]
        trainer.close()
        return fresh.parameters["w"].array

    plain = df.Algorithms(avoid="winograd")
    expected = trained(False, plain, 2)
    assert set(plain.used.values()) <= {"direct", "padded", "pointwise", "few_channels", "shifted"}
    for path in tmp_path.iterdir():
        path.unlink()
    trained(False, df.Algorithms(avoid="winograd"), 1)
    own = df.Algorithms()
    assert np.array_equal(trained(True, own, 2), expected)
    assert own.used == plain.used
    late = df.Algorithms()
    late._used = dict.fromkeys(plain.used, "winograd")
    with caplog.at_level(logging.WARNING, "dataflow"):
        trained(True, late, 3)
    assert any("other algorithms" in r.message for r in caplog.records)
