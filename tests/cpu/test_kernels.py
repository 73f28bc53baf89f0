"""Every C kernel against the reference, for each instruction set; errors name what is wrong."""

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import default_registry
from tests.support import kit_on

# What the cpu device leaves to others: views are no steps, these nodes are run by the host.
HOST_DRIVEN = {"if_", "loop"}
# Binding makes constants of these, and strings and images are the host's.
BEFORE = {"deferred", "sizes"}
HOST = {"regex_full_match", "string_case", "string_concat", "string_split", "string_split_count"}
HOST |= {"string_token_count", "string_tokens", "murmur_hash", "image_size", "decode_image"}


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_every_kernel_agrees_with_the_reference(isa):
    """Each sample plain and in three other variants with this machine's instruction set, in one with the others."""
    own = default_registry().devices["cpu"].version.endswith(isa)
    found = kit_on(isa, variants=3 if own else 1)
    assert found["bad"] == []
    assert found["passed"] > (3000 if own else 1500)
    views = {op.name for op in df.ops.ALL if op.view is not None}
    composite = {op.name for op in df.ops.ALL if op.decompose is not None}
    needed = {op.name for op in df.ops.ALL} - views - composite - HOST_DRIVEN - BEFORE - HOST
    assert needed <= set(found["claimed"])


def test_amx_tiles_are_as_right_as_float32():
    found = kit_on("amx", precision="bf16x6")
    assert found["bad"] == []
    assert found["passed"] > 1500


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_index_out_of_range_is_named(device, dtype):
    g = df.GraphBuilder()
    table = g.parameter("table", np.zeros((4, 2), np.float32))
    g.output("y", df.ops.gather(table, g.input("at", dtype, (3,)), name="lookup"))
    session = df.Session(df.Model(g.build()), devices=[device])
    with pytest.raises(df.InputError, match=r"gather 'lookup'.*index 4 .*\[?1\]?.*-4"):
        session.run(np.array([0, 4, 1], dtype))
    session.run(np.array([0, -4, 3], dtype))  # the session still works


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_label_out_of_range_is_named(device):
    g = df.GraphBuilder()
    logits, labels = g.input("logits", df.float32, (3, 5)), g.input("labels", df.int64, (3,))
    g.output("loss", df.ops.softmax_cross_entropy(logits, labels, name="loss"))
    session = df.Session(df.Model(g.build()), devices=[device])
    x = np.zeros((3, 5), np.float32)
    with pytest.raises(df.InputError, match=r"softmax_cross_entropy 'loss'.*label 5 .*2"):
        session.run({"logits": x, "labels": np.array([0, -100, 5])})
    np.testing.assert_allclose(session.run({"logits": x, "labels": np.array([0, -100, 4])})["loss"][1], 0)


def test_results_do_not_depend_on_threads_that_are_free():
    random = np.random.default_rng(0)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (300, 700))
    w = g.constant(random.standard_normal((700, 300)).astype(np.float32))
    g.output("y", df.ops.reduce_sum(df.ops.matmul(x, w), axes=(0,)))
    session = df.Session(df.Model(g.build()), devices=["cpu"], threads=2)
    data = random.standard_normal((300, 700)).astype(np.float32)
    assert len({session.run(data)["y"].tobytes() for _ in range(20)}) == 1
