"""Harvest: the nodes of full EAGLE-2 trees along the target's own texts, with the verdict of verification on each (C2T,
B.1); or those of MCSD+'s forks, along the texts that they make."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from c2t.decoding import Step, cut
from c2t.errors import InputError
from c2t.harvest.extra_columns import extra_columns, recorded, types
from c2t.harvest.settings import HarvestSettings
from c2t.harvest.shards import WHOLE, PromptGroup, ShardNumber, grouped
from c2t.harvest.texts import EngineText, JudgedTexts, continuations
from c2t.models.loading.chat_templates import conversation
from c2t.models.loading.load import Pair
from c2t.output.progress import ProgressCallback
from c2t.records.reader import describe
from c2t.records.schema import ColumnType, Harvest
from c2t.records.writer import ShardWriter, open_folder, sole_writer
from c2t.replay.cache import cached_continuations
from c2t.replay.every_position import replay_all
from c2t.replay.lockstep import Continuation, replay
from c2t.replay.prompts import Prompt
from c2t.storage.checksum import checksum
from c2t.storage.provenance import environment
from c2t.verification.compatibility import check_compatible
from c2t.verification.target_verifier import generate

if TYPE_CHECKING:  # Ray is an extra
    from c2t.harvest.ray_pool import RayPool

Columns = dict[str, Any]  # name -> values of a text's nodes
NOTHING = "nothing to record: the target ended every text with its first token"


def harvest(
    pair: Pair,
    prompts: Sequence[Prompt],
    out: Path,
    settings: HarvestSettings,
    *,
    shard: ShardNumber = WHOLE,
    texts: JudgedTexts | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Harvest:
    """Write the records of all prompts (every turn of a conversation is one text) into the folder `out`; return its
    facts. shard: write only those of its groups of prompts, for `c2t.harvest.merge`. texts: an engine's texts for the
    prompts, which the target then does not generate.

    progress(done, of, doing) is called after each round with the number of finished texts, of how many, and the number
    of rows. `resume` finishes an interrupted harvest; its rows are those of an uninterrupted one, because batches
    always start at the same prompts. `overwrite` replaces an old harvest once the new one is complete. Conversations
    that exceed the target's positions give no rows. InputError for settings or prompts that cannot be harvested, and
    for a folder into which another process harvests, is raised before the folder is touched.
    """
    written = None if texts is None else texts.texts
    plan = prepare(pair, prompts, settings, written)

    def rows(groups: Sequence[PromptGroup], report: Callable[[int], None]) -> Iterator[Iterable[Columns | None]]:
        for group in groups:
            given = written and written[group.first : group.first + group.texts]
            yield _rows(pair, group, settings, plan, report, given)

    return write(plan, prompts, out, settings.batch, rows, shard, resume, overwrite, progress)


def harvest_by(
    pool: "RayPool",
    prompts: Sequence[Prompt],
    out: Path,
    settings: HarvestSettings,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Harvest:
    """Write the harvest by actors that hold the pair, a group of prompts each at a time. Files and errors are those of
    `harvest`. progress(done, of, doing) counts the texts of all actors."""
    plan = pool.call(prepare, prompts, settings)
    done = of = sum(len(prompt.turns) for prompt in prompts)

    def rows(groups: Sequence[PromptGroup], _: Callable[[int], None]) -> Iterator[Iterable[Columns | None]]:
        nonlocal done
        done = of - sum(group.texts for group in groups)
        return pool.map(partial(_group, settings=settings, plan=plan), groups, finished)

    def finished(group: PromptGroup) -> None:
        nonlocal done
        done += group.texts
        progress(done, of, f"{len(pool.actors)} workers")

    return write(plan, prompts, out, settings.batch, rows, resume=resume, overwrite=overwrite)


def _group(pair: Pair, group: PromptGroup, settings: HarvestSettings, plan: "Plan") -> list["Columns | None"]:
    """Return the columns of all of a group's texts."""
    return list(_rows(pair, group, settings, plan, lambda rows: None))


class Plan(NamedTuple):
    """The facts that a writer needs before the first row: provenance, and the types of further columns; and what all
    workers share.

    now: the time that chat templates write, so that midnight changes no prompt. read: checksums of the groups' first
    turns as token ids, by the numbers of their first texts.
    """

    facts: dict[str, Any]
    extra: dict[str, ColumnType]
    now: str
    read: dict[int, str]


def prepare(
    pair: Pair, prompts: Sequence[Prompt], settings: HarvestSettings, texts: Sequence[EngineText] | None = None
) -> Plan:
    """Return what the writer needs. InputError for settings or prompts that cannot be harvested."""
    now, read = datetime.now().isoformat(), {}
    lengths = [] if texts is None else [len(text.ids) for text in texts]
    for group in grouped(prompts, settings.batch) if texts is None else ():
        ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1], now=now) for prompt in group.prompts]
        read[group.first] = _mark(ids)
        lengths += map(len, ids)
    check(pair, settings, lengths)
    facts = provenance(pair, prompts, settings)
    if texts is None:
        template = pair.tokenizer.chat_template if pair.template else ""
        facts["prompt_ids"] = _mark([pair.template, template, *read.values()])
    else:
        facts["texts"] = _mark([(text.ids, text.completion) for text in texts])
    return Plan(facts, types(settings.columns, pair.draft.hidden_size), now, read)


def _mark(document: Any) -> str:
    return checksum(document)[:16]


def write(
    plan: Plan,
    prompts: Sequence[Prompt],
    out: Path,
    batch: int,
    rows: Callable[[Sequence[PromptGroup], Callable[[int], None]], Iterator[Iterable["Columns | None"]]],
    shard: ShardNumber = WHOLE,
    resume: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> Harvest:
    """Write the groups of a shard, in order, and return the facts. rows(groups, report) yields the columns of each text
    of each group, None for one that is too long; it may call report(rows) with the number of rows so far."""
    groups = shard.deal(grouped(prompts, batch))
    turns = [entry for group in groups for entry in entries(group)]
    facts = plan.facts | ({"shard": list(shard)} if shard != WHOLE else {})
    with (
        sole_writer(out),
        ShardWriter(open_folder(out, resume, overwrite), facts, turns, plan.extra, overwrite=overwrite) as writer,
    ):

        def report(unwritten: int) -> None:
            progress(writer.next_prompt, len(turns), f"{writer.rows + unwritten:,} rows")

        ends = np.cumsum([group.texts for group in groups]).tolist()
        left = [group for group, end in zip(groups, ends, strict=True) if end > writer.next_prompt]
        numbers = count(len(turns) - sum(group.texts for group in left))
        for texts in rows(left, report):
            for columns in texts:
                if next(numbers) >= writer.next_prompt:
                    writer.write(columns or _join([], list(plan.extra)), too_long=columns is None)
            writer.checkpoint()
            report(0)
        if not writer.rows and shard == WHOLE:
            raise InputError(NOTHING)
    return describe(out)


def entries(group: PromptGroup) -> list[dict[str, Any]]:
    """Return what the manifest says about each of a group's texts."""
    return [
        {
            "question_id": prompt.question_id,
            "category": prompt.category,
            "file": prompt.file,
            "question": checksum(prompt.turns[0])[:16],  # by it training does not split the turns of a conversation
            "turn": turn,
        }
        for prompt in group.prompts
        for turn in range(len(prompt.turns))
    ]


def check(pair: Pair, settings: HarvestSettings, lengths: Sequence[int]) -> None:
    """Raise InputError for trees that the pair cannot draft, and if no conversation has room for an answer. lengths:
    tokens of each up to there."""
    check_compatible(settings.trees, pair.target)
    limit = pair.target.max_positions
    room = settings.room(limit)
    if room < 1:
        sizes = f"max_new_tokens = {settings.max_new_tokens} and levels = {settings.levels}"
        raise InputError(f"{sizes} leave no room for a prompt in the target's {limit} positions")
    if not any(length <= room for length in lengths):
        raise InputError(f"every prompt is too long: prompt and new tokens exceed the target's {limit} positions")


def provenance(pair: Pair, prompts: Sequence[Prompt], settings: HarvestSettings) -> dict[str, Any]:
    """Return everything that the rows depend on, and under "environment" the facts that they should not depend on."""
    varying = {"live": settings.live, **environment()}
    fixed = {name: value for name, value in asdict(settings).items() if name not in ("live", "policy", "columns")}
    return {
        "pair": pair.name,
        "sources": pair.sources,
        "policy": {"eagle2": "eagle2, full tree"}.get(settings.policy, settings.policy),
        **fixed,
        **({"draws": settings.sampling.version} if settings.temperature else {}),
        "dtype": pair.arithmetic,
        "prompts": _mark([prompt._asdict() for prompt in prompts]),
        "environment": varying,
    }


def _rows(
    pair: Pair,
    group: PromptGroup,
    settings: HarvestSettings,
    plan: Plan,
    report: Callable[[int], None],
    texts: Sequence[EngineText] | None = None,
) -> Iterator[dict[str, Any] | None]:
    """Yield the columns of every turn of these conversations, in order, None where one is too long. `report(rows)` is
    called with the number of rows so far. texts: an engine's answers.

    Raises InputError where this process reads the prompts otherwise than the plan has it.
    """
    if texts is not None:
        yield from _rows_along(pair, texts, settings, report)
        return
    prompts, first = group.prompts, group.first
    numbers = np.cumsum([first, *(len(prompt.turns) for prompt in prompts)])
    answers: list[list[str]] = [[] for _ in prompts]
    columns: dict[int, dict[str, Any]] = {}
    for turn in range(max(len(prompt.turns) for prompt in prompts)):
        ids = {
            i: conversation(pair.tokenizer, pair.template, prompt.turns[: turn + 1], answers[i], plan.now)
            for i, prompt in enumerate(prompts)
            if turn < len(prompt.turns) and len(answers[i]) == turn
        }
        if not turn and _mark([*ids.values()]) != plan.read[first]:
            raise InputError(
                "the prompts have other token ids here than where the harvest began: give all workers the same "
                "tokenizer and chat template"
            )
        fitting = [i for i in ids if len(ids[i]) <= settings.room(pair.target.max_positions)]
        steps = run(pair, [ids[i] for i in fitting], [int(numbers[i]) + turn for i in fitting], settings)
        rows = sum(len(nodes["node"]) for nodes in columns.values())
        collected, texts = collect(_with_progress(steps, report, rows), len(fitting), settings, pair.target.eos)
        for i, nodes, text in zip(fitting, collected, texts, strict=True):
            columns[int(numbers[i]) + turn] = nodes
            answers[i].append(pair.tokenizer.decode(text, skip_special_tokens=True))
    for number in range(first, int(numbers[-1])):
        yield columns.get(number)


def _rows_along(
    pair: Pair, texts: Sequence[EngineText], settings: HarvestSettings, report: Callable[[int], None]
) -> Iterator[dict[str, Any] | None]:
    """Yield the columns of an engine's texts, none for those that are too short, None for one that is too long."""
    fitting = [text for text in texts if text.fits(pair, settings)]
    steps = along(pair, continuations(pair, fitting, settings), settings) if fitting else iter(())
    collected = iter(collect(_with_progress(steps, report, 0), len(fitting), settings, pair.target.eos)[0])
    for text in texts:
        if text.fits(pair, settings):
            yield next(collected)
        else:
            yield _join([], settings.columns) if text.is_short(settings) else None


def _with_progress(steps: Iterator[Step], report: Callable[[int], None], rows: int) -> Iterator[Step]:
    """Yield the same steps, and call `report` with the number of rows, counted on from `rows`."""
    for step in steps:
        if step.tree is not None:
            rows += int(step.tree.sizes.sum()) - len(step.rows)
            report(rows)
        yield step


def run(pair: Pair, ids: list[list[int]], sequences: list[int], settings: HarvestSettings) -> Iterator[Step]:
    """Yield the rounds of these texts, live or replayed; `sequences` are the numbers of their random streams."""
    if not ids:
        return iter(())
    common = {"max_new_tokens": settings.max_new_tokens, "sampling": settings.sampling, "sequences": sequences}
    if settings.runs_target:
        record = recorded(settings.columns)
        return generate(pair.target, pair.draft, settings.trees, ids, eos=pair.target.eos, record=record, **common)
    noise = {"seed": settings.seed, "temperature": settings.temperature, "sequences": sequences}
    return along(pair, cached_continuations(pair, ids, beyond=settings.levels + 1, **common), settings, **noise)


def along(pair: Pair, texts: Sequence[Continuation], settings: HarvestSettings, **noise: Any) -> Iterator[Step]:
    """Yield the rounds of finished texts. noise: seed, sequences and temperature of the target's sampling (see
    `replay`), nothing for an engine's texts."""
    every = replay_all if settings.positions == "all" else replay
    return every(pair.draft, settings.trees, texts, record=recorded(settings.columns), **noise)


def collect(
    steps: Iterator[Step], count: int, settings: HarvestSettings, eos: frozenset[int]
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Return the columns of each text's nodes, and its new tokens."""
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in range(count)]
    tokens: list[list[int]] = [[] for _ in range(count)]
    starts: dict[int, int] = {}
    for step in steps:
        for (text, new), position in zip(step.by_row(), step.position.tolist(), strict=True):
            start = position - starts.setdefault(text, position) + (step.tree is not None)  # after the root
            tokens[text][start:] = new
        if step.tree is not None:
            extra = extra_columns(step, settings.columns, settings.trees.proposal, settings.sampling)
            for row, nodes in zip(step.rows.tolist(), nodes_of(step, extra), strict=True):
                parts[row].append(nodes | {"tree": np.full(len(nodes["node"]), len(parts[row]))})
    texts = [cut(text, settings.max_new_tokens, eos) for text in tokens]
    return [_join(part, settings.columns) for part in parts], texts


def nodes_of(step: Step, further: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return one round's nodes for each row, as `c2t.records` names them, with further columns; the root (slot 0) is no
    row."""
    tree, accepted = step.tree, step.accepted
    assert tree is not None
    assert accepted is not None
    on_path = tree.alive.new_zeros(tree.alive.shape).scatter(1, accepted.slots.clamp(min=0), True)

    def column(values: Tensor) -> np.ndarray:
        return values.cpu().numpy()

    columns = {
        "parent": column(tree.parent - 1),
        "depth": column(tree.depth),
        "joint_prob": column(tree.log_joint.exp().float()),
        "entropy": column(tree.entropy.float()),
        "accepted": column(on_path if accepted.agreed is None else accepted.agreed),
        "token": column(tree.token),
        "rank": column(tree.rank),
        **further,
    }
    rows = []
    for row, size in enumerate(tree.sizes.tolist()):
        assert tree.alive[row, :size].all(), "policies return trees whose alive slots come first"
        nodes = {name: values[row, 1:size] for name, values in columns.items()}
        nodes["node"] = np.arange(size - 1)
        nodes["position"] = np.full(size - 1, int(step.position[row]))
        rows.append(nodes)
    return rows


def _join(parts: list[dict[str, np.ndarray]], further: Sequence[str]) -> dict[str, np.ndarray]:
    stored = ("tree", "node", "parent", "depth", "joint_prob", "entropy", "accepted", "token", "rank", "position")
    return {
        name: np.concatenate([part[name] for part in parts]) if parts else np.empty(0) for name in (*further, *stored)
    }
