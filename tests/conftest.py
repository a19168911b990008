import importlib.util
from collections.abc import Callable
from pathlib import Path

import checkpoints
import pytest
import torch

from mechheads.models.fetchable import is_complete
from mechheads.models.load import load
from mechheads.models.model import Model

FETCHED = {"smollm2": "smollm2", "qwen": "qwen2.5-coder-1.5b"}  # markers and their models
SHARED = Path(__file__).parents[2] / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_shared = pytest.mark.skip(reason="there is no ../shared folder here")
    no_hooked = pytest.mark.skip(reason="its oracle is HookedTransformer, of TransformerLens 3")
    lens4 = importlib.util.find_spec("transformer_lens.HookedTransformer") is None
    for item in items:
        if lens4 and item.get_closest_marker("hooked"):
            item.add_marker(no_hooked)
        if item.get_closest_marker("shared") and not SHARED.is_dir():
            item.add_marker(no_shared)
        for marker, model in FETCHED.items():
            if item.get_closest_marker(marker) and not is_complete(model):
                reason = f"run python -m mechheads.fetch {model} first"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models and tokenizers beside the project."""
    return SHARED


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """checkpoint("llama-gqa") is the folder of a tiny random model of that kind, written once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(kind: str) -> Path:
        path = root / kind
        return path if path.exists() else checkpoints.write(path, kind)

    return folder


@pytest.fixture(scope="session")
def tiny(checkpoint: Callable[[str], Path]) -> Model:
    """A tiny random GPT-2 whose tokenizer has whole names and single digits."""
    return load(str(checkpoint("gpt2")))


@pytest.fixture(scope="session")
def tinystories() -> Model:
    """A real pretrained Llama of 15M parameters."""
    return load(str(SHARED / "models" / "tinyllamas-stories15M"))


@pytest.fixture(scope="session")
def planted(checkpoint: Callable[[str], Path]) -> Model:
    """A tiny model in which only L0H1 and L1H2 write anything: no other head can matter."""
    model = load(str(checkpoint("gpt2")))
    with torch.no_grad():
        for layer, head in ((0, 1), (1, 2)):
            weight = model.blocks[layer].attn.W_O
            kept = weight[head].clone()
            weight.zero_()
            weight[head] = 20 * kept
    return model
