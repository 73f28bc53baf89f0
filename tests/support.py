"""What tests of several folders share: recordings, small graphs and ONNX models, other instruction sets, cycles."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

import dataflow as df
from dataflow.ir.kernel import Targets
from dataflow.plugin import hookimpl
from dataflow.plugin.registry import default_registry, load
from tests.kit_samples import EVERY_VARIANT

TESTS = Path(__file__).parent
ROOT = TESTS.parent
RECORDINGS = TESTS / "recordings"


def recorded(name):
    """The arrays that were recorded of a network."""
    with np.load(RECORDINGS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def recording(file):
    """A network that was recorded, as an exporter wrote it."""
    return df.load(str(RECORDINGS / f"{file}.onnx"))


def normal(random, *shape):
    """Float32 of the normal distribution."""
    return random.standard_normal(shape).astype(np.float32)


def graph_of(build, *arrays):
    """A graph whose result ``y`` is ``build(g, *values)`` of inputs like ``arrays``, and what to feed it."""
    g = df.GraphBuilder()
    g.output("y", build(g, *(g.input(f"x{i}", df.float32, a.shape) for i, a in enumerate(arrays))))
    return g.build(), {f"x{i}": a for i, a in enumerate(arrays)}


def run(build, *arrays, **options):
    """The result of ``graph_of`` on the device cpu."""
    graph, feeds = graph_of(build, *arrays)
    return df.Session(df.Model(graph), devices=["cpu"], **options).run(feeds)["y"]


def targets_of(*names):
    """For passes: one device with NumPy's kernels of some ops."""
    kernels = {name: load().kernels["numpy"][name] for name in names}
    return Targets({"numpy": kernels}, order=lambda node: ("numpy",), pin=lambda node: "")


def ops_of(plan):
    """The ops that a plan runs, in order."""
    return [step.node.op.name for segment in plan.segments for step in segment.steps]


def cycles(graph):
    """The strongly connected components of more than one node, by Tarjan's algorithm.

    Args:
        graph: the successors of each node.
    """
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return found


def refusal(error, call, *arguments, **options):
    """The message of the error that a call raises."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    return str(caught.value)


class DevicePlugin:
    """A plugin with these devices."""

    def __init__(self, *devices):
        self.devices = devices

    @hookimpl
    def dataflow_devices(self):
        return self.devices


class Stopped(Exception):
    """Raised by ``stopping_at``."""


def stopping_at(step):
    """A callback that ends a training at the end of a step."""

    def stop(event):
        if event.kind == "step" and event.step == step:
            raise Stopped

    return stop


# ---- ONNX ---------------------------------------------------------------------------------------------


def _value(entry):
    if isinstance(entry, ValueInfoProto):
        return entry
    name, kind, shape = (entry, TensorProto.FLOAT, None) if isinstance(entry, str) else entry
    return helper.make_tensor_value_info(name, kind, shape)


def onnx_model(nodes, inputs, outputs=("y",), stored=(), *, functions=(), opset=18, domains=(), ir_version=9):
    """An ONNX model.

    Args:
        nodes: of the main graph.
        inputs, outputs: ``(name, kind, shape)``, a name for float32 of any shape, or the record itself.
        stored: tensors, or ``(name, array)``.
        functions: of the model.
        opset: of ONNX's own operators.
        domains: others that are imported, at version 1.
        ir_version: of the file.
    """
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(np.asarray(t[1]), t[0]) for t in stored]
    graph = helper.make_graph(nodes, "main", [*map(_value, inputs)], [*map(_value, outputs)], tensors)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, functions=list(functions), opset_imports=opsets, ir_version=ir_version)


def ints(name, *values):
    """A stored tensor of int64."""
    return numpy_helper.from_array(np.array(values, np.int64), name)


def external_tensor(name, shape, location, offset=0, length=None):
    """A stored tensor of float32 whose data lies in another file; the entries are written as they are given."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    length = 4 * np.prod(shape) if length is None else length
    for key, entry in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=entry)
    return tensor


# ---- instruction sets ---------------------------------------------------------------------------------


def python_on(isa, *arguments):
    """What a Python process printed whose device cpu uses an instruction set; skips where the machine has it not."""
    environment = {**os.environ, "DATAFLOW_CPU_ISA": isa}
    code = "from dataflow.plugin.registry import default_registry as r; d = r().devices['cpu']; "
    code += f"assert d.unavailable or d.version.endswith({isa!r}), d.version; print(d.unavailable or '')"

    def python(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )

    asked = python("-c", code)
    assert asked.returncode == 0, asked.stderr
    if asked.stdout.strip():
        pytest.skip(asked.stdout.strip())
    done = python(*arguments)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def left_to_nightly(isa):
    """Skips the portable code, of which the kit tries samples each time: the nightly script runs all on it."""
    own = default_registry().devices["cpu"].version
    if isa == "portable" and not own.endswith(isa) and not EVERY_VARIANT:
        pytest.skip("the nightly script tries this on the portable code: DATAFLOW_EVERY_VARIANT=1")


KIT = """
import json, sys
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS
from tests.kit_samples import half_of, sampled_variants
count, precision = int(sys.argv[1]), sys.argv[2]
apart = ("plain", "repeated", "refused", "memory")
if count > 1:
    given, found = SAMPLES, list(check_device("cpu", precision=precision, variants=apart))
else:
    given = half_of(SAMPLES, lambda sample: sample.op.name)
    found = list(check_device("cpu", precision=precision, samples=given, variants=["plain"], complete=False))
for samples, variants in sampled_variants(given, [v for v in VARIANTS if v not in apart], count):
    found += check_device("cpu", precision=precision, samples=samples, variants=variants, complete=False)
print(json.dumps({"passed": sum(o.status == "passed" for o in found),
                  "bad": [str(o) for o in found if o.status in ("failed", "untested")],
                  "claimed": sorted({o.op for o in found if o.status == "passed"})}))
"""


def kit_on(isa, *, variants=1, precision="float32"):
    """What the kit finds of the device cpu with an instruction set; skips where the machine has it not.

    ``variants``: in how many each sample runs beside the plain one, of ten (see ``sampled_variants``). More than one:
    the kit's checks of the device itself run too; one: of every second sample.
    """
    return json.loads(python_on(isa, "-c", KIT, str(variants), precision))


def again_on(isa, file, but):
    """Runs a file of tests on an instruction set, without those whose names contain ``but``."""
    if default_registry().devices["cpu"].version.split()[-1] == isa:
        pytest.skip(f"this machine's own instruction set is {isa}: the tests ran on it")
    left_to_nightly(isa)
    options = ["-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    python_on(isa, "-m", "pytest", *options, "-k", f"not {but}", str(file))


def moved_logits(axis, joined):
    """A graph of cross-entropy and its gradient, as one op or two, its arguments, and the same with logits of 2^14."""
    g = df.GraphBuilder()
    z, labels = g.input("z", df.float32, (3, 7, 5)), g.input("labels", df.int64, (3, 5) if axis == 1 else (3, 7))
    how = {"axis": axis, "label_smoothing": 0.1, "ignore_index": -100, "classes": 0}
    each = df.ops.mul(df.ops.cast(labels, to=df.float32), 0.5)
    if joined:
        loss, slope = g.add(df.ops.softmax_cross_entropy_with_grad, (each, z, labels), how).outputs
    else:
        loss, *sums = g.add(df.ops.softmax_cross_entropy, (z, labels), how).outputs
        slope = df.ops.softmax_cross_entropy_grad(df.ops.mul(each, df.ops.add(loss, 1.0)), z, labels, *sums, **how)
    g.output("loss", loss)
    g.output("slope", slope)
    random = np.random.default_rng(0)
    near = (random.integers(-256, 256, (3, 7, 5)) / 64).astype(np.float32)
    given = {"z": near, "labels": random.integers(0, 5, labels.type.sizes)}
    return g.build(), given, {**given, "z": near + np.float32(2.0**14)}  # both exact
