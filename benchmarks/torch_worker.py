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


class Layer(torch.nn.Module):
    """Attention by PyTorch's fused kernel, and two dense layers."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        n = torch.nn
        self.heads = heads
        self.norm1, self.norm2 = n.LayerNorm(width), n.LayerNorm(width)
        self.qkv, self.proj = n.Linear(width, 3 * width), n.Linear(width, width)
        self.fc1, self.fc2 = n.Linear(width, inner), n.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x))))


class Encoder(torch.nn.Module):
    """4 layers, width 256, 4 heads, 1024 inner; 128 of 1000 words in, a word for each place out."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.words, self.places = n.Embedding(1000, 256), n.Parameter(torch.randn(1, 128, 256) * 0.02)
        self.layers = n.Sequential(*(Layer(256, 4, 1024) for _ in range(4)))
        self.norm, self.head = n.LayerNorm(256), n.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(x) + self.places)))


def main() -> None:
    name, folder = sys.argv[1:3]
    torch.set_num_threads(2)
    torch.manual_seed(0)
    network = {"mlp": mlp, "cnn": cnn, "encoder": Encoder}[name]()
    data = np.load(f"{folder}/{name}.npz")
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    torch.onnx.export(
        network, (x[:2],), f"{folder}/{name}.onnx", input_names=["x"], output_names=["logits"],
        dynamic_shapes=({0: "batch"},), dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(network(x).flatten(0, -2), y.flatten())
            loss.backward()
            optimizer.step()
        print((time.perf_counter() - begin) / steps, loss.item(), flush=True)


if __name__ == "__main__":
    main()
