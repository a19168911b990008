"""What loading a model imports, and that what it leaves out is there for who needs it."""

import builtins
import importlib
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from mechheads.models.backends import imports
from mechheads.models.backends.imports import StandIn, has_hooked_transformer, lean_imports

# Seconds of imports that no command needs before it has measured something.
LEFT_OUT = """bitsandbytes datasets IPython math_verify matplotlib pandas peft plotly pyarrow ray
    rouge_score sacrebleu scipy sklearn torchvision wandb torch._inductor.compile_fx""".split()
LOADED = f"""
import builtins, sys
untouched = builtins.__import__
import mechheads
model = mechheads.load("mini")
found = [name for name in {LEFT_OUT} if name in sys.modules]
assert not found, found
from mechheads.models.backends.imports import StandIn
assert not [name for name, module in sys.modules.items() if isinstance(module, StandIn)]
assert builtins.__import__ is untouched
"""
HEAVY = "class Thing:\n    size = 3\ndef make():\n    return Thing()\n"
LIGHT = """
import heavy, heavy as same
from heavy import Thing, make
from heavy.inner import Inner
def size(thing: Thing | None, other: "int" = 0) -> "int": return thing.size
def kinds(x: None | Thing | Inner): pass
"""


def in_new_process(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_loading_a_model_leaves_out_what_it_does_not_need_and_others_still_find_it():
    in_new_process(
        "from transformer_lens.utilities import hf_utils, tokenize_utils\n"
        "assert not isinstance(model, tokenize_utils.Dataset)\n"
        "assert 'datasets' not in sys.modules\n"
        "from datasets import Dataset\n"
        "texts = Dataset.from_dict({'text': ['one two three'] * 9, 'more': [0] * 9})\n"
        "assert isinstance(texts, tokenize_utils.Dataset)\n"
        "kept = hf_utils.keep_single_column(texts, 'text')\n"
        "assert kept.column_names == ['text']\n"
        "tokens = tokenize_utils.tokenize_and_concatenate(texts, model.tokenizer, max_length=8)\n"
        "assert len(tokens[0]['tokens']) == 8\n"
        "from transformers.loss import loss_for_object_detection as detection\n"
        "assert detection.linear_sum_assignment([[1, 0], [0, 1]])[1].tolist() == [1, 0]\n"
        "import pandas, scipy.optimize\n"
        "assert pandas.DataFrame({'a': [1]}).a.item() == 1\n"
    )


@pytest.mark.hooked
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_four_bit_weights_are_known_to_transformer_lens_once_they_are_imported():
    in_new_process(
        "import torch\n"
        "from transformer_lens.components import abstract_attention as attention\n"
        "assert not isinstance(model.W_Q, attention.Params4bit)\n"
        "assert 'bitsandbytes' not in sys.modules\n"
        "made = attention.Params4bit(torch.zeros(4, 1, dtype=torch.uint8), requires_grad=False)\n"
        "from bitsandbytes.nn import Params4bit\n"
        "assert type(made) is Params4bit and isinstance(made, attention.Params4bit)\n"
        "assert attention.bnb.matmul_4bit is sys.modules['bitsandbytes'].matmul_4bit\n"
    )


@pytest.fixture
def light(tmp_path, monkeypatch):
    """A package that imports a heavy one, imported lean."""
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy/__init__.py").write_text(HEAVY)
    (tmp_path / "heavy/inner.py").write_text("class Inner: pass\n")
    (tmp_path / "light.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(imports.LATER, "light", ("heavy",))
    importlib.invalidate_caches()
    with lean_imports():
        module = importlib.import_module("light")
    yield module
    for name in ("light", "heavy", "heavy.inner"):
        sys.modules.pop(name, None)


def test_a_stand_in_imports_nothing_until_it_is_used(light):
    assert not isinstance(3, light.Thing)
    assert not issubclass(int, light.Thing)
    assert "heavy.Thing" in repr(light.Thing)
    assert light.kinds.__annotations__
    assert "heavy" not in sys.modules
    made = light.make()
    assert "heavy" in sys.modules
    assert isinstance(made, light.Thing)
    assert light.size(made) == 3


def test_a_stand_in_does_as_the_real_thing(light):
    heavy = importlib.import_module("heavy")
    assert not isinstance(heavy, StandIn)
    assert isinstance(light.heavy.make(), heavy.Thing)
    assert light.same.Thing is heavy.Thing
    assert light.Thing.size == 3
    child = type(heavy.Thing)("Child", (heavy.Thing,), {})
    assert issubclass(child, light.Thing)

    class Grandchild(light.Thing):
        pass

    assert Grandchild.__bases__ == (heavy.Thing,)
    with pytest.raises(AttributeError, match="nothing"):
        _ = light.heavy.nothing


def test_others_get_the_real_module_also_while_imports_are_lean(light):
    with lean_imports(), lean_imports():
        import heavy  # pyright: ignore[reportMissingImports]

        assert not isinstance(heavy, StandIn)


def test_imports_are_as_before_when_they_failed_and_with_threads():
    before = builtins.__import__
    with pytest.raises(ModuleNotFoundError), lean_imports():
        importlib.import_module("there_is_none")
    assert builtins.__import__ is before

    def work() -> None:
        for _ in range(50):
            with lean_imports():
                importlib.import_module("json")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builtins.__import__ is before


def test_the_file_of_hooked_transformer_is_found_where_importing_finds_it():
    found = find_spec("transformer_lens.HookedTransformer") is not None
    assert has_hooked_transformer() == found
