"""Finished effects in a CSV file: read in any order of columns, refused with the line's number."""

import pytest

from mechheads.errors import MechheadsError
from mechheads.scoring import effects_table
from mechheads.scoring.effects_table import parse_effects, read_effects

BY_NUMBER = "layer,head,effect\n0,0,1.5\n0,1,-2\n1,0,0\n1,1,1e-3\n"
WANTED = [[1.5, -2.0], [0.0, 0.001]]


@pytest.mark.parametrize(
    "text",
    [
        BY_NUMBER,
        "effect,other,head,layer\n-2,x,1,0\n1.5,y,0,0\n0,,0,1\n0.001,,1,1\n",
        "head,effect\nL0H0,1.5\nl0h1,-2\n L1H0 ,0\nL1H1,0.001\n",
        "\ufeff" + BY_NUMBER.replace("\n", "\r\n"),
        "\n" + BY_NUMBER.replace("0,1,-2\n", "\n0,1, -2 \n,,\n"),
        'Layer, Head ,EFFECT,"a\nnote"\n0,0,1.5,"one\ntwo"\n0,1,-2,\n1,0,0,\n1,1,1e-3,\n',
    ],
)
def test_columns_may_be_in_any_order_and_others_are_ignored(text, tmp_path):
    file = tmp_path / "own.csv"
    file.write_bytes(text.encode())
    assert read_effects(file).rows(2, 2, "m") == WANTED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"own\.csv, line 1: no column 'head'"),
        ("layer,head\n0,0\n", r"own\.csv, line 1: no column 'effect'"),
        ("layer,effect\n0,1\n", "line 1: no column 'head'"),
        ("head,effect,effect\nL0H0,1,2\n", "line 1: more than one column 'effect'"),
        ("layer;head;effect\n0;0;1\n", "line 1: no column 'head'"),
        ("layer,head,effect\n", r"own\.csv has no heads"),
        (BY_NUMBER + "0,1,3\n", r"own\.csv, line 6: L0H1 is also in line 3"),
        (BY_NUMBER.replace("-2", "nan"), r"own\.csv, line 3: effect is 'nan', expected a finite"),
        (BY_NUMBER.replace("-2", "inf"), "line 3: effect is 'inf'"),
        (BY_NUMBER.replace("-2", "1e39"), "line 3: effect is '1e39'"),
        (BY_NUMBER.replace("-2", "1_0"), "line 3: effect is '1_0'"),
        (BY_NUMBER.replace("-2", ""), "line 3: effect is ''"),
        (BY_NUMBER.replace("0,1,-2", "0.0,1,-2"), "line 3: layer is '0.0', expected a whole"),
        (BY_NUMBER.replace("0,1,-2", "0,-1,-2"), "line 3: head is '-1'"),
        (BY_NUMBER.replace("0,1,-2", f"0,{'9' * 5000},1"), r"line 3: head is '9{37}\.\.\.'"),
        (BY_NUMBER.replace("0,1,-2", "0,1"), "line 3: 2 cells, but the header has 3 columns"),
        ("head,effect\n9.6,1\n", "line 2: '9.6' is not a head. Heads are written L9H6"),
        ('head,effect\nL0H0,"1\n', r"own\.csv, line 2: not CSV"),
        (f"head,effect\n{'x' * 200_000},1\n", "line 2: not CSV"),
        ("head,effect\nL0H0,1\nL0H1,\udcff\n", r"own\.csv, line 3: not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(text, words, tmp_path):
    file = tmp_path / "own.csv"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MechheadsError, match=words) as caught:
        read_effects(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_every_head_of_the_model_must_be_there_once():
    table = parse_effects(BY_NUMBER, "own.csv")
    with pytest.raises(
        MechheadsError, match=r"own\.csv, line 4: m has no L1H0, only layers 0 to 0"
    ):
        table.rows(1, 2, "m")
    with pytest.raises(MechheadsError, match=r"own\.csv lacks L0H2 and L1H2 of m's 6 heads"):
        table.rows(2, 3, "m")
    with pytest.raises(MechheadsError, match=r"lacks L0H2, L0H3, L0H4, L0H5 and 1016 more of"):
        table.rows(32, 32, "m")


def test_what_is_no_file_or_too_large_is_named(tmp_path, monkeypatch):
    for path, words in (
        (tmp_path / "none.csv", r"cannot read .*none\.csv \(No such file"),
        (tmp_path, "is not a file"),
        ("/dev/zero", "is not a file"),
        ("a\0b", "is not a usable path"),
    ):
        with pytest.raises(MechheadsError, match=words):
            read_effects(path)
    monkeypatch.setattr(effects_table, "LARGEST", 20)
    (tmp_path / "large.csv").write_text(BY_NUMBER)
    with pytest.raises(MechheadsError, match="has more than 20 bytes"):
        read_effects(tmp_path / "large.csv")
