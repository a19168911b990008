"""Converts transformers models to HookedTransformers; only TransformerLens 3 has these.

The config is derived from the model's own config, never from its name, and TransformerLens's
converters rename the weights without copying them.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens import loading_from_pretrained as lens

from mechheads.errors import MechheadsError
from mechheads.models import locate
from mechheads.models.configs import DERIVED
from mechheads.models.huggingface import refuse
from mechheads.runs.files import write_text


def hooked_config(source: locate.Source, hf_config: Any) -> dict[str, Any]:
    """HookedTransformerConfig arguments, from the Hugging Face config alone."""
    architecture = hf_config.architectures[0]
    refuse(architecture, source)
    if architecture in DERIVED:
        cfg = DERIVED[architecture](hf_config)
    else:
        # TransformerLens reads the config from a directory and guesses from its path, so the
        # path must not look like a model's name.
        with _plain_folder() as folder:
            write_text(folder / "config.json", json.dumps(_older(hf_config)))
            cfg = lens.convert_hf_model_config(str(folder))
    # Where TransformerLens assumes the usual ratio, the config may say otherwise.
    if (head := getattr(hf_config, "head_dim", None)) and cfg["d_head"] != head:
        cfg |= {"d_head": head, "rotary_dim": head}
    if inner := getattr(hf_config, "n_inner", None):
        cfg["d_mlp"] = inner
    for key in ("tokenizer_name", "quantization_method"):
        cfg.pop(key, None)
    cfg.setdefault("default_prepend_bos", True)
    return cfg | {
        "model_name": source.short,
        "original_architecture": architecture,
        "init_weights": False,
        "device": "cpu",
        "tokenizer_prepends_bos": None,
    }


def _older(hf_config: Any) -> dict[str, Any]:
    """The config with fields where older releases had them, as TransformerLens expects."""
    fields = json.loads(hf_config.to_json_string(use_diff=False))
    if "n_positions" in fields:
        fields["n_ctx"] = fields["n_positions"]
    return fields


def convert(hf_model: Any, cfg: dict[str, Any]) -> HookedTransformer:
    """The HookedTransformer, with the tensors that transformers read, not copies of them."""
    model = HookedTransformer(HookedTransformerConfig.from_dict(cfg), move_to_device=False)
    with _plain_folder() as folder:
        weights = lens.get_pretrained_state_dict(str(folder), model.cfg, hf_model)
    # A tied unembedding gets its own storage, so that editing one does not edit the other.
    if weights["unembed.W_U"].data_ptr() == weights["embed.W_E"].data_ptr():
        weights["unembed.W_U"] = weights["unembed.W_U"].T.clone().T
    weights = {key: value.to(cfg["dtype"]) for key, value in weights.items()}
    model.load_state_dict(lens.fill_missing_keys(model, weights), assign=True, strict=False)
    take_positions(model, hf_model)
    return model


@torch.no_grad()
def take_positions(model: HookedTransformer, hf_model: Any) -> None:
    """Rotate queries and keys by the model's own cos and sin.

    TransformerLens computes the tables again and rounds the angles differently: 1e-5 in queries,
    which a model whose heads are scaled at random multiplies to 1e-3 in gradients. Models with
    several tables (Gemma 3) keep TransformerLens's.
    """
    found = [m for m in hf_model.modules() if type(m).__name__.endswith("RotaryEmbedding")]
    attentions: list[Any] = [block.attn for block in model.blocks]
    if len(found) != 1 or not hasattr(attentions[0], "rotary_cos"):
        return
    rows = torch.arange(len(attentions[0].rotary_cos))[None]
    try:
        tables = [table[0] for table in found[0](torch.empty(0, dtype=model.cfg.dtype), rows)]
    except Exception:  # takes the kind of layer too, or another class than it seems
        return
    for attention in attentions:
        old = (attention.rotary_cos, attention.rotary_sin)
        if all(_alike(a, b) for a, b in zip(old, tables, strict=True)):
            attention.rotary_cos, attention.rotary_sin = tables


def _alike(one: Any, other: Any) -> bool:
    """Whether two tables are the same but for rounding of angles, which grows with the position."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-2)


@contextlib.contextmanager
def _plain_folder() -> Iterator[Path]:
    """A temporary folder whose path has no word that TransformerLens takes for a model name."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path.home(), Path.cwd()]
    plain = [p for p in parents if not any(w in str(p).lower() for w in ("llama", "gemma"))]
    if not plain:
        raise MechheadsError("Set TMPDIR to a folder without 'llama' or 'gemma' in its path.")
    with tempfile.TemporaryDirectory(prefix="mechheads-", dir=plain[0]) as folder:
        yield Path(folder)
