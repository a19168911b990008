"""Runs a HookedTransformer, observed and changed through its hooks.

Every hook lives inside one call and is removed when it returns or raises.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.cache.key_value_cache import TransformerLensKeyValueCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities.activation_functions import apply_softcap

from mechheads.errors import MechheadsError

from .model import Model, is_gated


def logits_at_end(
    model: Model, tokens: Int[Tensor, "row pos"], steps: int, pair_of: Int[Tensor, " row"]
) -> Float[Tensor, "row steps vocab"]:
    """Logits at the last `steps` positions; the other positions are not unembedded.

    Rows of one pair share all but their last steps - 1 tokens, and the shared part runs once.
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


def _continue(
    model: Model, tokens: Int[Tensor, "row pos"], cache: TransformerLensKeyValueCache
) -> Float[Tensor, "row pos d_model"]:
    # An explicit mask: TransformerLens would mistake BOS for padding where both are EOS.
    everything = torch.ones_like(tokens)
    return model(
        tokens,
        stop_at_layer=model.cfg.n_layers,
        past_kv_cache=cache,
        attention_mask=everything,
    )


def with_patterns(
    model: Model,
    tokens: Int[Tensor, "row pos"],
    see: Callable[[int, Float[Tensor, "row head query key"]], None],
) -> None:
    """Run the tokens and pass every layer's attention pattern to `see(layer, pattern)`."""

    def hook(pattern: Tensor, hook: HookPoint) -> None:
        see(hook.layer(), pattern)

    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    model.run_with_hooks(
        tokens.to(model.W_E.device),
        stop_at_layer=model.cfg.n_layers,
        fwd_hooks=[(name, hook) for name in names],
    )


def unembed(
    model: Model,
    residual: Float[Tensor, "*rows d_model"],
    tokens: Int[Tensor, " some"] | None = None,
) -> Float[Tensor, "*rows some"]:
    """Logits of the given tokens, or of all, from the residual stream after the last layer."""
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


def _keeper(kept: list[Tensor]) -> Callable[..., None]:
    def hook(value: Tensor, hook: HookPoint) -> None:
        kept.append(value)

    return hook


def run_blocks(
    model: Model,
    entering: Float[Tensor, "row pos d_model"],
    start: int,
    layers: Sequence[int],
    change: Callable[[int, Float[Tensor, "row pos head d_head"]], Tensor],
) -> Float[Tensor, "row pos d_model"]:
    """The residual stream after the last layer, from what enters layer `start`, with z changed."""

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
    """q, k, v, pattern and z of a layer, with the parts in `replaced` set to the given values.

    q and k are taken before rotary embeddings. Costs one block.
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
    """Run the tokens with gradients: the end, and every layer's q, k and v for each head."""
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


def has_hooks(model: Model) -> bool:
    """Whether the model has foreign hooks; those of edge gates are ours."""
    ours = 2 * model.cfg.n_layers if is_gated(model) else 0
    found = sum(len(point.fwd_hooks) for point in model.hook_dict.values())
    return found != ours


@contextlib.contextmanager
def changed_mlp(
    model: Model, layer: int, change: Callable[[Float[Tensor, "row pos d_mlp"]], Tensor]
) -> Iterator[None]:
    """While active, act(pre) of a layer's MLP is changed; in a gated MLP, before the product."""
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


def check_logits(name: str, logits: Float[Tensor, "..."]) -> None:
    """Raise if a logit is NaN or plus infinity; minus infinity only rules a token out."""
    if bool((logits.isnan() | logits.isposinf()).any()):
        kind = str(logits.dtype).removeprefix("torch.")
        raise MechheadsError(
            f"{name} computes logits that are NaN or infinite in {kind}: its weights are damaged, "
            "or overflow in this dtype. Check the weights, or load it in float32."
        )
