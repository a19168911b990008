"""Loads any model as a HookedTransformer.

1. `locate` finds the model's files;
2. transformers reads the weights, safetensors or GGUF, once, in the chosen dtype;
3. the config is derived from the model's own config, never from its name;
4. TransformerLens's converters rename the weights without copying them;
5. a sparse model's gates become permanent hooks, so that its pattern hooks show gated patterns;
6. the result is compared with the original on a few tokens: the logits must agree.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens import loading_from_pretrained as lens
from transformer_lens.hook_points import HookPoint

from mechheads.errors import MechheadsError

from . import edge_gates, locate
from .cache import ModelCache
from .configs import DERIVED
from .devices import find_device, find_dtype
from .hooks import check_logits
from .huggingface import (
    Original,
    complete_tokenizer,
    first_line,
    fuse_activations,
    quiet_libraries,
    read_original,
    refuse,
)
from .model import Model


def load(
    name: str,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype = "float32",
    process: bool = False,
    n_devices: int = 1,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    cache: ModelCache | None = None,
    quiet: bool = False,
) -> Model:
    """Load a model as a HookedTransformer: "mini", "gpt2", "./my-llama" or "model.gguf".

    Args:
        name: an embedded model ("mini", "mini-sparse"), a fetched one ("smollm2"), a Hugging Face
            directory, a .gguf file or a hub id
        revision: a branch, tag or commit of a hub model
        device: "cpu", "cuda", "cuda:1" or "mps"; None picks the best one available
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights, as TransformerLens's from_pretrained does.
            Off by default, so that the logits equal those of the source model
        n_devices: number of GPUs to spread the layers over
        n_ctx: the longest input in tokens; None means the model's own limit, at most 2048
        prepend_bos: start every prompt with the BOS token; None means TransformerLens's choice for
            the architecture
        cache: keeps the model and returns it when it is loaded again
        quiet: show no progress bar while a hub model is downloaded

    Returns:
        A HookedTransformer in eval mode, with its tokenizer. In float32 and float64 its logits are
        checked against the source model's on a few tokens.

    >>> import mechheads
    >>> mechheads.load("mini").cfg.n_layers
    4
    """
    kind, place = find_dtype(dtype), find_device(device, n_devices)
    key = (name, revision, place, kind, process, n_devices, n_ctx, prepend_bos)
    if cache is not None and (known := cache.get(key)) is not None:
        return known
    source = locate.find(name, revision, quiet=quiet)
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, kind)
        try:
            cfg = _config(source, hf_model.config)
            cfg |= {"n_ctx": _context(cfg["n_ctx"], n_ctx, source), "dtype": kind}
            cfg["n_devices"] = n_devices
            if prepend_bos is not None:
                cfg["default_prepend_bos"] = prepend_bos
            model = _convert(hf_model, cfg)
            give_tokenizer(model, tokenizer)
            config = hf_model.config.to_dict()
            bias = edge_gates.read(source.folder, config, model.cfg.n_layers, model.cfg.n_heads)
            if bias is not None:
                _add_gates(model, bias)
            if kind in (torch.float32, torch.float64):
                _compare(source, hf_model, model, bias)
        except MechheadsError:
            raise
        except Exception as error:
            raise MechheadsError(
                f"{source.name}: TransformerLens cannot convert this "
                f"{type(hf_model).__name__} ({first_line(error)}). Check its config.json."
            ) from error
        del hf_model
        if process:
            # Value biases can be folded only where the rows of the pattern sum to one.
            model.load_and_process_state_dict(model.state_dict(), fold_value_biases=bias is None)
        model.cfg.device = str(place)
        try:
            model.move_model_modules_to_device()
        except torch.OutOfMemoryError as error:
            raise MechheadsError(
                f"{source.name} does not fit on {place} ({first_line(error)}). Use a smaller "
                "dtype, more --n-devices, or the CPU."
            ) from None
        if kind not in (torch.float32, torch.float64):
            with torch.inference_mode():
                check_logits(source.name, model(_few_tokens(model).to(place)))
    if cache is not None:
        cache.put(key, model)
    return model.eval()


def load_original(
    name: str, *, revision: str | None = None, device: str | None = None, quiet: bool = False
) -> Original:
    """The transformers model of any name that `load` takes, in float32, with eager attention."""
    place = find_device(device, 1)
    source = locate.find(name, revision, quiet=quiet)
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, torch.float32)
        hf_model.config.__dict__.pop("quantization_config", None)
        if locate.SPARSE_MARK in hf_model.config.to_dict():
            raise MechheadsError(
                f"{name} is already sparse. Give the dense model it was made from."
            )
        cfg = _config(source, hf_model.config)
        if cfg.get("positional_embedding_type") == "alibi":
            raise MechheadsError(
                f"{name} cannot be made sparse: its attention scores (ALiBi) are known only up to "
                "a shift per query, so gates on them mean nothing. Use another architecture."
            )
        complete_tokenizer(tokenizer)
        hf_model.set_attn_implementation("eager")
        fuse_activations(hf_model)
        return Original(
            name,
            hf_model.to(place),
            tokenizer,
            cfg["default_prepend_bos"],
            cfg["n_layers"],
            cfg["n_heads"],
            _context(cfg["n_ctx"], None, source),
        )


def _config(source: locate.Source, hf_config: Any) -> dict[str, Any]:
    """HookedTransformerConfig arguments, from the Hugging Face config alone."""
    architecture = hf_config.architectures[0]
    refuse(architecture, source)
    if architecture in DERIVED:
        cfg = DERIVED[architecture](hf_config)
    else:
        # TransformerLens reads the config from a directory and guesses from its path, so the
        # path must not look like a model's name.
        with _plain_folder() as folder:
            (folder / "config.json").write_text(json.dumps(_older(hf_config)))
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
        "model_name": source.name,
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


def _convert(hf_model: Any, cfg: dict[str, Any]) -> Model:
    """The HookedTransformer, with the tensors that transformers read, not copies of them."""
    model = HookedTransformer(HookedTransformerConfig.from_dict(cfg), move_to_device=False)
    with _plain_folder() as folder:
        weights = lens.get_pretrained_state_dict(str(folder), model.cfg, hf_model)
    # A tied unembedding gets its own storage, so that editing one does not edit the other.
    if weights["unembed.W_U"].data_ptr() == weights["embed.W_E"].data_ptr():
        weights["unembed.W_U"] = weights["unembed.W_U"].T.clone().T
    weights = {key: value.to(cfg["dtype"]) for key, value in weights.items()}
    model.load_state_dict(lens.fill_missing_keys(model, weights), assign=True, strict=False)
    return model


def _add_gates(model: Model, bias: Float[Tensor, "layer head"]) -> None:
    """Close edges permanently: gates are computed from the scores and multiply the pattern."""
    model.register_buffer("edge_gates", bias, persistent=False)

    def keep_gates(scores: Tensor, hook: HookPoint) -> None:
        hook.ctx["open"] = edge_gates.gate_logits(scores, bias[hook.layer()]) > 0

    def close(pattern: Tensor, hook: HookPoint) -> Tensor:
        attention: Any = model.blocks[hook.layer()].attn
        return pattern * attention.hook_attn_scores.ctx.pop("open")

    for block in model.blocks:
        attention: Any = block.attn
        attention.hook_attn_scores.add_perma_hook(keep_gates)
        attention.hook_pattern.add_perma_hook(close)


def _compare(
    source: locate.Source,
    hf_model: Any,
    model: Model,
    bias: Float[Tensor, "layer head"] | None,
) -> None:
    """Compare both models on 16 tokens; raise if the conversion changes the logits."""
    tokens = _few_tokens(model)
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        ours = model(tokens)[0].double()
        if bias is not None:
            hf_model.set_attn_implementation("eager")
            stack.enter_context(edge_gates.Gated(bias))
        theirs = hf_model(tokens, use_cache=False).logits[0].double()
    check_logits(source.name, theirs)
    error = (theirs - ours).abs().max().item()
    scale = theirs.std().item()
    if not error <= 1e-3 * max(1.0, scale):
        raise MechheadsError(
            f"{source.name}: TransformerLens's conversion changes the logits by up to {error:.3g} "
            f"(their spread is {scale:.3g}); its config has an option that TransformerLens does "
            "not support. The model cannot be used."
        )


def _few_tokens(model: Model) -> Int[Tensor, "1 pos"]:
    count = min(16, model.cfg.n_ctx)
    return torch.arange(0, count * 7, 7)[None] % model.cfg.d_vocab


def give_tokenizer(model: Model, tokenizer: Any) -> None:
    """Like HookedTransformer.set_tokenizer, which would load the tokenizer again by name."""
    model.tokenizer = tokenizer
    model.cfg.tokenizer_prepends_bos = len(tokenizer.encode("")) > 0
    tokenizer.padding_side = "right"
    complete_tokenizer(tokenizer)


def _context(own: int, wanted: int | None, source: locate.Source) -> int:
    if wanted is None:
        return min(own, 2048)
    if not 1 <= wanted <= own:
        raise MechheadsError(f"--n-ctx takes 1 to {own} tokens for {source.name}, got {wanted}.")
    return wanted


@contextlib.contextmanager
def _plain_folder() -> Iterator[Path]:
    """A temporary folder whose path has no word that TransformerLens takes for a model name."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path.home(), Path.cwd()]
    plain = [p for p in parents if not any(w in str(p).lower() for w in ("llama", "gemma"))]
    if not plain:
        raise MechheadsError("Set TMPDIR to a folder without 'llama' or 'gemma' in its path.")
    with tempfile.TemporaryDirectory(prefix="mechheads-", dir=plain[0]) as folder:
        yield Path(folder)
