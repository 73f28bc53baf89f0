"""Sessions in little memory: no prepacked copies of weights, one scratch memory for all plans."""

import gc
import threading

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.cdevice.host_memory import allocated

RANDOM = np.random.default_rng(3)
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}


def network():
    """A convolution and products, with weights that are prepacked, and lie where sessions read them, as a file's."""

    def weight(name, *shape):
        array = df.empty(shape, df.float32)
        array[...] = RANDOM.standard_normal(shape) / 8
        array.flags.writeable = False
        return g.parameter(name, array)

    g = df.GraphBuilder()
    image = g.input("image", df.float32, ("n", 8, 16, 16))
    h = ops.relu(ops.conv(image, weight("kernel", 32, 8, 3, 3), **WINDOW))
    h = ops.matmul(ops.reduce_mean(h, axes=(3,), keepdims=False), weight("w", 16, 64))
    h = ops.gelu(ops.matmul(h, weight("v", 64, 64)))
    g.output("y", ops.matmul(h, weight("u", 64, 10)))
    return df.Model(g.build())


def images(n):
    return np.random.default_rng(n).standard_normal((n, 8, 16, 16)).astype(np.float32)


def test_weights_take_no_memory_but_the_models():
    model = network()
    usual = df.Session(model, devices=["cpu"]).run(images(2))["y"]
    prepacked = df.Session(model, devices=["cpu"]).plan({"image": (2, 8, 16, 16)}).memory["prepacks"]
    before = allocated()[0]
    session = df.Session(model, devices=["cpu"], memory="small")
    np.testing.assert_allclose(session.run(images(2))["y"], usual, rtol=1e-5, atol=1e-6)
    (plan,) = session.plans
    assert prepacked > 0 and not plan.prepacks
    assert allocated()[0] - before == plan.memory["arena"]
    del session
    assert allocated()[0] == before


def test_all_plans_use_one_scratch_memory_also_of_runs_at_one_time():
    model = network()
    expected = {n: df.Session(model, devices=["cpu"]).run(images(n))["y"] for n in range(1, 7)}
    gc.collect()  # sessions of other tests, which it would find meanwhile
    before = allocated()[0]
    session = df.Session(model, devices=["cpu"], memory="small", threads=1)
    failures = []

    def run(first):
        for i in range(30):
            n = 1 + (first + i) % 6
            if not np.allclose(session.run(images(n))["y"], expected[n], rtol=1e-5, atol=1e-6):
                failures.append(n)

    threads = [threading.Thread(target=run, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    plans = session.plans
    assert len(plans) == 6
    assert allocated()[0] - before == max(plan.memory["arena"] for plan in plans)


def test_todays_weights_are_read_after_a_reload():
    model = network()
    session = df.Session(model, devices=["cpu"], memory="small")
    before = session.run(images(1))["y"]
    model.parameters["u"].set(2 * model.parameters["u"].array)
    np.testing.assert_array_equal(session.run(images(1))["y"], before)
    session.reload()
    np.testing.assert_allclose(session.run(images(1))["y"], 2 * before, rtol=1e-5, atol=1e-6)


def test_another_word_is_refused():
    with pytest.raises(df.InputError, match="memory is 'tiny'; expected 'small'"):
        df.Session(network(), memory="tiny")


def test_state_stays_as_ever():
    g = df.GraphBuilder()
    x, sum = g.input("x", df.float32, (1, 64)), g.input("sum", df.float32, (1, 64))
    w = g.parameter("w", (RANDOM.standard_normal((64, 64)) / 8).astype(np.float32))
    g.output("next", ops.add(ops.matmul(x, w), sum))
    x = RANDOM.standard_normal((1, 64)).astype(np.float32)
    found = []
    for memory in (None, "small"):
        session = df.Session(df.Model(g.build()), devices=["cpu"], state={"next": "sum"}, memory=memory)
        for _ in range(3):
            session.run({"x": x})
        found.append(session.state["sum"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_kernels_of_growing_state_get_no_copies_either():
    """They were prepared as if they had copies of constants, and wrote where none are."""
    g = df.GraphBuilder()
    kernel, image = RANDOM.standard_normal((7, 5, 1, 1)).astype(np.float32), np.ones((2, 5, 4, 4), np.float32)
    one = {**WINDOW, "pads": (0, 0, 0, 0)}
    y = ops.conv(g.input("image", df.float32, image.shape), g.parameter("kernel", kernel), **one)
    past = g.input("past", df.float32, ("rows", 4))
    g.output("present", ops.concat(past, ops.reshape(y, shape=(56, 4)), axis=0))
    session = df.Session(g.build(), ["cpu"], state={"present": "past"}, memory="small")
    for _ in range(6):
        session.run(image)
    expected = np.einsum("oi,nihw->nohw", kernel[:, :, 0, 0], image).reshape(56, 4)
    np.testing.assert_allclose(session.state["past"], np.tile(expected, (6, 1)), rtol=1e-5, atol=1e-6)
