"""Learn from texts that were served: counts of pairs and the fit of a parallel draft, before and after the target's
answers to other prompts of the same set, compared by the tokens verified at equal tau.

    python -m pipelines.gain served --data FOLDER [--prompts 40] [--temperature 0]

A server has such texts for nothing, and both conditions are small enough to learn between rounds. The set's other
prompts are served; how much their pairs count, and how long the fit learns, is chosen on every fourth of the answers.
The same counts also condition the autoregressive head, which has read the path already. FOLDER holds gsm8k/, humaneval/
and mt_bench/ with question.jsonl, in EAGLE's format; first turns are asked. Points are kept.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.models.bigrams import Bigrams
from c2t.models.conditioned import ConditionedDraft, Fit
from c2t.models.learned_fit import LearnedFit
from c2t.models.pairs import BIGRAMS, FIT, Pair, load_pair
from c2t.progress import working
from c2t.prompts import Prompt, read_prompts, spread
from c2t.storage import paths as checkpoints
from c2t.storage.results import append_line, result_line
from c2t.study.evaluate import encode
from c2t.study.pareto import compare
from c2t.study.points import Point
from c2t.study.sweep import SweepSettings, candidates, sweep
from pipelines.gain.parallel import AUTOREGRESSIVE, GRID, MARGINALS, POINTS, SETS, TAUS, as_rows, show
from pipelines.pair.smollm2.fit import Guess, cross_entropy, guesses
from pipelines.pair.smollm2.rounds import ROWS
from pipelines.pair.smollm2.shards import Text, epoch, rows_of
from pipelines.pair.smollm2.texts import write

RESULTS = checkpoints.root() / "data" / "results" / "gain-served.jsonl"
SERVED = ", served"
WEIGHTS = (0, 1, 4, 16, 64, 256)  # of a served pair, in pairs of the texts that were counted before
EPOCHS, LEARNING_RATE = 12, 5e-4  # of the fit; so many at most
CHOOSING = 4  # every so many answers choose
SUBJECTS = {  # each with what it is compared with
    MARGINALS + BIGRAMS + SERVED: (MARGINALS + BIGRAMS,),
    MARGINALS + FIT + SERVED: (MARGINALS + FIT, MARGINALS + BIGRAMS + SERVED),
    AUTOREGRESSIVE + BIGRAMS: (AUTOREGRESSIVE,),
    AUTOREGRESSIVE + BIGRAMS + SERVED: (AUTOREGRESSIVE,),
}


def main(
    data: Annotated[Path, typer.Option(help="Folder of gsm8k/, humaneval/ and mt_bench/.")],
    prompts: Annotated[int, typer.Option(help="Prompts of each set to judge on; the others are served.")] = 40,
    max_new_tokens: Annotated[int, typer.Option(help="New tokens of each text.")] = 64,
    temperature: Annotated[float, typer.Option(help="Temperature of the texts; 0 is greedy.")] = 0.0,
    points: Annotated[Path, typer.Option(help="File of the points that are known.")] = POINTS,
    out: Annotated[Path, typer.Option(help="File to append result lines to.")] = RESULTS,
) -> None:
    """Compare conditions before and after they learned from served texts."""
    settings = SweepSettings(limit=prompts, max_new_tokens=max_new_tokens, temperature=temperature)
    points.parent.mkdir(parents=True, exist_ok=True)
    names = (MARGINALS, MARGINALS + BIGRAMS, MARGINALS + FIT, AUTOREGRESSIVE)
    pairs = {name: load_pair(draft=name, dtype=torch.float32) for name in names}
    bigrams, fit = (pairs[MARGINALS + kind].draft.fit for kind in (BIGRAMS, FIT))
    for name in SETS:
        every = [prompt._replace(turns=prompt.turns[:1]) for prompt in read_prompts(data / name / "question.jsonl")]
        judged = spread(every, prompts)
        others = [prompt for prompt in every if prompt not in judged]
        if len(others) < CHOOSING:
            raise InputError(f"{len(every)} prompts of {name} leave {len(others)} to be served; judge on fewer")
        served = Served(pairs[MARGINALS], answers(pairs[MARGINALS], others, settings))
        weight, counts = served.counted(bigrams)
        epochs, learned = served.learned(fit)
        mark = f"{SERVED} {len(others)}x{max_new_tokens}"
        counted = f"{BIGRAMS} of {pairs[MARGINALS].marks['draft']}"  # the counts are that draft's
        conditioned = {
            MARGINALS + BIGRAMS + SERVED: with_fit(pairs[MARGINALS], counts, BIGRAMS + mark),
            MARGINALS + FIT + SERVED: with_fit(pairs[MARGINALS], learned, FIT + mark),
            AUTOREGRESSIVE + BIGRAMS: with_fit(pairs[AUTOREGRESSIVE], bigrams, counted),
            AUTOREGRESSIVE + BIGRAMS + SERVED: with_fit(pairs[AUTOREGRESSIVE], counts, counted + mark),
        }
        found: list[Point] = []
        with working(name, "drafts") as tell:
            for number, (family, pair) in enumerate((pairs | conditioned).items()):
                tell(number, len(pairs) + len(conditioned), family)
                swept = sweep(pair, candidates(GRID, TreeClassifier.from_pretrained), judged, settings, points)
                found += [point._replace(family=family) for point in swept.points]
        rows = ratios(found)
        show(f"{name}, T = {temperature:g}, a served pair counts {weight}, the fit learned {epochs} epochs", rows)
        sources = {draft: pair.marks for draft, pair in pairs.items()}
        run = {"set": name, "grid": GRID, "served": len(others), "sources": sources, **vars(settings)}
        figures = {"prompts": len(judged), "weight": weight, "epochs": epochs, "rows": rows}
        append_line(out, result_line("gain served", figures, run))


def answers(pair: Pair, prompts: Sequence[Prompt], settings: SweepSettings) -> list[Text]:
    """Return the target's texts to these prompts, with its states."""
    torch.manual_seed(settings.seed)
    asked, encoded = encode(pair, prompts, settings.max_new_tokens, settings.sampling)[:2]
    texts = write(pair.target, asked, settings.temperature, settings.max_new_tokens, few=0)
    lengths, questions = texts.lengths.tolist(), texts.questions.tolist()
    parts = zip(*(each.split(lengths) for each in (texts.ids.int(), texts.features, texts.taps)), strict=True)
    return [
        Text(ids, question, states[:-1], taps[:-1], prompt.file, settings.temperature)
        for (ids, states, taps), question, prompt in zip(parts, questions, encoded, strict=True)
    ]


class Served(NamedTuple):
    """Texts that were served, and the parallel draft whose conditions learn from them."""

    pair: Pair
    texts: list[Text]

    def counted(self, bigrams: Bigrams) -> tuple[int, Bigrams]:
        """Return the weight of WEIGHTS that explains the choosing texts best with the others' pairs, and the counts
        with all pairs at that weight."""
        learn, choose = self._halves()
        losses = {weight: self._loss(with_pairs(bigrams, learn, weight), choose) for weight in WEIGHTS}
        best = min(losses, key=lambda weight: losses[weight])
        return best, with_pairs(bigrams, self.texts, best)

    def learned(self, fit: LearnedFit) -> tuple[int, LearnedFit]:
        """Return the number of epochs after which the fit explains the choosing texts best, and the fit after so many
        of all texts."""
        learn, choose = self._halves()
        losses = [self._loss(fit, choose), *(self._loss(one, choose) for one in self._epochs(fit, learn))]
        best = min(range(len(losses)), key=lambda number: losses[number])
        return best, [fit, *self._epochs(fit, self.texts)][best]

    def _halves(self) -> tuple[list[Text], list[Text]]:
        learn = [text for number, text in enumerate(self.texts) if number % CHOOSING]
        return learn, self.texts[::CHOOSING]

    @torch.no_grad()
    def _loss(self, fit: Fit, texts: Sequence[Text]) -> float:
        found = [(float(cross_entropy(fit, guess)), len(guess.wanted)) for guess in self._guesses(texts, 0)]
        return sum(loss * count for loss, count in found) / sum(count for _, count in found)

    def _epochs(self, fit: LearnedFit, texts: Sequence[Text]) -> Iterator[LearnedFit]:
        """Yield the fit after each epoch of the texts."""
        shared = {id(fit.embed[0]): fit.embed[0]}  # the target's embedding
        learned = copy.deepcopy(fit, shared).requires_grad_(True)
        optimiser = torch.optim.AdamW(learned.parameters(), lr=LEARNING_RATE)
        for number in range(EPOCHS):
            for guess in self._guesses(texts, number):
                optimiser.zero_grad()
                cross_entropy(learned, guess).backward()
                optimiser.step()
            yield copy.deepcopy(learned, dict(shared)).requires_grad_(False)

    def _guesses(self, texts: Sequence[Text], seed: int) -> Iterator[Guess]:
        """Yield the draft's candidates behind the texts' paths, at positions drawn with this seed."""
        head, linear = self.pair.draft.head, self.pair.target.lm_head
        torch.manual_seed(seed)
        for batch in epoch(list(texts), ROWS, seed):
            rows = rows_of(batch, "features", questions=False)
            yield guesses(head, rows, linear.weight[head.tokens], head.tokens)


def with_pairs(bigrams: Bigrams, texts: Sequence[Text], weight: int) -> Bigrams:
    """Return counts to which the pairs of the texts' answers are added, each `weight` times."""
    if weight == 0:
        return bigrams
    vocabulary = len(bigrams.second)
    more = Bigrams.counted((text.ids[text.question :] for text in texts), vocabulary)
    pairs, place = torch.cat([bigrams.pairs, more.pairs]).unique(return_inverse=True)
    counts = torch.cat([bigrams.counts.long(), weight * more.counts.long()])
    return Bigrams.of(pairs, torch.zeros_like(pairs).index_add(0, place, counts), vocabulary)


def with_fit(pair: Pair, fit: Fit, mark: str) -> Pair:
    """Return the pair with its draft conditioned so; `mark` tells it from others."""
    sources = pair.sources | {"draft": tuple(source + mark for source in pair.sources["draft"])}
    return replace(pair, draft=ConditionedDraft(pair.draft, fit), sources=sources)


def ratios(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the tokens that SUBJECTS verify over those that their rivals do, at equal tau."""
    rows = []
    for subject, rivals in SUBJECTS.items():
        for rival in rivals:
            found = compare([point for point in points if point.family in (subject, rival)], subject, TAUS)
            rows += as_rows(subject, rival, found.ratios[rival])
    return rows
