"""Sessions and trainers from several threads: right results, one step's weights, closing, forking, the end."""

import functools
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from tests.fuzz.threads import Stress

WIDTH = 6


def scaled(value=1.0, layers=2):
    """``y = x @ w @ w``, two separate parameters of equal value."""
    g = df.GraphBuilder()
    y = g.input("x", df.float32, ("b", WIDTH))
    for layer in range(layers):
        y = y @ g.parameter(f"w{layer}", value * np.eye(WIDTH, dtype=np.float32))
    g.output("y", y)
    return df.Model(g.build())


def together(*works):
    """Runs functions in threads of their own; raises what one of them raised."""
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    if failures:
        raise failures[0]


def test_sixty_four_threads_share_a_session_with_two_plans_while_it_is_reloaded_and_closed():
    stress = Stress(threads=64, plans=2)
    stress.run(seconds=1.5)
    assert stress.failures == []
    assert stress.runs > 64


def test_steps_from_several_threads_come_one_after_the_other():
    """Batches of several sizes, so that memory for the largest so far is made anew between them."""
    alone, shared = (df.Trainer(scaled(0.5), "mse", df.optim.SGD(lr=0.01), threads=1) for _ in range(2))
    batches = [{"x": x, "labels": 2 * x} for x in (np.ones((97 * n, WIDTH), np.float32) for n in range(1, 41))]
    for batch in batches:
        alone.step(batch)

    def train(subset):
        for batch in subset:
            shared.step(batch)
            shared.predict(batch["x"])

    together(*(functools.partial(train, batches[n::4]) for n in range(4)))
    assert shared.steps == len(batches)
    for name in ("w0", "w1"):  # the mean over equal rows doesn't depend on how many there are
        found = shared.model.parameters[name].array
        np.testing.assert_allclose(found, alone.model.parameters[name].array, rtol=1e-4, err_msg=name)


def test_a_reload_beside_training_takes_the_weights_of_one_step():
    """Training keeps these parameters equal, by symmetry."""
    g = df.GraphBuilder()
    y = g.input("x", df.float32, ("b", 4))
    names = [f"w{n}" for n in range(100)]
    for name in names:
        y = y * g.parameter(name, np.full((1, 4), 0.999, np.float32))
    g.output("y", y)
    model = df.Model(g.build())
    trainer = df.Trainer(model, "mse", df.optim.SGD(lr=1e-4), threads=1)
    session = df.Session(model, threads=1)
    x = np.ones((1, 4), np.float32)
    trainer.step({"x": x, "labels": 2 * x})
    done = threading.Event()

    def train():
        while not done.is_set():
            trainer.step({"x": x, "labels": 2 * x})

    def read():
        try:
            for number in range(200):
                found = model.arrays()
                if number % 20 == 0:
                    session.reload()
                    found = session.run(x, outputs=names)
                np.testing.assert_allclose([found[name] for name in names], [found["w0"]] * 100, rtol=1e-6)
        finally:
            done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two parameters
    try:
        together(train, read)
    finally:
        sys.setswitchinterval(interval)


def test_a_trainer_that_is_closed_while_others_use_it_says_so():
    trainer = df.Trainer(scaled(), "mse", threads=1)
    x = np.ones((1, WIDTH), np.float32)
    trainer.step({"x": x, "labels": x})

    def use():
        with pytest.raises(df.ModelError, match="closed"):
            for _ in range(100_000):
                trainer.predict(x)

    together(use, use, trainer.close)


def test_a_closed_session_says_so():
    with df.Session(scaled(), threads=1) as session:
        session.run(np.ones((1, WIDTH), np.float32))
    for use in (lambda: session.run(np.ones((1, WIDTH), np.float32)), session.reload, lambda: session.plans):
        with pytest.raises(df.ModelError, match="this Session is closed"):
            use()
    session.close()


def test_an_error_is_reported_to_the_thread_that_made_it():
    g = df.GraphBuilder()
    table = g.parameter("table", np.arange(5, dtype=np.float32))
    g.output("y", df.ops.gather(table, g.input("i", df.int64, ("n",)), axis=0))
    session = df.Session(df.Model(g.build()), threads=2)

    def right():
        for _ in range(200):
            np.testing.assert_array_equal(session.run(np.array([1, 2]))["y"], [1, 2])

    def wrong():
        for _ in range(200):
            with pytest.raises(df.InputError):
                session.run(np.array([1, 7]))

    together(right, wrong, right, wrong)


# ---- forking -----------------------------------------------------------------------------------------

BEGIN = """
import os, sys, threading, time, warnings
import numpy as np
import dataflow as df
warnings.simplefilter("ignore")
from tests.execute.test_threads import WIDTH, scaled
"""

FORKS = """
def child_says(work):
    child = os.fork()
    if not child:
        threading.Timer(30, lambda: os._exit(9)).start()
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

FORK_DURING_COMPILES = """
session = df.Session(scaled(layers=12), threads=2)
x = np.ones((1, WIDTH), np.float32)
np.testing.assert_array_equal(session.run(x)["y"], x)
over = False

def compile_often():
    size = 1
    while not over:
        size += 1
        session.run(np.ones((size, WIDTH), np.float32))

def in_child():
    for size in (1, 3, 100_000):
        y = np.ones((size, WIDTH), np.float32)
        np.testing.assert_array_equal(session.run(y)["y"], y)
    session.reload()
    df.Session(session.model, threads=2).run(x)

threads = [threading.Thread(target=compile_often) for _ in range(2)]
for thread in threads:
    thread.start()
for attempt in range(10):
    time.sleep(0.003 * attempt)
    status = child_says(in_child)
    if status:
        print("child", attempt, status)
over = True
for thread in threads:
    thread.join()
np.testing.assert_array_equal(session.run(x)["y"], x)
"""

FORK_DURING_STEPS = """
trainer = df.Trainer(scaled(), "mse", df.optim.SGD(lr=0.001), threads=2)
x = np.ones((64, WIDTH), np.float32)
batch = {"x": x, "labels": x}
trainer.step(batch)
over = False

def train():
    while not over:
        trainer.step(batch)

def in_child():
    try:
        trainer.step(batch)
        trainer.model.parameters["w0"].array
    except df.ModelError as error:
        assert "forked while another thread trained" in str(error), error

assert child_says(in_child) == 0
thread = threading.Thread(target=train)
thread.start()
for attempt in range(10):
    time.sleep(0.001 * attempt)
    status = child_says(in_child)
    if status:
        print("child", attempt, status)
over = True
thread.join()
"""

FORK_WITH_STATE = """
g = df.GraphBuilder()
present = df.ops.concat(g.input("past", df.float32, ("n", 4)), g.input("x", df.float32, (1, 4)), axis=0)
g.output("present", present)
g.output("sum", df.ops.reduce_sum(present, axes=(0,), keepdims=False))
session = df.Session(g.build(), devices=["cpu"], state={"present": "past"}, threads=2)

def sums(count, begin):
    for last in range(begin, begin + count):
        found = session.run({"x": np.full((1, 4), last, np.float32)})["sum"]
        np.testing.assert_array_equal(found, np.full(4, last * (last + 1) / 2))

for begin in (0, 5):  # with a plan by itself, and in a series whose cache grows where it lies
    assert child_says(lambda: sums(12, begin)) == 0  # the child's cache is its own
    sums(5, begin)
"""


def quiet(script):
    """What a program prints; it must end well and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("script", [FORK_DURING_COMPILES, FORK_DURING_STEPS, FORK_WITH_STATE])
def test_a_forked_child_works_whatever_other_threads_were_doing(script):
    assert quiet(FORKS + script) == ""


# ---- the end of the interpreter ----------------------------------------------------------------------

ENDS = {
    "live objects": """
        session, trainer = df.Session(scaled(), threads=2), df.Trainer(scaled(), "mse", threads=2)
        x = np.ones((2, WIDTH), np.float32)
        result = session.run(x)["y"]
        trainer.step({"x": x, "labels": x})
        lent = df.empty((3,), df.float32)
        sys.session = session
        """,
    "a cycle": """
        session = df.Session(scaled())
        session.run(np.ones((2, WIDTH), np.float32))
        session.me = session.model.me = session
        trainer = df.Trainer(scaled(), "mse")
        trainer.me = trainer
        """,
    "what hangs on the interpreter itself": """
        x = np.ones((2, WIDTH), np.float32)
        session, trainer, lent = df.Session(scaled()), df.Trainer(scaled(), "mse"), df.empty((3,), df.float32)
        kept = session, session.run(x), trainer, trainer.step({"x": x, "labels": x}), lent
        sys.displayhook = lambda value, kept=kept: None
        """,
    "an array that outlives its session": """
        x = np.ones((2, WIDTH), np.float32)
        session = df.Session(scaled())
        sys.result = session.run(x)["y"]
        del session
        """,
    "daemon threads inside runs": """
        session, trainer = df.Session(scaled(), threads=2), df.Trainer(scaled(), "mse", threads=2)
        x = np.ones((512, WIDTH), np.float32)
        trainer.step({"x": x, "labels": x})
        def run():
            while True:
                session.run(x)
        def train():
            while True:
                trainer.step({"x": x, "labels": x})
        for work in (run, run, train):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
        """,
}


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_quietly(name):
    assert quiet(textwrap.dedent(ENDS[name])) == ""


# ---- what callers give -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2", None, True])
def test_a_number_that_makes_no_sense_is_refused(bad):
    for option in ("concurrency", "plans", "threads"):
        if (option, bad) in (("plans", 0), ("threads", None)):
            continue
        with pytest.raises(df.InputError, match=f"{option} is .*; expected a whole number from"):
            df.Session(scaled(), **{option: bad})
    with pytest.raises(df.InputError, match="accumulate is"):
        df.Trainer(scaled(), "mse", accumulate=bad)


def test_more_threads_than_the_pool_has_are_refused():
    with pytest.raises(df.InputError, match="from 1 to 1024"):
        df.Session(scaled(), threads=10**9)


def test_numpy_numbers_count_as_numbers():
    session = df.Session(scaled(), concurrency=np.int64(2), plans=np.int32(1), threads=np.int8(1))
    assert session.threads == 1


def overlapping_views():
    memory = np.zeros(8 * WIDTH, np.float32)
    return memory, memory[: 2 * WIDTH].reshape(2, WIDTH), memory[WIDTH : 3 * WIDTH].reshape(2, WIDTH)


def test_results_that_would_overwrite_an_input_are_refused():
    session = df.Session(scaled(2.0), threads=1)
    _, x, y = overlapping_views()
    x[...] = 1
    for out in (x, y):
        with pytest.raises(df.InputError, match=r"out\['y'\] shares memory with input 'x'"):
            session.run(x, out={"y": out})
    np.testing.assert_array_equal(x, 1)


def test_results_that_would_overwrite_each_other_are_refused():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, WIDTH))
    g.output("a", x + x)
    g.output("b", x * x)
    session = df.Session(df.Model(g.build()), threads=1)
    memory, first, second = overlapping_views()
    given = np.ones((2, WIDTH), np.float32)
    with pytest.raises(df.InputError, match=r"out\['b'\] shares memory with out\['a'\]"):
        session.run(given, out={"a": first, "b": second})
    apart = memory[2 * WIDTH : 4 * WIDTH].reshape(2, WIDTH)
    session.run(given, out={"a": first, "b": apart})
    np.testing.assert_array_equal(memory[: 4 * WIDTH], [2] * 2 * WIDTH + [1] * 2 * WIDTH)


@pytest.mark.parametrize("depends", [False, True])
def test_results_need_memory_that_can_be_written(depends):
    g = df.GraphBuilder()
    x = g.input("x", df.int64, (4,))
    g.output("y", df.ops.read_shape(x, sizes=tuple(map(df.Dim, "abcd"))) if depends else x + x)
    session = df.Session(df.Model(g.build()), threads=1)
    given = np.ones(4, np.int64)
    read_only = np.zeros_like(given)
    read_only.flags.writeable = False
    repeated = np.lib.stride_tricks.as_strided(np.zeros(1, np.int64), (4,), (0,))
    for out in (read_only, repeated, np.zeros(8, np.int64)[::2], [0] * 4):
        with pytest.raises(df.InputError, match=r"out\['y'\]: expected a"):
            session.run(given, out={"y": out})
    out = np.zeros_like(given)
    assert session.run(given, out={"y": out})["y"] is out
    np.testing.assert_array_equal(out, given if depends else 2 * given)
