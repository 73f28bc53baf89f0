"""Records what PyTorch, Transformers and PEFT make of examples/sentences; run by hand, the tests read the results.

python tests/recordings/record_sentences.py: losses and accuracies of one and of the other kind of fine-tune, to
sentences.json. For each seed the same first weights, batches and rates as the example has.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertModel

import dataflow as df

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples/sentences"))

from bert import classifier  # noqa: E402 - of the example
from main import optimizer, parsed, read  # noqa: E402
from weights import fetched  # noqa: E402

SHORT = ["--layers", "2", "--epochs", "1", "--lr", "1e-3"]  # what CI has time for
RUNS = {
    "short/full/0": SHORT,
    "short/lora/0": [*SHORT, "--lora", "8", "--lr", "1e-2"],
    **{f"full/{seed}": ["--seed", str(seed)] for seed in range(3)},
    **{f"lora/{seed}": ["--seed", str(seed), "--lora", "8"] for seed in range(3)},
}


class Classifier(torch.nn.Module):
    """The encoder, the mean of its tokens, and a linear layer."""

    def __init__(self, encoder: Any, weight: torch.Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = torch.nn.Linear(*weight.shape)
        self.classifier.weight.data = weight.T.contiguous()
        self.classifier.bias.data.zero_()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        seen = mask[..., None].float()
        return self.classifier((hidden * seen).sum(1) / seen.sum(1))


def network(folder: Path, options: argparse.Namespace, topics: int) -> Classifier:
    """With the first weights of the example's model."""
    model = classifier(folder, topics, seed=options.seed, layers=options.layers)
    encoder = BertModel.from_pretrained(folder, add_pooling_layer=False)
    if options.layers:
        encoder.encoder.layer = encoder.encoder.layer[: options.layers]
    if options.lora:
        model = df.lora(model, rank=options.lora, also=["classifier.*"])
        config = LoraConfig(r=options.lora, lora_alpha=16, target_modules=["query", "key", "value"])
        encoder = get_peft_model(encoder, config)
        first = {n: p.array for n, p in model.parameters.items() if ".lora_" in n}
        own = {n: p for n, p in encoder.named_parameters() if ".lora_" in n}
        assert len(own) == len(first)
        for name, parameter in own.items():
            key = name.removeprefix("base_model.model.").replace(".default.", ".")
            parameter.data = torch.tensor(first[key])
    weight = torch.tensor(model.parameters["classifier.weight"].array)
    return Classifier(encoder, weight).eval()  # nothing drops


def tensors(batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.tensor(batch.arrays[key]) for key in ("input_ids", "attention_mask", "labels"))  # type: ignore[return-value]


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The losses before each step, and the accuracy at the end."""
    train, validation, topics = read(options, folder)
    net = network(folder, options, len(topics))
    rule = optimizer(options, len(train))
    trained = [p for p in net.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": rule.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    adam = torch.optim.AdamW(groups, lr=rule.lr)
    bound = bind(train, folder, options, len(topics))
    losses: list[float] = []
    for epoch in range(options.epochs):
        for batch in bound.batches(options.batch_size, seed=options.seed, epoch=epoch, shuffle=True, training=True):
            ids, mask, labels = tensors(batch)
            for group in adam.param_groups:
                group["lr"] = rule.lr * rule.schedule(len(losses))
            loss = torch.nn.functional.cross_entropy(net(ids, mask), labels)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(float(loss))
    right = []
    with torch.no_grad():
        for batch in bind(validation, folder, options, len(topics)).batches(32):
            ids, mask, labels = tensors(batch)
            right += (net(ids, mask).argmax(1) == labels).tolist()
    return {"losses": losses, "accuracy": float(np.mean(right))}


def bind(data: df.Dataset, folder: Path, options: argparse.Namespace, topics: int) -> df.Dataset:
    """The dataset as a Trainer of the example's model reads it."""
    with df.Trainer(classifier(folder, topics, layers=1), trainable=["classifier.*"]) as trainer:
        return copy.copy(trainer._dataset(data))


def main() -> None:
    folder = fetched(Path("~/.cache/dataflow-examples").expanduser())
    found = {name: run(folder, parsed(arguments)) for name, arguments in RUNS.items()}
    for name in found:
        if not name.startswith("short"):
            del found[name]["losses"]
    (HERE / "sentences.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
