"""Do both kinds of model give the same numbers? `python -m mechheads.benchmarks.agreement`.

1. One model, one backend, one file: effects by patching, attribution and integrated gradients, the
   curve, gates, masked answers and filler attention, each as one array.
2. `compare` prints the largest difference between two such files, per measurement, beside the size
   of what was measured.

Files of other environments can be compared too, so that one environment measures with
TransformerLens 3.9 and another with 4:

    python -m mechheads.benchmarks.agreement measure mini hooked a.safetensors
    python -m mechheads.benchmarks.agreement measure mini bridge b.safetensors
    python -m mechheads.benchmarks.agreement compare a.safetensors b.safetensors
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import circuits
import mechheads
import tasks
from mechheads.filler.average_attention import measure_attention
from mechheads.filler.insertion import make
from mechheads.masking.experiment import mask_tasks
from mechheads.metrics import text
from mechheads.prompts.partitions import QuestionSplit
from mechheads.scoring.gate_fitting import FitSettings
from tasks.questions import make_questions

METHODS = ("patch", "attribution", "ig")
NAMES = "Tom,Tim,Ben,Sam,Max,Sue,Jack,Anna,Lucy,Bob,Amy"  # single tokens of small models too


def measure(name: str, backend: str, n: int = 8) -> dict[str, Tensor]:
    """What every experiment gives on a few prompts."""
    model = mechheads.load(name, backend=backend)
    prompts = tasks.make("ioi", model, n=2 * n, names=NAMES)
    ranking, judging = prompts.halves()
    found: dict[str, Tensor] = {}
    for method in METHODS:
        found[method] = mechheads.score_heads(model, ranking, method, quiet=True).values
    layers, heads = found["patch"].shape[1:]
    order = [(layer, head) for head in range(heads) for layer in range(layers)]
    curve = circuits.explained_effect_curve(
        model, judging, order, draws=2, points="all", quiet=True
    )
    found["curve"] = curve.values
    fit = FitSettings(seeds=2, updates=4, batch=4)
    found["gates"] = mechheads.fit_gates(model, ranking, fit, quiet=True).effects
    questions = make_questions("retrieval", model, n=64)[0]
    ranked, asked = questions.only(range(8)).split_at(4)
    split = QuestionSplit((ranked,), (asked,))
    own = {"k": "4", "draws": 2, "max_tokens": 3, "method": "attribution", "quiet": True}
    masked = mask_tasks(model, split, [text.find("exact"), text.find("chrf")], **own)
    found["masking"] = torch.tensor(masked.frame().select_dtypes("float").to_numpy())
    filled = {c: make(model, questions.items, c, length=8) for c in ("none", "mless")}
    attention = measure_attention(model, filled, None).frame()
    found["prefix"] = torch.tensor(attention.select_dtypes("float").to_numpy())
    return {key: value.nan_to_num().float().contiguous() for key, value in found.items()}


def compare(one: Path, other: Path) -> None:
    """Print the largest difference of every measurement, and how large its values are."""
    a, b = load_file(one), load_file(other)
    print(f"{'':12} largest difference   of the mean over prompts   largest value")
    for key, value in a.items():
        apart = float((value - b[key]).abs().max())
        means = float((value.mean(0) - b[key].mean(0)).abs().max())
        print(f"{key:12} {apart:18.1e} {means:26.1e} {float(value.abs().max()):15.3g}")


def main(words: list[str]) -> None:
    """`measure MODEL BACKEND FILE` or `compare FILE FILE`."""
    if len(words) == 4 and words[0] == "measure":
        save_file(measure(words[1], words[2]), words[3])
    elif len(words) == 3 and words[0] == "compare":
        compare(Path(words[1]), Path(words[2]))
    else:
        sys.exit("usage: agreement measure MODEL BACKEND FILE, or agreement compare FILE FILE")


if __name__ == "__main__":
    main(sys.argv[1:])
