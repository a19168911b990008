import json
import shutil
from typing import Any

from sweeps import SMALL

from mechheads.models.devices import with_threads
from mechheads.runs import folder as runs
from mechheads.sweep import sweep
from mechheads.sweeping.cells import CellRun, Sweep
from mechheads.sweeping.grid import Cell
from mechheads.sweeping.overview import write_overview


def test_an_overview_links_every_report(swept, capsys):
    page = (swept / "index.html").read_text()
    assert "3 of 3 cells are done" in page
    rows = json.loads((swept / "sweep.json").read_text())
    for row in rows:
        assert row["state"] == "done"
        assert f'href="{row["report"]}"' in page
        assert (swept / row["report"]).is_file()
    assert len((swept / "log.txt").read_text().splitlines()) == 3


def test_a_mixture_of_threads_is_told(swept, tmp_path, capsys):
    out = tmp_path / "mixed"
    shutil.copytree(swept, out)
    given: dict[str, Any] = {"models": "mini", "out": str(out), **SMALL}
    sweep(tasks="ioi,math,syntax", cpus=1.0, **given)
    assert "different" not in capsys.readouterr().err
    with with_threads(1):
        sweep(tasks="ioi,math,syntax,docstring", cpus=2.0, **given)
    assert "Cells were run with different thread counts (1, 2)" in capsys.readouterr().err
    page = (out / "index.html").read_text()
    assert "different thread counts (1, 2)" in page
    assert "--cpus 2</pre>" in page.replace(" --n 4 --test 4 --draws 2", "")


TABLES = {
    "discover": ("task,ioi", "curve.csv", "k,explained\n0,0\n1,0.5\n"),
    "gate": (
        "task,syntax on mini",
        "ablation.csv",
        "task,model,order,k,delta\nsyntax,mini,random,1,2\nsyntax,mini,facilitating,1,3\n",
    ),
    "mask": (
        "method,ig",
        "masking.csv",
        "function,selection,k,draw,metric,value\nMath,top,2,0,exact,0.5\nMath,top,2,0,chrf,1\n",
    ),
    "prefix": ("models,a", "accuracy.csv", "model,condition,accuracy\na,none,1\na,mless,0.5\n"),
    "compare": ("tasks,math", "comparison.csv", "task,n_a-b,n_sparse\nmath,8,2\n"),
}


def test_every_command_is_in_the_overview_with_its_numbers_and_lines(tmp_path):
    found: dict[Cell, CellRun] = {}
    for command, (setting, file, text) in TABLES.items():
        for seed in (0, 1):
            name, _, value = setting.partition(",")
            cell = Cell(command, ((name, value), ("seed", seed)))
            folder = tmp_path / cell.name
            folder.mkdir()
            (folder / file).write_text(text)
            headline: dict[str, Any] = {"needed": 3, "cmd": "0.25"}
            if command == "compare":
                parts = {"heads": {"multiplier": 4.5}}
                headline = {"parts": {"math": parts, "ioi": {}}}
            record = runs.Record(command, {}, headline, {}, ("careful",))
            found[cell] = CellRun(folder, record)
    lost = Cell("gate", (("task", "lost"),))
    made = Sweep(tmp_path, [*found, lost], found, {lost: "no luck"})
    page = write_overview(made, "again").read_text()
    assert "10 of 11 cells are done, 1 failed" in page
    assert "no luck" in page
    assert ">heads multiplier</th>" in page
    assert page.count(">needed</th>") == 1  # gate, mask and prefix have no such number
    assert page.count("careful") == 2 * len(TABLES)  # once, however many parts a cell has
    for name in ("seed 1", "seed 1, mini, random", "seed 1, top", "seed 1, a", "seed 1, n_a-b"):
        assert f'"name":"{name}"' in page
    for panel in ("ioi", "syntax", "Math", "math_calculation"):
        assert f'"text":"\\u003cb\\u003e{panel}\\u003c\\u002fb\\u003e"' in page
    for i in range(len(TABLES)):
        assert f'id="figure-{i}"' in page
