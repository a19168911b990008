import torch

from mechheads.models import cache
from mechheads.models.cache import ModelCache
from mechheads.models.load import load


def test_a_model_that_is_loaded_again_comes_from_the_cache():
    kept = ModelCache()
    loaded = [load("mini", cache=kept, quiet=True), load("mini", cache=kept, quiet=True)]
    assert loaded[0] is loaded[1]
    assert load("mini", n_ctx=64, cache=kept, quiet=True) is not loaded[0]
    assert load("mini", quiet=True) is not loaded[0]


def test_the_model_that_was_not_used_for_longest_goes_before_another_is_loaded():
    kept = ModelCache()
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    large.weight = torch.nn.Parameter(torch.empty(cache.LARGE // 4 + 1, device="meta"))
    for key in "ab":
        assert kept.get(key) is None
        kept.put(key, small)
    assert kept.get("a") is small
    assert kept.get("c") is None  # and now b has gone
    assert kept.get("a") is small
    assert kept.get("b") is None
    kept.put("b", large)
    assert kept.get("b") is large
    assert kept.get("c") is None  # a large model does not stay beside one that comes
    assert kept.get("b") is None
