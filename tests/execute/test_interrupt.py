"""Ctrl-C at any instant: it takes effect soon, nothing of it stays, and the next run works."""

import subprocess
import sys
import textwrap

SHARED = """
import gc, os, random, signal, sys, threading, time
import numpy as np
import dataflow as df

def model(layers=3):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("b", 8))
    w = g.parameter("w", np.full((8, 8), 0.5, np.float32))
    y = x
    for _ in range(layers):
        y = df.ops.relu(y @ w)
    g.output("y", y)
    return df.Model(g.build())

def expected(x):
    for _ in range(3):
        x = np.maximum(x @ np.full((8, 8), 0.5, np.float32), 0)
    return x
"""

WORST_INSTANTS = """
swallowed = []
sys.unraisablehook = lambda found: swallowed.append((found.exc_type.__name__, repr(found.object)))
numbers = random.Random(0)
session = df.Session(model(), threads=2, plans=2, concurrency=1)
trainer = df.Trainer(model(), loss="mse", threads=2)
trained = {"x": np.ones((2, 8), np.float32), "labels": np.ones((2, 8), np.float32)}
armed = False

def handle(*_):
    if armed:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handle)  # real ones: they also end native runs
signal.signal(signal.SIGALRM, handle)
works = [
    lambda x: session.run(x),
    lambda x: df.Session(session.model, threads=1).run(x),  # compiles, and drops a session
    lambda x: (trainer.predict(x), trainer.step(trained)),
]

def send(number):
    time.sleep(numbers.random() * 3e-3)
    os.kill(os.getpid(), number)

hits = 0
for attempt in range(250):
    work, x = numbers.choice(works), np.ones((numbers.randint(1, 5), 8), np.float32)
    sender = threading.Thread(target=send, args=(numbers.choice([signal.SIGINT, signal.SIGALRM]),))
    try:
        armed = True
        sender.start()
        while True:
            work(x)
    except KeyboardInterrupt:
        armed = False
        hits += 1
    sender.join()
    assert gc.isenabled()
    x = np.full((2, 8), 0.1, np.float32)
    np.testing.assert_allclose(session.run(x)["y"], expected(x), rtol=1e-5)
    assert np.isfinite(trainer.step(trained))
print(hits, swallowed)
"""

SOON = """
session = df.Session(model(), threads=1)
x = np.ones((2, 8), np.float32)
session.run(x)
begun = threading.Event()

def interrupt():
    begun.wait()
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

g = df.GraphBuilder()
a = g.input("a", df.float32, (1024, 1024))
b = a
for _ in range(200):
    b = b @ a
g.output("b", b)
long = df.Session(df.Model(g.build()), threads=1)
long.plan()
threading.Thread(target=interrupt).start()
begun.set()
try:
    long.run(np.zeros((1024, 1024), np.float32))
    print("ended")
except KeyboardInterrupt:
    print("interrupted")
np.testing.assert_allclose(session.run(x)["y"], expected(x), rtol=1e-5)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    print("the handler is Python's again")
"""


LEFT = """
from dataflow.train.interrupts import InterruptsHeld

def begin():
    InterruptsHeld().__enter__()  # as a signal's handler leaves it that raises before the block begins

def held():
    with InterruptsHeld():
        os.kill(os.getpid(), signal.SIGINT)
        print("held")

for again in (held, lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(10))):
    begin()
    try:
        again()
        print("lost")
    except KeyboardInterrupt:
        print("interrupted")
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def outcome(script):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHARED) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_ctrl_c_at_random_instants_leaves_nothing_behind():
    assert outcome(WORST_INSTANTS) == "250 []\n"


def test_ctrl_c_ends_a_native_run_and_gives_the_signal_back():
    assert outcome(SOON) == "interrupted\nthe handler is Python's again\n"


def test_ctrl_c_is_not_held_for_ever_by_what_another_signal_interrupted():
    assert outcome(LEFT) == "held\ninterrupted\ninterrupted\nTrue\n"
