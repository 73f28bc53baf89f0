"""Random graphs: autodiff, placement, planner and devices against the reference, by hypothesis.

The graphs are those of ``tests.fuzz``; ``python -m tests.fuzz graphs`` tries as many as one likes and minimizes them.
"""

import dataclasses
import random as standard

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.ir.plan import Segment
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.bind_shapes import bind
from dataflow.planning.verify import check_plan
from tests.fuzz.comparing import wrong
from tests.fuzz.gradients import WITHOUT, differences
from tests.fuzz.making import make_graph
from tests.fuzz.naming import named


@st.composite
def graphs(draw):
    """A graph with its inputs: scalars, views, products, convolutions, bodies, integers, and every op of the kit."""
    try:
        made = make_graph(standard.Random(draw(st.integers(0, 1 << 30))))
    except df.DataflowError:  # it makes up what an op refuses
        assume(False)
    return made


# The same examples at each run.
SETTINGS = settings(max_examples=40, derandomize=True, suppress_health_check=[*HealthCheck])


def run(graph, feeds, devices, registry=None):
    """The results, after the plans were checked."""
    session = df.Session(graph, devices=devices, registry=registry)
    found = session.run(feeds)
    for plan in session.plans:
        check_plan(plan)
        assert plan.peak_bytes >= plan.lower_bound_bytes
    return found, session


@SETTINGS
@given(made=graphs())
def test_devices_and_plans_agree_with_the_reference(remote, made):
    for devices in (["cpu"], ["remote", "cpu"], ["numpy"]):
        found, session = run(made.graph, made.feeds, devices, remote)
        assert not wrong(made.graph, made.feeds, found), devices
    _, session = run(made.graph, made.feeds, ["cpu"])
    for plan in session.plans:
        segments = [i.device for i in plan.items if isinstance(i, Segment)]
        assert segments in ([], ["cpu"]) or "numpy" in segments


@SETTINGS
@given(made=graphs(), choice=st.integers(0, 9))
def test_named_sizes_bound_anew_agree_with_the_reference(made, choice):
    graph, sizes = named(made.graph, standard.Random(choice))
    assume(sizes)
    session = df.Session(graph, devices=["cpu"])
    arrays = np.random.default_rng(0)
    for chosen in (sizes, {name: size + 1 for name, size in sizes.items()}, dict.fromkeys(sizes, 1)):
        feeds = {}
        for value in graph.inputs:
            operand = dataclasses.replace(made.operands[value.name], shape=value.type.bind(chosen).sizes)
            feeds[value.name] = operand.array(arrays) if operand.value is None else made.feeds[value.name]
        try:
            bound = bind(graph, chosen)
            text = wrong(bound, feeds, session.run(feeds))
        except df.InputError:  # the graph was made for other sizes
            continue
        assert not text, chosen


@SETTINGS
@given(made=graphs())
def test_gradients_agree_with_differences(remote, made):
    results = {n: v for n, v in made.graph.outputs.items() if v.type.dtype == df.float32}
    wrt = [v for v in made.graph.inputs if v.type.dtype == df.float32]
    assume(results and wrt and all(np.isfinite(made.feeds[v.name]).all() for v in wrt))
    graph = dataclasses.replace(made.graph, outputs=results)
    try:
        joint = vjp_graph(graph, wrt)
    except df.GradientError:
        assume(False)
    random = np.random.default_rng(1)
    seeds = {f"grad.{n}": random.standard_normal(v.type.sizes).astype(np.float32) for n, v in results.items()}
    for devices in (["cpu"], ["remote", "cpu"]):
        found, _ = run(joint, {**made.feeds, **seeds}, devices, remote)
        assert not wrong(joint, {**made.feeds, **seeds}, found), devices
    if not any(node.op.name in WITHOUT for node in graph.nodes):
        assert not differences(graph, joint, made.feeds, seeds, random)
