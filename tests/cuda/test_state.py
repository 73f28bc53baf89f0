"""A decoder's cache on a card: its state stays there, and lengths that grow are planned once."""

import numpy as np
import onnx

import dataflow as df
from tests.decoders import inputs, text_of
from tests.growing import check_rows


def test_a_cache_stays_on_the_card(cuda, tmp_path):
    path = tmp_path / "decoder.onnx"
    onnx.save(onnx.parser.parse_model(text_of("all")), path)
    decoder = df.load(path)
    session = df.Session(decoder, ["cuda", "cpu"], registry=cuda, state={"present": "past"})
    other = df.Session(decoder, ["cpu"], state={"present": "past"})
    for new in [3, *[1] * 12]:
        fed = {**inputs(0 if not session.state else session.state["past"].shape[2], new=new)}
        del fed["past"]
        np.testing.assert_allclose(session.run(fed)["y"], other.run(fed)["y"], rtol=1e-4, atol=1e-5)
    assert len(session.plans) == 3  # of the prompt, of a token, and of all others
    memory = {arena.name: (arena.kind, arena.memory) for arena in session.plans[-1].arenas}
    assert memory["past"] == ("grown", "cuda:0")


def test_rows_of_any_type_are_added_on_a_card(cuda):
    for seed in range(4):
        assert "grown" in check_rows(np.random.default_rng(seed), ["cuda", "cpu"], registry=cuda)
        check_rows(np.random.default_rng(seed), ["cuda", "cpu"], registry=cuda, views=True)
