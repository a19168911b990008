"""TransformerLens's own loops for patching, masking and generation, to compare ours with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .huggingface import quiet_libraries
from .model import Model
from .wrap import lens_of


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
    own: Any = lens_of(model).model
    with quiet_libraries(), torch.no_grad():
        _, cache = own.run_with_cache(other, names_filter=lambda name: name in _names(own))
        return patching.generic_activation_patch(
            model=own,
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
    own: Any = lens_of(model).model
    _, cache = own.run_with_cache(other, names_filter=lambda name: name in _names(own))
    found = []
    for mask in keep:

        def mix(z: Tensor, hook: Any, mask: Tensor = mask) -> Tensor:
            return torch.where(mask[hook.layer()][:, None] == 1, z, cache[hook.name])

        hooks = [(f"blocks.{layer}.attn.hook_z", mix) for layer in range(len(own.blocks))]
        found.append(metric(own.run_with_hooks(base, fwd_hooks=hooks)))
    return torch.stack(found)


def _names(model: Any) -> set[str]:
    """The hook points of z, by the names that the model uses itself and their aliases."""
    every = [f"blocks.{layer}.attn.hook_z" for layer in range(len(model.blocks))]
    return {*every, *(str(model.hook_dict[name].name) for name in every)}


@torch.inference_mode()
def generate_loop(model: Model, prompts: Sequence[str], n: int) -> list[str]:
    """Greedy answers of n tokens, one prompt at a time."""
    own: Any = lens_of(model).model
    tokenizer, said = own.tokenizer, []
    for prompt in prompts:
        tokens = own.to_tokens(prompt)
        whole: Any = own.generate(
            tokens, max_new_tokens=n, do_sample=False, stop_at_eos=True, verbose=False
        )
        said.append(tokenizer.decode(whole[0, tokens.shape[1] :], skip_special_tokens=True))
    return said
