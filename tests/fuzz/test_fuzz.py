"""The short, seeded form of each campaign, and that the machinery notices what it is for."""

import os
import random as standard
import signal
import time

import numpy as np
import onnx
import pytest

import dataflow as df
from tests.kit_samples import EVERY_VARIANT

from . import (
    adapters,
    dtypes,
    edits,
    files,
    gradients,
    graphs,
    integers,
    losses,
    optimizers,
    plans,
    processes,
    quantized,
    saved,
    second,
    sessions,
    sizes,
    storage,
    training,
)
from .campaign import campaign
from .comparing import wrong
from .corpus import corpus
from .findings import Finding, Outcome, allowed
from .minimizing import shrink_graph, shrink_list, shrink_message

ops = df.ops


@pytest.mark.parametrize("block", range(4))
def test_mutated_files_are_refused_or_right(block):
    report = campaign("files", files.target, 2, range(100 * block, 100 * block + 100))
    assert report.cases == 100
    assert not report.findings


def test_the_reference_computes_sizes_as_a_session_does():
    zero = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "zero")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, "n"])
    z = onnx.helper.make_tensor_value_info("z", onnx.TensorProto.INT64, None)
    node = onnx.helper.make_node("NonZero", ["zero"], ["z"])
    graph = onnx.helper.make_graph([node], "g", [x], [z], [zero])
    opsets = [onnx.helper.make_opsetid("", 18)]
    data = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    for seed in range(5):
        outcome = files.check(data, standard.Random(seed))
        assert outcome.word in ("ran", "judged") and not outcome.findings


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_are_right_on_every_device_and_with_every_option(block):
    report = campaign("graphs", graphs.target, 3, range(20 * block, 20 * block + 20))
    assert report.cases == 20
    assert not report.findings


def test_gradients_of_random_graphs_agree_with_differences():
    report = campaign("gradients", gradients.target, 3, range(20))
    assert report.cases == 20
    assert not report.findings


@pytest.mark.parametrize(
    ("name", "target", "count"),
    [
        ("second", second.target, 8),
        ("dtypes", dtypes.target, 24),
        ("integers", integers.target, 60),
        ("training", training.target, 12),
        ("saved", saved.target, 25),
        ("adapters", adapters.target, 24),
        ("storage", storage.target, 16),
        ("sessions", sessions.target, 40),
        ("edits", edits.target, 30),
        ("losses", losses.target, 30),
        ("optimizers", optimizers.target, 60),
        ("quantized", quantized.target, 20),
    ],
)
def test_random_graphs_are_differentiated_again_trained_saved_and_adapted(name, target, count):
    report = campaign(name, target, 3, range(count * (10 if EVERY_VARIANT else 1)))
    assert report.counts["ran"] >= count // 2
    assert not report.findings


def test_processes_train_random_models_as_one_does():
    pytest.importorskip("mpi4py")
    cases = range(40) if EVERY_VARIANT else range(6, 10)  # of two processes, the first resumed: they are started once
    report = campaign("processes", processes.target, 5, cases)
    assert report.counts["ran"] == report.cases
    assert not report.findings


@pytest.mark.parametrize("block", range(4 if EVERY_VARIANT else 2))
def test_models_that_compute_with_sizes_give_what_onnxruntime_gives(block):
    report = campaign("sizes", sizes.target, 3, range(250 * block, 250 * block + 250))
    assert report.cases == 250
    assert report.counts["ran"] > 225
    assert not report.findings


def test_plans_of_random_programs_are_right_and_wrong_ones_are_not_accepted():
    report = campaign("plans", plans.target, 3, range(200))
    assert report.cases == 200
    assert not report.findings


def test_the_corpus_is_valid_and_has_every_operator():
    from dataflow_onnx.loading import load_bytes
    from dataflow_onnx.operators import STANDARD

    seen = set()
    for name, data in corpus():
        model = onnx.ModelProto.FromString(data)
        seen |= {(node.domain, node.op_type) for node in model.graph.node}
        if "external" not in name:
            load_bytes(data)
    of_onnx = {
        (domain, op) for domain, op in STANDARD.versions if not domain and onnx.defs.has(op)
    }  # others lack cases
    assert len(of_onnx - seen) < 0.25 * len(of_onnx), sorted(of_onnx - seen)


# ---- the machinery -------------------------------------------------------------------------------------


def hostile(seed, case):
    """One case of each kind of finding."""
    if case == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == 5:
        time.sleep(1000)
    if case == 7:
        raise ValueError("a mistake")
    return Outcome("ran", (Finding("different", "here", "text"),) if case == 9 else ())


def test_a_campaign_survives_and_reports_what_its_workers_do(monkeypatch):
    monkeypatch.setattr(f"{campaign.__module__}.WALL_SECONDS", 1.0)
    report = campaign("hostile", hostile, 1, range(12), jobs=2, share=6)
    kinds = {name.partition(":")[0]: entry["cases"] for name, entry in report.findings.items()}
    assert kinds == {"crash": [3], "hang": [5], "foreign": [7], "different": [9]}
    assert report.cases == 12
    assert report.as_json()["counts"] == {"ran": 9, "died": 2, "failed": 1}


def test_the_same_case_is_the_same_input():
    assert files.made(7, 11) == files.made(7, 11)
    (a, _), (b, _) = graphs.made(7, 11), graphs.made(7, 11)
    assert str(a.graph) == str(b.graph)
    assert all((a.feeds[n] == b.feeds[n]).all() for n in a.feeds)


def test_what_rounding_explains_is_no_difference_and_anything_else_is():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (50,))
    g.output("y", ops.sub(ops.add(x, 1000.0), 1000.0))  # loses digits
    g.output("z", ops.sin(x))
    graph, array = g.build(), np.random.default_rng(0).standard_normal(50).astype(np.float32)
    right = {"y": (array + np.float32(1000)) - np.float32(1000), "z": np.sin(array)}
    assert not wrong(graph, {"x": array}, right)
    assert "output 'z'" in wrong(graph, {"x": array}, right | {"z": np.sin(array) + np.float32(0.01)})
    assert "output 'y'" in wrong(graph, {"x": array}, right | {"y": array + 1})
    assert "nan" in wrong(graph, {"x": array}, right | {"z": np.where(array > 1, np.nan, np.sin(array))})


def test_only_errors_that_say_what_is_wrong_are_allowed():
    assert allowed(df.ModelError("node"))
    assert allowed(FileNotFoundError("x"))
    assert allowed(MemoryError("12 bytes"))
    assert not allowed(MemoryError())
    assert not allowed(TypeError("x"))


def test_failing_graphs_shrink_to_the_nodes_at_fault():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3, 4))
    h = ops.tanh(ops.add(ops.sin(x), 1.0))
    g.output("a", ops.relu(ops.transpose(ops.erf(h), perm=(1, 0))))
    g.output("b", ops.exp(h))
    feeds = {"x": np.ones((3, 4), np.float32)}
    small, _ = shrink_graph(g.build(), feeds, lambda graph, _: any(n.op.name == "erf" for n in graph.nodes))
    assert [n.op.name for n in small.nodes] == ["erf"]


def test_failing_lists_and_messages_shrink():
    assert shrink_list(range(100), lambda kept: {3, 77} <= set(kept)) == [3, 77]
    model = onnx.ModelProto.FromString(dict(corpus())["special_shapes"])
    small = shrink_message(model, lambda m: any(n.op_type == "Gather" for n in m.graph.node))
    assert [n.op_type for n in small.graph.node] == ["Gather"]
    assert not small.graph.initializer
    assert not small.graph.node[0].input


def test_mutations_differ():
    random = standard.Random(0)
    assert len({files.made(1, random.randrange(10**9)) for _ in range(50)}) > 45


def test_coverage_guided_reading_finds_nothing_in_a_moment():
    pytest.importorskip("atheris")
    from .coverage import cover

    report = cover(6 / 60, 1)
    assert report.cases > 1000
    assert not report.findings


def test_inputs_that_reached_something_new_are_kept(monkeypatch, tmp_path):
    pytest.importorskip("atheris")
    from . import coverage
    from .corpus import PATH, unpack

    monkeypatch.setattr(coverage, "KEPT", tmp_path / "reached.xz")
    monkeypatch.setattr(coverage, "TARGETS", ("wire",))
    coverage.cover(6 / 60, 1, keep=True)
    kept = dict(unpack(tmp_path / "reached.xz"))
    assert kept
    assert not {data for _, data in unpack(PATH)} & set(kept.values())


def test_written_tests_build_the_same_graph(tmp_path):
    for case in range(12):
        path = tmp_path / "written.py"
        graphs.reproduce(3, case, path)
        code = path.read_text()
        known = {}
        exec(compile(code, str(path), "exec"), known)
        known["test_it_is_right_on_every_device"]()
