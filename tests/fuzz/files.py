"""Files: mutated ONNX models are loaded, compiled and run; nothing but a refusal or a right result may come of it."""

from __future__ import annotations

import functools
import math
import random as standard
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

import dataflow as df
from dataflow.ir.dims import Dim
from dataflow.ir.types import TensorType
from dataflow.loaded import Loaded
from dataflow.passes.bind_shapes import bind
from dataflow.passes.dead_code import eliminate_dead_code
from dataflow.passes.dynamic_regions import depends_on_data
from dataflow.passes.random_keys import KEY_INPUT
from dataflow.plugin.registry import default_registry

from .comparing import wrong
from .corpus import corpus
from .findings import Finding, Outcome, allowed, finding_of
from .minimizing import shrink_list, shrink_message
from .mutations import damage, mutate
from .referee import OTHERWISE, Referee, disagreement

JUDGED = 0.1  # of the models that ran are given to onnxruntime
MOST_ELEMENTS = 1 << 18  # of an input
MOST_BYTES = 64 << 20  # of a plan
MOST_WORK = 1 << 30  # operations
LIMITS = df.Limits(bytes=512 << 20)  # for sizes that data decides


@functools.cache
def _models() -> tuple[onnx.ModelProto, ...]:
    return tuple(onnx.ModelProto.FromString(data) for _, data in corpus())


@functools.cache
def folder() -> Path:
    """Where the models lie that are loaded by path, with data beside them."""
    found = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (found / "weights.bin").write_bytes(np.ones(64, np.float32).tobytes())
    return found


def made(seed: int, case: int) -> bytes:
    """The mutated model of a case."""
    random = standard.Random(f"{seed}:{case}")
    models = _models()
    index = random.randrange(len(models))
    if random.random() < 0.15:
        return damage(random, corpus()[index][1])
    model = onnx.ModelProto()
    model.CopyFrom(models[index])
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
        try:
            mutate(random, model, models)
        except (ValueError, TypeError):  # protobuf refuses what the field can't hold
            continue
    if random.random() < 0.05 and model.opset_import:
        model.opset_import[0].version = random.choice((6, 7, 9, 10, 11, 12, 13, 14, 16, 18, 21, 23, 99))
    return model.SerializeToString()


def target(seed: int, case: int) -> Outcome:
    """Loads and runs the model of a case; see ``campaign.Target``."""
    return check(made(seed, case), standard.Random(case))


def check(data: bytes, random: standard.Random) -> Outcome:
    """What comes of a serialized model."""
    doing = "loading"
    try:
        if b"weights.bin" in data or random.random() < 0.02:
            path = folder() / "model.onnx"
            path.write_bytes(data)
            model = df.load(str(path))
        else:
            model = _load_bytes(data)
        doing = "compiling"
        sizes: dict[str, int] = {}
        graph = model.graph_with_data()
        feeds = {v.name: _array(v.type, sizes, random) for v in graph.inputs}
        if any(a is None for a in feeds.values()):
            return Outcome("large")
        session = df.Session(model, devices=["cpu"], threads=1, limits=LIMITS)
        depends = depends_on_data(graph)
        if not depends:
            plan = session.plan({n: a.shape for n, a in feeds.items()})
            if plan.peak_bytes + sum(a.bytes for a in plan.arenas) > MOST_BYTES or _work(session, feeds) > MOST_WORK:
                return Outcome("large")
        doing = "running"
        results = session.run(feeds)
    except Exception as error:
        if allowed(error):
            return Outcome(f"refused {doing}")
        return Outcome("foreign", (finding_of(error, doing),))
    if depends:
        return Outcome("ran")
    bound = graph
    try:
        kernels = default_registry().reference_kernels
        given = {**feeds, KEY_INPUT: np.zeros(2, np.uint64)}  # of random nodes in the first run
        bound = eliminate_dead_code(bind(_graph_run(session, given), sizes, kernels))
        text = wrong(bound, given, results)
    except df.DataflowError as error:
        if any(0 in v.type.shape for v in bound.values()):  # where nothing is computed, nothing is refused
            return Outcome("ran")
        text = f"ran, and the reference refuses: {error}"
    except MemoryError:  # the reference copies what kernels read through padding and dilation
        return Outcome("large")
    except Exception as error:
        return Outcome("failed", (finding_of(error, "the reference"),))
    if text:
        names = " ".join(sorted({node.op.name for node in graph.nodes}))
        return Outcome("different", (Finding("different", names, text),))
    return _judged(data, graph, feeds, results) if random.random() < JUDGED else Outcome("ran")


def _graph_run(session: df.Session, feeds: Mapping[str, Any]) -> df.Graph:
    """The model's graph, or the one that a session made of the file for these inputs, since that can't be bound."""

    def graph_of(made: Loaded) -> df.Graph:
        made._runs.program(feeds, None)
        return made._runs.graph

    return session._loaded()._where_bound(feeds, feeds, None, graph_of)


def _judged(data: bytes, graph: df.Graph, feeds: Mapping[str, Any], results: Mapping[str, Any]) -> Outcome:
    """What onnxruntime says of a model that is valid by ONNX's own checker."""
    model = onnx.ModelProto.FromString(data)
    if any(node.op_type in OTHERWISE for node in model.graph.node):
        return Outcome("ran")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # whatever is wrong with it: it says nothing then
        return Outcome("ran")
    theirs = _referee().results(data, feeds)
    if theirs is None:
        return Outcome("ran")
    text = disagreement(results, theirs)
    names = " ".join(sorted({node.op.name for node in graph.nodes}))
    return Outcome("judged", (Finding("onnxruntime", names, text),) if text else ())


@functools.cache
def _referee() -> Referee:
    return Referee()


def _load_bytes(data: bytes) -> df.Model:
    from dataflow_onnx.loading import load_bytes

    return load_bytes(data)


def _work(session: df.Session, feeds: Mapping[str, Any]) -> int:
    return sum(p.operations for p in session.placement({n: a.shape for n, a in feeds.items()}))


def _array(type_: TensorType, sizes: dict[str, int], random: standard.Random) -> Any:
    """Data of a type, where names that have no size yet get one; None for what is too large."""
    for dim in type_.shape:
        for name in sorted(dim.names) if isinstance(dim, Dim) else ():
            sizes.setdefault(name, random.choice((0, 1, 2, 3, 4, 5)))
    shape = type_.bind(sizes).sizes
    if math.prod(shape) > MOST_ELEMENTS:
        return None
    arrays = np.random.default_rng(random.getrandbits(32))
    if type_.dtype.kind == "s":
        return np.full(shape, "a", object)
    if type_.dtype.kind == "b":
        return arrays.random(shape) < 0.7
    if type_.dtype.is_int:
        return arrays.integers(0, 4, shape).astype(type_.dtype.numpy)
    return arrays.standard_normal(shape).astype(type_.dtype.numpy)


def reproduce(seed: int, case: int, path: Path) -> None:
    """Writes the smallest model that has the finding of a case."""
    data = made(seed, case)
    wanted = {(f.kind, f.where) for f in check(data, standard.Random(case)).findings}

    def fails(smaller: bytes) -> bool:
        found = check(smaller, standard.Random(case)).findings
        return any((f.kind, f.where) in wanted or (f.kind == "different" and wanted) for f in found)

    if not wanted:
        path.write_bytes(data)
        return
    try:
        message = shrink_message(onnx.ModelProto.FromString(data), lambda m: fails(m.SerializeToString()))
        path.write_bytes(message.SerializeToString())
    except DecodeError:
        path.write_bytes(bytes(shrink_list(data, lambda smaller: fails(bytes(smaller)))))
