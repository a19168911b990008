import pytest
import torch

import mechheads
import tasks
from mechheads import MechheadsError


@pytest.mark.parametrize("replacement", ["zero", "corrupt"])
def test_the_metric_is_that_of_plain_hooks_with_the_heads_replaced(tiny, replacement):
    prompts = tasks.make("ioi", tiny, n=4)[:1]
    found = mechheads.ablate(tiny, prompts, ["L0H1", (1, 2)], replacement=replacement, quiet=True)
    clean, corrupt = (tiny.to_tokens(text) for text in (prompts[0].clean, prompts[0].corrupt))
    _, theirs = tiny.run_with_cache(corrupt)

    def change(head):
        def hook(z, hook):
            z[:, :, head] = 0 if replacement == "zero" else theirs[hook.name][:, :, head]
            return z

        return hook

    hooks = [("blocks.0.attn.hook_z", change(1)), ("blocks.1.attn.hook_z", change(2))]
    right, wrong = (tiny.to_single_token(c) for c in (prompts[0].answers[0], prompts[0].wrong[0]))
    with torch.inference_mode():
        last = tiny.run_with_hooks(clean, fwd_hooks=hooks)[0, -1]
    assert float(found.after) == pytest.approx(float(last[right] - last[wrong]), abs=1e-4)


def test_it_says_what_changed_and_is_drawn(planted, tmp_path):
    found = mechheads.ablate(planted, tasks.make("ioi", planted, n=8), "L0H0", quiet=True)
    assert float(found.change.abs().max()) < 1e-5  # L0H0 writes nothing
    assert "L0H0 replaced (corrupt)" in found.sentence
    assert len(found.plot().to_dict()["data"]) == 2
    assert type(found).load(found.save(tmp_path)).headline == found.headline


def test_generated_text_without_heads(planted):
    text = tasks.make("ioi", planted, n=1, split="all")[0].clean
    whole = mechheads.generate(planted, text, max_tokens=4, stop=(), quiet=True)
    idle = mechheads.generate(planted, text, ablate="L0H0", max_tokens=4, stop=(), quiet=True)
    assert whole == idle
    assert isinstance(whole, str)
    keep = torch.ones(1, 2, 4)
    keep[0, 0, 1] = 0
    options = {"max_tokens": 4, "stop": (), "positions": "all", "quiet": True}
    masked = mechheads.generate(planted, [text], keep, **options)[0]
    assert mechheads.generate(planted, [text], ablate=[(0, 1)], **options) == masked


def test_wrong_heads_are_named(tiny):
    prompts = tasks.make("ioi", tiny, n=4)
    with pytest.raises(MechheadsError, match="There is no L5H0"):
        mechheads.ablate(tiny, prompts, "L5H0")
    with pytest.raises(MechheadsError, match="at least one head"):
        mechheads.ablate(tiny, prompts, [])
    with pytest.raises(MechheadsError, match="either keep or ablate"):
        mechheads.generate(tiny, "The", torch.ones(1, 2, 4), ablate="L0H0")
