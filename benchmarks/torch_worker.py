"""PyTorch's side of training.py and memory.py: runs in an interpreter that has torch.

Arguments: network, folder, threads, seed, and what else: ``bf16`` is autocast to bfloat16, ``checkpoint`` computes
every block again in backward. The folder has the batch
(batch.npz). Writes the network as ONNX (model.onnx) and its first weights (weights.npz) there, unless they are there;
then answers as peer.py says.
"""

from __future__ import annotations

import functools
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from peer import answer
from torch.utils.checkpoint import checkpoint
from torch_networks import BLOCKS, NETWORKS


def export(network: torch.nn.Module, x: torch.Tensor, folder: Path) -> None:
    """The structure as it is trained: nothing is folded into weights."""
    if any(isinstance(m, (torch.nn.BatchNorm2d, torch.nn.LSTM)) for m in network.modules()):
        with warnings.catch_warnings():  # the older exporter alone leaves batch norms beside their convolutions
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network.eval(), (x[:2],), folder / "model.onnx", input_names=["x"], output_names=["logits"],
                opset_version=17, dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}}, dynamo=False,
                do_constant_folding=False, training=torch.onnx.TrainingMode.PRESERVE,
            )  # fmt: skip
    else:
        torch.onnx.export(
            network.eval(), (x[:2],), folder / "model.onnx", input_names=["x"], output_names=["logits"],
            dynamic_shapes=({0: "batch"},), dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    weights = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items()}
    np.savez(folder / "weights.npz", **weights)


def main() -> None:
    name, folder, threads, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    reduced, checkpointed = "bf16" in sys.argv[5:], "checkpoint" in sys.argv[5:]
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    network = NETWORKS[name]()
    for buffer in network.buffers():  # the exporter writes equal tensors once, and statistics change apart
        if buffer.is_floating_point():
            buffer += 1e-3 * torch.rand_like(buffer)
    data = np.load(folder / "batch.npz")
    x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["labels"])
    if not (folder / "model.onnx").exists():
        export(network, x, folder)
    network.train()
    for module in network.modules() if checkpointed else ():
        if isinstance(module, BLOCKS):
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            loss = torch.nn.functional.cross_entropy(network(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    answer(torch.__version__, step)


if __name__ == "__main__":
    main()
