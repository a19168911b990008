"""Files written by a run of `discover` or `compare` at the level of edges."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from circuits.path_graph import draw_paths, paths_inside
from circuits.report import example_section
from mechheads.heads import listed
from mechheads.metrics import label_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.folder import Record, write_table

from .comparison import EdgeComparison
from .discovery import TO, EdgeDiscovery

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 40  # edges in the report's table
WHAT = (
    "An edge leads from a head to one thing that reads what it writes: the query, key or value of "
    "a later head (the key or value of all heads that share it), an MLP, or the logits."
)


def write_edge_discovery(folder: Path, found: EdgeDiscovery, record: Record | None = None) -> Path:
    """curve.csv, edges.csv (those of the circuit), arrays and both reports."""
    write_table(folder, "curve.csv", found.frame())
    write_table(folder, "edges.csv", found.strongest())
    found.save(folder)
    title = f"{found.curve.task} on {found.curve.model}: which edges do the job?"
    return write_reports(folder, title, _sections(found), found, record)


def write_edge_comparison(
    folder: Path, found: EdgeComparison, record: Record | None = None
) -> Path:
    """comparison.csv and both reports."""
    write_table(folder, "comparison.csv", found.frame())
    found.save(folder)
    title = f"{found.names[0]} and {found.names[1]}: how many circuit edges does each need?"
    return write_reports(folder, title, _comparison_sections(found), found, record)


def _sections(found: EdgeDiscovery) -> list[Section]:
    curve, heads = found.curve, found.heads
    replaced = curve.settings["replacement"].replace("_", " ")
    order = "signed effect" if curve.settings["signed"] else "size of the effect"
    sections = [
        Section(
            "Explained effect",
            f"Share of the {label_of(curve.metric)} recovered when only the first n edges of the "
            f"ranking are kept. {WHAT} Of an edge that is not kept, the receiver sees what its "
            f"sender writes in the other run ({replaced}). Embeddings stay those of the clean "
            "prompt, and MLPs write what follows from what they read: with no edges, or with all "
            "of them, the run is the same as with no heads, or with all heads. Measured on "
            f"{curve.values.shape[1]} prompts that were not used to rank the edges. Note the "
            "logarithmic axis.",
            found.plot(),
        ),
        Section("How good is the circuit?", table=_quality(found)),
        Section(
            "Strongest edges",
            f"The first edges of the ranking, by {order}: edge attribution with integrated "
            f"gradients, mean over {found.ranked_on} prompts; positive helps. All edges of the "
            "circuit are in edges.csv.",
            frame=_strongest(found),
        ),
    ]
    if paths_inside(found.effects, heads):
        sections.append(
            Section(
                "Paths between the heads of the circuit",
                "The strongest edges between heads that an edge of the circuit leaves, and from "
                "them to the logits. Edges to MLPs are not drawn. Hover over an arrow for its "
                "effect.",
                draw_paths(found.effects, heads),
            )
        )
    return [*sections, example_section(found.examples)]


def _quality(found: EdgeDiscovery) -> Mapping[str, str]:
    numbers, curve = found.headline, found.curve
    low, high = (f"{numbers[f'needed_{end}']:,.0f}" for end in ("low", "high"))
    return {
        f"Edges to reach {found.threshold:.0%}": (
            f"{found.needed:,} of {numbers['edges']:,} (95% {low} to {high}; "
            f"{numbers['needed_stays']:,} to stay there); random rankings "
            f"{numbers['needed_random']:,.0f}"
        ),
        "Explained by these": f"{numbers['explained']:.1%}",
        "Where they lead": ", ".join(
            f"{count:,} to {TO[part]}" for part, count in numbers["needed_to"].items()
        ),
        "Heads that they leave": (
            f"{len(found.heads)} of {curve.graph.senders}: {listed(found.heads, most=40)}"
        ),
        "MIB's CPR: area under f, edges ranked by signed effect (higher is better)": (
            f"{curve.cpr:.3f}, random {curve.random_cpr:.3f}"
        ),
        "MIB's CMD: area between f and 1, edges ranked by size (lower is better)": (
            f"{curve.cmd:.3f}, random {curve.random_cmd:.3f}"
        ),
        "Accuracy on the clean prompts": f"{numbers['accuracy']:.1%}",
    }


def _strongest(found: EdgeDiscovery) -> "pd.DataFrame":
    frame = found.strongest(SHOWN)[["edge", "effect"]]
    inside = ["yes" if i < found.needed else "" for i in range(len(frame))]
    return frame.assign(**{"in circuit": inside})


def _comparison_sections(found: EdgeComparison) -> list[Section]:
    frame = found.frame()
    for label, side in zip(found.labels, ("standard", "sparse"), strict=True):
        curves = [getattr(task, side) for task in found.tasks]
        frame[f"of_{label}"] = [len(curve.ranking) for curve in curves]
        frame[f"stays_{label}"] = [curve.needed(found.threshold, stays=True) for curve in curves]
    return [
        Section(
            "Explained effect",
            f"Share of the task's metric recovered with only the first n edges kept. {WHAT} Each "
            "model has its own ranking; bands are 95% intervals over prompts. The dashed line "
            f"joins the curves where they reach {found.threshold:.0%}. Note the logarithmic axis.",
            found.plot(),
        ),
        Section(
            "Circuit edges",
            "Multiplier: edges of the first model per edge of the second; below 1, the second "
            "needs more. Of: all edges of the model. Stays: number of edges from which the curve "
            "stays above the threshold. Attention edges are another thing: the query-key pairs of "
            "attention patterns, which a comparison of heads counts.",
            frame=frame,
        ),
    ]
