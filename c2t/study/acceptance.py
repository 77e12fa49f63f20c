"""Acceptance rates of the draft's first, second, ... sample, which shape Sequoia's tree. They are measured on the pair
and stored with it (DySpec, section 5: its baseline Sequoia)."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, with_config
from typing_extensions import TypedDict

from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies.configured import MCSD
from c2t.sampling import Sampling
from c2t.storage import paths as checkpoints
from c2t.storage.atomic import write_text
from c2t.storage.checked import EXTENSIBLE, from_json, read_file
from c2t.verification.target_verifier import generate

FILE = "acceptance.json"
Share = Annotated[float, Field(ge=0, le=1)]


class AcceptanceRates(NamedTuple):
    """Measured rates. rates[j]: share of the rounds in which the child sampled as number j was the accepted one."""

    rates: tuple[float, ...]
    rounds: int


def acceptance_by_rank(
    pair: Pair,
    ids: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    draft_temperature: float,
    rule: str,
    children: int = 16,
    max_new_tokens: int = 64,
) -> AcceptanceRates:
    """Count, over real rounds, how often each sample is the accepted one. Every tree has `children` nodes below the
    root, sampled without replacement."""
    policy = MCSD((children,), draft_temperature)
    settings: dict[str, Any] = {"max_new_tokens": max_new_tokens, "sampling": sampling, "eos": pair.target.eos}
    counts, rounds = torch.zeros(children, dtype=torch.long), 0
    for step in generate(pair.target, pair.draft, policy, ids, rule=rule, **settings):
        if step.tree is None or step.accepted is None:
            continue
        rounds += len(step.rows)
        hit = step.accepted.length > 0
        child = step.accepted.slots[hit, 1:2]
        ranks = step.tree.rank[hit].gather(1, child)[:, 0].cpu() if child.numel() else counts[:0]
        counts += torch.bincount(ranks, minlength=children)
    return AcceptanceRates(tuple((counts / max(rounds, 1)).tolist()), rounds)


def key(pair: Pair, temperature: float, draft_temperature: float, rule: str, top_p: float = 1.0) -> dict[str, Any]:
    """Return everything that a measured vector depends on."""
    numbers = {"temperature": temperature, "top_p": top_p, "draft_temperature": draft_temperature}
    return {"draft": pair.sources["draft"][1], "rule": rule, **{name: float(value) for name, value in numbers.items()}}


def store(path: Path, key: dict[str, Any], measured: AcceptanceRates) -> None:
    """Add an entry to a file of measured vectors, in place of an older one with the same key."""
    entries = [entry for entry in _read(path) if {name: entry.get(name) for name in key} != key]
    entries.append({**key, "rates": [round(rate, 6) for rate in measured.rates], "rounds": measured.rounds})
    write_text(path, json.dumps(entries, indent=1) + "\n")


def lookup(
    pair: Pair, temperature: float, rule: str | None = None, top_p: float = 1.0
) -> Callable[[float], tuple[float, ...]]:
    """Return a function that gives the stored vector for a draft temperature. Vectors measured on this machine come
    before those that came with the pair; for a missing one it raises InputError with the command that measures it."""

    def stored(draft_temperature: float) -> tuple[float, ...]:
        wanted = key(pair, temperature, draft_temperature, rule or "residual", top_p)
        for path in (local_file(pair.name), checkpoints.base_of(pair.name) / "checkpoints" / pair.name / FILE):
            for entry in _read(path):
                if {name: entry.get(name) for name in wanted} == wanted:
                    return tuple(entry["rates"])
        options = f"--temperature {temperature:g} --draft-temperature {draft_temperature:g}"
        if top_p != 1:
            options += f" --top-p {top_p:g}"
        raise InputError(
            f"sequoia needs acceptance rates that were not measured for this draft at T = {temperature:g}; "
            f"measure them with: python -m pipelines.pair.acceptance --pair {pair.name} --draft DRAFT {options}"
        )

    return stored


def local_file(pair: str) -> Path:
    """Return the file of this machine's measurements."""
    return checkpoints.root() / "checkpoints" / "local" / pair / FILE


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return from_json(list[_StoredRates], read_file(path), f"{path} does not hold measured acceptance rates")


@with_config(EXTENSIBLE)
class _StoredRates(TypedDict):
    """A measured vector and what it depends on (`key`), as it is stored."""

    rates: Annotated[list[Share], Field(min_length=1, max_length=1024)]
