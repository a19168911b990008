import os
import shutil
import subprocess
import sys

import hub
import pytest

from mechheads import MechheadsError
from mechheads.models import locate


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "name is empty"),
        ("./nowhere", "No such model directory or file: ./nowhere"),
        ("/nowhere/model.gguf", "No such model directory or file"),
        ("a b", "neither a path nor a hub id"),
        ("gtp2?", r"neither a path nor a hub id\. Did you mean 'gpt2'"),
    ],
)
def test_a_name_that_is_nothing_is_refused(name, message):
    with pytest.raises(MechheadsError, match=message):
        locate.find(name)


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    (tmp_path / "model.bin").touch()
    with pytest.raises(MechheadsError, match=r"is not a \.gguf file\. Give a model directory"):
        locate.find(str(tmp_path / "model.bin"))


def test_smollm2_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MechheadsError, match=r"Run: python -m mechheads\.fetch smollm2"):
        locate.find("smollm2")


def run(program, home, **env):
    env = {**os.environ, "HF_HOME": str(home), **env}
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )


def run_offline(program, home):
    return run(program, home, HF_HUB_OFFLINE="1")


def test_a_hub_model_is_downloaded_once_and_silently(checkpoint, tmp_path):
    program = "from mechheads import load\nprint(load('lab/tiny').cfg.n_key_value_heads)"
    with hub.serve(checkpoint("llama-gqa")) as address:
        out = run(program, tmp_path, HF_ENDPOINT=address)
    assert (out.stdout, out.stderr) == ("2\n", "")
    program = "from mechheads.models import locate\nprint(locate.find('lab/tiny'))"
    again = run_offline(program, tmp_path)
    assert hub.COMMIT in again.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "'lab/gated'",
            "lab/gated is gated on the hub. Accept its licence there and set HF_TOKEN.",
        ),
        ("'lab/none'", "No model 'lab/none': not embedded, not a path, not on the hub."),
        ("'lab/tiny', revision='v9'", "lab/tiny has no revision 'v9' on the hub."),
    ],
)
def test_what_the_hub_refuses_is_told(call, message, checkpoint, tmp_path):
    with hub.serve(checkpoint("llama-gqa")) as address:
        program = f"from mechheads.models import locate\nlocate.find({call})"
        out = run(program, tmp_path, HF_ENDPOINT=address)
    assert out.stderr.splitlines()[-1] == f"mechheads.errors.MechheadsError: {message}"


def test_a_hub_model_in_the_cache_loads_offline_with_its_revision(checkpoint, tmp_path):
    commit = hub.COMMIT
    repository = tmp_path / "hub" / "models--some-lab--tiny-llama"
    shutil.copytree(checkpoint("llama-gqa"), repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    program = """
from mechheads import load
from mechheads.models import locate
print(locate.find("some-lab/tiny-llama").revision)
print(locate.find("some-lab/tiny-llama", revision="main").revision)
print(load("some-lab/tiny-llama").cfg.model_name)
"""
    out = run_offline(program, tmp_path)
    assert out.stderr == ""
    assert out.stdout.split() == [commit, commit, "some-lab/tiny-llama"]


def test_a_hub_model_that_is_not_in_the_cache_says_that_the_hub_is_off(tmp_path):
    program = "from mechheads.models import locate\nlocate.find('gpt2-meduim')"
    out = run_offline(program, tmp_path)
    assert "HF_HUB_OFFLINE is set). Did you mean 'gpt2-medium'" in out.stderr.splitlines()[-1]
