"""Loads any model as a HookedTransformer: the one file that names TransformerLens.

1. `sources` finds the model's files;
2. transformers reads the weights, safetensors or GGUF, once, in the chosen dtype;
3. the config is derived from the model's own config, never from its name;
4. TransformerLens's converters rename the weights; they stay the tensors that were read;
5. a sparse model's gates become permanent hooks, so that its pattern hooks show what is attended;
6. the result is run beside the original on a few tokens: the logits must agree.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens import loading_from_pretrained as lens
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.activation_functions import apply_softcap

from mechheads.errors import MechheadsError
from mechheads.prompts import Lexicon
from mechheads.options import read_value

from . import cache as kept
from . import edge_gates as gates
from . import locate as sources
from .configs import DERIVED
from .devices import find_device, find_dtype
from .huggingface import Original, complete_tokenizer, first_line, fuse_activations, quiet_libraries, read_original, refuse
from mechheads.prompts.lexicon import tokenizer_lexicon

Model = HookedTransformer


def load(
    name: str,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | torch.dtype = "float32",
    process: bool = False,
    n_devices: int = 1,
    n_ctx: int | None = None,
    prepend_bos: bool | None = None,
    quiet: bool = False,
) -> Model:
    """load("mini"), load("gpt2"), load("./my-llama"), load("model.gguf") as a HookedTransformer.

    Args:
        name: an embedded model, a fetched one, a Hugging Face directory, a .gguf file or a hub id.
        revision: a branch, tag or commit of a hub model.
        device: "cpu", "cuda", "cuda:1", "mps"; the best that is there if None.
        dtype: float32, float64, bfloat16 or float16.
        process: fold layer norms and centre weights, as TransformerLens's from_pretrained does.
            Off by default: the logits then equal those of the source model.
        n_devices: spread the layers over this many GPUs.
        n_ctx: the longest input; the model's own limit, but at most 2048 unless given (position
            tables of every layer grow with it).
        prepend_bos: begin every prompt with the BOS token; TransformerLens's custom for the
            architecture if None.
        quiet: no progress bar while a hub model is downloaded.
    """
    kind, place = find_dtype(dtype), find_device(device, n_devices)
    key = (name, revision, place, kind, process, n_devices, n_ctx, prepend_bos)
    if (again := kept.kept(key)) is not None:
        return again
    source = sources.find(name, revision, quiet=quiet)
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, kind)
        try:
            cfg = _config(source, hf_model.config)
            cfg |= {"n_ctx": _context(cfg["n_ctx"], n_ctx, source), "dtype": kind}
            cfg["n_devices"] = n_devices
            if prepend_bos is not None:
                cfg["default_prepend_bos"] = prepend_bos
            model = _convert(hf_model, cfg)
            _give_tokenizer(model, tokenizer)
            config = hf_model.config.to_dict()
            bias = gates.read(source.folder, config, model.cfg.n_layers, model.cfg.n_heads)
            if bias is not None:
                _add_gates(model, bias)
            if kind in (torch.float32, torch.float64):
                _compare(source, hf_model, model, bias)
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
            model.load_and_process_state_dict(model.state_dict(), fold_value_biases=bias is None)
        model.cfg.device = str(place)
        try:
            model.move_model_modules_to_device()
        except torch.OutOfMemoryError as error:
            raise MechheadsError(
                f"{source.name} does not fit on {place} ({first_line(error)}). Use a smaller "
                "dtype, more --n-devices, or the CPU."
            ) from None
    kept.put(key, model)
    return model.eval()


def load_original(
    name: str, *, revision: str | None = None, device: str | None = None, quiet: bool = False
) -> Original:
    """The model behind any name that `load` takes, in float32, with attention computed eagerly."""
    place = find_device(device, 1)
    source = sources.find(name, revision, quiet=quiet)
    with quiet_libraries():
        hf_model, tokenizer = read_original(source, torch.float32)
        hf_model.config.__dict__.pop("quantization_config", None)
        if sources.SPARSE_MARK in hf_model.config.to_dict():
            raise MechheadsError(f"{name} is sparse already. Give the dense model it was made of.")
        cfg = _config(source, hf_model.config)
        if cfg.get("positional_embedding_type") == "alibi":
            raise MechheadsError(
                f"{name} cannot be made sparse: its attention scores (ALiBi) are known only up to "
                "a shift per query, so that gates on them mean nothing. Use another architecture."
            )
        complete_tokenizer(tokenizer)
        hf_model.set_attn_implementation("eager")
        fuse_activations(hf_model)
        return Original(
            name,
            hf_model.to(place),
            tokenizer,
            cfg["default_prepend_bos"],
            cfg["n_layers"],
            cfg["n_heads"],
            _context(cfg["n_ctx"], None, source),
        )


def is_gated(model: Model) -> bool:
    """Whether the model is sparse: its attention goes through edge gates."""
    return hasattr(model, "edge_gates")


def logits_at_end(
    model: Model, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
) -> Float[Tensor, "row steps vocab"]:
    """Logits at the last `steps` positions; the other positions are not unembedded.

    Rows of one pair share all but their last steps - 1 tokens, and that part runs once.
    """
    tokens, pair_of = tokens.to(model.W_E.device), pair_of.to(model.W_E.device)
    n_pairs, rows = int(pair_of.max()) + 1, len(pair_of)
    if steps == 1 or n_pairs == rows:
        residual = model(tokens, stop_at_layer=model.cfg.n_layers)[:, -steps:]
        return unembed(model, residual)
    first = torch.searchsorted(pair_of, torch.arange(n_pairs, device=pair_of.device))
    cache = TransformerLensKeyValueCache.init_cache(model.cfg, model.cfg.device, n_pairs)
    shared = _continue(model, tokens[first, : 1 - steps], cache)[:, -1:]
    for entry in cache.entries:
        entry.past_keys = entry.past_keys[pair_of.to(entry.past_keys.device)]
        entry.past_values = entry.past_values[pair_of.to(entry.past_values.device)]
    cache.previous_attention_mask = cache.previous_attention_mask[pair_of]
    own = _continue(model, tokens[:, 1 - steps :], cache)
    return unembed(model, torch.cat([shared[pair_of], own], dim=1))


def with_patterns(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    see: Callable[[int, Float[Tensor, "row head query key"]], None],
) -> None:
    """Run the tokens and show every layer's attention pattern to `see(layer, pattern)`."""

    def hook(pattern: Tensor, hook: HookPoint) -> None:
        see(hook.layer(), pattern)

    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    model.run_with_hooks(
        tokens.to(model.W_E.device),
        stop_at_layer=model.cfg.n_layers,
        fwd_hooks=[(name, hook) for name in names],
    )


def _continue(
    model: Model, tokens: Int[Tensor, "row pos"], cache: TransformerLensKeyValueCache
) -> Float[Tensor, "row pos d_model"]:
    # An explicit mask: TransformerLens would take a BOS token for padding where both are EOS.
    everything = torch.ones_like(tokens)
    return model(
        tokens,
        stop_at_layer=model.cfg.n_layers,
        past_kv_cache=cache,
        attention_mask=everything,
    )


def unembed(
    model: Model,
    residual: Float[Tensor, "*rows d_model"],
    tokens: Int[Tensor, " some"] | None = None,
) -> Float[Tensor, "*rows some"]:
    """Logits of the tokens, or of all, from the residual stream after the last layer."""
    flat = residual.flatten(0, -2)[None]
    if model.cfg.normalization_type is not None:
        flat = model.ln_final(flat)
    if tokens is None:
        logits = model.unembed(flat)
    else:
        ids = tokens.to(model.W_U.device)
        logits = flat @ model.W_U[:, ids] + model.b_U[ids]
    logits = apply_softcap(logits, model.cfg.output_logits_soft_cap)
    return logits[0].unflatten(0, residual.shape[:-1])


def embed(model: Model, tokens: Int[Tensor, "row pos"]) -> Float[Tensor, "row pos d_model"]:
    """The residual stream that enters the first layer."""
    return model(tokens.to(model.W_E.device), stop_at_layer=0)


def attention_inside(
    model: Model, tokens: Int[Tensor, "row pos"]
) -> tuple[list[Float[Tensor, "row pos d_model"]], list[Float[Tensor, "row pos head d_head"]]]:
    """Run the tokens once and keep what enters every layer, and every head's z."""
    entering: list[Tensor] = []
    z: list[Tensor] = []
    hooks = []
    for layer in range(model.cfg.n_layers):
        hooks.append((f"blocks.{layer}.hook_resid_pre", _keeper(entering)))
        hooks.append((f"blocks.{layer}.attn.hook_z", _keeper(z)))
    model.run_with_hooks(
        tokens.to(model.W_E.device), stop_at_layer=model.cfg.n_layers, fwd_hooks=hooks
    )
    return entering, z


def rerun(
    model: Model,
    entering: Float[Tensor, "row pos d_model"],
    start: int,
    layers: Sequence[int],
    change: Callable[[int, Float[Tensor, "row pos head d_head"]], Tensor],
) -> Float[Tensor, "row pos d_model"]:
    """The residual stream after the last layer, from what enters `start`, with z changed."""

    def hook(z: Tensor, hook: HookPoint) -> Tensor:
        return change(hook.layer(), z)

    return model.run_with_hooks(
        entering,
        start_at_layer=start,
        stop_at_layer=model.cfg.n_layers,
        fwd_hooks=[(f"blocks.{layer}.attn.hook_z", hook) for layer in layers],
    )


def attention_parts(
    model: Model,
    layer: int,
    entering: Float[Tensor, "row pos d_model"],
    replaced: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """q, k, v, pattern and z of a layer, some of the first four replaced by what is given.

    q and k are those before rotary embeddings. Costs one block.
    """
    given, kept = replaced or {}, {}
    hooks = []
    for part in ("q", "k", "v", "pattern", "z"):

        def hook(value: Tensor, hook: HookPoint, part: str = part) -> Tensor:
            kept[part] = given.get(part, value)
            return kept[part]

        hooks.append((f"blocks.{layer}.attn.hook_{part}", hook))
    model.run_with_hooks(entering, start_at_layer=layer, stop_at_layer=layer + 1, fwd_hooks=hooks)
    return kept


def inputs_of_heads(
    model: Model, tokens: Int[Tensor, "row pos"]
) -> tuple[Float[Tensor, "row pos d_model"], list[dict[str, Tensor]]]:
    """Run the tokens with gradients: the end, and every layer's q, k and v, of all heads apart."""
    entering = embed(model, tokens).detach().requires_grad_()
    kept: list[dict[str, Tensor]] = [{} for _ in range(model.cfg.n_layers)]
    hooks = []
    for layer in range(model.cfg.n_layers):
        for part in ("q", "k", "v"):

            def hook(value: Tensor, hook: HookPoint, part: str = part) -> None:
                kept[hook.layer()][part] = value

            hooks.append((f"blocks.{layer}.attn.hook_{part}", hook))
    grouped = model.cfg.n_key_value_heads is not None
    before = model.cfg.ungroup_grouped_query_attention
    try:
        model.cfg.ungroup_grouped_query_attention = grouped
        end = model.run_with_hooks(
            entering, start_at_layer=0, stop_at_layer=model.cfg.n_layers, fwd_hooks=hooks
        )
    finally:
        model.cfg.ungroup_grouped_query_attention = before
    return end, kept


def norm_after_heads(model: Model) -> bool:
    """Whether a norm stands between the heads and the residual stream: no head writes alone."""
    return model.cfg.use_normalization_before_and_after or model.cfg.original_architecture in (
        "Olmo2ForCausalLM",
        "Olmo3ForCausalLM",
    )


def has_hooks(model: Model) -> bool:
    """Whether somebody else's hooks are on the model; those of edge gates are ours."""
    ours = 2 * model.cfg.n_layers if is_gated(model) else 0
    found = sum(len(point.fwd_hooks) for point in model.hook_dict.values())
    return found != ours


@contextlib.contextmanager
def changed_mlp(
    model: Model, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
) -> Iterator[None]:
    """While active, a layer's MLP has act(pre) changed: before the product of a gated one."""
    block: Any = model.blocks[layer]
    points = {
        part: model.hook_dict.get(f"blocks.{layer}.mlp.hook_{part}")
        for part in ("pre", "pre_linear", "post")
    }
    if points["post"] is None:
        raise MechheadsError(f"{model.cfg.model_name} has no MLP in layer {layer} to change.")
    kept: dict[str, Tensor] = {}

    def hook(value: Tensor, hook: HookPoint) -> Tensor | None:
        part = str(hook.name).rpartition("hook_")[2]
        if part != "post":
            kept[part] = value
            return None
        if "pre_linear" not in kept:
            return change(value)
        inner = block.mlp.act_fn(kept["pre"])
        return value + (change(inner) - inner) * kept["pre_linear"]

    used: list[Any] = [point for point in points.values() if point is not None]
    before = [list(point.fwd_hooks) for point in used]
    for point in used:
        point.add_hook(hook, is_permanent=True)
    try:
        yield
    finally:
        for point, old in zip(used, before, strict=True):
            for added in [one for one in point.fwd_hooks if one not in old]:
                added.hook.remove()
                point.fwd_hooks.remove(added)


def _keeper(kept: list[Tensor]) -> Callable[..., None]:
    def hook(value: Tensor, hook: HookPoint) -> None:
        kept.append(value)

    return hook


def random_model(tokenizer: Any, **shape: Any) -> Model:
    """An untrained model of any shape, e.g. to time things with; arguments of TransformerLens."""
    torch.manual_seed(0)
    cfg = HookedTransformerConfig(model_name="random", device="cpu", **shape)
    with quiet_libraries():
        model = HookedTransformer(cfg, move_to_device=False)
        _give_tokenizer(model, tokenizer)
    return model.eval().requires_grad_(False)


def head_loop(
    model: Model,
    base: Int[Tensor, "row pos"],
    other: Int[Tensor, "row pos"],
    metric: Callable[[Tensor], Tensor],
    heads: Sequence[tuple[int, int]],
) -> Float[Tensor, " head"]:
    """TransformerLens's own patching loop, to compare with: a whole pass for every head."""
    import pandas as pd
    from transformer_lens import patching

    chosen = pd.DataFrame(heads, columns=pd.Index(["layer", "head"]))
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    _, cache = model.run_with_cache(other, names_filter=names)
    with quiet_libraries():
        return patching.generic_activation_patch(
            model=model,
            corrupted_tokens=base,
            clean_cache=cache,
            patching_metric=metric,
            patch_setter=patching.layer_head_vector_patch_setter,
            activation_name="z",
            index_df=chosen,
        )


def lexicon(model: Model) -> Lexicon:
    """What a task may know of the model: how its tokenizer splits text in mid-sentence."""
    return tokenizer_lexicon(model.tokenizer, model.cfg.model_name)


def _config(source: sources.Source, hf_config: Any) -> dict[str, Any]:
    """HookedTransformerConfig arguments, from the config alone."""
    architecture = hf_config.architectures[0]
    refuse(architecture, source)
    if architecture in DERIVED:
        cfg = DERIVED[architecture](hf_config)
    else:
        # TransformerLens reads the config from a directory and guesses from its path, so the
        # path must not look like a model's name.
        with _plain_folder() as folder:
            (folder / "config.json").write_text(json.dumps(_older(hf_config)))
            cfg = lens.convert_hf_model_config(str(folder))
    # Where TransformerLens assumes the usual ratio, the config may say otherwise.
    if (head := getattr(hf_config, "head_dim", None)) and cfg["d_head"] != head:
        cfg |= {"d_head": head, "rotary_dim": head}
    if inner := getattr(hf_config, "n_inner", None):
        cfg["d_mlp"] = inner
    for key in ("tokenizer_name", "quantization_method"):
        cfg.pop(key, None)
    cfg.setdefault("default_prepend_bos", True)
    return cfg | {
        "model_name": source.name,
        "original_architecture": architecture,
        "init_weights": False,
        "device": "cpu",
        "tokenizer_prepends_bos": None,
    }


def _older(hf_config: Any) -> dict[str, Any]:
    """The config with the fields that TransformerLens still reads where older releases had them."""
    fields = json.loads(hf_config.to_json_string(use_diff=False))
    if "n_positions" in fields:
        fields["n_ctx"] = fields["n_positions"]
    return fields


def _convert(hf_model: Any, cfg: dict[str, Any]) -> Model:
    """The HookedTransformer, holding the tensors that transformers read and no copies of them."""
    model = HookedTransformer(HookedTransformerConfig.from_dict(cfg), move_to_device=False)
    with _plain_folder() as folder:
        weights = lens.get_pretrained_state_dict(str(folder), model.cfg, hf_model)
    # A tied unembedding gets storage of its own, so that editing one does not edit the other.
    if weights["unembed.W_U"].data_ptr() == weights["embed.W_E"].data_ptr():
        weights["unembed.W_U"] = weights["unembed.W_U"].T.clone().T
    weights = {key: value.to(cfg["dtype"]) for key, value in weights.items()}
    model.load_state_dict(lens.fill_missing_keys(model, weights), assign=True, strict=False)
    return model


def _add_gates(model: Model, bias: Float[Tensor, "layer head"]) -> None:
    """Close edges for good: the gates are read off the scores and multiply the pattern."""
    model.register_buffer("edge_gates", bias, persistent=False)

    def keep_gates(scores: Tensor, hook: HookPoint) -> None:
        hook.ctx["open"] = gates.gate_logits(scores, bias[hook.layer()]) > 0

    def close(pattern: Tensor, hook: HookPoint) -> Tensor:
        attention: Any = model.blocks[hook.layer()].attn
        return pattern * attention.hook_attn_scores.ctx.pop("open")

    for block in model.blocks:
        attention: Any = block.attn
        attention.hook_attn_scores.add_perma_hook(keep_gates)
        attention.hook_pattern.add_perma_hook(close)


def _compare(
    source: sources.Source,
    hf_model: Any,
    model: Model,
    bias: Float[Tensor, "layer head"] | None,
) -> None:
    """Both models on sixteen tokens: a conversion that changes the logits is refused."""
    count = min(16, model.cfg.n_ctx)
    tokens = torch.arange(0, count * 7, 7)[None] % model.cfg.d_vocab
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        ours = model(tokens)[0].double()
        if bias is not None:
            hf_model.set_attn_implementation("eager")
            stack.enter_context(gates.Gated(bias))
        theirs = hf_model(tokens, use_cache=False).logits[0].double()
    error = (theirs - ours).abs().max().item()
    scale = theirs.std().item()
    if not error <= 1e-3 * max(1.0, scale):
        raise MechheadsError(
            f"{source.name}: TransformerLens's conversion changes the logits by up to {error:.3g} "
            f"(their spread is {scale:.3g}); its config has an option that TransformerLens does "
            "not know. The model cannot be used."
        )


def _give_tokenizer(model: Model, tokenizer: Any) -> None:
    """As HookedTransformer.set_tokenizer, which would load the tokenizer again by its name."""
    model.tokenizer = tokenizer
    model.cfg.tokenizer_prepends_bos = len(tokenizer.encode("")) > 0
    tokenizer.padding_side = "right"
    complete_tokenizer(tokenizer)


def _context(own: int, wanted: int | None, source: sources.Source) -> int:
    if wanted is None:
        return min(own, 2048)
    wanted = int(read_value(wanted, int, "--n-ctx"))
    if not 1 <= wanted <= own:
        raise MechheadsError(f"{source.name} takes 1 to {own} tokens, --n-ctx is {wanted}.")
    return wanted


@contextlib.contextmanager
def _plain_folder() -> Iterator[Path]:
    """A temporary folder whose path holds no word that TransformerLens takes for a model's name."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path.home(), Path.cwd()]
    plain = [p for p in parents if not any(w in str(p).lower() for w in ("llama", "gemma"))]
    if not plain:
        raise MechheadsError("Set TMPDIR to a folder without 'llama' or 'gemma' in its path.")
    with tempfile.TemporaryDirectory(prefix="mechheads-", dir=plain[0]) as folder:
        yield Path(folder)
