"""PyTorch's side of training.py: runs in an interpreter that has torch, and answers a line with seconds per step."""

from __future__ import annotations

import sys
import time

import numpy as np
import torch


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(784, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10))


def cnn() -> torch.nn.Module:
    n = torch.nn
    return n.Sequential(
        n.Conv2d(1, 8, 3), n.ReLU(), n.MaxPool2d(2), n.Conv2d(8, 16, 3), n.ReLU(), n.MaxPool2d(2), n.Flatten(),
        n.Linear(16 * 5 * 5, 10),
    )  # fmt: skip


def main() -> None:
    name, folder = sys.argv[1:3]
    torch.set_num_threads(2)
    torch.manual_seed(0)
    network = {"mlp": mlp, "cnn": cnn}[name]()
    shape = {"mlp": (784,), "cnn": (1, 28, 28)}[name]
    torch.onnx.export(
        network, (torch.zeros(2, *shape),), f"{folder}/{name}.onnx", input_names=["x"], output_names=["logits"],
        dynamic_shapes=({0: "batch"},), dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    data = np.load(f"{folder}/{name}.npz")
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
        print((time.perf_counter() - begin) / steps, loss.item(), flush=True)


if __name__ == "__main__":
    main()
