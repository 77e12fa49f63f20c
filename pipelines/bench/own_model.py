"""Tokens per second of a model of one's own: plain, with drafts that need no training, and with heads trained for it.

    python -m pipelines.bench disturb work/smollm2-8          # a fine-tune's stand-in
    c2t draft train --model work/smollm2-8 --minutes 30 --out work/head-30-minutes
    python -m pipelines.bench own-model --target work/smollm2-8 --head work/head-30-minutes/draft --data FILE

All ways decode the same prompts one at a time, in a new random order for every prompt. Each has several settings, of
which the fastest on other prompts competes.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.loading.load import Pair, load_pair, with_ngrams
from c2t.output.progress import progress_bar
from c2t.policies.spec import parse
from c2t.protocols import Policy
from c2t.replay.prompts import read_prompts, spread
from c2t.sampling import Sampling
from c2t.storage.paths import DEFAULT_PAIR, replacing
from c2t.verification.compatibility import check_compatible
from pipelines import terminal
from pipelines.bench.contenders import Ours, Task
from pipelines.bench.decoding import Result, batches, equal, fastest, how, ratios, short, speed
from pipelines.bench.lines import Json, append, computed
from pipelines.options import Dtype

CHOSEN_ON = 4  # prompts of each set that settings are chosen on
PLAIN, COPIES, SELF = "plain decoding", "copies of the text", "4-bit self-speculation"
TREES = (
    *("chain:length=2", "threshold:threshold=0.2,K=4,W=4,levels=3", "threshold:threshold=0.1,K=6,W=6,levels=3"),
    *("threshold:threshold=0.05,K=6,W=6,levels=5", "eagle2:K=4,levels=3,N=8", "eagle2:K=6,levels=4,N=14"),
)
ROUNDS = tuple(f"hierarchical:rounds={rounds},of=threshold:threshold=0.2,K=6,W=6,levels=4" for rounds in (2, 3, 4))


def disturb(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    share: Annotated[float, typer.Option(help="Noise over the deviation of each matrix.")] = 0.08,
) -> None:
    """Write smollm2's target with Gaussian noise on its matrices: a fine-tune's stand-in."""
    pair, generator = load_pair(DEFAULT_PAIR, draft=LOOKUP, dtype=torch.float32), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in (weight for weight in pair.target.model.parameters() if weight.dim() > 1):
            weight.add_(share * weight.std() * torch.randn(weight.shape, generator=generator))
    with replacing(out) as folder:
        pair.target.model.bfloat16().save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)


def policy_named(spec: str) -> Policy:
    """Return a policy that reads no classifier."""
    return parse(spec, TreeClassifier.from_pretrained)


def ways(name: str, pair: Pair, specs: Sequence[str]) -> list[Ours]:
    """Return a way's settings: these policies, and for a draft with a model each with the text's n-grams, too."""
    drafts = [pair] if pair.draft.has_ngrams else [pair, with_ngrams(pair)]
    policies = [policy_named(spec) for spec in specs]
    return [Ours(name, how(drawn, policy), drawn, policy) for drawn in drafts for policy in policies]


def field_of(target: str, heads: Sequence[str], dtype: torch.dtype | None) -> list[list[Ours]]:
    """Return the settings of every way, plain decoding first. Self-speculation is left out, with a line, where the
    target has no 4-bit form."""
    lookup = load_pair(target=target, draft=LOOKUP, dtype=dtype)
    field = [[Ours(PLAIN, "", lookup, policy_named("plain"))], ways(COPIES, lookup, TREES)]
    try:
        check_compatible(policy_named(ROUNDS[0]), lookup.target)
        field.append(ways(SELF, lookup, ROUNDS))
    except InputError as error:
        terminal.say(f"{SELF} is left out: {error}", error=True)
    pairs = {Path(head).parent.name: load_pair(target=target, draft=head, dtype=dtype) for head in heads}
    return field + [ways(name, pair, TREES) for name, pair in pairs.items()]


def figures(results: dict[str, Result]) -> Iterator[dict[str, Any]]:
    """Yield each way's figures; see `pipelines.bench.decoding.figures`."""
    plain = results[PLAIN]
    for name, result in results.items():
        yield {
            "contender": name,
            "setting": ", ".join(filter(None, result.settings)),
            "tokens_per_second": speed(result.written),
            **ratios(result, plain, "plain"),
            "equal_to_plain": equal(result, plain),
            "new_tokens": sum(text.new for text in result.written),
        }


def main(
    target: Annotated[str, typer.Option(help="Folder of the model, or a .gguf file.")],
    data: Annotated[list[Path], typer.Option(help="Prompt file (JSONL); repeat the option for several sets.")],
    head: Annotated[list[str] | None, typer.Option(help="Folder of a head; repeat for several.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each set to judge on.", min=1)] = 7,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a text at most.", min=2)] = 128,
    dtype: Dtype = None,
    json: Json = None,
) -> None:
    """Compare what makes a model of one's own faster."""
    sets = [spread(read_prompts(path), prompts + CHOSEN_ON) for path in data]
    field = field_of(target, head or (), getattr(torch, dtype) if dtype else None)
    pair = field[0][0].pair
    task = Task(new_tokens, Sampling(0.0), pair.target.eos)
    judged = [batch for taken in sets for batch in batches(pair, taken[:prompts], 1, task)]
    others = [batch for taken in sets for batch in batches(pair, taken[prompts:], 1, task)]
    sets_named = [path.parent.name for path in data]
    configuration = {"target": Path(target).name, "sets": sets_named, "prompts": prompts, "chosen_on": CHOSEN_ON}
    configuration |= {"max_new_tokens": new_tokens, **computed(pair)}
    with progress_bar("own model", "texts") as report:
        done, of = count(1), sum(len(way) for way in field) + len(judged) * len(field)
        best = [fastest(way, others, task, lambda: report(next(done), of, "chooses settings")) for way in field]
        results = {way.name: Result([way.setting], []) for way in best}
        for number, batch in enumerate(judged):
            for way in random.Random(number).sample(best, len(best)):
                results[way.name].written.append(way.write(*batch, task))
                report(next(done), of, "judges")
    rows = list(figures(results))
    table = []
    for row in rows:
        texts = f"{row['tokens_per_second']:.1f}", short(row["against_plain"]), f"{row['equal_to_plain']:.0%}"
        table.append([row["contender"], row["setting"], *texts])
    terminal.table(f"{pair.name}: {len(judged)} texts", ["way", "setting", "tokens/s", "x plain", "same text"], table)
    append(json, "bench own-model", rows, configuration)
