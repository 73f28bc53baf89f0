"""What an architecture of the zoo is: a module of PyTorch, its inputs, and the sizes that it is run with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

Sizes = Mapping[str, int]
VARIANTS = ("trace-fixed", "trace-named", "dynamo-fixed", "dynamo-named")


@dataclass(frozen=True)
class Input:
    """An input of a model.

    Attributes:
        axes: a number, the name of a size, or several names: their sum.
        kind: normal floats, numbers below ``high``, a mask whose rows end in zeros, or ones.
    """

    axes: tuple[int | str | tuple[str, ...], ...]
    kind: Literal["float", "ids", "mask", "ones"] = "float"
    high: int = 100

    def shape(self, sizes: Sizes) -> tuple[int, ...]:
        return tuple(_size(axis, sizes) for axis in self.axes)

    def array(self, sizes: Sizes, random: np.random.Generator) -> np.ndarray:
        shape = self.shape(sizes)
        if self.kind == "float":
            return random.standard_normal(shape).astype(np.float32)
        if self.kind == "ids":
            return random.integers(3, self.high, shape)
        found = np.ones(shape, np.int64)
        if self.kind == "mask":
            for row in range(1, shape[0]):
                found[row, max(1, shape[1] - row) :] = 0
        return found

    def named(self) -> dict[int, str]:
        """Axes that get names on export."""
        return {i: a if isinstance(a, str) else "_".join(a) for i, a in enumerate(self.axes) if not isinstance(a, int)}


def _size(axis: int | str | tuple[str, ...], sizes: Sizes) -> int:
    if isinstance(axis, int):
        return axis
    return sizes[axis] if isinstance(axis, str) else sum(sizes[name] for name in axis)


@dataclass(frozen=True)
class Architecture:
    """One row of the zoo, times its variants.

    Attributes:
        name: of the files.
        build: makes the module.
        inputs: by name.
        sizes: of the export, and of the first run; those of a file with fixed sizes.
        others: more runs of files with named sizes.
        call: what the module does with the inputs; by default it is called with them in order.
        variants: what is exported, see ``VARIANTS``.
        trains: whether gradients are compared.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Mapping[str, Input]
    sizes: Sizes
    others: tuple[Sizes, ...]
    call: Callable[..., Any] | None = None
    variants: tuple[str, ...] = VARIANTS
    trains: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def bindings(self) -> tuple[Sizes, ...]:
        return (self.sizes, *self.others)

    def feeds(self, index: int) -> dict[str, np.ndarray]:
        """Inputs of a binding; always the same."""
        random = np.random.default_rng(index)
        return {name: entry.array(self.bindings()[index], random) for name, entry in self.inputs.items()}


class Called(torch.nn.Module):
    """A module whose inputs and results are tensors in order."""

    def __init__(self, module: torch.nn.Module, names: Iterable[str], call: Callable[..., Any] | None) -> None:
        super().__init__()
        self.module, self._names, self._call = module, tuple(names), call

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self._names, inputs, strict=True))
        found = self.module(*inputs) if self._call is None else self._call(self.module, **given)
        return tuple(tensors(found))


def tensors(found: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order."""
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, Mapping):
        found = found.values()
    if isinstance(found, (list, tuple)) or not hasattr(found, "to_tuple"):
        return [t for part in found if part is not None for t in tensors(part)]
    return tensors(found.to_tuple())


def prepared(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """The module in inference, no two of its parameters alike and none of one value.

    Matrices that begin small, for a long training, are scaled by their width, and scales of batch norms that begin at
    zero get to one: else gradients vanish on the way.
    """
    generator = torch.Generator().manual_seed(seed)
    known: set[tuple[float, ...]] = set()
    with torch.no_grad():
        for norm in norms_of(module):
            if norm.weight is not None and norm.weight.numel() > 1 and norm.weight.std() > norm.weight.mean().abs():
                norm.weight += 1.0
        for parameter in module.parameters():
            first = tuple(parameter.flatten()[:4].tolist())
            if first in known or (parameter.numel() > 1 and bool((parameter == first[0]).all())):
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            known.add(first)
            if parameter.dim() > 1 and parameter[0].numel() > 1:
                wanted = parameter[0].numel() ** -0.5
                parameter *= max(1.0, wanted / max(float(parameter.std()), 1e-6))
    return module.eval()


def norms_of(module: torch.nn.Module) -> list[Any]:
    """Its batch norms."""
    return [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]


def calibrated(module: torch.nn.Module, run: Callable[[], object]) -> None:
    """Gives batch norms the statistics of a batch, so that values keep their size through deep nets."""
    norms = norms_of(module)
    for norm in norms:
        norm.momentum, norm.training = 1.0, norm.track_running_stats
    with torch.no_grad():
        if norms:
            run()
    for norm in norms:
        norm.momentum = 0.1
        if norm.running_var is not None:
            norm.running_var.clamp_(min=1e-2)
        norm.eval()
