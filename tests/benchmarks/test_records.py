"""Records of benchmarks: rows replace those of the same kind, and can be drawn."""

from pathlib import Path
from typing import Any

import pytest

import mechheads.benchmarks
from mechheads.benchmarks import records
from mechheads.benchmarks.figures import chosen, draw_peers, draw_sizes, main
from mechheads.benchmarks.records import read, record

KEPT = Path(mechheads.benchmarks.__file__).parent / "results"


def side(peer, seconds, **others):
    base = {"shape": "mini", "threads": 1, "measurement": "patch", "peer": peer}
    base |= {"how": "whole", "version": "1", "ratio": seconds, "memory": 9.0, "difference": 0.0}
    return {**base, "seconds": seconds, **others}


def test_a_row_replaces_one_of_the_same_kind_and_leaves_all_others(tmp_path, monkeypatch):
    record(tmp_path, "peers.csv", [side("mechheads", 1.0), side("nnsight", 3.0)])
    record(tmp_path, "peers.csv", [side("nnsight", 2.0), side("nnsight", 9.0, threads=2)])
    monkeypatch.setattr(records, "origin", lambda: {"release": "9", "machine": "other"})
    file = record(tmp_path, "peers.csv", [side("nnsight", 5.0)])
    found = [(row["release"] == "9", row["threads"], row["seconds"]) for row in read(file)]
    assert found == [(0, "1", "1"), (0, "1", "2"), (0, "2", "9"), (1, "1", "5")]


def test_records_name_the_kind_of_machine_but_not_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.node", lambda: pytest.fail("asks for the name"))
    (row,) = read(record(tmp_path, "peers.csv", [side("mechheads", 1.0)]))
    assert row["machine"]
    assert row["release"] == mechheads.__version__


def test_the_figure_of_peers_has_the_recorded_seconds(tmp_path):
    rows = read(record(tmp_path, "peers.csv", [side("mechheads", 0.5), side("a<b>", 2.0)]))
    figure: Any = draw_peers(rows)
    (bars,) = figure.data
    assert list(bars.x) == [0.5, 2.0]
    assert list(bars.y) == ["mechheads 1", "a&lt;b&gt; 1"]
    assert list(bars.text) == ["0.500 s (ours)", "2.00 s (2.0 ×)"]


def test_the_figure_of_sizes_names_the_exponents(tmp_path):
    sizes = [
        {"axis": "layers", "size": n, "threads": 1, "seconds": n**2.0, "memory": 9 * n, "loaded": n}
        for n in (2, 4, 8)
    ]
    figure: Any = draw_sizes(read(record(tmp_path, "size.csv", sizes)))
    assert [note.text for note in figure.layout.annotations] == ["exponent 2.00", "exponent 1.00"]


def test_one_release_machine_and_number_of_threads_is_drawn():
    rows = [
        {"release": release, "machine": "m", "threads": threads, "date": date}
        for release, date in (("1", "2026-01-01"), ("2", "2026-02-01"))
        for threads in ("10", "2")
    ]
    assert chosen(rows) == [rows[3]]
    assert chosen(rows, "10") == [rows[2]]


@pytest.mark.parametrize("folder", sorted(KEPT.glob("*")), ids=lambda folder: folder.name)
def test_what_is_recorded_in_the_repository_can_be_drawn(folder, tmp_path):
    main(str(folder), str(tmp_path / "page.html"))
    assert "mechheads" in (tmp_path / "page.html").read_text()
    rows = read(folder / "peers.csv")
    assert {row["release"] for row in rows} == {folder.name}
    assert all(float(row["difference"]) < 1e-3 for row in rows)
