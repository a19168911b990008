from typing import Any

import pandas as pd

from mechheads.training.report import SPARSE_PANELS, accuracy_panels, draw, write_curves

SPARSE_LOG = """step,seconds,train_gap,train_density,multiplier,test_gap,test_density,live_heads
2,1,0.01,0.9,0.3,0.02,0.8,8
4,2,0.02,0.5,0.4,0.03,0.4,7
4,2,0.02,0.1,0.4,0.03,0.05,6
"""
TASK_LOG = """step,seconds,loss,ioi,math,syntax
250,100,2.0,0.1,0.2,0.3
500,200,1.0,0.9,0.8,1.0
"""


def test_the_report_of_a_sparse_run_draws_its_log_with_both_limits(tmp_path):
    (tmp_path / "log.csv").write_text(SPARSE_LOG)
    settings = {"slack": 0.05, "density": 0.004, "model": "<mini>"}
    page = write_curves(tmp_path, "tiny made sparse", settings).read_text()
    assert page.count('class="plotly-graph-div"') == 1
    assert "&lt;mini&gt;" in page
    assert "<td>6" in page, "a repeated step counts once, as it was last written"


def test_a_panel_has_a_line_per_column_in_percent_where_it_says_so(tmp_path):
    (tmp_path / "log.csv").write_text(SPARSE_LOG)
    log = pd.read_csv(tmp_path / "log.csv")
    figure: Any = draw(log, SPARSE_PANELS, {"slack": 0.05, "density": 0.004})
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines["training, expected"] == [90.0, 50.0, 10.0]
    assert lines["c"] == [0.3, 0.4, 0.4]
    assert set(lines["slack (0.05)"]) == {0.05}
    assert set(lines["density (0.4)"]) == {0.4}


def test_every_task_of_a_pretraining_log_has_a_line(tmp_path):
    (tmp_path / "log.csv").write_text(TASK_LOG)
    panels = accuracy_panels(tmp_path / "log.csv")
    assert [name for panel in panels for name in panel.columns] == ["loss", "ioi", "math", "syntax"]
    page = write_curves(tmp_path, "mini", {}, panels)
    assert "Held-out accuracy" in page.read_text()
