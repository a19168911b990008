"""Our side of a comparison, in a process of its own: the same work, the same numbers.

`python -m mechheads.benchmarks.ours FOLDER MEASUREMENT [BACKEND]`; it prints what the scripts in
`mechheads.models.peers` print.
"""

import random
import sys
from typing import Any

import circuits
import mechheads
from mechheads.heads import name_of
from mechheads.models.devices import keep_freed_memory
from mechheads.models.peers import handed
from mechheads.scoring.gate_fitting import first_logits, fit_gates

from .workload import GATED_SEEDS, GATING, add, prompts_of


def load(folder: Any, work: dict[str, Any]) -> tuple[Any, Any]:
    """The model as we load it, and where the folder is."""
    keep_freed_memory()
    backend = sys.argv[3] if len(sys.argv) > 3 else None
    model = mechheads.load(str(folder), backend=backend, quiet=True)
    mechheads.evaluate(model, prompts_of(work["ranking"]))  # the first pass is slower
    return model, folder.parent


def effects_of(found: Any) -> dict[str, float]:
    """Every head's effect, by name."""
    layers, heads = found.scores.shape
    every = [(i, h) for i in range(layers) for h in range(heads)]
    return {name_of(*head): float(found.scores[head]) for head in every}


def patch(model: Any, _: Any, work: dict[str, Any]) -> handed.Answer:
    """The effect of every head by activation patching."""
    return _score(model, work, "patch")


def attribution(model: Any, _: Any, work: dict[str, Any]) -> handed.Answer:
    """The effect of every head, estimated from gradients."""
    return _score(model, work, "attribution")


def _score(model: Any, work: dict[str, Any], method: str) -> handed.Answer:
    prompts = prompts_of(work["ranking"])
    found, seconds = handed.timed(lambda: mechheads.score_heads(model, prompts, method, quiet=True))
    return seconds, "whole", {"effect": effects_of(found)}


def discover(model: Any, folder: Any, work: dict[str, Any]) -> handed.Answer:
    """All of discover; the others are handed its ranking and the points of its curves."""
    ranking, judging = prompts_of(work["ranking"]), prompts_of(work["judging"])
    found, seconds = handed.timed(lambda: circuits.discover(model, ranking, judging, quiet=True))
    curve = found.curve
    draws = len(curve.random_explained)
    points = {"at": curve.at, "random_at": curve.random_at, "draws": draws}
    add(folder, {"curve": {"ranking": curve.ranking, **points}})
    values = curve.values.mean(1).tolist()
    judged = {str(k): value for k, value in zip(curve.at, values, strict=True)}
    return seconds, "whole", {"effect": effects_of(found.effects), "curve": judged}


def gating(model: Any, folder: Any, work: dict[str, Any]) -> handed.Answer:
    """Gates of all seeds at once; the others are handed how they start, and which prompts."""
    prompts = prompts_of(work["ranking"])
    found, seconds = handed.timed(lambda: fit_gates(model, prompts, GATING, quiet=True))
    settings = GATING.settled(model, len(prompts))
    assert settings.batch is not None
    drawn = [
        random.Random(f"{settings.seed}/{update}").sample(range(len(prompts)), settings.batch)
        for update in range(settings.updates)
    ]
    start = first_logits(settings, found.plus.shape[1:])
    rates = {"rates": settings.rates, "pulled_rates": settings.pulled_rates}
    pull = {"strength": settings.strength, "clip": settings.clip, "timed": GATED_SEEDS}
    add(folder, {"gating": {"start": start.tolist(), "drawn": drawn, **rates, **pull}})
    gates = {
        f"seed {seed} {kind} {name_of(layer, head)}": float(gate[seed, layer, head])
        for kind, gate in (("free", found.free), ("plus", found.plus), ("minus", found.minus))
        for seed in range(GATED_SEEDS)
        for layer in range(gate.shape[1])
        for head in range(gate.shape[2])
    }
    return seconds, "whole", {"gate": gates}


if __name__ == "__main__":
    measurements = {f.__name__: f for f in (patch, attribution, discover, gating)}
    handed.main("mechheads", measurements, load)
