import json

from process import run

from mechheads.attention import attention


def test_attention_wants_an_html_file():
    out = run("mechheads.attention", "--out", "picture.png")
    assert "--out takes a file that ends in .html, got picture.png" in out.stderr


def test_attention_returns_the_patterns_and_prints_json(tmp_path, capsys):
    page = tmp_path / "page.html"
    found, folder = attention(models="mini", out=str(page), quiet=True, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert folder == tmp_path
    assert printed["headline"]["page"] == str(page)
    assert printed["headline"]["parts"]["mini"]["edges"] == found[0].edges
