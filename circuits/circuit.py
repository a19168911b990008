"""A circuit: a named set of heads, with their roles where known.

Circuit("mine", "L9H6,L9H9").jaccard(published("ioi_gpt2_small"))
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.heads import name_of, read_heads
from mechheads.options import read_path
from mechheads.runs.files import prepare, write_text

Head = tuple[int, int]
LARGEST = 16 * 2**20  # bytes of a circuit file


@dataclass(frozen=True, init=False)
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

    def __init__(
        self,
        name: str,
        heads: Any,
        task: str = "",
        model: str = "",
        roles: Mapping[Head, str] | None = None,
        source: str = "",
        gates: Mapping[Head, float] | None = None,
    ) -> None:
        """Heads may be given in any spelling: "L9H6,L9H9", or a list of names or pairs."""
        found = read_heads(heads)
        if twice := [head for head, count in Counter(found).items() if count > 1]:
            raise MechheadsError(f"{name_of(*twice[0])} is in the circuit twice. Name it once.")
        inside = set(found)
        for head, gate in (gates or {}).items():
            if head not in inside or not 0 <= gate <= 1:
                raise MechheadsError(
                    f"The gate of {name_of(*head)} is {gate}. Gates are numbers from 0 to 1, for "
                    "heads of the circuit."
                )
        values = (name, tuple(found), task, model, roles or {}, source, gates or {})
        for own, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, own.name, value)

    def __len__(self) -> int:
        """The number of heads."""
        return len(self.heads)

    @property
    def size(self) -> float:
        """The number of heads, each counted as its gate."""
        return sum(self.gates.get(head, 1.0) for head in self.heads)

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

    @property
    def content(self) -> dict[str, Any]:
        """What its file says, as JSON types."""
        heads = [
            {"layer": layer, "head": head, "role": self.roles.get((layer, head), "")}
            | ({"gate": self.gates[layer, head]} if (layer, head) in self.gates else {})
            for layer, head in self.heads
        ]
        return {
            "schema": 1,
            "name": self.name,
            "task": self.task,
            "model": self.model,
            "source": self.source,
            "heads": heads,
        }

    @classmethod
    def of_content(cls, content: Any) -> "Circuit":
        """The circuit that a file's content describes; ValueError, KeyError or TypeError if none.

        The file may come from anyone.
        """
        if content["schema"] != 1:
            raise ValueError(f"schema {str(content['schema'])[:40]}, expected 1")
        roles, gates, heads = {}, {}, []
        for entry in content["heads"]:
            layer, head = entry["layer"], entry["head"]
            if type(layer) is not int or type(head) is not int or min(layer, head) < 0:
                raise ValueError(f"no head: layer {str(layer)[:40]}, head {str(head)[:40]}")
            heads.append((layer, head))
            if role := _text(entry["role"]):
                roles[layer, head] = role
            if "gate" in entry:
                gates[layer, head] = gate = entry["gate"]
                if not isinstance(gate, int | float):
                    raise ValueError(f"the gate {str(gate)[:40]!r} is not a number")
        name, task, model, source = (_text(content[k]) for k in ("name", "task", "model", "source"))
        return cls(name, tuple(heads), task, model, roles, source, gates)

    def save(self, file: str | Path) -> Path:
        """Write the circuit as JSON; folders are made as needed."""
        place = read_path(file, "the circuit file")
        prepare(place.parent)
        return write_text(place, json.dumps(self.content, indent=1) + "\n")

    @classmethod
    def load(cls, file: str | Path) -> "Circuit":
        """Read a file written by `save`; an error says what is wrong with it."""
        place = read_path(file, "the circuit file")
        try:
            if place.exists() and not place.is_file():
                raise ValueError("it is not a file; a run's circuit is circuit.json in its folder")
            if place.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST:,} bytes")
            return cls.of_content(json.loads(place.read_text(encoding="utf-8")))
        except OSError as error:
            why = error.strerror or type(error).__name__
        except MechheadsError as error:
            why = str(error).rstrip(".")
        except (KeyError, TypeError, RecursionError) as error:
            why = repr(error)
        except ValueError as error:
            why = str(error)
        raise MechheadsError(f"{file} is not a valid circuit file ({why}).")


def _text(value: Any) -> str:
    """The value as text, or a UnicodeEncodeError: JSON may hold half of a surrogate pair."""
    text = str(value)
    text.encode()
    return text


def auroc(scores: Mapping[Head, float], truth: Circuit) -> float:
    """Probability that a head in the circuit has a higher score than one outside it.

    A tie counts half, as in sklearn's roc_auc_score. 0.5 is chance level. NaN if the circuit
    contains all of the heads with a score or none.

    >>> auroc({(0, 0): 1.0, (0, 1): 0.0, (0, 2): 0.0}, Circuit("known", "L0H0,L0H1"))
    0.75
    """
    inside = set(truth.heads)
    ordered = sorted(scores, key=lambda head: scores[head])
    below = wins = members = 0.0
    for _, tied in itertools.groupby(ordered, key=lambda head: scores[head]):
        here = [head in inside for head in tied]
        others = len(here) - sum(here)
        wins += sum(here) * (below + others / 2)
        members, below = members + sum(here), below + others
    return wins / (members * below) if members and below else float("nan")
