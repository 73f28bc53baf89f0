"""Saved files: a random graph as ONNX, read again by us and run by onnxruntime, both against float64."""

from __future__ import annotations

import functools
import random as standard
import tempfile
from pathlib import Path

import numpy as np
import onnx

import dataflow as df

from .comparing import wrong
from .findings import Finding, Outcome, allowed, different, ended_by, finding_of
from .graphs import of_graph
from .making import Made
from .referee import Referee

OVERLOOKING = {"reduce_max", "reduce_min", "max_pool"}  # NaN beside numbers, in onnxruntime


def has_nan(graph: Made) -> bool:
    """Whether one is among what a graph is fed or stores."""
    stored = (data.array for data in graph.graph.initializers.values())
    return any(np.isnan(a).any() for a in (*graph.feeds.values(), *stored) if a.dtype.kind == "f")


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """Saves the graph of a case; see ``campaign.Target``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            df.save(df.Model(graph.graph), str(path))
        except Exception as error:
            return ended_by(error, "saving", "no form")
        data = path.read_bytes()
        try:
            again = df.Session(df.load(str(path)), devices=["cpu"], threads=1).run(graph.feeds)
            text = wrong(graph.graph, graph.feeds, again)
        except Exception as error:
            if not allowed(error):
                return Outcome("failed", (finding_of(error, "read again"),))
            text = f"{type(error).__name__}: {error}"
    if text:
        return different("read again", graph.graph, text)
    if has_nan(graph) and any(node.op.name in OVERLOOKING for node in graph.graph.nodes):
        return Outcome("onnxruntime overlooks NaN")
    theirs = _referee().results(data, graph.feeds)
    if theirs is None:
        return Outcome("onnxruntime refuses")
    text = wrong(graph.graph, graph.feeds, theirs)
    if text:
        names = " ".join(sorted({node.op.name for node in graph.graph.nodes}))
        model = onnx.printer.to_text(onnx.ModelProto.FromString(data))
        return Outcome("judged", (Finding("onnxruntime", names, f"{text}\n{graph.graph}\n{model[:3000]}"),))
    return Outcome("ran")


@functools.cache
def _referee() -> Referee:
    return Referee()
