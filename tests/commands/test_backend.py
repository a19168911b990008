"""--backend of the commands: both kinds of model, the same run folder."""

import json
from typing import Any

import pandas as pd
import pytest
import torch

from mechheads.cli.commands import COMMANDS
from mechheads.discover import discover
from mechheads.models.load import find_backend
from mechheads.models.options import ModelOptions
from mechheads.verifying.rerun import verify_run
from mechheads.verifying.trust import Allowed

BACKENDS: list[Any] = ["hooked", "bridge"] if find_backend(None) == "hooked" else ["bridge"]


def test_every_command_that_measures_a_model_takes_a_backend():
    measuring = {name for name, command in COMMANDS.items() if "dtype" in command.flags}
    assert measuring == {
        "discover",
        "compare",
        "leaderboard",
        "gate",
        "mask",
        "prefix",
        "show",
        "attention",
    }
    for name in [*measuring, "bench"]:
        assert "backend" in COMMANDS[name].flags


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A small discover run on each backend."""
    made = {}
    for backend in BACKENDS:
        out = tmp_path_factory.mktemp(backend)
        options = ModelOptions(backend=backend)  # pyright: ignore[reportArgumentType]
        found = discover(n=8, test=8, draws=2, loading=options, out=str(out), quiet=True)
        made[backend] = found.folder
    return made


def test_a_run_says_which_backend_made_it_and_verifies(runs):
    for backend, folder in runs.items():
        content = json.loads((folder / "result.json").read_text())
        assert content["provenance"]["backend"] == backend
        *_, last = verify_run(folder, 1e-6, Allowed(), quiet=True)
        assert last.endswith(": identical")


def test_both_backends_write_the_same_numbers(runs):
    # The ends of a bootstrap-t interval are quotients by small spreads: rounding counts for more.
    columns = (
        ("effects.csv", ["effect"], 1e-4),
        ("effects.csv", ["ci_low", "ci_high"], 5e-3),
        ("curve.csv", ["explained", "random_mean"], 1e-4),
    )
    for name, wanted, close in columns:
        tables = [pd.read_csv(folder / name)[wanted] for folder in runs.values()]
        one, two = (torch.tensor(tables[i].to_numpy(float)) for i in (0, -1))
        torch.testing.assert_close(one, two, atol=close, rtol=close, equal_nan=True)
