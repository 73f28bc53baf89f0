"""Exports the zoo: for each architecture its variants as .onnx, and what PyTorch computes with it as .npz.

The environment decides which architectures there are: PyTorch's own layers always, those of ``transformers`` and of
``torchvision`` where these are installed. Weights are random; nothing is downloaded.

``NAME.npz`` has, per binding of sizes ``i``, ``feeds/i/INPUT`` and ``outputs/i/j``, in float64 where the module runs in
it; ``target``, what the mean squared error of the first output is taken to; ``loss``, and per parameter
``gradient/PARAMETER``, at up to 4096 elements ``positions/PARAMETER``, and ``float32/PARAMETER``, the norm of what it
differs by in float32; ``names/VARIANT``, rows of parameter, the initializer that holds it, and "1" where it lies there
transposed, or the function of it that lies there, of ``FUNCTIONS``; ``elements/VARIANT/PARAMETER/INITIALIZER``, where
it lies there in another order, as weights of LSTMs do: rows of the element in ``positions`` and of that in the
initializer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.util
import itertools
import json
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch
from architecture import Architecture, Called, calibrated, prepared, tensors
from kinks import off_kinks
from torch.nn.utils.fusion import fuse_conv_bn_eval

FAMILIES = {"networks": "torch", "text": "transformers", "perception": "transformers", "vision": "torchvision"}
SAMPLED = 4096
SECONDS = 400
FUNCTIONS = {"1-x": lambda x: 1 - x, "-exp(x)": lambda x: -np.exp(x)}  # of parameters, which exporters compute


def known() -> dict[str, Architecture]:
    """Those that this environment can build."""
    found = {}
    for module, package in FAMILIES.items():
        if importlib.util.find_spec(package) is not None:
            found |= {a.name: a for a in importlib.import_module(module).architectures()}
    return found


def build(architecture: Architecture) -> Called:
    """The module with its weights."""
    torch.manual_seed(0)
    module = prepared(architecture.build(), 0)
    called = Called(module, architecture.inputs, architecture.call)
    calibrated(module, lambda: called(*inputs(architecture, 0)))
    if architecture.trains and (wide := in_float64(called, architecture)) is not None:
        with without_float32():
            off_kinks(wide, lambda: wide(*inputs(architecture, 0, torch.float64)))
        with torch.no_grad():
            for parameter, moved in zip(called.parameters(), wide.parameters(), strict=True):
                parameter.copy_(moved)
    return called


def in_float64(module: torch.nn.Module, architecture: Architecture) -> torch.nn.Module | None:
    """A copy; None of a module that has float32 written in it."""
    wide = copy.deepcopy(module).double()
    try:
        with torch.no_grad(), without_float32():
            wide(*inputs(architecture, 0, torch.float64))
    except Exception as error:
        print(f"  {architecture.name}: not in float64: {str(error)[:120]}", file=sys.stderr)
        return None
    return wide


@contextlib.contextmanager
def without_float32() -> Iterator[None]:
    """Numbers that a module makes on the way, and casts by ``float``, are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)


def wide_if(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return without_float32() if dtype == torch.float64 else contextlib.nullcontext()


def inputs(architecture: Architecture, index: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    found = [torch.from_numpy(array) for array in architecture.feeds(index).values()]
    return [t.to(dtype) if t.is_floating_point() else t for t in found]


def export(architecture: Architecture, variant: str, path: Path) -> None:
    """Writes one file."""
    exporter, sizes = variant.split("-")
    called, given = build(architecture), tuple(inputs(architecture, 0))
    names = [entry.named() for entry in architecture.inputs.values()]
    results = [f"y{i}" for i in range(len(tensors(called(*given))))]
    options: dict[str, Any] = {"input_names": list(architecture.inputs), "output_names": results}
    options |= architecture.options
    if exporter == "trace":
        if sizes == "named":
            options["dynamic_axes"] = dict(zip(architecture.inputs, names, strict=True))
        options.setdefault("opset_version", 18)
        torch.onnx.export(called, given, str(path), dynamo=False, **options)
    else:
        if sizes == "named":
            options["dynamic_shapes"] = (tuple(names),)
        torch.onnx.export(called, given, str(path), dynamo=True, external_data=False, verbose=False, **options)


def folded(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with batch norms folded into the convolutions before them, as the exporters do."""
    module = copy.deepcopy(module)
    for owner in list(module.modules()):
        for (name, layer), (next_name, following) in itertools.pairwise(list(owner.named_children())):
            if isinstance(layer, (torch.nn.Conv2d, torch.nn.Conv3d)) and isinstance(
                following, torch.nn.modules.batchnorm._BatchNorm
            ):
                setattr(owner, name, fuse_conv_bn_eval(layer, following))
                setattr(owner, next_name, torch.nn.Identity())
    return module.requires_grad_(True)


def parameter_names(path: Path, module: torch.nn.Module) -> np.ndarray:
    """Rows of parameter, initializer, and how that holds it; only what is found by its numbers."""
    stored: dict[int, list[tuple[str, np.ndarray]]] = {}
    for tensor in onnx.load(path).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            stored.setdefault(array.size, []).append((tensor.name, array))
    rows = []
    for name, parameter in module.named_parameters():
        array = parameter.detach().float().numpy()
        for own, data in stored.get(array.size, []) if array.size > 1 else ():
            if data.squeeze().shape == array.squeeze().shape and near(data.reshape(array.shape), array):
                rows.append((name, own, "0"))
            elif data.ndim == 2 == array.ndim and data.T.shape == array.shape and near(data.T, array):
                rows.append((name, own, "1"))
            elif data.squeeze().shape == array.squeeze().shape:
                rows += [
                    (name, own, text) for text, of in FUNCTIONS.items() if near(data.squeeze(), of(array).squeeze())
                ]
    return np.array(rows).reshape(-1, 3)


def other_orders(
    path: Path, module: torch.nn.Module, known: Mapping[str, np.ndarray], variant: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Parameters that no initializer holds as they are, by initializers that have most of their elements."""
    named = set(known[f"names/{variant}"][:, 0])
    initializers = [(t.name, onnx.numpy_helper.to_array(t)) for t in onnx.load(path).graph.initializer]
    for name, parameter in module.named_parameters():
        positions = known.get(f"positions/{name}")
        if name in named or positions is None or len(positions) < 8:
            continue
        wanted = parameter.detach().float().numpy().reshape(-1)[positions]
        for own, array in initializers:
            if array.dtype == np.float32 and array.size >= len(wanted):
                values, index, times = np.unique(array, return_index=True, return_counts=True)
                at = np.searchsorted(values, wanted).clip(max=len(values) - 1)
                held = np.flatnonzero((values[at] == wanted) & (times[at] == 1))  # random numbers may be equal
                if len(held) > 0.9 * len(wanted):
                    yield f"{name}/{own}", np.stack([held, index[at[held]]])


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= 1e-5 * np.abs(b).max())


def reference(architecture: Architecture) -> tuple[dict[str, np.ndarray], torch.nn.Module]:
    """What PyTorch computes, and the module, folded, that it was computed with."""
    found: dict[str, np.ndarray] = {}
    plain = build(architecture)
    exact = in_float64(plain, architecture)
    dtype = torch.float32 if exact is None else torch.float64
    exact = exact or copy.deepcopy(plain)
    for index in range(len(architecture.bindings())):
        found |= {f"feeds/{index}/{name}": array for name, array in architecture.feeds(index).items()}
        with torch.no_grad(), wide_if(dtype):
            outputs = exact(*inputs(architecture, index, dtype))
        found |= {f"outputs/{index}/{i}": tensor.numpy() for i, tensor in enumerate(outputs)}
    module = folded(plain)
    if architecture.trains:
        wide = gradients(module.to(dtype), inputs(architecture, 0, dtype), found["outputs/0/0"])
        narrow = gradients(module.float(), inputs(architecture, 0), found["outputs/0/0"])
        found |= wide
        for key in wide:
            if key.startswith("gradient/"):
                off = np.linalg.norm(wide[key] - narrow[key])
                found[key.replace("gradient/", "float32/", 1)] = off
    return found, module


def gradients(module: torch.nn.Module, given: list[torch.Tensor], first: np.ndarray) -> dict[str, np.ndarray]:
    """Of the mean squared difference of the first output from a target."""
    random = np.random.default_rng(7)
    target = (first + first.std() * random.standard_normal(first.shape)).astype(np.float32)
    module.zero_grad()
    with wide_if(next(module.parameters()).dtype), mock.patch.object(torch.Tensor, "detach", lambda tensor: tensor):
        y = module(*given)[0]  # a file has no detach
    off = float(np.abs(y.detach().numpy() - first).max() / np.abs(first).max())
    if off > 1e-3:
        raise ValueError(f"folding batch norms changes the result by {off:.2g}")
    loss = torch.nn.functional.mse_loss(y, torch.from_numpy(target).to(y.dtype))
    loss.backward()
    found = {"target": target, "loss": np.array(float(loss.detach()))}
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            continue
        gradient = parameter.grad.numpy()
        count = min(gradient.size, SAMPLED)
        positions = np.sort(random.choice(gradient.size, count, replace=False))
        found[f"positions/{name}"] = positions
        found[f"gradient/{name}"] = gradient.reshape(-1)[positions].astype(np.float32)
    return found


def export_all(architecture: Architecture, folder: Path) -> dict[str, str]:
    """Writes the files of an architecture; what failed, by variant."""
    failed = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, module = reference(architecture)
        for variant in architecture.variants:
            path = folder / f"{architecture.name}.{variant}.onnx"
            signal.alarm(SECONDS)
            try:
                export(architecture, variant, path)
                found[f"names/{variant}"] = parameter_names(path, module)
                found |= {f"elements/{variant}/{key}": rows for key, rows in other_orders(path, module, found, variant)}
            except Exception as error:  # an exporter's refusal is a result
                failed[variant] = f"{type(error).__name__}: {error}"[:600]
                path.unlink(missing_ok=True)
            finally:
                signal.alarm(0)
    np.savez(folder / f"{architecture.name}.npz", **found)
    return failed


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["*"], metavar="GLOB", help="architectures")
    parser.add_argument("--again", action="store_true", help="also those that are there")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = {n: a for n, a in known().items() if any(fnmatch(n, pattern) for pattern in options.only)}
    if options.list:
        print(*chosen, sep="\n")
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _too_long)
    for name, architecture in chosen.items():
        if not options.again and (options.folder / f"{name}.npz").exists():
            continue
        try:
            failed: Mapping[str, str] = export_all(architecture, options.folder)
        except Exception as error:
            failed = {"reference": f"{type(error).__name__}: {error}"[:600]}
        print(name, json.dumps(failed), flush=True)


if __name__ == "__main__":
    main()
