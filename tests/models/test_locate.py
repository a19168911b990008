import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hub
import pytest

from mechheads import MechheadsError
from mechheads.models import locate
from mechheads.models.load import load
from mechheads.models.model import encoder_of, model_name
from mechheads.models.provenance import provenance


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


@pytest.mark.parametrize(
    ("source", "short"),
    [
        (locate.find("mini"), "mini"),
        (locate.Source("gpt2", Path("/cache/1a2b"), revision="1a2b"), "gpt2"),
        (locate.Source("lab/pythia-70m", Path("/cache/1a2b"), revision="1a2b"), "pythia-70m"),
        (locate.Source("../models/llama-1.5/", Path("../models/llama-1.5/")), "llama-1.5"),
        (locate.Source("a/tiny.Q4_1.gguf", Path("a"), gguf="tiny.Q4_1.gguf"), "tiny.Q4_1"),
        (locate.Source(".", Path()), Path.cwd().name),
        (locate.Source("..", Path("..")), Path.cwd().parent.name),
        (locate.Source("/", Path("/")), "/"),
    ],
)
def test_a_short_name_is_the_last_part_of_a_path_or_hub_id(source, short):
    assert source.short == short


def test_results_have_the_short_name_and_provenance_what_was_typed(checkpoint):
    typed = str(checkpoint("gpt2"))
    model = load(typed)
    assert model_name(model) == encoder_of(model).name == "gpt2"
    assert provenance(model, locate.find(typed), [], 0)["model"] == typed


def test_models_with_the_same_short_name_are_refused_together():
    one, two = (locate.Source(f"{lab}/llama", Path("x"), revision="1") for lab in ("a", "b"))
    message = "--models: a/llama and b/llama are both called llama in the results. Rename one"
    with pytest.raises(MechheadsError, match=message):
        locate.check_distinct("--models", [one, two])


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
from mechheads.models.load import load
print(locate.find("some-lab/tiny-llama").revision)
print(locate.find("some-lab/tiny-llama", revision="main").revision)
print(load("some-lab/tiny-llama").cfg.model_name)
"""
    out = run_offline(program, tmp_path)
    assert out.stderr == ""
    assert out.stdout.split() == [commit, commit, "tiny-llama"]


def test_a_hub_model_that_is_not_in_the_cache_says_that_the_hub_is_off(tmp_path):
    program = "from mechheads.models import locate\nlocate.find('gpt2-meduim')"
    out = run_offline(program, tmp_path)
    assert "HF_HUB_OFFLINE is set). Did you mean 'gpt2-medium'" in out.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 1_000_000}, "says n_layer 1,000,000; at most"),
        ({"n_embd": 10**9}, "says n_embd 1,000,000,000; at most"),
        ({"vocab_size": 1e300}, "says vocab_size"),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_it_is_built(
    changes, message, checkpoint, tmp_path
):
    shutil.copytree(checkpoint("gpt2"), tmp_path / "big")
    file = tmp_path / "big" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(MechheadsError, match=message):
        load(str(tmp_path / "big"))
