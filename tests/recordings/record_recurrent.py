"""Records what PyTorch computes for recurrent networks, like record.py; run by hand.

The exporters store a layer's weights in ONNX's form: gates in another order, directions stacked, both biases in one
tensor. What is recorded has that form too, so it is compared parameter by parameter.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from record import BATCH, CLASSES, STEPS, names_in, train

HERE = Path(__file__).parent
LENGTH = 4096
ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}  # PyTorch's gates in ONNX's order


class Classifier(torch.nn.Module):
    """Tokens (N, 9) to (N, 10): embedding, two layers of LSTM, and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.rnn = torch.nn.LSTM(8, 12, 2, batch_first=True)
        self.fc = torch.nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(self.embedding(x))[0][:, -1])


class Both(torch.nn.Module):
    """(N, 7, 6) to (N, 10): a GRU in both directions, and the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.GRU(6, 10, batch_first=True, bidirectional=True)
        self.fc = torch.nn.Linear(20, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x)[0].mean(1))


class Long(torch.nn.Module):
    """(steps, 2, 3) to (2, 10): two layers of LSTM over any number of steps, and the mean of the states."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(3, 8, 2)
        self.fc = torch.nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x)[0].mean(0))


def long_input(steps: int) -> np.ndarray:
    """(steps, 2, 3): what the tests make again instead of reading it."""
    t, n, i = np.meshgrid(np.arange(steps), np.arange(2), np.arange(3), indexing="ij")
    return (1.5 * np.sin(0.37 * t * (i + 1) + 2.1 * n)).astype(np.float32)


def stored(module: torch.nn.Module, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays like the parameters, by name, those of recurrent layers in ONNX's form."""
    out = dict(arrays)
    for path, layer in module.named_modules():
        if not isinstance(layer, torch.nn.RNNBase):
            continue
        for level in range(layer.num_layers):

            def stacked(kind: str, layer: torch.nn.RNNBase = layer, path: str = path, level: int = level) -> np.ndarray:
                directions = ["", "_reverse"][: 2 if layer.bidirectional else 1]
                found = [out.pop(f"{path}.{kind}_l{level}{suffix}") for suffix in directions]
                gates = [np.split(a, len(ORDERS[layer.mode])) for a in found]
                return np.stack([np.concatenate([g[i] for i in ORDERS[layer.mode]]) for g in gates])

            out[f"{path}.W{level}"], out[f"{path}.R{level}"] = stacked("weight_ih"), stacked("weight_hh")
            out[f"{path}.B{level}"] = np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)
    return out


def export(module: torch.nn.Module, x: torch.Tensor, path: Path, script: bool, free: bool) -> onnx.ModelProto:
    """Writes the network, with its first axis free or not, without the exporter's notes."""
    module = copy.deepcopy(module)
    names = {"input_names": ["x"], "output_names": ["logits"]}
    if script:
        axes = {"x": {0: "free"}} if free else None
        torch.onnx.export(module, (x,), str(path), dynamic_axes=axes, dynamo=False, **names)
    else:
        shapes = {"x": {0: "free"}} if free else None
        torch.onnx.export(
            module, (x,), str(path), dynamic_shapes=shapes, dynamo=True, external_data=False, verbose=False, **names
        )
    model = onnx.load(path)
    for record in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.input):
        del record.metadata_props[:]
        record.doc_string = ""
    onnx.save(model, path)
    return model


def pairs(model: onnx.ModelProto, script: onnx.ModelProto, start: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """For each initializer of the older exporter's file its name in the other, as record.py writes it."""
    one, two = names_in(model, start), names_in(script, start)
    return {f"script/{two[key][0]}": np.array([one[key][0], str(int(two[key][1]))]) for key in start}


def record(name: str, network: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """Writes the files of one network, trained on ``x`` and ``y`` of all steps."""
    start = stored(network, {n: p.detach().numpy().copy() for n, p in network.named_parameters()})
    model = export(network, x[0, :2], HERE / f"{name}.onnx", False, True)
    script = export(network, x[0, :2], HERE / f"{name}_script.onnx", True, True)
    kept = x.numpy().astype(np.int8) if not x.dtype.is_floating_point else x.half().numpy()
    out = {"x": kept, "y": y.numpy().astype(np.int8), **pairs(model, script, start)}
    losses, first, final = train(copy.deepcopy(network), x, y, (BATCH,), name)
    assert losses[-1] < 0.8 * losses[0]
    out["plain/losses"] = np.array(losses)
    for key, (own, transposed) in names_in(model, start).items():
        for kind, arrays in (("gradient", stored(network, first)), ("final", stored(network, final))):
            out[f"plain/{kind}/{own}"] = arrays[key].T if transposed else arrays[key]
    np.savez_compressed(HERE / f"{name}.npz", **out)


def record_long() -> None:
    """Writes the files of the network over many steps: loss and gradients at one input.

    The newer exporter freezes the length, so it has a file per length.
    """
    network = Long()
    start = stored(network, {n: p.detach().numpy().copy() for n, p in network.named_parameters()})
    y = torch.tensor([3, 8])
    out = {"y": y.numpy()}
    files = {f"lstm_{steps}": (steps, False, False) for steps in (16, LENGTH)} | {"lstm_any": (16, True, True)}
    for name, (steps, script, free) in files.items():
        model = export(network, torch.from_numpy(long_input(steps)), HERE / f"{name}.onnx", script, free)
        for key, (own, transposed) in names_in(model, start).items():
            assert not transposed or key == "fc.weight"
            out[f"{name}/{own}"] = np.array([key, str(int(transposed))])
    for steps in (16, LENGTH):
        network.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(torch.from_numpy(long_input(steps))), y)
        loss.backward()
        out[f"{steps}/loss"] = np.array(loss.item())
        found = stored(network, {n: p.grad.numpy() for n, p in network.named_parameters()})
        out |= {f"{steps}/gradient/{key}": array for key, array in found.items()}
    np.savez_compressed(HERE / "lstm_long.npz", **out)


def main() -> None:
    """Records all networks."""
    warnings.simplefilter("ignore")
    torch.manual_seed(10)
    y = torch.randint(0, CLASSES, (STEPS, BATCH))
    centres = torch.randint(0, 20, (CLASSES, 9))
    noise = torch.rand(STEPS, BATCH, 9) < 0.2
    record("lstm", Classifier(), torch.where(noise, torch.randint(0, 20, (STEPS, BATCH, 9)), centres[y]), y)
    centres = torch.randn(CLASSES, 7, 6)
    x = (1.5 * centres[y] + torch.randn(STEPS, BATCH, 7, 6)).half().float()
    record("gru", Both(), x, y)
    record_long()


if __name__ == "__main__":
    main()
