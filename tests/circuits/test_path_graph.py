"""The path graph: an arrow per path in the colour of its sign, and no head without a path."""

import itertools
from typing import Any

import pytest
import torch

from circuits.path_graph import HELPS, HINDERS, draw_paths, paths_inside
from circuits.path_layout import LANE, apart, lay_out
from mechheads.scoring.edge_attribution import EdgeEffects


def effects_of(paths, logits=None, layers=4, heads=8):
    """Effects with the given paths as {(from, to, input): effect}; all others are 0."""
    values = {part: torch.zeros(layers, heads, layers, heads) for part in "qkv"}
    for (sender, receiver, part), effect in paths.items():
        values[part][(*sender, *receiver)] = effect
    direct = None if logits is None else torch.zeros(layers, heads)
    for head, effect in (logits or {}).items():
        direct[head] = effect  # pyright: ignore[reportOptionalSubscript]
    return EdgeEffects("task", "model", "logit_diff", values, values, {}, direct)


def many(n, seed=0, layers=12, heads=12):
    """Random effects of all paths, and n heads."""
    generator = torch.Generator().manual_seed(seed)
    later = torch.arange(layers)[:, None, None, None] < torch.arange(layers)[:, None]
    grid = layers, heads, layers, heads
    values = {part: torch.randn(grid, generator=generator) * later for part in "qkv"}
    direct = 5 * torch.randn(layers, heads, generator=generator)
    found = EdgeEffects("task", "model", "logit_diff", values, values, {}, direct)
    chosen = torch.randperm(layers * heads, generator=generator)[:n].tolist()
    return found, [divmod(i, heads) for i in chosen]


def arrows_of(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if "→" in trace.name}


def boxes_of(figure: Any) -> dict[str, Any]:
    """The box of every name in the figure."""
    return {
        note.text: box
        for note, box in zip(figure.layout.annotations, figure.layout.shapes, strict=True)
    }


HEADS = [(0, 1), (1, 3), (3, 4), (2, 2)]
TWO = {((1, 3), (3, 4), "q"): 0.42, ((1, 3), (3, 4), "v"): -0.9}


def test_a_helping_q_and_a_hindering_v_of_the_same_heads_are_two_arrows_in_two_colours():
    arrows = arrows_of(draw_paths(effects_of(TWO), HEADS))
    helping, hindering = arrows["L1H3 → L3H4.q"], arrows["L1H3 → L3H4.v"]
    assert len(arrows) == 2
    assert (helping.line.color, hindering.line.color) == (HELPS, HINDERS)
    assert helping.line.dash != hindering.line.dash
    assert helping.x[-1] < hindering.x[-1]
    assert helping.hovertemplate.startswith("L1H3 → L3H4.q: +0.42<")
    assert hindering.hovertemplate.startswith("L1H3 → L3H4.v: -0.9<")


def test_heads_without_paths_are_hidden_and_the_title_counts_what_is_shown():
    figure: Any = draw_paths(effects_of(TWO, {(3, 4): 0.1, (2, 2): 0.01}), HEADS, k=3)
    assert set(boxes_of(figure)) == {"L1H3", "L3H4", "<b>logits</b>"}
    assert "3 strongest of 4 paths, 2 of 4 heads" in figure.layout.title.text


def test_heads_with_a_direct_effect_have_an_arrow_to_the_logits_above_all_heads():
    figure: Any = draw_paths(effects_of(TWO, {(3, 4): -0.5, (0, 1): 0.2}), HEADS)
    arrows, boxes = arrows_of(figure), boxes_of(figure)
    assert arrows["L3H4 → logits"].line.color == HINDERS
    assert arrows["L0H1 → logits"].line.color == HELPS
    top = boxes.pop("<b>logits</b>")
    assert top.y0 > max(box.y1 for box in boxes.values())
    assert arrows["L3H4 → logits"].y[-1] == pytest.approx(top.y0)


def test_without_known_direct_effects_there_are_no_logits():
    assert set(boxes_of(draw_paths(effects_of(TWO), HEADS))) == {"L1H3", "L3H4"}


def test_a_circuit_without_paths_is_an_empty_figure():
    figure: Any = draw_paths(effects_of({}), HEADS)
    assert not arrows_of(figure)
    assert "0 strongest of 0 paths, 0 of 4 heads" in figure.layout.title.text


def test_the_legend_names_both_signs_and_all_inputs():
    figure: Any = draw_paths(effects_of(TWO), HEADS)
    named = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert named[:2] == ["helps", "hinders"]
    assert [name[-2] for name in named[2:]] == ["q", "k", "v"]


def test_only_paths_inside_the_circuit_count_strongest_first():
    found = paths_inside(effects_of(TWO | {((0, 0), (1, 3), "k"): 5.0}, {(0, 0): 9.0}), HEADS)
    assert [path.name for path in found] == ["L1H3 → L3H4.v", "L1H3 → L3H4.q"]


@pytest.mark.parametrize("seed", range(3))
def test_no_arrow_runs_over_a_head_of_60_and_no_heads_overlap(seed):
    figure: Any = draw_paths(*many(60, seed), k=60)
    boxes = {name: (b.x0, b.x1, b.y0, b.y1) for name, b in boxes_of(figure).items()}
    arrows = {name: (*arrow.x, *arrow.y) for name, arrow in arrows_of(figure).items()}
    assert len(arrows) == 60
    assert len(boxes) > 30
    for one, other in itertools.combinations(boxes.values(), 2):
        assert one[2] != other[2] or one[1] < other[0] or other[1] < one[0]
    for name, points in arrows.items():
        half = len(points) // 2
        for x, y in zip(points[1 : half - 1], points[half + 1 : -1], strict=True):
            crossed = [n for n, (x0, x1, y0, y1) in boxes.items() if x0 < x < x1 and y0 < y < y1]
            assert not crossed, f"{name} runs over {crossed}"


def test_the_same_paths_give_the_same_figure():
    assert draw_paths(*many(60)).to_json() == draw_paths(*many(60)).to_json()


def test_things_move_apart_no_more_than_they_must():
    assert apart([0.0, 5.0], [1.0, 1.0]) == [0.0, 5.0]
    assert apart([1.0, 1.0, 9.0], [1.0, 1.0, 1.0]) == [0.5, 1.5, 9.0]
    assert apart([], []) == []


def test_an_arrow_that_skips_a_row_has_a_lane_beside_its_heads():
    layout = lay_out([((0, 0), (1, 0)), ((1, 0), (2, 0)), ((0, 0), (2, 0))])
    _, (x, y), _ = layout.arrows[(0, 0), (2, 0)]
    assert y == layout.places[1, 0][1] == 1
    assert abs(x - layout.places[1, 0][0]) >= (1 + LANE) / 2 - 1e-9
