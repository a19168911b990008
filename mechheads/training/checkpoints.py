"""Training checkpoints: parameters, the optimizer's moments, and the progress of the run.

Safetensors only, written atomically. A resumed run ends with the same bytes as an uninterrupted
one.
"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechheads.errors import MechheadsError, shown
from mechheads.options import flag_of
from mechheads.runs.files import beside


def save(
    file: Path,
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    """Write a checkpoint; `state` is what the run needs besides its tensors, e.g. the step."""
    tensors = {f"parameter.{name}": p.detach().contiguous() for name, p in parameters.items()}
    for i, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{key}": value for key, value in moments.items()}
    metadata = {"settings": json.dumps(dict(settings)), "state": json.dumps(dict(state))}
    partial = file.with_suffix(".partial")
    try:
        save_file(tensors, partial, metadata=metadata)
        partial.replace(file)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise MechheadsError(f"cannot write {file} ({error}). Run it again to resume.") from None


def restore(
    file: Path,
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    last: Mapping[str, Any],
) -> dict[str, Any]:
    """Load parameters and optimizer from a checkpoint with the same settings; return its state.

    `last` is what the state may be at the last step: it names the parts of a state. Without a
    checkpoint, nothing is loaded and the state is empty.
    """
    if not file.exists():
        return {}
    try:
        with safe_open(file, "pt") as saved:
            metadata = saved.metadata()
        tensors = load_file(file)
        made_by, state = (dict(json.loads(metadata[name])) for name in ("settings", "state"))
        if not _alike(state, last) or not 0 < state["step"] <= last["step"]:
            raise ValueError("it is of no step")
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(file, error) from None
    for name, value in settings.items():
        if made_by.get(name) != value:
            raise MechheadsError(
                f"{file} was made with {flag_of(name)} {shown(made_by.get(name))}, not "
                f"{value}. Resume with the same settings, or choose another --out."
            )
    for name, parameter in parameters.items():
        saved_shape = getattr(tensors.get(f"parameter.{name}"), "shape", None)
        if saved_shape != parameter.shape:
            raise MechheadsError(
                f"{file} is from a different model: its {name} is {saved_shape}, not "
                f"{parameter.shape}. Choose another --out."
            )
    if not all(t.is_floating_point() and bool(t.isfinite().all()) for t in tensors.values()):
        raise _damaged(file, "it has values that are not finite numbers")
    moments = _moments(tensors, optimizer)
    if moments is None:
        raise _damaged(file, "it lacks optimizer state")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    return state


def _damaged(file: Path, why: object) -> MechheadsError:
    return MechheadsError(
        f"{file} is damaged ({why}). Delete it to start over, or choose another --out."
    )


def _alike(state: Any, last: Any) -> bool:
    """Whether two states have the same parts, all of them finite numbers."""
    if isinstance(last, Mapping):
        same = isinstance(state, Mapping) and state.keys() == last.keys()
        return same and all(_alike(state[name], last[name]) for name in last)
    kind = int if isinstance(last, int) else int | float
    return isinstance(state, kind) and not isinstance(state, bool) and math.isfinite(state)


def _moments(
    tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]] | None:
    """The optimizer's state by the number of its parameter; None if it is not complete."""
    groups = ((p, group.get("pieces")) for group in optimizer.param_groups for p in group["params"])
    moments: dict[int, dict[str, Tensor]] = {}
    for i, (parameter, pieces) in enumerate(groups):
        for name in ("step", *(("momentum",) if pieces else ("exp_avg", "exp_avg_sq"))):
            value = tensors.get(f"optimizer.{i}.{name}")
            if value is None or value.shape != (() if name == "step" else parameter.shape):
                return None
            moments.setdefault(i, {})[name] = value
    return moments


def write_model(out: Path, save: Callable[[Path], None]) -> None:
    """Write a model's directory file by file; config.json comes last and marks it complete."""
    folder = beside(out / "model", "partial")
    try:
        folder.mkdir()
        save(folder)
        for file in sorted(folder.iterdir(), key=lambda f: f.name == "config.json"):
            file.replace(out / file.name)
    except (OSError, SafetensorError) as error:
        raise MechheadsError(
            f"cannot write the model to {out} ({error}). Run it again to resume."
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
