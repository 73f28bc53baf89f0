"""Records training with 16-bit parameters and float32 masters, and GradScaler's factors; run by hand, see README.md.

The network and data are those of tests/train/test_training.py. Arithmetic is float64; parameters, the hidden layer and
the logits are rounded to 16 bits, as is the gradient by the logits. Gradients are those of the sum of losses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.train.test_storage import MULTIPLIERS, linear_data
from tests.train.test_training import data, model

STEPS = 30


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded, with the gradient of x."""
    return x + (x.to(dtype).double() - x).detach()


def masters(dtype: torch.dtype, optimizer: str) -> dict[str, np.ndarray]:
    """Losses before each step, and the rounded parameters behind the last."""
    stored = {name: torch.tensor(q.array).to(dtype).double() for name, q in model().parameters.items()}
    p = {name: q.requires_grad_() for name, q in stored.items()}
    made = {
        "adamw": lambda: torch.optim.AdamW(p.values(), lr=0.02, weight_decay=0.1),
        "sgd": lambda: torch.optim.SGD(p.values(), lr=0.1, momentum=0.9),
    }[optimizer]()
    x = rounded(torch.tensor(data()["x"].astype(np.float64)), dtype)
    labels = torch.tensor(data()["labels"])
    count = int((labels >= 0).sum())
    losses = []
    for _ in range(STEPS):
        w1, b1, w2, b2 = (rounded(p[name], dtype) for name in ("w1", "b1", "w2", "b2"))
        hidden = rounded(torch.relu(x @ w1 + b1), dtype)
        logits = (hidden @ w2 + b2).to(dtype).double()
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        made.zero_grad()
        loss.backward()
        for q in p.values():
            q.grad /= count
        made.step()
        losses.append(loss.item() / count)
    ends = {name: q.detach().to(dtype).double().numpy() for name, q in p.items()}
    return {"losses": np.array(losses), **ends}


def factors() -> np.ndarray:
    """GradScaler's factor before each step."""
    w = torch.zeros((3, 1), requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
    found = []
    for multiplier in MULTIPLIERS:
        x, y = (torch.tensor(a) for a in linear_data(multiplier).values())
        found.append(scaler.get_scale())
        optimizer.zero_grad()
        scaler.scale(((x @ w - y) ** 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return np.array(found)


if __name__ == "__main__":
    arrays = {"factors": factors()}
    for name in ("bfloat16", "float16"):
        for optimizer in ("adamw", "sgd"):
            found = masters(getattr(torch, name), optimizer)
            arrays |= {f"{name}/{optimizer}/{key}": array for key, array in found.items()}
    np.savez_compressed(Path(__file__).with_name("storage.npz"), **arrays)
