"""Converts the Hugging Face configs that TransformerLens knows only by model name.

TransformerLens derives the configs of most architectures from the Hugging Face config, but those
of OLMo, OLMo 2 and the Gemma family from a list of model names, and that of Phi from a field that
has since moved. These functions derive them for any size. Each returns the keyword arguments of a
HookedTransformerConfig.
"""

from collections.abc import Callable
from typing import Any


def _common(hf: Any) -> dict[str, Any]:
    rope = getattr(hf, "rope_parameters", None) or {}
    d_head = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    return {
        "d_model": hf.hidden_size,
        "d_head": d_head,
        "n_heads": hf.num_attention_heads,
        "d_mlp": hf.intermediate_size,
        "n_layers": hf.num_hidden_layers,
        "n_ctx": hf.max_position_embeddings,
        "d_vocab": hf.vocab_size,
        "initializer_range": hf.initializer_range,
        "positional_embedding_type": "rotary",
        "rotary_base": rope.get("rope_theta", 10000.0),
        "rotary_dim": d_head,
        "gated_mlp": True,
    }


def olmo(hf: Any) -> dict[str, Any]:
    """OLMo 1: layer norms without parameters; queries, keys and values clipped in some sizes."""
    return _common(hf) | {
        "eps": 1e-5,
        "act_fn": hf.hidden_act,
        "normalization_type": "LN",
        "clip_qkv": hf.clip_qkv,
    }


def olmo2(hf: Any) -> dict[str, Any]:
    """OLMo 2: norms after attention and MLP, and on queries and keys."""
    return _common(hf) | {
        "eps": hf.rms_norm_eps,
        "act_fn": hf.hidden_act,
        "normalization_type": "RMS",
    }


def gemma(hf: Any) -> dict[str, Any]:
    """Gemma 1: grouped keys and values (one group in the 2B model)."""
    return _common(hf) | {
        "eps": hf.rms_norm_eps,
        "act_fn": "gelu_pytorch_tanh",
        "normalization_type": "RMS",
        "n_key_value_heads": hf.num_key_value_heads,
        "final_rms": True,
    }


def gemma2(hf: Any) -> dict[str, Any]:
    """Gemma 2: norms before and after, soft caps, local attention in every other layer."""
    return gemma(hf) | {
        "attn_scale": hf.query_pre_attn_scalar**0.5,
        "attn_scores_soft_cap": hf.attn_logit_softcapping or -1.0,
        "output_logits_soft_cap": hf.final_logit_softcapping or -1.0,
        "use_normalization_before_and_after": True,
        "use_local_attn": True,
        "window_size": hf.sliding_window,
        "attn_types": ["local" if t == "sliding_attention" else "global" for t in hf.layer_types],
    }


def gemma3(hf: Any) -> dict[str, Any]:
    """Gemma 3 (text): like Gemma 2, with norms on queries and keys and two rotary bases."""
    rope = hf.rope_parameters
    return gemma2(hf) | {
        "use_qk_norm": True,
        "rotary_base": rope["full_attention"]["rope_theta"],
        "rotary_base_local": rope["sliding_attention"]["rope_theta"],
    }


def phi(hf: Any) -> dict[str, Any]:
    """Phi 1 and 2: parallel attention and MLP, rotary positions in a part of each head."""
    common = _common(hf)
    return common | {
        "eps": hf.layer_norm_eps,
        "act_fn": hf.hidden_act,
        "normalization_type": "LN",
        "parallel_attn_mlp": True,
        "gated_mlp": False,
        "default_prepend_bos": False,
        "rotary_dim": round(hf.rope_parameters["partial_rotary_factor"] * common["d_head"]),
    }


DERIVED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "OlmoForCausalLM": olmo,
    "Olmo2ForCausalLM": olmo2,
    "GemmaForCausalLM": gemma,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "PhiForCausalLM": phi,
}

# Architectures whose prompts TransformerLens does not begin with the BOS token.
NO_BOS = (
    "BloomForCausalLM",
    "GPTNeoXForCausalLM",
    "PhiForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
