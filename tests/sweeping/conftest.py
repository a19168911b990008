from pathlib import Path

import pytest
from sweeps import SMALL

from mechheads.sweep import sweep


@pytest.fixture(scope="session")
def swept(tmp_path_factory) -> Path:
    """A finished sweep of three cells."""
    out = tmp_path_factory.mktemp("sweep")
    sweep(tasks="ioi,math,syntax", models="mini", cpus=1.0, out=str(out), quiet=True, **SMALL)
    return out
