"""Records ``bert.onnx``: a small BERT of transformers as PyTorch's tracing exporter writes it, which optimizers know.

Needs torch and transformers: ``python tests/importers/microsoft/record.py``.
"""

from pathlib import Path

import torch
from transformers import BertConfig, BertModel

CONFIG = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
MORE = {"intermediate_size": 32, "max_position_embeddings": 8, "attn_implementation": "eager"}
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


class Last(torch.nn.Module):
    """The last hidden state alone."""

    def __init__(self):
        super().__init__()
        self.model = BertModel(BertConfig(**CONFIG, **MORE), add_pooling_layer=False)

    def forward(self, *inputs):
        return self.model(**dict(zip(NAMES, inputs, strict=True))).last_hidden_state


if __name__ == "__main__":
    torch.manual_seed(0)
    ids = torch.randint(0, 20, (2, 6))
    inputs = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    path = Path(__file__).parent / "bert.onnx"
    model = Last().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the exporter stores equal ones once, which train as one then
            parameter.add_(0.1 * torch.randn(parameter.shape))
    torch.onnx.export(
        model,
        inputs,
        path,
        input_names=NAMES,
        output_names=["y"],
        dynamic_axes={name: {0: "batch", 1: "length"} for name in NAMES},
        opset_version=17,
        dynamo=False,
    )
