"""Command `mask`: what does a model answer without its top heads?"""

from typing import Literal

from mechheads.cli.main import run
from mechheads.jobs.run import Finished, run_command
from mechheads.models.options import ModelOptions


def mask(
    *,
    tasks: str = "retrieval,knowledge_recall,math_calculation,inference",
    model: str = "mini",
    method: str = "patch",
    signed: bool = False,
    k: str | None = None,
    heads: str | None = None,
    circuit: str | None = None,
    n: int = 32,
    rank: int = 32,
    draws: int = 5,
    seed: int = 0,
    split: str = "test",
    positions: Literal["last", "all"] = "last",
    scale: float = 0.0,
    metrics: str = "exact,chrf",
    comet_command: str = "comet-score",
    max_tokens: int = 32,
    matrix: bool = False,
    matrix_k: str | None = None,
    out: str = "runs",
    loading: ModelOptions = ModelOptions(),
    budget: int | None = None,
    quiet: bool = False,
    json: bool = False,
    **options: str,
) -> Finished:
    """Mask the top-ranked heads, or as many random ones, and score the model's answers.

    Heads are ranked on some questions, and the model answers others that share no subject with
    them. With --heads or --circuit, these heads are masked instead. Writes a run folder under --out
    and prints the path of its report last.

    Args:
        tasks: comma-separated built-in tasks or .jsonl files with question and answer
        model: mini, mini-sparse, smollm2, a model directory, a .gguf file or a hub id
        method: patch, attribution, ig, atp, gim, hybrid, auto, path, direct, gating (below), an
            ensemble of several, or probe (a classifier that distinguishes the tasks' functions)
        signed: rank by the signed score, not its magnitude
        k: heads to mask, as counts or percentages (16,32,10%); default: the four largest powers of
            two up to a quarter of the heads. With --method probe also elbow (as many as the probe
            finds for each function)
        heads: heads to mask, e.g. L9H6,L9H9, instead of the top of a ranking; the same for all
            tasks
        circuit: the same from a circuit.json, or a published one, e.g. ioi_gpt2_small
        n: questions to answer per task or function
        rank: questions to rank the heads on per task or function; with --heads they are set aside,
            so that the same questions are answered as with a ranking
        draws: random sets of heads per k, none of them top heads; 0 for none
        seed: seed of the questions and the random heads
        split: test, train (what the embedded models were trained on) or all
        positions: last (mask only the last position of every pass, so all heads read the prompt) or
            all
        scale: factor applied to a masked head's output
        metrics: comma-separated: exact, composite, chrf, bleu, rouge1, comet
        comet_command: the comet-score program of unbabel-comet, for --metrics comet
        max_tokens: longest answer in tokens
        matrix: also mask each function's heads and test all other functions
        matrix_k: heads to mask for --matrix, a count or percentage; default: the middle one of --k
        out: parent folder of the run folders
        loading: how the models are loaded
        budget: tokens per pass, which bounds memory; default: chosen for the device
        quiet: print no notices and show no progress bar
        json: print one JSON object (headline, warnings, folder) instead of text
        options: options of the method
    """
    return run_command("mask", locals())


if __name__ == "__main__":
    run(mask)
