"""Command `discover`: find the heads that do a task."""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def discover(
    *,
    task: str | None = None,
    model: str = "mini",
    level: Literal["heads", "edges"] = "heads",
    method: str = "auto",
    metric: str | None = None,
    n: int | Literal["auto"] | None = None,
    test: int | None = None,
    seed: int = 0,
    split: str = "test",
    skip_misaligned: bool = False,
    threshold: float = 0.9,
    k: int | None = None,
    search: Literal["top", "prune", "greedy"] = "top",
    heads: str | None = None,
    circuit: str | None = None,
    alternatives: int = 0,
    effects: str | None = None,
    signed: bool = False,
    direction: Literal["noising", "denoising"] = "noising",
    replacement: Literal["corrupt", "zero", "mean", "position_mean"] = "corrupt",
    points: str = "auto",
    draws: int = 10,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Find the heads that do a task: rank them, keep the top ones, measure how much they explain.

    Heads are ranked on one set of prompts, and the ranking is evaluated on another. With --heads or
    --circuit, your own circuit is evaluated instead: what it explains, what is left without it,
    what each head contributes, next to as many top heads and random ones. With --level edges, edges
    are ranked and kept instead: from a head to the query, key or value of later ones, to an MLP or
    to the logits. Writes a run folder under --out and prints the path of its report last.

    Args:
        task: a built-in task (below) or a .jsonl file with clean, corrupt, answer and wrong; if not
            given, ioi, or for a model like known/induction the task of its name
        model: mini, mini-sparse, smollm2, known/induction (or another model with known heads), a
            model directory, a .gguf file or a hub id
        level: heads, or edges, ranked by edge attribution with integrated gradients (--steps,
            default 5)
        method: patch, attribution, ig, atp, gim, hybrid, path, direct or gating (below), an
            ensemble of several, or auto: patch if that takes at most --time minutes here (default
            10), else hybrid
        metric: logit_diff, logit_diff_max, prob_diff, logprob, accuracy, top1 or kl; default: the
            task's own
        n: prompts to rank the heads on; default: 32, or half of a task file; auto: 16, doubled
            until the order of the heads is settled around the circuit's border, at most 128
        test: prompts to evaluate the ranking on; default: 32, or the other half of a task file
        seed: seed of the prompts and the random rankings
        split: test, train (what the embedded models were trained on) or all
        skip_misaligned: leave out prompts of a task file that cannot be used with the model's
            tokenizer, e.g. because clean and corrupt differ in length
        threshold: fraction of the effect that the circuit must explain
        k: number of heads to keep; default: as many as it takes to reach --threshold
        search: top (the top of the ranking), prune or greedy (fewer heads, slower)
        heads: your own circuit to evaluate, e.g. L9H6,L9H9, instead of choosing one
        circuit: the same from a circuit.json, or a published one, e.g. ioi_gpt2_small
        alternatives: search so many times for other heads that explain as much: none of the
            circuit's, or used ones penalised; each search takes about two curves
        effects: rank by a CSV file instead of a method: layer, head, effect for every head, e.g.
            effects.csv of an earlier run
        signed: rank by the signed effect, not its magnitude; misleading where heads are dead
        direction: noising (break the clean run) or denoising (restore the corrupted run)
        replacement: what replaces the heads not kept: corrupt, zero, mean or position_mean
        points: at how many numbers of heads to measure the curve: auto (every one up to 64 heads,
            about 60 of more), all, or a number; more are added around --threshold
        draws: number of random rankings to compare with
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: options of the task and the method
    """
    return run_command("discover", locals())


if __name__ == "__main__":
    run(discover)
