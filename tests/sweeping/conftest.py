import sys
from pathlib import Path

import pytest
from sweeps import SEEDS, SMALL, TOY

from mechheads.sweep import sweep


@pytest.fixture(scope="session")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    sweep(tasks="ioi,math,syntax", models="mini", cpus=1.0, out=str(out), quiet=True, **SMALL)
    return out


@pytest.fixture
def toy(tmp_path) -> list[str]:
    """The command of a sweep of cells that take no time, but for the folder."""
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    seeds = ",".join(map(str, range(SEEDS)))
    return [sys.executable, str(script), "--commands", "toy", "--seeds", seeds, "--quiet", "--out"]
