"""Without a card: the bytes that a training step moves through a card's memory, and its launches, counted from plans.

A step of a plan reads each of its operands once and writes each result once; rows that an index chooses count as far as
they are read. What a kernel reads again or keeps in a workspace isn't counted, so the bytes are the least that the plan
allows. A step is a launch, but for optimizer steps that a kernel takes together; what a kernel launches before its own
work isn't counted, such as what rounds a bias for a product in bfloat16. The kernels are those of the CUDA library over
the tests' stand-in: no kernel is run, and nothing is allocated.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gpu_model import CARDS, joins, moved, predict
from gpu_training import NETWORKS, batch_of
from report import write

import dataflow as df
from dataflow.ir.plan import Plan
from dataflow.plugin.device import Precision
from dataflow.plugin.registry import Registry, load
from dataflow.train.storage import Storage

ROOT = Path(__file__).parents[1]
# By network and by what values between forward and backward are stored as (``Trainer(storage=...)``): GB, and launches,
# of a step that are to be reached.
GOALS: dict[str, dict[Storage, tuple[float, ...]]] = {
    "decoder": {"float32": (20.0, 400), "bfloat16": (11.0,)},
    "resnet50": {"float32": (30.0,)},
}
PRECISIONS: dict[Storage, Precision] = {"float32": "float32", "bfloat16": "bf16"}  # of products, beside the storage


class Planned(Exception):
    """Instead of a program that is built: its plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("planned")
        self.plan = plan


def standin_registry(without: Iterable[str]) -> Registry:
    """The installed plugins with ``cuda`` over the stand-in, without its kernels of some ops."""
    sys.path.append(str(ROOT))
    from tests.cuda.building import standin_library

    os.environ |= {"DATAFLOW_CUDA_LIBRARY": str(standin_library()), "STANDIN_DEVICES": "1"}
    # cuBLASLt is the stand-in's; cuDNN needs a card to answer.
    os.environ |= {"DATAFLOW_CUBLASLT": str(standin_library()), "DATAFLOW_CUDNN": ""}
    registry = load()
    kernels = dict(registry.kernels)
    kernels["cuda"] = {op: found for op, found in kernels["cuda"].items() if op not in {*without}}
    return dataclasses.replace(registry, kernels=kernels)


@contextlib.contextmanager
def planning(trainer: df.Trainer) -> Iterator[None]:
    """Lets each program of a trainer end with ``Planned`` before anything is allocated for it."""
    engine = trainer.programs.engine

    def build(graph: Any, *, mutable: Any = (), owners: Mapping[str, str] | None = None, **_: Any) -> Any:
        raise Planned(engine.compile(graph, mutable=mutable, owners=owners or {}).plan)

    with mock.patch.object(engine, "build", build):
        yield


def plans_of(
    model: df.Model, batch: dict[str, np.ndarray], registry: Registry, storage: Storage = "float32"
) -> dict[str, Plan]:
    """The plan of a step of one micro-batch, update and all, as a card runs it."""
    optimizer = df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=())
    how: dict[str, Any] = {"devices": ["cuda", "cpu"], "registry": registry, "precision": PRECISIONS[storage]}
    with df.Trainer(model, optimizer=optimizer, metrics=[], storage=storage, **how) as trainer, planning(trainer):
        try:
            trainer.step(batch)
        except Planned as planned:
            return {"step": planned.plan}
    raise SystemExit("a step made no plan")


def count(plans: Mapping[str, Plan]) -> dict[tuple[str, str], list[int]]:
    """Launches, steps and bytes by device and op."""
    table: dict[tuple[str, str], list[int]] = {}
    for plan in plans.values():
        for segment in plan.segments:
            before = None
            for step in segment.steps:
                row = table.setdefault((segment.device, step.node.op.name), [0, 0, 0])
                row[0] += not joins(step, before)
                row[1] += 1
                row[2] += moved(step)
                before = step
    return table


def rows_of(
    name: str, storage: Storage, goals: Sequence[float], table: Mapping[tuple[str, str], Sequence[int]]
) -> list[dict[str, object]]:
    """A row for bytes and one for launches, then one per op, those that move most first."""
    launches, steps, size = (sum(row[k] for row in table.values()) for k in range(3))
    batch = NETWORKS[name][0]
    if storage != "float32":
        name = f"{name} in {storage}"
    figures = {"GB": {"ratio": size / 1e9, "steps": steps}, "launches": {"ratio": launches}}
    found: list[dict[str, object]] = [
        {"what": f"training step, {name}, batch {batch}, {unit}", **figure} for unit, figure in figures.items()
    ]
    for row, goal in zip(found, goals, strict=False):
        row["goal"] = goal
    for (device, op), (own, times, moved_) in sorted(table.items(), key=lambda item: -item[1][2]):
        found.append(
            {"what": f"{name}, {op} on {device}", "steps": times, "launches": own, "GB": moved_ / 1e9,
             "share": moved_ / size}
        )  # fmt: skip
    return found


def predicted_rows(name: str, storage: Storage, plans: Mapping[str, Plan]) -> list[dict[str, object]]:
    """By card and precision of products: what a step takes at least by ``gpu_model``. Nothing of it is measured."""
    what = name if storage == "float32" else f"{name} in {storage}"
    return [
        {"what": f"predicted for {card.name}, {what}, {precision}", "predicted_ms": 1e3 * seconds}
        for card in CARDS
        for precision in card.rates
        for seconds in [sum(row.seconds for row in predict(plans, card, precision).values())]
    ]


def exported(name: str, folder: str) -> df.Model:
    """A network of torch_networks.py as its exporter writes it."""
    import torch
    from gpu_torch_worker import export
    from torch_networks import NETWORKS as MODULES

    path, network = f"{folder}/{name}.onnx", MODULES[name]()
    for tensor in (*network.parameters(), *network.buffers()):  # the exporter stores equal tensors once
        if tensor.dtype == torch.float32:
            tensor.detach().add_(torch.rand_like(tensor), alpha=1e-3)
    export(network, torch.from_numpy(batch_of(name)["x"]), path)
    return df.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(NETWORKS), default=list(GOALS))
    parser.add_argument("--without", nargs="*", default=[], help="ops for which the card is to have no kernel")
    parser.add_argument("--models", help="a folder for the exported networks, which are used again if they are there")
    options = parser.parse_args()
    registry = standin_registry(options.without)
    found: list[dict[str, object]] = []
    for name in options.only:
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.models or temporary
            path = Path(folder) / f"{name}.onnx"
            for storage, goals in GOALS.get(name, {"float32": ()}).items():
                model = df.load(str(path)) if path.exists() else exported(name, folder)
                plans = plans_of(model, batch_of(name), registry, storage)
                found += rows_of(name, storage, goals, count(plans)) + predicted_rows(name, storage, plans)
    write("gpu_traffic", found, keep=bool(options.without))


if __name__ == "__main__":
    main()
