"""Sections of a report: how sure is the circuit?"""

from mechheads.reports.page import Section

from .alternatives import Alternatives
from .figures import draw_alternatives, draw_clusters, draw_inclusion
from .inclusion import Inclusion
from .mixture import PromptClusters


def certainty_sections(
    inclusion: Inclusion | None,
    clusters: PromptClusters | None,
    alternatives: Alternatives | None,
) -> list[Section]:
    """Inclusion of every head, several circuits, alternative circuits: those that were measured."""
    sections = []
    if inclusion is not None:
        sections.append(_inclusion(inclusion))
    if alternatives is not None:
        sections.append(_alternatives(alternatives))
    if clusters is not None:
        sections.append(_clusters(clusters))
    return sections


def _inclusion(found: Inclusion) -> Section:
    drawn = (
        "The prompts that rank the heads and those that judge the ranking are drawn again 2,000 "
        "times each, with replacement"
        if found.reranked
        else "There is one score per head, so that the ranking stays; the prompts that judge it "
        "are drawn again 2,000 times, with replacement"
    )
    size = (
        "as many heads are kept as asked for"
        if found.threshold is None
        else "as many heads are kept as the measured curve needs on the drawn prompts; the curve "
        "of a redrawn ranking is not measured again"
    )
    return Section(
        "How sure is each head of the ranking?",
        f"{found.sentence} {drawn}; {size}. A bar is the share of these samples in which the head "
        "is kept. Markers, and the table: the same for other thresholds.",
        draw_inclusion(found),
        frame=found.threshold_frame(),
    )


def _alternatives(found: Alternatives) -> Section:
    core = (
        ""
        if found.core is None
        else " core: only the heads of the circuit without which all other heads together stay "
        "below the threshold;"
    )
    frame = found.frame().drop(columns=["ci_low", "ci_high", "reached"])
    low, high = (end.tolist()[2:] for end in found.interval())
    frame.insert(4, "95% low", low)
    frame.insert(5, "95% high", high)
    return Section(
        "Could other heads do the same?",
        f"{found.sentence} Heads were chosen on the prompts that ranked them (searched: what they "
        "explain there), and measured on those that judge. disjoint: no head of the circuit;"
        f"{core} penalised: the effect of used heads counts {found.penalty:g} times. Jaccard: "
        "overlap with the circuit. Heads are taken in ranking order, so a smaller set may do.",
        draw_alternatives(found),
        frame=frame.rename(columns={"jaccard": "Jaccard"}),
    )


def _clusters(found: PromptClusters) -> Section:
    heading = "Do all prompts use the same heads?"
    if found.p is None or not found.real:
        return Section(heading, found.sentence)
    text = (
        f"{found.sentence} Groups are of effects per prompt from which the prompt's strength was "
        "taken away; p is the share of samples of a single circuit with the same covariance that "
        "fall into groups as clear."
    )
    frame = found.label_frame() if found.labels else None
    table = {
        f"Group {group} ({prompts} prompts)": heads
        for group, prompts, heads in found.frame().itertuples(index=False)
    }
    return Section(heading, text, draw_clusters(found), table, frame)
