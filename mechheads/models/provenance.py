"""Where a result comes from: versions, hashes of weights, tokenizer and prompts, the machine."""

import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mechheads.prompts import Prompts, Questions
from mechheads.runs.files import digest

from .locate import Source
from .model import Model, device_of, dtype_of
from .wrap import lens_of

PACKAGES = ("mechheads", "numpy", "pandas", "scipy", "torch", "transformer-lens", "transformers")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt")


def provenance(
    model: Model, source: Source, prompts: Sequence[Prompts | Questions], seed: int
) -> dict[str, Any]:
    """Everything that a result may depend on, except the settings."""
    tokenizer = [source.folder / name for name in TOKENIZER_FILES]
    found = [file for file in tokenizer if file.is_file()]
    return {
        "model": source.name,
        "revision": source.revision,
        "weights_sha256": digest(source.files),
        "tokenizer_sha256": digest(found or source.files),
        "config_sha256": digest([] if source.gguf else sorted(source.folder.glob("config.json"))),
        "prompts_sha256": [part.digest() for part in prompts],
        "seed": seed,
        "backend": lens_of(model).backend,
        "device": device_of(model).type,
        "dtype": str(dtype_of(model)).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "git": git_revision(Path(__file__).parents[2]),
    }


def git_revision(checkout: Path) -> str | None:
    """The git revision of this code if it is a checkout, followed by + if there are changes."""
    if not (checkout / ".git").exists():
        return None
    words = [["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]]
    try:
        revision, changes = (
            subprocess.run(
                ["git", "-C", str(checkout), *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in words
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{revision}+" if changes else revision
