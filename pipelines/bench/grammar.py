"""Tokens per second of answers in JSON and of tool calls: trees and plain decoding under the same constraints.

    python -m pipelines.bench grammar --json data/results/grammar.jsonl

All ways decode the same prompts one at a time, in a new random order for every prompt, with the same random numbers
where they sample. Trees differ in what they know of the constraint: nothing (the target's choices are masked anyway),
what it forbids, and also what it forces. These have the pair's own policy. The last way is the fastest of several
policies, with n-grams of the text and without, chosen on prompts that are not judged.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from c2t.costs.policy_text import policy_for
from c2t.costs.statistics import total
from c2t.decoding import Step, decode
from c2t.grammars.constraints import Constraints
from c2t.grammars.grammar import Grammar
from c2t.grammars.row_constraint import Path, RowConstraint
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.output.progress import progress_bar
from c2t.policies.default import default_policy
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.interval import Interval, Sums, bootstrap
from c2t.tree import Tree
from c2t.verification.prompt_ids import check_length
from c2t.verification.target_verifier import TargetVerifier
from pipelines import terminal
from pipelines.bench.contenders import Ids, Task, Written, timed
from pipelines.bench.decoding import Report, Result, equal, fastest, how, ratios, short, speed
from pipelines.bench.grammar_prompts import ConstrainedPrompt, json_prompts, tool_prompts
from pipelines.bench.lines import Json, append, computed
from pipelines.options import Draft, PairName

PLAIN = "plain decoding"
TARGET_ONLY, MASKED, FORCED = "trees, masks at the target only", "+ masks in the draft", "+ forced runs"
WITH_NGRAMS, FASTEST = "+ n-grams", "the fastest setting"
SCHEMAS, TOOLS = "JSON", "tool calls"
CHOSEN_ON = {SCHEMAS: 8, TOOLS: 6}  # prompts of each set, the last ones, that settings are chosen on
TREES = (  # besides the pair's own policy
    *("threshold:threshold=0.1,K=4,W=4,levels=4", "threshold:threshold=0.15,K=4,W=4,levels=6"),
    *("threshold:threshold=0.2,K=3,W=3,levels=6", "budget:of=threshold:threshold=0.05,K=4,W=4,levels=6"),
    "budget:of=threshold:threshold=0.05,K=4,W=4,levels=10",
)


@dataclass(frozen=True)
class Constrained:
    """c2t with a policy, under a constraint. draft_masks: what it forbids is not drafted. forced_runs: what it forces
    is appended to trees."""

    name: str
    setting: str
    pair: Pair
    policy: Policy
    draft_masks: bool = True
    forced_runs: bool = True

    def write(self, prompts: Ids, numbers: Sequence[int], constraint: Grammar, task: Task) -> Written:
        """Continue prompts under a constraint; see `Contender.write`."""
        start = time.perf_counter()
        verifier = TargetVerifier(
            self.pair.target,
            self.policy,
            prompts,
            max_new_tokens=task.max_new_tokens,
            sampling=task.sampling,
            eos=task.eos,
            sequences=numbers,
            constraints=[RowConstraint.of(constraint, self.pair.vocabulary) for _ in prompts],
        )
        if not self.forced_runs:
            verifier.constraints = WithoutRuns(verifier.constraints.rows)
        steps = decode(verifier if self.draft_masks else Unseen(verifier), self.pair.draft, self.policy)
        watched = Watched(steps, verifier.constraints)
        written = timed(watched, len(prompts), task, start)
        return written._replace(masks=verifier.constraints.seconds - watched.first)


class Watched:
    """Rounds; first: seconds that matchers took before the first token."""

    def __init__(self, steps: Iterator[Step], constraints: Constraints):
        self.steps, self.constraints, self.first = steps, constraints, 0.0

    def __iter__(self) -> Iterator[Step]:
        for step in self.steps:
            self.first = self.first or self.constraints.seconds
            yield step


class WithoutRuns(Constraints):
    """Constraints by which nothing is appended to trees."""

    def forced(self, row: int, path: Path) -> Path:
        """Return no token."""
        return ()


class Unseen:
    """A verifier whose constraints the draft does not know: its trees may hold what the target then refuses."""

    constraints = None

    def __init__(self, verifier: TargetVerifier):
        self.verifier = verifier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.verifier, name)

    def completed(self, tree: Tree) -> Tree:
        """Return the tree as it is."""
        return tree


class ConstrainedBatch(NamedTuple):
    """A prompt in a batch of its own, the number of its random stream, and the constraint on its answer."""

    ids: Ids
    numbers: Sequence[int]
    constraint: Grammar


def ways(pair: Pair) -> tuple[list[Constrained], list[Constrained]]:
    """Return plain decoding and the trees by the pair's own policy, and the settings of which the fastest competes."""
    parsed = partial(policy_for, pair)
    policy, ngrams = parsed(default_policy(pair.name)), with_ngrams(pair)
    plain = Constrained(PLAIN, "", pair, parsed("plain"))
    trees = [
        Constrained(name, how(drawn, policy), drawn, policy, draft_masks, forced_runs)
        for name, drawn, draft_masks, forced_runs in (
            (TARGET_ONLY, pair, False, False),
            (MASKED, pair, True, False),
            (FORCED, pair, True, True),
            (WITH_NGRAMS, ngrams, True, True),
        )
    ]
    policies = [policy, *map(parsed, TREES)]
    settings = [Constrained(FASTEST, how(drawn, tree), drawn, tree) for drawn in (pair, ngrams) for tree in policies]
    return [plain, *trees], settings


def batches(pair: Pair, prompts: Sequence[ConstrainedPrompt], task: Task) -> list[ConstrainedBatch]:
    """Return each prompt as a batch; InputError for one that the target has no room for."""
    ids = [conversation(pair.tokenizer, pair.template, [prompt.task]) for prompt in prompts]
    for prompt, tokens in zip(prompts, ids, strict=True):
        check_length(len(tokens), task.max_new_tokens, pair.target.max_positions, f"prompt {prompt.task[:60]!r}")
    rows = enumerate(zip(ids, prompts, strict=True))
    return [ConstrainedBatch([tokens], [number], prompt.constraint) for number, (tokens, prompt) in rows]


def faults(pair: Pair, prompts: Sequence[ConstrainedPrompt], result: Result) -> list[str | None]:
    """Return what is wrong with each answer, "" for a right one; None for one that has not ended by itself."""

    def fault(prompt: ConstrainedPrompt, tokens: Sequence[int]) -> str | None:
        *answer, last = tokens
        if last not in pair.target.eos:
            return None
        text = pair.tokenizer.decode(answer, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return prompt.fault(text)

    return [fault(prompt, text.tokens[0]) for prompt, text in zip(prompts, result.written, strict=True)]


def figures(
    pair: Pair, prompts: Sequence[ConstrainedPrompt], results: Mapping[str, Result]
) -> Iterator[dict[str, Any]]:
    """Yield each way's figures.

    against_plain, decoding_against_plain: see `pipelines.bench.decoding.figures`. verified_per_token: verified tokens
    for each new one after the first, roots included; verified_against_target_only: the same over that of trees which
    know nothing of the constraint. masks: share of the seconds after the first token that matchers took. ended: answers
    that ended by themselves; valid, faults: those of them without a fault, and the others. by_kind: speed after the
    first token over plain decoding's.
    """
    plain = results[PLAIN]
    for name, result in results.items():
        judged = [fault for fault in faults(pair, prompts, result) if fault is not None]
        counts = total(text.statistics for text in result.written)
        yield {
            "contender": name,
            "setting": ", ".join(filter(None, result.settings)),
            "tokens_per_second": speed(result.written),
            **ratios(result, plain, "plain"),
            "equal_to_plain": equal(result, plain),
            **counts.figures(),
            "verified_per_token": counts.verified_tokens / (counts.new_tokens - counts.prompts),
            "verified_against_target_only": verified(result, results[TARGET_ONLY]),
            "masks": sum(text.masks for text in result.written)
            / sum(text.seconds - text.first for text in result.written),
            "texts": len(result.written),
            "ended": len(judged),
            "valid": judged.count(""),
            "faults": Counter(filter(None, judged)),
            "by_kind": by_kind(prompts, result, plain),
        }


def verified(result: Result, base: Result) -> Interval:
    """Return the ratio of the verified tokens for each new one, paired over texts."""
    counts = [
        [number for side in pair for number in (side.statistics.verified_tokens, side.new - 1)]
        for pair in zip(result.written, base.written, strict=True)
    ]

    def ratio(sums: Sums) -> Sums:
        tokens, new, of_tokens, of_new = sums
        return (tokens / new * of_new / of_tokens)[None]

    return bootstrap(np.array(counts, dtype=float).T, ratio)[0]


def by_kind(prompts: Sequence[ConstrainedPrompt], result: Result, base: Result) -> dict[str, Interval]:
    """Return the speed over another's after the first token, by kind of constraint."""
    groups: dict[str, list[int]] = {}
    for number, prompt in enumerate(prompts):
        groups.setdefault(prompt.kind, []).append(number)

    def part(whole: Result, numbers: list[int]) -> Result:
        return Result(whole.settings, [whole.written[number] for number in numbers])

    return {
        kind: ratios(part(result, numbers), part(base, numbers), "base")["decoding_against_base"]
        for kind, numbers in groups.items()
    }


def main(
    pair: PairName = DEFAULT_PAIR,
    draft: Draft = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="0 is greedy; repeat the option for several.", show_default="0 and 0.8")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(help="Prompts of each set to judge on.", min=1, show_default="all")
    ] = None,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=2)] = 112,
    json: Json = None,
) -> None:
    """Compare trees and plain decoding under constraints: JSON schemas and tool calls."""
    loaded = load_pair(pair, draft=draft)
    fixed, settings = ways(loaded)
    sets = {SCHEMAS: json_prompts(), TOOLS: tool_prompts()}
    parts = {name: (every[: -CHOSEN_ON[name]][:prompts], every[-CHOSEN_ON[name] :]) for name, every in sets.items()}
    samplings = [Sampling(degree) for degree in temperature or (0.0, 0.8)]
    configuration = {"pair": loaded.name, "marks": loaded.marks, "policy": fixed[1].setting}
    configuration |= {"chosen_on": CHOSEN_ON, "max_new_tokens": new_tokens, **computed(loaded)}
    judged = sum(len(part) for part, _ in parts.values()) * (len(fixed) + 1)
    calls = len(samplings) * (judged + len(parts) * (len(fixed) + len(settings)))
    with progress_bar("grammar", "texts") as report:
        done = count(1)
        for sampling, (name, (part, others)) in product(samplings, parts.items()):
            task, title = Task(new_tokens, sampling, loaded.target.eos), f"{name}, T = {sampling.temperature:g}"

            def advance(title: str = title) -> None:
                report(next(done), calls, title)

            taken = (batches(loaded, prompts, task) for prompts in (part, others))
            results = compare(fixed, settings, *taken, task, advance)
            rows = list(figures(loaded, part, results))
            show(f"{title}: {len(part)} texts", rows)
            of_set = ({"set": name, **row} for row in rows)
            append(json, "bench grammar", of_set, {**configuration, "temperature": sampling.temperature})


def compare(
    fixed: Sequence[Constrained],
    settings: Sequence[Constrained],
    judged: Sequence[ConstrainedBatch],
    others: Sequence[ConstrainedBatch],
    task: Task,
    report: Report,
) -> dict[str, Result]:
    """Decode the judged batches in every way: the fixed ones, and the fastest setting on the others."""
    order = [fastest([way], others, task, report) for way in fixed]  # which warms them up
    order.append(fastest(settings, others, task, report))
    results = {way.name: Result([way.setting], []) for way in order}
    for number, batch in enumerate(judged):
        batch.constraint.matcher(order[0].pair.vocabulary)  # compiled before the first way's clock starts
        for way in random.Random(number).sample(order, len(order)):
            results[way.name].written.append(way.write(*batch, task))
            report()
    return results


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print a set's table."""
    columns = [
        "way",
        "setting",
        "tokens/s",
        "x plain",
        "after the first token",
        "acceptance length",
        "verified a token",
    ]
    columns += ["/ target only", "masks", "ended", "valid", "same text"]
    cells = [
        [
            row["contender"],
            row["setting"],
            f"{row['tokens_per_second']:.1f}",
            short(row["against_plain"]),
            short(row["decoding_against_plain"]),
            1 + row["tau"],
            f"{row['verified_per_token']:.2f}",
            short(row["verified_against_target_only"]),
            f"{row['masks']:.1%}",
            row["ended"],
            row["valid"],
            f"{row['equal_to_plain']:.0%}",
        ]
        for row in rows
    ]
    terminal.table(title, columns, cells)
