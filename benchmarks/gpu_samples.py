"""Runs one small sample per op on ``cuda``: for compute-sanitizer, under which the whole table takes too long."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from dataflow.plugin.device import Backend, Device, Precision
from dataflow.plugin.registry import Registry, default_registry
from dataflow.testing import SAMPLES, check_device

LARGEST = 5_000  # elements of an operand


class WithoutGraphs:
    """A device whose segments are never captured."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> Backend:
        """See ``Device``."""
        return self._device.open({"capture": 0, **options}, precision)


def registry_of(capture: bool) -> Registry:
    """The installed plugins; without ``capture`` kernels are launched one by one."""
    registry = default_registry()
    if capture:
        return registry
    devices = {name: WithoutGraphs(d) if d.name == "cuda" else d for name, d in registry.devices.items()}
    return dataclasses.replace(registry, devices=devices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capture", choices=("no", "yes", "both"), default="both", help="whether graphs are made")
    parser.add_argument("--only", nargs="*", default=[""], help="ops whose names begin so")
    options = parser.parse_args()
    chosen = {}
    for sample in SAMPLES:
        if not sample.op.name.startswith(tuple(options.only)):
            continue
        sizes = [array.size for array in sample.arrays() if array is not None]
        if not sizes or (min(sizes) > 0 and max(sizes) <= LARGEST):
            known = chosen.get(sample.op.name)
            if known is None or sum(sizes) > known[0]:
                chosen[sample.op.name] = (sum(sizes), sample)
    failed = 0
    for capture in {"no": (False,), "yes": (True,), "both": (False, True)}[options.capture]:
        registry = registry_of(capture)
        for _, sample in chosen.values():
            for outcome in check_device("cuda", registry=registry, samples=[sample], complete=False):
                if outcome.status == "failed":
                    failed += 1
                    print(outcome)
        print(f"{len(chosen)} samples, {'with' if capture else 'without'} graphs, {failed} failures so far", flush=True)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
