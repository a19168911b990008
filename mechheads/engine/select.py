"""Chooses the engine that runs a model, and how many tokens a pass holds."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mechheads.errors import MechheadsError
from mechheads.models.hooks import state_of, unknown_part
from mechheads.models.model import Model, device_of, dtype_of, mlp_shape, shape_of

from .cached_run import Engine
from .direct import DirectEngine
from .hooked import HookedEngine
from .interventions import Replace, unchanged

# Tokens (variants x rows x positions) per pass, which bounds memory.
BUDGETS = {"cpu": 2048, "cuda": 65536, "mps": 16384}
# Bytes that a pass with gradients may keep on a CPU: with a model of 1.5 billion parameters in
# float32 and all else, less than 12 GB.
KEPT = 2_500_000_000


AGREED = "_mechheads_agreed"  # the attribute of a model: its state when both engines agreed


def engine_for(model: Model) -> Engine:
    """The direct engine if it supports the model and agrees with the hooked one, else that one.

    They are compared once for the same config and weights: it takes seconds on a large model.
    """
    if unknown_part(model) is not None:
        return HookedEngine(model)
    direct, state = DirectEngine(model), state_of(model)
    if state is not None and model.__dict__.get(AGREED) == state:
        return direct
    if not _agree(HookedEngine(model), direct):
        return HookedEngine(model)
    model.__dict__[AGREED] = state
    return direct


def budget_for(model: Model, wanted: int | None = None, times: int = 1) -> int:
    """Tokens per pass: `wanted` if given, else `times` what suits the model's device."""
    if wanted is not None and wanted < 1:
        raise MechheadsError(f"--budget takes 1 or more tokens per pass, got {wanted}.")
    return wanted or times * BUDGETS.get(device_of(model).type, BUDGETS["cpu"])


def gradient_budget(model: Model, wanted: int | None = None) -> int:
    """The same for passes with gradients, which keep the inside of every layer for the way back.

    That is about 5 vectors of the residual stream's size and 3 of the MLP's per token and layer.
    """
    most = budget_for(model, wanted)
    if wanted is not None or device_of(model).type != "cpu":
        return most
    shape, (width, _) = shape_of(model), mlp_shape(model)
    token = shape.layers * (5 * shape.d_model + 3 * width) * dtype_of(model).itemsize
    return max(1, min(most, KEPT // token))


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """A context without gradients of weights, so that a third less is kept for a backward pass.

    A linear layer keeps its input only for the gradient of its weights.
    """
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in wanted:
            weight.requires_grad_(False)
        yield
    finally:
        for weight in wanted:
            weight.requires_grad_(True)


@torch.inference_mode()
def _agree(hooked: HookedEngine, direct: Engine) -> bool:
    """Whether both engines give the same result for one intervention on a few tokens."""
    shape = shape_of(hooked.model)
    one, two = torch.arange(0, 14 * 5, 5).view(2, 1, 7)[:, :, : shape.context] % shape.vocabulary
    two[:, 0] = one[:, 0]
    keep = unchanged(shape).keep
    keep[0, 0, 0] = 0.0
    ends = []
    for engine in (hooked, direct):
        base, other = (engine.cache(tokens, 1, 1) for tokens in (one, two))
        ends.append(engine.rerun(base, Replace(keep, other.z)))
    tolerance = 1e-4 if ends[0].dtype in (torch.float32, torch.float64) else 3e-2
    return bool((ends[0] - ends[1]).abs().max() <= tolerance * ends[0].abs().max())
