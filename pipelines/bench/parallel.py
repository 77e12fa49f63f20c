"""Tokens per second of parallel drafts and of autoregressive ones, each with the fastest of its trees, in one run.

    python -m pipelines.bench parallel --data FOLDER --prompts 20 --json data/results/parallel.jsonl

An autoregressive head runs once for every level of a tree, a parallel draft once for all of them, and what conditions
it on the path takes time, too: so fewer verified tokens are not yet more tokens per second. Every draft competes with
the tree that was the fastest with it on the harvest's prompts. All take turns of some rounds on the same prompts.
FOLDER holds gsm8k/, humaneval/ and mt_bench/ with question.jsonl, in EAGLE's format; without it the pair's own prompts
are used. A draft that is not on this machine is left out.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from c2t.errors import InputError
from c2t.models.pairs import BIGRAMS, FIT, HYDRA, NGRAMS, load_pair
from c2t.policies.plain import Plain
from c2t.policies.spec import parse
from c2t.progress import working
from c2t.prompts import default_prompts, read_prompts, spread
from c2t.storage.paths import DEFAULT_PAIR
from c2t.study.batches import BatchSettings, Entrant, figures, first_turns, grouped
from pipelines import terminal
from pipelines.bench.batches import Entrants, fastest, judged, show
from pipelines.bench.decoding import SETS, prompt_sets
from pipelines.bench.lines import Json, append, computed
from pipelines.gain.parallel import COUNTS
from pipelines.options import PairName

COMMAND, PLAIN = "bench parallel", "plain"
CHOICE_PROMPTS = 12
DRAFTS = (
    *("eagle", "eagle" + COUNTS, "eagle" + NGRAMS, "eagle3", "eagle3" + NGRAMS),
    *("medusa", "medusa" + COUNTS, "medusa" + NGRAMS, "medusa" + BIGRAMS, "medusa" + FIT),
    *("medusa" + FIT + NGRAMS, "medusa" + HYDRA, "block", "block" + NGRAMS, "block" + BIGRAMS),
)
# EAGLE-2's trees, the most probable nodes (DDTree's trees, with CaDDTree's stop behind them), and thresholds.
TREES = (
    *("eagle2:K=4,levels=1,N=4", "eagle2:K=4,levels=2,N=6", "eagle2:K=4,levels=3,N=8", "eagle2:K=6,levels=4,N=14"),
    *("opttree:N=6,delta=0,K=6,levels=3", "opttree:N=12,delta=0,K=8,levels=4", "caddtree:slope=0.05,K=6,levels=3"),
    *("threshold:threshold=0.2,K=6,W=6,levels=2", "threshold:threshold=0.1,K=6,W=6,levels=3"),
    *("threshold:threshold=0.05,K=6,W=6,levels=4", "threshold:threshold=0.03,K=8,W=8,levels=5"),
)


def entrants(name: str) -> Entrants:
    """Return every draft of a pair that is on this machine with each of the trees, and plain decoding, all on targets
    of the same type."""
    found: Entrants = {}
    dtype = load_pair(name, draft=DRAFTS[0]).target.embed_tokens.weight.dtype
    for draft in DRAFTS:
        try:
            pair = load_pair(name, draft=draft)  # as whoever names no dtype has it
            if pair.target.embed_tokens.weight.dtype != dtype:
                pair = load_pair(name, draft=draft, dtype=dtype)
        except InputError as error:
            terminal.say(f"{draft} is left out: {error}", error=True)
            continue
        found.setdefault(PLAIN, [Entrant(pair, Plain())])
        found[draft] = [Entrant(pair, parse(tree, lambda *_: None)) for tree in TREES]
    return found


def main(
    pair: PairName = DEFAULT_PAIR,
    prompts: Annotated[int, typer.Option(help="Prompts to judge on, of each set.", min=1)] = 8,
    data: Annotated[
        Path | None, typer.Option(help="Folder with SET/question.jsonl.", show_default="the pair's own prompts")
    ] = None,
    new_tokens: Annotated[int, typer.Option(help="New tokens of each text, whatever EOS says.", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    json: Json = None,
) -> None:
    """Compare the speeds of parallel drafts and autoregressive ones."""
    field = entrants(pair)
    loaded = field[PLAIN][0].pair
    settings = BatchSettings(max_new_tokens=new_tokens, temperature=temperature, batches=(1,))
    sets = prompt_sets(pair, data, SETS)
    harvest = [prompt for path in default_prompts(pair, "harvest") for prompt in read_prompts(path)]
    sources = {draft: some[0].pair.sources["draft"] for draft, some in field.items() if draft != PLAIN}
    configuration = {"pair": pair, "sources": sources, "sets": sorted(sets), "prompts": prompts, **computed(loaded)}
    run = asdict(settings)
    configuration |= {name: run[name] for name in ("max_new_tokens", "temperature", "seed")}
    with working("parallel", "parts") as tell:
        tell(0, 2, "choose trees")
        others = first_turns(loaded, harvest, CHOICE_PROMPTS, settings)
        chosen = fastest(field, grouped(others, 1, len(others)), settings)
        tell(1, 2, "play against each other")
        asked = [prompt for each in sets.values() for prompt in spread(each, prompts)]
        mine = first_turns(loaded, asked, len(asked), settings)
        found = judged(chosen, grouped(mine, 1, len(mine)), settings)
    rows = [{"contender": name, **figures(row)} for name, row in found.items()]
    show(f"{pair}, T = {temperature:g}", rows)
    append(json, COMMAND, rows, configuration)
