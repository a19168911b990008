import sys
from pathlib import Path
from typing import Any

import pytest
from sweeps import SEEDS, SMALL, TOY

from mechheads.sweep import sweep


@pytest.fixture(scope="session")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    given: dict[str, Any] = {"models": "mini", "methods": "patch", **SMALL}
    sweep(tasks="ioi,math,syntax", cpus=1.0, out=str(out), quiet=True, **given)
    return out


@pytest.fixture
def toy(tmp_path) -> list[str]:
    """The command of a sweep of cells that take no time, but for the folder."""
    script = tmp_path / "toy.py"
    script.write_text(TOY)
    seeds = ",".join(map(str, range(SEEDS)))
    return [sys.executable, str(script), "--commands", "toy", "--seeds", seeds, "--quiet", "--out"]
