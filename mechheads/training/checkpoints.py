"""Training checkpoints: parameters, the optimizer's moments, and the progress of the run.

Safetensors only, written atomically. A resumed run ends with the same bytes as an uninterrupted
one.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechheads.errors import MechheadsError
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
) -> dict[str, Any]:
    """Load parameters and optimizer from a checkpoint with the same settings; return its state.

    Without a checkpoint, nothing is loaded and the state is empty.
    """
    if not file.exists():
        return {}
    try:
        with safe_open(file, "pt") as saved:
            metadata = saved.metadata()
        tensors = load_file(file)
        made_by, state = (dict(json.loads(metadata[name])) for name in ("settings", "state"))
        if not int(state["step"]) > 0:
            raise ValueError("it is of no step")
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise MechheadsError(
            f"{file} is damaged ({error}). Delete it to start over, or choose another --out."
        ) from None
    for name, value in settings.items():
        if made_by.get(name) != value:
            raise MechheadsError(
                f"{file} was made with --{name.replace('_', '-')} {made_by.get(name)}, not "
                f"{value}. Resume with the same settings, or choose another --out."
            )
    for name, parameter in parameters.items():
        saved_shape = getattr(tensors.get(f"parameter.{name}"), "shape", None)
        if saved_shape != parameter.shape:
            raise MechheadsError(
                f"{file} is from a different model: its {name} is {saved_shape}, not "
                f"{parameter.shape}. Choose another --out."
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"parameter.{name}"])
    counted = sum(len(group["params"]) for group in optimizer.param_groups)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, i, name = key.split(".")
            moments.setdefault(int(i), {})[name] = value
    if set(moments) != set(range(counted)):
        raise MechheadsError(
            f"{file} is damaged (it lacks optimizer state). Delete it to start over, or choose "
            "another --out."
        )
    optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    return state


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
