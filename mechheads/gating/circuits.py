"""Circuits from gates: every head with its gate, and the heads whose gate stays open."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from circuits.circuit import Circuit
from mechheads.scoring.gate_roles import LIMIT, Gates

from .contrast import Trial


def gated_circuits(found: Gates) -> dict[str, Circuit]:
    """All heads with their gates in G- and G+, mean over seeds, by file name."""
    heads = found.ranking()
    roles = {head: role for head in heads if (role := found.role_of(*head))}
    masks = {
        "circuit": (found.minus, "G-, the heads that are needed"),
        "circuit_plus": (found.plus, "G+, all heads but those that interfere"),
    }
    return {
        file: Circuit(
            f"{found.name}: {what}",
            tuple(heads),
            found.task,
            found.model,
            roles,
            f"mechheads gate, {len(gates)} seeds",
            {head: float(gates.mean(0)[head]) for head in heads},
        )
        for file, (gates, what) in masks.items()
    }


def contrast_circuits(trial: Trial, model: str) -> dict[str, Circuit]:
    """All heads with their gates, mean over seeds, by file name."""
    mean = trial.gates.mean(0)
    gates = {divmod(i, mean.shape[1]): gate for i, gate in enumerate(mean.flatten().tolist())}
    circuit = Circuit(
        f"retain {trial.retain}, forget {trial.forget}",
        tuple(sorted(gates, key=lambda head: -gates[head])),
        trial.retain,
        model,
        source=f"mechheads gate, {len(trial.gates)} seeds",
        gates=gates,
    )
    return {"circuit": circuit}


def save_circuits(folder: Path, every: Sequence[Mapping[str, Circuit]]) -> None:
    """Save soft circuits, and for each the heads with a gate of 0.5 or more, without gates.

    With several cells or trials, file names end in _0, _1 and so on.
    """
    for i, soft in enumerate(every):
        end = "" if len(every) == 1 else f"_{i}"
        for file, circuit in soft.items():
            circuit.save(folder / f"{file}_soft{end}.json")
            heads = tuple(head for head in circuit.heads if circuit.gates[head] >= LIMIT)
            cut = replace(circuit, name=f"{circuit.name}, cut at {LIMIT}", heads=heads, gates={})
            cut.save(folder / f"{file}{end}.json")
