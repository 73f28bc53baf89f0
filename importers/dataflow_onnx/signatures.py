"""What operands and attributes a converter takes; checked before it is called, so that it meets nothing else.

A converter declares them by its signature: operands by position, attributes by keyword, their kinds by annotation.
An operand may be left out where it has a default, or where its annotation ends with ``| None``.
``_VALUES`` adds which values ONNX's own operators know, so that none is taken for another in silence.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, NamedTuple

import numpy as np

from dataflow.errors import ModelError, PluginError
from dataflow.plugin import Converter

from .converters import name_of
from .file.records import GraphRecord, plain_domain
from .file.value_types import ValueType

_KINDS: Mapping[str, tuple[type, type | None, str]] = {  # of the value, of its elements
    "int": (int, None, "an integer"),
    "float": (float, None, "a float"),
    "str": (str, None, "a string"),
    "Sequence[int]": (tuple, int, "integers"),
    "Sequence[float]": (tuple, float, "floats"),
    "Sequence[str]": (tuple, str, "strings"),
    "GraphRecord": (GraphRecord, None, "a graph"),
    "Array": (np.ndarray, None, "a tensor"),
    "ValueType": (ValueType, None, "a type"),
}
_ANY = 1 << 30  # operands
_Values = Sequence[Any]  # a range of integers or a tuple of choices
_FLAG = range(2)
_COUNT = range(1, 1 << 63)
_WINDOW = range(1, 1 << 31)
_REDUCTIONS = ("none", "add", "mul", "max", "min")
_LOSSES = ("none", "mean", "sum")
_VALUES: Mapping[str, _Values] = {  # by "attribute" or "Operator.attribute"; of lists, what each element may be
    **dict.fromkeys(
        [
            "align_corners", "allowzero", "antialias", "ceil_mode", "count_include_pad", "detect_negative",
            "detect_positive", "exclude_outside", "exclusive", "fmod", "input_forget", "interleaved",
            "is_case_sensitive", "is_causal",
            "keepdims", "largest", "layout", "linear_before_reset", "noop_with_empty_axes", "periodic", "reverse",
            "saturate", "scan_input_directions", "scan_output_directions", "select_last_index", "sorted", "spatial",
            "storage_order", "training_mode", "transA", "transB", "upper",
        ],
        _FLAG,
    ),
    **dict.fromkeys(
        [
            "blocksize", "group", "hidden_size", "kv_num_heads", "num_groups", "num_scan_inputs", "offset_group", "p",
            "q_num_heads",
        ],
        _COUNT,
    ),
    **dict.fromkeys(["dilations", "kernel_shape", "strides"], _WINDOW),
    "LpNormalization.p": (1, 2),
    "LRN.size": _COUNT,
    "CausalConvWithState.activation": ("none", "silu", "swish"),
    "LinearAttention.update_rule": ("linear", "gated", "delta", "gated_delta"),
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "cast_to": ("TO_FLOAT", "TO_INT64", "TO_STRING"),
    "map_form": ("DENSE", "SPARSE"),
    "BitShift.direction": ("LEFT", "RIGHT"),
    "direction": ("forward", "reverse", "bidirectional"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "DepthToSpace.mode": ("DCR", "CRD"),
    "SpaceToDepth.mode": ("DCR", "CRD"),
    "RoiAlign.mode": ("avg", "max"),
    "RoiAlign.coordinate_transformation_mode": ("half_pixel", "output_half_pixel"),
    "RoiAlign.sampling_ratio": range(1 << 15),
    "center_point_box": _FLAG,
    **dict.fromkeys(["output_height", "output_width", "pooled_shape"], range(1, 1 << 31)),
    "GridSample.mode": ("linear", "nearest", "cubic", "bilinear", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "Resize.mode": ("nearest", "linear", "cubic"),
    "case_change_action": ("NONE", "LOWER", "UPPER"),
    "TfIdfVectorizer.mode": ("TF", "IDF", "TFIDF"),
    "max_skip_count": range(1 << 10),
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
    "TreeEnsemble.post_transform": range(5),
    "TreeEnsemble.aggregate_function": range(4),
    "TreeEnsembleRegressor.aggregate_function": ("SUM", "AVERAGE", "MIN", "MAX"),
    "kernel_type": ("LINEAR", "POLY", "RBF", "SIGMOID"),
    "Normalizer.norm": ("MAX", "L1", "L2"),
    "OneHotEncoder.zeros": _FLAG,
    "n_targets": range(1, 1 << 31),
    "TensorScatter.mode": ("linear", "circular"),
    "NegativeLogLikelihoodLoss.reduction": _LOSSES,
    "SoftmaxCrossEntropyLoss.reduction": _LOSSES,
    "ScatterElements.reduction": _REDUCTIONS,
    "ScatterND.reduction": _REDUCTIONS,
    "round_mode": ("up", "down", "nearest"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an attribute may be.

    Attributes:
        kind: type of the value.
        element: type of what it holds, where it is a list.
        text: both, for messages.
        values: which it may be, or each of its elements; None allows all.
    """

    kind: type
    element: type | None
    text: str
    values: _Values | None

    def check(self, name: str, value: Any) -> None:
        """Raises ModelError when ``value`` is another kind, or one that ONNX doesn't know."""
        items = value if type(value) is tuple else (value,)
        if type(value) is not self.kind or (self.element and items and type(items[0]) is not self.element):
            raise ModelError(f"attribute {name!r} is {_described(value)}; expected {self.text}")
        if self.values is not None:
            for item in items:
                if item not in self.values:
                    raise ModelError(f"attribute {name!r} is {value!r}; expected {_choice(self.values)}")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a converter takes.

    Attributes:
        least, most: how many operands.
        optional: indices of operands that may be left out though others follow, annotated with ``| None``.
        attributes: by name.
        required: those without a default.
        others: what it takes besides, under any name; None where it takes none.
    """

    least: int
    most: int
    optional: frozenset[int]
    attributes: Mapping[str, Attribute]
    required: tuple[str, ...]
    others: Attribute | None

    def check(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> None:
        """Raises ModelError when a node's operands or attributes don't fit."""
        if not self.least <= len(operands) <= self.most:
            most = "more" if self.most == _ANY else self.most
            raise ModelError(
                f"its inputs or attributes don't fit the operator: it has {len(operands)} inputs; expected {self.least}"
                + (f" to {most}" if most != self.least else "")
            )
        for index, operand in enumerate(operands[: self.least]):
            if operand is None and index not in self.optional:
                raise ModelError(f"its input {index} is left out, but the operator needs it")
        for name, value in attributes.items():
            declared = self.attributes.get(name, self.others)
            if declared is None:
                known = ", ".join(self.attributes) or "none"
                raise ModelError(
                    f"its inputs or attributes don't fit the operator: attribute {name!r}; it has: {known}"
                )
            declared.check(name, value)
        for name in self.required:
            if name not in attributes:
                raise ModelError(f"attribute {name!r} is missing; expected {self.attributes[name].text}")


@functools.cache
def arguments_of(converter: Converter) -> Arguments:
    """What a converter takes.

    Raises:
        PluginError: the annotation of an attribute is missing or names no kind.
    """
    least = most = 0
    optional: set[int] = set()
    attributes: dict[str, Attribute] = {}
    required: list[str] = []
    others = None
    for parameter in parameters_of(converter)[1:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            others = _attribute(parameter, converter)
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            most = _ANY
        elif parameter.kind is Parameter.KEYWORD_ONLY:
            attributes[parameter.name] = _attribute(parameter, converter)
            if parameter.default is Parameter.empty:
                required.append(parameter.name)
        else:
            if str(parameter.annotation).endswith("| None"):
                optional.add(most)
            most += 1
            least += parameter.default is Parameter.empty
    return Arguments(least, most, frozenset(optional), attributes, tuple(required), others)


class Declared(NamedTuple):
    """A parameter as ``inspect.Parameter`` says it, which takes several times as long to make."""

    name: str
    kind: Any
    default: Any
    annotation: Any


def parameters_of(converter: Converter) -> list[Declared]:
    """The parameters of a converter's function: those of a plain one, as almost all are, in a fraction of the time."""
    function = converter.function
    if type(function) is not types.FunctionType or function.__dict__:
        inspected = inspect.signature(function).parameters.values()
        return [Declared(p.name, p.kind, p.default, p.annotation) for p in inspected]
    code, annotations, names = function.__code__, function.__annotations__, function.__code__.co_varnames
    count, every = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    defaults, keywords = function.__defaults__ or (), function.__kwdefaults__ or {}
    given = {**dict(zip(names[count - len(defaults) : count], defaults, strict=True)), **keywords}
    kinds: list[Any] = [Parameter.POSITIONAL_OR_KEYWORD] * count
    kinds += [Parameter.KEYWORD_ONLY] * (every - count)
    if code.co_flags & inspect.CO_VARARGS:
        kinds.append(Parameter.VAR_POSITIONAL)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kinds.append(Parameter.VAR_KEYWORD)
    empty = Parameter.empty
    return [
        Declared(name, kind, given.get(name, empty), annotations.get(name, empty))
        for name, kind in zip(names, kinds, strict=False)
    ]


def _attribute(parameter: Declared, converter: Converter) -> Attribute:
    given = parameter.annotation  # a string under "from __future__ import annotations"
    short = _kind_named(given if isinstance(given, str) else inspect.formatannotation(given))
    if given is Parameter.empty or short not in _KINDS:
        raise PluginError(
            f"the parameter {parameter.name!r} of {name_of(converter)} needs an annotation that says the kind of the "
            f"attribute, one of {', '.join(_KINDS)}, or with | None"
        )
    kind, element, text = _KINDS[short]
    values = _VALUES.get(f"{converter.operator}.{parameter.name}", _VALUES.get(parameter.name))
    return Attribute(kind, element, text, values if plain_domain(converter.domain) in ("", "ai.onnx.ml") else None)


@functools.cache
def _kind_named(annotation: str) -> str:
    """What an annotation says, without the modules of names."""
    short = annotation.removesuffix(" | None")
    if short in _KINDS:
        return short
    short = re.sub(r"\b[\w.]+\.", "", annotation).removesuffix(" | None")
    return "Array" if short.startswith("ndarray") else short


def _described(value: Any) -> str:
    """The kind of a value and, where it is short, the value."""
    if isinstance(value, np.ndarray):
        return f"a tensor {value.dtype}{list(value.shape)}"
    if isinstance(value, GraphRecord):
        return "a graph"
    if isinstance(value, tuple):
        return f"{len(value)} {'elements' if not value else type(value[0]).__name__ + 's'}"
    return f"the {type(value).__name__} {value!r:.60}"


def _choice(values: _Values) -> str:
    if isinstance(values, range):
        return f"{values[0]} or {values[1]}" if len(values) == 2 else f"{values[0]} to {values[-1]}"
    return " or ".join(map(repr, values))
