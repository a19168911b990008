"""A circuit: a named set of heads, with their roles where known.

Circuit("mine", ((9, 6), (9, 9))).jaccard(published("ioi"))
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mechheads.errors import MechheadsError
from mechheads.runs.files import write_text

Head = tuple[int, int]


@dataclass(frozen=True)
class Circuit:
    """Heads as (layer, head), most important first where known.

    A soft circuit gives each head a gate from 0 to 1 that scales its z; a head without a gate is
    kept fully.
    """

    name: str
    heads: tuple[Head, ...]
    task: str = ""
    model: str = ""
    roles: Mapping[Head, str] = field(default_factory=dict)
    source: str = ""
    gates: Mapping[Head, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of heads."""
        return len(self.heads)

    def jaccard(self, other: "Circuit") -> float:
        """Jaccard index: heads in both over heads in either; 1 for two empty circuits."""
        either = set(self.heads) | set(other.heads)
        return len(set(self.heads) & set(other.heads)) / len(either) if either else 1.0

    def precision(self, truth: "Circuit") -> float:
        """Share of these heads that are in the other circuit."""
        return len(set(self.heads) & set(truth.heads)) / len(self.heads) if self.heads else 0.0

    def recall(self, truth: "Circuit") -> float:
        """Share of the other circuit's heads that are in this one."""
        return truth.precision(self)

    def save(self, file: Path) -> Path:
        """Write the circuit as JSON."""
        heads = [
            {"layer": layer, "head": head, "role": self.roles.get((layer, head), "")}
            | ({"gate": self.gates[layer, head]} if (layer, head) in self.gates else {})
            for layer, head in self.heads
        ]
        content = {
            "schema": 1,
            "name": self.name,
            "task": self.task,
            "model": self.model,
            "source": self.source,
            "heads": heads,
        }
        return write_text(file, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, file: Path) -> "Circuit":
        """Read a file written by `save`; an error says what is wrong with it."""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["schema"] != 1:
                raise ValueError(f"schema {content['schema']}, expected 1")
            listed = [(int(h["layer"]), int(h["head"]), str(h["role"])) for h in content["heads"]]
            gates = {
                (int(h["layer"]), int(h["head"])): float(h["gate"])
                for h in content["heads"]
                if "gate" in h
            }
            names = [str(content[key]) for key in ("name", "task", "model", "source")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MechheadsError(f"{file} is not a valid circuit file ({error!r}).") from None
        return cls(
            names[0],
            tuple((layer, head) for layer, head, _ in listed),
            names[1],
            names[2],
            {(layer, head): role for layer, head, role in listed if role},
            names[3],
            gates,
        )


def auroc(ranking: Sequence[Head], truth: Circuit) -> float:
    """Probability that a head in the circuit ranks above one outside it.

    0.5 is chance level. NaN if the circuit contains all of the ranked heads or none.
    """
    inside = [head in set(truth.heads) for head in ranking]
    members, others = sum(inside), len(inside) - sum(inside)
    if not members or not others:
        return float("nan")
    seen = wins = 0
    for member in reversed(inside):
        if member:
            wins += seen
        else:
            seen += 1
    return wins / (members * others)
