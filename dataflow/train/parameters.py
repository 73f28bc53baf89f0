"""Which parameters are trained: patterns over names, aliases and positions in the graph."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from ..errors import InputError
from ..host import checks
from ..ir.edits import Edited, is_by_hand
from ..ir.graph import Graph
from ..ir.types import Array
from ..ir.value import Value
from ..layers.layers import layers_of
from ..model import Model, Parameter
from ..ops.dynamic_shape import deferred

_log = logging.getLogger("dataflow")
_VIEWS = frozenset({"transpose", "reshape", "broadcast_to", "slice", "cast", "copy"})
_LARGE = 128  # elements: of what may be more than literals
_SCALED = frozenset({"quantize", "dequantize"})  # by stored scales
_OF_A_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)+|(?!\w*_\d+$)[A-Za-z_]\w*")  # no number of an exporter's
_OF_RECURRENT = re.compile(r"\.(W|R|B|P)$")  # operands of LSTM, GRU and RNN
_BIAS = re.compile(r"(^|[._])bias(_|$)")
_NORM = re.compile(r"(^|[./_])((batch|layer|group|instance|rms)_?norm|norm|ln|bn)(_?\d+|_?f)?([./_]|$)", re.IGNORECASE)


def select(model: Model, patterns: Sequence[str] | str | None = None) -> tuple[str, ...]:
    """The names of the parameters to train, in the model's order.

    Args:
        model: whose parameters.
        patterns: a name or alias selects exactly that tensor, also one that isn't trained by default. Globs,
            ``"head"`` (the last layer with a weight), ``"last:3"`` (from the third last layer on), ``"bias"`` and
            ``"norm"`` choose among those trained by default. ``"!pattern"`` leaves out. None: all of the default.

    Raises:
        InputError: a pattern matches nothing; the message has the nearest names.
    """
    parameters = model.parameters
    default = [name for name, parameter in parameters.items() if parameter.trainable]
    given = [] if patterns is None else checks.texts("trainable", patterns)
    wanted = [p for p in given if not p.startswith("!")]
    nothing = patterns is not None and not given
    chosen = set() if wanted or nothing else set(default)
    for pattern in wanted:
        chosen |= _matching(model, pattern, default)
    for pattern in given:
        if pattern.startswith("!"):
            chosen -= _matching(model, pattern[1:], default)
    names = tuple(name for name in parameters if name in chosen)
    if not names:
        raise InputError(
            f"nothing is left to train: {_described(patterns, given)}; the model has {len(parameters)} stored tensors, "
            f"{len(default)} of them trainable by default{_hint(model.graph, default)}"
        )
    integers = [f"{name!r} is {parameters[name].type}" for name in names if not parameters[name].type.dtype.is_float]
    if integers:
        raise InputError(f"only float tensors can be trained: {', '.join(integers)}")
    narrow = [f"{name!r} is {parameters[name].type}" for name in names if parameters[name].type.dtype.bits < 16]
    if narrow:
        more = f" and {len(narrow) - 3} more" if len(narrow) > 3 else ""
        raise InputError(
            f"parameters of fewer than 16 bits can't be trained: {', '.join(narrow[:3])}{more}; export the model in "
            "float32, float16 or bfloat16, or leave them out with trainable="
        )
    return names


def warn_of_absent(model: Model) -> None:
    """Says which parameters the network had that the file was made of, and the file lacks."""
    source = model.source.source if isinstance(model.source, Edited) else model.source
    absent = getattr(source, "absent", ())
    if absent:
        _log.warning(
            "the file lacks %d parameters of its network, first %s, so they aren't trained: PyTorch's exporter leaves "
            "out biases of zeros; export with optimize=False", len(absent), absent[0],
        )  # fmt: skip


def left_out(model: Model, names: Collection[str]) -> list[str]:
    """Stored floats of a file that aren't trained, though all of the default are, and may be a module's parameters.

    Those are called as in a module, or PyTorch's older exporter numbered them (``onnx::Exp_12``), as it does parameters
    that it reshaped and literals alike: of these the larger ones that are no masks, and on which an output depends.
    """
    parameters = model.parameters
    if is_by_hand(model.source) or any(p.trainable and name not in names for name, p in parameters.items()):
        return []
    readers, nodes = readers_of(model.graph), model.graph.nodes
    known = {*names, *(model.source.added if isinstance(model.source, Edited) else ())}
    constants = [
        name
        for name, p in parameters.items()
        if p.role == "constant" and name not in known and p.type.dtype.bits >= 16
        if any(nodes[index].op.name not in _SCALED for index, _ in readers.get(name, ()))
    ]
    called = [name for name in constants if _OF_A_MODULE.fullmatch(name)]
    numbered = [n for n in constants if "::" in n and parameters[n].type.elements >= _LARGE]
    if not numbered:
        return called
    needed = _needed(model.graph)
    return called + [name for name in numbered if name in needed and not _is_of_two(parameters[name].array)]


def _needed(graph: Graph) -> set[str]:
    """Names of the values on which outputs depend, but for running statistics that batch norms in training update."""
    found = {value.name for value in graph.outputs.values()}
    for node in reversed(graph.nodes):
        if any(value is not None and value.name in found for value in node.outputs):
            read = node.inputs[:3] if node.op.name == "batch_norm_train" else node.inputs
            found.update(value.name for value in read if value is not None)
    return found


def _is_of_two(array: Array) -> bool:
    """Whether all elements are one number or another."""
    return bool(((array == array.min()) | (array == array.max())).all())


def _hint(graph: Graph, default: Sequence[str]) -> str:
    """What else can be trained where a model has weights of few bits alone."""
    if default or not any(v.type.dtype.bits <= 8 and v.type.rank > 1 for v in graph.initializers):
        return ""
    return "; weights of few bits stay as they are: df.lora(model) trains adapters beside them"


def _described(chosen: object, patterns: Sequence[str]) -> str:
    if chosen is None:
        return "no parameter is trainable by default"
    return f"trainable={list(patterns)}" + ("" if patterns else ", where None stands for all that are by default")


def _matching(model: Model, pattern: str, default: Sequence[str]) -> set[str]:
    parameters = model.parameters
    found = matching(model, pattern, default)
    if not found:
        outside = [name for name, p in parameters.items() if name not in default and _matches(p, pattern)]
        if outside:
            raise InputError(
                f"trainable pattern {pattern!r} matches only tensors that are not trained by default; to train one, "
                f"give its exact name: {', '.join(map(repr, outside[:5]))}"
            )
        raise InputError(
            f"trainable pattern {pattern!r} matches no parameter; nearest names: {nearest(model, pattern)}"
        )
    return found


def matching(model: Model, pattern: str, names: Sequence[str]) -> set[str]:
    """The parameter of exactly that name or alias; or those among ``names`` that a pattern matches, see ``select``."""
    parameters = model.parameters
    exact = {name for name, p in parameters.items() if pattern == name or pattern in p.aliases}
    if exact:
        return exact
    found = positioned(model, pattern, names)
    return {name for name in names if _matches(parameters[name], pattern)} if found is None else found


def positioned(model: Model, pattern: str, names: Sequence[str]) -> set[str] | None:
    """Those among ``names`` that ``head``, ``last:N``, ``bias`` and ``norm`` stand for; None for other patterns."""
    if pattern == "head" or re.fullmatch(r"last:\d+", pattern):
        return _last_layers(model, set(names), pattern, 1 if pattern == "head" else int(pattern[5:]))
    if pattern == "bias":
        return _biases(model, names)
    if pattern == "norm":
        return _norms(model, names)
    return None


def nearest(model: Model, pattern: str) -> str:
    """The names and aliases nearest to a pattern that matches nothing, for messages."""
    names = [n for name, p in model.parameters.items() for n in (name, *p.aliases)]
    near = difflib.get_close_matches(pattern, names, 3, cutoff=0.3)
    return ", ".join(map(repr, near)) or ", ".join(map(repr, names[:3])) or "the model has none"


def _matches(parameter: Parameter, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (parameter.name, *parameter.aliases))


def readers_of(graph: Graph) -> dict[str, list[tuple[int, int]]]:
    """For each stored tensor, (node, operand) of what reads it, through views."""
    sources = {value: {value.name} for value in graph.initializers}
    found: dict[str, list[tuple[int, int]]] = {}
    for index, node in enumerate(graph.nodes):
        for position, value in enumerate(node.inputs):
            if value is None or value not in sources:
                continue
            if node.op.name in _VIEWS and position == 0:
                for output in node.outputs:
                    if output is not None:
                        sources[output] = sources[value]
                continue
            for name in sources[value]:
                found.setdefault(name, []).append((index, position))
    return found


def first_reads(model: Model, names: Collection[str]) -> dict[str, int]:
    """The index of the first node that reads each of these parameters, of those of a recurrent node the least.

    -1 where none reads it.
    """
    readers, parameters = readers_of(model.graph), model.parameters
    found = {name: readers[name][0][0] if name in readers else -1 for name in names}
    paths = {n: a.rpartition(".")[0] for n in names for a in parameters[n].aliases[:1] if _OF_RECURRENT.search(a)}
    least: dict[str, int] = {}
    for name, path in paths.items():
        least[path] = min(least.get(path, found[name]), found[name])
    return {name: least[paths[name]] if name in paths else index for name, index in found.items()}


def is_deferred(graph: Graph) -> bool:
    """Whether a model is converted anew for each form of its inputs, so that its nodes aren't known before."""
    return any(node.op is deferred for node in graph.nodes)


def _last_layers(model: Model, names: set[str], pattern: str, count: int) -> set[str]:
    """What is first read by the ``count`` last nodes with a weight of rank two or more, or after them.

    Raises:
        InputError: the weight of one of these is quantized, or the graph isn't known yet.
    """
    graph = model.graph
    if is_deferred(graph):
        raise InputError(
            f"trainable pattern {pattern!r}: the model is converted anew for each form of its inputs, so that its last "
            "layers aren't known before; name parameters"
        )
    readers = {name: positions for name, positions in readers_of(graph).items() if name in names}
    rank = {value.name: value.type.rank for value in graph.initializers}
    index = {node: position for position, node in enumerate(graph.nodes)}
    quantized = {
        index[use.node]: layer.path
        for layer in layers_of(graph, model.aliases)
        if not layer.weight.type.dtype.is_float
        for use in layer.uses
    }
    first = first_reads(model, readers)
    layers = sorted({position for name, position in first.items() if rank[name] >= 2} | quantized.keys())
    if not layers or count < 1:
        return set()
    last = layers[-min(count, len(layers)) :]
    fixed = [quantized[position] for position in last if position in quantized]
    if fixed:
        raise InputError(
            f"trainable pattern {pattern!r} stands for layers with weights of few bits, which can't be trained: "
            f"{', '.join(map(repr, fixed[:3]))}; quantize(keep={pattern!r}) leaves them as they are"
        )
    return {name for name, position in first.items() if position >= last[0]}


def _vectors(graph: Graph) -> set[str]:
    """Stored tensors of which all dims but one are 1."""
    return {value.name for value in graph.initializers if sum(d != 1 for d in value.type.shape) <= 1}


def _biases(model: Model, names: Sequence[str]) -> set[str]:
    """Vectors that are added, or stand where an op declares a bias; and what a file says is one, as B of an LSTM."""
    graph, parameters = model.graph, model.parameters
    vectors, readers = _vectors(graph), readers_of(graph)
    origins = {value.name: data.origin for value, data in graph.initializers.items()}
    found = set()
    for name in names:
        if _BIAS.search(origins.get(name, "")) or any(alias.endswith(".B") for alias in parameters[name].aliases):
            found.add(name)
        for index, position in readers.get(name, ()):
            op = graph.nodes[index].op
            declared = op.inputs[position] if position < len(op.inputs) else ""
            if name in vectors and (op.name == "add" or declared.startswith("bias")):
                found.add(name)
    return found


def _norms(model: Model, names: Sequence[str]) -> set[str]:
    """What an op with "norm" in its name reads, or what is called after a normalization; and vectors behind one."""
    readers, parameters = readers_of(model.graph), model.parameters
    found = _behind_norms(model.graph).intersection(names)
    for name in names:
        called = any(_NORM.search(n) for n in (name, *parameters[name].aliases))
        if called or any("norm" in model.graph.nodes[index].op.name for index, _ in readers.get(name, ())):
            found.add(name)
    return found


def _behind_norms(graph: Graph) -> set[str]:
    """Vectors by which the result of a normalization is multiplied, and that are added behind it, through views.

    So exporters write a group norm: as one without scale and bias, and these by themselves, a product and then a sum.
    """
    vectors = _vectors(graph)
    sources = {value: value.name for value in graph.initializers if value.name in vectors}
    expected: dict[Value | None, tuple[str, ...]] = {}  # what may follow as a norm's own
    found = set()
    for node in graph.nodes:
        name, first = node.op.name, node.inputs[0] if node.inputs else None
        if "norm" in name:
            if not any(_varies(graph, v) for v in node.inputs[1:] if v is not None):
                expected[node.outputs[0]] = ("mul", "add")
        elif name in _VIEWS:
            if first in expected:
                expected[node.outputs[0]] = expected[first]
            if first in sources and first is not None and node.outputs[0] is not None:
                sources[node.outputs[0]] = sources[first]
        elif name in ("mul", "add"):
            wanted = next((expected[v] for v in node.inputs if v in expected), ())
            beside = {sources[v] for v in node.inputs if v is not None and v in sources}
            if name in wanted and beside:
                found.update(beside)
                own = any(_varies(graph, v) for v in graph.initializers if v.name in beside)
                expected[node.outputs[0]] = (("add",) if name == "mul" else ()) if own else ("mul", "add")
    return found


def _varies(graph: Graph, value: Value) -> bool:
    """Whether a stored vector is more than ones or zeros that an exporter writes where there is none."""
    stored = graph.initializers.get(value)
    return stored is not None and bool((stored.array != stored.array.reshape(-1)[:1]).any())
