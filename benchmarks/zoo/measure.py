"""One model of the zoo in this process: prints a line of JSON per stage, for ``zoo.py``."""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))
from engines import onnxruntime_session, rested
from exact import exact
from fresh import first_result
from loading import store_small
from report import interleaved, ratio

import dataflow as df
from dataflow.cli.bench import random_arguments

EPSILON = 2.0**-24
STEPS = 20
RATES = (1e-4, 1e-6)  # deep nets with fixed statistics of batches leave their losses with a larger one
FIRST_ROUNDS = LEAST_ROUNDS = 3
TIMED_SECONDS = 30  # for the rounds of a model, if that is enough for the least
ZERO = 1e-9  # of the typical gradient, which float64 leaves of zero
Arrays = dict[str, np.ndarray]


class Subject:
    """A file, what PyTorch computed with its model where that is known, and what is computed here on the way."""

    def __init__(self, path: Path, threads: int, rounds: int) -> None:
        self.path, self.threads, self.rounds = path, threads, rounds
        self.variant, self.known = path.stem.partition(".")[2], known_of(path)
        self.model = df.load(str(path))
        self.session = df.Session(self.model, devices=["cpu"], threads=threads)

    def feeds(self, index: int) -> Arrays | None:
        """Inputs of a binding of named sizes; of a file that nothing is known of random ones, sizes 2."""
        if not self.known and index == 0:
            shapes = {n: [d if isinstance(d, int) else 2 for d in t.shape] for n, t in self.model.inputs.items()}
            return random_arguments(self.model, shapes)
        if index and self.variant.endswith("fixed"):
            return None
        return known_feeds(self.path, self.known, index)

    def right(self, index: int, name: str, position: int, feeds: Arrays) -> np.ndarray | None:
        """An output by PyTorch, or by NumPy in float64."""
        if self.known:
            return self.known.get(f"outputs/{index}/{position}")
        try:
            return exact(onnx.load(self.path), feeds, name)
        except Exception:  # not every model can be widened
            return None

    # ---- stages ---------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Results of each binding against float64, beside onnxruntime's."""
        try:
            theirs = onnxruntime_session(str(self.path), 1)
        except Exception as error:
            theirs, refusal = None, str(error)[:200]
        found: dict[str, Any] = {"error": 0.0, "onnxruntime_error": 0.0, "error_ratio": 0.0, "bindings": 0}
        if theirs is None:
            found["onnxruntime_refuses"] = refusal
        index = 0
        while (feeds := self.feeds(index)) is not None:
            others = [None] * len(self.model.outputs)
            if theirs is not None:
                try:
                    others = theirs.run(None, feeds)
                except Exception as error:
                    if index == 0:
                        raise
                    found["fixed"] = f"the file is made for one size: {error}"[:200]
                    break
            ours = self.session.run(feeds)
            for position, (name, array) in enumerate(ours.items()):
                right = self.right(index, name, position, feeds)
                if right is None:
                    right = others[position]
                if right is None:
                    continue
                if array.shape != right.shape:
                    raise AssertionError(f"{name!r}, binding {index}: shape {array.shape}, expected {right.shape}")
                own, other = deviation(array, right), deviation(others[position], right)
                found["error"] = max(found["error"], own)
                found["onnxruntime_error"] = max(found["onnxruntime_error"], other)
                found["error_ratio"] = max(found["error_ratio"], own / max(other, EPSILON))
            index += 1
            found["bindings"] = index
        nodes = [(seg.device, step.node) for p in self.session.plans for seg in p.segments for step in seg.steps]
        away = sorted({node.op.name for device, node in nodes if device == "numpy"})
        return found | {"nodes": len(nodes), "numpy_nodes": sum(d == "numpy" for d, _ in nodes), "numpy_ops": away}

    def time(self) -> dict[str, Any]:
        """Our time as a part of onnxruntime's, in turns."""
        feeds = self.feeds(0) or {}
        theirs = onnxruntime_session(str(self.path), self.threads)
        runs = {"dataflow": lambda: self.session.run(feeds), "onnxruntime": lambda: theirs.run(None, feeds)}
        begin = time.perf_counter()
        competitors = {name: rested(run) for name, run in runs.items()}
        interleaved(1, competitors)
        fits = int(TIMED_SECONDS / (time.perf_counter() - begin))
        times = interleaved(max(LEAST_ROUNDS, min(self.rounds, fits)), competitors)
        found = {f"{name}_ms": statistics.median(t) * 1e3 for name, t in times.items()}
        return found | {"ratio": ratio(times["dataflow"], times["onnxruntime"])}

    def first(self) -> dict[str, Any]:
        """From the file to the first result, each in a fresh process."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.onnx").symlink_to(self.path.resolve())
            np.savez(f"{folder}/feeds.npz", **(self.feeds(0) or {}))
            store_small(Path(folder))

            def once(engine: str) -> float:
                return float(first_result(engine, folder, self.threads)["seconds"])

            engines = ("dataflow", "onnxruntime")
            times = interleaved(FIRST_ROUNDS, {e: lambda e=e: once(e) for e in engines})
        found = {f"{name}_first_ms": statistics.median(t) * 1e3 for name, t in times.items()}
        return found | {"first_ratio": ratio(times["dataflow"], times["onnxruntime"])}

    def gradients(self) -> dict[str, Any]:
        """Of each parameter, against PyTorch's."""
        if "target" not in self.known:
            return {}
        with self._trainer(self.model, RATES[0]) as trainer:
            terms = trainer.forward(self._batch())
            trainer.backward()
            own = {name: array / terms["weight"] for name, array in trainer.gradients.items()}
        wanted = {k.removeprefix("gradient/"): g for k, g in self.known.items() if k.startswith("gradient/")}
        typical = statistics.median(float(np.linalg.norm(g) / max(len(g), 1) ** 0.5) for g in wanted.values())
        sums = self._by_parameter(own, wanted)
        found = {"gradient_error": 0.0, "gradient_ratio": 0.0, "gradients": len(sums), "parameters": len(wanted)}
        for parameter, gradient in sums.items():
            size, scale = np.linalg.norm(wanted[parameter]), typical * len(gradient) ** 0.5
            # one that is zero but for float64's rounding, as of what softmax doesn't see, is a part of the typical one
            least = max(scale if size < ZERO * scale else max(size, 1e-3 * scale), 1e-30)
            error = float(np.linalg.norm(gradient - wanted[parameter]) / least)
            other = float(self.known.get(f"float32/{parameter}", 0.0) / least)
            found["gradient_ratio"] = max(found["gradient_ratio"], error / max(other, EPSILON))
            if error > found["gradient_error"]:
                found |= {"gradient_error": error, "gradient_at": str(parameter), "pytorch_gradient_error": other}
        return found

    def _by_parameter(self, own: Arrays, wanted: Arrays) -> Arrays:
        """Gradients of initializers as those of PyTorch's parameters, at the elements that are known of these.

        A parameter that is stored several times has a gradient in each copy.
        """
        sums: Arrays = {}
        for parameter, name, how in self.known[f"names/{self.variant}"]:
            if name in own and parameter in wanted:
                array = own[name].T if how == "1" else own[name] * self._factor(name, how)
                part = array.reshape(-1)[self.known[f"positions/{parameter}"]]
                sums[parameter] = sums.get(parameter, 0) + part
        prefix = f"elements/{self.variant}/"
        for key in self.known:
            parameter, _, name = key.removeprefix(prefix).partition("/")
            if key.startswith(prefix) and name in own:
                held, positions = self.known[key]
                sums[parameter] = sums.get(parameter, wanted[parameter].copy())
                sums[parameter][held] = self._of_rows(own[name], name).reshape(-1)[positions]
        return sums

    def _of_rows(self, gradient: np.ndarray, name: str) -> np.ndarray:
        """The sum over the rows of an initializer in which a parameter is repeated, in each of them."""
        stored = self.model.parameters[name].array
        repeated = stored.ndim > 1 and bool((stored == stored[:1]).all())
        return np.broadcast_to(gradient.sum(0), gradient.shape) if repeated else gradient

    def _factor(self, name: str, how: str) -> np.ndarray | float:
        """What a parameter's gradient is of that of a function of it, see ``export.py``."""
        return {"1-x": -1.0, "-exp(x)": self.model.parameters[name].array}.get(how, 1.0)

    def steps(self) -> dict[str, Any]:
        """Twenty steps of AdamW, small ones where the loss rises; the file saved then, in onnxruntime."""
        if "target" not in self.known:
            return {}
        for rate in RATES:
            model = df.load(str(self.path))
            with self._trainer(model, rate) as trainer:
                losses = [float(trainer.step(self._batch())) for _ in range(STEPS)]
            found = {"loss": losses[0], "last_loss": losses[-1], "falls": losses[-1] < losses[0], "rate": rate}
            if found["falls"]:
                break
        feeds = self.feeds(0) or {}
        with tempfile.TemporaryDirectory() as folder:
            df.save(model, f"{folder}/tuned.onnx")
            theirs = onnxruntime_session(f"{folder}/tuned.onnx", 1).run(None, feeds)
        ours = df.Session(model, devices=["cpu"], threads=self.threads).run(feeds)
        found["saved_error"] = max(deviation(a, b) for a, b in zip(ours.values(), theirs, strict=True))
        return found

    def _trainer(self, model: df.Model, rate: float) -> df.Trainer:
        output = next(iter(model.outputs))
        return df.Trainer(
            model, df.losses.MSE(), df.optim.AdamW(lr=rate), output=output, metrics=[], devices=["cpu"],
            threads=self.threads, tie=False,
        )  # fmt: skip

    def _batch(self) -> Arrays:
        return {**(self.feeds(0) or {}), "labels": self.known["target"]}


STAGES: dict[str, Callable[[Subject], dict[str, Any]]] = {
    name: getattr(Subject, name) for name in ("run", "gradients", "steps", "time", "first")
}


def known_of(path: Path) -> Arrays:
    """What PyTorch computed with a file's model, where that lies beside it."""
    name, _, variant = path.stem.partition(".")
    known = path.with_name(f"{name}.npz")
    if not variant or not known.exists():
        return {}
    with np.load(known) as file:
        return {key: file[key] for key in file.files}


def known_feeds(path: Path, known: Arrays, index: int) -> Arrays | None:
    """Inputs of a binding; None of one that isn't there."""
    prefix = f"feeds/{index}/"
    found = {key.removeprefix(prefix): array for key, array in known.items() if key.startswith(prefix)}
    read = {v.name for v in onnx.load(path, load_external_data=False).graph.input}
    return {name: array for name, array in found.items() if name in read} or None


def refusal_of_onnxruntime(path: Path) -> dict[str, str]:
    """Why onnxruntime can't run the file either, if that is so."""
    try:
        onnxruntime_session(str(path), 1).run(None, known_feeds(path, known_of(path), 0) or {})
    except Exception as error:
        return {"onnxruntime_refuses": str(error)[:200]}
    return {}


def deviation(found: Any, right: np.ndarray) -> float:
    """The largest difference as a part of the largest result; of whole numbers the share that differs."""
    if found is None or right.size == 0:
        return 0.0
    if right.dtype.kind not in "fc":
        return float(np.mean(np.asarray(found) != right))
    wide = np.asarray(found, np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(np.isfinite(wide), finite):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(wide - right)[finite].max() / max(np.abs(right[finite]).max(), 1e-30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("stages", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    logging.getLogger("dataflow").setLevel(logging.ERROR)
    subject = None
    try:
        subject = Subject(options.path, options.threads, options.rounds)
        say("load", {"loads": True})
    except Exception as error:
        say("load", {"loads": False, "refusal": text_of(error), **refusal_of_onnxruntime(options.path)})
    for stage in options.stages if subject is not None else ():
        try:
            say(stage, STAGES[stage](subject))
        except Exception as error:
            say(stage, {f"{stage}_failed": text_of(error)})


def text_of(error: Exception) -> str:
    """The message; of an error that isn't meant for users its place too."""
    if isinstance(error, df.DataflowError):
        return f"{type(error).__name__}: {error}"[:1500]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {error}"[:1500]


def say(stage: str, found: Mapping[str, Any]) -> None:
    print(json.dumps({"stage": stage, **found}), flush=True)


if __name__ == "__main__":
    main()
