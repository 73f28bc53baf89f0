"""onnxruntime in a process of its own, which a hostile file may kill: what it makes of a model, or None."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from .findings import ROOT

Array = np.ndarray[Any, Any]
_HEAD = struct.Struct("<Q")
SECONDS = 20.0  # to answer
# MaxUnpool's indices are in the shape asked for there, and in the smaller one in ONNX's own tests; others are random.
OTHERWISE = ("MaxUnpool", "RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli",
             "Multinomial", "Dropout")  # fmt: skip


class Referee:
    """Asks a process that is made anew when it dies."""

    def __init__(self, *, plain: bool = False) -> None:
        self.arguments = ["plain"] if plain else []  # nodes as they are: onnxruntime fuses some to less precise ones
        self.process: subprocess.Popen[bytes] | None = None

    def results(self, model: bytes, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
        """The outputs by name; None where onnxruntime refuses the model, or dies of it."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-m", "tests.fuzz.referee", *self.arguments]
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            _send(self.process.stdin, (model, dict(feeds)))
            if select.select([self.process.stdout], [], [], SECONDS)[0]:
                found: dict[str, Array] | None = _receive(self.process.stdout)
                return found
        except (OSError, EOFError, MemoryError, OverflowError, pickle.UnpicklingError):
            pass
        self.close()
        return None

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _send(stream: IO[bytes], content: Any) -> None:
    data = pickle.dumps(content)
    stream.write(_HEAD.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise EOFError
    return pickle.loads(stream.read(_HEAD.unpack(head)[0]))


def disagreement(found: Mapping[str, Array], theirs: Mapping[str, Array]) -> str:
    """How two engines differ by more than any rounding, or nothing; what isn't finite is each one's own affair."""
    for name, expected in theirs.items():
        array = found[name]
        if array.shape != expected.shape and not array.size * expected.size:
            continue  # reductions of nothing: it keeps the empty axis, ONNX's reduce_l2_empty_set has one element
        if array.shape != expected.shape:
            return f"output {name!r} has shape {list(array.shape)}, onnxruntime's {list(expected.shape)}"
        if array.dtype.kind not in "fiub" or expected.dtype != array.dtype or not array.size:
            continue
        a, b = array.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        scale = np.abs(b[finite]).max(initial=0)
        bad = finite & (np.abs(np.where(finite, a - b, 0)) > 0.02 * scale)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"output {name!r} at {list(at)}: {array[at]}, onnxruntime has {expected[at]}"
    return ""


def _serve() -> None:
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not stand among the answers
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if "plain" in sys.argv:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    while True:
        try:
            model, feeds = _receive(sys.stdin.buffer)
        except EOFError:
            return
        found = None
        with contextlib.suppress(Exception):
            session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            names = [output.name for output in session.get_outputs()]
            found = dict(zip(names, session.run(None, feeds), strict=True))
        _send(answers, found)


if __name__ == "__main__":
    _serve()
