"""Work in several threads, each with its share of torch's own threads.

Small matrix products and what lies between them gain little from torch's threads: two passes side
by side, with half of the threads each, take less time than one after the other.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from mechheads.models.devices import with_threads

SIDE_BY_SIDE = 2  # passes at a time
Item = TypeVar("Item")
Found = TypeVar("Found")


def side_by_side(
    function: Callable[[Item], Found], items: Sequence[Item], device: torch.device
) -> list[Found]:
    """The function of every item, in their order; on a CPU two at a time.

    Gradients are on or off as outside.
    """
    threads, on = torch.get_num_threads(), torch.is_grad_enabled()
    if device.type != "cpu" or min(threads, len(items)) < SIDE_BY_SIDE:
        return [function(item) for item in items]

    def begin() -> None:
        torch.set_num_threads(threads // SIDE_BY_SIDE)

    def work(item: Item) -> Found:
        with torch.set_grad_enabled(on):
            return function(item)

    # A thread's number of torch threads is its own, but threads started later begin with the last.
    with with_threads(threads), ThreadPoolExecutor(SIDE_BY_SIDE, initializer=begin) as pool:
        return list(pool.map(work, items))
