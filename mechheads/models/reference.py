"""TransformerLens's own patching loop, to compare with."""

from collections.abc import Callable, Sequence

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
