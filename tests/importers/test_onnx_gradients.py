"""Gradients of the cases of ONNX's suite, against differences along random directions, everything in float64."""

import contextlib
import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import dataflow as df
from dataflow.execute.arguments import sizes_of
from dataflow.execute.sequences import checked_arguments, flattened, types_of
from dataflow.ir.graph import Initializer
from dataflow.ir.rewrite import rewrite
from dataflow.ir.specialize import Listed, Wanted
from dataflow.ops.dynamic_shape import forms_of
from dataflow.passes.autodiff import decompose_for_gradient, vjp_graph
from dataflow.passes.bind_shapes import bind
from dataflow.passes.dead_code import eliminate_dead_code
from dataflow.passes.dynamic_regions import depends_on_data, split
from dataflow.passes.size_values import completed, static_reads, take_sizes
from dataflow.plugin import dtype as as_dtype
from dataflow.plugin.registry import default_registry
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes

KERNELS = default_registry().reference_kernels
STEPS = (1e-5, 1e-6, 1e-7)
LIMIT = 1e-6  # of the sum of the terms' magnitudes
DRAWS = 10  # points and directions, of which one must be smooth
COUNTED = "1.23.2"  # the version of onnx whose cases these are
CHECKED = 1526
# Cases with floating inputs and outputs that aren't compared: a pattern of names, how many they are, and why.
LEFT_OUT = {
    r"test_attention_(4d_causal_padded_kv_bf16|(23|causal)_boolmask\w*|4d_causal_nonpad_negative_offset_structural_empty"
    r"|2[34]_fullymasked\w*|24_qk_matmul_output_mode3_softmax_precision|local_window_gqa_rank4_mask)_expanded": (
        8,
        "the nodes of the function take the softmax of a masked row, which is NaN, and then choose 0: 0 times NaN",
    ),
    r"test_ai_onnx_ml_tree_ensemble\w*": (2, "trees are constant between their thresholds; who asks is told so"),
}
HELD = {r"test_roialign\w*": ("rois",)}  # inputs that are constants to a gradient


def cases():
    for case in load_model_tests(kind="node"):
        if case.data_sets:
            given = [numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else a for a in case.data_sets[0][0]]
            yield case.name, case.model, given
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            model = onnx.load(Path(case.model_dir) / "model.onnx")
            files = (Path(case.model_dir) / f"test_data_set_0/input_{i}.pb" for i in range(len(model.graph.input)))
            given = [read(file, v.type) for file, v in zip(files, model.graph.input, strict=True) if file.exists()]
            yield case.name, model, given


def read(file, type_):
    if type_.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def bound(model, given):
    """The graph for these inputs, where all sizes are numbers; and the arrays of its inputs."""
    forms = forms_of(model.graph)
    arguments = checked_arguments(model.graph, forms, given)
    arrays, types, values = flattened(arguments), types_of(model.graph, arguments), {}
    try:
        made = None if forms else with_sizes(model.graph, arrays)
    except df.InputError:
        made = None
    if made is None:
        made = model.specialized(types, values)
        while isinstance(made, Wanted):
            values[made.name] = evaluate(with_sizes(made.graph, arrays), arrays)[made.name]
            made = model.specialized(types, values)
        made = made.graph if isinstance(made, Listed) else made
        made = with_sizes(made, arrays) if made is not None else df.GraphBuilder().build()
    return made, {v.name: arrays[v.name] for v in made.inputs}


def with_sizes(graph, arrays):
    sizes = completed(static_reads(graph), sizes_of(graph, arrays), KERNELS)
    if depends_on_data(graph):
        values = dict(arrays)
        for region in split(graph):
            values |= evaluate(bind(region.graph, sizes, KERNELS), values)
            for node, value in region.reads:
                take_sizes(node, values[value.name], sizes)
            sizes = completed(static_reads(graph), sizes, KERNELS)
    return bind(graph, sizes, KERNELS)


def in_float64(graph):
    """The graph with float64 in the place of every float."""

    def widened(type_):
        return df.TensorType(df.float64, type_.shape) if type_.dtype.is_float else type_

    def again(builder, node, inputs):
        attributes = {k: exact_dtype(a) for k, a in node.attributes.items()}
        bodies = tuple(map(in_float64, node.bodies))
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(node.op, inputs, attributes, bodies=bodies, name=node.name, output_names=names).outputs

    stored = {v: Initializer(exact(d.array), d.role) for v, d in graph.initializers.items() if v.type.dtype.is_float}
    return rewrite(graph, again, input_type=widened, initializers=stored)


def exact_dtype(attribute):
    if isinstance(attribute, tuple):
        return tuple(map(exact_dtype, attribute))
    return df.float64 if isinstance(attribute, df.DType) and attribute.is_float else attribute


def exact(array):
    return array.astype(np.float64) if as_dtype(array).is_float else array


def differentiable(graph, held=()):
    """The graph with its floating outputs, in float64 as far as its ops take it, and its floating inputs."""
    outputs = {n: v for n, v in graph.outputs.items() if v.type.dtype.is_float}
    names = [v.name for v in graph.inputs if v.type.dtype.is_float and 0 not in v.type.shape and v.name not in held]
    if not outputs or not names:
        return None, []
    graph = eliminate_dead_code(dataclasses.replace(graph, outputs=outputs))
    try:
        graph = in_float64(graph)
    except df.InputError:  # of quantization, whose scales are float32
        wrt = [v for v in graph.inputs if v.name in names]
        with contextlib.suppress(df.InputError):
            graph = in_float64(eliminate_dead_code(decompose_for_gradient(graph, wrt)))
    return graph, [v for v in graph.inputs if v.name in names]


def compare(name, model, given):
    """How a case fared, in a word and a text."""
    given = {n: given[n] for n in model.inputs}
    held = next((names for pattern, names in HELD.items() if re.fullmatch(pattern, name)), ())
    graph, arrays = bound(model, given)
    graph, wrt = differentiable(graph, held)
    if not wrt:
        return "no derivative", ""
    try:
        joint = vjp_graph(graph, wrt)
    except df.GradientError as error:
        return "refused", str(error)
    random = np.random.default_rng(len(name))
    text = ""
    for draw in range(DRAWS):
        at = arrays | {v.name: another_point(arrays[v.name], draw, random) for v in wrt}
        if draw and depends_on_data(model.graph):  # sizes are those of this point
            graph, wrt = differentiable(bound(model, given | at)[0], held)
            joint = vjp_graph(graph, wrt)
        try:
            with np.errstate(all="ignore"):
                found = along(graph, joint, {n: exact(a) for n, a in at.items()}, [v.name for v in wrt], random)
        except df.InputError as error:
            if not depends_on_data(model.graph):
                raise
            found = f"a size changes: {error}"
        if not isinstance(found, str):
            ours, theirs, size = found
            wrong = not abs(ours - theirs) <= LIMIT * size
            return ("wrong", f"draw {draw}: the vjp gives {ours}, differences {theirs}") if wrong else ("right", "")
        text = found
    return "not smooth", text


def another_point(array, draw, random):
    """The case's own input, then points that are ever further away, at last positive ones."""
    noise = random.standard_normal(array.shape)
    upcast = exact(array)
    finite = np.where(np.isfinite(upcast), upcast, noise)
    points = [upcast] * 2 + [finite * (1 + 0.05 * noise)] * 3 + [finite + 0.02 * noise] * 3
    found = points[draw] if draw < len(points) else np.abs(finite) + 0.1 + 0.02 * noise**2
    return found.astype(array.dtype)


def along(graph, joint, at, names, random):
    """The derivative by the vjp and by differences, and the size of its terms; or why there is none."""
    direction = {n: random.standard_normal(at[n].shape) * np.maximum(np.abs(at[n]), 1.0) for n in names}
    direction = {n: np.where(np.isfinite(at[n]), a, 0.0) for n, a in direction.items()}
    start = evaluate(graph, at, dtype=np.float64)
    if any(np.isnan(a).any() for a in start.values()):
        return "the point lies outside of the domain"
    seeds = {n: np.where(np.isfinite(a), random.standard_normal(a.shape), 0.0) for n, a in start.items()}
    gradients = evaluate(joint, at | {f"grad.{n}": u for n, u in seeds.items()}, dtype=np.float64)

    def value(results):
        return sum(float(np.where(np.isfinite(start[n]), u * results[n], 0.0).sum()) for n, u in seeds.items())

    def moved(step):
        return value(evaluate(graph, at | {n: at[n] + step * a for n, a in direction.items()}, dtype=np.float64))

    here, above, below = value(start), [moved(s) for s in STEPS], [moved(-s) for s in STEPS]
    slopes = [(a - b) / (2 * s) for a, b, s in zip(above, below, STEPS, strict=True)]
    sides = (above[-1] - here) / STEPS[-1], (here - below[-1]) / STEPS[-1]
    terms = [np.where(a == 0, 0.0, a * gradients[f"grad.{n}"]) for n, a in direction.items()]
    size = max(
        1e-6, 1e-3 * abs(here), *map(abs, slopes), float(sum(np.abs(t).sum() for t in terms))
    )  # NaN isn't larger
    smooth = max(slopes) - min(slopes) < 0.5 * LIMIT * size and abs(sides[0] - sides[1]) < 1e-4 * size
    if not smooth:  # or not finite
        return f"slopes are {slopes}, {sides} to both sides"
    return float(sum(t.sum() for t in terms)), slopes[1], size


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the expected values of cases
def test_gradients_of_all_cases_are_those_of_differences():
    fared = {}
    for name, model, given in cases():
        names = (v.name for v in model.graph.input)
        fared[name] = compare(name, load_bytes(model.SerializeToString()), dict(zip(names, given, strict=False)))
    words = Counter(word for word, _ in fared.values())
    others = {name: row for name, row in fared.items() if row[0] not in ("right", "no derivative")}
    listed = {name: pattern for name in others for pattern in LEFT_OUT if re.fullmatch(pattern, name)}
    assert {name: row for name, row in others.items() if name not in listed} == {}
    assert {p: list(listed.values()).count(p) for p in LEFT_OUT} == {p: count for p, (count, _) in LEFT_OUT.items()}
    assert words["right"] == CHECKED or onnx.__version__ != COUNTED
