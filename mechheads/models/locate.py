"""Locates a model's files: maps a name to a folder or a GGUF file on this machine.

1. an embedded model, shipped inside this package (`EMBEDDED/<name>/`), or a known one, whose
   weights are written by the code in `KNOWN`;
2. a model that `python -m mechheads.fetch` has stored in the user's cache (`FETCHABLE`);
3. a path: a Hugging Face directory, or a GGUF file;
4. a hub id: its snapshot in the hub's cache, downloaded unless offline.

Only safetensors (or GGUF) weights are opened, never pickles. Nothing here needs torch.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError, shown, suggest, unknown
from mechheads.options import read_path
from mechheads.progress import Bar, QuietBar

from .fetchable import FETCHABLE, cache_folder
from .known.designs import DESIGNS

# The largest sizes that a config may name.
LARGEST = (
    (("n_layer", "n_layers", "num_layers", "num_hidden_layers"), 1_000),
    (("n_head", "num_heads", "num_attention_heads", "num_key_value_heads"), 10_000),
    (("n_embd", "d_model", "hidden_size", "n_inner", "intermediate_size", "ffn_dim"), 1_000_000),
    (("num_labels", "_num_labels"), 100_000),
    (("vocab_size", "n_positions", "n_ctx", "max_position_embeddings"), 100_000_000),
)
HUB_ID = r"\w[\w.-]*(/[\w.-]+)?"
EMBEDDED = Path(__file__).parents[1] / "embedded"
KNOWN = Path(__file__).parent / "known"
SPARSE_MARK = "edge_gates"  # the field of config.json that says a model is sparse

# Names worth suggesting to someone who mistypes one.
WELL_KNOWN = (
    "gpt2",
    "gpt2-medium",
    "distilgpt2",
    "EleutherAI/pythia-160m",
    "allenai/OLMo-1B-hf",
    "allenai/OLMo-7B-hf",
    "meta-llama/Llama-3.2-1B",
    "meta-llama/Llama-3.1-8B",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen2.5-Math-1.5B",
)


@dataclass(frozen=True)
class Source:
    """A model on disk. `gguf` is the name of the file inside `folder` if it is a GGUF file.

    A `known` model has no weights there, but the code that writes them.
    """

    name: str
    folder: Path
    gguf: str | None = None
    revision: str | None = None
    known: bool = False

    @property
    def short(self) -> str:
        """The name in titles and sentences: the last part of a path or hub id, without .gguf."""
        if self.gguf:
            return Path(self.gguf).stem
        if self.known:
            return DESIGNS[self.name].short
        place = Path(self.name) if self.revision else self.folder
        return place.name if place.name not in ("", "..") else place.resolve().name or self.name

    @property
    def files(self) -> list[Path]:
        """The files that hold the weights, in a fixed order."""
        if self.gguf:
            return [self.folder / self.gguf]
        if self.known:
            return sorted(self.folder.glob("*.py"))
        return sorted(self.folder.glob("*.safetensors"))

    @property
    def every_file(self) -> list[Path]:
        """The weights and all other files that results depend on: config, tokenizer, gates."""
        if self.gguf or self.known:
            return self.files
        others = (self.folder.glob(pattern) for pattern in ("*.json", "*.model", "*.txt"))
        return [*self.files, *sorted(file for files in others for file in files)]


def embedded() -> list[str]:
    """The names of the models inside this installation."""
    return sorted(p.parent.name for p in EMBEDDED.glob("*/config.json"))


def shipped() -> list[str]:
    """The names of the models that come with this installation."""
    return [*embedded(), *DESIGNS]


def is_path(name: str) -> bool:
    """Whether a model's name is that of a directory or file, rather than of a hub model."""
    if name in DESIGNS:
        return False
    path = read_path(name, "the model")
    return path.exists() or path.suffix == ".gguf" or not re.fullmatch(HUB_ID, name)


def find(name: str, revision: str | None = None, *, quiet: bool = False) -> Source:
    """Find a model's files by name; errors say what was looked for and what to do."""
    if not isinstance(name, str):
        raise MechheadsError(
            f"Expected a model's name, got {type(name).__name__}. A model that is already in "
            "memory needs no loading."
        )
    if not name:
        raise MechheadsError(f"The model name is empty. Choose from: {', '.join(_names())}.")
    if len(name) > 1000:
        raise MechheadsError(f"{name[:40]!r}... is too long for a model name.")
    path = read_path(name, "the model")
    if name in embedded():
        source = Source(name, EMBEDDED / name)
    elif name in DESIGNS:
        source = Source(name, KNOWN, known=True)
    elif name in FETCHABLE:
        source = Source(name, cache_folder(name))
        if not (source.folder / "config.json").exists():
            raise MechheadsError(
                f"{name} is not fetched yet. Run: python -m mechheads.fetch {name}"
            )
    elif path.is_dir():
        source = Source(name, path)
    elif name.startswith("known/"):
        raise unknown("known model", name, DESIGNS)
    elif path.is_file():
        if path.suffix != ".gguf":
            raise MechheadsError(
                f"{name} is not a .gguf file. Give a model directory or a .gguf file."
            )
        return Source(name, path.parent, gguf=path.name)
    elif path.suffix == ".gguf" or name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise MechheadsError(f"No such model directory or file: {name}. Check the path.")
    elif not re.fullmatch(HUB_ID, name):
        raise MechheadsError(f"{name!r} is neither a path nor a hub id.{suggest(name, _names())}")
    else:
        return _from_hub(name, revision, quiet)
    if revision is not None:
        raise MechheadsError(f"{name} is a local model and has no revisions. Drop --revision.")
    return source


def check_distinct(flag: str, sources: Iterable[Source]) -> None:
    """Raise if two models have the same short name: their results could not be told apart."""
    known: dict[str, Source] = {}
    for source in sources:
        if (other := known.setdefault(source.short, source)) is not source:
            raise MechheadsError(
                f"{flag}: {other.name} and {source.name} are both called {source.short} in the "
                "results. Rename one, or use a symlink with another name."
            )


def check_sizes(config: dict[str, Any], file: str | Path) -> None:
    """Refuse sizes that no model has, before anything of that size is built."""
    for name, value in config.items():
        most = next((limit for words, limit in LARGEST if name in words), None)
        if most is not None and isinstance(value, int | float) and value > most:
            raise MechheadsError(
                f"{file} says {name} {value:,}; at most {most:,} is supported. Check the file."
            )
        if name == "max_position_embeddings" and value == 0:
            raise MechheadsError(f"{file} says {name} 0, room for no token. Check the file.")


def check(source: Source) -> dict[str, Any]:
    """Check a source's files and return its config.json; errors name the faulty file."""
    folder, name = source.folder, source.name
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MechheadsError(
            f"{name} has no config.json. Give a Hugging Face model directory."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise MechheadsError(
            f"{folder / 'config.json'} cannot be read ({error}). Copy it again."
        ) from None
    if isinstance(config, dict):
        check_sizes(config, folder / "config.json")
        _check_own(config, folder)
    named = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise MechheadsError(
            f"{folder / 'config.json'} names no architecture. Add e.g. "
            '"architectures": ["LlamaForCausalLM"].'
        )
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            if not all(isinstance(shard, str) and Path(shard).name == shard for shard in shards):
                raise ValueError("a shard is not a file name")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise MechheadsError(f"{index} is damaged. Copy or download it again.") from None
        if missing := sorted(s for s in shards if not (folder / s).exists()):
            raise MechheadsError(
                f"{name} lacks {missing[0]}, which its index lists. Copy it there."
            )
    if not source.files:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        why = f"only {pickled[0].name}, a pickle, which we never open" if pickled else "no weights"
        raise MechheadsError(
            f"{name} has {why}. Save it as safetensors: model.save_pretrained(folder)."
        )
    for file in source.files:
        _check_safetensors(file)
    return config


def _check_own(config: dict[str, Any], folder: Path) -> None:
    """Refuse what would make transformers load more than the folder's own files."""
    if (folder / "adapter_config.json").exists():
        raise MechheadsError(
            f"{folder} has an adapter (adapter_config.json) for a model that may be elsewhere. "
            "Merge it (merge_and_unload in peft), and save the whole model."
        )
    for name, value in config.items():
        if "_implementation" in name and "/" in str(value):
            raise MechheadsError(
                f"{folder / 'config.json'} names a program of a hub, which we never run: {name} "
                f"{shown(value)}. Remove it."
            )


def is_sparse(source: Source) -> bool:
    """Whether the source's config.json says that it is a sparse model."""
    return not source.gguf and not source.known and SPARSE_MARK in check(source)


def _check_safetensors(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as tensors:
            tensors.keys()
    except (SafetensorError, OSError) as error:
        raise MechheadsError(
            f"{file} is damaged or truncated ({error}). Copy or download it again."
        ) from None


def _names() -> list[str]:
    return [*shipped(), *FETCHABLE, *WELL_KNOWN]


def _from_hub(name: str, revision: str | None, quiet: bool) -> Source:
    from huggingface_hub import constants, errors, snapshot_download

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"],
            ignore_patterns=["*/*"],
            tqdm_class=QuietBar if quiet else Bar,
        )
    except errors.GatedRepoError:
        raise MechheadsError(
            f"{name} is gated on the hub. Accept its licence there and set HF_TOKEN."
        ) from None
    except errors.RevisionNotFoundError:
        raise MechheadsError(f"{name} has no revision {revision!r} on the hub.") from None
    except errors.RepositoryNotFoundError:
        raise MechheadsError(
            f"No model {name!r}: not embedded, not a path, not on the hub.{suggest(name, _names())}"
        ) from None
    except errors.IncompleteSnapshotError as error:
        folder = error.snapshot_path  # `check` reports missing files that matter
    except Exception as error:  # no network, a timeout, a proxy: the hub client raises many
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _reason(error)
        raise MechheadsError(
            f"No model {name!r}: not embedded, not a path, not in the hub's cache, and the hub "
            f"cannot be reached ({why}).{suggest(name, _names())} Available: {_offline_names()}."
        ) from None
    return Source(name, Path(folder), revision=Path(folder).name)


def _offline_names() -> str:
    fetched = [n for n in FETCHABLE if (cache_folder(n) / "config.json").exists()]
    others = [f"{n} (after python -m mechheads.fetch {n})" for n in FETCHABLE if n not in fetched]
    return ", ".join([*embedded(), *fetched, *others])


def _reason(error: Exception) -> str:
    """Why the hub did not answer, in a few words."""
    if isinstance(error, LookupError | TypeError | AttributeError):
        raise error  # our own bug, not the network's
    return "no network" if isinstance(error, FileNotFoundError) else type(error).__name__
