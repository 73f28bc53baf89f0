"""Batches of any length: after some lengths the others are planned at once, with the results of plans of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow import ops
from dataflow.engine import Engine
from dataflow.execute.series import SeriesBound, SeriesProgram
from dataflow.ir.series import Line, NotInSeries, line_through
from dataflow.lower.templates import Templates
from dataflow.planning import memory_goal as goals
from dataflow.train.binding import series
from dataflow.train.binding.series import BatchSeries

WIDTH, WORDS = 16, 24
LOSS = df.losses.CrossEntropy(axis=2)
TEXT = """<ir_version: 9, opset_import: ["" : 20]>
words (int64[batch, length] ids) => (float[batch, length, 24] logits)
    <float[24, 16] table = {%s}, float[16, 24] head = {%s}>
{
    x = Gather(table, ids)
    shape = Shape(ids)
    index = Constant<value_int = 1>()
    none = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    count = Gather(shape, index)
    at = Range(none, count, step)
    READ
    y0 = Add(x, places)
    y = Gelu(y0)
    logits = MatMul(y, head)
}
"""
READS = {
    "rows of a table": """words = Constant<value_int = 24>()
    rows = Mod(at, words)
    places = Gather(table, rows)""",
    "a mask": """last = Unsqueeze(at, step)
    first = Constant<value_int = 9>()
    early = Less(last, first)
    low = Constant<value_float = -2.5>()
    high = Constant<value_float = 0.3>()
    places = Where(early, low, high)""",
    "a sine": """last = Unsqueeze(at, step)
    floats = Cast<to = 1>(last)
    places = Sin(floats)""",
}


def numbers(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 4).astype(np.float32)


@pytest.fixture
def text(tmp_path: Path) -> Callable[[str], df.Model]:
    """Makes a model of a file in which the length is data: what ``READS`` says."""

    def made(read: str) -> df.Model:
        table, head = (", ".join(map(str, numbers(*s).ravel())) for s in ((WORDS, WIDTH), (WIDTH, WORDS)))
        file = tmp_path / "words.onnx"
        onnx.save(onnx.parser.parse_model(TEXT.replace("READ", READS[read]) % (table, head)), file)
        return df.load(str(file))

    return made


def layers(kind: str = "", count: int = 2) -> df.Model:
    """Layers over words of named batch and length, with what the kind says between."""
    g = df.GraphBuilder("words")
    x = ops.gather(g.parameter("table", numbers(WORDS, WIDTH)), g.input("ids", df.int64, ("batch", "length")), axis=0)
    for layer in range(count):
        w = g.parameter(f"w{layer}", numbers(WIDTH, WIDTH))
        y = ops.matmul(x, w)
        if kind == "scores":  # tensors of length x length
            scores = ops.matmul(y, ops.transpose(x, perm=(0, 2, 1)))
            y = ops.matmul(ops.sin(scores), y)
        elif kind == "mean":  # whose gradient has the length as a number
            y = ops.add(y, ops.reduce_mean(y, axes=(1,), keepdims=True))
        elif kind == "dropout":
            y = ops.dropout(y, ratio=0.25)
        x = ops.mul(ops.tanh(y), ops.sigmoid(x))
        x = ops.layer_norm(
            x, g.parameter(f"s{layer}", numbers(WIDTH)), g.parameter(f"t{layer}", numbers(WIDTH)), axis=-1
        )
    g.output("logits", ops.matmul(x, g.parameter("head", numbers(WIDTH, WORDS))))
    return df.Model(g.build())


def batch(size: int, length: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(100 * size + length).integers(0, WORDS, (size, length))
    return {"ids": ids, "labels": (ids + 1) % WORDS}


Shapes = list[tuple[int, int]]


def trained(
    model: df.Model,
    shapes: Shapes,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
    steps_only: bool = False,
    **options: Any,
) -> list[Any]:
    """Everything that steps and evaluations on batches of these shapes give, and the state in the end.

    Args:
        model: copied.
        shapes: batch and length of each batch.
        monkeypatch: for ``alone``.
        alone: each shape has a plan of its own.
        steps_only: nothing is evaluated, and no step is run program by program.
        options: of the Trainer.
    """
    with monkeypatch.context() as patch:
        if alone:
            patch.setattr(BatchSeries, "member", lambda *args: None)
            patch.setattr(Templates, "lowered", lambda self, sized, how, lower: lower(sized.make(sized.sizes)))
        found: list[Any] = []
        with df.Trainer(model.copy(), LOSS, devices=["cpu"], clip_norm=1.0, **options) as trainer:
            for shape in shapes:
                found.append(trainer.step(batch(*shape)))
                found += [array.tobytes() for array in trainer.programs.gradients().values()]
                if steps_only:
                    continue
                found.append(trainer.programs.evaluate(batch(*shape))["loss"].tobytes())
                found.append(trainer.predict({"ids": batch(*shape)["ids"]})["logits"].tobytes())
                terms = trainer.forward(batch(*shape), outputs=["logits"])
                found.append({name: array.tobytes() for name, array in terms.items()})
                if trainer.pending:
                    trainer.backward()
                    found.append(trainer.update())
                trainer.discard()
            found.append({name: array.tobytes() for name, array in trainer.programs.state().items()})
        return found


def series_of(model: df.Model, shapes: Shapes, **options: Any) -> tuple[set[str], df.Trainer]:
    """Which programs are series after these shapes."""
    trainer = df.Trainer(model.copy(), LOSS, devices=["cpu"], **options)
    for shape in shapes:
        trainer.step(batch(*shape))
    return {kind[1] for kind, _ in trainer.programs.engine.programs if kind[0] == "series"}, trainer


def random_shapes(seed: int, count: int = 7) -> Shapes:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 40, count)
    sizes = random.choice([1, 3, 4], count) if seed % 2 else np.full(count, 3)
    return [*zip(sizes.tolist(), lengths.tolist(), strict=True)]


@pytest.mark.parametrize(("kind", "accumulate"), [("", 1), ("scores", 1), ("mean", 2), ("dropout", 2)])
def test_random_sizes_have_the_results_of_plans_of_their_own(
    kind: str, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = random_shapes(len(kind))
    options = {"accumulate": accumulate, "dropout": kind == "dropout"}
    expected = trained(layers(kind), shapes, monkeypatch, alone=True, **options)
    assert trained(layers(kind), shapes, monkeypatch, alone=False, **options) == expected


@pytest.mark.parametrize("read", READS)
def test_lengths_that_are_data_are_fed(
    text: Callable[[str], df.Model], read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, model = random_shapes(2), text(read)
    assert trained(model, shapes, monkeypatch, alone=False) == trained(model, shapes, monkeypatch, alone=True)
    programs, trainer = series_of(model, shapes)
    trainer.close()
    assert programs == {"step"}


def test_after_three_lengths_others_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    made, compile_ = [0], Engine.compile

    def counted(*args: Any, **kwargs: Any) -> Any:
        made[0] += 1
        return compile_(*args, **kwargs)

    monkeypatch.setattr(Engine, "compile", counted)
    programs, trainer = series_of(layers(), [(2, 9), (2, 12), (2, 30), (2, 20)])
    with trainer:
        assert programs == {"step"}
        assert made[0] == 6  # three lengths, then three for the series
        for length in (50, 9, 7, 31, 2, 60):
            trainer.step(batch(2, length))
        assert made[0] == 6
        trainer.step(batch(3, 7))
        assert made[0] == 7


def test_a_length_below_all_of_a_series_has_the_results_of_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(2, length) for length in (9, 12, 30, 20, 1, 0, 1, 2)]
    expected = trained(layers(), shapes, monkeypatch, alone=True, steps_only=True)
    assert trained(layers(), shapes, monkeypatch, alone=False, steps_only=True) == expected


def test_where_plans_are_not_alike_none_is_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Engine, "build_series", lambda *args, **kwargs: made.append(args))
    programs, trainer = series_of(layers("mean"), [(2, length) for length in (9, 12, 30, 20, 15)])
    with trainer:
        assert programs == set()
    assert not made


def test_tensors_of_a_length_times_itself_are_in_a_series() -> None:
    programs, trainer = series_of(layers("scores"), [(2, length) for length in (9, 12, 30, 20, 15)])
    with trainer:
        assert programs == {"step"}


def test_what_is_computed_again_is_the_same_at_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "FREE_FROM", 0)
    monkeypatch.setattr(goals, "FREE", 0.2)
    shapes, model = [(3, length) for length in (40, 30, 46, 35, 43)], layers(count=4)
    programs, trainer = series_of(model, shapes)
    with trainer:
        again = trainer.programs.plans()["series-step"].again
        assert programs == {"step"}
    assert again is not None
    alone = trained(model, shapes, monkeypatch, alone=True, steps_only=True)
    assert trained(model, shapes, monkeypatch, alone=False, steps_only=True) == alone


def test_lengths_of_a_model_that_takes_every_second_lie_on_a_line_of_these() -> None:
    g = df.GraphBuilder("pairs")
    x = ops.gather(g.parameter("table", numbers(WORDS, WIDTH)), g.input("ids", df.int64, ("batch", "length")), axis=0)
    batch_size, length = x.shape[:2]
    pairs = ops.reshape(x, shape=(batch_size, length // 2, 2 * WIDTH))
    y = ops.tanh(ops.matmul(pairs, g.parameter("w", numbers(2 * WIDTH, 2 * WIDTH))))
    g.output("logits", ops.matmul(ops.reshape(y, shape=x.shape), g.parameter("head", numbers(WIDTH, WORDS))))
    programs, trainer = series_of(df.Model(g.build()), [(3, 8), (3, 14), (3, 20), (3, 10), (3, 12)])
    with trainer:
        assert programs == {"step"}


def test_sizes_that_kernels_want_otherwise_are_planned_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(2, 9), (2, 12), (2, 30), (2, 20), (2, 14)]
    expected = trained(layers(), shapes, monkeypatch, alone=True, steps_only=True)
    move = SeriesBound.move

    def refused(bound: SeriesBound, t: int) -> None:
        if t % 2:
            raise NotInSeries("of an odd number")
        move(bound, t)

    monkeypatch.setattr(SeriesBound, "move", refused)
    assert trained(layers(), shapes, monkeypatch, alone=False, steps_only=True) == expected


def test_plans_for_sizes_that_may_not_come_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_AHEAD", 0)
    programs, trainer = series_of(layers(), [(2, 9), (2, 12), (2, 30), (2, 20), (2, 31)])
    with trainer:
        assert programs == {"step"}
        first, second = [program for (kind, _), program in trainer.programs.engine.programs.items() if "series" in kind]
        assert first.plan.inputs["ids"].type.sizes == (2, 30)
        assert second.plan.inputs["ids"].type.sizes == (2, 31)


def test_a_line_goes_through_its_sizes_in_the_largest_steps() -> None:
    assert line_through((((2, 20), (5,)), ((2, 8), (5,)), ((2, 14), (5,)))) == Line(((2, 8), (5,)), ((0, 6), (0,)), 2)
    assert line_through((((2, 20),), ((2, 8),), ((3, 14),))) is None
    assert line_through((((2, 20),), ((3, 8),), ((2, 14),))) is None
    assert Line(((2, 8),), ((0, 6),), 2).finest() == Line(((2, 8),), ((0, 1),), 12)
    assert Line(((2, 8),), ((0, 1),), 12).doubled() == Line(((2, 8),), ((0, 1),), 32)


def test_a_series_that_calls_other_kernels_than_a_plan_alone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def other(program: SeriesProgram, t: int, plan: Any) -> bool:
        asked.append(t)
        return False

    monkeypatch.setattr(SeriesProgram, "runs_as", other)
    programs, trainer = series_of(layers(), [(2, 9), (2, 12), (2, 30), (2, 20), (2, 31)])
    with trainer:
        assert programs == set()
    assert asked == [7, 0, 0]  # of the first plan kept, for a line from length 2 and for two from 9
