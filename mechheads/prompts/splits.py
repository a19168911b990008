"""Splits prompts by group, so that no group is on both sides."""

import hashlib
from collections.abc import Sequence


def held_out(group: str) -> bool:
    """Whether a group is in the test split: one in ten, by hash, the same on every machine."""
    return hashlib.sha256(group.encode()).digest()[0] < 26


def split_groups(groups: Sequence[str], n: int) -> tuple[list[int], list[int]]:
    """Indices of the n items on one side, and of the others; groups stay together.

    Groups are taken in order if they fit: there are fewer than n only if no group is small enough
    for the last places.
    """
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    one: list[int] = []
    for listed in members.values():
        if len(one) + len(listed) <= n:
            one += listed
    chosen = set(one)
    return sorted(one), [i for i in range(len(groups)) if i not in chosen]
