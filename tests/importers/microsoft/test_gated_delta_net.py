"""onnxruntime's packed recurrences of linear attention, against its kernel."""

import numpy as np
import pytest

from dataflow.errors import ModelError
from dataflow_onnx.loading import load_bytes
from tests.importers.microsoft.operator_case import Case, check

random = np.random.default_rng(0)
BATCH, LENGTH, SIZE, WIDTH = 2, 5, 4, 6


def f(*shape):
    return random.standard_normal(shape).astype(np.float32)


def net(
    shared=2, heads=4, *, rule="gated_delta", flat=True, by_size=False, state=True, joined=False, named=False, **more
):
    tokens = (BATCH * LENGTH,) if flat else (BATCH, LENGTH)
    q, k = (f(*tokens, shared, SIZE) / 2 for _ in range(2))
    v = f(*tokens, heads, WIDTH)
    gate = f(*tokens, heads, *((SIZE,) if by_size else ()))
    active = more.get("gate_activation", "none") != "none"
    operands = [q, k, v, None, None, None, f(BATCH, heads, WIDTH, SIZE) if state else None]
    if joined:
        operands[:3] = [np.concatenate([x.reshape(*tokens, -1) for x in (q, k, v)], -1), None, None]
    if rule.startswith("gated"):
        operands[4] = gate if active else -np.abs(gate)
    if rule.endswith("delta"):
        operands[5] = f(*tokens, heads) if more.get("beta_activation") else np.abs(f(*tokens, heads)) / 4
    if active:
        operands += [f(heads) / 2, f(heads, *((SIZE,) if by_size else ()))]
    while operands[-1] is None:
        operands.pop()
    attributes = {"update_rule": rule, **more}
    shapes = {}
    if named:
        shapes = {n: ("batch", "length", *operands[n].shape[2:]) for n in (0, 1, 2, 4, 5)}
        shapes |= {6: ("batch", heads, WIDTH, SIZE)}
    return Case("GatedDeltaNet", operands, attributes, 2, shapes=shapes)


CASES = [
    net(),
    net(4, 4, flat=False, named=True),
    net(flat=False, state=False),
    net(1, 3, by_size=True),
    net(rule="linear"),
    net(rule="gated", scale=0.3),
    net(rule="delta", qk_l2_norm=1),
    net(joined=True),
    net(joined=True, flat=False, qk_l2_norm=1, beta_activation="sigmoid"),
    net(gate_activation="softplus", qk_l2_norm=1, beta_activation="sigmoid"),
    net(gate_activation="kda", by_size=True, qk_l2_norm=1, gate_lower_bound=-3.0),
    net(gate_activation="softplus", by_size=True, rule="gated"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case):
    check(case)


@pytest.mark.parametrize("length", [1e-4, 1e-6, 0.0])
def test_short_vectors_get_the_length_that_onnxruntime_gives_them(length):
    case = net(qk_l2_norm=1)
    case.inputs[:2] = [x * np.float32(length) for x in case.inputs[:2]]
    case.gradient = False  # longer than the steps of differences
    check(case)


def test_samples_of_several_lengths_are_refused():
    case = net()
    case.inputs[3] = np.array([0, 3, 10], np.int32)
    with pytest.raises(ModelError, match="cu_seqlens is not supported"):
        load_bytes(case.model().SerializeToString())
