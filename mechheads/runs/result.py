"""One kind of result: what every measurement and every experiment returns.

A result is a frozen dataclass of tensors, plain values and other results. It does not import its
figure or its report: both are found by name, in the two tables below.
"""

import html
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mechheads.errors import MechheadsError
from mechheads.options import read_path

from .files import prepare
from .serialization import load_result, save_result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from .folder import Record

ARRAYS = "arrays.safetensors"
R = TypeVar("R", bound="Result")

FIGURES = {
    "Ablated": "mechheads.reports.ablation:draw_ablated",
    "Ablation": "mechheads.gating.figures:draw_ablation",
    "Accuracies": "mechheads.filler.figures:draw_accuracies",
    "Alternatives": "circuits.certainty.figures:draw_alternatives",
    "Attention": "mechheads.filler.figures:draw_attention",
    "Comparison": "circuits.figures:draw_comparison",
    "Contrast": "mechheads.gating.figures:draw_contrast",
    "Curve": "circuits.figures:draw_curve",
    "Discovery": "circuits.figures:draw_discovery",
    "EdgeComparison": "circuits.edges.figures:draw_edge_comparison",
    "EdgeCounts": "mechheads.reports.heads:draw_edge_counts",
    "EdgeCurve": "circuits.edges.figures:draw_edge_curve",
    "EdgeDiscovery": "circuits.edges.figures:draw_edge_discovery",
    "EdgeEffects": "mechheads.reports.heads:draw_edge_effects",
    "Evaluation": "mechheads.reports.heads:draw_evaluation",
    "Faithfulness": "circuits.figures:draw_contributions",
    "Filler": "mechheads.filler.figures:draw_filler",
    "Gates": "mechheads.gating.figures:draw_scores",
    "Gating": "mechheads.gating.figures:draw_gating",
    "HeadActivity": "mechheads.reports.heads:draw_activity",
    "HeadEffects": "mechheads.reports.heads:draw_effects",
    "HeadTypes": "mechheads.reports.heads:draw_head_types",
    "Inclusion": "circuits.certainty.figures:draw_inclusion",
    "Leaderboard": "circuits.leaderboard.figures:draw_leaderboard",
    "Masking": "mechheads.masking.figures:draw_masking",
    "Matrix": "mechheads.masking.figures:draw_matrix",
    "Patterns": "mechheads.reports.patterns:draw_patterns",
    "PromptClusters": "circuits.certainty.figures:draw_clusters",
    "PositionEffects": "mechheads.reports.heads:draw_positions",
}
REPORTS = {
    "Comparison": "circuits.report:write_comparison",
    "Contrast": "mechheads.gating.report:write_contrast",
    "Discovery": "circuits.report:write_discovery",
    "EdgeComparison": "circuits.edges.report:write_edge_comparison",
    "EdgeDiscovery": "circuits.edges.report:write_edge_discovery",
    "Filler": "mechheads.filler.report:write_filler",
    "Gating": "mechheads.gating.report:write_gating",
    "Leaderboard": "circuits.leaderboard.report:write_leaderboard",
    "Masking": "mechheads.masking.report:write_masking",
}


class Result:
    """What every result can do."""

    def __init_subclass__(cls) -> None:
        """Keep our short repr: a dataclass would show every number."""
        cls.__repr__ = Result.__repr__

    def __repr__(self) -> str:
        """The kind and the sentence."""
        try:
            return f"<{type(self).__name__}: {self.sentence}>"
        except Exception:  # parts of a damaged file may not fit together
            return f"<{type(self).__name__}>"

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers that sum it up."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """The headline in words."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """What a command prints: the sentence, and more where that is not enough."""
        return self.sentence

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the numbers may mean less than they seem to."""
        return ()

    @property
    def unused(self) -> tuple[str, ...]:
        """Settings of the command that this result does not depend on, for its report."""
        return ()

    def frame(self) -> "pd.DataFrame":
        """A tidy table."""
        raise NotImplementedError

    def plot(self, **options: Any) -> "go.Figure":
        """The figure."""
        return _find(FIGURES, self)(self, **options)

    def save(self, folder: str | Path) -> Path:
        """Save everything to the folder, without loss; returns the folder."""
        place = prepare(read_path(folder, "the folder"))
        save_result(self, place / ARRAYS)
        return place

    @classmethod
    def load(cls: type[R], folder: str | Path) -> R:
        """Read what `save` wrote."""
        place = read_path(folder, "the folder")
        if not (place / ARRAYS).is_file():
            raise MechheadsError(
                f"There is no {cls.__name__} in {place}: it has no {ARRAYS}. Give a folder that "
                "save, report or a command wrote."
            )
        return load_result(cls, place / ARRAYS)

    def report(self, folder: str | Path, record: "Record | None" = None) -> Path:
        """Write tables, arrays and an HTML report into the folder; returns the report's path.

        `record` adds the settings and the provenance of a run.
        """
        return _find(REPORTS, self)(prepare(read_path(folder, "the folder")), self, record)

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(self.sentence)}</p>"]
        parts += [f"<p><b>Warning:</b> {html.escape(words)}</p>" for words in self.warnings]
        return "".join([*parts, self.frame().head(10).to_html(index=False, na_rep="–")])


def _find(table: dict[str, str], result: Result) -> Any:
    kind = type(result).__name__
    if kind not in table:
        what = "report" if table is REPORTS else "figure"
        raise MechheadsError(f"{kind} has no {what}. Results that have one: {', '.join(table)}.")
    module, _, function = table[kind].partition(":")
    return getattr(import_module(module), function)
