"""Prompts of token ids, for models without a tokenizer."""

import warnings

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig

import circuits
import mechheads
import tasks
from mechheads import MechheadsError
from mechheads.models.model import encoder_of
from mechheads.prompts import TokenIds


@pytest.fixture(scope="module")
def toy() -> HookedTransformer:
    """A random model of two layers that knows 12 tokens and no words."""
    torch.manual_seed(0)
    cfg = HookedTransformerConfig(
        n_layers=2, d_model=16, n_heads=4, d_head=4, n_ctx=16, d_vocab=12, act_fn="relu", seed=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return HookedTransformer(cfg)


def prompts(n: int = 8):
    clean = torch.randint(0, 12, (n, 6), generator=torch.Generator().manual_seed(1))
    corrupt = clean.clone()
    corrupt[:, 2] = (clean[:, 2] + 1) % 12
    return tasks.from_tokens(clean, corrupt, [1] * n, [[2, 3]] * n)


def test_effects_equal_those_of_plain_hooks(toy):
    made = prompts()
    found = mechheads.score_heads(toy, made, "patch", quiet=True)
    clean = torch.tensor([list(map(int, pair.clean.split())) for pair in made])
    corrupt = torch.tensor([list(map(int, pair.corrupt.split())) for pair in made])
    _, theirs = toy.run_with_cache(corrupt)

    def patch(z, hook):
        z[:, :, 2] = theirs[hook.name][:, :, 2]
        return z

    def value(logits):
        last = logits[:, -1].log_softmax(-1)
        return last[:, 1] - last[:, 2:4].mean(1)

    after = toy.run_with_hooks(clean, fwd_hooks=[("blocks.1.attn.hook_z", patch)])
    torch.testing.assert_close(
        found.values[:, 1, 2], (value(toy(clean)) - value(after)).detach(), atol=1e-5, rtol=1e-4
    )


def test_a_whole_circuit_is_found_without_a_tokenizer(toy, tmp_path):
    found = circuits.discover(toy, prompts(16), draws=2, quiet=True)
    assert found.report(tmp_path).is_file()
    assert found.sample.tokens[0].isdigit()


def test_a_prompt_of_ids_is_used_as_it_is_with_any_model():
    model = mechheads.load("mini")
    text = tasks.make("ioi", model, n=4)
    encoder = encoder_of(model)
    ids = tasks.from_tokens(
        [encoder.ids(pair.clean) for pair in text],
        [encoder.ids(pair.corrupt) for pair in text],
        [encoder.plain_ids(pair.answers[0]) for pair in text],
        [encoder.plain_ids(pair.wrong[0]) for pair in text],
    )
    one, two = (mechheads.evaluate(model, p, quiet=True).clean["logit_diff"] for p in (text, ids))
    assert torch.equal(one, two)


def test_corrupted_prompts_and_wrong_answers_may_be_left_out(toy):
    bare = tasks.from_tokens([[1, 2, 3], [3, 2, 1]], answers=[4, [5, 6]])
    assert (bare.metric, bare[1].answers, bare[0].corrupt) == ("logprob", ("5", "6"), "")
    found = mechheads.ablate(toy, bare, "L1H2", replacement="zero", quiet=True)
    logits = toy(torch.tensor([[1, 2, 3]]))[0, -1].log_softmax(-1)
    assert found.before[0].item() == pytest.approx(logits[4].item(), abs=1e-4)
    with pytest.raises(MechheadsError, match="has no answers"):
        tasks.from_tokens([[1, 2]])


def test_new_tokens_are_ids_too(toy):
    tokens = torch.tensor([[1, 2, 3]])
    for _ in range(4):
        tokens = torch.cat([tokens, toy(tokens)[:, -1:].argmax(-1)], dim=1)
    said = mechheads.generate(toy, TokenIds("1 2 3"), max_tokens=4, quiet=True)
    assert said == " ".join(map(str, tokens[0, 3:].tolist()))


def test_prompts_of_words_for_a_model_without_a_tokenizer_are_one_line(toy):
    words = tasks.from_records([{"clean": "a b", "answer": " c"}] * 8)
    with pytest.raises(MechheadsError) as caught:
        mechheads.evaluate(toy, words)
    assert str(caught.value).count("has no tokenizer") == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([], [], [], []), "Task own has no prompts"),
        (([[1]], [[2]], [1, 2], [3]), "Task own has 1, 1, 2, 1 clean prompts"),
        (([["a"]], [[2]], [1], [3]), "token ids are whole numbers"),
        (([[1, 2]], [[2, 99]], [1], [3]), "not all tokens of .* which has 0 to 11"),
    ],
)
def test_wrong_ids_are_named(rows, message, toy):
    with pytest.raises(MechheadsError, match=message):
        mechheads.evaluate(toy, tasks.from_tokens(*rows), quiet=True)


def test_text_for_a_model_without_a_tokenizer_is_refused_with_the_next_step(toy):
    with pytest.raises(MechheadsError, match=r"has no tokenizer.*tasks.from_tokens"):
        mechheads.attend(toy, "Mary and John")
    with pytest.raises(MechheadsError, match="This model has no tokenizer"):
        tasks.make("ioi", toy)
    assert mechheads.attend(toy, TokenIds("1 2 3")).tokens == ("1", "2", "3")
