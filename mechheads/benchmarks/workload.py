"""What all sides of a comparison are handed: a folder with a model, prompts and what to measure."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechheads.models.untrained import save_random
from mechheads.prompts import Prompts
from mechheads.scoring.gate_fitting import FitSettings

from .timings import tokenizer_of_words

GATING = FitSettings(seeds=10, updates=60, batch=8)
GATED_SEEDS = 2  # that others are timed on


@dataclass(frozen=True)
class Workload:
    """Random prompts for a model of random weights; `loops` is what others are timed on."""

    shape: dict[str, Any]
    threads: int
    rows: int = 16
    length: int = 16
    first: int = 10
    loops: int = 24

    def write(self, folder: Path) -> None:
        """Write the model and the prompts, once to rank heads and once to judge rankings."""
        save_random(folder / "model", tokenizer_of_words(self.shape["d_vocab"]), **self.shape)
        content = {"threads": self.threads, "loops": self.loops}
        add(folder, content | {"ranking": self._tokens(0), "judging": self._tokens(1)})

    def _tokens(self, seed: int) -> dict[str, Any]:
        """Token ids: clean and corrupted prompts, an answer and a wrong answer for each."""
        rng, every = random.Random(seed), range(1, self.shape["d_vocab"])
        clean = [rng.sample(every, self.length) for _ in range(self.rows)]
        changed = [rng.sample(every, self.length - self.first) for _ in range(self.rows)]
        corrupt = [row[: self.first] + new for row, new in zip(clean, changed, strict=True)]
        answers, wrong = zip(*(rng.sample(every, 2) for _ in range(self.rows)), strict=True)
        return {"clean": clean, "corrupt": corrupt, "answers": answers, "wrong": wrong}


def add(folder: Path, content: dict[str, Any]) -> None:
    """Add to what is handed over."""
    file = folder / "work.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(before | content))


def prompts_of(tokens: dict[str, Any]) -> Prompts:
    """The prompts of a folder, for us."""
    import tasks

    names = ("clean", "corrupt", "answers", "wrong")
    return tasks.from_tokens(*(tokens[name] for name in names), name="random words")
