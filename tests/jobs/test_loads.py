"""What a command leaves can be loaded again, and sums itself up in the same words."""

import json

import pytest

from mechheads.compare import compare
from mechheads.discover import discover
from mechheads.gate import gate
from mechheads.jobs.run import JOBS
from mechheads.leaderboard import leaderboard
from mechheads.mask import mask
from mechheads.prefix import prefix

FEW = {"n": 4, "test": 4, "draws": 2, "method": "attribution", "quiet": True}
COMMANDS = {
    "discover": lambda out: discover(task="math", out=out, **FEW),
    "compare": lambda out: compare(tasks="math", out=out, **FEW),
    "gate": lambda out: gate(
        n=8, test=8, seeds=1, updates=2, points=2, no_patching=True, out=out, quiet=True
    ),
    "mask": lambda out: mask(
        tasks="retrieval", n=4, rank=4, k="2", draws=1, max_tokens=1, out=out, quiet=True
    ),
    "prefix": lambda out: prefix(
        models="mini",
        head="L0H3",
        n=16,
        length=4,
        max_tokens=1,
        sweep="length",
        out=out,
        quiet=True,
    ),
    "leaderboard": lambda out: leaderboard(
        tasks="math", methods="attribution,direct", seeds=1, n=4, test=4, draws=2, out=out,
        quiet=True,
    ),
}  # fmt: skip


def test_every_job_is_here():
    assert set(COMMANDS) == set(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_a_run_folder_loads_as_its_result(name, tmp_path):
    result, folder = COMMANDS[name](str(tmp_path))
    again = type(result).load(folder)
    assert again.sentence == result.sentence
    assert str(again.headline) == str(result.headline)  # not a number equals itself here
    assert folder is not None
    kept = json.loads((folder / "result.json").read_text())["headline"]
    assert set(kept) == set(again.headline)
