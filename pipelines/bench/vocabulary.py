"""Acceptance length of a head's reduced vocabulary and of the full one, by set of prompts and by the tokens' frequency.

    python -m pipelines.bench vocabulary --data FOLDER --json data/results/vocabulary.jsonl

All ways have the same head, draft trees of the same size without n-grams, and are counted by exact replay on the same
texts. A token's id is its rank in the tokenizer, which joins frequent pairs of tokens first.
"""

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from jaxtyping import Bool, Float

from c2t.costs.statistics import Statistics
from c2t.errors import InputError
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.loading.load import Pair, load_pair
from c2t.output.progress import progress_bar
from c2t.policies import OptTree
from c2t.policies.spec import describe
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import spread
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.evaluate import continuations, encode, evaluate
from c2t.study.interval import bootstrap
from pipelines import terminal
from pipelines.bench.decoding import short
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.prompt_sets.sets import MADE, prompt_sets
from pipelines.options import PairName

SETS = ("mt_bench", *MADE)
BY_KIND = "languages"  # the set whose kinds have figures of their own
REDUCED, BARE, FULL = "reduced", "without the text's tokens", "full"
POLICY = OptTree(N=17, delta=0.0, K=16, levels=8)
RANKS = (0, 4096, 8192, 16384, 32768)  # where bands of ranks begin


class Tokens(NamedTuple):
    """The new tokens of a text but the first, which no tree holds. drafted: for each way, which were drafted. covered:
    which are in the reduced vocabulary. read: which others stand in the text before."""

    ids: list[int]
    covered: Bool[np.ndarray, " n"]
    read: Bool[np.ndarray, " n"]
    drafted: Bool[np.ndarray, "W n"]


def drafts(draft: EagleDraft, pair: Pair) -> dict[str, EagleDraft]:
    """Return the head with each vocabulary; InputError unless it is reduced and borrows the target's LM head."""
    if not isinstance(draft, EagleDraft) or draft.all_rows is None:
        raise InputError(f"the draft of {pair.name} has no reduced vocabulary out of its target's")
    bare, head = copy.copy(draft), copy.copy(draft.head)
    bare.all_rows, head.tokens = None, None
    return {REDUCED: draft, BARE: bare, FULL: EagleDraft(head, pair.target.lm_head, draft.rounded)}


def tokens_of(text: Continuation, counted: Sequence[Statistics], vocabulary: frozenset[int]) -> Tokens:
    """Return the tokens of one text. counted: of each way."""
    ids = text.tokens[: text.end].tolist()
    seen, read = set(ids[: text.prompt + 1]), []
    for token in ids[text.prompt + 1 :]:
        read.append(token in seen and token not in vocabulary)
        seen.add(token)
    new = ids[text.prompt + 1 :]
    drafted = [[*itertools.chain(*([True] * count + [False] for count in of.accepted))][: len(new)] for of in counted]
    covered = np.array([token in vocabulary for token in new], bool)
    return Tokens(new, covered, np.array(read, bool), np.array(drafted, bool))


def figures(counted: Sequence[Sequence[Statistics]], texts: Sequence[Tokens]) -> dict[str, Any]:
    """Return the figures of some texts. counted: each way's statistics of each text. over: the acceptance length of
    the reduced vocabulary over that of each way."""
    counts = [[of.rounds for of in way] for way in counted] + [[of.accepted_tokens for of in way] for way in counted]
    ways = (REDUCED, BARE, FULL)

    def lengths(sums: Float[np.ndarray, "C R"]) -> Float[np.ndarray, "F R"]:
        rounds, accepted = np.split(sums, 2)
        length = 1 + accepted / rounds
        return np.concatenate([length, length[0] / length])

    intervals = bootstrap(np.array(counts, float), lengths)
    return {
        "texts": len(texts),
        "new_tokens": sum(len(text.ids) for text in texts),
        "in_vocabulary": float(np.concatenate([text.covered for text in texts]).mean()),
        "in_text": float(np.concatenate([text.read for text in texts]).mean()),
        "acceptance_length": dict(zip(ways, intervals, strict=False)),
        "over": dict(zip(ways, intervals[len(ways) :], strict=True)),
    }


def by_rank(texts: Sequence[Tokens]) -> Iterator[dict[str, Any]]:
    """Yield how many tokens of each band of ranks were drafted. drafted: the share for each way."""
    ids, covered, read, drafted = (np.concatenate(column, -1) for column in zip(*texts, strict=True))
    for begin, end in itertools.pairwise((*RANKS, ids.max() + 1)):
        band = (begin <= ids) & (ids < end)
        if band.any():
            yield {
                "ranks": [begin, int(end)],
                "share": float(band.mean()),
                "in_vocabulary": float(covered[band].mean()),
                "in_text": float(read[band].mean()),
                "drafted": dict(zip((REDUCED, BARE, FULL), drafted[:, band].mean(1).tolist(), strict=True)),
            }


def main(
    data: Annotated[Path, typer.Option(help="Folder with mt_bench/question.jsonl, in EAGLE's format.")],
    pair: PairName = DEFAULT_PAIR,
    prompts: Annotated[int, typer.Option(help="Prompts of each set.", min=1)] = 40,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=2)] = 64,
    json: Json = None,
) -> None:
    """Compare a head's reduced vocabulary with the full one."""
    loaded, sampling = load_pair(pair, draft="eagle"), Sampling(0.0)
    ways = {name: replace(loaded, draft=draft) for name, draft in drafts(loaded.draft, loaded).items()}
    rows: list[dict[str, Any]] = []
    every: list[Tokens] = []
    with progress_bar("vocabulary", "runs") as report:
        done, of = itertools.count(1), len(SETS) * len(ways)
        for name, of_set in prompt_sets(SETS, data).items():
            taken = [prompt._replace(turns=prompt.turns[:1]) for prompt in spread(of_set, prompts)]
            encoded = encode(loaded, taken, new_tokens, sampling)
            texts = continuations(loaded, encoded.ids, new_tokens, POLICY.levels, sampling)
            counted = []
            for way, drafted in ways.items():
                task = {"max_new_tokens": new_tokens, "sampling": sampling, "texts": texts}
                counted.append(evaluate(drafted, POLICY, encoded.ids, **task))
                report(next(done), of, f"{name}, {way}")
            tokens = [
                tokens_of(text, counts, loaded.draft.token_set) for text, *counts in zip(texts, *counted, strict=True)
            ]
            every += tokens
            kinds = [prompt.category for prompt in encoded.prompts]
            for kind in ["", *dict.fromkeys(kinds)] if name == BY_KIND else [""]:
                at = [number for number, other in enumerate(kinds) if kind in ("", other)]
                chosen = [[way[number] for number in at] for way in counted]
                rows.append({"set": name, "kind": kind, **figures(chosen, [tokens[number] for number in at])})
    show(loaded.name, rows)
    ranks = list(by_rank(every))
    show_ranks(ranks)
    run = {
        "pair": loaded.name,
        "sources": loaded.sources,
        "vocabulary": [len(loaded.draft.vocabulary.tokens), loaded.draft.vocabulary.size],
        "policy": describe(POLICY, brief=True),
        "prompts": prompts,
        "max_new_tokens": new_tokens,
        "temperature": sampling.temperature,
        **computed(loaded),
    }
    append(json, "bench vocabulary", [*rows, *ranks], run)


def show(pair: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print the sets' table."""
    cells = [
        [row["kind"] or row["set"], row["new_tokens"], f"{row['in_vocabulary']:.1%}", f"{row['in_text']:.1%}"]
        + [f"{length[0]:.2f}" for length in row["acceptance_length"].values()]
        + [short(row["over"][way]) for way in (BARE, FULL)]
        for row in rows
    ]
    columns = ["texts", "tokens", "in the vocabulary", "else in the text", REDUCED, BARE, FULL]
    terminal.table(f"{pair}: acceptance lengths", [*columns, "reduced / without", "reduced / full"], cells)


def show_ranks(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table of ranks."""
    cells = [
        [f"{row['ranks'][0]} to {row['ranks'][1] - 1}"]
        + [f"{row[name]:.1%}" for name in ("share", "in_vocabulary", "in_text")]
        + [f"{share:.1%}" for share in row["drafted"].values()]
        for row in rows
    ]
    columns = ["rank", "of all", "in the vocabulary", "else in the text", REDUCED, BARE, FULL]
    terminal.table("Share of the tokens that were drafted", columns, cells)
