"""Several processes compute the gradient of one step, each on its own rows.

On a CPU this is much faster for a small model than one process with several threads. Parameters and
gradients are in shared memory. Gradients are summed in the order of the workers, so that results
depend on the number of workers, but not on which one finishes first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mechheads.errors import MechheadsError
from mechheads.models.devices import with_threads

# Accumulates a worker's gradients for a step; returns numbers to be summed.
Compute = Callable[[int], Sequence[float]]
# Returns a worker's parameters and how it computes. Other processes import it by name.
Hire = Callable[[int], tuple[list[Parameter], Compute]]

PATIENCE = 600.0  # seconds that a worker waits for the others
SUMS = 2


@dataclass(frozen=True)
class Desk:
    """Shared memory where a worker leaves its results."""

    gradients: list[Tensor]
    sums: Tensor

    def leave(self, parameters: Sequence[Parameter], found: Sequence[float]) -> None:
        """Move the gradients here."""
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
            parameter.grad = None
        self.sums.copy_(torch.tensor(found))


@dataclass(frozen=True)
class Team:
    """Workers with a desk each; the first is this process."""

    parameters: list[Parameter]
    own: list[Parameter]
    compute: Compute
    desks: list[Desk]
    turn: Tensor
    barriers: list[Barrier] = field(default_factory=list)

    def step(self, step: int) -> list[float]:
        """Leave the sum of all gradients in the parameters, and return the summed numbers."""
        self.turn[0] = step
        self._meet(0)
        self.desks[0].leave(self.own, self.compute(step))
        self._meet(1)
        for i, parameter in enumerate(self.parameters):
            parameter.grad = torch.stack([desk.gradients[i] for desk in self.desks]).sum(0)
        return torch.stack([desk.sums for desk in self.desks]).sum(0).tolist()

    def _meet(self, which: int) -> None:
        try:
            for barrier in self.barriers[which : which + 1]:
                barrier.wait(PATIENCE)
        except BrokenBarrierError:
            raise MechheadsError(
                "A worker stopped. Run it again to resume, or use --workers 1."
            ) from None


@contextmanager
def team(hire: Hire, parameters: list[Parameter], workers: int) -> Iterator[Team]:
    """Workers that share these parameters, which move to shared memory."""
    for parameter in parameters:
        parameter.data = parameter.data.share_memory_()
    shared = [parameter.data for parameter in parameters]
    desks = [
        Desk(
            [torch.zeros_like(p).share_memory_() for p in shared], torch.zeros(SUMS).share_memory_()
        )
        for _ in range(workers)
    ]
    turn = torch.zeros(1, dtype=torch.long).share_memory_()
    context: Any = torch.multiprocessing.get_context("spawn")
    barriers = [context.Barrier(workers) for _ in range(2)] if workers > 1 else []
    others = [
        context.Process(
            target=_serve, args=(hire, i, shared, desks[i], turn, barriers), daemon=True
        )
        for i in range(1, workers)
    ]
    try:
        with with_threads(1):
            for other in others:
                other.start()
            own, compute = _join(hire, 0, shared)
            yield Team(parameters, own, compute, desks, turn, barriers)
    finally:
        for barrier in barriers:
            barrier.abort()
        for other in others:
            other.join(10)
            other.terminate()


def _join(hire: Hire, worker: int, shared: list[Tensor]) -> tuple[list[Parameter], Compute]:
    parameters, compute = hire(worker)
    for parameter, value in zip(parameters, shared, strict=True):
        parameter.data = value
    return parameters, compute


def _serve(
    hire: Hire, worker: int, shared: list[Tensor], desk: Desk, turn: Tensor, barriers: list[Barrier]
) -> None:
    """The loop of another process: wait for a step, compute, wait for the next."""
    torch.set_num_threads(1)
    try:
        parameters, compute = _join(hire, worker, shared)
        while True:
            barriers[0].wait(PATIENCE)
            desk.leave(parameters, compute(int(turn)))
            barriers[1].wait(PATIENCE)
    except BrokenBarrierError:
        pass
    finally:
        for barrier in barriers:
            barrier.abort()
