"""Networks of torchvision, in their real forms."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from architecture import Architecture, Input
from torchvision import models

BATCHES = ({"batch": 1}, {"batch": 3})
PLANES = ({"batch": 1, "height": 96, "width": 130}, {"batch": 3, "height": 65, "width": 64})
FEW = ("trace-named", "dynamo-fixed")

CLASSIFIERS = {
    "alexnet": 224, "vgg11_bn": 64, "resnet18": 224, "resnet50": 160, "resnext50_32x4d": 128, "densenet121": 128,
    "googlenet": 128, "inception_v3": 192, "mobilenet_v2": 160, "mobilenet_v3_small": 160, "mobilenet_v3_large": 160,
    "mnasnet0_5": 160, "shufflenet_v2_x0_5": 160, "squeezenet1_1": 160, "efficientnet_b0": 160, "efficientnet_v2_s": 96,
    "regnet_y_400mf": 160, "regnet_x_400mf": 160, "convnext_tiny": 96, "vit_b_16": 224, "swin_t": 96, "swin_v2_t": 96,
    "maxvit_t": 224,
}  # fmt: skip
BOTH = ("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "googlenet", "swin_t", "swin_v2_t", "efficientnet_b0")
SEGMENTERS = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "lraspp_mobilenet_v3_large")
VIDEOS = {"r3d_18": (8, 64), "mc3_18": (8, 64), "s3d": (16, 224), "mvit_v1_b": (16, 224)}  # frames, height and width
DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large",
    "keypointrcnn_resnet50_fpn",
)  # fmt: skip


def _classifier(name: str) -> torch.nn.Module:
    options: dict[str, Any] = {"weights": None, "num_classes": 40}
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    return models.get_model(name, **options)


def _segmenter(name: str) -> torch.nn.Module:
    return models.get_model(name, weights=None, weights_backbone=None, num_classes=21)


def _first(module: torch.nn.Module, image: torch.Tensor) -> Any:
    return module(image)["out"]


def _flow(module: torch.nn.Module, before: torch.Tensor, after: torch.Tensor) -> Any:
    return module(before, after, num_flow_updates=3)[-1]


def _detect(module: torch.nn.Module, image: torch.Tensor) -> Any:
    return module([image])


def _video(name: str, time: int, size: int) -> Architecture:
    clip = {"clip": Input(("batch", 3, time, size, size))}
    make = partial(models.get_model, name, weights=None, num_classes=40)
    return Architecture(name, make, clip, {"batch": 2}, BATCHES, variants=FEW)


def _detector(name: str) -> Architecture:
    make = partial(models.get_model, name, weights=None, weights_backbone=None)
    planes = ({"height": 200, "width": 150}, {"height": 130, "width": 220})
    image, start = {"image": Input((3, "height", "width"))}, {"height": 160, "width": 200}
    variants = ("trace-fixed", "trace-named")
    return Architecture(name, make, image, start, planes, call=_detect, variants=variants, trains=False)


def architectures() -> list[Architecture]:
    """Those of this file."""
    found = []
    for name, size in CLASSIFIERS.items():
        image = {"image": Input(("batch", 3, size, size))}
        options: dict[str, Any] = {} if name in BOTH else {"variants": FEW}
        found.append(Architecture(name, partial(_classifier, name), image, {"batch": 2}, BATCHES, **options))
    plane = {"image": Input(("batch", 3, "height", "width"))}
    start = {"batch": 2, "height": 96, "width": 96}
    found += [Architecture(n, partial(_segmenter, n), plane, start, PLANES, call=_first) for n in SEGMENTERS]
    found += [_video(name, time, size) for name, (time, size) in VIDEOS.items()]
    pair = {n: Input(("batch", 3, 128, 128)) for n in ("before", "after")}
    make = partial(models.get_model, "raft_small", weights=None)
    found.append(Architecture("raft_small", make, pair, {"batch": 2}, BATCHES, call=_flow))
    return found + [_detector(name) for name in DETECTORS]
