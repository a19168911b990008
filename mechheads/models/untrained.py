"""Untrained models with the shapes of well-known ones, for timing."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import Model

# The shapes of real models. Weights are random: only their number matters for speed.
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_layers": 12,
        "n_heads": 12,
        "d_model": 768,
        "d_head": 64,
        "d_mlp": 3072,
        "d_vocab": 50257,
        "n_ctx": 64,
        "act_fn": "gelu_new",
        "normalization_type": "LN",
    },
    "mini": {
        "n_layers": 4,
        "n_heads": 8,
        "d_model": 128,
        "d_head": 16,
        "d_mlp": 512,
        "d_vocab": 3000,
        "n_ctx": 64,
        "act_fn": "gelu_new",
        "normalization_type": "LN",
    },
    "smollm2": {
        "n_layers": 30,
        "n_heads": 9,
        "n_key_value_heads": 3,
        "d_model": 576,
        "d_head": 64,
        "d_mlp": 1536,
        "d_vocab": 49152,
        "n_ctx": 64,
        "act_fn": "silu",
        "gated_mlp": True,
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "rotary_dim": 64,
        "final_rms": True,
    },
}


def random_model(tokenizer: Any, **shape: Any) -> "Model":
    """An untrained model of any shape, e.g. for timing; takes HookedTransformerConfig arguments."""
    import torch
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from .huggingface import quiet_libraries
    from .load import give_tokenizer

    torch.manual_seed(0)
    cfg = HookedTransformerConfig(model_name="random", device="cpu", **shape)
    with quiet_libraries():
        model = HookedTransformer(cfg, move_to_device=False)
        give_tokenizer(model, tokenizer)
    return model.eval().requires_grad_(False)
