"""Patching, masking and generation as TransformerLens does them, to compare ours with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .huggingface import quiet_libraries
from .model import Model


def head_loop(
    model: Model,
    base: Int[Tensor, "row pos"],
    other: Int[Tensor, "row pos"],
    metric: Callable[[Tensor], Tensor],
    heads: Sequence[tuple[int, int]],
) -> Float[Tensor, " head"]:
    """The metric with each head patched: a full pass per head."""
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


@torch.inference_mode()
def mask_loop(
    model: Model,
    base: Int[Tensor, "row pos"],
    other: Int[Tensor, "row pos"],
    metric: Callable[[Tensor], Tensor],
    keep: Float[Tensor, "mask layer head"],
) -> Float[Tensor, " mask"]:
    """The metric with each mask: a full pass per mask, with a hook in every layer."""
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]
    _, cache = model.run_with_cache(other, names_filter=names)
    found = []
    for mask in keep:

        def mix(z: Tensor, hook: Any, mask: Tensor = mask) -> Tensor:
            return torch.where(mask[hook.layer()][:, None] == 1, z, cache[hook.name])

        found.append(metric(model.run_with_hooks(base, fwd_hooks=[(name, mix) for name in names])))
    return torch.stack(found)


@torch.inference_mode()
def generate_loop(model: Model, prompts: Sequence[str], n: int) -> list[str]:
    """Greedy answers of n tokens, one prompt at a time."""
    tokenizer: Any = model.tokenizer
    said = []
    for prompt in prompts:
        tokens = model.to_tokens(prompt)
        whole: Any = model.generate(
            tokens, max_new_tokens=n, do_sample=False, stop_at_eos=True, verbose=False
        )
        said.append(tokenizer.decode(whole[0, tokens.shape[1] :], skip_special_tokens=True))
    return said
