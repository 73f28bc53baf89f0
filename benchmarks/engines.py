"""Inference by dataflow and by onnxruntime on one model: results compared, then both timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from exact import ERROR_GOAL, exact
from floors import floors
from peer import REST
from report import interleaved, row

import dataflow as df

NEAR = 2e-3  # of the largest result; Winograd's convolutions round more than direct ones

Feeds = Mapping[str, np.ndarray]


def onnxruntime_session(path: str, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compare_results(
    path: str, model: onnx.ModelProto, logits: str, feeds: Feeds, session: df.Session, exactly: bool
) -> dict[str, float]:
    """Fails unless the value ``logits`` is the same by both; after Softmax a difference may not be seen.

    With ``exactly``, the largest error of each, as a part of the largest result in float64.
    """
    outputs = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    onnx.save(model, path + ".logits")
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    (theirs,) = onnxruntime_session(path + ".logits", 1).run(None, dict(feeds))
    ours = session.run(feeds, outputs=[logits])[logits]
    assert np.abs(ours - theirs).max() <= NEAR * np.abs(theirs).max(), f"{path}: the results differ"
    assert np.ptp(theirs) > 0, f"{path}: all results are equal, so nothing was compared"
    if not exactly:
        return {}
    right = exact(model, feeds, logits)
    ours_off, theirs_off = (float(np.abs(found - right).max() / np.abs(right).max()) for found in (ours, theirs))
    assert ours_off <= ERROR_GOAL * theirs_off, f"{path}: error {ours_off:.2g}, of onnxruntime {theirs_off:.2g}"
    return {"error": ours_off, "onnxruntime_error": theirs_off}


def compare(
    what: str,
    path: str,
    model: onnx.ModelProto,
    logits: str,
    feeds: Feeds,
    rounds: int,
    threads: int,
    goal: float,
    exactly: bool = False,
) -> dict[str, Any]:
    """A row of the table.

    Args:
        what: names the work.
        path: the model, stored.
        model: the same.
        logits: the value that is compared.
        feeds: inputs by name.
        rounds: how often each is timed.
        threads: of each.
        goal: the ratio to reach.
        exactly: also compare both with float64, which takes a while.
    """
    ours = df.Session(df.load(path), devices=["cpu"], threads=threads)
    errors = compare_results(path, model, logits, feeds, ours, exactly)
    theirs = onnxruntime_session(path, threads)
    runs = {"dataflow": lambda: ours.run(feeds), "onnxruntime": lambda: theirs.run(None, dict(feeds))}
    times = interleaved(rounds, {name: rested(run) for name, run in runs.items()})
    plan = ours.plan({name: array.shape for name, array in feeds.items()})
    results = ours.run(feeds)
    moved = sum(p.type.nbytes for p in ours.model.parameters.values())
    moved += sum(array.nbytes for arrays in (feeds, results) for array in arrays.values())
    return row(
        f"{what}, {threads} threads",
        times,
        goal,
        floors([plan], moved, threads),
        **{f"{kind}_MB": plan.memory.get(kind, 0) / 1e6 for kind in ("weights", "prepacks", "arena")},
        **errors,
    )


def rested(run: Callable[[], object]) -> Callable[[], float]:
    """Seconds of a run after a rest and a run that does not count.

    After a run onnxruntime's threads spin for a while, and on two cores they would take one from whoever comes next.
    """

    def once() -> float:
        time.sleep(REST)
        run()
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return once
