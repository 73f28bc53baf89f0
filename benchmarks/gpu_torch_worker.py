"""PyTorch's side of gpu_training.py: a captured training step, and one made by torch.compile; the faster one counts.

Runs in an interpreter that has torch. Arguments: network, folder, precision, mode (graph or compile). Writes the
network as ONNX into the folder, then answers a line with seconds per step, loss and peak bytes for each number of
steps it is given.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from torch_worker import Encoder, cnn, mlp


class Block(torch.nn.Module):
    """A bottleneck of ResNet-50."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        n = torch.nn
        outside = 4 * middle
        self.main = n.Sequential(
            n.Conv2d(inside, middle, 1, bias=False), n.BatchNorm2d(middle), n.ReLU(),
            n.Conv2d(middle, middle, 3, stride, 1, bias=False), n.BatchNorm2d(middle), n.ReLU(),
            n.Conv2d(middle, outside, 1, bias=False), n.BatchNorm2d(outside),
        )  # fmt: skip
        plain = inside == outside and stride == 1
        self.side = n.Identity() if plain else n.Sequential(
            n.Conv2d(inside, outside, 1, stride, bias=False), n.BatchNorm2d(outside)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.main(x) + self.side(x))


def resnet50() -> torch.nn.Module:
    """He et al., 2015, with statistics held as in fine-tuning."""
    n = torch.nn
    layers: list[torch.nn.Module] = [n.Conv2d(3, 64, 7, 2, 3, bias=False), n.BatchNorm2d(64), n.ReLU(),
                                     n.MaxPool2d(3, 2, 1)]  # fmt: skip
    width = 64
    for middle, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Block(width, middle, stride if index == 0 else 1))
            width = 4 * middle
    return n.Sequential(*layers, n.AdaptiveAvgPool2d(1), n.Flatten(), n.Linear(2048, 1000))


class Decoder(torch.nn.Module):
    """The size of GPT-2 small: 12 layers, width 768, 12 heads, 512 places, 50,257 words; the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        n = torch.nn
        self.words, self.places = n.Embedding(50257, 768), n.Parameter(torch.randn(1, 512, 768) * 0.02)
        self.layers = n.ModuleList(n.ModuleDict({
            "norm1": n.LayerNorm(768), "norm2": n.LayerNorm(768), "qkv": n.Linear(768, 2304),
            "proj": n.Linear(768, 768), "fc1": n.Linear(768, 3072), "fc2": n.Linear(3072, 768),
        }) for _ in range(12))  # fmt: skip
        self.norm = n.LayerNorm(768)
        torch.nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places
        for layer in self.layers:
            n, t, d = h.shape
            q, k, v = layer["qkv"](layer["norm1"](h)).reshape(n, t, 3, 12, d // 12).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + layer["proj"](y.transpose(1, 2).reshape(n, t, d))
            h = h + layer["fc2"](torch.nn.functional.gelu(layer["fc1"](layer["norm2"](h))))
        return torch.nn.functional.linear(self.norm(h), self.words.weight)


NETWORKS = {"mlp": mlp, "cnn": cnn, "encoder": Encoder, "resnet50": resnet50, "decoder": Decoder}


def export(network: torch.nn.Module, x: torch.Tensor, path: str) -> None:
    """By the exporter that needs no package beside torch and onnx; everything else is as in training."""
    torch.onnx.export(
        network.eval(), (x[:1],), path, input_names=["x"], output_names=["logits"], opset_version=17,
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, do_constant_folding=False, dynamo=False,
    )  # fmt: skip


def main() -> None:
    name, folder, precision, mode = sys.argv[1:5]
    device = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU only to try this file
    torch.manual_seed(0)
    reduced = precision != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = reduced
    torch.backends.cudnn.benchmark = True
    network = NETWORKS[name]()
    data = np.load(f"{folder}/{name}.npz")
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    if mode == "graph":
        export(network, x, f"{folder}/{name}.onnx")
    network.eval().to(device)  # statistics of batch norms are held, on both sides
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01, fused=device == "cuda",
                                  capturable=device == "cuda")  # fmt: skip
    fixed_x, fixed_y = x.to(device), y.to(device)
    if device == "cuda":
        x, y = x.pin_memory(), y.pin_memory()
    run = torch.compile(network, mode="max-autotune") if mode == "compile" else network

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            logits = run(fixed_x)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), fixed_y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=mode == "compile")
        return loss

    first = step().item()
    if device == "cuda" and mode == "graph":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        again = graph.replay
    else:
        loss = step()

        def again() -> None:
            nonlocal loss
            loss = step()

    for _ in range(5):
        again()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    print("ready", torch.__version__, first, flush=True)
    for line in sys.stdin:
        steps = int(line)
        begin = time.perf_counter()
        for _ in range(steps):
            fixed_x.copy_(x, non_blocking=True)
            fixed_y.copy_(y, non_blocking=True)
            again()
            value = loss.item()
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        print((time.perf_counter() - begin) / steps, value, peak, flush=True)


if __name__ == "__main__":
    main()
