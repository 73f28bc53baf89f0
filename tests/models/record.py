"""Records what PyTorch computes for the families; run by hand, the tests only read the results.

For each family: ``<name>.onnx`` and ``<name>_script.onnx`` as PyTorch's two exporters write them with their defaults,
and ``<name>.npz``: ``outputs<i>`` for the probes, ``losses`` of twenty AdamW steps, ``gradient/<parameter>`` of the
first step, and ``names`` and ``script_names``: for each parameter, the initializer that holds it in either file and
whether it is transposed there. All in float64, on the exported structure.
"""

from __future__ import annotations

import copy
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from torch.nn.utils.fusion import fuse_conv_bn_eval

sys.path.insert(0, str(Path(__file__).parent))
import networks
from data import FAMILIES, batches, probes

HERE = Path(__file__).parent
RATE, DECAY = 3e-3, 0.01
KINDS = {
    "mobile": networks.Mobile, "unet": networks.UNet, "vit": networks.ViT, "bert": networks.Bert, "gpt": networks.GPT,
    "regression": networks.Regression, "branch": networks.Branch, "recurrence": networks.Recurrence,
}  # fmt: skip
TRACED = {"branch": networks.TracedBranch, "recurrence": networks.TracedRecurrence}  # for the newer exporter


def prepared(module: torch.nn.Module, seed: int) -> torch.nn.Module:
    """With statistics and affine parameters as training would leave them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
                layer.running_mean.uniform_(-0.3, 0.3, generator=generator)
                layer.running_var.uniform_(0.1, 0.3, generator=generator)
            if isinstance(
                layer,
                torch.nn.BatchNorm1d
                | torch.nn.BatchNorm2d
                | torch.nn.LayerNorm
                | torch.nn.GroupNorm
                | torch.nn.InstanceNorm2d,
            ):
                layer.weight.uniform_(0.5, 1.5, generator=generator)
                layer.bias.uniform_(-0.3, 0.3, generator=generator)
    return module.eval()


def folded(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with batch norms folded into the convolutions before them, as the exporters do."""
    module = copy.deepcopy(module)
    for owner in list(module.modules()):
        children = list(owner.named_children())
        for (name, layer), (next_name, following) in itertools.pairwise(children):
            if isinstance(layer, torch.nn.Conv2d) and isinstance(following, torch.nn.BatchNorm2d):
                setattr(owner, name, fuse_conv_bn_eval(layer, following))
                setattr(owner, next_name, torch.nn.Identity())
    return module.requires_grad_(True)


def loss_of(family: str, y: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over what counts."""
    if family == "regression":
        return torch.nn.functional.mse_loss(y, labels)
    return torch.nn.functional.cross_entropy(y.movedim(-1, 1) if family == "gpt" else y, labels)


def tensors(batch: dict[str, np.ndarray]) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Inputs in order, floats in float64; and the labels."""
    upcast = {k: torch.from_numpy(v.astype(np.float64) if v.dtype.kind == "f" else v) for k, v in batch.items()}
    labels = upcast.pop("labels", None)
    return list(upcast.values()), labels


def export(module: torch.nn.Module, batch: dict[str, np.ndarray], path: Path, script: bool) -> onnx.ModelProto:
    """Writes the network with free batch size and length, without the exporter's notes."""
    inputs = {k: torch.from_numpy(v[:2]) for k, v in batch.items() if k != "labels"}
    timed = [k for k, v in inputs.items() if k in ("ids", "mask") or v.ndim == 3]
    free = {k: {0: "batch", 1: "sequence"} if k in timed else {0: "batch"} for k in inputs}
    common = {"input_names": list(inputs), "output_names": ["y"]}
    if script:
        torch.onnx.export(module, tuple(inputs.values()), str(path), dynamic_axes=free, dynamo=False, **common)
    else:
        shapes = tuple(
            {axis: torch.export.Dim(name, min=1, max=32 if axis else 4096) for axis, name in axes.items()}
            for axes in free.values()
        )
        torch.onnx.export(
            module, tuple(inputs.values()), str(path), dynamic_shapes=shapes, dynamo=True, external_data=False, **common
        )
    model = onnx.load(path)
    if path.stem == "vit":  # one file keeps the exporter's notes about modules
        keep_scopes(model, path.with_stem("vit_scopes"))
    for record in (model, model.graph, *nodes_of(model.graph), *model.graph.value_info):
        del record.metadata_props[:]
        record.doc_string = ""
    onnx.save(model, path)
    return model


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Of the graph and of its nodes' bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes_of(attribute.g)


def keep_scopes(model: onnx.ModelProto, path: Path) -> None:
    """Writes the file with the notes that say which module a node comes from, and no others."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for record in (model, model.graph, *model.graph.node, *model.graph.value_info):
        scopes = [(p.key, p.value) for p in record.metadata_props if p.key.endswith("name_scopes")]
        del record.metadata_props[:]
        record.doc_string = ""
        for key, value in scopes:
            record.metadata_props.add(key=key, value=value)
    onnx.save(model, path)


def parameter_names(model: onnx.ModelProto, module: torch.nn.Module) -> np.ndarray:
    """Rows of parameter, initializer, and "1" where that is transposed; a tied parameter has several."""
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    rows = []
    for name, parameter in module.named_parameters():
        array = parameter.detach().numpy()
        found = []
        for own, data in stored.items():
            if data.size != array.size or data.size == 0:
                continue
            if data.squeeze().shape == array.squeeze().shape and np.allclose(
                data.reshape(array.shape), array, rtol=1e-5, atol=1e-6
            ):
                found.append((name, own, "0"))
            elif data.ndim == 2 and data.T.shape == array.shape and np.allclose(data.T, array, rtol=1e-5, atol=1e-6):
                found.append((name, own, "1"))
        assert found, f"the exporter's file lacks {name}"
        rows += found
    return np.array(rows)


def record(family: str, seed: int) -> None:
    """Writes the files of one family."""
    torch.manual_seed(seed)
    module = prepared(KINDS[family](), seed)
    steps = batches(family)
    forms = [copy.deepcopy(module), copy.deepcopy(module)]
    if family in TRACED:  # control flow
        forms[0] = TRACED[family]().eval()
        forms[0].load_state_dict(module.state_dict())
        forms[1] = torch.jit.script(forms[1])
    paths = [HERE / f"{family}{end}.onnx" for end in ("", "_script")]
    files = [export(form, steps[0], path, bool(i)) for i, (form, path) in enumerate(zip(forms, paths, strict=True))]
    network = folded(module)
    out = {"names": parameter_names(files[0], network), "script_names": parameter_names(files[1], network)}
    network = network.double()
    with torch.no_grad():
        for index, probe in enumerate(probes(family)):
            out[f"outputs{index}"] = network(*tensors(probe)[0]).numpy()
    method = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    for parameter in network.parameters():  # in a branch that is not taken the gradient is zero, not absent
        parameter.grad = torch.zeros_like(parameter)
    losses = []
    for step, batch in enumerate(steps):
        inputs, labels = tensors(batch)
        method.zero_grad(set_to_none=False)
        loss = loss_of(family, network(*inputs), labels)
        loss.backward()
        losses.append(float(loss))
        if step == 0:
            for name, parameter in network.named_parameters():
                out[f"gradient/{name}"] = parameter.grad.numpy().astype(np.float32)
        method.step()
    out["losses"] = np.array(losses)
    print(family, [round(value, 4) for value in (losses[0], losses[-1])])
    assert losses[-1] < 0.8 * losses[0]
    np.savez_compressed(HERE / f"{family}.npz", **out)


def main() -> None:
    """Records the families named on the command line, or all."""
    warnings.simplefilter("ignore")
    for index, family in enumerate(FAMILIES):
        if len(sys.argv) == 1 or family in sys.argv[1:]:
            record(family, index)


if __name__ == "__main__":
    main()
