"""Moves the biases of a module so that no activation lies at a kink, where rounding decides which derivative holds.

One of a million inputs of ReLUs that rounding moves across zero changes gradients by a thousandth: then engines differ
that compute alike. Each bias before an activation with a kink is moved by as little as leaves a gap around it: deep
nets, whose last maps are small, round by a thousandth of an activation's deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KINKS: dict[str, Callable[[Sequence[Any]], tuple[float, ...]]] = {
    "relu": lambda args: (0.0,),
    "threshold": lambda args: (float(args[1]),),
    "leaky_relu": lambda args: (0.0,),
    "hardtanh": lambda args: (*map(float, args[1:3]), -1.0, 1.0)[:2],
    "hardswish": lambda args: (-3.0, 3.0),
    "hardsigmoid": lambda args: (-3.0, 3.0),
}
GAP = 1e-4  # to each side, at least, as a part of the deviation of a channel
FREE = 0.5  # the same of a channel with one element; those around zero are about five of it apart
NEAR = 1e-5  # by which float32 may round in deep nets
STEPS = 400  # shifts that are tried
ROUNDS = 2  # a layer that is called several times has one bias for all calls


class _Activations(TorchDispatchMode):
    """Calls ``seen`` with the input of each activation that has kinks."""

    def __init__(self, seen: Callable[[torch.Tensor, tuple[float, ...]], None]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        if name in KINKS:
            self._seen(args[0], KINKS[name](args))
        return func(*args, **(kwargs or {}))


class _Biases:
    """The layers with a bias per channel in the order of their calls."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._called: list[tuple[torch.nn.Module, torch.Size, int]] = []
        self.hooks = [
            layer.register_forward_hook(self._note)
            for layer in module.modules()
            if isinstance(getattr(layer, "bias", None), torch.nn.Parameter) and layer.bias.dim() == 1
        ]

    def _note(self, layer: torch.nn.Module, given: Any, found: Any) -> None:
        if isinstance(found, torch.Tensor):
            axis = -1 if isinstance(layer, (torch.nn.Linear, torch.nn.LayerNorm)) else 1
            if found.shape[axis] == layer.bias.numel():
                self._called.append((layer, found.shape, axis))

    def shift(self, x: torch.Tensor, kinks: tuple[float, ...]) -> None:
        """Shifts |x| and the bias of the last layer that gave this shape."""
        called, self._called = self._called, []
        for layer, shape, axis in reversed(called):
            if shape == x.shape:
                rows = x.transpose(0, axis).reshape(x.shape[axis], -1)
                by = torch.stack([_shift(row, kinks) for row in rows])
                layer.bias += by
                x += by.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
                return


def _shift(row: torch.Tensor, kinks: tuple[float, ...]) -> torch.Tensor:
    """The smallest of some shifts that leaves the gap around each kink; else that with the largest one."""
    gap = max(GAP, FREE / row.numel()) * float(row.std().clamp(min=1e-3) if row.numel() > 1 else 1.0)
    steps = torch.arange(STEPS // 2 + 1, dtype=row.dtype) * (gap / 2)
    tried = torch.stack([steps, -steps], 1).reshape(-1)[1:]
    least = torch.full_like(tried, float("inf"))
    for kink in kinks:
        near = row[(row - kink).abs() <= steps[-1] + 2 * gap]
        if near.numel():
            least = least.minimum((near[None] + tried[:, None] - kink).abs().amin(1))
    enough = (least >= gap).nonzero()
    return tried[enough[0, 0] if enough.numel() else least.argmax()]


def near_kinks(run: Callable[[], object]) -> int:
    """How many inputs of kinked activations rounding may move across a kink."""
    count = 0

    def look(x: torch.Tensor, kinks: tuple[float, ...]) -> None:
        nonlocal count
        count += sum(int(((x - kink).abs() < NEAR * x.std()).sum()) for kink in kinks)

    with torch.no_grad(), _Activations(look):
        run()
    return count


def off_kinks(module: torch.nn.Module, run: Callable[[], object]) -> None:
    """Moves biases of a module, if that is needed; ``run`` calls it, in float64."""
    for _ in range(ROUNDS):
        if not near_kinks(run):
            return
        biases = _Biases(module)
        with torch.no_grad(), _Activations(biases.shift):
            run()
        for hook in biases.hooks:
            hook.remove()
