import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tasks
from mechheads import MechheadsError, load
from mechheads.models.load import load_original
from mechheads.models.model import is_gated
from mechheads.observe.edges import count_edges
from mechheads.training.data import TrainingData, read_sequences, text_batches, text_data, text_rows
from mechheads.training.sparsification import (
    Control,
    Settings,
    _forward,
    _optimizer,
    _sizes,
    begin,
    measure,
    sparsify,
    train_step,
)

SETTINGS = Settings(model="tiny", length=12, steps=4, batch=3, bias=3.0)


@pytest.fixture
def original(checkpoint):
    return load_original(str(checkpoint("gpt2")))


@pytest.fixture
def data():
    sequences = torch.randint(5, 300, (40, 12), generator=torch.Generator().manual_seed(0))
    return TrainingData(text_batches(sequences[:30], 3, seed=0), [text_rows(sequences[30:])])


def everywhere(tokens):
    """Every position but the last is asked for its next token."""
    return torch.ones_like(tokens[:, 1:]).bool()


def test_one_step_changes_all_weights_and_gates_and_leaves_the_teacher(original, data):
    student = begin(original, SETTINGS)
    tokens = data.tests[0].tokens
    before = {name: p.detach().clone() for name, p in student.parameters.items()}
    taught = student.teach(tokens, everywhere(tokens))
    train_step(student, _optimizer(student, SETTINGS), data.batches(0), Control(1.0), SETTINGS, 0)
    for name, parameter in student.parameters.items():
        assert not torch.equal(parameter, before[name]), name
    assert torch.equal(student.teach(tokens, everywhere(tokens)), taught)


def test_decay_shrinks_the_matrices_of_the_blocks_and_nothing_else(checkpoint, data):
    found = []
    for decay in (0.0, 0.5):
        settings = replace(SETTINGS, decay=decay, rate=0.1)
        student = begin(load_original(str(checkpoint("gpt2"))), settings)
        before = {name: p.detach().clone() for name, p in student.parameters.items()}
        optimizer = _optimizer(student, settings)
        train_step(student, optimizer, data.batches(0), Control(1.0), settings, 0)
        found.append({name: p.detach() for name, p in student.parameters.items()})
    shrunk = 0.1 * 0.5
    for name, plain in found[0].items():
        inside = name.endswith("weight") and ".h." in name and plain.ndim == 2
        wanted = plain - shrunk * before[name] if inside else plain
        torch.testing.assert_close(found[1][name], wanted, msg=name)


@pytest.mark.parametrize(("settle", "same"), [(1.0, True), (0.25, False)])
def test_gates_are_drawn_until_the_last_part_and_not_in_it(settle, same, checkpoint, data):
    found = []
    for seed in (0, 1):  # of the noise; the rows are the same
        settings = replace(SETTINGS, settle=settle, bias=0.0, seed=seed)
        student = begin(load_original(str(checkpoint("gpt2"))), settings)
        optimizer = _optimizer(student, settings)
        train_step(student, optimizer, data.batches(0), Control(1.0), settings, 0)
        found.append(student.bias.detach().clone())
    assert torch.equal(*found) == same


def test_with_adapters_only_they_and_the_gates_change(original, data):
    settings = replace(SETTINGS, lora=2)
    dense = {name: p.clone() for name, p in original.hf_model.named_parameters()}
    tokens = data.tests[0].tokens
    plain = original.hf_model(tokens, use_cache=False).logits
    student = begin(original, settings)
    for step in range(2):
        train_step(
            student, _optimizer(student, settings), data.batches(step), Control(1.0), settings, 0
        )
    assert all("lora" in name or name == "edge_gates" for name in student.parameters)
    taught = student.teach(tokens, everywhere(tokens))
    assert torch.equal(taught, plain[:, :-1].flatten(0, 1))
    left = dict(student.model.named_parameters())
    for name, value in dense.items():
        own = next(n for n in left if n.endswith(name) or n.endswith(_wrapped(name)))
        assert torch.equal(left[own], value), name


def _wrapped(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    return f"{stem}.base_layer.{kind}"


def test_adapters_are_merged_into_the_directory(original, data, tmp_path):
    sparsify(original, data, replace(SETTINGS, lora=2), tmp_path, quiet=True)
    assert is_gated(load(str(tmp_path)))


def test_the_density_term_closes_gates_and_without_it_they_stay(original, data):
    densities = []
    for multiplier in (0.0, 50.0):
        torch.manual_seed(0)
        settings = replace(SETTINGS, multiplier_rate=0.0, bias_rate=0.3, steps=100)
        student = begin(original, settings)
        optimizer, control = _optimizer(student, settings), Control(multiplier)
        for step in range(12):
            control = train_step(student, optimizer, data.batches(step), control, settings, step)
        densities.append(measure(student, data.tests).density)
    assert densities[1] < 0.5 < densities[0]


def test_open_gates_lose_nothing_and_use_every_edge(original, data):
    found = measure(begin(original, replace(SETTINGS, bias=1e4)), data.tests)
    assert (found.gap, found.density, found.live) == (0.0, 1.0, 8)


def test_the_sums_are_those_of_a_loop_over_tokens(original, data):
    student = begin(original, replace(SETTINGS, bias=1e4))
    part = data.tests[0]
    part = replace(part, weights=part.weights * torch.rand(part.weights.shape))
    part.weights[:, 9:] = 0.0
    loss, divergence, dense_loss, _ = _forward(student, part)
    predictions = original.hf_model(part.tokens, use_cache=False).logits.log_softmax(-1)
    by_hand = -1.0 * sum(
        (part.weights[row, pos + 1] * predictions[row, pos, part.tokens[row, pos + 1]]).item()
        for row in range(len(part.tokens))
        for pos in range(8)
    )
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    assert dense_loss == pytest.approx(by_hand, rel=1e-5)
    assert divergence.item() == pytest.approx(0.0, abs=1e-5)
    weight, edges = _sizes([part], student.bias)
    assert weight == pytest.approx(part.weights.sum().item())
    assert edges == 10 * sum(range(1, 9)) * 8


@pytest.mark.parametrize(
    ("gap", "density", "grows"), [(0.0, 0.5, True), (0.2, 0.5, False), (0.0, 0.0, False)]
)
def test_the_multiplier_grows_while_the_loss_is_kept_and_edges_are_many(gap, density, grows):
    settings = replace(SETTINGS, slack=0.05, density=0.1)
    before = Control(1.0, gap, density)
    after = before.after(gap, density, settings)
    assert (after.multiplier > 1.0) == grows
    rate = settings.multiplier_rate
    assert after.multiplier == pytest.approx(torch.tensor(rate if grows else -rate).exp().item())
    at_cap = Control(settings.multiplier_max, 0.0, 0.5)
    assert at_cap.after(0.0, 0.5, settings).multiplier == settings.multiplier_max


def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bytes(checkpoint, data, tmp_path):
    def go(folder, **options):
        original = load_original(str(checkpoint("gpt2")))
        sparsify(original, data, SETTINGS, tmp_path / folder, save_every=2, quiet=True, **options)

    go("whole")
    go("parts", stop_after=3)
    assert not (tmp_path / "parts" / "config.json").exists()
    go("parts")
    for file in ("model.safetensors", "edge_gates.safetensors", "edge_gates.json", "config.json"):
        whole, parts = (tmp_path / f / file for f in ("whole", "parts"))
        assert whole.read_bytes() == parts.read_bytes(), file
    log = (tmp_path / "parts" / "training" / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in log] == ["step", "2", "3", "4"]


def test_the_result_is_a_directory_that_loads_with_its_gates(original, data, tmp_path):
    found = sparsify(original, data, SETTINGS, tmp_path, quiet=True)
    model = load(str(tmp_path))
    assert is_gated(model)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("tokenizer")) == [
        "config.json",
        "edge_gates.json",
        "edge_gates.safetensors",
        "generation_config.json",
        "model.safetensors",
        "training",
    ]
    facts = json.loads((tmp_path / "edge_gates.json").read_text())
    assert facts["base"] == "tiny"
    assert facts["held_out_density"] == pytest.approx(found.density, abs=1e-6)
    with pytest.raises(MechheadsError, match=r"is already sparse\. Give the dense model"):
        load_original(str(tmp_path))


def test_a_run_can_start_from_an_earlier_result(checkpoint, data, tmp_path):
    folder = str(checkpoint("gpt2"))
    sparsify(load_original(folder), data, SETTINGS, tmp_path / "first", quiet=True)
    again = load_original(folder)
    dense = again.hf_model(data.tests[0].tokens, use_cache=False).logits
    student = begin(again, replace(SETTINGS, start=str(tmp_path / "first")))
    first = load(str(tmp_path / "first"), quiet=True)
    assert torch.equal(student.bias, first.edge_gates)
    weights = load_file(tmp_path / "first" / "model.safetensors")
    for name, parameter in student.parameters.items():
        assert name == "edge_gates" or torch.equal(parameter, weights[name])
    taught = student.teach(data.tests[0].tokens, everywhere(data.tests[0].tokens))
    assert torch.equal(taught, dense[:, :-1].flatten(0, 1))


def test_a_start_that_is_not_sparse_is_named(checkpoint, original, data, tmp_path):
    settings = replace(SETTINGS, start=str(checkpoint("gpt2")))
    with pytest.raises(MechheadsError, match="is not a sparse model"):
        sparsify(original, data, settings, tmp_path / "out", quiet=True)


def test_edges_are_counted_per_prompt_and_head(original, data, tmp_path):
    sparsify(original, data, replace(SETTINGS, bias=0.0), tmp_path, quiet=True)
    model = load(str(tmp_path))
    prompts = tasks.make("ioi", model, n=3)
    edges = count_edges(model, prompts, quiet=True)
    for i, pair in enumerate(prompts.pairs):
        with torch.inference_mode():
            tokens = model.to_tokens(pair.clean)
            _, cache = model.run_with_cache(tokens)
        n = tokens.shape[1]
        assert edges.possible[i] == n * (n + 1) // 2
        for layer in range(2):
            opened = (cache["pattern", layer][0] != 0).sum((1, 2))
            assert edges.used[i, layer].tolist() == opened.tolist()
    assert 0 < edges.density < 1
    frame = edges.frame()
    share = frame["used"].to_numpy().sum() / frame["possible"].to_numpy().sum()
    assert share == pytest.approx(edges.density)
    dense = count_edges(load(original.name), prompts, quiet=True)
    assert (dense.density, dense.live) == (1.0, 8)
    assert count_edges(load(original.name), prompts, threshold=0.2, quiet=True).density < 1


def test_text_becomes_sequences_behind_the_first_token(original, tmp_path):
    (tmp_path / "b.md").write_text("Mary gave John 7 books. " * 30)
    (tmp_path / "a.txt").write_text("John gave Mary 3 books. " * 30)
    (tmp_path / "c.py").write_text("not this")
    sequences = read_sequences(tmp_path, original.tokenizer, 12)
    assert sequences.shape[1] == 12
    assert set(sequences[:, 0].tolist()) == {original.tokenizer.bos_token_id}
    text = original.tokenizer.decode(sequences[:, 1:].flatten())
    assert text.startswith("John<unk> Mary 3")
    assert "not this" not in text
    data = text_data(original.tokenizer, tmp_path, 12, 4, seed=0)
    (drawn,) = data.batches(0)
    assert drawn.tokens.shape == (4, 12)
    tests = {tuple(row) for part in data.tests for row in part.tokens.tolist()}
    assert len(tests) >= 1


def test_text_lessons_depend_on_the_step_alone():
    sequences = torch.arange(60).view(20, 3)
    batch_at = text_batches(sequences, 4, seed=1)
    assert torch.equal(batch_at(3)[0].tokens, batch_at(3)[0].tokens)
    assert not torch.equal(batch_at(3)[0].tokens, batch_at(4)[0].tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slack": 0.0}, "--slack takes more than 0, got 0.0"),
        ({"steps": 0}, "--steps takes more than 0, got 0"),
        ({"start": "earlier", "lora": 2}, "--start trains all weights"),
        ({"decay": -1.0}, "--decay takes 0 or more, got -1.0"),
        ({"settle": 0.0}, "--settle is a share of the steps"),
        ({"density": 1.5}, "--density is a share of the edges"),
        ({"lora": -1}, "--lora takes 0 or more, got -1"),
        ({"length": 1}, "--length takes 2 tokens or more, got 1"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, message, original, data, tmp_path):
    with pytest.raises(MechheadsError, match=message):
        sparsify(original, data, replace(SETTINGS, **changes), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_other_settings_do_not_go_on_from_a_checkpoint(original, data, tmp_path):
    sparsify(original, data, SETTINGS, tmp_path, stop_after=1, quiet=True)
    with pytest.raises(MechheadsError, match=r"was made with --slack 0.05, not 0.1\. Resume with"):
        sparsify(original, data, replace(SETTINGS, slack=0.1), tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such text: .*Give a text file, a folder"),
        (b"", "is empty. Give a file with text in it"),
        (b"Mary gave", "has . tokens, less than one sequence of 12. Give more text, or a smaller"),
        (b"\xff\xfe\xff" * 99, "cannot be read as UTF-8 text"),
    ],
)
def test_text_that_cannot_be_used_is_named(text, message, original, tmp_path):
    file = Path(tmp_path / "text.txt")
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(MechheadsError, match=message):
        read_sequences(file, original.tokenizer, 12)


def test_a_folder_without_text_is_named(original, tmp_path):
    with pytest.raises(MechheadsError, match=r"has no \.txt or \.md files"):
        read_sequences(tmp_path, original.tokenizer, 12)


def test_without_peft_adapters_are_refused(original, data, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        MechheadsError, match=r"--lora needs peft.*pip install 'mechheads\[large\]'"
    ):
        sparsify(original, data, replace(SETTINGS, lora=4), tmp_path, quiet=True)
