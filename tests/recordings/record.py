"""Records what PyTorch computes for the training tests; run by hand, the tests only read the results.

For each network: ``<name>.onnx`` as PyTorch's exporter writes it with its defaults, ``<name>_script.onnx`` by its older
exporter, and ``<name>.npz``; see README.md for the keys. What is trained is the exported structure: the exporters
fold batch norm into the convolutions, so PyTorch trains the folded network too.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

HERE = Path(__file__).parent
STEPS, BATCH, CLASSES = 20, 32, 10
DECAY = 0.01
# Slower for the residual net: at larger rates a rounding error grows a thousandfold in twenty steps.
RATES = {"mlp": 1e-2, "cnn": 1e-2, "resnet": 3e-3, "lstm": 3e-2, "gru": 1e-2}
MICRO_BATCHES = (13, 8, 6, 5)  # micro-batches of one logical batch
IGNORED = -100


class MLP(torch.nn.Module):
    """(N, 20) to (N, 10)."""

    shape = (20,)

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(20, 32)
        self.fc2 = torch.nn.Linear(32, 24)
        self.fc3 = torch.nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(torch.tanh(self.fc2(torch.relu(self.fc1(x)))))


class CNN(torch.nn.Module):
    """(N, 1, 12, 12) to (N, 10)."""

    shape = (1, 12, 12)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(6, 8, 3, stride=2)
        self.fc = torch.nn.Linear(8 * 2 * 2, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.nn.functional.leaky_relu(self.conv2(x))
        return self.fc(x.flatten(1))


class Block(torch.nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outputs)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.bn3 = torch.nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.down is None else self.bn3(self.down(x))))


class ResNet(torch.nn.Module):
    """(N, 3, 10, 10) to (N, 10)."""

    shape = (3, 10, 10)

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn = torch.nn.BatchNorm2d(8)
        self.block1 = Block(8, 8, 1)
        self.block2 = Block(8, 12, 2)
        self.fc = torch.nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = self.block2(self.block1(x))
        return self.fc(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def folded(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the network with its batch norms folded into the convolutions before them."""
    module = copy.deepcopy(module).eval()
    for owner in list(module.modules()):
        for bn_name, conv_name in (("bn", "conv"), ("bn1", "conv1"), ("bn2", "conv2"), ("bn3", "down")):
            if isinstance(getattr(owner, bn_name, None), torch.nn.BatchNorm2d):
                fused = fuse_conv_bn_eval(getattr(owner, conv_name), getattr(owner, bn_name))
                setattr(owner, conv_name, fused)
                setattr(owner, bn_name, torch.nn.Identity())
    return module.requires_grad_(True)


def train(
    module: torch.nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    sizes: tuple[int, ...],
    name: str,
    optimizer: str = "adamw",
) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Losses of each step, gradients of the first, parameters after the last."""
    if optimizer == "adamw":
        method = torch.optim.AdamW(module.parameters(), lr=RATES[name], weight_decay=DECAY)
    else:
        method = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
    losses, first = [], {}
    for step in range(STEPS):
        method.zero_grad()
        count = int((y[step] != IGNORED).sum())
        total = 0.0
        for xs, ys in zip(x[step].split(sizes), y[step].split(sizes), strict=True):
            loss = torch.nn.functional.cross_entropy(module(xs), ys, ignore_index=IGNORED, reduction="sum") / count
            loss.backward()
            total += float(loss)
        losses.append(total)
        if step == 0:
            first = {n: p.grad.numpy().copy() for n, p in module.named_parameters()}
        method.step()
    return losses, first, {n: p.detach().numpy().copy() for n, p in module.named_parameters()}


def export(module: torch.nn.Module, shape: tuple[int, ...], path: Path, **options: object) -> onnx.ModelProto:
    """Writes the network with a free batch size, without the exporter's notes."""
    module = copy.deepcopy(module)
    if options.pop("script", False):
        torch.onnx.export(
            module, (torch.zeros(2, *shape),), str(path), input_names=["x"], output_names=["logits"],
            dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, dynamo=False, **options,
        )  # fmt: skip
    else:
        torch.onnx.export(
            module, (torch.zeros(2, *shape),), str(path), input_names=["x"], output_names=["logits"],
            dynamic_shapes={"x": {0: "batch"}}, dynamo=True, external_data=False, **options,
        )  # fmt: skip
    model = onnx.load(path)
    for record in (model, model.graph, *model.graph.node, *model.graph.value_info):
        del record.metadata_props[:]
        record.doc_string = ""
    onnx.save(model, path)
    return model


def names_in(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, bool]]:
    """The initializer for each parameter: by name, or by equal data, perhaps transposed."""
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    found = {}
    for name, array in arrays.items():
        for own, data in stored.items():
            if data.shape == array.shape and np.allclose(data, array, rtol=1e-5, atol=1e-6):
                found[name] = (own, False)
            elif data.ndim == 2 and data.T.shape == array.shape and np.allclose(data.T, array, rtol=1e-5, atol=1e-6):
                found.setdefault(name, (own, True))
    missing = set(arrays) - set(found)
    assert not missing, f"the exporter's file lacks {missing}"
    return found


def record(name: str, original: torch.nn.Module, seed: int) -> None:
    """Writes the files of one network."""
    generator = torch.Generator().manual_seed(seed)
    if name == "resnet":  # statistics as training would leave them
        with torch.no_grad():
            for module in original.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.running_mean.uniform_(-0.3, 0.3, generator=generator)
                    module.running_var.uniform_(0.5, 1.5, generator=generator)
                    module.weight.uniform_(0.5, 1.5, generator=generator)
                    module.bias.uniform_(-0.3, 0.3, generator=generator)
    network = folded(original)
    original = original.eval()
    shape = type(original).shape
    # Classes with centres, so that there is something to learn; the same for all steps.
    centres = torch.randn(CLASSES, *shape, generator=generator)
    if name == "resnet":  # it averages over space, so its classes differ in their mean
        centres = torch.randn(CLASSES, shape[0], 1, 1, generator=generator).expand(CLASSES, *shape)
    y = torch.randint(0, CLASSES, (STEPS, BATCH), generator=generator)
    x = 1.5 * centres[y] + (0.3 if name == "resnet" else 1.0) * torch.randn(STEPS, BATCH, *shape, generator=generator)
    x = x.half().float()  # stored in two bytes
    some = y.clone()
    some[torch.rand(STEPS, BATCH, generator=generator) < 0.15] = IGNORED
    start = {n: p.detach().numpy().copy() for n, p in network.named_parameters()}

    model = export(original, shape, HERE / f"{name}.onnx")
    script = export(original, shape, HERE / f"{name}_script.onnx", script=True)
    assert not [n for n in (*model.graph.node, *script.graph.node) if n.op_type == "BatchNormalization"]

    out: dict[str, np.ndarray] = {
        "x": x.half().numpy(),
        "y": y.numpy().astype(np.int8),
        "some": some.numpy().astype(np.int8),
    }
    runs = {"plain": (y, (BATCH,), "adamw"), "parts": (some, MICRO_BATCHES, "adamw")}
    if name == "mlp":
        runs["sgd"] = (y, (BATCH,), "sgd")
    for label, (labels, sizes, optimizer) in runs.items():
        losses, first, final = train(copy.deepcopy(network).train(), x, labels, sizes, name, optimizer)
        out[f"{label}/losses"] = np.array(losses)
        print(name, label, [round(value, 4) for value in (losses[0], losses[-1])])
        assert losses[-1] < 0.8 * losses[0]
        for key, (own, transposed) in names_in(model, start).items():
            for kind, arrays in (("gradient", first), ("final", final)):
                out[f"{label}/{kind}/{own}"] = arrays[key].T if transposed else arrays[key]
    for own, other in zip(
        (v[0] for v in names_in(model, start).values()), names_in(script, start).values(), strict=True
    ):
        out[f"script/{other[0]}"] = np.array([own, str(int(other[1]))])

    if name == "resnet":  # batch norm kept, and updated from the batches
        kept = export(original, shape, HERE / "resnet_bn.onnx", optimize=False)
        assert [n for n in kept.graph.node if n.op_type == "BatchNormalization"]
        trained = copy.deepcopy(original).train()
        losses, first, final = train(trained, x, y, (BATCH,), name)
        print("resnet with batch norm", round(losses[0], 4), round(losses[-1], 4))
        out["bn/losses"] = np.array(losses)
        begin = {n: p.detach().numpy().copy() for n, p in original.named_parameters()}
        for key, (own, transposed) in names_in(kept, begin).items():
            for kind, arrays in (("gradient", first), ("final", final)):
                out[f"bn/{kind}/{own}"] = arrays[key].T if transposed else arrays[key]
        fixed = copy.deepcopy(original).eval()
        out["bn_fixed/losses"] = np.array(train(fixed, x, y, (BATCH,), name)[0])
    np.savez_compressed(HERE / f"{name}.npz", **out)


def main() -> None:
    """Records all networks."""
    warnings.simplefilter("ignore")
    for index, (name, kind) in enumerate({"mlp": MLP, "cnn": CNN, "resnet": ResNet}.items()):
        torch.manual_seed(index)
        record(name, kind(), 100 + index)


if __name__ == "__main__":
    main()
