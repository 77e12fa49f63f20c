"""A round's milliseconds by part: the target, the draft, and the rest.

    python -m pipelines.bench breakdown [--policy POLICY] [--json data/results/breakdown.jsonl]

Plain decoding and the policy take turns, prompt by prompt, with clocks around their parts and without; the second time
shows the cost of the clocks themselves. A prompt's own forwards, of the target and of the draft, are left out.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any
from unittest.mock import patch

import typer

from c2t.costs.statistics import Statistics, Trace, total
from c2t.errors import InputError
from c2t.models.drafts.session import BaseDraft
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair, load_pair
from c2t.models.target.target import TargetSession
from c2t.policies.plain import Plain
from c2t.policies.spec import describe
from c2t.protocols import NextTokenDistributions, Policy
from c2t.replay.prompts import default_prompts, read_prompts, spread
from c2t.sampling import Sampling
from c2t.sessions.wrapped import WrappedSession
from c2t.storage.paths import DEFAULT_PAIR
from c2t.verification.sampler import TargetSampler
from c2t.verification.target_verifier import generate
from pipelines import terminal
from pipelines.bench.lines import Json, append, computed
from pipelines.bench.policy import PolicyText, policy_of
from pipelines.options import Draft, PairName
from pipelines.stages import CLASSIFIER, Clock, TimedPolicy

TREE, REST = "tree", "rest"
# Parts in the order in which they are shown. ranking: top K and entropy of the draft's distributions; tree: the
# policy's own work; acceptance: the target's choices and the walk along them; rest: masks, caches, the loop.
PARTS = (
    *("target layers", "target LM head", "draft layers", "draft LM head"),
    *("ranking", CLASSIFIER, TREE, "acceptance", REST),
)


def own_session(draft: BaseDraft) -> type:
    """Return the kind of session that runs the draft's forwards, within what is wrapped around it."""
    session = draft.session()
    while isinstance(session, WrappedSession):
        session = session.draft
    return type(session)


@contextmanager
def clocks(clock: Clock, session: type) -> Iterator[None]:
    """Count the calls of target, LM heads, draft, ranking and acceptance as PARTS. session: kind of draft session."""
    watched = {
        "target layers": (TargetSession, "forward"),
        "target LM head": (TargetSession, "logits"),
        "draft layers": (session, "_forward"),
        "draft LM head": (session, "_logits"),
        "ranking": (NextTokenDistributions, "topk_entropy"),
        "acceptance": (TargetSampler, "accept"),
    }
    with ExitStack() as stack:
        for part, (owner, name) in watched.items():
            stack.enter_context(patch.object(owner, name, counted(clock, part, getattr(owner, name))))
        norm = vars(NextTokenDistributions)["_norm"]
        stack.enter_context(patch.object(norm, "func", counted(clock, "ranking", norm.func)))
        yield


def counted(clock: Clock, part: str, function: Callable) -> Callable:
    """Return the function with its time counted as a part."""

    def call(*arguments: Any, **named: Any) -> Any:
        with clock.stage(part):
            return function(*arguments, **named)

    return call


class Rounds:
    """Rounds of one policy: the parts' clock, the seconds with and without it, and the rounds' statistics."""

    def __init__(self, pair: Pair, policy: Policy, sampling: Sampling, new_tokens: int):
        self.pair, self.policy, self.sampling, self.new_tokens = pair, policy, sampling, new_tokens
        self.clock = Clock(time.perf_counter)
        self.unwatched, self.statistics = 0.0, Statistics()

    def watch(self, prompt: list[int]) -> None:
        """Decode a prompt with clocks around the parts."""
        fresh = Clock(time.perf_counter)
        with clocks(fresh, own_session(self.pair.draft)):
            steps = self._steps(prompt, TimedPolicy(self.policy, fresh, TREE))
            fresh.seconds.clear()  # of the prompt's own forwards
            for _ in fresh.timed(REST, steps):
                pass
        self.clock.seconds += fresh.seconds

    def run(self, prompt: list[int]) -> None:
        """Decode a prompt without clocks, and count its rounds."""
        steps, trace = self._steps(prompt, self.policy), Trace(1)
        start = time.perf_counter()
        done = list(steps)
        self.unwatched += time.perf_counter() - start
        for step in done:
            trace.add(step)
        self.statistics += total(trace.statistics)

    def _steps(self, prompt: list[int], policy: Policy) -> Iterator:
        """Return the rounds after the first one, in which the draft reads the prompt."""
        pair, how = self.pair, {"max_new_tokens": self.new_tokens, "sampling": self.sampling}
        steps = generate(pair.target, pair.draft, policy, [prompt], eos=pair.target.eos, **how)
        next(steps)
        next(steps, None)
        return steps

    def figures(self) -> dict[str, Any]:
        """Return milliseconds a round by part, of a whole round with clocks and without, and the round's tokens."""
        counts, seconds = self.statistics, self.clock.seconds
        rounds = counts.rounds
        if not rounds:
            raise InputError("every text ended in its first round, which is not timed; raise --new-tokens")
        return {
            "policy": describe(self.policy, brief=True),
            "parts": {part: 1e3 * seconds[part] / rounds for part in PARTS},
            "watched": 1e3 * sum(seconds.values()) / rounds,
            "unwatched": 1e3 * self.unwatched / rounds,
            "rounds": rounds,
            "tau": counts.tau,
            "gamma": counts.gamma,
            "draft_passes": counts.draft_passes,
        }


def main(
    pair: PairName = DEFAULT_PAIR,
    draft: Draft = None,
    policy: PolicyText = None,
    prompts: Annotated[int, typer.Option(help="Prompts to decode.", min=1)] = 6,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=1)] = 96,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    json: Json = None,
) -> None:
    """Show a round's milliseconds by part."""
    loaded = load_pair(pair, draft=draft)
    texts = [prompt for file in default_prompts(loaded.name, "bench") for prompt in read_prompts(file)]
    ids = [conversation(loaded.tokenizer, loaded.template, text.turns[:1]) for text in spread(texts, prompts)]
    sampling = Sampling(temperature)
    loaded, chosen = policy_of(loaded, policy, temperature=temperature)
    both = [Rounds(loaded, rival, sampling, new_tokens) for rival in (Plain(), chosen)]
    for rounds in both:
        Rounds(loaded, rounds.policy, sampling, new_tokens).run(ids[0])  # the first forwards of a process are slower
    for number, prompt in enumerate(ids):
        for rounds in both:
            for way in (rounds.watch, rounds.run)[:: -1 if number % 2 else 1]:
                way(prompt)
    settings = {"pair": loaded.name, "sources": loaded.sources, "prompts": len(ids), "max_new_tokens": new_tokens}
    settings |= {"temperature": temperature, **computed(loaded)}
    figures = [rounds.figures() for rounds in both]
    show(figures)
    append(json, "bench breakdown", figures, settings)


def show(figures: list[dict[str, Any]]) -> None:
    """Print milliseconds and percent a round, a column for each policy."""
    rows = [
        [part, *(f"{row['parts'][part]:.2f} ({row['parts'][part] / row['watched']:.0%})" for row in figures)]
        for part in PARTS
    ]
    rows += [[f"a round, {how}", *(f"{row[how]:.2f}" for row in figures)] for how in ("watched", "unwatched")]
    rows += [["tokens a round", *(f"{row['tau'] + 1:.2f}" for row in figures)]]
    terminal.table("milliseconds a round", ["part", *(row["policy"] for row in figures)], rows)
