"""Files written by a run of `leaderboard`: the table of all rounds, arrays and reports."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .board import Leaderboard
from .rounds import RANDOM
from .standings import MEASURES

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "low": "95% low",
    "high": "95% high",
    "behind": "from the first",
    "behind_low": "from it, low",
    "behind_high": "from it, high",
    "rank": "mean rank",
    "rank_low": "rank, low",
    "rank_high": "rank, high",
}


def write_leaderboard(folder: Path, found: Leaderboard, record: Record | None = None) -> Path:
    """leaderboard.csv, arrays and both reports."""
    write_table(folder, "leaderboard.csv", found.frame())
    found.save(folder)
    title = "Which method finds the better circuit?"
    return write_reports(folder, title, _sections(found), found, record)


def _sections(found: Leaderboard) -> list[Section]:
    ranked = [name for name in MEASURES if found.mean(name) is not None]
    if not ranked:
        return [Section("By model and task", frame=found.by_pair("cpr"))]
    return [
        Section("Mean ranks", _about_ranks(found), found.plot(rank=True), frame=mean_ranks(found)),
        Section("Means", _about_means(found), found.plot()),
        *(_standings(found, name) for name in ranked),
        *(_by_pair(found, name) for name in ranked),
    ]


def mean_ranks(found: Leaderboard) -> "pd.DataFrame":
    """A row per method: its mean rank by every measure, with intervals, and its cost."""
    import pandas as pd

    table = {"method": found.order}
    at = [found.methods.index(method) for method in found.order]
    for name in MEASURES:
        rank = found.rank(name)
        if rank is None:
            continue
        rows = zip(*(part[at].tolist() for part in (rank.mean, rank.low, rank.high)), strict=True)
        table[found.title(name)] = [
            f"{mean:.2f} ({low:.2f} to {high:.2f})" if rank.over else f"{mean:.2f}"
            for mean, low, high in rows
        ]
    table["passes per ranking prompt"] = [_range(*found.passes[method]) for method in found.order]
    return pd.DataFrame(table)


def _range(least: int | float, most: int | float) -> str:
    """A number, or two if models differ."""
    return f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"


def _about_ranks(found: Leaderboard) -> str:
    """What a mean rank is, and what its interval is over."""
    rank = found.rank("cpr")
    over = f"95% intervals are over {rank.over}" if rank and rank.over else "There is no interval"
    if rank and rank.over.startswith("pairs"):
        over += " (Student's t): they say what other models and tasks like these would give"
    elif rank and rank.over:
        over += " (Student's t): they hold for these models and tasks only"
    known = found.rank("auroc")
    if rank and known and known.over != rank.over:
        pairs = len(found.complete("auroc"))
        over += f"; heads are known of {pairs} pair{'s' * (pairs != 1)} only: of AUROC "
        over += f"they are over {known.over}" if known.over else "there are none"
    draws = (
        f" random is the mean of {found.draws} random rankings." if RANDOM in found.methods else ""
    )
    return (
        f"Rank 1 is the best of {len(found.methods)} methods on the same model, task and prompts; "
        f"equal ones share their mean rank. {over}. Methods are in the order of their mean rank "
        f"over CPR, CMD and {found.title('needed_share')}.{draws} Passes: about how many forward "
        "passes a method takes per prompt that ranks the heads, as the table of methods counts "
        "them, models with more heads taking more; CPU seconds are in timings.json."
    )


def _about_means(found: Leaderboard) -> str:
    """What the numbers are measured on, and what their intervals are over."""
    sizes = [(r.ranked_on, r.judged_on) for r in found.rounds]
    ranked, judged = (_range(min(row), max(row)) for row in zip(*sizes, strict=True))
    seeds = len(found.seeds)
    over = (
        f"95% intervals are over the {seeds} seeds, samples of prompts of the same tasks on the "
        "same models (Student's t of one mean per seed)"
        if seeds > 1
        else "with a single seed, 95% intervals are over the judging prompts, not over the prompts "
        "that rank or the draws of random, and only CPR and CMD have one"
    )
    shown = {name: one for name, one in MEASURES.items() if found.mean(name) is not None}
    about = " ".join(f"{found.title(name)}: {one.about}" for name, one in shown.items())
    return (
        f"{ranked} prompts rank the heads, {judged} others judge; {over}. f is the share of the "
        "task's metric recovered when only the first k heads are kept and all others are replaced "
        f"({found.replacement.replace('_', ' ')}). "
        f"{about}"
    )


def _standings(found: Leaderboard, name: str) -> Section:
    frame: Any = found.standings(name)
    pairs = len(found.complete(name))
    empty = [column for column in frame if frame[column].isna().all()]
    what = f"{found.title(name)}: {MEASURES[name].better}"
    text = f"Means over {pairs} pair{'s' * (pairs != 1)} of model and task."
    if "behind_low" not in empty:
        text += (
            " From the first: the difference from the method in the first row on the same rounds, "
            "with its 95% interval over seeds; where it includes 0, the two are not told apart."
        )
    return Section(what, text, frame=frame.drop(columns=empty).rename(columns=COLUMNS))


def _by_pair(found: Leaderboard, name: str) -> Section:
    words = f"Means over {len(found.seeds)} seeds." if len(found.seeds) > 1 else ""
    heading = f"{found.title(name)} by model and task"
    return Section(heading, words, frame=found.by_pair(name))
