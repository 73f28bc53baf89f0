"""Networks of transformers that see and hear, from small configurations."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import transformers
from architecture import Architecture, Input, Sizes
from transformers import AutoConfig

COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
PATCHED = {**COMMON, "image_size": 64, "patch_size": 16}
TEXT = {
    **COMMON,
    "vocab_size": 120,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IMAGES: dict[str, dict[str, Any]] = {
    "vit": PATCHED,
    "deit": PATCHED,
    "beit": {**PATCHED, "use_relative_position_bias": True},
    "dinov2": {**PATCHED, "patch_size": 8},
    "ijepa": PATCHED,
    "swin": {"image_size": 64, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    "swinv2": {"image_size": 64, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    "convnext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
    "convnextv2": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
    "poolformer": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]},
    "resnet": {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "layer_type": "basic"},
    "regnet": {"embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 1], "groups_width": 8},
    "levit": {
        "image_size": 64,
        "hidden_sizes": [32, 48, 64],
        "depths": [1, 1, 1],
        "num_attention_heads": [2, 3, 4],
        "key_dim": [8, 8, 8],
    },
    "pvt": {
        "image_size": 64,
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 32, 64, 64],
        "num_attention_heads": [1, 2, 2, 4],
    },
    "pvt_v2": {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 64, 64], "num_attention_heads": [1, 2, 2, 4]},
    "hiera": {
        "image_size": [64, 64],
        "embed_dim": 24,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 4, 8],
        "initial_num_heads": 1,
    },
    "mobilenet_v2": {},
    "mobilevit": {"image_size": 64, "hidden_sizes": [36, 48, 60], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]},
    "focalnet": {
        "image_size": 64,
        "embed_dim": 24,
        "depths": [1, 1],
        "hidden_sizes": [24, 48],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
    },
    "segformer": {
        "depths": [1, 1, 1, 1],
        "hidden_sizes": [16, 32, 64, 64],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 32,
    },
    "efficientnet": {
        "image_size": 64,
        "hidden_dim": 320,
        "width_coefficient": 0.25,
        "depth_coefficient": 0.25,
        "dropout_rate": 0.0,
    },
    "vit_msn": PATCHED,
    "swiftformer": {"embed_dims": [16, 24, 32, 48], "depths": [1, 1, 1, 1]},
}
FREE_PLANES = (
    "convnext",
    "convnextv2",
    "poolformer",
    "resnet",
    "regnet",
    "dinov2",
    "segformer",
    "swin",
    "mobilenet_v2",
    "pvt_v2",
)


def _base(kind: str, **options: Any) -> torch.nn.Module:
    return transformers.AutoModel.from_config(AutoConfig.for_model(kind, **options))


def _first(module: torch.nn.Module, *given: Any, **named: Any) -> Any:
    return module(*given, **named)[0]


def _by_name(module: torch.nn.Module, **given: Any) -> Any:
    return module(**given)


def _first_by_name(module: torch.nn.Module, **given: Any) -> Any:
    return module(**given)[0]


def _chosen(*names: str) -> Any:
    return lambda module, **given: operator.itemgetter(*names)(module(**given))


def _clip(kind: str) -> torch.nn.Module:
    text = dict(TEXT)
    config = AutoConfig.for_model(
        kind, text_config=text, vision_config=PATCHED, **({"projection_dim": 32} if kind == "clip" else {})
    )
    return transformers.AutoModel.from_config(config)


def _detr(kind: str) -> torch.nn.Module:
    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = AutoConfig.for_model(
        kind,
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=7,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    return transformers.AutoModelForObjectDetection.from_config(config)


def _yolos() -> torch.nn.Module:
    config = AutoConfig.for_model("yolos", **{**PATCHED, "image_size": [64, 96]}, num_detection_tokens=5)
    return transformers.AutoModelForObjectDetection.from_config(config)


def _segformer() -> torch.nn.Module:
    config = AutoConfig.for_model("segformer", **IMAGES["segformer"], num_labels=5)
    return transformers.AutoModelForSemanticSegmentation.from_config(config)


def _depth(kind: str) -> torch.nn.Module:
    if kind == "dpt":
        config = AutoConfig.for_model(
            "dpt",
            **{**PATCHED, "num_hidden_layers": 4},
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 16, 32, 32],
            fusion_hidden_size=16,
            readout_type="project",
        )
    else:
        backbone = transformers.Dinov2Config(
            **{**PATCHED, "num_hidden_layers": 4, "patch_size": 8},
            out_features=["stage1", "stage2", "stage3", "stage4"],
            reshape_hidden_states=False,
        )
        config = AutoConfig.for_model(
            kind,
            backbone_config=backbone,
            reassemble_hidden_size=64,
            patch_size=8,
            neck_hidden_sizes=[16, 16, 32, 32],
            fusion_hidden_size=16,
        )
    module = transformers.AutoModelForDepthEstimation.from_config(config)
    last = [layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)][-1]
    torch.nn.init.ones_(last.bias)  # else the last ReLU may give zeros only
    return module


def _wave(kind: str) -> torch.nn.Module:
    return _base(
        kind,
        **COMMON,
        conv_dim=[32, 32, 32],
        conv_stride=[5, 2, 2],
        conv_kernel=[10, 3, 3],
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3,
        vocab_size=30,
    )


def _whisper() -> torch.nn.Module:
    config = AutoConfig.for_model(
        "whisper",
        vocab_size=120,
        num_mel_bins=20,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return transformers.AutoModelForSpeechSeq2Seq.from_config(config)


def _one(
    name: str,
    build: Any,
    inputs: Mapping[str, Input],
    sizes: Sizes,
    others: tuple[Sizes, ...],
    call: Any,
    **options: Any,
) -> Architecture:
    return Architecture(name, build, inputs, sizes, others, call=call, **options)


def architectures() -> list[Architecture]:
    """Those of this file."""
    batch, batches = {"batch": 2}, ({"batch": 1}, {"batch": 3})
    start = {"batch": 2, "height": 64, "width": 64}
    planes = ({"batch": 1, "height": 96, "width": 64}, {"batch": 3, "height": 64, "width": 128})
    found = []
    for kind, more in IMAGES.items():
        free = kind in FREE_PLANES
        image = {"pixel_values": Input(("batch", 3, "height", "width") if free else ("batch", 3, 64, 64))}
        found.append(
            _one(
                f"hf_{kind}",
                partial(_base, kind, **more),
                image,
                start if free else batch,
                planes if free else batches,
                _first_by_name,
            )
        )
    image = {"pixel_values": Input(("batch", 3, 64, 64))}
    plane = {"pixel_values": Input(("batch", 3, "height", "width"))}
    for kind in ("clip", "siglip"):
        inputs = {"input_ids": Input(("batch", "sequence"), "ids", 120), **image}
        sizes = tuple({**s, "sequence": n} for s, n in zip((batch, *batches), (12, 5, 20), strict=True))
        found.append(
            _one(
                kind,
                partial(_clip, kind),
                inputs,
                sizes[0],
                sizes[1:],
                _chosen("logits_per_image", "text_embeds", "image_embeds"),
            )
        )
    boxes = _chosen("logits", "pred_boxes")
    found += [_one(k, partial(_detr, k), plane, start, planes, boxes) for k in ("detr", "conditional_detr")]
    found.append(
        _one(
            "yolos",
            _yolos,
            {"pixel_values": Input(("batch", 3, 64, 96))},
            batch,
            batches,
            _chosen("logits", "pred_boxes"),
        )
    )
    found.append(_one("segformer_masks", _segformer, plane, start, planes, _first_by_name))
    found += [
        _one(kind, partial(_depth, kind), image, batch, batches, _first_by_name) for kind in ("dpt", "depth_anything")
    ]
    wave = {"input_values": Input(("batch", "samples"))}
    waves = {"batch": 2, "samples": 800}, ({"batch": 1, "samples": 1234}, {"batch": 3, "samples": 600})
    found += [
        _one(kind, partial(_wave, kind), wave, *waves, _first_by_name)
        for kind in ("wav2vec2", "hubert", "wavlm", "unispeech-sat")
    ]
    heard = {"input_features": Input(("batch", 20, 100)), "decoder_input_ids": Input(("batch", "written"), "ids", 120)}
    sizes = tuple({**s, "written": n} for s, n in zip((batch, *batches), (6, 1, 11), strict=True))
    found.append(_one("whisper", _whisper, heard, sizes[0], sizes[1:], _chosen("logits")))
    spectrum = {"input_values": Input(("batch", 64, 32))}
    options = {**COMMON, "num_mel_bins": 32, "max_length": 64}
    found.append(
        _one(
            "audio_spectrogram_transformer",
            partial(_base, "audio-spectrogram-transformer", **options),
            spectrum,
            batch,
            batches,
            _first_by_name,
        )
    )
    series = {"past_values": Input(("batch", 32, 3))}
    options = {
        "num_input_channels": 3,
        "context_length": 32,
        "patch_length": 8,
        "patch_stride": 8,
        "d_model": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
    }
    found.append(_one("patchtst", partial(_base, "patchtst", **options), series, batch, batches, _first_by_name))
    clip = {"pixel_values": Input(("batch", 4, 3, 32, 32))}
    options = {**COMMON, "image_size": 32, "patch_size": 8, "num_frames": 4}
    found.append(_one("timesformer", partial(_base, "timesformer", **options), clip, batch, batches, _first_by_name))
    found.append(
        _one("vivit", partial(_base, "vivit", **options, tubelet_size=[2, 8, 8]), clip, batch, batches, _first_by_name)
    )
    return found
