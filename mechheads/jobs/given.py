"""What a user can give instead of having us find it: heads, a circuit, effects.

--heads L9H6,L9H9      heads by name
--circuit FILE.json    a circuit in a file, or the name of a published one
--effects FILE.csv     a score per head
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechheads.errors import MechheadsError
from mechheads.heads import read_heads
from mechheads.options import check_alone, flag_of, read_path
from mechheads.packages import no_garbage_collection
from mechheads.runs.files import digest

if TYPE_CHECKING:
    from circuits import Circuit
    from mechheads.scoring.effects_table import EffectsTable

HEADS, CIRCUIT, EFFECTS = "heads", "circuit", "effects"


def files_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The files that these settings name, by setting; only these are ever opened."""
    named = ((name, settings.get(name)) for name in (CIRCUIT, EFFECTS))
    return {
        name: str(file)
        for name, file in named
        if file is not None and (name == EFFECTS or is_file(str(file)))
    }


def is_file(circuit: str) -> bool:
    """Whether a circuit is a file rather than the name of a published one."""
    return circuit.endswith(".json") or "/" in circuit or "\\" in circuit


def file_digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """The digests of these files, for the provenance."""
    return {
        f"{name}_sha256": digest([read_path(file, flag_of(name))])
        for name, file in files_of(settings).items()
    }


def read_circuit(
    settings: Mapping[str, Any], why: str, excluded: Mapping[str, Any]
) -> "Circuit | None":
    """The circuit given with --heads or --circuit, if any; an error if it cannot be used.

    `excluded` are settings that make no sense with it, `why` says so: they must be at these
    defaults. Needs no torch if neither is given.
    """
    heads, circuit = settings[HEADS], settings[CIRCUIT]
    if heads is None and circuit is None:
        return None
    if heads is not None and circuit is not None:
        raise MechheadsError("--heads and --circuit cannot be combined. Use one.")
    flag = flag_of(CIRCUIT if heads is None else HEADS)
    check_alone(flag, why, settings, excluded)
    if heads is not None and not read_heads(heads):
        raise MechheadsError("--heads names no head. Give some, for example L9H6,L9H9.")
    if circuit is not None and not circuit.strip():
        raise MechheadsError("--circuit is empty. Give a .json file or a published circuit's name.")
    with no_garbage_collection():
        from circuits import Circuit, published
    if circuit is None:
        return Circuit("given", heads)
    if is_file(circuit):
        found = Circuit.load(circuit)
        if not found.heads:
            raise MechheadsError(f"{circuit} has no heads. Give a circuit with at least one.")
        return found
    try:
        return published(circuit)
    except MechheadsError as error:
        raise MechheadsError(f"{error} Or give a .json file, or heads with --heads.") from None


def read_scores(settings: Mapping[str, Any]) -> "EffectsTable | None":
    """The effects given with --effects, if any; an error if they cannot be used. Needs no torch."""
    from mechheads.scoring.effects_table import read_effects

    file = settings[EFFECTS]
    if file is None:
        return None
    why = "heads are ranked by given effects or by a method"
    check_alone("--effects", why, settings, {"method": "auto", "direction": "noising"})
    if not file.strip():
        raise MechheadsError("--effects is empty. Give a CSV file such as a run's effects.csv.")
    return read_effects(file)
