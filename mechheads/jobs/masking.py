"""The job of `mask`: answers without the top heads, or without random ones."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.cli.commands import COMMANDS
from mechheads.errors import MechheadsError, unknown
from mechheads.masking.selection import EITHER, RANKING
from mechheads.models.options import ModelOptions
from mechheads.options import check_least, flag_of, pick, read_list
from mechheads.prompts import check_prompts
from mechheads.scoring import registry as methods
from tasks import questions
from tasks import registry as tasks

from .given import file_digests, read_circuit
from .run import Job, Measured, Session

if TYPE_CHECKING:
    from mechheads.models.model import Model
    from mechheads.prompts.partitions import QuestionSplit

PROBE, ELBOW = "probe", "elbow"
# Passed to the experiment unchanged.
OPTIONS = "method signed k draws seed positions scale max_tokens matrix matrix_k budget".split()


def prepare(settings: Mapping[str, Any], quiet: bool = False) -> Job:
    """Check the settings; needs no torch."""
    model, method = settings["model"], settings["method"]
    names = read_list(settings["tasks"], str, "--tasks")
    metrics = read_list(settings["metrics"], str, "--metrics")
    options = COMMANDS["mask"].own_options(settings)
    circuit = read_circuit(settings, EITHER, RANKING)
    check_masks(settings, options)
    check_questions(names, settings, ranked=circuit is None)
    digests = file_digests(settings)
    check_answers(metrics, settings["max_tokens"])
    loading = pick(ModelOptions, settings)
    source = loading.find(model, quiet)

    def measure(session: Session) -> Measured:
        from mechheads.masking.experiment import mask_tasks
        from mechheads.metrics import text
        from mechheads.models.provenance import provenance

        qualities = [text.find(name, settings["comet_command"]) for name in metrics]
        loaded = loading.load(model, session.models, session.quiet)
        split = make_questions(loaded, names, settings)
        found = mask_tasks(
            loaded,
            split,
            qualities,
            heads=circuit,
            options=options,
            quiet=session.quiet,
            **{name: settings[name] for name in OPTIONS},
        )
        used = [*(split.ranked if circuit is None else ()), *split.asked]
        origin = provenance(loaded, source, used, settings["seed"])
        return Measured(found, origin | digests)

    words = ["mask", model, method if circuit is None else "given"]
    return Job(words, [model], settings, measure)


def check_questions(
    names: Sequence[str], settings: Mapping[str, Any], *, ranked: bool = True
) -> None:
    """Raise an error that says what is wrong with the questions."""
    if len(set(names)) < len(names):
        raise MechheadsError(f"--tasks lists a task twice: {','.join(names)}.")
    for name in ("n", "rank"):
        check_prompts(f"--{name}", settings[name])
    for name in names:
        if not tasks.is_file(name):
            tasks.check(name, settings["n"], settings["split"], {})
            continue
        questions.from_file(name)
        if ranked and settings["method"] != PROBE:
            raise MechheadsError(
                f"{name} has questions but no corrupted prompts, which --method "
                f"{settings['method']} needs. Use --method probe."
            )


def check_masks(settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise an error that says what is wrong with the ranking or the number of heads to mask."""
    method, k, matrix_k = (settings[name] for name in ("method", "k", "matrix_k"))
    if method != PROBE and method.partition(":")[0] not in methods.METHODS:
        raise unknown("method", method, [*methods.METHODS, PROBE])
    if method != PROBE:
        methods.check_flags(method, options)
    elif options:
        raise MechheadsError(
            f"unknown flag {flag_of(next(iter(options)))}: method {PROBE} has no such option."
        )
    if k == ELBOW and method != PROBE:
        raise MechheadsError(f"--k {ELBOW} needs --method {PROBE}, got --method {method}.")
    if k == ELBOW and settings["matrix"] and not matrix_k:
        raise MechheadsError(f"--matrix needs a single number of heads: add --matrix-k to --k {k}.")
    if matrix_k and not settings["matrix"]:
        raise MechheadsError("--matrix-k needs --matrix. Add it, or leave --matrix-k out.")
    check_least("--draws", settings["draws"], 0)
    if not 0 <= settings["scale"] < 1:
        raise MechheadsError(f"--scale takes 0 or more and less than 1, got {settings['scale']}.")


def check_answers(metrics: Sequence[str], max_tokens: int) -> None:
    """Raise an error that says what is wrong with the answers or the metrics."""
    check_least("--max-tokens", max_tokens, 1)
    if len(set(metrics)) < len(metrics):
        raise MechheadsError(f"--metrics lists a metric twice: {','.join(metrics)}.")


def make_questions(
    model: "Model", names: Sequence[str], settings: Mapping[str, Any]
) -> "QuestionSplit":
    """Questions to rank the heads on, and others to answer, by function."""
    from mechheads.models.model import encoder_of
    from mechheads.prompts.partitions import split_questions

    n, rank = settings["n"], settings["rank"]
    made = [
        part
        for name in names
        for part in questions.make_questions(
            name,
            model,
            n=None if tasks.is_file(name) else n + rank,
            seed=settings["seed"],
            split=settings["split"],
        )
    ]
    encoder = encoder_of(model)
    return split_questions(encoder, made, n=n, rank=rank, max_tokens=settings["max_tokens"])
