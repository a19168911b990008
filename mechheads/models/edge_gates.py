"""Edge gates: which attention edges a sparse model uses (after arXiv:2512.05865).

1. The gate of query i and key j in a head is the attention score plus the head's bias:
   g = q_i k_j / sqrt(d_head) + b. The edge is open where g > 0.
2. A closed edge's weight becomes 0. The softmax runs over all keys and is not renormalised, so the
   rows of a pattern sum to 1 or less, down to 0.
3. In training, an edge is open where g + logistic noise > 0, and the gradient flows as if the gate
   were the sigmoid of that sum.

A sparse model's directory holds the biases next to its weights, says so in config.json, and names
the scheme in `edge_gates.json`. transformers alone would run it without its gates.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mechheads.errors import MechheadsError
from mechheads.runs.files import write_text

from .locate import SPARSE_MARK

SCHEME = "score_plus_head_bias"
SCHEME_FILE = "edge_gates.json"
BIAS_FILE = "edge_gates.safetensors"


def gate_logits(
    scores: Float[Tensor, "batch head query key"], bias: Float[Tensor, " head"]
) -> Float[Tensor, "batch head query key"]:
    """The gate logits g, positive where the edge is open."""
    return scores + bias.to(scores)[:, None, None]


class OpenEdges(torch.autograd.Function):
    """Binary gates, deterministic or sampled, and the expected number of open edges.

    Their gradient is that of a sigmoid. With u drawn uniformly from 0 to 1, g + logit(u) is g with
    logistic noise, and its sigmoid is s u / (s u + (1 - s)(1 - u)), s = sigmoid(g): no logarithm is
    needed. In the gradient of the expected edges, every open edge counts equally for the bias: with
    the sigmoid's own slope, which is flat there, a wide-open head would stay open.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Float[Tensor, "row head query key"],
        bias: Float[Tensor, " head"],
        queries: Bool[Tensor, "row query"],
        sample: bool,
    ) -> tuple[Float[Tensor, "row head query key"], Float[Tensor, " head"]]:
        """The gates, and the sum of their probabilities at the queries, per head."""
        logits = gate_logits(scores, bias)
        s = logits.sigmoid()
        expected = (s.sum(-1) * queries[:, None]).sum(dim=(0, 2))
        soft = s
        if sample:
            u = torch.rand_like(s)
            opening = s * u
            closing = (1 - s).mul_(u.neg_().add_(1))
            drawn = (opening > closing).to(scores)
            # Both are 0 only where a gate is certainly open or closed: there is no gradient.
            whole = closing.add_(opening).clamp_(min=torch.finfo(s.dtype).tiny)
            soft = opening.div_(whole)
        else:
            drawn = (logits > 0).to(scores)
        ctx.save_for_backward(s, soft, queries, expected)
        return drawn, expected

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the scores and the bias, from the gates and the expected edges."""
        s, soft, queries, expected = ctx.saved_tensors
        by_gate, by_expected = slopes
        through = (by_gate * soft).mul_(1 - soft)
        to_bias = by_expected * expected + through.sum(dim=(0, 2, 3))
        weight = by_expected[:, None] * queries[:, None]
        to_scores = through.addcmul_(s * (1 - s), weight[..., None])
        return to_scores, to_bias, None, None


class Gated(TorchFunctionMode):
    """While active, the attention of a transformers model goes through gates, layer by layer.

    with Gated(bias) as gates:
        logits = hf_model(tokens).logits      # one forward pass, eager attention

    It intercepts the softmax over a square of positions for every head, which every architecture
    computes in the same way. `queries` are the positions whose edges are counted (default: all):
    `expected` is the sum of their gates' probabilities, with its gradient; `open` counts the edges
    that deterministic gates leave open.
    """

    def __init__(
        self,
        bias: Float[Tensor, "layer head"],
        queries: Bool[Tensor, "row pos"] | None = None,
        *,
        sample: bool = False,
    ) -> None:
        """Gates with these biases, sampled if `sample`, else deterministic."""
        super().__init__()
        self.bias, self.sample = bias, sample
        self.queries = queries
        self.layer = 0
        self.expected: Tensor = torch.zeros((), device=bias.device)
        self.open = torch.zeros(bias.shape, dtype=torch.long, device=bias.device)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Called for every torch function of the model; changes only the attention softmax."""
        result = func(*args, **(kwargs or {}))
        if func in _SOFTMAX and self._is_attention(args):
            return result * self._gates(args[0])
        return result

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Raise unless every layer was gated."""
        super().__exit__(kind, error, trace)
        if error is None and self.layer != len(self.bias):
            raise MechheadsError(
                f"the attention of this model cannot be gated: {self.layer} of {len(self.bias)} "
                "layers compute an eager softmax over their scores. Use another architecture."
            )

    def _is_attention(self, args: tuple) -> bool:
        scores = args[0] if args else None
        return (
            isinstance(scores, Tensor)
            and scores.ndim == 4
            and scores.shape[1] == self.bias.shape[1]
            and scores.shape[2] == scores.shape[3]
            and self.layer < len(self.bias)
        )

    def _gates(self, scores: Float[Tensor, "row head query key"]) -> Tensor:
        bias, queries = self.bias[self.layer], self.queries
        if queries is None:
            queries = torch.ones_like(scores[:, 0, :, 0], dtype=torch.bool)
        drawn, expected = OpenEdges.apply(scores, bias, queries, self.sample)
        self.expected = self.expected + expected.sum()
        if not self.sample:
            counted = drawn.detach().sum(-1) * queries[:, None]
            self.open[self.layer] = counted.sum(dim=(0, 2)).long()
        self.layer += 1
        return drawn


class GatedSoftmax(TorchFunctionMode):
    """While active, the softmax of one layer's attention goes through deterministic gates."""

    def __init__(self, bias: Float[Tensor, " head"]) -> None:
        """Gates with these biases."""
        super().__init__()
        self.bias = bias

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Called for every torch function; changes only the softmax over scores of every head."""
        result = func(*args, **(kwargs or {}))
        scores = args[0] if args else None
        if func in _SOFTMAX and isinstance(scores, Tensor) and scores.ndim == 4:
            return result * (gate_logits(scores, self.bias) > 0)
        return result


_SOFTMAX = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax)


def write(
    folder: Path, bias: Float[Tensor, "layer head"], facts: Mapping[str, str | int | float]
) -> None:
    """Write the gates next to a model's weights; `facts` say how they were made."""
    save_file({"bias": bias.detach().float().contiguous().cpu()}, folder / BIAS_FILE)
    scheme = {
        "scheme": SCHEME,
        "rule": "an edge is open where attention score + bias[layer, head] > 0; "
        "the softmax is not renormalised",
        "bias": BIAS_FILE,
        **facts,
    }
    write_text(folder / SCHEME_FILE, json.dumps(scheme, indent=2) + "\n")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_text(
        folder / "config.json",
        json.dumps(config | {SPARSE_MARK: SCHEME_FILE}, indent=2, sort_keys=True),
    )


def read(
    folder: Path, config: Mapping[str, Any], n_layers: int, n_heads: int
) -> Float[Tensor, "layer head"] | None:
    """Read the biases from a sparse model's directory; None if the model is not sparse."""
    if SPARSE_MARK not in config:
        if (folder / BIAS_FILE).exists():
            raise MechheadsError(
                f"{folder} has {BIAS_FILE}, but its config.json has no {SPARSE_MARK!r}: it was "
                "saved again without its gates. Copy the sparse model's own config.json."
            )
        return None
    try:
        scheme = json.loads((folder / SCHEME_FILE).read_text(encoding="utf-8"))
        named = scheme.get("scheme") if isinstance(scheme, dict) else None
        bias = load_file(folder / BIAS_FILE)["bias"]
    except FileNotFoundError as error:
        raise MechheadsError(
            f"{folder} is a sparse model, but {Path(error.filename or BIAS_FILE).name} is missing. "
            "Copy it there: without its gates it is a different model."
        ) from None
    except (OSError, ValueError, LookupError, RecursionError, SafetensorError) as error:
        raise MechheadsError(
            f"the gates of {folder} cannot be read ({error}). Copy {SCHEME_FILE} and {BIAS_FILE} "
            "again."
        ) from None
    if named != SCHEME:
        raise MechheadsError(
            f"{folder / SCHEME_FILE} names the scheme {named!r}, but this version supports only "
            f"{SCHEME!r}."
        )
    if bias.shape != (n_layers, n_heads):
        raise MechheadsError(
            f"{folder / BIAS_FILE} has gates for {' x '.join(map(str, bias.shape))} heads, but "
            f"the model has {n_layers} x {n_heads}. Copy the gates of this model."
        )
    if not bias.is_floating_point() or not bool(bias.isfinite().all()):
        raise MechheadsError(
            f"{folder / BIAS_FILE} has gates that are not finite numbers. Copy the gates of this "
            "model."
        )
    return bias
