import html
from typing import Any

import pytest
import torch

import mechheads
import tasks
from mechheads.errors import MechheadsError
from mechheads.observe.patterns import attend
from mechheads.reports.patterns import draw_patterns_by_head, draw_patterns_summed
from mechheads.reports.theme import COLORS, every, labels
from mechheads.scoring.effects import PositionEffects

TEXT = "Then, Mary and John gave <b>it</b> & went"


def test_the_figures_hold_every_model_and_head(tiny):
    patterns = attend(tiny, TEXT)
    sums: Any = draw_patterns_summed([patterns, patterns])
    assert len(sums.data) == 2
    first, last = sums.data[0].z[0], sums.data[0].z[-1]
    assert first[0] == pytest.approx(8.0)  # the first token attends to itself in all heads
    assert all(value is None for value in first[1:])
    assert sum(v for v in last if v) == pytest.approx(8.0, rel=1e-4)
    heads: Any = draw_patterns_by_head([patterns, patterns])
    assert len(heads.data) == 16


@pytest.fixture(scope="module")
def emoji():
    """The attention of the embedded model on a text with characters of several tokens."""
    return attend(mechheads.load("mini"), "Mary 🙂 and José went to 日本")


@pytest.mark.parametrize("head", ["L1H2", (1, 2), ["L1H2"], [(1, 2), "L1H2"]])
def test_one_head_is_drawn_with_the_tokens_on_both_axes(head, tiny):
    patterns = attend(tiny, TEXT)
    figure: Any = patterns.plot(head)
    (panel,) = figure.data
    for axis, title in ((figure.layout.xaxis, "key"), (figure.layout.yaxis, "query")):
        shown = [html.unescape(text).replace("␣", " ") for text in axis.ticktext]
        assert shown == list(patterns.tokens)
        assert not any("<" in text for text in axis.ticktext)
        assert title in axis.title.text
    assert panel.x[3:6] == panel.y[3:6] == ("3 ␣Mary", "4 ␣and", "5 ␣John")
    assert "%{x}" in panel.hovertemplate
    assert "%{y}" in panel.hovertemplate
    assert "L1H2" in panel.hovertemplate
    assert panel.z[-1][0] == pytest.approx(float(patterns.weights[1, 2, -1, 0]), abs=1e-4)


def test_several_heads_are_drawn_in_the_order_given(tiny):
    figure: Any = attend(tiny, TEXT).plot("L1H2,L0H3")
    assert [note.text for note in figure.layout.annotations] == ["L1H2", "L0H3"]


def test_without_heads_all_are_drawn_and_the_hover_has_the_tokens(tiny):
    figure: Any = attend(tiny, TEXT).plot()
    assert len(figure.data) == 8
    assert figure.data[7].x[3] == figure.data[7].y[3] == "3 ␣Mary"


@pytest.mark.parametrize(
    ("head", "words"),
    [("L9H6", "no L9H6"), ((0, 4), "no L0H4"), ("nine", "L9H6"), ([], "no head"), (3, "3 is not")],
)
def test_a_head_that_the_model_lacks_is_one_line(head, words, tiny):
    with pytest.raises(MechheadsError, match=words) as caught:
        attend(tiny, TEXT).plot(head)
    assert "\n" not in str(caught.value)


def test_a_character_of_several_tokens_is_shown_whole(emoji):
    assert "".join(emoji.tokens).endswith("Mary 🙂 and José went to 日本")
    assert "\ufffd" not in "".join(emoji.tokens)
    figure: Any = emoji.plot("L3H4")
    assert [text for text in figure.layout.xaxis.ticktext if "🙂" in text] == [
        f"🙂 {part}/4" for part in (1, 2, 3, 4)
    ]
    assert any(place.endswith("🙂 4/4") for place in figure.data[0].x)


def test_labels_number_only_the_parts_of_characters():
    assert labels(["<s>", "", "a", "", "é", "b"]) == ["&lt;s&gt;", "", "a", "é 1/2", "é 2/2", "b"]
    assert labels(["", "日 x"]) == ["日 1/2", "日 2/2␣x"]
    assert labels([]) == []


def test_ticks_are_thinned_where_there_is_no_room():
    assert [every(n, 40) for n in (1, 40, 41, 100, 500)] == [1, 1, 2, 5, 20]


@pytest.fixture(scope="module")
def results():
    model = mechheads.load("mini")
    return {
        "PositionEffects": mechheads.patch_positions(
            model, tasks.make("greater_than", model, n=4), quiet=True
        ),
        "spans": mechheads.patch_positions(model, tasks.make("ioi", model, n=4), quiet=True),
        "EdgeEffects": mechheads.edge_attribution(model, tasks.make("ioi", model, n=4), quiet=True),
        "HeadTypes": mechheads.head_types(model),
    }


@pytest.mark.parametrize("kind", ["PositionEffects", "EdgeEffects", "HeadTypes"])
def test_every_figure_names_its_axes_and_its_unit(kind, results):
    figure: Any = results[kind].plot()
    assert [*figure.select_xaxes()][-1].title.text  # panels may share the lowest one
    assert figure.layout.yaxis.title.text
    shown = figure.to_json()
    assert "effect on" in shown if kind != "HeadTypes" else "attention" in shown


@pytest.mark.parametrize(
    ("kind", "ticks", "along"),
    [
        ("spans", ("IO", "S1", "S1+1", "S2", "END"), "span of the prompt"),
        ("PositionEffects", tuple(map(str, range(13))), "position of the token, from 0"),
    ],
)
def test_layers_are_above_the_strongest_heads_at_the_same_places(kind, ticks, along, results):
    found = results[kind]
    figure: Any = found.plot()
    layers, heads = figure.data
    assert figure.layout.xaxis2.ticktext == ticks
    assert figure.layout.xaxis2.title.text == along
    assert list(layers.y) == [0, 1, 2, 3]
    assert layers.z[3] == pytest.approx(found.by_layer.mean(0)[3].tolist())
    assert len(heads.y) == 24
    row = list(heads.y).index("L3H4")
    assert list(heads.z[row]) == pytest.approx(found.scores[3, 4].tolist())
    for panel in (layers, heads):  # white is 0, and the strongest effect has the full colour
        assert panel.zmax == -panel.zmin == pytest.approx(max(abs(v) for r in panel.z for v in r))


def named(names):
    values = torch.arange(4 * 2 * 3 * len(names)).view(4, 2, 3, len(names)).float()
    clean, corrupt = torch.ones(2, 4)
    return PositionEffects(
        "own", "m", "logit_diff", "span", tuple(names), values, values.sum(2), clean, corrupt
    )


@pytest.mark.parametrize(
    ("names", "angle", "shown"),
    [
        (["IO", "<b>", "END"], 0, ("IO", "&lt;b&gt;", "END")),
        (["subject of the relative clause", *"abcd"], -45, ("subject of the rela…", *"abcd")),
        ([f"argument {i}" for i in range(40)], -90, tuple(f"argument {i}" for i in range(40))),
        ([str(i) for i in range(90)], 0, tuple(str(i) for i in range(0, 90, 5))),
    ],
)
def test_names_of_spans_have_room(names, angle, shown):
    figure: Any = named(names).plot()
    assert figure.layout.xaxis2.ticktext == shown
    assert figure.layout.xaxis2.tickangle == angle
    assert html.unescape(figure.data[1].customdata[0][0]) == f"at {names[0]}"


def test_bars_of_paths_have_the_colour_of_their_sign_and_keep_their_order(results):
    found = results["EdgeEffects"]
    figure: Any = found.plot()
    helps, hinders = figure.data
    assert (helps.name, helps.marker.color) == ("helps", COLORS[1])
    assert (hinders.name, hinders.marker.color) == ("hinders", COLORS[0])
    assert all(x > 0 for x in helps.x)
    assert all(x <= 0 for x in hinders.x)
    effects = dict(zip((*helps.y, *hinders.y), (*helps.x, *hinders.x), strict=True))
    in_order = [effects[name] for name in figure.layout.yaxis.categoryarray]
    assert in_order == found.strongest(20)["effect"].tolist()
