"""Sparse post-training: a dense model learns to do the same with few attention edges.

After arXiv:2512.05865:
1. Every head gets a gate bias, positive at first, so that its edges start open (see `edge_gates`).
2. All weights are trained on the cross-entropy, plus the divergence from the dense model's softened
   predictions, plus c times the expected share of open edges, with gates sampled at random.
3. c is the multiplier of a constraint: it grows while the loss is less than `slack` above the dense
   model's on the same tokens, and shrinks while it is more or edges are few enough.
4. In the last part the learning rates fall and the gates are deterministic, as at inference: noisy
   edges hurt what needs them exactly, above all arithmetic (our addition, not in the paper).
5. With `start`, training continues from an earlier sparse model; the teacher is still dense.

The data and noise of a step depend only on the seed and the step, so that a resumed run ends with
the same weights.
"""

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from mechheads.errors import MechheadsError
from mechheads.models import edge_gates, locate
from mechheads.models.huggingface import Original, quiet_libraries, read_original, save_original
from mechheads.progress import bar
from mechheads.runs.files import append_row, keep_rows, prepare

from . import checkpoints
from .data import Rows, TrainingData, thinned
from .muon import Muon

# Both models' logits are divided by it before they are compared: otherwise a confident model
# reveals next to nothing about how it gets to its answer, and what was held out is forgotten first.
TEMPERATURE = 4.0


@dataclass(frozen=True)
class Settings:
    """How a model is made sparse; a checkpoint is only resumed with the same settings."""

    model: str
    text: str = "tasks"
    length: int = 128
    steps: int = 1300
    batch: int = 128
    slack: float = 0.05
    density: float = 0.004
    rate: float = 6e-4
    bias_rate: float = 2e-2
    bias: float = 5.0
    multiplier: float = 1.0
    multiplier_rate: float = 0.02
    multiplier_max: float = 200.0
    settle: float = 0.4
    decay: float = 0.0
    distill: float = 1.0
    lora: int = 0
    seed: int = 0
    start: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What is lost and what is left with deterministic gates."""

    gap: float  # cross-entropy above the dense model's, in nats
    density: float  # share of the causal edges that are open
    live: int  # heads with an open edge


@dataclass(frozen=True)
class Student:
    """The model being made sparse, its gates, and the original dense model as teacher."""

    model: Any
    bias: Float[Tensor, "layer head"]
    teach: Callable[[Tensor, Tensor], Tensor]

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        named = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        return {**named, "edge_gates": self.bias}


@dataclass(frozen=True)
class Control:
    """The multiplier and the running means that drive it."""

    multiplier: float
    gap: float = 0.0
    density: float = 1.0

    def after(self, gap: float, density: float, settings: Settings) -> "Control":
        """Grow while the constraint holds and there are too many edges, shrink otherwise."""
        gap = 0.95 * self.gap + 0.05 * gap
        density = 0.95 * self.density + 0.05 * density
        push = max(-1.0, min(1.0, (settings.slack - gap) / settings.slack))
        if density < settings.density:
            push = -1.0
        multiplier = self.multiplier * math.exp(settings.multiplier_rate * push)
        return Control(min(multiplier, settings.multiplier_max), gap, density)


def sparsify(
    original: Original,
    data: TrainingData,
    settings: Settings,
    out: Path,
    *,
    stop_after: int | None = None,
    save_every: int = 100,
    quiet: bool = False,
) -> Outcome:
    """Post-train the model and write it to `out`; resumes from the checkpoint if there is one."""
    check(settings)
    training = prepare(out / "training")
    student = begin(original, settings)
    optimizer = _optimizer(student, settings)
    checkpoint = training / "checkpoint.safetensors"
    last = {"step": settings.steps, "seconds": 0.0, "control": asdict(Control(settings.multiplier))}
    state = checkpoints.restore(checkpoint, student.parameters, optimizer, asdict(settings), last)
    start, spent = state.get("step", 0), state.get("seconds", 0.0)
    keep_rows(training / "log.csv", "step", start)
    control = Control(**state.get("control", {"multiplier": settings.multiplier}))
    end = settings.steps if stop_after is None else min(settings.steps, stop_after)
    clock = time.monotonic()
    with bar(settings.steps, "Steps", quiet, initial=start) as progress:
        for step in range(start, end):
            control = train_step(student, optimizer, data.batches(step), control, settings, step)
            progress.set_postfix(
                loss=f"+{control.gap:.3f}",
                constraint=f"{control.multiplier:.2g}",
                density=f"{control.density:.2%}",
                refresh=False,
            )
            progress.update()
            if (step + 1) % save_every == 0 or step + 1 == end:
                found = measure(student, data.tests)
                seconds = spent + time.monotonic() - clock
                append_row(
                    training / "log.csv",
                    {
                        "step": step + 1,
                        "seconds": f"{seconds:.0f}",
                        "train_gap": f"{control.gap:.5f}",
                        "train_density": f"{control.density:.6f}",
                        "multiplier": f"{control.multiplier:.5g}",
                        "test_gap": f"{found.gap:.5f}",
                        "test_density": f"{found.density:.6f}",
                        "live_heads": found.live,
                    },
                )
                state = {"step": step + 1, "seconds": seconds, "control": asdict(control)}
                checkpoints.save(checkpoint, student.parameters, optimizer, asdict(settings), state)
    found = measure(student, data.tests)
    if end == settings.steps:
        _write(original, student, settings, found, out)
    return found


def check(settings: Settings) -> None:
    """Raise an error that names an invalid setting, before a model is loaded."""
    for name in ("length", "steps", "batch", "slack", "rate", "bias_rate", "multiplier"):
        if not getattr(settings, name) > 0:
            raise MechheadsError(
                f"--{name.replace('_', '-')} takes more than 0, got {getattr(settings, name)}."
            )
    for name in ("density", "decay", "distill", "lora"):
        if not getattr(settings, name) >= 0:
            raise MechheadsError(f"--{name} takes 0 or more, got {getattr(settings, name)}.")
    if not 0 < settings.settle <= 1:
        raise MechheadsError(
            f"--settle is a share of the steps, 0.4 for the last 40 %; got {settings.settle}."
        )
    if settings.density >= 1:
        raise MechheadsError(
            f"--density is a share of the edges, 0.004 for 0.4 %; got {settings.density}."
        )
    if settings.start and settings.lora:
        raise MechheadsError("--start trains all weights, --lora does not. Drop one of them.")
    if settings.length < 2:
        raise MechheadsError(f"--length takes 2 tokens or more, got {settings.length}.")


def begin(original: Original, settings: Settings) -> Student:
    """The student with open gates, and its teacher."""
    model = original.hf_model
    device = model.device
    bias = torch.full((original.n_layers, original.n_heads), settings.bias, device=device)
    if settings.lora:
        model = _with_adapters(model, settings)

        def teach(tokens: Tensor, asked: Tensor) -> Tensor:
            with model.disable_adapter():
                return predict(model, tokens, asked)

        return Student(model, bias.requires_grad_(), teach)
    dense = copy.deepcopy(model)
    if settings.start:
        bias = _take_over(original, settings.start).to(device)
    model.requires_grad_(True)
    return Student(model, bias.requires_grad_(), partial(predict, dense))


def predict(
    model: Any, tokens: Int[Tensor, "row pos"], asked: Bool[Tensor, "row next"]
) -> Float[Tensor, "asked vocab"]:
    """Next-token logits at the `asked` positions, all but the last; no others are unembedded."""
    chosen = model.get_output_embeddings().register_forward_pre_hook(
        lambda _, given: (given[0][:, :-1][asked], *given[1:])
    )
    try:
        return model(tokens, use_cache=False).logits
    finally:
        chosen.remove()


def _take_over(original: Original, start: str) -> Float[Tensor, "layer head"]:
    """Load the weights of a sparse model of the same shape; return its gate biases."""
    source = locate.find(start)
    with quiet_libraries():
        earlier, _ = read_original(source, torch.float32)
    config = earlier.config.to_dict()
    bias = edge_gates.read(source.folder, config, original.n_layers, original.n_heads)
    if bias is None:
        raise MechheadsError(f"--start {start} is not a sparse model. Give one made by sparsify.")
    try:
        original.hf_model.load_state_dict(earlier.state_dict())
    except RuntimeError:
        raise MechheadsError(
            f"--start {start} has different weights from {original.name}. Give one made from it."
        ) from None
    return bias


def _with_adapters(model: Any, settings: Settings) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise MechheadsError(
            "--lora needs peft, which is not installed. Run: pip install 'mechheads[large]'"
        ) from None
    torch.manual_seed(settings.seed)
    config = LoraConfig(r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about GPT-2's transposed matrices, which peft handles
        return get_peft_model(model, config)


def train_step(
    student: Student,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Rows],
    control: Control,
    settings: Settings,
    step: int,
) -> Control:
    """Take one step on the rows; returns the multiplier for the next."""
    torch.manual_seed(settings.seed * 1_000_003 + step)
    late = (step / settings.steps - (1 - settings.settle)) / settings.settle
    for group in optimizer.param_groups:
        group["lr"] = group["full_rate"] * (
            0.02 + 0.98 * (1 + math.cos(math.pi * max(0.0, late))) / 2
        )
    student.model.eval()  # no dropout
    optimizer.zero_grad()
    weight, edges = _sizes(parts, student.bias)
    gap = density = 0.0
    for part in parts:
        loss, divergence, dense_loss, gated = _forward(student, part, thin=True, noisy=late < 0)
        share = gated.expected / edges
        total = (loss + settings.distill * divergence) / weight + control.multiplier * share
        total.backward()
        gap += (loss.item() - dense_loss) / weight
        density += share.item() if late < 0 else gated.open.sum().item() / edges
    weights = [p for name, p in student.parameters.items() if name != "edge_gates"]
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    return control.after(gap, density, settings)


def _sizes(parts: Sequence[Rows], bias: Float[Tensor, "layer head"]) -> tuple[float, int]:
    """The sum of the token weights, and the number of causal edges of all heads."""
    weight = sum(float(part.weights.sum()) for part in parts)
    edges = 0
    for part in parts:
        reach = torch.arange(1, part.tokens.shape[1] + 1)
        edges += int((part.queries * reach).sum())
    return weight, edges * bias.numel()


def _forward(
    student: Student, part: Rows, *, thin: bool = False, noisy: bool = False
) -> tuple[Float[Tensor, ""], Float[Tensor, ""], float, edge_gates.Gated]:
    """Weighted sums: the student's loss, its divergence from the teacher, the teacher's loss.

    Edges are counted for all tokens; with `thin`, a sample of the light ones stands for all.
    """
    device = student.bias.device
    tokens, queries = part.tokens.to(device), part.queries.to(device)
    weights = part.weights.to(device)[:, 1:]
    asked, weights = thinned(weights) if thin else (weights > 0, weights[weights > 0])
    targets = tokens[:, 1:][asked]
    with torch.no_grad():
        dense = student.teach(tokens, asked)
    with edge_gates.Gated(student.bias, queries, sample=noisy) as gated:
        sparse = predict(student.model, tokens, asked)

    def loss(logits: Tensor) -> Tensor:
        return (F.cross_entropy(logits, targets, reduction="none") * weights).sum()

    soft, wanted = ((x / TEMPERATURE).log_softmax(-1) for x in (sparse, dense))
    apart = F.kl_div(soft, wanted, reduction="none", log_target=True).sum(-1)
    divergence = TEMPERATURE**2 * (apart * weights).sum()
    return loss(sparse), divergence, loss(dense).item(), gated


@torch.no_grad()
def measure(student: Student, tests: Sequence[Rows]) -> Outcome:
    """Evaluate the deterministic gates on held-out rows."""
    weight, edges = _sizes(tests, student.bias)
    gap = 0.0
    opened = torch.zeros_like(student.bias, dtype=torch.long)
    for part in tests:
        loss, _, dense_loss, gated = _forward(student, part)
        gap += (loss.item() - dense_loss) / weight
        opened += gated.open
    return Outcome(gap, opened.sum().item() / edges, int((opened > 0).sum()))


def _optimizer(student: Student, settings: Settings) -> Muon:
    """Muon for the matrices of the blocks, AdamW for everything else and low-rank adapters."""
    named = {name: p for name, p in student.parameters.items() if name != "edge_gates"}
    ends = ("wte", "wpe", "embed", "lm_head")
    matrices = {
        name: p
        for name, p in named.items()
        if p.ndim == 2 and not settings.lora and not any(end in name for end in ends)
    }
    # GPT-2's queries, keys and values are side by side in one matrix.
    joint = [p for name, p in matrices.items() if name.endswith("attn.c_attn.weight")]
    single = [p for name, p in matrices.items() if not name.endswith("attn.c_attn.weight")]
    others = [p for name, p in named.items() if name not in matrices]
    decay = settings.decay
    groups = [
        {"params": joint, "pieces": 3, "full_rate": settings.rate, "weight_decay": decay},
        {"params": single, "pieces": 1, "full_rate": settings.rate, "weight_decay": decay},
        {"params": others, "pieces": 0, "full_rate": settings.rate / 2},
        {"params": [student.bias], "pieces": 0, "full_rate": settings.bias_rate},
    ]
    kept = [group for group in groups if group["params"]]
    return Muon(kept, betas=(0.9, 0.98), weight_decay=0.0)


def _write(
    original: Original, student: Student, settings: Settings, found: Outcome, out: Path
) -> None:
    """Write the sparse model's directory; config.json comes last and marks it complete."""
    model = student.model
    if settings.lora:
        model = copy.deepcopy(model).merge_and_unload()

    def save(folder: Path) -> None:
        save_original(model, original.tokenizer, folder)
        facts = {
            "base": settings.model,
            "text": settings.text,
            "steps": settings.steps,
            "slack": settings.slack,
            "seed": settings.seed,
            **({"start": settings.start} if settings.start else {}),
            "held_out_loss_gap": round(found.gap, 5),
            "held_out_density": round(found.density, 6),
            "live_heads": found.live,
        }
        edge_gates.write(folder, student.bias, facts)

    checkpoints.write_model(out, save)
