"""Random graphs and their gradients on ``["cuda", "cpu"]``: launched, captured and replayed, against the reference."""

from __future__ import annotations

import random as standard

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from tests.fuzz.comparing import wrong
from tests.fuzz.making import make_graph


@settings(max_examples=30, derandomize=True, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 1 << 30))
def test_random_graphs_agree_with_the_reference(cuda, seed):
    try:
        made = make_graph(standard.Random(seed))
        joint = vjp_graph(made.graph, [v for v in made.graph.inputs if v.type.dtype == df.float32])
    except df.DataflowError:  # it has no gradient
        assume(False)
    arrays = np.random.default_rng(1)
    feeds = {v.name: arrays.standard_normal(v.type.sizes).astype(v.type.dtype.numpy) for v in joint.inputs}
    feeds |= made.feeds
    session = df.Session(joint, devices=["cuda", "cpu"], registry=cuda)
    for _ in range(3):
        assert not wrong(joint, feeds, session.run(feeds))
