"""Train the embedded model from scratch on the tasks' prompts.

1. The tokenizer's vocabulary is every word of the tasks, so that each is one token, plus all bytes,
   so that any text can be encoded.
2. A step draws prompts of every task from the training split, followed by their answers, in a few
   groups of similar length, plus repeated random words; see `data` for the weights of tokens.
3. Muon (AdamW for all but the matrices of the blocks) with a high learning rate that falls in
   steps; then attention dropout, which spreads each function over more heads; finally without it
   again, since it hurts arithmetic.
4. Several processes draw and run the rows of a step. Rows and dropout depend only on the seed, the
   step and the worker, so that a run resumed from its checkpoint ends with the same weights.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import Parameter
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from mechheads.errors import MechheadsError
from mechheads.models.huggingface import save_original
from mechheads.options import check_least
from mechheads.progress import bar
from mechheads.prompts import Pair
from mechheads.runs.files import append_row, keep_rows, prepare

from . import checkpoints, workers
from .data import Batches, Rows, rows, thinned
from .muon import Muon

END = "<|endoftext|>"
# A word with the space before it, one or two digits with theirs, a run of line breaks with the
# indentation after it, or a run of other characters.
PIECE = r"\n+ *| ?[A-Za-z_]+| ?\d{1,2}| ?[^\sA-Za-z\d_]+|\s+"


@dataclass(frozen=True)
class Recipe:
    """Model size and training length: `steps`, then `last` steps without dropout."""

    layers: int = 4
    heads: int = 8
    width: int = 128
    context: int = 128
    steps: int = 4500
    last: int = 800
    warm_up: int = 150
    rate: float = 3.6e-3
    rate_others: float = 1.8e-3
    decay: float = 0.1
    dropout: float = 0.2
    dropout_from: float = 0.8
    workers: int = 2
    seed: int = 0


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Every piece of the texts is a token; anything else is encoded as bytes."""
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
    model = GPT2LMHeadModel(config)
    # Rows are packed and need no attention mask, for which transformers would ask.
    logging.getLogger("transformers.modeling_utils").setLevel(logging.ERROR)
    # GPT-2's initialization suits wide models: heads of a narrow one would hardly differ.
    for name, weight in model.named_parameters():
        if name.endswith(("attn.c_attn.weight", "mlp.c_fc.weight")):
            torch.nn.init.normal_(weight, std=recipe.width**-0.5)
    return model


def loss_of(model: GPT2LMHeadModel, part: Rows) -> Tensor:
    """Weighted sum of the token losses; a sample of the light tokens stands for all."""
    inside = model.transformer(part.tokens, position_ids=part.positions)
    hidden = inside.last_hidden_state[:, :-1]
    kept, weights = thinned(part.weights[:, 1:])
    logits, targets = model.lm_head(hidden[kept]), part.tokens[:, 1:][kept]
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (losses * weights).sum()


def pace(recipe: Recipe, step: int) -> float:
    """Learning-rate factor: warm-up to 1; 1/3 from 35 % of the steps, 1/7 from 50 %; then cosine.

    The cosine starts at 80 %. Copying is learned at the high rate, multi-step tasks only at the
    lower ones. The `last` steps start again at 1/7 and end with a cosine.
    """
    if step < recipe.warm_up:
        return (step + 1) / recipe.warm_up
    done = step / recipe.steps
    if done < 0.5:
        return 1.0 if done < 0.35 else 1 / 3
    if step < recipe.steps:
        late = max(0.0, (done - 0.8) / 0.2)
    else:
        late = max(0.0, ((step - recipe.steps) / recipe.last - 0.4) / 0.6)
    return 0.02 + (1 / 7 - 0.02) * (1 + math.cos(math.pi * late)) / 2


@torch.inference_mode()
def accuracies(
    model: GPT2LMHeadModel,
    tokenizer: PreTrainedTokenizerFast,
    tests: Mapping[str, Sequence[Pair]],
) -> dict[str, float]:
    """Share of test prompts whose answer the model predicts, token by token."""
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
    worker_batches: Callable[[int, int], Batches],
    tests: Mapping[str, Sequence[Pair]],
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    out: Path,
    *,
    stop_after: int | None = None,
    save_every: int = 250,
    quiet: bool = False,
) -> GPT2LMHeadModel:
    """Train, or resume from the checkpoint; the model goes to `out`, everything else below it.

    worker_batches(worker, workers) returns what a worker trains on; processes import it by name.
    """
    _check(recipe)
    training = prepare(out / "training")
    checkpoint = training / "checkpoint.safetensors"
    model = new_model(recipe, len(tokenizer))
    optimizer = _optimizer(model, recipe)
    named, settings = dict(model.named_parameters()), asdict(recipe)
    last = {"step": recipe.steps + recipe.last, "seconds": 0.0}
    state = checkpoints.restore(checkpoint, named, optimizer, settings, last)
    begin, spent = state.get("step", 0), state.get("seconds", 0.0)
    keep_rows(training / "log.csv", "step", begin)
    whole = recipe.steps + recipe.last
    end = whole if stop_after is None else min(whole, stop_after)
    clock = time.monotonic()
    work = Work(recipe, len(tokenizer), worker_batches)
    with (
        workers.start(work.make_worker, list(named.values()), recipe.workers) as running,
        bar(whole, "Steps", quiet, initial=begin) as progress,
    ):
        for step in range(begin, end):
            loss = _step(running, optimizer, recipe, step)
            progress.set_postfix(loss=f"{loss:.3f}", refresh=False)
            progress.update()
            if (step + 1) % save_every == 0 or step + 1 == end:
                found = accuracies(model, tokenizer, tests)
                seconds = spent + time.monotonic() - clock
                append_row(
                    training / "log.csv",
                    {"step": step + 1, "seconds": f"{seconds:.0f}", "loss": f"{loss:.4f}"}
                    | {task: f"{value:.3f}" for task, value in found.items()},
                )
                state = {"step": step + 1, "seconds": seconds}
                checkpoints.save(checkpoint, named, optimizer, settings, state)
    model.config.attn_pdrop = 0.0
    checkpoints.write_model(out, lambda folder: save_original(model, tokenizer, folder))
    return model.eval()


@dataclass(frozen=True)
class Work:
    """What every process of a run needs to compute its part of a step."""

    recipe: Recipe
    vocabulary: int
    worker_batches: Callable[[int, int], Batches]

    def make_worker(self, worker: int) -> tuple[list[Parameter], workers.Compute]:
        """The parameters of the worker's own model, and how it computes a step."""
        recipe = self.recipe
        model = new_model(recipe, self.vocabulary)
        batches = self.worker_batches(worker, recipe.workers)

        def compute(step: int) -> list[float]:
            late = recipe.dropout_from * recipe.steps <= step < recipe.steps
            _set_dropout(model, recipe.dropout if late else 0.0)
            model.train()
            parts = batches(step)
            torch.manual_seed((recipe.seed * 1_000_003 + step) * recipe.workers + worker)
            summed = 0.0
            for part in parts:
                loss = loss_of(model, part)
                loss.backward()
                summed += loss.item()
            return [summed, sum(float(part.weights.sum()) for part in parts)]

        return list(model.parameters()), compute


def _check(recipe: Recipe) -> None:
    for name in ("layers", "heads", "width", "steps", "workers"):
        check_least(f"--{name}", getattr(recipe, name), 1)
    check_least("--last", recipe.last, 0)
    if recipe.width % recipe.heads:
        raise MechheadsError(f"--width {recipe.width} is not a multiple of --heads {recipe.heads}.")


def _step(
    running: workers.Workers, optimizer: torch.optim.Optimizer, recipe: Recipe, step: int
) -> float:
    loss, weight = running.step(step)
    for parameter in running.parameters:
        if parameter.grad is not None:
            parameter.grad /= weight
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * pace(recipe, step)
    torch.nn.utils.clip_grad_norm_(running.parameters, 1.0)
    optimizer.step()
    return loss / weight


def _set_dropout(model: GPT2LMHeadModel, share: float) -> None:
    for name, module in model.named_modules():
        if name.endswith("attn_dropout") and isinstance(module, torch.nn.Dropout):
            module.p = share


def _optimizer(model: GPT2LMHeadModel, recipe: Recipe) -> Muon:
    """Queries, keys and values are one matrix in GPT-2, but are orthogonalized separately."""
    named = dict(model.named_parameters())
    matrices = {n: p for n, p in named.items() if p.ndim == 2 and ".h." in n}
    joint = [p for n, p in matrices.items() if "attn.c_attn" in n]
    single = [p for n, p in matrices.items() if "attn.c_attn" not in n]
    others = [p for n, p in named.items() if n not in matrices]
    groups = [
        {"params": joint, "pieces": 3, "weight_decay": recipe.decay, "peak": recipe.rate},
        {"params": single, "pieces": 1, "weight_decay": recipe.decay, "peak": recipe.rate},
        {"params": others, "pieces": 0, "weight_decay": 0.0, "peak": recipe.rate_others},
    ]
    return Muon(groups, betas=(0.9, 0.98))
