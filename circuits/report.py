"""Files written by a `discover` or `compare` run: tables, circuits and reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.metrics.token import METRICS
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.files import write_text
from mechheads.runs.folder import Record, write_table

from .circuit import auroc
from .comparison import Comparison
from .discovery import Discovery
from .figures import draw_paths, draw_sample
from .literature import published_for

if TYPE_CHECKING:
    import pandas as pd


def write_discovery(folder: Path, found: Discovery, record: Record | None = None) -> Path:
    """effects.csv, curve.csv, circuit.json, importances.json, arrays and both reports."""
    write_table(folder, "effects.csv", found.effects.frame().drop(columns="se"))
    write_table(folder, "curve.csv", found.frame())
    write_table(folder, "minimality.csv", found.faithfulness.frame())
    if found.paths is not None:
        write_table(folder, "paths.csv", circuit_paths(found, 100))
    found.circuit.save(folder / "circuit.json")
    write_text(folder / "importances.json", json.dumps(importances(found), indent=1) + "\n")
    found.save(folder)
    title = f"{found.curve.task} on {found.curve.model}: which heads do the job?"
    return write_reports(folder, title, _discovery_sections(found), found, record)


def write_comparison(folder: Path, found: Comparison, record: Record | None = None) -> Path:
    """comparison.csv, edges.csv and both reports."""
    write_table(folder, "comparison.csv", found.frame())
    write_table(folder, "edges.csv", found.edge_frame())
    title = f"{found.models[0]} and {found.models[1]}: how many heads does each need?"
    found.save(folder)
    return write_reports(folder, title, _comparison_sections(found), found, record)


def importances(found: Discovery) -> dict[str, Any]:
    """Content of a file for MIB's circuit track: a score for every head, MLPs always kept."""
    layers, heads = found.effects.scores.shape
    inside = set(found.faithfulness.heads)
    nodes: dict[str, Any] = {"input": {"in_graph": True}}
    for layer in range(layers):
        for head in range(heads):
            nodes[f"a{layer}.h{head}"] = {
                "score": round(float(found.effects.scores[layer, head]), 9),
                "in_graph": (layer, head) in inside,
            }
        nodes[f"m{layer}"] = {"in_graph": True}
    nodes["logits"] = {"in_graph": True}
    shape = {"n_layers": layers, "n_heads": heads} | dict(found.shape)
    return {"cfg": shape, "nodes": nodes, "edges": {}}


def circuit_paths(found: Discovery, k: int) -> "pd.DataFrame":
    """The k strongest paths between heads of the circuit."""
    assert found.paths is not None
    frame = found.paths.frame()
    inside = set(found.faithfulness.heads)
    ends = zip(frame.from_layer, frame.from_head, frame.to_layer, frame.to_head, strict=True)
    kept = frame[[(a, b) in inside and (c, d) in inside for a, b, c, d in ends]]
    order = kept.effect.abs().sort_values(ascending=False, kind="stable").index[:k]
    return kept.loc[order].reset_index(drop=True)


def _discovery_sections(found: Discovery) -> list[Section]:
    metric, scored = (METRICS[m].label for m in (found.curve.metric, found.effects.metric))
    method = found.effects.method
    what = f"Change in the {scored} when this head alone is intervened on ({method})"
    if found.effects.quantity:
        what = f"{found.effects.quantity.capitalize()} ({method})"
    sections = [
        Section(
            "Effect of every head",
            f"{what}, mean over {len(found.effects.values)} {found.effects.over}. Red heads help, "
            "blue ones hinder. Hover over a cell for its interval and its p-value, corrected for "
            "the number of heads.",
            found.effects.plot(),
        ),
        Section(
            "Explained effect",
            f"Share of the {metric} recovered when only the first k heads of the ranking are kept "
            "and all others are replaced "
            f"({found.curve.settings['replacement'].replace('_', ' ')}). Measured on "
            f"{found.curve.values.shape[1]} prompts that were not used to rank the heads.",
            found.plot(),
        ),
        Section(
            "Strongest heads",
            "Contribution: explained effect that the circuit loses without the head. Type: from "
            "attention on repeated random tokens (weight of 0.4 or more).",
            frame=_strongest(found),
        ),
        Section("How good is the circuit?", table=_quality(found), frame=_against_published(found)),
        Section(
            "What the strongest heads attend to",
            f"Prompt: {found.sample.prompt}",
            draw_sample(found.sample),
        ),
    ]
    if found.paths is not None and len(found.faithfulness.heads) > 1:
        paths = circuit_paths(found, 30)
        sections.append(
            Section(
                "Paths inside the circuit",
                f"The {len(paths)} strongest paths from a head of the circuit to the query, key or "
                "value of a later one, estimated by edge attribution. Hover over the middle of an "
                "arrow for its effect.",
                draw_paths(paths, found.faithfulness.heads),
            )
        )
    examples = [
        f"clean    {clean}\ncorrupt  {corrupt}\nanswer   {answer!r}, wrong {wrong!r}"
        for clean, corrupt, answer, wrong in found.examples
    ]
    return [*sections, Section("Prompts", code=examples)]


def _comparison_sections(found: Comparison) -> list[Section]:
    stays = [
        [side.curve.needed(found.threshold, stays=True) for side in (t.standard, t.sparse)]
        for t in found.tasks
    ]
    heads = found.frame().assign(
        overlap=[round(t.jaccard, 3) for t in found.tasks],
        stays_standard=[standard for standard, _ in stays],
        stays_sparse=[sparse for _, sparse in stays],
    )
    return [
        Section(
            "Explained effect",
            "Share of the task's metric recovered with only the first k heads kept, each model in "
            "its own ranking; bands are 95 % intervals over prompts. The dashed line joins the "
            f"curves where they reach {found.threshold:.0%}.",
            found.plot(),
        ),
        Section(
            "Heads",
            "Multiplier: heads of the first model per head of the second; below 1, the second "
            "needs more. Stays: number of heads from which the curve stays above the threshold. "
            "Overlap: Jaccard index of the two circuits.",
            frame=heads,
        ),
        Section(
            "Attention edges",
            "Edges per prompt used by the heads of these circuits: query-key pairs with attention "
            "weight above 0. A dense head uses all of its causal edges, needed or not.",
            found.plot(edges=True),
            frame=found.edge_frame(),
        ),
    ]


def _strongest(found: Discovery) -> "pd.DataFrame":
    heads = found.effects.ranking(signed=found.signed)
    frame = found.effects.top(max(10, min(25, len(found.faithfulness.heads))), signed=found.signed)
    roles = found.roles
    judged = found.faithfulness
    contribution = dict(zip(judged.heads, judged.contribution.tolist(), strict=True))
    rows = heads[: len(frame)]
    frame["in circuit"] = ["yes" if head in contribution else "" for head in rows]
    frame["contribution"] = [contribution.get(head) for head in rows]
    frame["type"] = [found.types.label(*head) for head in rows]
    if roles:
        frame["published role"] = [roles.get(head, "") for head in rows]
    return frame.drop(columns=["layer", "head", "se"]).rename(
        columns={"ci_low": "95 % low", "ci_high": "95 % high", "p_value": "p (corrected)"}
    )


def _quality(found: Discovery) -> Mapping[str, str]:
    headline, curve = found.headline, found.curve
    idle = headline["idle_heads"]
    return {
        "Heads in the circuit": f"{len(found.faithfulness.heads)} ({found.search})",
        "Explained on held-out prompts (faithfulness)": f"{found.faithfulness.faithfulness:.1%}",
        "Effect left without it (completeness)": f"{found.faithfulness.left:.1%}",
        "Heads not shown to contribute (minimality)": ", ".join(idle) or "none",
        f"Heads to reach {found.threshold:.0%}": f"{found.needed} "
        f"({headline['needed_stays']} to stay there); random rankings {found.random_needed:.1f}",
        "Overlap of the strongest heads on resampled prompts (Jaccard)": f"{found.overlap:.2f}",
        "CPR (higher is better)": f"{curve.cpr:.3f}, random {curve.random_cpr:.3f}",
        "CMD (lower is better)": f"{curve.cmd:.3f}, random {curve.random_cmd:.3f}",
        "Accuracy on the clean prompts": f"{headline['accuracy']:.1%}",
    }


def _against_published(found: Discovery) -> "pd.DataFrame | None":
    """Precision, recall and AUROC against published circuits for this model and task."""
    import pandas as pd

    task, model = found.curve.task, found.curve.model
    known = published_for(task, model)
    if not known:
        return None
    ranking = found.effects.ranking(signed=found.signed)
    rows = [
        (
            c.source,
            found.circuit.precision(c),
            found.circuit.recall(c),
            found.circuit.jaccard(c),
            auroc(ranking, c),
        )
        for c in known
    ]
    return pd.DataFrame(
        rows, columns=pd.Index(["published", "precision", "recall", "Jaccard", "AUROC"])
    )
