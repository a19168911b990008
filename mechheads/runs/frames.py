"""Tidy tables of tensors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd


def tidy(names: Sequence[str], columns: Mapping[str, Tensor]) -> "pd.DataFrame":
    """One row per cell: its indices under `names`, and the value of each column there."""
    import pandas as pd

    shape = next(iter(columns.values())).shape
    places = torch.cartesian_prod(*(torch.arange(size) for size in shape))
    table = {name: places[:, i].numpy() for i, name in enumerate(names)}
    return pd.DataFrame(table | {key: value.flatten().numpy() for key, value in columns.items()})
