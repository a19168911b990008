"""Ranks heads by how much a classifier of cognitive functions relies on them (after CogQA's paper).

1. Features: every head's z at the positions that say the answer, mean over up to five tokens of it,
   those that the model finds least likely.
2. A probe learns to tell the function: each head's z to 64 numbers, all of them to 512, ReLU,
   dropout 0.3, classes; AdamW.
3. importance of head j for class c = mean over the samples of c of sum(d logit_c / d z_j * z_j);
   heads are ranked by its size. The number of heads that matter is the elbow of the sorted curve.
The probe is judged on questions that it was not trained on, against always naming one function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..batches import token_ids
from ..errors import MechheadsError
from ..models import Model, attention_inside
from ..progress import bar
from ..prompts import Question, Questions
from .selection import Head, elbow

ANSWER_TOKENS = 5


@dataclass(frozen=True)
class Probing:
    """The importance of every head for every function, and how good the probe is."""

    functions: tuple[str, ...]
    importance: Float[Tensor, "function layer head"]
    accuracy: float
    chance: float
    elbows: Mapping[str, int]

    def ranking(self, function: str) -> list[Head]:
        """(layer, head) from the most important on."""
        scores = self.importance[self.functions.index(function)].abs()
        order = torch.sort(scores.flatten(), descending=True, stable=True).indices.tolist()
        return [divmod(i, scores.shape[1]) for i in order]


class Probe(nn.Module):
    """Head by head, then together."""

    def __init__(self, heads: int, d_head: int, classes: int) -> None:
        """Random weights."""
        super().__init__()
        self.each = nn.Parameter(torch.randn(heads, d_head, 64) / d_head**0.5)
        self.rest = nn.Sequential(
            nn.Linear(heads * 64, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, classes)
        )

    def forward(self, z: Float[Tensor, "sample head d_head"]) -> Float[Tensor, "sample function"]:
        """Logits of the functions."""
        return self.rest(torch.einsum("shd,hde->she", z, self.each).flatten(1))


@torch.inference_mode()
def features(model: Model, questions: Sequence[Question]) -> Float[Tensor, "sample head d_head"]:
    """z of all heads while the answer is said, mean over its least likely tokens."""
    found = []
    for question in questions:
        prompt = token_ids(model, question.prompt)
        whole = token_ids(model, f"{question.prompt} {question.answers[0]}")
        if len(whole) <= len(prompt) or len(whole) > model.cfg.n_ctx:
            raise MechheadsError(
                f"the question {question.prompt[-60:]!r} and its answer have {len(whole)} tokens; "
                f"{model.cfg.model_name} takes {model.cfg.n_ctx}, and an answer at least one."
            )
        tokens = torch.tensor([whole])
        _, z = attention_inside(model, tokens)
        # The positions whose next token is one of the answer's.
        asked = torch.arange(len(prompt) - 1, len(whole) - 1)
        said = (
            model(tokens.to(model.W_E.device))[0].cpu().log_softmax(-1)[asked, tokens[0, asked + 1]]
        )
        chosen = asked[said.argsort()[:ANSWER_TOKENS]]
        heads = torch.stack([layer[0, chosen].mean(0) for layer in z])
        found.append(heads.flatten(0, 1).float().cpu())
    return torch.stack(found)


def probe_functions(
    model: Model,
    sets: Sequence[Questions],
    *,
    seed: int = 0,
    epochs: int = 300,
    rate: float = 1e-4,
    quiet: bool = False,
) -> Probing:
    """Train the probe on the first three quarters of every set and judge it on the others."""
    if len(sets) < 2:
        raise MechheadsError(
            "the probe tells functions apart and needs two or more. Give more --tasks, or rank by "
            "another --method."
        )
    z, labels, held = [], [], []
    for i, questions in enumerate(sets):
        found = features(model, questions.items)
        z.append(found)
        labels.append(torch.full((len(found),), i))
        held.append(torch.arange(len(found)) >= max(1, 3 * len(found) // 4))
    every, label, test = torch.cat(z), torch.cat(labels), torch.cat(held)
    centre, spread = every[~test].mean(0), every[~test].std() + 1e-6
    every = (every - centre) / spread
    torch.manual_seed(seed)
    probe = Probe(every.shape[1], every.shape[2], len(sets))
    adam = torch.optim.AdamW(probe.parameters(), lr=rate)
    with bar(epochs, "Probe", quiet) as progress:
        for _ in range(epochs):
            adam.zero_grad()
            loss = nn.functional.cross_entropy(probe(every[~test]), label[~test])
            loss.backward()
            adam.step()
            progress.update()
    probe.eval()
    with torch.no_grad():
        right = (probe(every[test]).argmax(-1) == label[test]).float().mean().item()
    importance = torch.stack(
        [_importance(probe, every[label == i], i) for i in range(len(sets))]
    ).unflatten(1, (model.cfg.n_layers, model.cfg.n_heads))
    names = tuple(questions.name for questions in sets)
    counts: Int[Tensor, " function"] = torch.bincount(label[test], minlength=len(sets))
    return Probing(
        names,
        importance,
        right,
        (counts.max() / counts.sum()).item(),
        {n: elbow(importance[i].abs().flatten().tolist()) for i, n in enumerate(names)},
    )


def _importance(
    probe: Probe, z: Float[Tensor, "sample head d_head"], label: int
) -> Float[Tensor, " head"]:
    inputs = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(probe(inputs)[:, label].sum(), inputs)
    return (slope * z).sum(-1).mean(0)
