"""Training in a folder: a full disk, and two at once."""

import json
import resource
import subprocess
import sys

import pytest


@pytest.fixture
def sparsify(checkpoint, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Mary and John had 3 books. " * 200)
    flags = f"--model {checkpoint('gpt2')} --text {text} --length 8 --batch 2 --steps 2"
    return ["mechheads.sparsify", *flags.split()]


TRAIN = "mechheads.train_mini --layers 1 --heads 2 --width 16 --steps 1 --last 0 --workers 1"


# Bytes in a file: not even a row of the log, no weights; no shared memory, no weights.
@pytest.mark.parametrize(
    ("command", "most"),
    [("sparsify", 100), ("sparsify", 3000), ("train_mini", 3000), ("train_mini", 200_000)],
)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(command, most, sparsify, tmp_path):
    words = sparsify if command == "sparsify" else TRAIN.split()
    out = tmp_path / "out"
    line = [sys.executable, "-m", *words, "--quiet", "--json", "--out", str(out)]
    stopped = subprocess.run(
        line,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        capture_output=True,
        text=True,
    )
    assert stopped.returncode == 2, stopped.stderr
    assert stopped.stderr.count("\n") == 1
    assert "Traceback" not in stopped.stderr
    assert not (out / "model.safetensors").exists()
    assert not list(out.rglob(".*partial*"))
    again = subprocess.run(line, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert (out / "model.safetensors").is_file()
    assert json.loads(again.stdout)["folder"] == str(out)
