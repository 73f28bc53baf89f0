"""Each code path of the CPU plugin, forced: training with fusion on and off, one thread and two."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

TRAINING = """
import numpy as np
from tests.models.test_models import deviations, train
fused = {True: set(), False: set()}
for file in ("mobile", "gpt_script", "unet"):
    for threads in (1, 2):
        for fuse in (True, False):
            runs = [train(file, steps=3, threads=threads, fuse=fuse) for _ in range(2)]
            (losses, gradients, plans, _), (again, others, _, _) = runs
            loss, gradient = deviations(file, losses, gradients)
            assert loss < 1e-3 and gradient < 1e-4, (file, threads, fuse, loss, gradient)
            np.testing.assert_array_equal(losses, again)  # the same bits from run to run
            for name, array in gradients.items():
                np.testing.assert_array_equal(array, others[name])
            steps = [s for p in plans.values() for g in p.segments for s in g.steps]
            own = {"gelu"} if file == "gpt_script" else set()  # an operator of its file
            fused[fuse] |= {s.node.op.name for s in steps if s.node.op.pattern} - own
assert fused[True] and not fused[False], fused
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_training_on_every_instruction_set(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", TRAINING)
