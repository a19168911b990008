from mechheads.benchmarks.scaling import Scaling


def test_the_table_of_workers_has_a_title_over_every_number():
    titles, values = Scaling(8, 30.0, 16.0).table.splitlines()
    assert titles.split("  ")[:3] == ["cells", "1 worker, s", "2 workers, s"]
    assert titles.endswith(" ratio")
    assert values.split() == ["8", "30.0", "16.0", "1.88", "x"]
    assert len(values) == len(titles)
