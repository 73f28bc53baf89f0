"""Optimizers with random options, groups, schedules, clipping and averages, against PyTorch's formulas in float64.

The loss is linear in the parameters, so that their gradients are what a batch gives, exactly. A run may be left at a
checkpoint, from which another trainer goes on, and must end with the same bits.
"""

from __future__ import annotations

import random as standard
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dataflow as df

from .findings import Finding, Outcome, ended_by
from .making import Array, ops
from .optimizer_formulas import STEPS, State

SHAPES = ((), (1,), (3,), (7,), (33,), (1, 6), (4, 5), (2, 3, 4), (70, 3), (9, 300))
PRECISION = {"float64": 1e-9, "float32": 3e-4}  # of what all steps changed, at most
ALLOWED = "freeze every parameter|as_ready|no parameter would be left"  # what is refused with good reason


def target(seed: int, case: int) -> Outcome:
    """A run of a case; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    run = made(random)
    try:
        text = fault(run)
    except df.InputError as error:
        if re.search(ALLOWED, str(error)):
            return Outcome("refused")
        where = re.sub(r"[\d']+", "#", str(error))[:80]
        return Outcome("refused", (Finding("refused", where, f"{error}: {run}"),))
    except Exception as error:
        return ended_by(error, str(run))
    if text is None:
        return Outcome("ran")
    where = " ".join([type(run.rule).__name__, *sorted(run.features)])
    return Outcome("different", (Finding("different", where, f"{run}: {text}"),))


@dataclass
class Run:
    """What is trained how.

    Attributes:
        start: the parameters.
        rule: the optimizer.
        options: of the trainer.
        gradients: per step and micro-batch, of all parameters in one row.
        left: the step after which another trainer goes on; 0: none does.
        average: EMA's or SWA's, None without.
        still: a parameter that is frozen, the step before which that is, and the one before which it is free again.
        features: what is special, for people.
    """

    start: dict[str, Array] = field(repr=False)
    rule: Any
    options: dict[str, Any]
    gradients: Array = field(repr=False)
    left: int
    average: Any
    still: tuple[str, int, int] | None = None
    features: set[str] = field(default_factory=set)


def made(random: standard.Random) -> Run:
    """The run of a case."""
    numbers = np.random.default_rng(random.getrandbits(32))
    dtype = random.choice(("float64", "float64", "float32"))
    shapes = [random.choice(SHAPES) for _ in range(random.randint(1, 5))]
    start = {f"layer{i}.weight": numbers.standard_normal(shape).astype(dtype) for i, shape in enumerate(shapes)}
    size = sum(array.size for array in start.values())
    micro, steps = random.choice((1, 1, 2, 3)), random.randint(1, 9)
    gradients = numbers.standard_normal((steps, micro, size)) * 10.0 ** random.choice((-3, 0, 0, 1))
    run = Run(start, None, {"accumulate": micro}, gradients.astype(dtype), 0, None)
    settings = rule_settings(random)
    if random.random() < 0.5:
        settings["groups"] = [group(random, [*start], run.features) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        settings["schedule"] = random.choice(
            (df.schedules.Step(2, 0.5), df.schedules.Exponential(0.8), df.schedules.Linear(6, 2, 0.1))
        )
        run.features.add("schedule")
    run.rule = getattr(df.optim, settings.pop("rule"))(no_decay=random.choice(((), ("*0.weight",))), **settings)
    if random.random() < 0.3:
        run.options["clip_norm"] = float(np.sqrt(size)) * random.choice((0.01, 0.5, 10.0))
    if random.random() < 0.2:
        run.options["clip_value"] = random.choice((0.01, 0.7))
    run.features |= run.options.keys() - {"accumulate"}
    if random.random() < 0.3:
        how = {"start": random.choice((0, 0, 2)), "every": random.choice((1, 1, 2))}
        run.average = df.optim.SWA(**how) if random.random() < 0.5 else df.optim.EMA(0.7, **how)
        run.features.add("average")
    run.options |= {"devices": [random.choice(("cpu", "cpu", "numpy"))], "fuse": random.random() < 0.8}
    if micro == 1 and "clip_norm" not in run.features and random.random() < 0.3:
        run.options["update"] = "as_ready"
    if random.random() < 0.3 and len(start) > 1 and steps > 2:
        run.still = (random.choice([*start]), *sorted(random.sample(range(steps), 2)))
        run.features.add("frozen")
    if random.random() < 0.3:
        run.left = random.randint(0, steps - 1)
    return run


def rule_settings(random: standard.Random) -> dict[str, Any]:
    """An optimizer's name and settings; rates for gradients of size 1."""
    rule = random.choice([*STEPS])
    found: dict[str, Any] = {"rule": rule, "lr": random.choice((0.1, 0.01))}
    if random.random() < 0.6:
        found["weight_decay"] = random.choice((0.0, 0.1, 0.5))
    if rule in ("AdamW", "Adam", "Adamax", "NAdam", "RAdam", "Lion", "LAMB") and random.random() < 0.6:
        found["betas"] = random.choice(((0.9, 0.99), (0.5, 0.6), (0.8, 0.999), (0.0, 0.9)))
    own: dict[str, dict[str, tuple[Any, ...]]] = {
        "SGD": {"momentum": (0.0, 0.9), "nesterov": (False, True)},
        "Adam": {"amsgrad": (False, True)},
        "NAdam": {"momentum_decay": (0.004, 0.1)},
        "RMSprop": {"momentum": (0.0, 0.9), "centered": (False, True), "alpha": (0.9, 0.99)},
        "Adagrad": {"lr_decay": (0.0, 0.3), "start": (0.0, 0.5)},
        "Adadelta": {"rho": (0.9, 0.5)},
    }
    found |= {key: random.choice(values) for key, values in own.get(rule, {}).items()}
    if found.get("nesterov") and not found["momentum"]:
        found["nesterov"] = False
    if found.get("centered"):
        found["epsilon"] = 1e-3  # the deviation of a first step is all rounding
    return found


def group(random: standard.Random, names: list[str], features: set[str]) -> Any:
    """Settings for some parameters."""
    settings: dict[str, Any] = {}
    for key, values in (
        ("lr", (0.03, 0.2)), ("weight_decay", (0.0, 0.3)), ("lr_factor", (0.1, 2.0)), ("clip_norm", (0.1, 3.0)),
        ("clip_value", (0.2,)), ("freeze", (1, 3)),
    ):  # fmt: skip
        if random.random() < 0.3:
            settings[key] = random.choice(values)
            features.add(f"group's {key}")
    patterns = random.sample(names, random.randint(1, len(names)))
    if len(names) > 1 and random.random() < 0.3:
        patterns = ["layer*", "!*1.weight"]
    return df.optim.Group(*patterns, **settings)


# ---- what dataflow makes of it ------------------------------------------------------------------------


def trainer_of(run: Run) -> df.Trainer:
    """A trainer of a model whose loss is the sum of products of parameters and gradients."""
    g = df.GraphBuilder("linear")
    row = g.input("row", str(run.gradients.dtype), (1, run.gradients.shape[2]))
    loss, at = None, 0
    for name, array in run.start.items():
        parameter = g.parameter(name, array)
        gradient = ops.reshape(row[:, at : at + array.size], shape=array.shape)
        term = ops.reduce_sum(ops.mul(parameter, gradient), axes=tuple(range(array.ndim)), keepdims=False)
        loss, at = term if loss is None else ops.add(loss, term), at + array.size
    g.output("loss", loss)
    return df.Trainer(
        df.Model(g.build()),
        df.losses.output("loss"),
        run.rule,
        average=run.average,
        tie=False,
        threads=1,
        **run.options,
    )


def trained(run: Run, left: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """The parameters after all steps, and their averages; ``left`` at a checkpoint after so many."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(run)
        for number, step in enumerate(run.gradients):
            if number == left and left:
                trainer.checkpoint(folder)
                trainer.close()
                trainer = trainer_of(run)
                trainer.resume(folder)
            if run.still is not None and number in run.still[1:]:
                (trainer.freeze if number == run.still[1] else trainer.unfreeze)(run.still[0])
            for row in step:
                trainer.step({"row": row[None]})
        averages = {name: np.array(p.array) for name, p in trainer.model.parameters.items()}
        trainer.averaged = False
        parameters = {name: np.array(p.array) for name, p in trainer.model.parameters.items()}
        trainer.close()
    return parameters, averages


# ---- what it should ------------------------------------------------------------------------------------


@dataclass
class Kind:
    """What counts for one parameter: the last of its groups that says something."""

    settings: dict[str, Any]
    lr: float
    freeze: int = 0
    clip_value: float | None = None
    clip: tuple[int, float | None] = (-1, None)


def kinds(run: Run) -> dict[str, Kind]:
    """Of each parameter."""
    base = {key: getattr(run.rule, key) for key in run.rule.__dataclass_fields__}
    found = {}
    for i, name in enumerate(run.start):
        kind = Kind({**base}, base["lr"], 0, run.options.get("clip_value"), (-1, run.options.get("clip_norm")))
        factor = 1.0
        for number, each in enumerate(run.rule.groups):
            if not (name in each.patterns or ("layer*" in each.patterns and i != 1)):
                continue
            kind.settings |= each.settings
            factor = factor if each.lr_factor is None else each.lr_factor
            kind.freeze = kind.freeze if each.freeze is None else each.freeze
            kind.clip_value = kind.clip_value if each.clip_value is None else each.clip_value
            kind.clip = kind.clip if each.clip_norm is None else (number, each.clip_norm)
        if run.rule.no_decay and name == "layer0.weight":
            kind.settings["weight_decay"] = 0.0
        kind.lr = kind.settings["lr"] * factor
        found[name] = kind
    return found


def expected(run: Run) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """The parameters after all steps, their averages, and which elements are unsure."""
    of = kinds(run)
    p = {name: array.astype(np.float64) for name, array in run.start.items()}
    state: dict[str, State] = {name: {} for name in p}
    means, counted, own = {name: array.copy() for name, array in p.items()}, 0, dict.fromkeys(p, 0)
    unsure = {name: np.zeros(array.shape, bool) for name, array in p.items()}
    for number, rows in enumerate(run.gradients.astype(np.float64)):
        row, at, gradients = rows.mean(axis=0), 0, {}
        for name, array in p.items():
            if number >= of[name].freeze and not (
                run.still and name == run.still[0] and number in range(*run.still[1:])
            ):
                gradients[name] = row[at : at + array.size].reshape(array.shape)
            at += array.size
        clipped = clip(gradients, of)
        factor = 1.0 if run.rule.schedule is None else factor_of(run.rule.schedule, number)
        for name, gradient in clipped.items():
            kind = of[name]
            own[name] += 1
            how = (kind.settings, kind.lr * factor, own[name])
            p[name] = STEPS[type(run.rule).__name__](p[name], gradient, state[name], *how)
            unsure[name] |= state[name].get("unsure", np.zeros((), bool))
        if run.average is not None:
            counted = average(run.average, number + 1, counted, means, p)
    return p, means, unsure


def clip(gradients: Mapping[str, Array], of: Mapping[str, Kind]) -> dict[str, Array]:
    """By the norm of all that share a limit, as torch's clip_grad_norm_, then by value."""
    squares: dict[int, float] = {}
    for name, gradient in gradients.items():
        squares[of[name].clip[0]] = squares.get(of[name].clip[0], 0.0) + float((gradient**2).sum())
    found = {}
    for name, gradient in gradients.items():
        number, limit = of[name].clip
        if limit is not None:
            gradient = gradient * min(1.0, limit / (squares[number] ** 0.5 + 1e-6))
        most = of[name].clip_value
        found[name] = gradient if most is None else np.clip(gradient, -most, most)
    return found


def factor_of(schedule: Any, step: int) -> float:
    """As PyTorch's StepLR, ExponentialLR, and LinearLR behind a warm-up of two steps."""
    if isinstance(schedule, df.schedules.Step):
        return float(0.5 ** (step // 2))
    if isinstance(schedule, df.schedules.Exponential):
        return float(0.8**step)
    return min(1.0, (step + 1) / 2) * (1.0 - 0.9 * min(1.0, max(0, step - 2) / 4))


def average(how: Any, step: int, counted: int, means: dict[str, Array], p: Mapping[str, Array]) -> int:
    """Takes the weights after a step into their means; how many steps have counted."""
    if step <= how.start:
        means.update({name: array.copy() for name, array in p.items()})
        return counted
    if (step - how.start - 1) % how.every:
        return counted
    counted += 1
    share = 1.0 if counted == 1 else 0.3 if isinstance(how, df.optim.EMA) else 1 / counted
    means.update({name: mean + share * (p[name] - mean) for name, mean in means.items()})
    return counted


# ---- both ----------------------------------------------------------------------------------------------


def fault(run: Run) -> str | None:
    """What is wrong with a run, or None."""
    found = trained(run, 0)
    *known, unsure = expected(run)
    for what, ours, theirs in zip(("parameters", "averages"), found, known, strict=True):
        if what == "averages" and run.average is None:
            break
        for name, array in ours.items():
            moved = np.abs(known[0][name] - run.start[name]).max(initial=0.0)
            limit = PRECISION[str(array.dtype)] * moved + np.finfo(array.dtype).eps * 16 * np.abs(theirs[name])
            apart = np.abs(array - theirs[name]) > limit
            wrong = apart & ~unsure[name]
            if wrong.any() or not np.isfinite(array).all():
                at = tuple(map(int, np.argwhere(wrong)[0])) if wrong.any() else ()
                before, after = run.start[name][at], theirs[name][at]
                return f"{what} {name}{list(at)}: {array[at]!r}, expected {after!r}, {before!r} at first"
    if run.left:
        again = trained(run, run.left)
        for what, ours, theirs in zip(("parameters", "averages"), again, found, strict=True):
            for name, array in ours.items():
                if array.tobytes() != theirs[name].tobytes():
                    return f"{what} {name} differ from those of one run after a checkpoint at step {run.left}"
    return None
