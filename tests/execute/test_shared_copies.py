"""Sessions of one model have one prepacked copy of each weight."""

import gc
import threading

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.cdevice.host_memory import allocated

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
IMAGE = np.random.default_rng(5).standard_normal((2, 8, 16, 16)).astype(np.float32)


def stored(*shape, seed=0):
    """Data that lie where sessions read them, as a file's do."""
    array = df.empty(shape, df.float32)
    array[...] = np.random.default_rng(seed).standard_normal(shape) / 8
    array.flags.writeable = False
    return array


KERNEL, WEIGHT = stored(32, 8, 3, 3), stored(16, 512, seed=1)


def network(scale=1.0):
    """Over the same data each time; the norm becomes a factor of the kernel, which differs with ``scale``."""
    g = df.GraphBuilder()
    kernel, weight = g.parameter("kernel", KERNEL), g.parameter("w", WEIGHT)
    h = ops.conv(g.input("image", df.float32, ("n", 8, 16, 16)), kernel, **WINDOW)
    of_channels = {
        name: g.parameter(name, np.full(32, value, np.float32))
        for name, value in {"scale": scale, "bias": 0.1, "mean": 0.2, "var": 0.9}.items()
    }
    h = ops.relu(ops.batch_norm(h, *of_channels.values(), epsilon=1e-5))
    g.output("y", ops.matmul(ops.reduce_mean(h, axes=(3,), keepdims=False), weight))
    return df.Model(g.build())


def session(model, **options):
    """One that has run."""
    made = df.Session(model, devices=["cpu"], threads=2, **options)
    made.run(IMAGE)
    return made


@pytest.fixture
def taken():
    """Bytes of the host that a call takes and keeps."""
    gc.collect()

    def measure(call):
        before = allocated()[0]
        made = call()
        return made, allocated()[0] - before

    return measure


def test_the_second_session_takes_no_memory_for_copies(taken):
    model = network()
    first, alone = taken(lambda: session(model))
    (plan,) = first.plans
    copies = plan.memory["prepacks"]
    second, beside = taken(lambda: session(model))
    assert copies > KERNEL.nbytes and beside <= alone - copies
    np.testing.assert_array_equal(second.run(IMAGE)["y"], first.run(IMAGE)["y"])


def test_copies_outlive_the_session_that_made_them(taken):
    model = network()
    first = session(model)
    expected = first.run(IMAGE)["y"]
    before = allocated()[0]
    second = session(model)
    del first
    gc.collect()
    noise = [np.full(1 << 16, np.nan, np.float32) for _ in range(8)]
    np.testing.assert_array_equal(second.run(IMAGE)["y"], expected)
    del second, noise
    gc.collect()
    assert allocated()[0] < before


def test_other_factors_options_and_weights_have_copies_of_their_own(taken):
    model = network()
    first, alone = taken(lambda: session(model))
    expected = first.run(IMAGE)["y"]
    other = network(scale=3.0)
    scaled, beside = taken(lambda: session(other))
    assert beside > alone - WEIGHT.nbytes * 2  # but for the product's weight, which is the same
    reference = df.Session(other, devices=["numpy"]).run(IMAGE)["y"]
    np.testing.assert_allclose(scaled.run(IMAGE)["y"], reference, rtol=1e-4, atol=1e-5)
    direct = session(model, algorithms=df.Algorithms(avoid=["winograd"]))
    np.testing.assert_allclose(direct.run(IMAGE)["y"], expected, rtol=1e-4, atol=1e-5)
    model.parameters["w"].set(WEIGHT * 2)
    np.testing.assert_array_equal(first.run(IMAGE)["y"], expected)
    first.reload()
    np.testing.assert_allclose(first.run(IMAGE)["y"], expected * 2, rtol=1e-4, atol=1e-5)


def test_limits_count_what_a_session_takes_itself():
    model = network()
    first = session(model)
    (plan,), expected = first.plans, first.run(IMAGE)["y"]
    scarce = df.Limits(bytes=plan.memory["arena"] + expected.nbytes + plan.memory["prepacks"] // 2)
    np.testing.assert_array_equal(session(model, limits=scarce).run(IMAGE)["y"], expected)
    del first
    gc.collect()
    with pytest.raises(df.LimitExceeded):
        session(model, limits=scarce)


def test_sessions_made_at_one_time_give_the_same_results():
    model, found = network(), []
    threads = [threading.Thread(target=lambda: found.append(session(model).run(IMAGE)["y"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for result in found:
        np.testing.assert_array_equal(result, found[0])
