"""The job of `attention`: one page with the patterns of every model."""

from collections.abc import Mapping
from typing import Any

from mechheads.errors import MechheadsError
from mechheads.models.options import ModelOptions
from mechheads.options import read_list, read_path
from mechheads.packages import check_not_hidden, no_garbage_collection
from mechheads.progress import say
from mechheads.runs.files import prepare

from .run import Finished, print_json

NOTE = (
    "Blue is the weight that a query (row) gives to a key (column), in the order of the tokens "
    "above; white is zero."
)


def run_attention(given: Mapping[str, Any]) -> Finished:
    """Check, load, draw and write; the result is a list of `Patterns`, one per model."""
    check_not_hidden()
    from tasks import registry as tasks

    loading: ModelOptions = given["loading"]
    task, text, quiet = given["task"], given["prompt"], given["quiet"]
    file = read_path(given["out"], "--out")
    if file.suffix != ".html":
        raise MechheadsError(f"--out takes a file that ends in .html, got {given['out']}.")
    names = read_list(given["models"], str, "--models")
    for name in names:
        loading.find(name, quiet)
    task = tasks.default_task(names[0]) if task is None else task
    if text is None:
        tasks.check(task, 1, "test", {})
    prepare(file.parent)
    say(f"Loading {', '.join(names)} ...", quiet)
    with no_garbage_collection():
        from mechheads.observe.patterns import attend
        from mechheads.reports.page import Section, write_page
        from mechheads.reports.patterns import draw_patterns_by_head, draw_patterns_summed

    models = [loading.load(name, quiet=quiet) for name in names]
    if text is None:
        text = tasks.make(task, models[0], n=1, seed=given["seed"]).pairs[0].clean
    found = [attend(model, text) for model in models]
    sections = [
        Section("All heads together", text, draw_patterns_summed(found)),
        Section("Each head", NOTE, draw_patterns_by_head(found)),
    ]
    write_page(file, f"Attention of {', '.join(names)}", sections)
    if given["json"]:
        headline = {"parts": {one.model: one.headline for one in found}, "page": str(file)}
        sentence = " ".join(one.sentence for one in found)
        print_json("attention", headline, [], file.parent, sentence)
    else:
        print(file)
    return Finished(found, file.parent)
