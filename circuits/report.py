"""Files written by a `discover` or `compare` run: tables, circuits and reports."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.heads import count_of, listed, name_of
from mechheads.metrics import label_of
from mechheads.reports.page import Section
from mechheads.reports.run import write_reports
from mechheads.runs.files import write_text
from mechheads.runs.folder import Record, write_table

from .certainty.report import certainty_sections
from .circuit import Head, auroc
from .comparison import Comparison
from .curve import Curve
from .discovery import GIVEN, Discovery, Examples
from .figures import draw_sample
from .literature import published_for
from .path_graph import paths_inside

if TYPE_CHECKING:
    import pandas as pd

ACTIVITY = (
    "On first token: attention weight there, high in a head that rests on a sink. Written: length "
    "of what the head adds to the residual stream, as a share of the stream's own; a head near 0 "
    "is idle. Both are means over the clean prompts of the curve, after their first token."
)


def write_discovery(folder: Path, found: Discovery, record: Record | None = None) -> Path:
    """effects.csv, curve.csv, circuit.json, importances.json, arrays and both reports."""
    write_table(folder, "effects.csv", effects_table(found))
    write_table(folder, "curve.csv", found.frame())
    write_table(folder, "minimality.csv", found.faithfulness.frame())
    if found.paths is not None:
        write_table(folder, "paths.csv", circuit_paths(found, 100))
    found.circuit.save(folder / "circuit.json")
    write_text(folder / "importances.json", json.dumps(importances(found), indent=1) + "\n")
    found.save(folder)
    asked = "do these heads do the job?" if found.is_given else "which heads do the job?"
    title = f"{found.curve.task} on {found.curve.model}: {asked}"
    return write_reports(folder, title, _discovery_sections(found), found, record)


def write_comparison(folder: Path, found: Comparison, record: Record | None = None) -> Path:
    """comparison.csv, edges.csv and both reports."""
    write_table(folder, "comparison.csv", found.frame())
    write_table(folder, "edges.csv", found.edge_frame())
    title = f"{found.names[0]} and {found.names[1]}: how many heads does each need?"
    found.save(folder)
    return write_reports(folder, title, _comparison_sections(found), found, record)


def effects_table(found: Discovery) -> "pd.DataFrame":
    """Every head's effect, its inclusion on resampled prompts, and what it does when idle."""
    frame = found.effects.frame().drop(columns="se")
    places = ["layer", "head"]
    if found.inclusion is not None:
        frame = frame.merge(found.inclusion.frame()[[*places, "inclusion"]], on=places)
    if found.effects.unit != "head":
        return frame
    return frame.merge(found.activity.frame(), on=places)


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
    own = "your circuit" if found.is_given else "the circuit"
    quality = Section(f"How good is {own}?", table=_quality(found), frame=_against_published(found))
    sections = [
        Section("Effect of every head", _about_effects(found), found.effects.plot()),
        Section("Explained effect", _about_curve(found), found.plot()),
        Section(
            "Strongest heads",
            f"Contribution: explained effect that {own} loses without the head."
            f"{_about_types(found)} {ACTIVITY}",
            frame=_strongest(found),
        ),
        *([] if found.is_given else [quality]),
        Section(
            f"What the {'heads of your circuit' if found.is_given else 'strongest heads'} "
            "attend to",
            f"Prompt: {found.sample.prompt}",
            draw_sample(found.sample),
        ),
    ]
    if found.is_given:
        members = Section(
            "Heads of your circuit",
            "Contribution: explained effect that your circuit loses without the head, with its "
            "95% interval over prompts. A head whose interval reaches 0 is not shown to "
            f"contribute. Rank and effect: of the head in the ranking. {ACTIVITY}",
            found.faithfulness.plot(),
            frame=_members(found),
        )
        sections = [quality, members, *sections]
    heads = found.faithfulness.heads
    if found.paths is not None and paths_inside(found.paths, heads):
        sections.append(
            Section(
                f"Paths inside {own}",
                f"The strongest paths from a head of {own} to the query, key or value of a "
                "later one, or straight to the logits, estimated by edge attribution. Heads "
                "without one of them are left out. Hover over an arrow for its effect.",
                found.plot(paths=True),
            )
        )
    sure = certainty_sections(found.inclusion, found.clusters, found.alternatives)
    return [*sections, *sure, example_section(found.examples)]


def example_section(examples: Examples) -> Section:
    """Some prompts, as they are."""
    shown = [
        f"clean    {clean}\n{f'corrupt  {corrupt}' + chr(10) if corrupt else ''}"
        f"answer   {answer!r}{f', wrong {wrong!r}' if wrong else ''}"
        for clean, corrupt, answer, wrong in examples
    ]
    return Section("Prompts", code=shown)


def _about_effects(found: Discovery) -> str:
    """What a cell of the heat map is."""
    effects = found.effects
    what = f"Change in the {label_of(effects.metric)} when this head alone is intervened on"
    what = f"{effects.quantity.capitalize() or what} ({effects.method})"
    signs = "Red heads help, blue ones hinder."
    if effects.roles:
        where = "held-out prompts" if effects.roles.held_out else "the prompts that were fitted"
        return (
            f"{what}, mean over {len(effects.values)} seeds. {signs} Seeds agree: the share of "
            "seeds that give the head this role. Gain: log probability of the target with the "
            "head's gate open less that with it closed, the others at G+, with its 95% interval "
            f"over {where}. Hover over a cell for its role."
        )
    if not effects.sampled:
        return f"{what}. {signs} One value per head has no interval and no p-value."
    return (
        f"{what}, mean over {len(effects.values)} {effects.over}. {signs} Hover over a cell for "
        "its interval and its p-value, corrected for the number of heads."
    )


def _about_types(found: Discovery) -> str:
    """What the column of types is, if there is one."""
    if found.types is None:
        return ""
    return " Type: from attention on repeated random tokens (weight of 0.4 or more)."


def _measured_at(curve: Curve) -> str:
    """At how many k the curve was measured, if not at all of them."""
    points, every = len(curve.at), len(curve.ranking) + 1
    if points == every:
        return ""
    return (
        f" Measured at {points} of {every} k (the dots), more closely where the threshold is first "
        "reached; lines join them."
    )


def _about_curve(found: Discovery) -> str:
    """What the curve is, and what the star is if a circuit was given."""
    replaced = found.curve.settings["replacement"].replace("_", " ")
    others = (
        "prompts; whether the given ranking was made from other prompts is not known here."
        if found.ranking_is_given
        else "prompts that were not used to rank the heads."
    )
    star = " The star is your circuit, with its 95% interval." if found.is_given else ""
    return (
        f"Share of the {label_of(found.curve.metric)} recovered when only the first k heads of the "
        f"ranking are kept and all others are replaced ({replaced}). Measured on "
        f"{found.curve.values.shape[1]} {others}{star}{_measured_at(found.curve)}"
    )


def _comparison_sections(found: Comparison) -> list[Section]:
    stays = [
        [side.curve.needed(found.threshold, stays=True) for side in (t.standard, t.sparse)]
        for t in found.tasks
    ]
    heads, overlap = found.frame(), ""
    if any(t.jaccard is not None for t in found.tasks):
        overlap = " Overlap: Jaccard index of the two circuits."
        heads["overlap"] = [None if t.jaccard is None else round(t.jaccard, 3) for t in found.tasks]
    for i, label in enumerate(found.labels):
        heads[f"stays_{label}"] = [counts[i] for counts in stays]
    return [
        Section(
            "Explained effect",
            "Share of the task's metric recovered with only the first k heads kept, each model in "
            "its own ranking; bands are 95% intervals over prompts. The dashed line joins the "
            f"curves where they reach {found.threshold:.0%}.",
            found.plot(),
        ),
        Section(
            "Heads",
            "Multiplier: heads of the first model per head of the second; below 1, the second "
            "needs more. Stays: number of heads from which the curve stays above the threshold."
            f"{overlap}",
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
    if found.types is not None:
        frame["type"] = [found.types.label(*head) for head in rows]
    _add_activity(frame, found, rows)
    if roles:
        frame["published role"] = [roles.get(head, "") for head in rows]
    unknown = [] if found.effects.sampled else ["ci_low", "ci_high", "p_value"]
    return frame.drop(columns=["layer", "head", "se", *unknown]).rename(
        columns={
            "ci_low": "95% low",
            "ci_high": "95% high",
            "p_value": "p (corrected)",
            "seeds_agree": "seeds agree",
            "gain_low": "gain, 95% low",
            "gain_high": "gain, 95% high",
        }
    )


def _members(found: Discovery) -> "pd.DataFrame":
    """The heads of a given circuit: their place in the ranking, and what each contributes."""
    circuit, roles = found.circuit, found.circuit.roles
    ranking = found.effects.ranking(signed=found.signed)
    frame = found.faithfulness.frame()
    frame.insert(0, "name", [name_of(*head) for head in circuit.heads])
    if circuit.gates:
        frame.insert(1, "gate", [circuit.gates.get(head, 1.0) for head in circuit.heads])
    frame["rank"] = [ranking.index(head) + 1 for head in circuit.heads]
    frame["effect"] = [float(found.effects.scores[head]) for head in circuit.heads]
    if found.types is not None:
        frame["type"] = [found.types.label(*head) for head in circuit.heads]
    _add_activity(frame, found, circuit.heads)
    if roles:
        frame["role"] = [roles.get(head, "") for head in circuit.heads]
    return frame.drop(columns=["layer", "head"]).rename(
        columns={"ci_low": "95% low", "ci_high": "95% high"}
    )


def _add_activity(frame: "pd.DataFrame", found: Discovery, heads: Sequence[Head]) -> None:
    """Columns: attention on the first token, and what the head writes."""
    if found.effects.unit == "head":
        activity = found.activity
        frame["on first token"] = [float(activity.first_token[head]) for head in heads]
        frame["written"] = [float(activity.written[head]) for head in heads]


def _quality(found: Discovery) -> Mapping[str, str]:
    """The circuit in numbers, then the ranking."""
    numbers, curve, heads = found.headline, found.curve, found.faithfulness.heads
    where = "" if found.is_given or found.ranking_is_given else " on held-out prompts"
    table = _given(found) if found.is_given else {"Heads": f"{len(heads)} ({found.search})"}
    table |= {
        f"Explained{where} (faithfulness)": _with_interval(numbers, "faithfulness", "faithfulness"),
        "Effect left without it (completeness)": _with_interval(numbers, "left_without", "left"),
        "Heads not shown to contribute (minimality)": ", ".join(numbers["idle_heads"]) or "none",
    }
    if found.is_given:
        table |= _next_to(found)
    table[f"Heads of the ranking to reach {found.threshold:.0%}"] = (
        f"{found.needed} ({numbers['needed_stays']} to stay there); random rankings "
        f"{found.random_needed:.1f}"
    )
    if not found.effects.single:
        what = f"Overlap of the strongest heads on resampled {found.effects.over} (Jaccard)"
        table[what] = f"{found.overlap:.2f}"
    return table | {
        "MIB's CPR: area under f, heads ranked by signed effect (higher is better)": (
            f"{curve.cpr:.3f}, random {curve.random_cpr:.3f}"
        ),
        "MIB's CMD: area between f and 1, heads ranked by size (lower is better)": (
            f"{curve.cmd:.3f}, random {curve.random_cmd:.3f}"
        ),
        "The same areas of the ranking drawn here": (
            f"{curve.area_under:.3f} under f, {curve.area_from_1:.3f} between f and 1"
        ),
        "Accuracy on the clean prompts": f"{numbers['accuracy']:.1%}",
    }


def _given(found: Discovery) -> dict[str, str]:
    """Which heads were given, and what their file says about them."""
    circuit = found.circuit
    soft = f", gates that add up to {circuit.size:.1f}" if circuit.gates else ""
    made = " on ".join(filter(None, (circuit.task, circuit.model)))
    name = "" if circuit.name == GIVEN else circuit.name
    origin = "; ".join(filter(None, (name, circuit.source, made and f"found for {made}")))
    heads = f"{listed(circuit.heads, most=40)} ({count_of(circuit.heads)}{soft})"
    return {"Your circuit": heads} | ({"Its file says": origin} if origin else {})


def _next_to(found: Discovery) -> dict[str, str]:
    """What as many of the ranking's first heads explain, and as many random ones."""
    size, draws = found.size, len(found.curve.random_explained)
    mean, low, high = (values[size].item() for values in found.curve.random_band())
    heads = "head" if size == 1 else f"{size} heads"
    return {
        f"Explained by the first {heads} of the ranking": f"{found.curve.explained_at(size):.1%}",
        f"Explained by {'a' if size == 1 else size} random head{'s' * (size != 1)}": (
            f"{mean:.1%} (95% of {draws} draws: {low:.1%} to {high:.1%})"
        ),
    }


def _with_interval(headline: Mapping[str, Any], name: str, ends: str) -> str:
    """A share with its interval over prompts."""
    low, high = headline[f"{ends}_low"], headline[f"{ends}_high"]
    return f"{headline[name]:.1%} (95% {low:.1%} to {high:.1%})"


def _against_published(found: Discovery) -> "pd.DataFrame | None":
    """Precision, recall and AUROC against published circuits for this model and task."""
    import pandas as pd

    task, model = found.curve.task, found.curve.model
    known = published_for(task, model, found.edges.used.shape[1:])
    if not known:
        return None
    scores = found.effects.scores if found.signed else found.effects.scores.abs()
    by_head = {head: float(scores[head]) for head in found.effects.ranking()}
    rows = [
        (
            c.source,
            found.circuit.precision(c),
            found.circuit.recall(c),
            found.circuit.jaccard(c),
            auroc(by_head, c),
        )
        for c in known
    ]
    return pd.DataFrame(
        rows, columns=pd.Index(["published", "precision", "recall", "Jaccard", "AUROC"])
    )
