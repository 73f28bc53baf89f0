"""Adapters alone on disk, in the folder that PEFT writes: ``adapter_model.safetensors`` and ``adapter_config.json``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, ModelError
from ..host import checks
from ..host.new_file import new_file
from ..ir.types import Array
from ..layers.layers import Layer, layers_of
from ..model import Model
from ..train.checkpoint import write_tensors
from .adapter import AdaptedModel, Adapter, with_adapters
from .lora import MOST_RANK, adapted, adapter_of, candidates, magnitudes, shapes_of

TENSORS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
_KINDS = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)")
_NUMBERED = re.compile(r"^(/|node_|val_|onnx::)")
# Settings that change what the tensors mean, with the values that leave them as they are.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "bias": ("none",), "lora_bias": (False,), "layer_replication": (None,), "trainable_token_indices": (None,),
    "target_parameters": (None,), "use_qalora": (False,), "use_bdlora": (None, False), "arrow_config": (None,),
    "alora_invocation_tokens": (None,), "kasa_config": (None,), "velora_config": (None,), "monteclora_config": (None,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}  # fmt: skip


# ---- writing ------------------------------------------------------------------------------------------


def save_adapters(model: Model, folder: str | Path, *, overwrite: bool = False) -> None:
    """Writes what is trained of a model with adapters, with PEFT's names, so that PEFT can load it too.

    Args:
        model: made by ``df.lora`` or ``df.load_adapters``.
        folder: is made.
        overwrite: replaces the two files where they exist.

    Raises:
        InputError: the model has no adapters, or there are such files already.
        OSError: they can't be written.
    """
    checks.instance("model", model, Model)
    model = with_adapters(model)
    target = Path(checks.path("folder", folder))
    existing = [name for name in (TENSORS, SETTINGS) if (target / name).exists()]
    if existing and not overwrite:
        raise InputError(f"{target / existing[0]}: exists already; give overwrite=True (--force) to replace it")
    arrays = model.arrays()
    own = [name for adapter in model.adapters for name in adapter.tensors]
    tensors = {PREFIX + name: arrays[name] for name in own}
    layers = {layer.weight.name: layer for layer in layers_of(model.base.graph, model.base.aliases)}
    saved = set()
    for name, parameter in model.parameters.items():
        if parameter.trainable and name not in own:
            path = _torch_name((name, *parameter.aliases))
            tensors[PREFIX + path] = _as_torch(arrays[name], layers.get(name))
            saved.add(path.rpartition(".")[0] or path)
    ranks = {adapter.path: adapter.rank for adapter in model.adapters if adapter.rank != model.settings["r"]}
    settings = {
        "peft_type": "LORA", "task_type": None, "base_model_name_or_path": None, "inference_mode": True,
        **model.settings, "target_modules": sorted(adapter.path for adapter in model.adapters),
        "modules_to_save": sorted(saved) or None, "rank_pattern": ranks, "alpha_pattern": _alphas(model),
        "bias": "none", "fan_in_fan_out": False, "init_lora_weights": True,
    }  # fmt: skip
    target.mkdir(parents=True, exist_ok=True)
    stored = {name: np.require(array, requirements="C") for name, array in tensors.items()}

    def alone() -> Path:
        """The place of the tensors, without the settings of those before, by which they would be other adapters."""
        (target / SETTINGS).unlink(missing_ok=True)
        return target / TENSORS

    with new_file(target / SETTINGS, synced=True) as listed:
        listed.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")
        with new_file(target / TENSORS, synced=True, renamed=alone) as unfinished:
            write_tensors(unfinished, stored, {"format": "pt"})


def _alphas(model: AdaptedModel) -> dict[str, float]:
    """The alphas that differ from the model's, by path."""
    found = {}
    for adapter in model.adapters:
        alpha = adapter.scale * _divisor(adapter.rank, bool(model.settings["use_rslora"]))
        if not math.isclose(alpha, model.settings["lora_alpha"], rel_tol=1e-9):
            found[adapter.path] = alpha
    return found


def _divisor(rank: int, stabilized: bool) -> float:
    return math.sqrt(rank) if stabilized else rank


def _torch_name(names: tuple[str, ...]) -> str:
    """The likeliest name of a parameter in PyTorch."""
    return next((name for name in names if "." in name and not _NUMBERED.match(name)), names[0])


def _as_torch(array: Array, layer: Layer | None) -> Array:
    """A parameter as PyTorch lays it out: of a product, (outputs, inputs); the same function reads and writes."""
    return array.T if layer is not None and layer.kind == "linear" and not layer.transposed else array


# ---- reading ------------------------------------------------------------------------------------------


def load_adapters(model: Model, folder: str | Path) -> AdaptedModel:
    """The model with the adapters in a folder that PEFT or ``save_adapters`` wrote.

    A module's path is looked for among the names of weights, their aliases and the paths of nodes; where the model was
    exported from within another module, or without one, by the longest common end that is of one layer alone.

    Args:
        model: it is not changed.
        folder: has both files.

    Raises:
        InputError: a file is missing or damaged, or holds adapters of another kind.
        ModelError: a tensor fits no layer, or several; the message has the candidates.
    """
    checks.instance("model", model, Model)
    source = Path(checks.path("folder", folder))
    settings, tensors = _settings(source / SETTINGS), _tensors(source / TENSORS)
    layers = candidates(model)
    modules: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    for key in tensors:
        path = key.removeprefix(PREFIX)
        if (match := _KINDS.fullmatch(path)) is not None:
            modules.setdefault(match[1], {})[match[2]] = key
        else:
            others[path] = key
    if not modules:
        raise InputError(
            f"{source / TENSORS}: it holds no adapter; its names begin {', '.join(list(tensors)[:3]) or 'none'}"
        )
    adapters: list[Adapter] = []
    data: dict[str, Array] = {}
    of: dict[str, str] = {}
    for path, keys in modules.items():
        layer = _layer_of(path, layers)
        if layer.weight.name in of:
            raise ModelError(f"adapters {of[layer.weight.name]!r} and {path!r} both fit the layer {layer.path!r}")
        of[layer.weight.name] = path
        adapter, found = _adapter(path, {kind: tensors[key] for kind, key in keys.items()}, layer, settings)
        if adapter.magnitude is not None:
            data |= magnitudes(adapter, layer, model.arrays())
        adapters.append(adapter)
        data |= found
    model, also = _with_parameters(model, {path: tensors[key] for path, key in others.items()}, layers)
    order = {layer.weight.name: index for index, layer in enumerate(layers)}
    adapters.sort(key=lambda adapter: order[adapter.weight])
    kept = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora")
    return adapted(model, adapters, data, {name: settings[name] for name in kept}, also)


def _settings(path: Path) -> dict[str, Any]:
    """What ``adapter_config.json`` says, checked.

    Raises:
        InputError: it can't be read, or asks for what isn't supported.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: can't be read as PEFT's settings: {error}") from None
    if not isinstance(found, dict) or found.get("peft_type") != "LORA":
        given = found.get("peft_type") if isinstance(found, dict) else found
        raise InputError(f"{path}: peft_type is {checks.shown(given)}; expected 'LORA'")
    for name, values in _PLAIN.items():
        if name in found and found[name] not in values:
            raise InputError(f"{path}: {name} is {checks.shown(found[name])}; expected {values[0]}, or nothing")
    defaults = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, "use_dora": False}
    made: dict[str, Any] = {name: found.get(name, default) for name, default in defaults.items()}
    made["lora_alpha"] = checks.number(f"{path}: lora_alpha", made["lora_alpha"])
    made["lora_dropout"] = checks.number(f"{path}: lora_dropout", made["lora_dropout"], 0.0, 1.0)
    for name in ("use_rslora", "use_dora"):
        checks.instance(f"{path}: {name}", made[name], bool)
    patterns = checks.mapping(f"{path}: alpha_pattern", found.get("alpha_pattern") or {})
    if any(re.search(r"[^\w.\\-]", pattern) for pattern in patterns):
        raise InputError(f"{path}: alpha_pattern has regular expressions; expected names of modules")
    alphas = {name.replace("\\", ""): checks.number(f"{path}: alpha_pattern", v) for name, v in patterns.items()}
    made["alpha_pattern"] = alphas
    return made


def _tensors(path: Path) -> dict[str, Array]:
    """The tensors of a file, float32.

    Raises:
        InputError: it can't be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: can't be read as adapters: {error}") from None
    return {name: array.astype(np.float32) for name, array in found.items()}


def _layer_of(path: str, layers: list[Layer]) -> Layer:
    """The layer of a module."""
    exact = [layer for layer in layers if path in layer.paths]
    if len(exact) == 1:
        return exact[0]
    ends = exact or [layer for layer in layers if any(_same_end(path, name) for name in layer.paths)]
    if len(ends) == 1:
        return ends[0]
    shown = ", ".join(repr(layer.path) for layer in (ends or layers)[:12])
    raise ModelError(f"adapter {path!r} fits {len(ends)} layers of the model, expected 1; candidates: {shown}")


def _same_end(a: str, b: str) -> bool:
    """Whether one name is the end of the other, which begins with more modules; of no name that exporters number."""
    return (a.endswith("." + b) or b.endswith("." + a)) and not (_NUMBERED.match(a) or _NUMBERED.match(b))


def _adapter(
    path: str, given: Mapping[str, Array], layer: Layer, settings: Mapping[str, Any]
) -> tuple[Adapter, dict[str, Array]]:
    """The adapter that tensors of a module make, and its data.

    Raises:
        InputError: tensors are missing, or of other shapes.
    """
    a_name, b_name = (
        ("lora_embedding_A", "lora_embedding_B") if layer.kind == "embedding" else ("lora_A.weight", "lora_B.weight")
    )
    magnitude = "lora_magnitude_vector"
    expected = {a_name, b_name, *([magnitude] if settings["use_dora"] else [])}
    if set(given) != expected:
        raise InputError(f"adapter {path!r} of a {layer.kind} layer has {sorted(given)}; expected {sorted(expected)}")
    rank = given[a_name].shape[0] if given[a_name].ndim else 0
    if not 1 <= rank <= MOST_RANK:
        raise InputError(f"adapter {path!r}: its rank is {rank}; expected 1 to {MOST_RANK}")
    alphas = settings["alpha_pattern"]
    key = next((key for key in alphas if path == key or path.endswith("." + key)), None)
    alpha = settings["lora_alpha"] if key is None else alphas[key]
    scale = alpha / _divisor(rank, settings["use_rslora"])
    adapter = adapter_of(layer, rank, scale, settings["lora_dropout"], settings["use_dora"])
    names = dict(zip(adapter.tensors, (a_name, b_name, magnitude), strict=False))
    data = {}
    for name, shape in shapes_of(adapter, layer).items():
        array = given[names[name]]
        if array.shape != shape:
            raise InputError(f"adapter {path!r}: {names[name]} is {list(array.shape)}; expected {list(shape)}")
        data[name] = array
    return adapter, data


def _with_parameters(model: Model, given: Mapping[str, Array], layers: list[Layer]) -> tuple[Model, list[str]]:
    """The model with parameters that were trained beside the adapters, and their names.

    Raises:
        ModelError: the model has no such parameter.
        InputError: one has another shape.
    """
    by_weight = {layer.weight.name: layer for layer in layers}
    changed = model.copy()
    names = []
    for path, array in given.items():
        found = [n for n, p in changed.parameters.items() if path in (n, *p.aliases)]
        ends = found or [
            n for n, p in changed.parameters.items() if any(_same_end(path, name) for name in (n, *p.aliases))
        ]
        if len(ends) != 1:
            raise ModelError(f"tensor {path!r} fits {len(ends)} parameters of the model, expected 1: {ends[:6]}")
        parameter = changed.parameters[ends[0]]
        data = _as_torch(array, by_weight.get(ends[0])).astype(parameter.type.dtype.numpy)
        if data.shape != parameter.type.sizes:
            raise InputError(
                f"tensor {path!r} of the adapters is {list(array.shape)}, and the model's {ends[0]!r} is "
                f"{parameter.type}; where it is a head for other classes, give the model one of as many first: "
                f"df.replace_head(model, classes={array.shape[0] if array.ndim else 1}), or --classes"
            )
        parameter.set(data)
        names.append(ends[0])
    return changed, names
