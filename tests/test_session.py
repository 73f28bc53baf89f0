"""Sessions: what a run returns, allocates and counts; several threads; refusals."""

import dataclasses
import threading

import numpy as np
import pytest

import dataflow as df
from dataflow.cdevice.host_memory import allocated
from tests.support import recorded, recording


def small(batch="batch"):
    g = df.GraphBuilder("small")
    x = g.input("x", df.float32, (batch, 6))
    w = g.parameter("w", np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8))
    h = df.ops.relu(df.ops.matmul(x, w))
    g.output("y", df.ops.softmax(h))
    g.output("h", h)
    return df.Model(g.build())


def expected(x):
    h = np.maximum(x @ np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8), 0)
    e = np.exp(h - h.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True), h


X = np.random.default_rng(3).standard_normal((5, 6)).astype(np.float32)


def test_outputs_come_by_name_in_order_and_belong_to_the_caller():
    session = df.Session(small(), devices=["cpu"])
    first = session.run({"x": X})
    second = session.run(X * 2)
    assert list(first) == ["y", "h"]
    for (y, h), found in ((expected(X), first), (expected(X * 2), second)):
        np.testing.assert_allclose(found["y"], y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["h"], h, rtol=1e-5, atol=1e-6)


def test_inner_values_can_be_asked_for_and_lists_take_the_dtype():
    session = df.Session(small(), devices=["cpu"])
    found = session.run(X.tolist(), outputs=["matmul"])
    w = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
    np.testing.assert_allclose(found["matmul"], X @ w, rtol=1e-5, atol=1e-6)


def test_out_is_written_and_returned():
    session = df.Session(small(), devices=["cpu"])
    out = {"y": np.full((5, 8), 7, np.float32)}
    found = session.run(X, out=out)
    assert found["y"] is out["y"]
    np.testing.assert_allclose(out["y"], expected(X)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda s: s.run({"z": X}), ["unknown inputs: z", "missing inputs: x"]),
        (lambda s: s.run({"x": X.astype(np.float64)}), ["float64", ".astype(np.float32)"]),
        (lambda s: s.run({"x": X[:, :4]}), ["axis 1 must be 6"]),
        (lambda s: s.run({"x": X[0]}), ["rank 2"]),
        (lambda s: s.run(X, outputs=["nothing"]), ["nothing"]),
        (lambda s: s.run(X, out={"y": np.empty((4, 8), np.float32)}), ["out['y']", "float32[5, 8]"]),
        (lambda s: s.run(X, out={"q": np.empty(1, np.float32)}), ["no output 'q'"]),
        (lambda s: s.run((X, X)), ["got 2 inputs"]),
    ],
)
def test_refusals_say_what_was_expected(call, texts):
    session = df.Session(small(), devices=["cpu"])
    with pytest.raises(df.DataflowError) as caught:
        call(session)
    for text in texts:
        assert text in str(caught.value)


def test_a_named_device_that_does_not_exist_is_refused():
    with pytest.raises(df.InputError, match=r"there is no device 'tpu'; there are: .*cpu"):
        df.Session(small(), devices=["tpu"])


def test_zero_rows_run():
    found = df.Session(small(), devices=["cpu"]).run(np.empty((0, 6), np.float32))
    assert found["y"].shape == (0, 8)


def test_reload_takes_the_newest_weights():
    model = small()
    session = df.Session(model, devices=["cpu"])
    before = session.run(X)["h"]
    model.parameters["w"].set(np.zeros((6, 8), np.float32))
    assert (session.run(X)["h"] == before).all()
    session.reload()
    assert (session.run(X)["h"] == 0).all()


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_one_segment_one_native_call_and_no_tensor_memory(name):
    model = recording(name)
    session = df.Session(model, devices=["cpu"])
    x = recorded(name)["x"][0].astype(np.float32)
    session.run(x)
    plan = session.plan(x.shape)
    assert [type(item).__name__ for item in plan.items] == ["Segment"]
    program = next(iter(session._loaded().engine.programs.values()))
    (bound,) = program.bounds
    calls, natives, memory = bound.kernel_calls, bound.native_calls, allocated()
    out = {n: np.empty(o.type.sizes, np.float32) for n, o in plan.outputs.items()}
    for _ in range(3):
        session.run(x, out=out)
    assert bound.native_calls - natives == 3
    assert bound.kernel_calls - calls == 3 * len(plan.segments[0].steps)
    assert allocated() == memory


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_training_programs_are_one_segment_each_and_allocate_nothing_when_replayed(name):
    model = recording(name)
    data = recorded(name)
    x, y = data["x"].astype(np.float32), data["y"].astype(np.int64)
    with df.Trainer(model, devices=["cpu"], accumulate=2) as trainer:
        for step in range(4):
            trainer.step({"x": x[step], "labels": y[step]})
        trainer.evaluate({"x": x[0], "labels": y[0]})
        programs = list(trainer.programs.engine.programs.values())
        for program in programs:
            plan = program.plan
            assert [type(item).__name__ for item in plan.items] == ["Segment"] * max(len(plan.ranges), 1)
        kinds = {key[0] for key in trainer.programs.engine.programs}
        assert kinds == {("joint", True), ("joint", False), ("optimizer",), ("evaluate",)}
        memory = allocated()
        bounds = [program.bounds[0] for program in programs]
        before = [(b.native_calls, b.kernel_calls) for b in bounds]
        trainer.step({"x": x[4], "labels": y[4]})
        trainer.step({"x": x[5], "labels": y[5]})
        assert allocated() == memory
        for bound, (natives, calls), program in zip(bounds, before, programs, strict=True):
            evaluates = any(p is program and k[0] == ("evaluate",) for k, p in trainer.programs.engine.programs.items())
            runs = 0 if evaluates else 1
            assert bound.native_calls - natives == runs * len(program.plan.items)
            assert bound.kernel_calls - calls == runs * sum(len(s.steps) for s in program.plan.segments)


@pytest.mark.parametrize("lent", [False, True])
def test_named_memory_is_all_that_is_allocated(lent):
    """Where the weights of a file lie as a session wants them, they are the model's."""
    model = recording("cnn")
    if not lent:
        stored = model.graph.initializers.items()
        copies = {value: dataclasses.replace(data, array=data.array.copy()) for value, data in stored}
        model = dataclasses.replace(model.graph, initializers=copies)
    before = allocated()[0]
    session = df.Session(model, devices=["cpu"])
    session.run(np.zeros((4, 1, 12, 12), np.float32))
    plan = session.plan((4, 1, 12, 12))
    assert allocated()[0] - before == sum(plan.memory.values()) - lent * plan.memory["weights"]
    del session
    assert allocated()[0] == before


def test_eight_threads_get_the_bits_of_one():
    model = recording("resnet")
    session = df.Session(model, devices=["cpu"], threads=2)
    random = np.random.default_rng(5)
    inputs = [random.standard_normal((1 + i % 3, 3, 10, 10)).astype(np.float32) for i in range(24)]
    alone = [session.run(x)["logits"].tobytes() for x in inputs]
    found: dict[int, list[bytes]] = {}

    def work(thread):
        found[thread] = [session.run(x)["logits"].tobytes() for x in inputs]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[i] == alone for i in range(8))


def test_two_sessions_run_at_the_same_time():
    models = [recording(name) for name in ("mlp", "cnn")]
    sessions = [df.Session(m, devices=["cpu"]) for m in models]
    inputs = [np.ones((7, 20), np.float32), np.ones((7, 1, 12, 12), np.float32)]
    alone = [s.run(x)["logits"].tobytes() for s, x in zip(sessions, inputs, strict=True)]
    wrong = []

    def work(index):
        found = (sessions[index].run(inputs[index])["logits"].tobytes() for _ in range(200))
        wrong.extend(index for bits in found if bits != alone[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_named_sizes_are_bound_per_call_and_plans_are_bounded():
    session = df.Session(small(), devices=["cpu"], plans=4)
    for rows in (1, 2, 4, 7, 3, 9, 6, 1):
        x = np.ones((rows, 6), np.float32)
        np.testing.assert_allclose(session.run(x)["y"], expected(x)[0], rtol=1e-5, atol=1e-6)
    assert len(session._loaded().engine.programs) == 4


def test_a_generator_alone_needs_its_own_inputs_alone() -> None:
    """A generator without its critic's data, and the message that leads there."""
    g = df.GraphBuilder()
    x, z = g.input("x", df.float32, ("batch", 2)), g.input("z", df.float32, ("batch", 3))
    w = g.parameter("w", np.ones((3, 2), np.float32))
    g.output("made", z @ w)
    g.output("loss", (x - z @ w).sum(1))
    model = df.Model(g.build())
    batch = {"x": np.zeros((4, 2), np.float32), "z": np.ones((4, 3), np.float32)}
    with df.Trainer(model, df.losses.output("loss"), "sgd:lr=0.5,momentum=0", devices=["cpu"]) as trainer:
        trainer.step(batch)  # the gradient of each weight is -1
    with pytest.raises(df.InputError, match=r"missing inputs: x; model\.with_outputs\(names\) has no more inputs than"):
        df.Session(model, devices=["cpu"]).run({"z": batch["z"]}, ["made"])
    alone = model.with_outputs(["made"])
    assert [*alone.inputs] == ["z"]
    found = df.Session(alone, devices=["cpu"]).run({"z": batch["z"]})
    np.testing.assert_array_equal(found["made"], np.full((4, 2), 4.5))
