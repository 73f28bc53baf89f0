"""Loads, runs and trains small models with one native allocation failing after the other.

    LD_PRELOAD=failing_malloc.so python failing.py [STEP]

Run by a test with every STEP-th allocation, by hand with all. Prints how many there are; ends with an error where
something else than one of dataflow's errors comes, or where a run after the failure gives another result.
"""

import ctypes
import gc
import sys
from pathlib import Path

import numpy as np

import dataflow as df
from dataflow.cdevice.host_memory import allocated

RECORDINGS = Path(__file__).parents[1] / "recordings"
preloaded = ctypes.CDLL(None)
preloaded.failing_end.restype = ctypes.c_long


def loop():
    """A loop that ends by its condition, beside a convolution with a pool."""
    body = df.GraphBuilder("body")
    body.input("number", df.int64, ())
    go, h = body.input("go", df.bool_, ()), body.input("h", df.float32, (4, 6))
    body.output("go", go)
    body.output("h", df.ops.tanh(df.ops.matmul(h, body.input("w", df.float32, (6, 6)))))
    g = df.GraphBuilder("loop")
    w = g.parameter("w", np.eye(6, dtype=np.float32) / 2)
    start = g.constant(np.array(3)), g.constant(np.array(True)), g.input("x", df.float32, (4, 6)), w
    g.output("y", df.ops.loop(*start, n_carries=1, max_iterations=5, bodies=(body.build(),))[1])
    return df.Model(g.build())


def work():
    """Everything once: results that must be the same each time."""
    found = []
    for device in ("cpu", "numpy"):
        session = df.Session(loop(), [device], threads=2, limits=df.Limits(bytes=1 << 30, seconds=100))
        found.append(session.run(np.ones((4, 6), np.float32))["y"])
    model = df.load(str(RECORDINGS / "cnn.onnx"))
    (type_,) = model.inputs.values()
    shape = tuple(d if isinstance(d, int) else 2 for d in type_.shape)
    x = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found += df.Session(model, ["cpu"], threads=2).run(x).values()
    trainer = df.Trainer(model, devices=["cpu"], threads=2)
    found.append(np.float64(trainer.step({next(iter(model.inputs)): x, "labels": np.zeros(len(x), np.int64)})))
    trainer.close()
    return found


def main(step: int) -> None:
    """Fails allocation 0, step, 2 * step and so on."""
    expected = work()
    preloaded.failing_begin(-1)
    work()
    count = preloaded.failing_end()
    refused = 0
    gc.collect()
    before = allocated()
    for which in range(0, count, step):
        preloaded.failing_begin(ctypes.c_long(which))
        try:
            work()
        except (df.DataflowError, MemoryError) as error:
            assert str(error), repr(error)
            refused += 1
        finally:
            preloaded.failing_end()
    for a, b in zip(work(), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    gc.collect()
    assert allocated() == before, (allocated(), before)
    sys.stdout.write(f"{count} allocations, {refused} refused\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
