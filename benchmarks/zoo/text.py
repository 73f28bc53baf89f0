"""Encoders, decoders and translators of transformers, from small configurations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers
from architecture import Architecture, Input
from transformers import AutoConfig

WORDS = 120
SIZES = {"batch": 2, "sequence": 16}
OTHERS = ({"batch": 1, "sequence": 7}, {"batch": 3, "sequence": 33})
CACHED = {"batch": 2, "sequence": 3, "past": 8}
OTHERS_CACHED = ({"batch": 1, "sequence": 1, "past": 21}, {"batch": 3, "sequence": 5, "past": 1})

# what most configurations call their sizes, and others besides
COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 66},
    "albert": {"embedding_size": 32},
    "electra": {"embedding_size": 32},
    "distilbert": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "mpnet": {},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 32},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 16,
        "max_relative_positions": 64,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    "fnet": {},
    "squeezebert": {"embedding_size": 64},
    "mobilebert": {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "convbert": {"embedding_size": 64},
    "ernie": {},
    "layoutlm": {},
    "splinter": {},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "roformer": {"embedding_size": 64},
    "eurobert": {},
    "xlnet": {"d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128},
    "esm": {"mask_token_id": 4, "position_embedding_type": "rotary"},
    "ibert": {"quant_mode": False},
    "megatron-bert": {},
    "nomic_bert": {},
    "yoso": {},
    "big_bird": {"attention_type": "original_full"},
}
GROUPED = {"num_key_value_heads": 2}
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_neox": {},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {"n_layer": 2, "n_head": 4},
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 8},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
    "phi": {},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "gemma": {**GROUPED, "head_dim": 16},
    "gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "gemma3_text": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "stablelm": GROUPED,
    "olmo2": GROUPED,
    "cohere": GROUPED,
    "granite": GROUPED,
    "starcoder2": GROUPED,
    "smollm3": GROUPED,
    "codegen": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 64},
    "mixtral": {**GROUPED, "num_local_experts": 4},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 128},
    "biogpt": {},
    "mamba": {"state_size": 8},
    "rwkv": {},
    "qwen3_moe": {**GROUPED, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
    },
    "gpt_oss": {**GROUPED, "num_local_experts": 4, "head_dim": 16, "sliding_window": 8},
    "glm": {**GROUPED, "head_dim": 16},
}
EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss")
CACHES = ("gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma3_text", "phi3", "gpt_neox")
SEQ2SEQ: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "mt5": {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4},
    "bart": {},
    "pegasus": {},
    "marian": {},
    "m2m_100": {},
    "blenderbot-small": {},
}
HALVES = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "decoder_start_token_id": 1,
}
OWN_SIZES = (
    "gpt2",
    "gptj",
    "codegen",
    "xlnet",
    "distilbert",
    "bloom",
    "xglm",
    "gpt_neo",
    "t5",
    "mt5",
    "marian",
    "bart",
    "pegasus",
    "m2m_100",
    "blenderbot-small",
)


def configuration(kind: str, more: dict[str, Any], common: dict[str, Any] = COMMON) -> Any:
    if kind in OWN_SIZES:  # names of COMMON that are read-only there
        names = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "max_position_embeddings")
        names += ("hidden_size",) if kind in ("bloom", "gpt_neo") else ()
        common = {key: common[key] for key in names}
        if kind in ("gpt2", "gptj", "codegen", "xlnet"):
            del common["max_position_embeddings"]
    return AutoConfig.for_model(kind, **{**common, **more})


def _encoder(kind: str, more: dict[str, Any]) -> torch.nn.Module:
    return transformers.AutoModel.from_config(configuration(kind, more))


def _decoder(kind: str, more: dict[str, Any]) -> torch.nn.Module:
    options = {"experts_implementation": "eager"} if kind in EXPERTS else {}
    return transformers.AutoModelForCausalLM.from_config(configuration(kind, more), **options)


def _seq2seq(kind: str, more: dict[str, Any]) -> torch.nn.Module:
    return transformers.AutoModelForSeq2SeqLM.from_config(
        configuration(kind, {**HALVES, **more} if kind not in ("t5", "mt5") else more)
    )


def _hidden(module: torch.nn.Module, input_ids: Any, attention_mask: Any) -> Any:
    return module(input_ids=input_ids, attention_mask=attention_mask)[0]


def _hidden_alone(module: torch.nn.Module, input_ids: Any) -> Any:
    return module(input_ids=input_ids)[0]


def _logits(module: torch.nn.Module, input_ids: Any, attention_mask: Any) -> Any:
    return module(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def _logits_alone(module: torch.nn.Module, input_ids: Any) -> Any:
    return module(input_ids=input_ids, use_cache=False).logits


def _translate(module: torch.nn.Module, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
    return module(
        input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
    ).logits


def _continue(module: torch.nn.Module, input_ids: Any, attention_mask: Any, **past: Any) -> Any:
    """The logits and the cache, layer by layer."""
    kept = list(past.values())
    pairs = list(zip(kept[::2], kept[1::2], strict=True))
    cache = transformers.DynamicCache(pairs)
    found = module(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
    layers = [(layer.keys, layer.values) for layer in found.past_key_values.layers]
    return [found.logits, *(t for pair in layers for t in pair)]


def _cached(kind: str) -> Architecture:
    config = configuration(kind, DECODERS[kind])
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inputs = {
        "input_ids": Input(("batch", "sequence"), "ids", WORDS),
        "attention_mask": Input(("batch", ("past", "sequence")), "ones"),
    }
    for layer in range(config.num_hidden_layers):
        inputs |= {f"past.{layer}.{part}": Input(("batch", heads, "past", width)) for part in ("key", "value")}
    return Architecture(
        f"{kind}_cache",
        partial(_decoder, kind, DECODERS[kind]),
        inputs,
        CACHED,
        OTHERS_CACHED,
        call=_named(_continue, inputs),
    )


def _named(call: Any, inputs: Any) -> Any:
    """``call`` with inputs by name; names with dots are no keywords of Python, but keys of a mapping."""
    return lambda module, **given: call(module, **{name: given[name] for name in inputs})


def architectures() -> list[Architecture]:
    """Those of this file."""
    ids, mask = Input(("batch", "sequence"), "ids", WORDS), Input(("batch", "sequence"), "mask")
    both = {"input_ids": ids, "attention_mask": mask}
    found = []
    for kind, more in ENCODERS.items():
        alone = kind == "fnet"
        found.append(
            Architecture(
                kind.replace("-", "_"),
                partial(_encoder, kind, more),
                {"input_ids": ids} if alone else both,
                SIZES,
                OTHERS,
                call=_hidden_alone if alone else _hidden,
                trains=kind != "yoso",  # whose gradient is an estimate, not that of what it computes
            )
        )
    for kind, more in DECODERS.items():
        alone = kind in ("mamba", "rwkv")
        found.append(
            Architecture(
                kind,
                partial(_decoder, kind, more),
                {"input_ids": ids} if alone else both,
                SIZES,
                OTHERS,
                call=_logits_alone if alone else _logits,
            )
        )
    found += [_cached(kind) for kind in CACHES]
    sizes = {**SIZES, "written": 6}
    others = tuple({**s, "written": n} for s, n in zip(OTHERS, (9, 1), strict=True))
    written = {**both, "decoder_input_ids": Input(("batch", "written"), "ids", WORDS)}
    found += [
        Architecture(k.replace("-", "_"), partial(_seq2seq, k, m), written, sizes, others, call=_translate)
        for k, m in SEQ2SEQ.items()
    ]
    return found
