"""Loads any model as a HookedTransformer or a TransformerBridge.

1. `locate` finds the model's files;
2. transformers reads the weights, safetensors or GGUF, once, in the chosen dtype;
3. `hooked`: the config is derived from the model's own config, and TransformerLens's converters
   rename the weights without copying them. `bridge`: a bridge is put around the model as it is;
4. a sparse model's gates become permanent hooks, so that its pattern hooks show gated patterns;
5. the result is compared with the original on a few tokens: the logits must agree.
"""

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.errors import MechheadsError, unknown

from . import edge_gates, locate
from .backends.gates import add_gates
from .backends.imports import has_hooked_transformer, import_libraries
from .cache import ModelCache
from .configs import NO_BOS
from .devices import find_device, find_dtype, threads_to_check
from .huggingface import (
    Original,
    complete_tokenizer,
    first_line,
    fuse_activations,
    quiet_libraries,
    read_original,
    refuse,
)
from .model import Model, encoder_of, shape_of
from .wrap import boot, check_logits, give_tokenizer, is_placed, is_quantized, lens_of, mention_slow

Backend = Literal["hooked", "bridge"]
BACKENDS = ("hooked", "bridge")
DEVICE_MAPS = ("auto", "balanced", "sequential")
QUANTIZED = ("8bit", "4bit")
EXACT = (torch.float32, torch.float64)


def load(
    name: str,
    *,
    backend: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype = "float32",
    process: bool = False,
    n_devices: int = 1,
    device_map: str | None = None,
    quantize: str | None = None,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    cache: ModelCache | None = None,
    quiet: bool = False,
) -> Any:
    """Load a model with TransformerLens: "mini", "gpt2", "./my-llama" or "model.gguf".

    Args:
        name: an embedded model ("mini", "mini-sparse"), one whose heads are known
            ("known/induction"), a fetched one ("smollm2"), a Hugging Face directory, a .gguf file
            or a hub id
        backend: "hooked" for a HookedTransformer, "bridge" for a TransformerBridge around the
            transformers model; default: hooked where TransformerLens has it (before release 4)
        revision: a branch, tag or commit of a hub model
        device: "cpu", "cuda", "cuda:1" or "mps"; None picks the best one available
        dtype: float32, float64, bfloat16 or float16
        process: fold layer norms and centre weights, as TransformerLens's from_pretrained does.
            Off by default, so that the logits equal those of the source model. Only hooked
        n_devices: number of GPUs to spread the layers over. Only hooked
        device_map: how transformers places the layers: "auto", "balanced" or "sequential". Only
            bridge
        quantize: "8bit" or "4bit" weights, rounded by bitsandbytes while they are read. Only
            bridge. Models that were saved quantized need no flag
        n_ctx: the longest input in tokens; None means the model's own limit, at most 2048
        prepend_bos: start every prompt with the BOS token; None means TransformerLens's choice for
            the architecture
        cache: keeps the model and returns it when it is loaded again
        quiet: show no progress bar while a hub model is downloaded

    Returns:
        A HookedTransformer or a TransformerBridge in eval mode, with its tokenizer. In float32 and
        float64 its logits are checked against the source model's on a few tokens.

    >>> import mechheads
    >>> mechheads.load("mini").cfg.n_layers
    4
    """
    backend = find_backend(backend)
    kind, place = find_dtype(dtype), find_device(device, n_devices)
    check_backend(backend, process, n_devices, device_map, quantize)
    placed = device_map, quantize
    key = (name, backend, revision, place, kind, process, n_devices, *placed, n_ctx, prepend_bos)
    if cache is not None and (known := cache.get(key)) is not None:
        return known
    source = locate.find(name, revision, quiet=quiet)
    import_libraries()
    with quiet_libraries():
        extra = placement(source, place, device_map, quantize)
        hf_model, tokenizer = read_original(source, kind, extra)
        refuse(hf_model.config.architectures[0], source)
        try:
            own = (hf_model, tokenizer, source, kind, n_ctx, prepend_bos)
            if backend == "hooked":
                model = _hooked(*own, n_devices, place)
            else:
                model = _bridged(*own, place if not is_placed(hf_model) else None)
        except MechheadsError:
            raise
        except Exception as error:
            raise MechheadsError(
                f"{source.name}: TransformerLens cannot convert this "
                f"{type(hf_model).__name__} ({first_line(error)}). Check its config.json."
            ) from error
        del hf_model
        if process:
            # Value biases can be folded only where the rows of the pattern sum to one.
            whole = lens_of(model).gates is None
            model.load_and_process_state_dict(model.state_dict(), fold_value_biases=whole)
        if kind not in EXACT:
            with torch.inference_mode():
                tokens = _few_tokens(model).to(lens_of(model).device)
                check_logits(source.name, model(tokens))
    mention_slow(lens_of(model), quiet)
    if cache is not None:
        cache.put(key, model)
    return model.eval()


def find_backend(name: str | None) -> str:
    """The backend of that name, or the default one; raises if this TransformerLens lacks it."""
    hooked = has_hooked_transformer()
    if name is None:
        return "hooked" if hooked else "bridge"
    if name not in BACKENDS:
        raise unknown("backend", str(name), BACKENDS)
    if name == "hooked" and not hooked:
        from importlib.metadata import version

        raise MechheadsError(
            f"TransformerLens {version('transformer-lens')} has no HookedTransformer. Use the "
            "backend bridge, or install transformer-lens 3.9."
        )
    return name


def check_backend(
    backend: str, process: bool, n_devices: int, device_map: str | None, quantize: str | None
) -> None:
    """Raise if an option needs the other backend."""
    if backend == "bridge" and (process or n_devices > 1):
        flag, instead = ("--process", "") if process else ("--n-devices", " or --device-map auto")
        raise MechheadsError(f"{flag} needs the backend hooked. Use --backend hooked{instead}.")
    for flag, value, choices in (
        ("--device-map", device_map, DEVICE_MAPS),
        ("--quantize", quantize, QUANTIZED),
    ):
        if value is not None and backend == "hooked":
            raise MechheadsError(f"{flag} needs the backend bridge. Add --backend bridge.")
        if value is not None and value not in choices:
            raise unknown(f"value for {flag}", value, choices)


def placement(
    source: locate.Source, place: torch.device, device_map: str | None, quantize: str | None
) -> dict[str, Any]:
    """What transformers has to know to place layers and to quantize weights."""
    placed: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
    if quantize is None:
        return placed
    if source.gguf:
        raise MechheadsError(f"{source.name} is a GGUF file, which --quantize cannot read.")
    if find_spec("bitsandbytes") is None:
        raise MechheadsError("--quantize needs bitsandbytes. Run: pip install 'mechheads[large]'")
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(load_in_8bit=quantize == "8bit", load_in_4bit=quantize == "4bit")
    return {"device_map": {"": str(place)}, **placed, "quantization_config": config}


def _hooked(
    hf_model: Any,
    tokenizer: Any,
    source: locate.Source,
    kind: torch.dtype,
    n_ctx: int | None,
    prepend_bos: bool | None,
    n_devices: int,
    place: torch.device,
) -> Any:
    """The model as a HookedTransformer, checked against the original."""
    from .backends.conversion import convert, hooked_config

    if is_quantized(hf_model):
        raise MechheadsError(
            f"{source.name} has quantized weights, which need the backend bridge. Add --backend "
            "bridge."
        )
    cfg = hooked_config(source, hf_model.config)
    cfg |= {"n_ctx": _context(cfg["n_ctx"], n_ctx, source), "dtype": kind}
    cfg["n_devices"] = n_devices
    if prepend_bos is not None:
        cfg["default_prepend_bos"] = prepend_bos
    model = convert(hf_model, cfg)
    give_tokenizer(model, tokenizer)
    bias = _gates(model, hf_model, source)
    if kind in EXACT:
        _compare(source, model, _logits(hf_model, _few_tokens(model), bias))
    model.cfg.device = str(place)
    with _fitting(place, source):
        model.move_model_modules_to_device()
    return model


def _bridged(
    hf_model: Any,
    tokenizer: Any,
    source: locate.Source,
    kind: torch.dtype,
    n_ctx: int | None,
    prepend_bos: bool | None,
    place: torch.device | None,
) -> Any:
    """A bridge around the model, checked against the model as it was before."""
    config = hf_model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    bias = edge_gates.read(source.folder, config.to_dict(), layers, heads)
    count = min(16, config.max_position_embeddings or 16) if _has_limit(config) else 16
    tokens = torch.arange(0, count * 7, 7)[None] % config.vocab_size
    theirs = _logits(hf_model, tokens, bias) if kind in EXACT else None
    if place is not None:
        with _fitting(place, source):
            hf_model.to(place)
    model = boot(hf_model, tokenizer)
    model.cfg.model_name = source.short
    model.cfg.n_ctx = _context(model.cfg.n_ctx, n_ctx, source)
    if prepend_bos is not None:
        model.cfg.default_prepend_bos = prepend_bos
    if bias is not None:
        add_gates(model, bias)
    lens_of(model, quiet=True)
    if theirs is not None:
        _compare(source, model, theirs)
    return model


def _has_limit(config: Any) -> bool:
    return getattr(config, "max_position_embeddings", None) is not None


def _gates(model: Model, hf_model: Any, source: locate.Source) -> Tensor | None:
    """Add the gates of a sparse model; None if it is not sparse."""
    grid = shape_of(model).grid
    bias = edge_gates.read(source.folder, hf_model.config.to_dict(), *grid)
    if bias is not None:
        add_gates(model, bias)
    return bias


@contextlib.contextmanager
def _fitting(place: torch.device, source: locate.Source) -> Iterator[None]:
    """Say in one line that a model does not fit on its device."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MechheadsError(
            f"{source.name} does not fit on {place} ({first_line(error)}). Use a smaller "
            "dtype, more --n-devices, or the CPU."
        ) from None


def load_original(
    name: str, *, revision: str | None = None, device: str | None = None, quiet: bool = False
) -> Original:
    """The transformers model of any name that `load` takes, in float32, with eager attention."""
    place = find_device(device, 1)
    source = locate.find(name, revision, quiet=quiet)
    import_libraries()
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, torch.float32)
        hf_model.config.__dict__.pop("quantization_config", None)
        config = hf_model.config
        if locate.SPARSE_MARK in config.to_dict():
            raise MechheadsError(
                f"{name} is already sparse. Give the dense model it was made from."
            )
        architecture = config.architectures[0]
        refuse(architecture, source)
        if architecture == "BloomForCausalLM":
            raise MechheadsError(
                f"{name} cannot be made sparse: its attention scores (ALiBi) are known only up to "
                "a shift per query, so gates on them mean nothing. Use another architecture."
            )
        complete_tokenizer(tokenizer)
        hf_model.set_attn_implementation("eager")
        fuse_activations(hf_model)
        return Original(
            name,
            hf_model.to(place),
            tokenizer,
            architecture not in NO_BOS,
            config.num_hidden_layers,
            config.num_attention_heads,
            _context(config.max_position_embeddings, None, source),
        )


def _logits(
    hf_model: Any, tokens: Int[Tensor, "1 pos"], bias: Float[Tensor, "layer head"] | None
) -> Float[Tensor, "pos vocab"]:
    """The logits of the model as transformers runs it, with its gates if it has any."""
    with torch.inference_mode(), threads_to_check(hf_model), contextlib.ExitStack() as stack:
        if bias is not None:
            hf_model.set_attn_implementation("eager")
            stack.enter_context(edge_gates.Gated(bias))
        place = hf_model.get_input_embeddings().weight.device
        return hf_model(tokens.to(place), use_cache=False).logits[0].double().cpu()


def _compare(source: locate.Source, model: Any, theirs: Float[Tensor, "pos vocab"]) -> None:
    """Compare with the original on a few tokens; raise if the conversion changes the logits."""
    lens = lens_of(model)
    tokens = (torch.arange(0, len(theirs) * 7, 7)[None]) % lens.shape.vocabulary
    with torch.inference_mode(), threads_to_check(model):
        ours = model(tokens.to(lens.device))[0].double().cpu()
    check_logits(source.name, theirs)
    error = (theirs - ours).abs().max().item()
    scale = theirs.std().item()
    if not error <= 1e-3 * max(1.0, scale):
        raise MechheadsError(
            f"{source.name}: TransformerLens's conversion changes the logits by up to {error:.3g} "
            f"(their spread is {scale:.3g}); its config has an option that TransformerLens does "
            "not support. The model cannot be used."
        )


def _few_tokens(model: Model) -> Int[Tensor, "1 pos"]:
    count = min(16, shape_of(model).context)
    return torch.arange(0, count * 7, 7)[None] % encoder_of(model).vocabulary


def _context(own: int, wanted: int | None, source: locate.Source) -> int:
    if wanted is None:
        return min(own, 2048)
    if not 1 <= wanted <= own:
        raise MechheadsError(f"--n-ctx takes 1 to {own} tokens for {source.name}, got {wanted}.")
    return wanted
