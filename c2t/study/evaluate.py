"""Cost and yield of a policy on prompts: gamma, tau and draft passes, by exact replay or from live runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from c2t.costs.statistics import Statistics, Trace
from c2t.decoding import DraftModel, Step, cut
from c2t.errors import InputError, at_least_one
from c2t.models.loading.load import Pair
from c2t.protocols import Policy
from c2t.replay.cache import cached_continuations
from c2t.replay.lockstep import Continuation, replay
from c2t.replay.prompts import Encoded, Prompt, encode_all
from c2t.replay.settings import RunSettings
from c2t.sampling import Sampling
from c2t.verification.compatibility import check_rule, live_only
from c2t.verification.target_verifier import generate


@dataclass(frozen=True, kw_only=True)
class StudySettings(RunSettings):
    """Settings of a study. limit: prompts, taken from all files and categories alike (None: all). rule: verification
    rule of policies that sample their candidates (None: residual)."""

    limit: int | None = None
    rule: str | None = None

    def __post_init__(self):
        super().__post_init__()
        at_least_one(self, "limit")

    def rule_of(self, policy: Policy) -> str:
        """Return the verification rule of a policy's trees; only sampled candidates leave a choice."""
        return check_rule(policy, self.rule if policy.proposal == "sampled" else None)


# Texts replayed together, which bounds the memory of a run. Only the figures of a budget depend on it: they share one.
BATCH = 16
LOOP_TOKENS, LOOP_PERIOD = 32, 16


def evaluate(
    pair: Pair,
    policy: Policy,
    ids: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    rule: str | None = None,
    live: bool = False,
    texts: Sequence[Continuation] | None = None,
    drafter: DraftModel | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Statistics]:
    """Return the statistics of each prompt's rounds.

    texts: result of `continuations` for the same prompts and settings, generated once for several policies. drafter:
    an oracle, which drafts in replay instead of the pair's draft. live: run the target on every tree; both
    ways count the same rounds. Policies that cannot be replayed (residual rule, trees that start from the target's
    distribution, int4 speculation) always run live.
    """
    rule = check_rule(policy, rule)
    live = live or must_run(policy, rule, sampling)
    if texts is None and not live:
        texts = continuations(pair, ids, max_new_tokens, policy.levels, sampling)
    statistics: list[Statistics] = []
    for start in range(0, len(ids), BATCH):
        part = slice(start, start + BATCH)
        numbers = range(start, start + len(ids[part]))
        trace = Trace(len(numbers))
        if live:
            steps = _run(pair, policy, ids[part], max_new_tokens, sampling, numbers, rule)
        else:
            # An oracle has the target's probabilities; with the random numbers too it would have the text.
            temperature = 0.0 if drafter else sampling.temperature
            random_streams = {"seed": sampling.seed, "sequences": numbers, "temperature": temperature}
            steps = replay(drafter or pair.draft, policy, texts[part], **random_streams)
        for step in steps:
            trace.add(step)
        trace.finish([len(cut(tokens, max_new_tokens, pair.target.eos)) for tokens in trace.tokens])
        statistics += trace.statistics
        progress(len(statistics))
    return statistics


def must_run(policy: Policy, rule: str, sampling: Sampling) -> bool:
    """Return True for a policy that cannot be replayed, see `evaluate`: it needs no texts of the target."""
    return not policy.exact or live_only(policy) or (rule == "residual" and sampling.temperature > 0)


def _run(
    pair: Pair,
    policy: Policy,
    ids: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    sequences: Sequence[int],
    rule: str,
) -> Iterator[Step]:
    return generate(
        pair.target,
        pair.draft,
        policy,
        ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        eos=pair.target.eos,
        sequences=sequences,
        rule=rule,
    )


def continuations(
    pair: Pair, ids: Sequence[Sequence[int]], max_new_tokens: int, levels: int, sampling: Sampling
) -> list[Continuation]:
    """Return the target's continuations, long enough to judge trees of up to `levels` levels, from the cache on
    disk if they are there (`c2t.replay.cache`)."""
    texts: list[Continuation] = []
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        numbers = range(start, start + len(part))
        texts += cached_continuations(
            pair, part, max_new_tokens=max_new_tokens, beyond=levels + 1, sampling=sampling, sequences=numbers
        )
    return texts


def encode(pair: Pair, prompts: Sequence[Prompt], max_new_tokens: int, sampling: Sampling) -> Encoded:
    """Return every turn of the prompts as token ids of this pair; earlier answers in a conversation are the
    target's. InputError if no prompt has room."""

    def answer(ids: list[list[int]]) -> list[str]:
        texts = continuations(pair, ids, max_new_tokens, 0, sampling)
        new = [text.tokens[text.prompt : text.end] for text in texts]
        return pair.tokenizer.batch_decode(new, skip_special_tokens=True)

    return encode_all(pair.tokenizer, pair.template, prompts, room(pair, max_new_tokens), answer)


def room(pair: Pair, max_new_tokens: int) -> int:
    """Return the most tokens that a prompt may have. InputError if that is none."""
    limit = pair.target.max_positions
    if limit - max_new_tokens < 1:
        raise InputError(
            f"max_new_tokens = {max_new_tokens} leaves no room for a prompt in the target's {limit} positions"
        )
    return limit - max_new_tokens


def loops(tokens: Sequence[int]) -> bool:
    """Return True if a text ends in a loop: its last 32 tokens repeat a sequence of at most 16.

    Loops are easy to draft, so figures on looping texts flatter every policy. A text with fewer than 32 tokens never
    counts.
    """
    last = tokens[-LOOP_TOKENS:]
    return len(last) == LOOP_TOKENS and any(last[p:] == last[:-p] for p in range(1, LOOP_PERIOD + 1))


def share_of_loops(texts: Sequence[Continuation]) -> float:
    """Return the share of the texts that end in a loop."""
    new = [text.tokens[text.prompt : text.end].tolist() for text in texts]
    return sum(loops(tokens) for tokens in new) / len(new)
