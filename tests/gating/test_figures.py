"""Figures of gating: a panel per task and model."""

from typing import Any

import torch

from mechheads.gating.ablation_curves import Ablation
from mechheads.gating.figures import LINES, draw_ablations
from mechheads.scoring.gate_roles import ROLES


def test_the_grid_has_a_panel_per_task_and_model_and_rows_share_their_axis():
    cells = [
        Ablation(task, model, (0, 1, 2), torch.rand(3, 4, 3) - 0.5, 8, "4 seeds")
        for task in ("a", "b")
        for model in ("one", "two")
    ]
    figure: Any = draw_ablations(cells).to_dict()
    titles = [note["text"] for note in figure["layout"]["annotations"]]
    assert [title.split("<br>")[0] for title in titles] == [
        f"<b>{cell.task}</b>, {cell.model}" for cell in cells
    ]
    assert all("4 seeds, 8 held-out prompts" in title for title in titles)
    layout = figure["layout"]
    assert (layout["yaxis2"]["matches"], layout["yaxis4"]["matches"]) == ("y", "y3")
    assert "matches" not in layout["yaxis3"]
    curves = [trace for trace in figure["data"] if trace.get("name")]
    assert len(curves) == 4 * 3
    for curve, role in zip(curves, ROLES * 4, strict=True):
        assert curve["name"] == f"by {role}"
        assert (curve["line"]["color"], curve["line"]["dash"]) == LINES[role]
    assert len({line for line, _ in LINES.values()}) == len({d for _, d in LINES.values()}) == 3
    assert sum(curve["showlegend"] for curve in curves) == 3
    zeros = [shape for shape in layout["shapes"] if shape["y0"] == shape["y1"] == 0]
    assert [shape["yref"] for shape in zeros] == ["y", "y2", "y3", "y4"]
