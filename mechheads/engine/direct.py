"""The direct engine: blocks computed from their weights, without hooks.

1. Keys and values of unchanged positions come from the cached run.
2. At the first changed layer, attention is not rerun: its z is cached.
3. In the last layer, queries and MLP are computed only at the positions that are read.
4. Variants that agree so far share a state; they branch where their interventions differ.
5. Where all heads are frozen, only MLPs run.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.models.backends.blocks import Block
from mechheads.models.hooks import blocks_of, embed
from mechheads.models.model import Model

from .cached_run import CachedRun
from .interventions import FrozenHeads, Intervention


@dataclass(frozen=True)
class States:
    """Residual streams between two layers, and which of them each variant has."""

    state_of: Int[Tensor, " variant"]
    residual: Float[Tensor, "state row pos d_model"]


class KeyValueCache:
    """Keys and values of every layer, with room for `room` positions."""

    def __init__(self, layers: int, room: int) -> None:
        """Create an empty cache."""
        self.length, self.room = 0, room
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers

    def with_new(
        self,
        layer: int,
        k: Float[Tensor, "row pos kv_head d_head"],
        v: Float[Tensor, "row pos kv_head d_head"],
    ) -> tuple[Float[Tensor, "row all kv_head d_head"], Float[Tensor, "row all kv_head d_head"]]:
        """Store new keys and values of a layer, and return all of them so far."""
        end = self.length + k.shape[1]
        both = []
        for held, new in ((self.keys, k), (self.values, v)):
            room = held[layer]
            if room is None:
                room = held[layer] = new.new_empty(len(new), self.room, *new.shape[2:])
            room[:, self.length : end] = new
            both.append(room[:, :end])
        return both[0], both[1]

    def copies(self, n: int) -> "KeyValueCache":
        """A copy with n variants of every row."""
        made = KeyValueCache(len(self.keys), self.room)
        made.length = self.length
        made.keys, made.values = (
            [None if x is None else x.repeat(n, 1, 1, 1) for x in held]
            for held in (self.keys, self.values)
        )
        return made


class DirectEngine:
    """Runs the model's layers directly from their weights."""

    def __init__(self, model: Model) -> None:
        """The blocks share the model's weights."""
        self.model = model
        self.blocks = blocks_of(model)

    def cache(self, tokens: Int[Tensor, "row pos"], first: int, steps: int) -> CachedRun:
        """Run the tokens once and cache the run."""
        residual = embed(self.model, tokens)
        run = CachedRun(first, steps, [], [], [], [], [])
        kept: Any = run
        for i, block in enumerate(self.blocks):
            kept.entering.append(residual)
            x = block.attention_input(residual)
            k, v = block.keys_values(x, 0)
            kept.keys.append(k)
            kept.values.append(v)
            kept.z.append(block.attend(block.queries(x, 0), k, v))
            if block.parallel:
                kept.beside.append(block.mlp(residual))
                residual = residual + kept.beside[i]
            # The output of the last layer is not needed: what enters it and its z are enough.
            if i + 1 < len(self.blocks):
                residual = residual + block.write(kept.z[i])
                if block.has_mlp and not block.parallel:
                    residual = residual + block.mlp(residual)
        return run

    def rerun(
        self, run: CachedRun, intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The end of the run with the intervention."""
        i, n = intervention.start, run.shape[1]
        where = slice(self._from(run, i), n)
        before = States(
            torch.zeros(intervention.variants, dtype=torch.long), run.entering[i][None, :, where]
        )
        z = run.z[i][None, :, where]
        beside = run.beside[i][:, where] if run.beside else None
        after = self._finish(i, before, z, intervention, where, beside)
        return self._go_on(run, i + 1, after, intervention)

    def rerun_from(
        self, run: CachedRun, entering: Float[Tensor, "row pos d_model"], intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        """The same, with a different residual stream entering the first layer, from `first` on."""
        states = States(_together(intervention), entering[None, :, run.first :])
        return self._go_on(run, 0, states, intervention)

    def advance(
        self,
        run: CachedRun,
        entering: Float[Tensor, "state row pos d_model"],
        layers: range,
        intervention: Intervention,
    ) -> Float[Tensor, "variant row pos d_model"]:
        """The residual stream after these layers, at all positions, from the one entering them.

        `entering` has a state per variant, or one for all of them.
        """
        apart = torch.arange(intervention.variants)
        state_of = _together(intervention) if len(entering) == 1 else apart
        states = States(state_of, entering[:, :, run.first :])
        for i in layers:
            states = self._layer(run, i, states, intervention, run.first)
        after = _picked(states.residual, states.state_of)
        before = self._before_first(run, layers.stop)
        return torch.cat([before.expand(len(after), *before.shape[1:]), after], dim=2)

    def _go_on(
        self, run: CachedRun, start: int, states: "States", intervention: Intervention
    ) -> Float[Tensor, "variant row steps d_model"]:
        for i in range(start, len(self.blocks)):
            states = self._layer(run, i, states, intervention, self._from(run, i))
        return _picked(states.residual, states.state_of)[:, :, -run.steps :]

    def _layer(
        self, run: CachedRun, i: int, states: "States", intervention: Intervention, begin: int
    ) -> "States":
        """The states after a layer at positions from `begin` on, from those from `first` on."""
        block, residual, n = self.blocks[i], states.residual, run.shape[1]
        here = States(states.state_of, residual[:, :, begin - n :])
        if isinstance(intervention, FrozenHeads):  # z is given: attention need not run
            return self._finish(i, here, run.z[i][None, :, begin:], intervention, slice(begin, n))
        x = block.attention_input(residual.flatten(0, 1))
        k, v = block.keys_values(x, run.first)
        if run.first:
            k = torch.cat([_copies(run.keys[i][:, : run.first], len(residual)), k], dim=1)
            v = torch.cat([_copies(run.values[i][:, : run.first], len(residual)), v], dim=1)
        z = block.attend(block.queries(x[:, begin - n :], begin), k, v)
        z = z.unflatten(0, residual.shape[:2])
        return self._finish(i, here, z, intervention, slice(begin, n))

    def _before_first(self, run: CachedRun, layer: int) -> Float[Tensor, "1 row pos d_model"]:
        """The cached residual stream that enters a layer, or the end, before position `first`."""
        before = slice(0, run.first)
        if layer < len(self.blocks):
            return run.entering[layer][None, :, before]
        block, residual = self.blocks[-1], run.entering[-1][None, :, before]
        if block.parallel:
            residual = residual + run.beside[-1][:, before]
        return after_heads(block, residual, run.z[-1][None, :, before])

    def _from(self, run: CachedRun, layer: int) -> int:
        """The first position that a layer must compute."""
        return run.shape[1] - run.steps if layer + 1 == len(self.blocks) else run.first

    def _finish(
        self,
        i: int,
        states: "States",
        z: Float[Tensor, "state row pos head d_head"],
        intervention: Intervention,
        where: slice,
        beside: Float[Tensor, "row pos d_model"] | None = None,
    ) -> "States":
        """The states after the layer, from those before it and the z of their heads.

        `beside` is what a parallel MLP adds, if already known.
        """
        block, residual, state_of = self.blocks[i], states.residual, states.state_of
        if block.parallel:
            residual = residual + (block.mlp(residual) if beside is None else beside)
        if intervention.touches(i):
            parents, state_of, part = intervention.branch(i, state_of)
            residual, z = _picked(residual, parents), part(i, _picked(z, parents), where)
        return States(state_of, after_heads(block, residual, z))

    def grow(
        self,
        entering: Float[Tensor, "variant row pos d_model"],
        cache: KeyValueCache,
        intervention: Intervention,
    ) -> Float[Tensor, "variant row pos d_model"]:
        """The final residual stream at new positions, which are added to the cache."""
        residual, new = entering, entering.shape[2]
        where = slice(cache.length, cache.length + new)
        for i, block in enumerate(self.blocks):
            x = block.attention_input(residual.flatten(0, 1))
            k, v = cache.with_new(i, *block.keys_values(x, where.start))
            z = block.attend(block.queries(x, where.start), k, v)
            z = z.unflatten(0, residual.shape[:2])
            if block.parallel:
                residual = residual + block.mlp(residual)
            changed = intervention(i, z, where) if intervention.touches(i) else z
            residual = after_heads(block, residual, changed)
        cache.length += new
        return residual


def after_heads(
    block: Block,
    residual: Float[Tensor, "*rows pos d_model"],
    z: Float[Tensor, "*rows pos head d_head"],
) -> Float[Tensor, "*rows pos d_model"]:
    """The residual stream after the heads' write and the MLP, unless that is parallel."""
    residual = residual + block.write(z)
    if block.parallel or not block.has_mlp:
        return residual
    return residual + block.mlp(residual)


def _together(intervention: Intervention) -> Int[Tensor, " variant"]:
    """All variants start in the same state."""
    return torch.zeros(intervention.variants, dtype=torch.long)


def _picked(
    x: Float[Tensor, "state *rest"], index: Int[Tensor, " picked"]
) -> Float[Tensor, "picked *rest"]:
    """x[index], without a copy if that is x itself or a single state."""
    if len(x) == 1:
        return x.expand(len(index), *x.shape[1:])
    if len(x) == len(index) and bool((index == torch.arange(len(x))).all()):
        return x
    return x[index]


def _copies(x: Float[Tensor, "row *rest"], n: int) -> Float[Tensor, "copy *rest"]:
    """The rows repeated n times."""
    return x.expand(n, *x.shape).flatten(0, 1)
