"""TransformerLens, 3 or 4, as its demos use it: one full pass per head, and hooks.

Runs with the Python of any environment that has TransformerLens: `python lens.py FOLDER NAME`.
"""

import random
from importlib.metadata import version
from typing import Any

import handed

handed.quietly()

import pandas as pd  # noqa: E402
import torch  # noqa: E402
from transformer_lens import patching  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def load(folder: Any, work: dict) -> tuple[Any]:
    """A HookedTransformer or, from TransformerLens 4 on, a TransformerBridge of the same GPT-2."""
    hf = AutoModelForCausalLM.from_pretrained(folder).eval()
    if version("transformer-lens").startswith("3."):
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformer_lens.pretrained.weight_conversions.gpt2 import convert_gpt2_weights

        sizes = hf.config
        cfg = HookedTransformerConfig(
            n_layers=sizes.n_layer,
            n_heads=sizes.n_head,
            d_model=sizes.n_embd,
            d_head=sizes.n_embd // sizes.n_head,
            d_mlp=sizes.n_inner,
            d_vocab=sizes.vocab_size,
            n_ctx=sizes.n_positions,
            act_fn=sizes.activation_function,
            eps=sizes.layer_norm_epsilon,
            normalization_type="LN",
            device="cpu",
        )
        model = HookedTransformer(cfg)
        same = {"fold_ln": False, "center_writing_weights": False, "center_unembed": False}
        weights = convert_gpt2_weights(hf, cfg)
        model.load_and_process_state_dict(weights, fold_value_biases=False, **same)
    else:
        from transformer_lens.model_bridge import TransformerBridge

        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = TransformerBridge.boot_transformers(
            "random", hf_model=hf, tokenizer=tokenizer, device="cpu"
        )
    model.eval().requires_grad_(False)
    model(torch.tensor(work["ranking"]["clean"]))  # the first pass is slower
    return (model,)


def tokens_of(prompts: dict) -> list[torch.Tensor]:
    """Clean, corrupt, answer and wrong answer, a row per prompt."""
    return [torch.tensor(prompts[key]) for key in ("clean", "corrupt", "answers", "wrong")]


def logit_diff(logits: torch.Tensor, answers: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """The mean over prompts, at the last position."""
    last, rows = logits[:, -1], torch.arange(len(answers))
    return (last[rows, answers] - last[rows, wrong]).mean()


def z_names(model: Any) -> list[str]:
    """The hook points of the heads' outputs."""
    return [f"blocks.{layer}.attn.hook_z" for layer in range(model.cfg.n_layers)]


def z_of(model: Any, tokens: torch.Tensor) -> Any:
    """The heads' outputs on these tokens."""
    names = {str(model.hook_dict[name].name) for name in z_names(model)} | {*z_names(model)}
    return model.run_with_cache(tokens, names_filter=lambda name: name in names)[1]


def all_heads(model: Any) -> list[tuple[int, int]]:
    """Every (layer, head)."""
    return [(i, h) for i in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]


def patch_heads(model: Any, work: dict) -> tuple[float, str, dict[str, float]]:
    """How much of the logit difference each head carries: replaced in the clean run.

    Patched by what patching.get_act_patch_attn_head_out_all_pos calls, for some of the heads.
    """
    clean, corrupt, answers, wrong = tokens_of(work["ranking"])
    heads = all_heads(model)
    some = handed.spread(heads, work["loops"])

    def metric(logits: torch.Tensor) -> torch.Tensor:
        return logit_diff(logits, answers, wrong)

    @torch.no_grad()
    def loop() -> torch.Tensor:
        chosen = pd.DataFrame(some, columns=["layer", "head"])
        setter = patching.layer_head_vector_patch_setter
        return patching.generic_activation_patch(
            model, clean, other, metric, setter, "z", index_df=chosen
        )

    with torch.no_grad():
        (other, before), once = handed.timed(lambda: (z_of(model, corrupt), metric(model(clean))))
    after, each = handed.timed(loop)
    effects = zip(some, before - after, strict=True)
    seconds = once + each * len(heads) / len(some)
    return seconds, f"{len(some)} of {len(heads)}", {f"L{i}H{h}": float(x) for (i, h), x in effects}


def patch(model: Any, work: dict) -> handed.Answer:
    """The effect of every head by activation patching."""
    seconds, how, effects = patch_heads(model, work)
    return seconds, f"{how} heads", {"effect": effects}


def attribution(model: Any, work: dict) -> handed.Answer:
    """The effect of every head, estimated from the gradient of the clean run."""
    clean, corrupt, answers, wrong = tokens_of(work["ranking"])

    def estimate() -> dict[str, float]:
        kept = {}

        def keep(z: torch.Tensor, hook: Any) -> torch.Tensor:
            kept[hook.layer()] = z.requires_grad_() if not kept else z
            return kept[hook.layer()]

        with torch.no_grad():
            other = z_of(model, corrupt)
        with torch.enable_grad():
            logits = model.run_with_hooks(clean, fwd_hooks=[(n, keep) for n in z_names(model)])
            slopes = torch.autograd.grad(logit_diff(logits, answers, wrong), list(kept.values()))
        effects = {}
        for layer, slope in zip(kept, slopes, strict=True):
            change = kept[layer].detach() - other["z", layer]
            sums = (change * slope).sum((0, 1, 3))
            effects |= {f"L{layer}H{h}": float(x) for h, x in enumerate(sums)}
        return effects

    effects, seconds = handed.timed(estimate)
    return seconds, "whole", {"effect": effects}


@torch.no_grad()
def keep_heads(model: Any, prompts: dict, other: Any, circuits: list) -> list[float]:
    """The logit difference with each circuit kept in the clean run, and other heads replaced."""
    clean, _, answers, wrong = tokens_of(prompts)
    found = []
    for circuit in circuits:
        kept = {tuple(head) for head in circuit}

        def mix(z: torch.Tensor, hook: Any, kept: Any = kept) -> torch.Tensor:
            out = [h for h in range(z.shape[2]) if (hook.layer(), h) not in kept]
            z[:, :, out] = other["z", hook.layer()][:, :, out]
            return z

        logits = model.run_with_hooks(clean, fwd_hooks=[(name, mix) for name in z_names(model)])
        found.append(float(logit_diff(logits, answers, wrong)))
    return found


def discover(model: Any, work: dict) -> handed.Answer:
    """Rank heads by patching, and measure the curve over k beside random rankings.

    The ranking is handed over, because two heads as good as equal may be ranked either way.
    """
    heads, asked, judging = all_heads(model), work["curve"], work["judging"]
    seconds, how, effects = patch_heads(model, work)
    ranked = [tuple(head) for head in asked["ranking"]]
    curve = [ranked[:k] for k in asked["at"]]
    draws = [random.Random(i).sample(heads, len(heads)) for i in range(asked["draws"])]
    band = [draw[:k] for draw in draws for k in asked["random_at"]]
    with torch.no_grad():
        other, once = handed.timed(lambda: z_of(model, torch.tensor(judging["corrupt"])))
    seconds += once
    passes, values = int(how.split()[0]), {}
    for circuits in (band, curve):
        some = handed.spread(circuits, work["loops"])
        values, each = handed.timed(lambda s=some: keep_heads(model, judging, other, s))
        values = {str(len(kept)): value for kept, value in zip(some, values, strict=True)}
        seconds += each * len(circuits) / len(some)
        passes += len(some)
    how = f"{passes} of {len(heads) + len(curve) + len(band)} passes"
    return seconds, how, {"effect": effects, "curve": values}


def gating(model: Any, work: dict) -> handed.Answer:
    """Fit a gate to every head, one fit after the other: free, then pulled open and closed."""
    asked = work["gating"]
    seeds = list(range(len(asked["start"])))
    some = seeds[: asked["timed"]]
    fits, seconds = handed.timed(lambda: [fit_seed(model, work, seed) for seed in some])
    gates = {
        f"seed {seed} {kind} L{i}H{h}": float(gate[i, h])
        for seed, fit in zip(some, fits, strict=True)
        for kind, gate in fit.items()
        for i, h in all_heads(model)
    }
    how = f"{len(some)} of {len(seeds)} seeds"
    return seconds * len(seeds) / len(some), how, {"gate": gates}


def fit_seed(model: Any, work: dict, seed: int) -> dict[str, torch.Tensor]:
    """The three fits of a seed; the pulled ones start from the free one."""
    asked = work["gating"]
    start, clip = torch.tensor(asked["start"][seed]), asked["clip"]
    free = fit(model, work, start, 0.0, asked["rates"])
    bounded, pull, rates = free.clamp(-clip, clip), asked["strength"], asked["pulled_rates"]
    plus, minus = (fit(model, work, bounded, sign * pull, rates) for sign in (1, -1))
    return {"free": free.sigmoid(), "plus": plus.sigmoid(), "minus": minus.sigmoid()}


@torch.enable_grad()
def fit(model: Any, work: dict, start: torch.Tensor, pull: float, rates: list) -> torch.Tensor:
    """Adam on the gates' logits: the loss of the answers, less the pull towards open."""
    clean, _, answers, _ = tokens_of(work["ranking"])
    drawn, clip = work["gating"]["drawn"], work["gating"]["clip"]
    logits = start.clone().requires_grad_()
    adam = torch.optim.Adam([logits], lr=rates[0])
    for update, rows in enumerate(drawn):
        share = update / max(1, len(drawn) - 1)
        adam.param_groups[0]["lr"] = rates[0] + share * (rates[1] - rates[0])
        gates = logits.sigmoid()

        def gate(z: torch.Tensor, hook: Any, gates: torch.Tensor = gates) -> torch.Tensor:
            return z * gates[hook.layer()][:, None]

        said = model.run_with_hooks(clean[rows], fwd_hooks=[(n, gate) for n in z_names(model)])
        right = said[:, -1].log_softmax(-1)[torch.arange(len(rows)), answers[rows]]
        loss = -right.mean() - pull * logits.clamp(-clip, clip).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            if pull:
                logits.clamp_(max=clip) if pull > 0 else logits.clamp_(min=-clip)
    return logits.detach()


if __name__ == "__main__":
    measurements = {f.__name__: f for f in (patch, attribution, discover, gating)}
    handed.main("transformer-lens", measurements, load)
