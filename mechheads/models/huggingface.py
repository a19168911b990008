"""Reads and writes models with transformers: weights, tokenizer and directory.

Every weight is accounted for, and errors say in one line what is wrong with a model's files.
"""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from mechheads.errors import MechheadsError, suggest

from . import locate
from .configs import DERIVED
from .known.build import build
from .known.designs import DESIGNS

# Architectures whose conversion the tests compare with transformers, logit by logit.
SUPPORTED = (
    "GPT2LMHeadModel",
    "GPTNeoForCausalLM",
    "GPTNeoXForCausalLM",
    "GPTJForCausalLM",
    "OPTForCausalLM",
    "BloomForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "Olmo3ForCausalLM",
    "OlmoeForCausalLM",
    *DERIVED,
)


# Only files of this machine, never the code of a model, and no question whether to run it.
OURS = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class Original:
    """A model as transformers runs it, to be trained and saved as a directory."""

    name: str
    hf_model: Any
    tokenizer: Any
    prepend_bos: bool
    n_layers: int
    n_heads: int
    n_ctx: int


def save_original(hf_model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a transformers model and its tokenizer as a directory that `load` takes."""
    with quiet_libraries():
        hf_model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def save_gguf_as_directory(file: Path, folder: Path, dtype: str) -> None:
    """Write a GGUF file's config, tokenizer and weights (safetensors of that dtype) to a folder.

    transformers converts tensor by tensor, so memory holds the weights once, in that dtype.
    """
    source = locate.Source(file.name, file.parent, gguf=file.name)
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, getattr(torch, dtype))
        hf_model.config.__dict__.pop("quantization_config", None)
        hf_model.config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        save_model(hf_model, str(folder / "model.safetensors"), metadata={"format": "pt"})


def read_original(
    source: locate.Source, dtype: torch.dtype, placement: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """The transformers model and tokenizer, with every weight accounted for.

    `placement` are more arguments of from_pretrained: device_map and quantization_config.
    """
    if source.known:
        built, tokenizer = build(DESIGNS[source.name])
        return built.to(dtype).eval().requires_grad_(False), tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    extra = {"gguf_file": source.gguf} if source.gguf else {}
    folder = str(source.folder)
    if not source.gguf:
        refuse(locate.check(source)["architectures"][0], source)
    try:
        config = AutoConfig.from_pretrained(folder, **OURS, **extra)
    except Exception as error:
        if source.gguf:
            raise _damaged(source, error) from None
        raise MechheadsError(
            f"{source.folder / 'config.json'} cannot be used ({first_line(error)}). Copy it again."
        ) from None
    _check_size(config, source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **OURS, **extra)
    except Exception as error:
        if source.gguf:
            raise _damaged(source, error) from None
        raise MechheadsError(
            f"{source.name} has no tokenizer that transformers can read ({first_line(error)}). "
            "Put its tokenizer.json and tokenizer_config.json into the directory."
        ) from None
    if len(tokenizer) < 2:
        raise MechheadsError(
            f"{source.name} has no tokenizer: its vocabulary has {len(tokenizer)} tokens. Put its "
            "tokenizer.json and tokenizer_config.json into the directory."
        )
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            **OURS,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **(placement or {}),
            **extra,
        )
    except Exception as error:
        raise _damaged(source, error) from None
    hf_model, report = loaded
    for key, found, wanted in sorted(report["mismatched_keys"]):
        raise MechheadsError(
            f"{source.name}: the weight {key} has shape {list(found)}, but its config expects "
            f"{list(wanted)}. Config and weights must belong to the same model."
        )
    for key in sorted(report["missing_keys"]):
        raise MechheadsError(
            f"{source.name}: the weight {key} is missing ({len(report['missing_keys'])} in total). "
            "Copy all of the model's files."
        )
    for key in sorted(report["unexpected_keys"]):
        if re.search(r"\.\d+\..*weight$", key):
            raise MechheadsError(
                f"{source.name}: its config does not expect the weight {key} "
                f"({len(report['unexpected_keys'])} in total). Config and weights must belong to "
                "the same model."
            )
    # The config of a GGUF file names no architecture.
    hf_model.config.architectures = [type(hf_model).__name__]
    return hf_model.eval().requires_grad_(False), tokenizer


def _check_size(config: Any, source: locate.Source) -> None:
    """Refuse a config that describes far more than the files hold, before memory is taken for it.

    Weights have a bit or more each.
    """
    from transformers import AutoModelForCausalLM

    locate.check_sizes(config.to_dict(), source.name)
    try:
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise _damaged(source, error) from None
    described = sum(p.numel() for p in empty.parameters())
    described = max([described, *(buffer.numel() for buffer in empty.buffers())])
    held = sum(file.stat().st_size for file in source.files)
    if described > 8 * held:
        raise MechheadsError(
            f"The config of {source.name} describes {described:,} weights, but its files have only "
            f"{held:,} bytes. Config and weights must belong to the same model."
        )


def fuse_activations(hf_model: Any) -> None:
    """Compute GPT-2's GELU in one step instead of transformers' eight; the function is the same."""
    for module in list(hf_model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "NewGELUActivation":
                setattr(module, name, torch.nn.GELU(approximate="tanh"))


def refuse(architecture: str, source: locate.Source) -> None:
    """Raise if TransformerLens cannot convert models of this architecture."""
    if architecture not in SUPPORTED:
        raise MechheadsError(
            f"{source.name} is a {architecture}, which TransformerLens cannot convert."
            f"{suggest(architecture, SUPPORTED)} It can convert: {', '.join(SUPPORTED)}."
        )


def complete_tokenizer(tokenizer: Any) -> None:
    """Add the special tokens that the tokenizer lacks."""
    if tokenizer.eos_token is None:
        tokenizer.eos_token = "<|endoftext|>"
    for kind in ("pad_token", "bos_token"):
        if getattr(tokenizer, kind) is None:
            setattr(tokenizer, kind, tokenizer.eos_token)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """While active, keeps the libraries' warnings and progress bars off stderr."""
    from transformers.utils import logging as hf_logging

    bars, level = hf_logging.is_progress_bar_enabled(), hf_logging.get_verbosity()
    root = logging.getLogger()
    root_level = root.level
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        hf_logging.disable_progress_bar()
        hf_logging.set_verbosity(logging.CRITICAL)
        root.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            root.setLevel(root_level)
            hf_logging.set_verbosity(level)
            if bars:
                hf_logging.enable_progress_bar()


def _damaged(source: locate.Source, error: Exception) -> MechheadsError:
    what = f"{source.name} cannot be read: {first_line(error)}."
    return MechheadsError(f"{what} Check the file, or copy or download it again.")


def first_line(error: BaseException) -> str:
    """The first line of an error, for use inside a one-line message."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return (text or type(error).__name__).rstrip(".")[:200]
