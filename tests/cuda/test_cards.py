"""Several cards: which one a thread works with, what each can be used for, and who reads whose memory."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df


def doubled():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    g.output("y", df.ops.add(x, x))
    return df.Model(g.build())


@pytest.mark.parametrize("card", [0, 1])
def test_the_callers_card_stays_chosen(card, standin, standin_registry):
    standin.choose(card)
    try:
        for device in ("cuda", "cuda:1"):
            session = df.Session(doubled(), devices=[device], registry=standin_registry)
            for _ in range(3):
                np.testing.assert_array_equal(session.run(np.ones(3, np.float32))["y"], 2)
                assert standin.chosen == card
            session.close()
            assert standin.chosen == card
    finally:
        standin.choose(0)
