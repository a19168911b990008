"""Untrained models with the shapes of well-known ones, for timing."""

from pathlib import Path
from typing import Any

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


def random_model(tokenizer: Any, backend: str | None = None, **shape: Any) -> Any:
    """An untrained model of any shape, e.g. for timing; takes HookedTransformerConfig arguments."""
    import torch

    from .backends.imports import import_libraries
    from .huggingface import quiet_libraries
    from .load import find_backend

    import_libraries()
    torch.manual_seed(0)
    make = _hooked if find_backend(backend) == "hooked" else _bridged
    with quiet_libraries():
        return make(tokenizer, shape).eval().requires_grad_(False)


def _hooked(tokenizer: Any, shape: dict[str, Any]) -> Any:
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    from .wrap import give_tokenizer

    cfg = HookedTransformerConfig(model_name="random", device="cpu", **shape)
    model = HookedTransformer(cfg, move_to_device=False)
    give_tokenizer(model, tokenizer)
    return model


def _bridged(tokenizer: Any, shape: dict[str, Any]) -> Any:
    """A GPT-2 or a Llama of that shape, in a bridge."""
    from .wrap import wrap

    model = _of_transformers(shape)
    model.config._name_or_path = "random"
    return wrap(model, tokenizer)


def save_random(folder: Path, tokenizer: Any, **shape: Any) -> None:
    """Write an untrained model of any shape, and its tokenizer, as transformers does."""
    import torch

    from .backends.imports import import_libraries
    from .huggingface import quiet_libraries

    import_libraries()
    torch.manual_seed(0)
    with quiet_libraries():
        _of_transformers(shape).save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _of_transformers(shape: dict[str, Any]) -> Any:
    """A GPT-2 or a Llama of that shape."""
    import transformers

    kind = shape.get("normalization_type", "LN")
    names = {
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_key_value_heads": "num_key_value_heads",
        "d_model": "hidden_size",
        "d_mlp": "n_inner" if kind == "LN" else "intermediate_size",
        "d_vocab": "vocab_size",
        "n_ctx": "max_position_embeddings",
    }
    given = {names[key]: value for key, value in shape.items() if key in names}
    given |= {"bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.1}
    if kind == "LN":
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**given))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**given))
    return model.eval()
