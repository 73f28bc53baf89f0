"""Many threads on one session with few plans, while it is reloaded, trained and closed: every result is right.

python -m tests.fuzz.threads --threads 64 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable

import numpy as np

import dataflow as df

WIDTH = 16


class Stress:
    """Threads that run, train, reload and close; what went wrong is in ``failures``.

    The model multiplies by two parameters that training keeps equal, so a result tells which step its weights are of,
    and that they are of one step.

    Args:
        threads: how many run at one time.
        plans: how many the session keeps; fewer than there are shapes.
    """

    def __init__(self, threads: int, plans: int) -> None:
        self.failures: list[str] = []
        self.runs = 0
        self._threads, self._plans = threads, plans
        self._over = False
        self._lock = threading.Lock()
        self._model = _model()
        self._session = self._opened()

    def _opened(self) -> df.Session:
        return df.Session(self._model, threads=2, plans=self._plans, concurrency=2)

    def run(self, seconds: float) -> None:
        """All threads for so long; raises when one of them hangs."""
        works: list[tuple[Callable[[np.random.Generator], int], float]] = [(self._run, 0.0)] * self._threads
        works += [(self._train, 0.0), (self._reload, 0.01), (self._reopen, 0.05)]
        threads = [
            threading.Thread(target=self._often, args=(work, pause, seed), daemon=True)
            for seed, (work, pause) in enumerate(works)
        ]
        self._trainer = df.Trainer(self._model, "mse", df.optim.SGD(lr=1e-3), threads=1)
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._over = True
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                self.failures.append(f"{thread.name} hangs")
        self._trainer.close()

    def _often(self, work: Callable[[np.random.Generator], int], pause: float, seed: int) -> None:
        numbers, done = np.random.default_rng(seed), 0
        while not self._over and not self.failures:
            try:
                done += work(numbers)
            except df.ModelError as error:
                if "closed" not in str(error):
                    self.failures.append("".join(traceback.format_exception(error)))
            except BaseException as error:
                self.failures.append("".join(traceback.format_exception(error)))
            if pause:
                time.sleep(pause)
        with self._lock:
            self.runs += done

    def _run(self, numbers: np.random.Generator) -> int:
        rows, value = int(numbers.integers(1, 9)), float(numbers.integers(1, 100))
        found = self._session.run(np.full((rows, WIDTH), value, np.float32))["y"]
        if found.shape != (rows, WIDTH):
            self.failures.append(f"{rows} rows gave {found.shape}")
        factors = found / value
        if not np.allclose(factors, factors[0, 0], rtol=1e-4) or not 0.2 < factors[0, 0] <= 1.01:
            self.failures.append(f"{rows} rows of {value} gave {found.tolist()}")
        return 1

    def _train(self, numbers: np.random.Generator) -> int:
        x = np.ones((4, WIDTH), np.float32)
        self._trainer.step({"x": x, "labels": x})
        first, second = (array for name, array in sorted(self._model.arrays().items()) if name.startswith("w"))
        if not np.array_equal(first, second):
            self.failures.append("the weights are not of one step")
        return 0

    def _reload(self, numbers: np.random.Generator) -> int:
        self._session.reload()
        return 0

    def _reopen(self, numbers: np.random.Generator) -> int:
        before, self._session = self._session, self._opened()
        before.close()
        return 0


def _model() -> df.Model:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("rows", WIDTH))
    w = [g.parameter(f"w{i}", np.full((1, WIDTH), 0.6, np.float32)) for i in range(2)]
    g.output("y", x * w[0] * w[1])
    return df.Model(g.build())


def main() -> int:
    """Prints figures as JSON; 1 when something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.threads", description=__doc__)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--plans", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    stress = Stress(options.threads, options.plans)
    stress.run(options.seconds)
    sys.stdout.write(json.dumps({**vars(options), "runs": stress.runs, "failures": stress.failures[:10]}) + "\n")
    return 1 if stress.failures else 0


if __name__ == "__main__":
    sys.exit(main())
