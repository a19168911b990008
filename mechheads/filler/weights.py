"""Average attention that tokens get, with and without a run of filler.

The weight of key j in a head is the mean over later queries i > j of A[i, j]: the column mean
strictly below the diagonal. Only prompts that align are averaged: as many original tokens, and the
run after the same one. Softmax weights of the original tokens shrink when keys are added; if scores
stay as they are, all by one factor per query.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from ..batches import token_texts
from ..errors import MechheadsError
from ..models import Model, with_patterns
from ..statistics import bootstrap
from ..storage import load_result, save_result
from .insertion import Inserted

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SINK = 10.0  # times the median weight of the others


@dataclass(frozen=True)
class Mechanism:
    """What a run does to a head's weights from later queries.

    `mass` is the share of attention that the run gets, `factor` what is left of the original
    weights, `spread` the standard deviation of that factor over original keys, and `p_value` the
    chance of such differences between keys if there were one factor for all (analysis of variance
    of its logarithm over prompts). `explained` is the share of the weights' variance that one
    factor per prompt gives.
    """

    mass: float
    factor: float
    spread: float
    p_value: float
    explained: float


@dataclass(frozen=True)
class Attention:
    """Every condition's weights of one head on aligned prompts, and every head's total change.

    `weights[condition]` is a row per prompt over all positions; the last position, which no later
    query sees, is not a number. `sink` says that the first token is left out of the panels.
    """

    model: str
    head: tuple[int, int]
    weights: Mapping[str, Float[Tensor, "prompt pos"]]
    cut: int
    runs: Mapping[str, int]
    tokens: Mapping[str, tuple[str, ...]]
    change: Float[Tensor, "layer head"]
    sink: bool
    mechanisms: Mapping[str, tuple[float, ...]]

    def original(self, condition: str) -> Float[Tensor, "prompt token"]:
        """The weights of the original tokens alone."""
        run = self.runs[condition]
        values = self.weights[condition]
        return torch.cat([values[:, : self.cut], values[:, self.cut + run :]], dim=1)

    def mechanism(self, condition: str) -> Mechanism | None:
        """What the condition's run does; None where no original token comes after it."""
        found = self.mechanisms.get(condition)
        return Mechanism(*found) if found else None

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: condition, panel, position, token, weight, low, high."""
        import pandas as pd

        rows = []
        for condition, whole in self.weights.items():
            tokens = self.tokens[condition]
            run = self.runs[condition]
            places = [i for i in range(len(tokens)) if not self.cut <= i < self.cut + run]
            panels = {"original": (self.original(condition), [tokens[i] for i in places])}
            if run:
                panels["full"] = (whole, list(tokens))
            for panel, (values, names) in panels.items():
                low, high = bootstrap(values[:, :-1])
                mean = values[:, :-1].mean(0)
                for i in range(int(self.sink), len(mean)):
                    numbers = (float(mean[i]), float(low[i]), float(high[i]))
                    rows.append((condition, panel, i, names[i], *numbers))
        columns = ["condition", "panel", "position", "token", "weight", "low", "high"]
        return pd.DataFrame(rows, columns=pd.Index(columns))

    def plot(self) -> "go.Figure":
        """Two panels: original tokens, and the whole sequence."""
        from .figures import draw_attention

        return draw_attention(self)

    def save(self, file: Path) -> Path:
        """Write it whole, as safetensors."""
        return save_result(self, file)

    @classmethod
    def load(cls, file: Path) -> "Attention":
        """Read what `save` wrote."""
        return load_result(cls, file)


def column_means(
    pattern: Float[Tensor, "*head query key"],
) -> Float[Tensor, "*head key"]:
    """The mean weight of every key from later queries; not a number for the last key."""
    n = pattern.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool, device=pattern.device).tril(-1)
    return (pattern * later).sum(-2) / later.sum(0)


def aligned(prompts: Mapping[str, Sequence[Inserted]]) -> list[int]:
    """The largest group of questions whose prompts align in every condition."""
    keys = [
        tuple((len(p.ids), p.cut if p.run else -1, p.run) for p in together)
        for together in zip(*prompts.values(), strict=True)
    ]
    best, count = Counter(keys).most_common(1)[0]
    if count < 2:
        raise MechheadsError(
            "no two questions have the same number of tokens, so that attention cannot be averaged "
            "over them. Ask more questions with --n."
        )
    return [i for i, key in enumerate(keys) if key == best]


@torch.inference_mode()
def all_weights(
    model: Model, prompts: Sequence[Inserted]
) -> Float[Tensor, "prompt layer head pos"]:
    """The column means of every head on prompts of one length."""
    n = len(prompts[0].ids)
    found = torch.zeros(len(prompts), model.cfg.n_layers, model.cfg.n_heads, n)
    for i, prompt in enumerate(prompts):

        def see(layer: int, pattern: Tensor, i: int = i) -> None:
            found[i, layer] = column_means(pattern[0].float()).cpu()

        with_patterns(model, torch.tensor([prompt.ids]), see)
    return found


def measure_attention(
    model: Model,
    prompts: Mapping[str, Sequence[Inserted]],
    head: tuple[int, int] | None,
) -> Attention:
    """The weights of a head, or of the one whose weights move most, under every condition."""
    chosen = aligned(prompts)
    kept = {name: [made[i] for i in chosen] for name, made in prompts.items()}
    every = {name: all_weights(model, made) for name, made in kept.items()}
    others = [name for name in kept if name != "none"]
    if not others:
        raise MechheadsError("attention takes a condition besides none. Give --conditions.")
    first = kept[others[0]][0]
    cut = first.cut
    runs = {name: made[0].run for name, made in kept.items()}
    sinks = _sinks(every["none"])
    change = torch.zeros(model.cfg.n_layers, model.cfg.n_heads)
    base = every["none"][..., :-1].mean(0)
    for name in others[:1]:
        now = _without(every[name], cut, runs[name])[..., :-1].mean(0)
        change = (now - base)[..., 1:].abs().sum(-1) + (now - base)[..., 0].abs() * ~sinks
    if head is None:
        best = int(change.flatten().argmax())
        head = divmod(best, model.cfg.n_heads)
    layer, which = head
    mechanisms = {}
    if cut < len(kept["none"][0].ids) - 1:
        before, _ = late_weights(model, kept["none"], head, cut)
        for name in others:
            found = mechanism_of(before, *late_weights(model, kept[name], head, cut))
            mechanisms[name] = tuple(vars(found).values())
    return Attention(
        model.cfg.model_name,
        (layer, which),
        {name: values[:, layer, which] for name, values in every.items()},
        cut,
        runs,
        {name: tuple(token_texts(model, made[0].ids)) for name, made in kept.items()},
        change,
        bool(sinks[layer, which]),
        mechanisms,
    )


def _without(
    values: Float[Tensor, "prompt layer head pos"], cut: int, run: int
) -> Float[Tensor, "prompt layer head token"]:
    return torch.cat([values[..., :cut], values[..., cut + run :]], dim=-1)


def _sinks(values: Float[Tensor, "prompt layer head pos"]) -> Tensor:
    """Heads whose first token gets many times what a usual one gets."""
    mean = values[..., :-1].mean(0)
    return mean[..., 0] > SINK * mean[..., 1:].median(-1).values


@torch.inference_mode()
def late_weights(
    model: Model, prompts: Sequence[Inserted], head: tuple[int, int], cut: int
) -> tuple[Float[Tensor, "prompt token"], Float[Tensor, " prompt"]]:
    """From the queries after the run: the mean weight of every original key, and of all the run."""
    keys, mass = [], []
    for prompt in prompts:
        n, start = len(prompt.ids), cut + prompt.run

        def see(layer: int, pattern: Tensor, n: int = n, start: int = start) -> None:
            if layer != head[0]:
                return
            late = pattern[0, head[1], start:].double().cpu()
            queries = torch.arange(start, n)[:, None]
            later = queries > torch.arange(n)
            mean = (late * later).sum(0) / later.sum(0)
            keys.append(torch.cat([mean[:cut], mean[start:]]))
            mass.append(late[:, cut:start].sum(1).mean())

        with_patterns(model, torch.tensor([prompt.ids]), see)
    return torch.stack(keys)[:, :-1], torch.stack(mass)


def mechanism_of(
    before: Float[Tensor, "prompt token"],
    now: Float[Tensor, "prompt token"],
    mass: Float[Tensor, " prompt"],
) -> Mechanism:
    """One factor for all keys, or not: from the weights of the same keys and queries."""
    share = mass.mean().item()
    usable = (before > 1e-9).all(0) & (now > 1e-9).all(0)
    if usable.sum() < 2 or len(before) < 2:
        return Mechanism(share, *[float("nan")] * 4)
    before, now = before[:, usable], now[:, usable]
    logs = (now / before).log()
    factors = (now * before).sum(1, keepdim=True) / (before**2).sum(1, keepdim=True)
    rest = ((now - factors * before) ** 2).sum().item()
    total = ((now - now.mean(1, keepdim=True)) ** 2).sum().item()
    # Where every key has the same factor there is no variance to analyse.
    same = (logs - logs.mean(1, keepdim=True)).abs().max() < 1e-6
    tested: Any = None if same else stats.f_oneway(*logs.T.numpy())
    return Mechanism(
        share,
        logs.mean().exp().item(),
        (now / before).mean(0).std().item(),
        1.0 if same else float(tested.pvalue),
        1 - rest / total if total > 0 else float("nan"),
    )
