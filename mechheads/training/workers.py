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
MakeWorker = Callable[[int], tuple[list[Parameter], Compute]]

TIMEOUT = 600.0  # seconds that a worker waits for the others
SUMS = 2


@dataclass(frozen=True)
class WorkerOutput:
    """Shared memory that a worker stores its results in."""

    gradients: list[Tensor]
    sums: Tensor

    def store(self, parameters: Sequence[Parameter], found: Sequence[float]) -> None:
        """Move the gradients and the numbers here."""
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            gradient.zero_() if parameter.grad is None else gradient.copy_(parameter.grad)
            parameter.grad = None
        self.sums.copy_(torch.tensor(found))


@dataclass(frozen=True)
class Workers:
    """Workers with an output each; the first is this process."""

    parameters: list[Parameter]
    own: list[Parameter]
    compute: Compute
    outputs: list[WorkerOutput]
    current: Tensor
    barriers: list[Barrier] = field(default_factory=list)

    def step(self, step: int) -> list[float]:
        """Sum all workers' gradients into the parameters, and return their summed numbers."""
        self.current[0] = step
        self._wait(0)
        self.outputs[0].store(self.own, self.compute(step))
        self._wait(1)
        for i, parameter in enumerate(self.parameters):
            parameter.grad = torch.stack([output.gradients[i] for output in self.outputs]).sum(0)
        return torch.stack([output.sums for output in self.outputs]).sum(0).tolist()

    def _wait(self, which: int) -> None:
        try:
            for barrier in self.barriers[which : which + 1]:
                barrier.wait(TIMEOUT)
        except BrokenBarrierError:
            raise MechheadsError(
                "A worker stopped. Run it again to resume, or use --workers 1."
            ) from None


def _shared_sums() -> torch.Tensor:
    return torch.zeros(SUMS).share_memory_()


@contextmanager
def start(make_worker: MakeWorker, parameters: list[Parameter], workers: int) -> Iterator[Workers]:
    """Workers that share these parameters, which move to shared memory."""
    try:
        for parameter in parameters:
            parameter.data = parameter.data.share_memory_()
        shared = [parameter.data for parameter in parameters]
        outputs = [
            WorkerOutput([torch.zeros_like(p).share_memory_() for p in shared], _shared_sums())
            for _ in range(workers)
        ]
        current = torch.zeros(1, dtype=torch.long).share_memory_()
    except RuntimeError as error:
        raise MechheadsError(
            f"no shared memory for the workers ({error}). Make room in /dev/shm."
        ) from None
    context: Any = torch.multiprocessing.get_context("spawn")
    barriers = [context.Barrier(workers) for _ in range(2)] if workers > 1 else []
    others = [
        context.Process(
            target=_serve, args=(make_worker, i, shared, outputs[i], current, barriers), daemon=True
        )
        for i in range(1, workers)
    ]
    try:
        with with_threads(1):
            for other in others:
                other.start()
            own, compute = _join(make_worker, 0, shared)
            yield Workers(parameters, own, compute, outputs, current, barriers)
    finally:
        for barrier in barriers:
            barrier.abort()
        for other in others:
            other.join(10)
            other.terminate()


def _join(
    make_worker: MakeWorker, worker: int, shared: list[Tensor]
) -> tuple[list[Parameter], Compute]:
    parameters, compute = make_worker(worker)
    for parameter, value in zip(parameters, shared, strict=True):
        parameter.data = value
    return parameters, compute


def _serve(
    make_worker: MakeWorker,
    worker: int,
    shared: list[Tensor],
    output: WorkerOutput,
    current: Tensor,
    barriers: list[Barrier],
) -> None:
    """The loop of another process: wait for a step, compute, wait for the next."""
    torch.set_num_threads(1)
    try:
        parameters, compute = _join(make_worker, worker, shared)
        while True:
            barriers[0].wait(TIMEOUT)
            output.store(parameters, compute(int(current)))
            barriers[1].wait(TIMEOUT)
    except BrokenBarrierError:
        pass
    finally:
        for barrier in barriers:
            barrier.abort()
