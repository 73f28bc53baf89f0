"""A profile on a device that works asynchronously and captures graphs: every step once, the same results."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow.cdevice import backend
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


@pytest.mark.parametrize("capture", [0, 1])
def test_steps_of_a_card_are_timed_by_its_own_clock(cuda, capture, monkeypatch):
    asked, ask = [], backend.BoundCSegment.elapsed
    monkeypatch.setattr(backend.BoundCSegment, "elapsed", lambda self: asked.append((self, ask(self))) or asked[-1][1])
    x = recorded("cnn")["x"][0].astype(np.float32)
    session = df.Session(recording("cnn"), devices=[("cuda", {"capture": capture}), "cpu"], registry=cuda)
    profile = session.profile(x, rounds=3)
    times = {}
    for segment, seconds in asked:
        times.setdefault(segment, []).append(seconds)
    assert len(times) >= len([s for s in profile.steps if s.op not in ("transfer", "wait")])
    assert all(len(found) == 5 for found in times.values())
    assert all(found[0] == 0.0 for found in times.values())  # a run is timed from the first question on
    assert sum(min(found[1:]) > 0 for found in times.values()) >= len(profile.steps) - 4
