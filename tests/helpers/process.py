"""Runs our commands as a user does: another process, its output and its exit code."""

import os
import subprocess
import sys
from pathlib import Path


def run(*words: str, cwd: Path | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
    """python -m WORDS."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
