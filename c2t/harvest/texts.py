"""An engine's texts by the target: read from a file, and judged by the target before anything is harvested along
them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from c2t.errors import InputError
from c2t.harvest.settings import HarvestSettings
from c2t.harvest.shards import WHOLE, ShardNumber, grouped
from c2t.models.loading.chat_templates import check_text, conversation, encodable, token_ids
from c2t.models.loading.load import Pair
from c2t.output.progress import ProgressCallback
from c2t.replay.cache import cached_continuations
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import Prompt, QuestionId, json_lines
from c2t.storage.checked import OPEN

NEAR = 0.25  # logits closer than this are a near-tie: bfloat16 counts logits of 16 to 32 in steps of 0.125
# Beyond what chance explains (DEVIATIONS standard deviations): at temperature 0 the share of a text's tokens that may
# differ from the target's choices; else how many nats a token may be less probable than the target's own, on average.
# Near-ties of another arithmetic stay far below, texts of another model or with another template lie above.
MOST_MISMATCHES, MOST_NATS, DEVIATIONS = 0.1, 0.5, 4.0

Words = Annotated[str, Field(min_length=1)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


@dataclass(frozen=True)
class _TextLine:
    __pydantic_config__ = OPEN
    prompt: Words | Ids
    completion: Words | Ids
    question_id: QuestionId | None = None
    category: str = ""


class EngineText(NamedTuple):
    """One text: token ids of prompt and completion, the prompt as the manifest names it, and its line in the file."""

    ids: list[int]
    completion: list[int]
    prompt: Prompt
    source: str

    def is_short(self, settings: HarvestSettings) -> bool:
        """Return True if no tree could be judged in it: that takes levels + 1 tokens after the tree's root."""
        return len(self.completion) <= settings.levels + 1

    def fits(self, pair: Pair, settings: HarvestSettings) -> bool:
        """Return True if the text is long enough, and the target has room for it."""
        return len(self.ids) <= settings.room(pair.target.max_positions) and not self.is_short(settings)


class JudgedTexts(NamedTuple):
    """Texts that the target has judged. tokens: how many it judged. mismatches: of them those that are not its most
    probable ones; near: those among these at a near-tie. nats: how much less probable all tokens together are than the
    target's own on average; None at temperature 0. short: texts in which no tree could be judged; they give no rows."""

    texts: Sequence[EngineText]
    tokens: int = 0
    mismatches: int = 0
    near: int = 0
    nats: float | None = None
    short: int = 0

    def __str__(self) -> str:
        if self.nats is None:
            summary = (
                f"{self.mismatches:,} of {self.tokens:,} tokens are not the target's choices, {self.near:,} of them at "
                f"near-ties (logits less than {NEAR:g} apart)"
            )
        else:
            mean = self.nats / max(self.tokens, 1)
            summary = f"{self.tokens:,} tokens, on average {mean:.3f} nats less probable than the target's own"
        return f"texts: {summary}" + (f"; {self.short:,} texts are too short and give no rows" if self.short else "")


def read_texts(path: str | Path, pair: Pair) -> list[EngineText]:
    """Return the texts of a JSONL file: an object a line with `prompt` and `completion`, each as text or as token ids.

    A prompt in words is the user's turn, as in a file of prompts; one in ids is taken as it is. Lines of one
    `question_id` are one conversation. Raises InputError, with the number of the line, for anything else.
    """
    texts: list[EngineText] = []
    first_turns: dict[QuestionId, str] = {}
    for number, line in json_lines(path, _TextLine, "a file of texts"):
        source = f"{path}, line {number}"
        if isinstance(line.prompt, str):
            try:
                check_text(line.prompt)
            except InputError as error:
                raise InputError(f"{source}: {error}") from error
            ids, words = conversation(pair.tokenizer, pair.template, [line.prompt]), line.prompt
            if not ids:
                raise InputError(f"{source}: the prompt has no tokens: give at least one to continue")
        else:
            ids, words = _checked_ids(line.prompt, pair, source), str(pair.tokenizer.decode(line.prompt)) or " "
        if isinstance(line.completion, str) and not encodable(line.completion):
            raise InputError(f"{source}: the completion is not UTF-8: it holds half of a surrogate pair")
        if isinstance(line.completion, str):
            completion = token_ids(pair.tokenizer, line.completion, special=False)
        else:
            completion = _checked_ids(line.completion, pair, source)
        question_id = number - 1
        if line.question_id is not None:  # later turns contain the earlier ones, so training must not split them
            question_id, words = line.question_id, first_turns.setdefault(line.question_id, words)
        texts.append(EngineText(ids, completion, Prompt(question_id, line.category, [words], Path(path).name), source))
    if not texts:
        raise InputError(
            f"{path} holds no texts: give a JSONL file with one object with `prompt` and `completion` a line"
        )
    return texts


def _checked_ids(ids: list[int], pair: Pair, source: str) -> list[int]:
    vocabulary = pair.target.config.vocab_size
    if max(ids) >= vocabulary:
        raise InputError(
            f"{source}: token {max(ids)} is not one of the target's {vocabulary:,}; give ids of its tokenizer"
        )
    return ids


def judge(
    pair: Pair,
    texts: Sequence[EngineText],
    settings: HarvestSettings,
    shard: ShardNumber = WHOLE,
    progress: ProgressCallback = lambda done, of, doing: None,
) -> JudgedTexts:
    """Let the target read the texts of a shard, one forward each, and return its judgement; the features go into the
    cache of texts. Raises InputError that names the line of a text which the target would not have generated (see
    MOST_MISMATCHES), and for settings that replay cannot harvest."""
    if settings.runs_target:
        raise InputError("texts are replayed: leave out live, mcsd+ and the column target_prob")
    done = JudgedTexts(texts, nats=0.0 if settings.temperature else None)
    groups = shard.deal(grouped([text.prompt for text in texts], settings.batch))
    for number, group in enumerate(groups, 1):
        here = texts[group.first : group.first + group.texts]
        fitting = [text for text in here if text.fits(pair, settings)]
        done = done._replace(short=done.short + sum(text.is_short(settings) for text in here))
        for text, read in zip(fitting, continuations(pair, fitting, settings), strict=True):
            done = _add(done, text, read.judged)
        progress(number, len(groups), "the target reads the texts")
    return done


def continuations(pair: Pair, texts: Sequence[EngineText], settings: HarvestSettings) -> list[Continuation]:
    """Return these texts as the target reads them, from the cache if they are there."""
    if not texts:
        return []
    sizes = {"max_new_tokens": settings.max_new_tokens, "beyond": settings.levels + 1}
    completions = [text.completion[: sum(sizes.values())] for text in texts]
    return cached_continuations(
        pair,
        [text.ids for text in texts],
        completions=completions,
        sampling=settings.sampling,
        sequences=range(len(texts)),
        **sizes,
    )


def _add(done: JudgedTexts, text: EngineText, judged: Float[Tensor, "m 3"]) -> JudgedTexts:
    """Add one text's tokens. InputError if they are not the target's."""
    gap, excess, variance = judged.T
    mismatches, off, count = int((gap > 0).sum()), float(excess.sum()), len(gap)
    most = MOST_MISMATCHES if done.nats is None else MOST_NATS
    if off > most * count + DEVIATIONS * float(variance.sum()) ** 0.5:
        what = f"{mismatches} of {count} tokens are not its choices"
        if done.nats is not None:
            what = f"its {count} tokens are {off / count:.2f} nats less probable than the target's own on average"
        raise InputError(
            f"{text.source}: the target would not have generated it: {what}; give texts of this target, with its chat "
            "template and this --temperature"
        )
    return done._replace(
        tokens=done.tokens + count,
        mismatches=done.mismatches + mismatches,
        near=done.near + int(((gap > 0) & (gap < NEAR)).sum()),
        nats=None if done.nats is None else done.nats + off,
    )
