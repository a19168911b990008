"""Takes any model in memory: a HookedTransformer, a TransformerBridge, or a transformers model.

Kinds are told apart by the names of their classes, so that nothing has to be imported for it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.errors import MechheadsError
from mechheads.progress import say
from mechheads.prompts.lexicon import own_tokenizer

from .backends.imports import import_libraries
from .backends.lens import UNREADABLE, Lens
from .devices import threads_to_check
from .huggingface import complete_tokenizer, first_line, quiet_libraries

KEPT = "_mechheads_lens"
OWN_HOOKS = "_mechheads_own_hooks"  # of a new bridge: those of TransformerLens itself
HOOKED, BRIDGE, TRANSFORMERS = "HookedTransformer", "TransformerBridge", "PreTrainedModel"


def wrap(model: Any, tokenizer: Any = None) -> Any:
    """Wrap a model that is already in memory; every function does this to the model it is given.

    Args:
        model: a HookedTransformer, a TransformerBridge, or a causal language model of transformers.
            The latter gets a bridge around it, and its attention becomes "eager"
        tokenizer: its tokenizer, if the model does not have one. Without it, a model of
            transformers gets that of the folder or hub id it was loaded from

    Returns:
        The HookedTransformer or TransformerBridge, for all functions of mechheads and for
        TransformerLens's own. Costs a pass on a few tokens, which checks a new bridge.

    >>> import mechheads
    >>> model = mechheads.load("mini")
    >>> mechheads.wrap(model) is model
    True
    """
    if tokenizer is not None and not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
        raise MechheadsError(
            f"Expected a tokenizer of transformers, got {type(tokenizer).__name__}. Load one with "
            "AutoTokenizer.from_pretrained."
        )
    lens = lens_of(model, tokenizer)
    if tokenizer is not None and lens.model.tokenizer is not tokenizer:
        give_tokenizer(lens.model, tokenizer)
    if model is not lens.model and tokenizer is not None:
        model.__dict__["tokenizer"] = tokenizer  # tasks look for it there
    return lens.model


def lens_of(model: Any, tokenizer: Any = None, quiet: bool = False) -> Lens:
    """The lens of a model, made once and kept with it."""
    kept = getattr(model, "__dict__", {}).get(KEPT)
    if kept is not None:
        return kept
    kinds = {kind.__name__ for kind in type(model).__mro__}
    if HOOKED in kinds:
        from .backends.hooked_transformer import HookedLens

        lens = HookedLens(model)
    elif BRIDGE in kinds:
        lens = _bridge(model, str(getattr(model.cfg, "model_name", "") or "model"))
    elif TRANSFORMERS in kinds:
        tokenizer = own_tokenizer(model) if tokenizer is None else tokenizer
        lens = _bridge(boot(model, tokenizer), _name(model))
    else:
        raise _not_a_model(model)
    model.__dict__[KEPT] = lens
    lens.model.__dict__[KEPT] = lens
    mention_slow(lens, quiet)
    return lens


def mention_slow(lens: Lens, quiet: bool) -> None:
    """Say that a model's weights cannot be read, so that nobody wonders why it takes long."""
    if lens.unknown_part() == UNREADABLE:
        say(
            f"{lens.name} has {UNREADABLE} (quantized, with an adapter, or offloaded): its own "
            "blocks are run instead, which takes longer, and weights-based methods are refused.",
            quiet,
        )


def boot(hf_model: Any, tokenizer: Any) -> Any:
    """A bridge around a transformers model; the weights are not copied."""
    check_causal(hf_model)
    import_libraries()
    from transformer_lens.model_bridge import TransformerBridge

    from .backends.bridge import count_hooks

    place = None if is_placed(hf_model) else str(next(hf_model.parameters()).device)
    with quiet_libraries(), _without_device_map(hf_model):
        try:
            hf_model.set_attn_implementation("eager")
            # TransformerLens would load the tokenizer again by its name, or one from the hub.
            bridge = TransformerBridge.boot_transformers(
                _name(hf_model),
                hf_model=hf_model,
                tokenizer=_blank_tokenizer(),
                device=place,
            ).eval()
        except Exception as error:
            raise MechheadsError(
                f"TransformerLens cannot make a bridge to this {type(hf_model).__name__} "
                f"({first_line(error)})."
            ) from error
    give_tokenizer(bridge, tokenizer)
    bridge.__dict__[OWN_HOOKS] = count_hooks(bridge)
    return bridge


def give_tokenizer(model: Any, tokenizer: Any) -> None:
    """Set a model's tokenizer without loading it again by its name, as TransformerLens would."""
    is_bridge = BRIDGE in {kind.__name__ for kind in type(model).__mro__}
    model.__dict__["_tokenizer" if is_bridge else "tokenizer"] = tokenizer
    if tokenizer is not None:
        model.cfg.tokenizer_prepends_bos = len(tokenizer.encode("")) > 0
        tokenizer.padding_side = "right"
        complete_tokenizer(tokenizer)


def check_causal(hf_model: Any) -> None:
    """Raise if a transformers model is not a causal language model with its weights loaded."""
    kind, config = type(hf_model).__name__, hf_model.config
    if getattr(config, "is_encoder_decoder", False):
        raise MechheadsError(
            f"{kind} is an encoder-decoder model. Give a causal language model: "
            "AutoModelForCausalLM."
        )
    if hf_model.get_output_embeddings() is None or "MaskedLM" in kind:
        raise MechheadsError(
            f"{kind} does not predict the next token. Load the model with AutoModelForCausalLM."
        )
    check_weights(hf_model, f"this {kind}")


def check_weights(hf_model: Any, name: str) -> None:
    """Raise if a model has no weights."""
    if any(weight.is_meta for weight in hf_model.parameters()) and not _is_offloaded(hf_model):
        raise MechheadsError(
            f"The weights of {name} are on the meta device: it has a shape but no numbers. Load "
            "its weights first."
        )


def _is_offloaded(hf_model: Any) -> bool:
    """Whether accelerate brings weights to their device only while they are needed."""
    return any(hasattr(module, "_hf_hook") for module in hf_model.modules())


def is_quantized(hf_model: Any) -> bool:
    """Whether the weights of a transformers model are rounded to 8 bits or fewer.

    Those of a GGUF file were, but transformers reads them as floating-point numbers.
    """
    method = getattr(hf_model, "quantization_method", None)
    return bool(getattr(hf_model, "is_quantized", False)) and method != "gguf"


def is_placed(hf_model: Any) -> bool:
    """Whether transformers has put the layers where they are, and nobody else may move them."""
    mapped = getattr(hf_model, "hf_device_map", None) is not None
    return mapped or is_quantized(hf_model) or _is_offloaded(hf_model)


@contextlib.contextmanager
def _without_device_map(hf_model: Any) -> Iterator[None]:
    """Hide where the layers are: TransformerLens refuses maps with offloaded layers.

    A bridge whose parts do not run then is refused by `lens_check`.
    """
    places = hf_model.__dict__.pop("hf_device_map", None)
    try:
        yield
    finally:
        if places is not None:
            hf_model.hf_device_map = places


def _blank_tokenizer() -> Any:
    """Takes the place of a tokenizer while a bridge is booted."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")),
        unk_token="a",
        eos_token="b",
        pad_token="b",
    )


def _bridge(bridge: Any, name: str) -> Lens:
    """The lens of a bridge, if calling its blocks again gives its own logits."""
    from .backends.bridge import BridgeLens

    lens = BridgeLens(bridge, Path(name).name, bridge.__dict__.get(OWN_HOOKS, 0))
    for part in ("blocks", "unembed", "embed"):
        if not hasattr(bridge, part):
            raise MechheadsError(
                f"{lens.name} is a bridge without {part}: mechheads takes causal language models."
            )
    for layer in range(len(bridge.blocks)):
        if f"blocks.{layer}.attn.hook_z" not in bridge.hook_dict:
            raise MechheadsError(
                f"Layer {layer} of {lens.name} has no attention heads. mechheads takes models with "
                "attention in every layer."
            )
    check_weights(bridge.original_model, lens.name)
    lens_check(lens)
    return lens


@torch.no_grad()
def lens_check(lens: Any) -> None:
    """Raise if a model reads ahead, or if its parts, one after the other, do not give its logits.

    Also if its hooks of z do not see every head.
    """
    count, shape = min(8, lens.shape.context), lens.shape
    tokens = (torch.arange(0, count * 7, 7) % shape.vocabulary)[None].repeat(2, 1)
    tokens[1, 1:] = (tokens[1, 1:] + 1) % shape.vocabulary
    sizes = []

    def see(layer: int, z: Any) -> Any:
        sizes.append(z.shape[2:])
        return z

    try:
        with threads_to_check(lens.model):
            theirs = lens.model(tokens.to(lens.device), use_cache=False)
            check_logits(lens.name, theirs)
            end = lens.run_blocks(lens.embed(tokens), 0, range(shape.layers), see)
            ours, theirs = lens.unembed(end, None).float(), theirs.float()
    except MechheadsError:
        raise
    except Exception as error:
        raise MechheadsError(
            f"{lens.name} cannot be run block by block ({type(error).__name__}: "
            f"{first_line(error)}). mechheads takes causal language models."
        ) from error
    rough = lens.dtype not in (torch.float32, torch.float64) or is_quantized(
        lens.model.original_model
    )
    most = (0.1 if rough else 1e-3) * max(1.0, float(theirs.std()))
    ahead = (theirs[0, 0] - theirs[1, 0]).abs().max()
    if float(ahead) > (3e-2 if rough else 1e-4) * float(theirs.abs().max()):
        raise MechheadsError(
            f"{lens.name} reads text in both directions, as encoders do: the logits after the "
            "first token depend on the next ones. mechheads takes causal language models."
        )
    if sizes != [(shape.heads, shape.d_head)] * shape.layers:
        raise MechheadsError(f"{lens.name} has heads of different sizes, which are not supported.")
    if not (error := float((ours - theirs).abs().max())) <= most:
        raise MechheadsError(
            f"{lens.name} cannot be run block by block: its logits would change by up to "
            f"{error:.3g} (their spread is {float(theirs.std()):.3g})."
        )


def check_logits(name: str, logits: Float[Tensor, "..."]) -> None:
    """Raise if a logit is NaN or plus infinity; minus infinity only rules a token out."""
    if bool((logits.isnan() | logits.isposinf()).any()):
        kind = str(logits.dtype).removeprefix("torch.")
        raise MechheadsError(
            f"{name} computes logits that are NaN or infinite in {kind}: its weights are damaged, "
            "or overflow in this dtype. Check the weights, or load it in float32."
        )


def _name(hf_model: Any) -> str:
    named = str(getattr(hf_model.config, "_name_or_path", "") or type(hf_model).__name__)
    return Path(named).name


def _not_a_model(model: Any) -> MechheadsError:
    if isinstance(model, str):
        return MechheadsError(
            f"Expected a loaded model, got the name {model!r}. Use mechheads.load({model!r})."
        )
    return MechheadsError(
        f"Expected a model, got {type(model).__name__}. Give what mechheads.load returns, a "
        "HookedTransformer, a TransformerBridge or a causal language model of transformers."
    )
