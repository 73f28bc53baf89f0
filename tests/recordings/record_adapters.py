"""Records what PEFT computes for the tests of adapters; run by hand, the tests only read the results.

One network with linear layers, a convolution and an embedding, as both exporters of PyTorch write it
(``adapters.onnx``, ``adapters_script.onnx``); per variant of LoRA the first tensors of its adapters, the losses of some
steps of SGD and the merged weights (``adapters.npz``); and a folder as PEFT saves it (``adapters_peft``), with the
results of the network that has it.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from peft import LoraConfig, get_peft_model

HERE = Path(__file__).parent
STEPS, BATCH, WORDS, SIZE, CLASSES = 20, 6, 9, 8, 3
TARGETS = ["embed", "q", "v", "out", "conv"]
VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"r": 2, "lora_alpha": 4},
    "rslora": {"r": 3, "lora_alpha": 2, "use_rslora": True},
    "dora": {"r": 2, "lora_alpha": 4, "use_dora": True},
}


class Attention(torch.nn.Module):
    """Of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(SIZE, SIZE, bias=i != 1) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(*x.shape[:2], 2, SIZE // 2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Network(torch.nn.Module):
    """(N, 5) words to (N, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, SIZE)
        self.layers = torch.nn.ModuleList([Attention(), Attention()])
        self.conv = torch.nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(4, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(torch.relu(self.conv(x[:, None])).mean((2, 3)))


def train(network: torch.nn.Module, words: torch.Tensor, labels: torch.Tensor) -> list[float]:
    """The losses of the steps."""
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(words), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adapter_tensors(network: torch.nn.Module) -> dict[str, np.ndarray]:
    """Tensors of the adapters, by the names that PEFT saves."""
    found = {}
    for name, value in network.state_dict().items():
        if "lora_" in name:
            saved = name.removeprefix("base_model.model.").replace(".default", "")
            found[saved.replace("lora_magnitude_vector.weight", "lora_magnitude_vector")] = value.numpy().copy()
    return found


def drop_stack_traces(path: Path) -> None:
    """Takes the exporter's notes about its own source files from a file."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [(p.key, p.value) for p in node.metadata_props if not p.key.endswith("stack_trace")]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def main() -> None:
    """Writes the files."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    base = Network().eval()
    words, labels = torch.randint(0, WORDS, (BATCH, 5)), torch.randint(0, CLASSES, (BATCH,))
    torch.onnx.export(base, (words,), HERE / "adapters.onnx", dynamo=True, external_data=False, input_names=["words"])
    drop_stack_traces(HERE / "adapters.onnx")
    torch.onnx.export(base, (words,), HERE / "adapters_script.onnx", dynamo=False, input_names=["words"])
    arrays = {"words": words.numpy(), "labels": labels.numpy()}
    for variant, settings in VARIANTS.items():
        torch.manual_seed(1)
        network = get_peft_model(copy.deepcopy(base), LoraConfig(target_modules=TARGETS, **settings))
        arrays |= {f"{variant}/first/{name}": array for name, array in adapter_tensors(network).items()}
        arrays[f"{variant}/losses"] = np.array(train(network, words, labels), np.float32)
        merged = network.merge_and_unload().state_dict()
        for path in ("embed", "layers.0.q", "layers.1.out", "conv"):
            arrays[f"{variant}/merged/{path}"] = merged[f"{path}.weight"].numpy()
    torch.manual_seed(2)
    settings = LoraConfig(
        target_modules=["q", "embed"], modules_to_save=["head"], r=2, lora_alpha=3, alpha_pattern={"layers.1.q": 5}
    )
    network = get_peft_model(copy.deepcopy(base), settings)
    train(network, words, labels)
    network.save_pretrained(HERE / "adapters_peft")
    (HERE / "adapters_peft" / "README.md").unlink()
    arrays["peft/results"] = network(words).detach().numpy()
    np.savez_compressed(HERE / "adapters.npz", **arrays)


if __name__ == "__main__":
    main()
