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


# ---- in processes of their own: what a card has stays as long as the process -----------------------------


RUN = """
def run(*devices, pin=None):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    y = df.ops.relu(x)
    g.output("y", df.ops.add(y, y))
    session = df.Session(df.Model(g.build()), devices=[*devices, "cpu"], registry=registry, pin=pin or {})
    for _ in range(3):
        np.testing.assert_array_equal(session.run(np.ones(3, np.float32))["y"], 2)
"""


def test_a_session_makes_a_context_on_its_own_card_alone(alone):
    text = """
run("cuda:1")
print(standin.standin_contexts(), standin.standin_peers(0), standin.standin_peers(1))
"""
    assert alone(RUN + text, STANDIN_DEVICES="2") == ["2", "0", "0"]


def test_cards_reach_each_other_from_the_first_copy_between_them_on(alone):
    text = """
run("cuda", "cuda:1", pin={"relu": "cuda:1"})
print(standin.standin_contexts(), standin.standin_peers(0), standin.standin_peers(1))
run("cuda", "cuda:1", pin={"add": "cuda:1"})  # in the other direction, and again
run("cuda", "cuda:1", pin={"add": "cuda:1"})
print(standin.standin_peers(0), standin.standin_peers(1))
"""
    assert alone(RUN + text, STANDIN_DEVICES="2") == ["3", "2", "0", "2", "1"]


def test_a_card_that_is_too_old_says_so_and_the_others_work(alone):
    text = """
print(registry.devices["cuda"].unavailable.replace(" ", "_"), registry.devices["cuda:1"].unavailable)
run("cuda:1")
"""
    found = alone(RUN + text, STANDIN_DEVICES="2", STANDIN_CAPABILITY="75,80")
    assert found == ["stand-in_has_compute_capability_7.5;_at_least_8.0_is_needed", "None"]
