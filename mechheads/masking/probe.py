"""Rank heads by how much a classifier of cognitive functions uses them (after the CogQA paper).

1. The model answers; features are every head's z at the positions that predict the answer, mean
   over up to five of its tokens, the ones that the model found least likely.
2. A probe learns to classify the function: each head's z to 64 dimensions, all of them to 512,
   ReLU, dropout 0.3, classes; AdamW.
3. importance of head j for class c = mean over the samples of c of sum(d logit_c / d z_j * z_j);
   heads are ranked by its size. The number of heads that matter is the elbow of the sorted curve.

The probe is evaluated on questions about other subjects than it was trained on, against always
predicting one function. Unlike the paper, z is centred and scaled to unit spread over the training
questions, so that importance reflects what differs between them; the five tokens are chosen by
probability; and the text of the answer is tokenized again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mechheads.engine.generate import generate
from mechheads.engine.hooked import HookedEngine
from mechheads.engine.interventions import unchanged
from mechheads.errors import MechheadsError
from mechheads.models.hooks import unembed
from mechheads.models.model import Model, encoder_of, shape_of
from mechheads.progress import bar, stages
from mechheads.prompts import Questions
from mechheads.prompts.partitions import split_sets

from .selection import Head, elbow

if TYPE_CHECKING:
    import pandas as pd

ANSWER_TOKENS = 5


@dataclass(frozen=True)
class Probing:
    """The importance of every head for every function, and how good the probe is.

    `right` of `n` held-out questions are classified correctly; `chance` is the share of the most
    common function.
    """

    functions: tuple[str, ...]
    importance: Float[Tensor, "function layer head"]
    right: int
    n: int
    chance: float

    @property
    def accuracy(self) -> float:
        """Share of held-out questions classified correctly."""
        return self.right / self.n

    @property
    def elbows(self) -> dict[str, int]:
        """By function: the number of heads before the elbow."""
        pairs = zip(self.functions, self.importance, strict=True)
        return {name: elbow(values.abs().flatten().tolist()) for name, values in pairs}

    def ranking(self, function: str, *, signed: bool = False) -> list[Head]:
        """(layer, head), most important first, by absolute or signed importance."""
        values = self.importance[self.functions.index(function)]
        scores = values if signed else values.abs()
        order = torch.sort(scores.flatten(), descending=True, stable=True).indices.tolist()
        return [divmod(i, scores.shape[1]) for i in order]

    def frame(self) -> "pd.DataFrame":
        """A tidy frame: function, layer, head, importance, before_elbow."""
        import pandas as pd

        rows = [
            (name, *head, self.importance[i][head].item(), rank < self.elbows[name])
            for i, name in enumerate(self.functions)
            for rank, head in enumerate(self.ranking(name))
        ]
        columns = ["function", "layer", "head", "importance", "before_elbow"]
        return pd.DataFrame(rows, columns=pd.Index(columns))


class Probe(nn.Module):
    """A linear map per head, then an MLP over all heads."""

    def __init__(self, heads: int, d_head: int, classes: int) -> None:
        """Initialize with random weights."""
        super().__init__()
        self.each = nn.Parameter(torch.randn(heads, d_head, 64) / d_head**0.5)
        self.rest = nn.Sequential(
            nn.Linear(heads * 64, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, classes)
        )

    def forward(self, z: Float[Tensor, "sample head d_head"]) -> Float[Tensor, "sample function"]:
        """Logits of the functions."""
        return self.rest(torch.einsum("shd,hde->she", z, self.each).flatten(1))


def probe_functions(
    model: Model,
    sets: Sequence[Questions],
    *,
    seed: int = 0,
    epochs: int = 300,
    rate: float = 1e-4,
    max_tokens: int = 32,
    budget: int | None = None,
    quiet: bool = False,
) -> Probing:
    """Train the probe on about three quarters of every set and evaluate it on the rest."""
    if len(sets) < 2:
        raise MechheadsError(
            "the probe classifies functions and needs two or more. Give more --tasks, or use "
            "another --method."
        )
    names = tuple(questions.name for questions in sets)
    sides = split_sets(sets, [3 * len(questions) // 4 for questions in sets])
    for name, (train, _) in zip(names, sides, strict=True):
        if not train:
            raise MechheadsError(
                f"the probe has no training questions for {name}: all of them share their subject "
                "with held-out ones. Raise --rank."
            )
    if not any(test for _, test in sides):
        raise MechheadsError("no questions are left to evaluate the probe. Raise --rank.")
    items = [item for questions in sets for item in questions.items]
    labels = torch.cat([torch.full((len(part),), i) for i, part in enumerate(sets)])
    held = torch.tensor(
        [i in test for part, (_, test) in zip(sets, sides, strict=True) for i in range(len(part))]
    )
    prompts = [item.prompt for item in items]
    whole = unchanged(shape_of(model)).keep
    options: dict[str, Any] = {"max_tokens": max_tokens, "budget": budget}
    with stages("probe", {"Answering": 1, "Reading heads": 1, "Probe": 2}, quiet) as progress:
        with progress.stage("Answering"):
            said = generate(model, prompts, whole, **options)[0]
        with progress.stage("Reading heads"):
            z = features(model, prompts, said)
        with progress.stage("Probe"):
            importance, right = fit_probe(z, labels, held, seed=seed, epochs=epochs, rate=rate)
    return Probing(
        names,
        importance.unflatten(1, shape_of(model).grid),
        int(right.sum()),
        len(right),
        (labels[held].bincount().max() / len(right)).item(),
    )


@torch.inference_mode()
def features(
    model: Model, prompts: Sequence[str], said: Sequence[str]
) -> Float[Tensor, "sample head d_head"]:
    """z of all heads on each prompt and answer, mean over the answer's least likely tokens.

    For an empty answer, z at the end of the prompt.
    """
    engine, found = HookedEngine(model), []
    for prompt, text in zip(prompts, said, strict=True):
        whole = encoder_of(model).ids(f"{prompt}{text}")
        start = min(len(encoder_of(model).ids(prompt)), len(whole)) - 1
        following = torch.tensor(whole[start + 1 :], dtype=torch.long)
        run = engine.cache(torch.tensor([whole]), 0, len(whole) - start)
        end = engine.rerun(run, unchanged(shape_of(model)))[0, 0, : len(following)]
        likely = unembed(model, end).log_softmax(-1).cpu().gather(1, following[:, None])[:, 0]
        chosen = start + likely.argsort()[:ANSWER_TOKENS] if len(following) else [start]
        found.append(torch.cat([layer[0, chosen].mean(0) for layer in run.z]).float().cpu())
    return torch.stack(found)


def fit_probe(
    z: Float[Tensor, "sample head d_head"],
    labels: Int[Tensor, " sample"],
    held: Bool[Tensor, " sample"],
    *,
    seed: int = 0,
    epochs: int = 300,
    rate: float = 1e-4,
    quiet: bool = False,
) -> tuple[Float[Tensor, "function head"], Bool[Tensor, " held"]]:
    """The importance of every head for every label, and which held-out samples are right."""
    train = z[~held]
    z = (z - train.mean(0)) / (train.std() + 1e-6)
    classes = int(labels.max()) + 1
    with torch.random.fork_rng(), bar(epochs, "Probe", quiet) as progress:
        torch.manual_seed(seed)
        probe = Probe(z.shape[1], z.shape[2], classes)
        adam = torch.optim.AdamW(probe.parameters(), lr=rate)
        for _ in range(epochs):
            adam.zero_grad()
            nn.functional.cross_entropy(probe(z[~held]), labels[~held]).backward()
            adam.step()
            progress.update()
    probe.eval()
    with torch.no_grad():
        right = probe(z[held]).argmax(-1) == labels[held]
    return torch.stack([_importance(probe, z[labels == i], i) for i in range(classes)]), right


def _importance(
    probe: Probe, z: Float[Tensor, "sample head d_head"], label: int
) -> Float[Tensor, " head"]:
    inputs = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(probe(inputs)[:, label].sum(), inputs)
    return (slope * z).sum(-1).mean(0)
