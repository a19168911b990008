import pytest
from process import run


@pytest.fixture
def sparse(checkpoint, tmp_path):
    """A tiny sparse model's folder."""
    from shutil import copytree

    import torch

    from mechheads.models import edge_gates

    copytree(checkpoint("gpt2"), tmp_path / "sparse")
    edge_gates.write(tmp_path / "sparse", torch.zeros(2, 4), {})
    return tmp_path / "sparse"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "{tmp}/out", "--text", "{tmp}/none.txt"], "No such text: "),
        (["--out", "{tmp}/out", "--text", "{tmp}/empty.txt"], "is empty. Give a file with text"),
        (
            ["--out", "{tmp}/out", "--text", "{tmp}/short.txt", "--length", "32"],
            "less than one sequence of 32",
        ),
        (
            ["--out", "{tmp}/out", "--text", "{tmp}/short.txt", "--length", "65"],
            "takes up to 64 tokens, but --length is 65",
        ),
        (["--out", "{tmp}/empty.txt/x"], "cannot write to "),
        (["--out", "{tmp}/out", "--model", "{tmp}/sparse"], "is already sparse. Give the dense"),
        (["--out", "{tmp}/out", "--slack", "-1"], "--slack takes more than 0, got -1"),
        (["--out", "{tmp}/out", "--threads", "0"], "--threads takes 1 or more, got 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_sparsify_says_what_is_wrong_and_writes_nothing(
    flags, message, checkpoint, sparse, tmp_path
):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "short.txt").write_text("Mary gave a book to John.")
    before = sorted(tmp_path.rglob("*"))
    given = [flag.format(tmp=tmp_path) for flag in flags]
    if "--model" not in given:
        given += ["--model", str(checkpoint("gpt2"))]
    out = run("mechheads.sparsify", *given)
    assert (out.returncode, out.stdout, out.stderr.count("\n")) == (2, "", 1)
    assert message in out.stderr
    assert sorted(p for p in tmp_path.rglob("*") if p.name != "out") == before


def test_sparsify_makes_a_model_that_show_can_show(checkpoint, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Mary and John had 3 books. " * 200)
    flags = ["--text", str(text), "--length", "16", "--steps", "3", "--batch", "2"]
    out = run(
        "mechheads.sparsify", "--model", str(checkpoint("gpt2")), "--out", f"{tmp_path}/s", *flags
    )
    assert (out.returncode, out.stderr) == (0, "")
    assert "of the attention edges are left" in out.stdout
    assert (tmp_path / "s" / "training" / "report.html").exists()
    shown = run("mechheads.show", "--task", "math", "--model", f"{tmp_path}/s", "--test", "8")
    assert "attention edges used: " in shown.stdout
    page = tmp_path / "pages" / "attention.html"
    pair = f"{checkpoint('gpt2')},{tmp_path}/s"
    drawn = run("mechheads.attention", "--models", pair, "--task", "math", "--out", str(page))
    assert drawn.stdout.strip() == str(page)
    assert "edges (100.00%)" in page.read_text()
