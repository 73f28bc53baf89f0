"""Makes digits.npz and digits5.onnx: needs PyTorch and scikit-learn, which running the example does not.

The network is trained on the digits 0 to 4 only; the example teaches it all ten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits

HERE = Path(__file__).parent
EPOCHS, BATCH, RATE = 40, 64, 3e-3


class Network(torch.nn.Module):
    """Two convolutions with pooling and two dense layers: (N, 1, 8, 8) to (N, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 4 * 4, 64),
            torch.nn.ReLU(),
        )
        self.classifier = torch.nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.classifier(self.features(x))


def main() -> None:
    """Writes both files."""
    torch.manual_seed(0)
    digits = load_digits()
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    np.savez_compressed(HERE / "digits.npz", x=images, labels=labels)

    known = labels < 5
    x, y = torch.from_numpy(images[known]), torch.from_numpy(labels[known])
    network = Network(5)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(x))
        for batch in order.split(BATCH):
            loss = torch.nn.functional.cross_entropy(network(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 9:
            accuracy = (network(x).argmax(1) == y).float().mean()
            print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.4f}")
    torch.onnx.export(
        network.eval(),
        (torch.zeros(2, 1, 8, 8),),
        str(HERE / "digits5.onnx"),
        input_names=["x"],
        output_names=["logits"],
        dynamic_shapes={"x": {0: "batch"}},
        dynamo=True,
        external_data=False,
    )
    strip(HERE / "digits5.onnx")


def strip(path: Path) -> None:
    """Removes the exporter's notes, which hold paths of the machine that it ran on."""
    model = onnx.load(path)
    for record in (model, model.graph, *model.graph.node, *model.graph.value_info):
        del record.metadata_props[:]
        record.doc_string = ""
    onnx.save(model, path)


if __name__ == "__main__":
    main()
