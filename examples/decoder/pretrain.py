"""Makes decoder.onnx: a small decoder of letters, trained by PyTorch on this project's pages, exported with its cache.

python examples/decoder/pretrain.py [--steps 600]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from main import LETTERS, encoded
from torch import Tensor, nn

HERE = Path(__file__).parent
LAYERS, HEADS, WIDTH, HEAD = 2, 4, 48, 12
PAGES = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/reliability.md", "docs/security.md")


class Attention(nn.Module):
    """Attention over what is in the cache and what is new."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], seen: Tensor, key: Tensor, value: Tensor
    ) -> list[Tensor]:
        """What attention adds to x (batch, new, width), and the cache."""
        q, k, v = (y.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        key = torch.cat([key, rotated(k, *angles)], 2)
        value = torch.cat([value, v], 2)
        scores = rotated(q, *angles) @ key.transpose(2, 3) / HEAD**0.5
        weights = scores.masked_fill(~seen, -1e9).softmax(-1)
        return [self.out((weights @ value).transpose(1, 2).flatten(2)), key, value]


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.first, self.second = Attention(), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, *given: Tensor) -> list[Tensor]:
        """What the next layer reads, and the cache."""
        y, key, value = self.attention(self.first(x), *given)
        x = x + y
        return [x + self.perceptron(self.second(x)), key, value]


class Decoder(nn.Module):
    """Logits (batch, new, letters) of the next letter, and the cache, from letters (batch, new) and the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.layers = nn.Embedding(len(LETTERS), WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.register_buffer("rates", 1e3 ** (-torch.arange(HEAD // 2) / (HEAD // 2)))

    def forward(self, ids: Tensor, *cache: Tensor) -> list[Tensor]:
        """Logits and cache."""
        past = cache[0].shape[2]
        positions = torch.arange(past, past + ids.shape[1])
        seen = torch.arange(past + ids.shape[1]) <= positions[:, None]
        angles = positions[:, None] * self.rates
        x, present = self.letters(ids), []
        for index, layer in enumerate(self.layers):
            x, *made = layer(x, (angles.cos(), angles.sin()), seen, cache[2 * index], cache[2 * index + 1])
            present += made
        return [self.head(self.norm(x)), *present]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of elements as numbers of the plane, turned by an angle that grows with the position."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def empty(batch: int) -> list[Tensor]:
    """A cache in which nothing is."""
    return [torch.zeros(batch, HEADS, 0, HEAD) for _ in range(2 * LAYERS)]


def main() -> None:
    """Trains and exports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    text = " ".join("\n".join((HERE.parents[1] / page).read_text("utf-8") for page in PAGES).split())
    letters = torch.tensor(encoded(text))
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(letters) - 65, (16, 1))
        batch = letters[starts + torch.arange(65)]
        logits = model(batch[:, :-1], *empty(16))[0]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}")
    names = [f"{index}.{tensor}" for index in range(LAYERS) for tensor in ("key", "value")]
    past, present = [f"past_key_values.{name}" for name in names], [f"present.{name}" for name in names]
    axes = {"input_ids": {0: "batch", 1: "new"}, "logits": {0: "batch", 1: "new"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past} | {name: {0: "batch", 2: "all"} for name in present}
    given = (letters[None, :5], *(torch.zeros(1, HEADS, 3, HEAD) for _ in names))
    given_names = {"input_names": ["input_ids", *past], "output_names": ["logits", *present]}
    torch.onnx.export(model.eval(), given, str(HERE / "decoder.onnx"), dynamo=False, dynamic_axes=axes, **given_names)


if __name__ == "__main__":
    main()
