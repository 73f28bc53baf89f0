"""Limits of memory and time, and memory that the machine doesn't have: refused before anything is allocated."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.cdevice.host_memory import allocated
from dataflow.host import system_memory as systemmemory
from dataflow.host.limits import Account, limited

MIB = 1 << 20


def chain(width=64, layers=4):
    """Products with square weights."""
    g = df.GraphBuilder("chain")
    h = g.input("x", df.float32, ("batch", width))
    for i in range(layers):
        h = df.ops.tanh(df.ops.matmul(h, g.parameter(f"w{i}", np.full((width, width), 1 / width, np.float32))))
    g.output("y", h)
    return df.Model(g.build())


def endless():
    """A loop that makes 2^40 iterations."""
    body = df.GraphBuilder("body")
    body.input("number", df.int64, ())
    go, h = body.input("go", df.bool_, ()), body.input("h", df.float32, (4,))
    body.output("go", go)
    body.output("h", df.ops.tanh(h))
    g = df.GraphBuilder("endless")
    start = g.constant(np.array(1 << 40)), g.constant(np.array(True)), g.input("x", df.float32, (4,))
    made = df.ops.loop(*start, n_carries=1, max_iterations=1 << 40, bodies=(body.build(),))
    g.output("y", made[1])
    return df.Model(g.build())


# ---- what limits are -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{"bytes": -1}, {"bytes": 1.5}, {"bytes": True}, {"bytes": "2G"}, {"seconds": 0}, {"seconds": float("nan")},
     {"seconds": float("inf")}, {"seconds": "3"}, {"seconds": -1.0}],
)  # fmt: skip
def test_limits_that_are_none_are_refused(given):
    with pytest.raises(df.InputError, match="Limits"):
        df.Limits(**given)


def test_something_else_is_no_limits():
    with pytest.raises(df.InputError, match="Limits"):
        df.Session(chain(), ["cpu"], limits=3)
    with pytest.raises(df.InputError, match="Limits"):
        df.load("nothing.onnx", limits={"bytes": 3})


# ---- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_session_takes_no_more_than_its_bytes(device):
    """Whatever the limit: either the run is refused, or what was allocated at its end is below it."""
    x = np.ones((256, 64), np.float32)
    outcomes = set()
    for limit in (1000, 40_000, 100_000, 200_000, 300_000, 1 << 20):
        session = df.Session(chain(), [device], limits=df.Limits(bytes=limit))
        before = allocated()[0]
        try:
            found = session.run(x)
            outcomes.add("ran")
            assert allocated()[0] - before + found["y"].nbytes <= limit
        except df.LimitExceeded as error:
            outcomes.add("refused")
            assert f"limit of {limit} bytes" in str(error)
    assert outcomes == {"ran", "refused"}


def test_memory_that_is_given_back_can_be_taken_again():
    """Plans come and go; what the last one keeps is all that counts."""
    session = df.Session(chain(), ["cpu"], plans=1, limits=df.Limits(bytes=600_000))
    for batch in range(1, 200):
        session.run(np.ones((batch, 64), np.float32))


def test_runs_side_by_side_share_the_limit():
    session = df.Session(chain(), ["cpu"], limits=df.Limits(bytes=8 * MIB))
    x = np.ones((1024, 64), np.float32)
    problems = []

    def work():
        try:
            for _ in range(20):
                session.run(x)
        except df.LimitExceeded:
            pass
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert session._devices.account.left >= 0


def test_the_message_names_what_takes_most():
    with pytest.raises(df.LimitExceeded, match=r"the plan .*matmul.* bytes are needed, and 1000 of the limit"):
        df.Session(chain(), ["cpu"], limits=df.Limits(bytes=1000)).run(np.ones((8, 64), np.float32))


def test_a_trainer_takes_no_more_than_its_bytes():
    model = chain()
    trainer = df.Trainer(model, "mse", limits=df.Limits(bytes=10_000))
    with pytest.raises(df.LimitExceeded, match="10000 bytes"):
        trainer.step({"x": np.ones((8, 64), np.float32), "labels": np.ones((8, 64), np.float32)})


def test_a_file_larger_than_the_limit_is_not_read(tmp_path):
    path = tmp_path / "model.onnx"
    df.save(chain(), str(path))
    with pytest.raises(df.LimitExceeded, match=r"model\.onnx"):
        df.load(str(path), limits=df.Limits(bytes=1000))
    assert df.load(str(path), limits=df.Limits(bytes=2 * MIB)).outputs


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 51,), (1 << 62,), (0, 1 << 62), (1 << 40, 1 << 40, 0), (-1,)])
def test_a_plan_larger_than_the_memory_is_refused(shape):
    """Before anything is allocated, whether the product of sizes overflows, is zero, or is only too large."""
    g = df.GraphBuilder("grow")
    x = g.input("x", df.float32, tuple(f"d{i}" for i in range(len(shape))))
    g.output("y", df.ops.add(x, x))
    session = df.Session(df.Model(g.build()), ["cpu"])
    before = allocated()
    with pytest.raises((df.InputError, df.OutOfMemoryError)) as caught:
        session.plan({"x": shape})
    assert any(word in str(caught.value) for word in ("are free", "addressed", "negative", "larger than any"))
    assert allocated() == before


def test_results_larger_than_the_memory_are_refused():
    """They grow inside the graph, from an input of one element."""
    g = df.GraphBuilder("bomb")
    x = g.input("x", df.float32, (1, 1))
    g.output("y", df.ops.broadcast_to(x, shape=(1 << 20, 1 << 20)))
    with pytest.raises(df.OutOfMemoryError, match=r"4096.0 GiB.* are free"):
        df.Session(df.Model(g.build()), ["cpu"]).run(np.ones((1, 1), np.float32))


def test_the_system_is_asked_what_it_lends_for_large_plans_alone(monkeypatch):
    """Asking reads files of the kernel, which takes longer than planning a node."""
    asked = []
    monkeypatch.setattr("dataflow.execute.devices.available_memory", lambda: asked.append(1) or (1 << 40, 1 << 40))
    g = df.GraphBuilder("any")
    g.output("y", df.ops.exp(g.input("x", df.float32, ("n",))))
    session = df.Session(df.Model(g.build()), ["cpu"])
    session.run(np.ones(3, np.float32))
    assert not asked
    session.plan({"x": (1 << 24,)})
    assert asked


def test_what_the_system_lends_is_the_least_of_its_limits():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "import dataflow as df; from dataflow.host.system_memory import available_memory\n"
        "left, total = available_memory(); assert 0 < left < total == 3 << 30, (left, total)\n"
        "try: df.empty((3 << 30,), df.uint8)\n"
        "except df.OutOfMemoryError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"{3 << 30} bytes" in done.stdout and "are free" in done.stdout, done.stderr


def test_the_limit_of_a_control_group_counts(tmp_path, monkeypatch):
    """Its own and those around it; what only caches files is free."""
    for folder, most, used in ((tmp_path, "max", 5 << 30), (tmp_path / "a", 2 << 30, 1 << 30)):
        folder.mkdir(exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.swap.max").write_text("0\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {1 << 29}\nactive_file 0\n")
    monkeypatch.setattr(systemmemory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(systemmemory, "_folders", lambda: [tmp_path / "a", tmp_path])
    assert systemmemory._control_groups() == [((2 << 30) - (1 << 29), 2 << 30)]


@pytest.mark.parametrize("given", [((-1,), df.float32), ((1 << 62, 0), df.float32), ((3,), df.string)])
def test_empty_refuses_what_has_no_memory(given):
    with pytest.raises(df.InputError):
        df.empty(*given)


# ---- time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_an_endless_loop_ends_with_its_time(device):
    session = df.Session(endless(), [device], limits=df.Limits(seconds=0.2))
    session.plan()
    begin = time.monotonic()
    with pytest.raises(df.LimitExceeded, match=r"the run takes more than 0.2 seconds; stopped in "):
        session.run(np.ones(4, np.float32))
    assert time.monotonic() - begin < 30
    with pytest.raises(df.LimitExceeded):  # the session goes on
        session.run(np.ones(4, np.float32))


def test_a_run_within_its_time_is_not_touched_and_leaves_nothing_behind():
    session = df.Session(chain(), ["cpu"], limits=df.Limits(seconds=100))
    x = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    expected = df.Session(chain(), ["cpu"]).run(x)["y"]
    for _ in range(50):
        np.testing.assert_array_equal(session.run(x)["y"], expected)


def test_a_deadline_beside_others_ends_its_own_run_only():
    slow = df.Session(endless(), ["cpu"], limits=df.Limits(seconds=0.3))
    quick = df.Session(chain(), ["cpu"], limits=df.Limits(seconds=100))
    ended = []

    def work():
        try:
            slow.run(np.ones(4, np.float32))
        except df.LimitExceeded as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        quick.run(np.ones((2, 64), np.float32))
    thread.join()
    assert len(ended) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_deadlines_work_in_a_forked_child():
    code = (
        "import os, sys\nsys.path.insert(0, sys.argv[1])\nfrom test_limits import *\n"
        "session = df.Session(endless(), ['cpu'], threads=1, limits=df.Limits(seconds=0.1))\n"
        "def attempt():\n"
        "    try: session.run(np.ones(4, np.float32))\n"
        "    except df.LimitExceeded: return 7\n"
        "assert attempt() == 7\n"
        "child = os.fork()\n"
        "if not child: os._exit(attempt() or 0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_time_of_a_plan_is_looked_at(monkeypatch):
    """A clock that makes great steps stands for a slow compile."""
    from dataflow.host import limits

    ticks = iter(range(0, 1 << 40, 1000))
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(ticks))
    with pytest.raises(df.LimitExceeded, match=r"the plan takes more than 5 seconds; stopped in .*'matmul"):
        df.Session(chain(), ["cpu"], limits=df.Limits(seconds=5)).plan((3, 64))


def test_time_of_a_load_is_looked_at(monkeypatch, tmp_path):
    from dataflow.host import limits

    path = tmp_path / "model.onnx"
    df.save(chain(), str(path))
    ticks = iter(range(0, 1 << 40, 1000))
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(ticks))
    with pytest.raises(df.LimitExceeded, match=r"loading takes more than 5 seconds; stopped in .*MatMul"):
        df.load(str(path), limits=df.Limits(seconds=5))


def test_one_long_step_on_one_thread_ends_with_its_time_too():
    """Its last elements are not computed any more."""
    size = 1 << 24
    g = df.GraphBuilder("long")
    g.output("y", df.ops.tanh(g.input("x", df.float32, (size,))))
    session = df.Session(df.Model(g.build()), ["cpu"], threads=1, limits=df.Limits(seconds=100))
    out = np.full(size, 7, np.float32)
    session.plan()
    session._devices.account.limits = df.Limits(seconds=0.002)
    with pytest.raises(df.LimitExceeded):
        session.run(np.broadcast_to(np.float32(1), size).copy(), out={"y": out})
    assert out[-1] == 7


# ---- compiling a small file costs little -----------------------------------------------------------------


def constants(build, size):
    """A graph whose only input meets what ``build`` makes of a constant."""
    g = df.GraphBuilder("constants")
    w = g.initializer("w", np.ones(size, np.float32))
    g.output("y", df.ops.add(build(w), g.input("x", df.float32, (1,))))
    return g.build()


def folded(graph):
    """How many nodes folding leaves, and the most bytes that its results held at one time."""
    from dataflow.passes.constant_folding import fold
    from dataflow.plugin.registry import default_registry

    seen, held = [0], [0]

    class Counting(Account):
        def take(self, count, what):
            held[0] += count
            seen.append(held[0])

    with limited(Counting(df.Limits()), "the test"):
        left = fold(graph, default_registry().kernels["numpy"])
    return len(left.nodes), max(seen)


def test_results_that_only_folded_nodes_read_are_given_back():
    """A long row of steps over a large constant holds two of its results, not all."""

    def build(h):
        for _ in range(300):
            h = df.ops.neg(h)
        return h

    left, most = folded(constants(build, 1 << 16))
    assert left == 1
    assert most <= 2 * (4 << 16)


def test_folding_ends_where_it_would_cost_more_than_the_model_stores():
    """Products of one small weight, again and again: the rest is computed at each run."""

    def build(h):
        first = h
        for _ in range(200):
            h = df.ops.matmul(first, h)
        return h

    left, _ = folded(constants(build, (256, 256)))
    assert 100 < left < 201


def test_folding_does_not_fill_memory_from_small_constants():
    """Each grows to 16 MiB, and a run needs them all."""
    g = df.GraphBuilder("grow")
    h = g.input("x", df.float32, (1 << 22,))
    for i in range(40):
        row = g.initializer(f"w{i}", np.ones((1, 1), np.float32))
        pads = df.ops.pad(row, pads=(0, 0, 0, (1 << 22) - 1), mode="constant")
        h = df.ops.add(h, df.ops.reshape(pads, shape=(1 << 22,)))
    g.output("y", h)
    left, most = folded(g.build())
    assert left > 40
    assert most <= 300 * MIB


def test_many_views_of_a_weight_compile():
    g = df.GraphBuilder("views")
    h = g.initializer("w", np.arange(16, dtype=np.float32).reshape(4, 4))
    for _ in range(3001):
        h = df.ops.transpose(h, perm=(1, 0))
    g.output("y", df.ops.matmul(g.input("x", df.float32, (2, 4)), h))
    found = df.Session(df.Model(g.build()), ["cpu"], fold=False).run(np.eye(4, dtype=np.float32)[:2])
    np.testing.assert_array_equal(found["y"], np.arange(16, dtype=np.float32).reshape(4, 4).T[:2])


def test_a_size_that_grows_as_a_polynomial_is_refused():
    """The power of a sum of twenty names has billions of terms."""
    total = sum((df.Dim(f"d{i}") for i in range(1, 20)), start=df.Dim("d0"))
    with pytest.raises(df.InputError, match="grows too long"):
        size = total
        for _ in range(10):
            size = size * total


def test_a_size_that_doubles_its_text_is_refused():
    size = df.Dim("n")
    with pytest.raises(df.InputError, match="grows too long"):
        for _ in range(60):
            size = (size * size + size) // 3


def test_the_table_of_a_huge_resize_is_refused():
    g = df.GraphBuilder("resize")
    x = g.input("x", df.float32, (1, 1, 2, 2))
    how = {"scales": (1.0, 1.0, float(1 << 39), 0.5), "mode": "cubic"}
    g.output("y", df.ops.resize(x, sizes=(1, 1, 1 << 40, 1), **how))
    with pytest.raises(df.OutOfMemoryError, match="table of a resize"):
        df.Session(df.Model(g.build()), ["cpu"]).run(np.ones((1, 1, 2, 2), np.float32))
