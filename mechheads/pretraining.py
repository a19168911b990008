"""Trains the embedded model from scratch on the tasks' own prompts.

1. The tokenizer's vocabulary is every word of the tasks, so that each is one token, and all bytes,
   so that any text can be encoded.
2. A step draws prompts of every task from the training split, with their answers behind them, and
   runs them in a few groups of like length. Answer tokens weigh 1, those of the solved examples
   before the question too; other tokens weigh 0.1.
3. AdamW, warm-up, constant, then cosine; attention dropout in the last part, which spreads each
   job over more heads.
4. Every step's data and dropout depend on the seed and the step alone, so that a run which was
   stopped and resumed from its checkpoint ends with the same weights.
"""

import csv
import json
import math
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from .errors import MechheadsError
from .progress import bar
from .prompts import Pair, Share, draw

END = "<|endoftext|>"
# A word with the space before it, one or two digits with theirs, a run of line breaks with the
# indentation behind it, or a run of other signs.
PIECE = r"\n+ *| ?[A-Za-z_]+| ?\d{1,2}| ?[^\sA-Za-z\d_]+|\s+"


@dataclass(frozen=True)
class Recipe:
    """The size of the model and how long it is trained."""

    layers: int = 4
    heads: int = 8
    width: int = 128
    context: int = 128
    steps: int = 5000
    warm_up: int = 150
    rate: float = 1.2e-3
    decay: float = 0.1
    dropout: float = 0.2
    dropout_from: float = 0.8
    seed: int = 0


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every piece of the texts is a token; what they do not hold is spelled in bytes."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    numbers = [f"{space}{n}" for space in ("", " ") for n in range(100)]
    numbers += [f"{n:02}" for n in range(10)]
    words = {piece for text in (*texts, *numbers) for piece, _ in split.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [END, *alphabet, *sorted(words - set(alphabet))]
    inner = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(vocabulary)}, merges=[], ignore_merges=True
        )
    )
    inner.pre_tokenizer = split
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=END, eos_token=END, unk_token=END, pad_token=END
    )


def new_model(recipe: Recipe, vocabulary: int) -> GPT2LMHeadModel:
    """A GPT-2 of the recipe's size with random weights."""
    torch.manual_seed(recipe.seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=recipe.context,
        n_embd=recipe.width,
        n_layer=recipe.layers,
        n_head=recipe.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        architectures=["GPT2LMHeadModel"],
    )
    return GPT2LMHeadModel(config)


def examples(share: Share, rng: random.Random) -> list[tuple[str, str]]:
    """Prompts of the training split with an answer each."""
    drawn = []
    for i in range(share.count):
        maker = share.makers[i % len(share.makers)]
        (pair,) = draw(maker, 1, rng, "train")
        if rng.random() < share.undecided:
            drawn.append((pair.corrupt, rng.choice(_introduced(pair))))
        else:
            drawn.append((pair.clean, rng.choice(pair.answers)))
    return drawn


def _introduced(pair: Pair) -> list[str]:
    """The two first words in which the corrupted prompt differs from the clean one."""
    words = zip(pair.clean.split(), pair.corrupt.split(), strict=True)
    return [f" {b.strip('.,')}" for a, b in words if a != b][:2]


@dataclass(frozen=True)
class Rows:
    """Token rows padded at the end, the weight of predicting each token, and what is asked for."""

    tokens: Tensor
    weights: Tensor
    asked: Tensor


def rows(
    tokenizer: PreTrainedTokenizerFast, drawn: Sequence[tuple[str, str]], groups: int = 9
) -> list[Rows]:
    """The examples as token rows behind an end-of-text token, in groups of like length."""
    encoded = sorted((_encode(tokenizer, *example) for example in drawn), key=len)
    made = []
    for part in _parts(encoded, groups):
        tokens = torch.zeros(len(part), max(map(len, part))).long()
        weights, asked = torch.zeros(tokens.shape), torch.zeros(tokens.shape).bool()
        for i, row in enumerate(part):
            end = len(row)
            tokens[i, :end], weights[i, :end], asked[i, :end] = torch.tensor(row).T
        made.append(Rows(tokens, weights, asked))
    return made


def _encode(
    tokenizer: PreTrainedTokenizerFast, prompt: str, answer: str
) -> list[tuple[int, float, int]]:
    """Tokens, their weights (0 for the first, 1 for answers, 0.1 else) and 1 for the answer."""
    whole = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
    spans = _solved(prompt)
    before = [
        (token, 1.0 if any(a <= begin and end <= b for a, b in spans) else 0.1, 0)
        for token, (begin, end) in zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    ]
    after = [(token, 1.0, 1) for token in tokenizer.encode(answer, add_special_tokens=False)]
    return [(0, 0.0, 0), *before, *after]


def _solved(prompt: str) -> list[tuple[int, int]]:
    """Where answers stand inside of a prompt: of examples, and arguments from the second on."""
    answers = list(re.finditer(r"\nAnswer:( [^\n]+)\n", prompt))
    arguments = list(re.finditer(r"\n    :param( \w+):", prompt))[1:]
    return [found.span(1) for found in (*answers, *arguments)]


def _parts(encoded: list, groups: int) -> list[list]:
    """The sorted rows cut where the padding is least: at equal steps of their length."""
    total = sum(map(len, encoded))
    parts: list[list] = [[]]
    used = 0
    for row in encoded:
        if used > total * len(parts) / groups:
            parts.append([])
        parts[-1].append(row)
        used += len(row)
    return parts


def loss_of(model: GPT2LMHeadModel, part: Rows) -> Tensor:
    """Weighted sum of the token losses; of the light tokens a random three in ten stand for all."""
    hidden = model.transformer(part.tokens).last_hidden_state[:, :-1]
    targets, weights = part.tokens[:, 1:], part.weights[:, 1:]
    light = (weights > 0) & (weights < 1)
    kept = (weights == 1) | (light & (torch.rand_like(weights) < 0.3))
    logits = model.lm_head(hidden[kept])
    scale = weights[kept] / torch.where(light[kept], 0.3, 1.0)
    losses = torch.nn.functional.cross_entropy(logits, targets[kept], reduction="none")
    return (losses * scale).sum()


def rate_at(recipe: Recipe, step: int) -> float:
    """Warm-up, constant until half-way, then cosine to a fiftieth."""
    if step < recipe.warm_up:
        return recipe.rate * (step + 1) / recipe.warm_up
    late = max(0.0, step / recipe.steps * 2 - 1)
    return recipe.rate * (0.02 + 0.98 * (1 + math.cos(math.pi * late)) / 2)


@torch.inference_mode()
def accuracies(
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerFast,
    tests: Mapping[str, Sequence[Pair]],
) -> dict[str, float]:
    """Share of the test prompts whose answer the model would say, token by token."""
    model.eval()
    found = {}
    for task, pairs in tests.items():
        drawn = [(pair.clean, pair.answers[-1]) for pair in pairs]
        good = 0
        for part in rows(tokenizer, drawn):
            said = model(part.tokens).logits[:, :-1].argmax(-1)
            wrong = (said != part.tokens[:, 1:]) & part.asked[:, 1:]
            good += int((~wrong.any(-1)).sum())
        found[task] = good / len(pairs)
    return found


def train(
    shares: Mapping[str, Share],
    tests: Mapping[str, Sequence[Pair]],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    out: Path,
    *,
    stop_after: int | None = None,
    save_every: int = 250,
    quiet: bool = False,
) -> GPT2LMHeadModel:
    """Train, or go on from the checkpoint in `out`; writes `log.csv` and the model's directory."""
    _check(recipe)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "log.csv").open("a").close()
    except OSError as error:
        raise MechheadsError(
            f"cannot write to {out} ({error.strerror}). Choose another --out."
        ) from None
    model = new_model(recipe, len(tokenizer))
    optimizer = _optimizer(model, recipe)
    begin = _restore(out, model, optimizer, recipe)
    end = recipe.steps if stop_after is None else min(recipe.steps, stop_after)
    clock = time.monotonic()
    with bar(end - begin, "Steps", quiet) as progress:
        for step in range(begin, end):
            loss = _step(model, optimizer, shares, tokenizer, recipe, step)
            progress.set_postfix(loss=f"{loss:.3f}", refresh=False)
            progress.update()
            if (step + 1) % save_every == 0 or step + 1 == end:
                found = accuracies(model, tokenizer, tests)
                seconds = time.monotonic() - clock
                _log(
                    out,
                    {"step": step + 1, "seconds": f"{seconds:.0f}", "loss": f"{loss:.4f}"}
                    | {task: f"{value:.3f}" for task, value in found.items()},
                )
                _save(out, model, optimizer, recipe, step + 1)
    model.config.attn_pdrop = 0.0
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return model.eval()


def _check(recipe: Recipe) -> None:
    for name in ("layers", "heads", "width", "steps"):
        if getattr(recipe, name) < 1:
            raise MechheadsError(f"--{name} takes 1 or more, got {getattr(recipe, name)}.")
    if recipe.width % recipe.heads:
        raise MechheadsError(f"--width {recipe.width} is no multiple of --heads {recipe.heads}.")


def _step(
    model: GPT2LMHeadModel,
    optimizer: torch.optim.Optimizer,
    shares: Mapping[str, Share],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    step: int,
) -> float:
    rng = random.Random(f"{recipe.seed}/{step}")
    torch.manual_seed(recipe.seed * 1_000_003 + step)
    drawn = [example for share in shares.values() for example in examples(share, rng)]
    parts = rows(tokenizer, drawn)
    total = sum(float(part.weights.sum()) for part in parts)
    _set_dropout(model, recipe.dropout if step >= recipe.dropout_from * recipe.steps else 0.0)
    for group in optimizer.param_groups:
        group["lr"] = rate_at(recipe, step)
    model.train()
    optimizer.zero_grad()
    summed = 0.0
    for part in parts:
        loss = loss_of(model, part) / total
        loss.backward()
        summed += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return summed


def _set_dropout(model: GPT2LMHeadModel, share: float) -> None:
    for name, module in model.named_modules():
        if name.endswith("attn_dropout") and isinstance(module, torch.nn.Dropout):
            module.p = share


def _optimizer(model: GPT2LMHeadModel, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and ".h." in n]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and ".h." in n)]
    groups = [
        {"params": matrices, "weight_decay": recipe.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98))


def _save(
    out: Path, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, recipe: Recipe, step: int
) -> None:
    """The checkpoint, safetensors only, written whole or not at all."""
    state = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for i, moments in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{i}.{key}": value for key, value in moments.items()}
    metadata = {"step": str(step), "recipe": json.dumps(recipe.__dict__)}
    save_file(state, out / "checkpoint.partial", metadata=metadata)
    (out / "checkpoint.partial").replace(out / "checkpoint.safetensors")


def _restore(
    out: Path, model: GPT2LMHeadModel, optimizer: torch.optim.Optimizer, recipe: Recipe
) -> int:
    """The step to go on from: 0 without a checkpoint."""
    from safetensors import safe_open

    file = out / "checkpoint.safetensors"
    if not file.exists():
        return 0
    with safe_open(file, "pt") as saved:
        metadata = saved.metadata()
    if (made_by := json.loads(metadata["recipe"])) != recipe.__dict__:
        other = next(key for key, value in recipe.__dict__.items() if made_by.get(key) != value)
        raise MechheadsError(
            f"{file} was made with --{other} {made_by.get(other)}, not {getattr(recipe, other)}. "
            "Go on with the same settings, or choose another --out."
        )
    state = load_file(file)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(state[f"model.{name}"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in state.items():
        if key.startswith("optimizer."):
            _, i, name = key.split(".")
            moments.setdefault(int(i), {})[name] = value
    whole = optimizer.state_dict()
    optimizer.load_state_dict(whole | {"state": moments})
    return int(metadata["step"])


def _log(out: Path, row: Mapping[str, str | int]) -> None:
    file = out / "log.csv"
    new = not file.stat().st_size
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)
