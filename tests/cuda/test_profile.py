"""A profile on a device that works asynchronously and captures graphs: every step once, the same results."""

from __future__ import annotations

import numpy as np

import dataflow as df
from tests.support import recorded, recording


def test_a_profile_of_a_card_has_every_step_and_the_results_of_a_run(cuda):
    model = recording("cnn")
    x = recorded("cnn")["x"][0].astype(np.float32)
    session = df.Session(model, devices=["cuda", "cpu"], registry=cuda)
    profile = session.profile(x, rounds=3)
    for name, array in session.run(x).items():
        np.testing.assert_allclose(profile.outputs[name], array, rtol=1e-5, atol=1e-5)
    planned = [s.node.name for segment in session.plans[0].segments for s in segment.steps]
    assert [s.node for s in profile.steps if s.op not in ("transfer", "wait")] == planned
    assert {s.device for s in profile.steps} == {"cuda"}
    assert all(s.seconds > 0 for s in profile.steps)
