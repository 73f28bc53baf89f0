"""Random graphs and their gradients on ``["cuda", "cpu"]``: launched, captured and replayed, against the reference."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings

import dataflow as df
from dataflow.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate

PATH = Path(__file__).parents[1] / "core/test_random_graphs.py"
spec = importlib.util.spec_from_file_location("random_graphs_on_cuda", PATH)
random_graphs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(random_graphs)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=random_graphs.graphs())
def test_random_graphs_agree_with_the_reference(cuda, graph):
    joint = vjp_graph(graph, [*graph.inputs])
    random = np.random.default_rng(1)
    feeds = {v.name: random.standard_normal(v.type.sizes).astype(np.float32) for v in joint.inputs}
    expected = evaluate(joint, feeds, dtype=np.float64)
    session = df.Session(joint, devices=["cuda", "cpu"], registry=cuda)
    for _ in range(3):
        random_graphs.close(session.run(feeds), expected)
