"""Models run and train on ``["cuda", "cpu"]`` as they do on the CPU, also where a third of the ops is refused."""

from __future__ import annotations

import pytest

from dataflow.ir.plan import Segment
from dataflow.planning.offsets import values_apart
from tests.execute import test_canaries as canaries
from tests.kit_samples import EVERY_VARIANT
from tests.models import test_models as models
from tests.support import recorded
from tests.train import test_programs as programs
from tests.train import test_recordings as recordings

DEVICES = ["cuda", "cpu"]


def follow(file, steps, registry):
    losses, gradients, plans, _ = models.train(file, steps=steps, devices=DEVICES, registry=registry)
    loss, gradient = models.deviations(file, losses, gradients)
    assert loss < 1e-3
    assert gradient < 1e-4
    return plans


@pytest.mark.parametrize("file", models.FILES)
def test_models_follow_pytorch(file, cuda, request):
    on_card = request.node.callspec.params["cuda"] == "card"
    plans = follow(file, models.made.STEPS if on_card else 3, cuda)  # the stand-in is slow
    for plan in plans.values():
        assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes
        if models.family_of(file) not in ("branch", "recurrence"):  # their bodies run on the host
            computing = [s for s in plan.segments if {step.node.op.name for step in s.steps} != {"copy"}]
            assert {s.device for s in computing} == {"cuda"}  # a result that is a constant is copied on the host


@pytest.mark.parametrize("third", [0, 1, 2])
@pytest.mark.parametrize("family", models.made.FAMILIES)
def test_a_forced_mix_gives_the_same(family, third, cuda, refusing):
    plans = follow(family, 4, refusing(third, "cuda", cuda))
    assert {s.device for p in plans.values() for s in p.items if isinstance(s, Segment)} >= {"cuda", "cpu"}


@pytest.mark.parametrize("third", [None, 0, 1])
def test_forward_backward_and_update_give_the_bits_of_step(third, cuda, refusing):
    registry = cuda if third is None else refusing(third, "cuda", cuda)
    programs.assert_apart_is_step(devices=DEVICES, registry=registry)


@pytest.mark.parametrize("file", ["cnn", "lstm"])
def test_no_kernel_of_a_training_writes_between_values(file, cuda):
    expected, _ = canaries.train(file, devices=DEVICES, registry=cuda)
    with values_apart():
        losses, damages = canaries.train(file, devices=DEVICES, registry=cuda)
    assert losses == expected
    assert damages
    assert damages == [None] * len(damages)


NAMES = ("name", "file", "label", "optimizer")


@pytest.mark.parametrize(NAMES, recordings.RUNS, ids=lambda v: v if isinstance(v, str) else "")
def test_recordings_follow_pytorch(name, file, label, optimizer, cuda, request):
    if file.endswith("_script") and request.node.callspec.params["cuda"] != "card" and not EVERY_VARIANT:
        pytest.skip("the nightly script tries both exporters: DATAFLOW_EVERY_VARIANT=1")
    data = recorded(name)
    results = recordings.run(data, file, label, optimizer, devices=DEVICES, registry=cuda)
    loss, gradient, change = recordings.deviations(data, file, label, results)
    assert loss < 1e-4 if name != "resnet" else loss < 1e-3
    assert gradient < 1e-4
    assert change < 1e-3
