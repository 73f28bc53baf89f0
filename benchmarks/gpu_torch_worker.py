"""PyTorch's side of gpu_training.py and gpu_inference.py.

Runs in an interpreter that has torch. Its first line of input names network, precision, mode and folder; until that is
there it doesn't touch the card. Modes: ``graph``, a captured training step;
``channels_last``, the same with images whose channels lie last; ``compile``, one made by torch.compile; ``forward`` and
``forward_last``, captured forward passes whose results go back to the host. Writes the network as ONNX into the folder
where it isn't there, then answers a line with seconds per step, loss and peak bytes for each number of steps it is
given. A forward pass has no loss: its first results go into the folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch_networks import NETWORKS


def export(network: torch.nn.Module, x: torch.Tensor, path: str) -> None:
    """By the exporter that needs no package beside torch and onnx; everything else is as in training."""
    torch.onnx.export(
        network.eval(), (x[:1],), path, input_names=["x"], output_names=["logits"], opset_version=17,
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, do_constant_folding=False, dynamo=False,
    )  # fmt: skip


def captured(step: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A step as a CUDA graph, and the tensor that it writes."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def forward(network: torch.nn.Module, x: torch.Tensor, precision: str, path: str) -> None:
    """Answers the time of a forward pass with its input from page-locked memory and its results there."""
    fixed, x = x.cuda(), x.pin_memory()

    @torch.inference_mode()
    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return network(fixed).float()

    graph, result = captured(step)
    back = torch.empty(result.shape, pin_memory=True)

    def run() -> None:
        fixed.copy_(x, non_blocking=True)
        graph.replay()
        back.copy_(result, non_blocking=True)
        torch.cuda.synchronize()

    run()
    np.save(path, back.numpy())
    print("ready", torch.__version__, 0.0, flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        for _ in range(steps):
            run()
        print((time.perf_counter() - begin) / steps, 0.0, torch.cuda.max_memory_allocated(), flush=True)


def main() -> None:
    print("imported", flush=True)
    line = sys.stdin.readline()
    if not line:
        return  # nobody asked
    name, precision, mode, folder = line.rstrip("\n").split(" ", 3)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to try this file
    torch.manual_seed(0)
    reduced = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = reduced
    torch.backends.cudnn.benchmark = True
    network = NETWORKS[name]()
    with torch.no_grad():  # the exporter stores equal tensors once, and they would be trained as one
        for parameter in network.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    data = np.load(f"{folder}/{name}.npz")
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    if mode in ("graph", "forward") and not Path(f"{folder}/{name}.onnx").exists():
        export(network, x, f"{folder}/{name}.onnx")
    network.eval().to(device)  # statistics of batch norms are held, on both sides
    if mode.endswith("_last"):
        network, x = network.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    if mode.startswith("forward"):
        forward(network, x, precision, f"{folder}/{name}.npy")
        return
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01, fused=device == "cuda",
                                  capturable=device == "cuda")  # fmt: skip
    fixed_x, fixed_y = x.to(device), y.to(device)
    if device == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    run = torch.compile(network, mode="reduce-overhead") if mode == "compile" else network

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            logits = run(fixed_x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), fixed_y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=mode == "compile")
        return loss

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first = step().item()
    step()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0  # a graph's own pool is not counted
    if device == "cuda" and mode != "compile":
        graph, loss = captured(step)
        again = graph.replay
    else:
        loss = step()

        def again() -> None:
            nonlocal loss
            loss = step()

    for _ in range(5):
        again()
    print("ready", torch.__version__, first, flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        for _ in range(steps):
            fixed_x.copy_(x, non_blocking=True)
            fixed_y.copy_(y, non_blocking=True)
            again()
            value = loss.item()
        print((time.perf_counter() - begin) / steps, value, peak, flush=True)


if __name__ == "__main__":
    main()
