"""Tiny random checkpoints of many architectures, written to disk as a user would have them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import tasks.words as words

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = SIZE | {"num_key_value_heads": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}

# Name -> (architecture, config arguments).
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT),
    "gpt2-wide": ("GPT2LMHeadModel", GPT | {"n_inner": 80}),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 6,
        },
    ),
    "neox": ("GPTNeoXForCausalLM", SIZE | {"rotary_pct": 0.5}),
    "neox-sequential": ("GPTNeoXForCausalLM", SIZE | {"use_parallel_residual": False}),
    "gptj": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "opt": (
        "OPTForCausalLM",
        SIZE | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "bloom": ("BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", SIZE | {"num_key_value_heads": 4}),
    "llama-gqa": ("LlamaForCausalLM", GROUPED),
    "llama3": ("LlamaForCausalLM", GROUPED | {"rope_parameters": LLAMA3_ROPE}),
    "llama-tied-wide-heads": (
        "LlamaForCausalLM",
        GROUPED | {"head_dim": 12, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": None}),
    "mixtral": (
        "MixtralForCausalLM",
        GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen2-tied": ("Qwen2ForCausalLM", GROUPED | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 8}),
    "phi": ("PhiForCausalLM", SIZE),
    "phi3": ("Phi3ForCausalLM", GROUPED | {"pad_token_id": 0}),
    "olmo": ("OlmoForCausalLM", SIZE),
    "olmo-clipped": ("OlmoForCausalLM", SIZE | {"clip_qkv": 0.1}),
    "olmo2": ("Olmo2ForCausalLM", SIZE),
    "olmo3": ("Olmo3ForCausalLM", SIZE | WINDOWS),
    "olmoe": ("OlmoeForCausalLM", SIZE | {"num_experts": 3, "num_experts_per_tok": 2}),
    "gemma": ("GemmaForCausalLM", GROUPED | {"head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2ForCausalLM", GROUPED | WINDOWS | {"head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", GROUPED | WINDOWS | {"head_dim": 8}),
}


def tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer that knows the tasks' names, numbers and punctuation."""
    plain = [f"{a}{w}" for w in [*words.NAMES, "The", "to", "and"] for a in ("", " ")]
    digits = [f"{a}{d}" for d in range(10) for a in ("", " ")]
    symbols = [*" .,:=+-*\n", " =", " +", " -", " *"]
    vocabulary = ["<unk>", "<bos>", "<eos>", *dict.fromkeys([*plain, *digits, *symbols])]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(
        Regex(r" ?[A-Za-z]+| ?\d|\n| ?[^\sA-Za-z\d]| "), "isolated"
    )
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )


def write_gguf(folder: Path, file: Path) -> Path:
    """The Llama checkpoint in `folder` as a GGUF file in float32, as llama.cpp would write it.

    The tokenizer is byte-level BPE with one merge: nearly every byte a token.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config: Any = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<unk>", "<bos>", "<eos>", *alphabet, alphabet[0] + alphabet[1]]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, n in heads.items():
            if part in key:  # llama.cpp pairs the halves of a rotation next to each other
                rows = value.shape[0]
                value = value.reshape(n, 2, rows // n // 2, -1).transpose(1, 2).reshape(rows, -1)
        name = names.get_name(key, try_suffixes=(".weight",))
        assert name is not None
        writer.add_tensor(name, np.ascontiguousarray(value.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def write(folder: Path, kind: str, **changes: Any) -> Path:
    """A tiny random checkpoint of that kind, with weights large enough to matter."""
    architecture, arguments = ARCHITECTURES[kind]
    own = tokenizer()
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(
        **(arguments | {"vocab_size": len(own), "architectures": [architecture]} | changes),
    )
    config.bos_token_id, config.eos_token_id = own.bos_token_id, own.eos_token_id
    torch.manual_seed(0)
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    own.save_pretrained(folder)
    return folder
