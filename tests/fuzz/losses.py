"""Losses and metrics with random options, values and labels, trained and evaluated, against formulas in float64.

The values that a loss reads are rows of parameters, so that what a step changes is their gradient. However the samples
are shared out among micro-batches, loss and gradient are those of all at once, and an evaluation is their mean.
"""

from __future__ import annotations

import random as standard
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dataflow as df
from dataflow.train.nonfinite import NonFiniteLoss

from .findings import Finding, Outcome, ended_by
from .loss_cases import MAKERS, Case, Maker, single
from .making import Array, ops
from .metric_formulas import Metric, chosen

RATE = 2.0**20  # so large that what a step adds to a parameter isn't lost in its rounding
STEP = 1e-4
OF_LOSS, OF_GRADIENT = 1e-5, 3e-5  # what float32 may be off by, of the largest
OF_PROBABILITY = 3e-6  # likewise, of weighted probabilities near 1
OF_DIFFERENCES = 4e-15  # likewise, of float64
ROUNDING = {"float16": 2e-3, "bfloat16": 1.2e-2}  # of gradients that pass through these


def target(seed: int, case: int) -> Outcome:
    """Losses of a case; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    kinds: list[str] = []
    text = "nothing was made"
    try:
        job = made(random, kinds)
        for what, text in faults(job, random):
            where = f"{what} | {' '.join(kinds)} | {job.device}"
            return Outcome("different", (Finding("different", where, f"{job.described}: {text}"),))
    except NonFiniteLoss as error:
        where = f"{' '.join(kinds)} isn't finite"
        return Outcome("different", (Finding("different", where, f"{job.described}: {error}"),))
    except df.DataflowError as error:
        return Outcome("refused", (Finding("refused", " ".join(kinds), f"{type(error).__name__}: {error}"),))
    except Exception as error:
        return ended_by(error, " ".join(kinds))
    return Outcome("ran")


@dataclass
class Job:
    """What is trained on which samples.

    Attributes:
        cases: the losses.
        factors: of several losses.
        model: whose outputs are rows of its parameters.
        infinite: values of which some aren't finite, by name.
        options: of the trainer.
        batch: all samples.
        weights: of samples.
        dtype: of the values.
        blocks: the samples of each micro-batch.
        described: for people.
    """

    cases: list[Case]
    factors: list[float]
    model: df.Model
    infinite: dict[str, Array]
    options: dict[str, Any]
    batch: dict[str, Array]
    weights: Array
    dtype: df.DType
    blocks: list[Array]
    described: str

    @property
    def device(self) -> str:
        """Where it runs."""
        return str(self.options["devices"][0])

    def tables(self) -> dict[str, Array]:
        """The parameters, by the name of the value."""
        return {name: self.model.parameters[f"{name}.rows"].array for case in self.cases for name in case.outputs}

    def sums(self, values: Mapping[str, Array], rows: Array) -> list[tuple[Array, float]]:
        """Of each loss what each sample of a micro-batch adds to it, and its weight."""
        found = []
        for case in self.cases:
            outputs = [values[name][rows] for name in case.outputs]
            elements, weight = case.formula(outputs, {key: self.batch[key][rows] for key in case.entries})
            factor = self.weights[rows].reshape(-1, *[1] * (elements.ndim - 1))
            found.append(((elements * factor).sum(tuple(range(1, elements.ndim))), float((weight * factor).sum())))
        return found

    def each(self, values: Mapping[str, Array], rows: Array, name: str = "") -> tuple[Array, float]:
        """What each sample of a micro-batch adds to the loss, and the weight: of several the sum of their means.

        With a name those losses alone that read this value.
        """
        found = self.sums(values, rows)
        if len(found) == 1:
            return found[0]
        count = float(self.weights[rows].sum())
        means = [f * s / w if w else 0.0 * s for f, (s, w) in zip(self.factors, found, strict=True)]
        return count * np.sum(
            [m for m, c in zip(means, self.cases, strict=True) if not name or name in c.outputs], 0
        ), count

    def mean(self, values: Mapping[str, Array], blocks: Sequence[Array]) -> tuple[float, float]:
        """The loss of all samples in batches, and how large what is added up to it is."""
        sums = [self.sums(values, rows) for rows in blocks]
        found, size = 0.0, 0.0
        for index, factor in enumerate(self.factors if len(self.cases) > 1 else [1.0]):
            weight = sum(block[index][1] for block in sums)
            if weight:
                found += factor * sum(float(block[index][0].sum()) for block in sums) / weight
                size += abs(factor) * sum(float(np.abs(block[index][0]).sum()) for block in sums) / weight
            elif len(self.cases) == 1:
                found = np.nan
        return found, size

    def gradient(self, values: dict[str, Array], name: str) -> tuple[Array, Array]:
        """Differences of the sum of all micro-batches by a table, and where they are known."""
        found, known = np.zeros(values[name].shape), np.ones(values[name].shape, np.bool_)
        together = any(case.together for case in self.cases)
        for rows in self.blocks:
            for index in np.ndindex(values[name].shape[1:]):
                for moved in [rows[i : i + 1] for i in range(len(rows))] if together else [rows]:
                    at = (moved, *index)
                    shown = moved if not together else rows
                    slopes = [
                        self._slope(values, name, at, shown, a, b) for a, b in ((1, 1), (0.5, 0.5), (1, 0), (0, 1))
                    ]
                    found[at] = slopes[1] + (slopes[1] - slopes[0]) / 3
                    size = np.maximum(np.abs(slopes[1]), 1e-6)
                    known[at] = np.abs(slopes[1] - slopes[0]) < 3e-4 * size + 1e-6
                    known[at] &= np.abs(slopes[2] - slopes[3]) < 0.03 * size + 1e-2 * np.abs(slopes[1]).max(
                        initial=1e-3
                    )
        fixed = ~np.isfinite(values[name])
        return np.where(fixed, 0.0, found), known | fixed

    def _slope(self, values: dict[str, Array], name: str, at: Any, rows: Array, up: float, down: float) -> Array:
        ends = []
        for by in (up, -down):
            moved = values[name].copy()
            moved[at] += STEP * by
            ends.append((moved[at], self.each({**values, name: moved}, rows, name)[0]))
        with np.errstate(invalid="ignore"):
            (high, above), (low, below) = ends
            change = above - below if len(at[0]) == len(rows) else (above - below).sum()
            return np.nan_to_num(change / (high - low))


def made(random: standard.Random, kinds: list[str]) -> Job:
    """The job of a case; ``kinds`` gets those of its losses."""
    arrays = np.random.default_rng(random.getrandbits(32))
    samples = random.randint(1, 9)
    several = random.random() < 0.2
    cases: list[Case] = []
    for index in range(random.randint(2, 3) if several else 1):
        kinds.append(random.choice([*MAKERS]))
        cases.append(MAKERS[kinds[-1]](Maker(random, arrays, samples, str(index) if several else "")))
    values = {name: array for case in cases for name, array in case.outputs.items()}
    dtype = _dtype(random, values)
    infinite: dict[str, Array] = {}
    g = df.GraphBuilder("rows")
    numbers = g.input("i", df.int64, ("B",))
    for case in cases:
        for index, (name, array) in enumerate(case.outputs.items()):
            finite = np.isfinite(array)
            table = g.parameter(f"{name}.rows", np.where(finite, array, 0.0).astype(dtype.numpy).astype(np.float32))
            y = ops.gather(table, numbers, axis=0)
            if not finite.all():
                odd = g.constant(np.where(finite, 0.0, array).astype(np.float32), f"{name}.infinite")
                y = ops.where(ops.gather(g.constant(finite, f"{name}.finite"), numbers, axis=0), y,
                              ops.gather(odd, numbers, axis=0))  # fmt: skip
                infinite[name] = array
            y = y if dtype == df.float32 else ops.cast(y, to=dtype)
            if not index and case.behind and random.random() < 0.25 and y.type.rank > 1:
                y = _behind(y, random.choice(case.behind), -1 if case.axis is None else case.axis, random)
            g.output(name, y)
    entries = {key: array for case in cases for key, array in case.entries.items()}
    batch: dict[str, Array] = {"i": np.arange(samples)}
    batch |= {
        k: a.astype(random.choice((np.float32, np.float64))) if a.dtype == np.float64 else a for k, a in entries.items()
    }
    weights = np.ones(samples)
    if random.random() < 0.3:
        weights = single(
            arrays.choice([0.0, 0.5, 1.0, 3.0], samples) if random.random() < 0.5 else arrays.uniform(0.1, 2, samples)
        )
        batch["sample_weight"] = weights.astype(np.float32)
    order = arrays.permutation(samples)
    splits = sorted(random.sample(range(1, samples), random.randint(0, min(3, samples - 1)))) if samples > 1 else []
    blocks = np.split(order, splits)
    options = {
        "devices": [random.choice(("cpu", "cpu", "cpu", "numpy"))],
        "threads": random.choice((1, 2)),
        "fuse": random.random() < 0.8,
        "memory": random.choice((None, "1x")),
        "accumulate": len(blocks),
        "storage": "float32",
    }
    factors = [random.choice((1.0, 0.5, 2.0, -1.0)) for _ in cases]
    described = (
        f"{[c.loss for c in cases]} {options} {dtype} {[a.shape for a in values.values()]} in {[*map(len, blocks)]}"
    )
    return Job(cases, factors, df.Model(g.build()), infinite, options, batch, weights, dtype, blocks, described)


def _dtype(random: standard.Random, values: Mapping[str, Array]) -> df.DType:
    finite = [np.abs(a[np.isfinite(a)]).max(initial=0) for a in values.values()]
    small = max(finite) < 100
    kinds = (df.float32, df.float32, df.float32, df.float64)
    return random.choice((*kinds, df.float16, df.bfloat16) if small else kinds)


def _behind(y: Any, name: str, axis: int, random: standard.Random) -> Any:
    if name == "sigmoid":
        return ops.sigmoid(y)
    y = getattr(ops, name)(y, axis=axis)
    return ops.copy(y) if random.random() < 0.3 else y


def faults(job: Job, random: standard.Random) -> Iterator[tuple[str, str]]:
    """What is wrong with evaluations and a step, by where."""
    before = job.tables()
    values = {name: array.astype(np.float64) for name, array in before.items()}
    for name, array in job.infinite.items():
        values[name] = np.where(np.isfinite(array), values[name], array)
    with np.errstate(all="ignore"):
        blocks = [job.each(values, rows) for rows in job.blocks]
    total, weight = sum(float(s.sum()) for s, _ in blocks), sum(w for _, w in blocks)
    if not np.isfinite(total):
        return
    scale = sum(float(np.abs(s).sum()) for s, _ in blocks) / max(weight, 1e-30)
    measured = chosen(job.cases[0], random) if len(job.cases) == 1 else []
    loss = _choice(job)
    first = next(iter(job.cases[0].outputs))
    with df.Trainer(job.model, loss, df.optim.SGD(lr=RATE), output=first if not isinstance(loss, dict) else None,
                    tie=False, metrics=[metric for metric, _ in measured], **job.options) as trainer:  # fmt: skip
        yield from _evaluation(job, trainer, values, measured, random)
        found = 0.0
        how = random.choice(("step", "step", "apart"))
        for rows in job.blocks:
            some = {key: array[rows] for key, array in job.batch.items()}
            if how == "step":
                mean, block = trainer.step(some), job.each(values, rows)
                if block[1]:
                    found += mean * block[1]
                elif np.isnan(mean):
                    found += float(block[0].sum())  # of smoothed labels whose class counts nothing
                else:
                    yield "the loss of nothing", f"{mean}, expected NaN"
            else:
                terms = trainer.forward(some)
                found += float(terms["loss"])
                trainer.backward()
        if how == "apart":
            trainer.update()
    if weight and abs(found - total) > (OF_LOSS * scale + 1e-6) * abs(weight):
        yield f"loss {how}", f"{found / weight}, expected {total / weight}"
    after = job.tables()
    for name, array in before.items():
        moved = (array.astype(np.float64) - after[name]) / RATE
        if not weight:
            if moved.any():
                yield "gradient of nothing", f"{name!r} moved by {np.abs(moved).max()}"
            continue
        with np.errstate(all="ignore"):
            exact, known = job.gradient(values, name)
        exact /= weight
        size = max(np.abs(exact).max(initial=0), *(case.slope / weight for case in job.cases), 0.0)
        far = np.abs(np.where(np.isfinite(values[name]), values[name], 0.0)).max(initial=0)
        bound = (OF_GRADIENT + ROUNDING.get(job.dtype.name, 0.0)) * size
        bound += (OF_PROBABILITY + far * OF_DIFFERENCES / STEP) / abs(weight)
        wrong = known & ~(np.abs(moved - exact) <= bound)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            text = f"{name!r} at {list(at)}: {moved[at]}, expected {exact[at]}, the largest is {np.abs(exact).max()}"
            yield f"gradient {how}", text


def _choice(job: Job) -> Any:
    """The argument ``loss``."""
    if len(job.cases) == 1:
        return job.cases[0].loss
    found = {}
    for case, factor in zip(job.cases, job.factors, strict=True):
        key = next((key for key in case.entries if key.startswith("labels")), None)
        found[next(iter(case.outputs))] = (case.loss, key, factor)
    return found


def _evaluation(
    job: Job, trainer: df.Trainer, values: dict[str, Array], measured: Sequence[Metric], random: standard.Random
) -> Iterator[tuple[str, str]]:
    count = len(job.weights)
    size = random.randint(1, count + 1)
    found = trainer.evaluate(job.batch, batch_size=size)
    exact, scale = job.mean(values, [np.arange(at, min(at + size, count)) for at in range(0, count, size)])
    if not (abs(found["loss"] - exact) <= OF_LOSS * scale + 1e-6 or (np.isnan(exact) and np.isnan(found["loss"]))):
        yield "evaluated", f"{found['loss']}, expected {exact}"
    for metric, formula in measured:
        case = job.cases[0]
        labels = job.batch[next(iter(case.entries))] if case.compared is None else case.compared(job.batch)
        with np.errstate(all="ignore"):
            expected = formula(values[next(iter(case.outputs))], labels)
        if not np.allclose(found[metric.name], expected, rtol=2e-5, atol=2e-6, equal_nan=True):
            yield f"metric {metric.name}", f"{metric}: {found[metric.name]}, expected {expected}"
