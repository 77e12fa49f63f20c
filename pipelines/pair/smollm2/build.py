"""Train the heads of the pair smollm2 further, by c2t's own training of heads, and what conditions its parallel one."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from c2t.drafting.kinds import KINDS
from c2t.drafting.library import Library
from c2t.drafting.questions import Source, invented, pool
from c2t.drafting.train import TEXTS, DraftSettings, train
from c2t.errors import InputError
from c2t.models.drafts.uniform import LOOKUP
from c2t.models.loading.eagle_checkpoint import load_head
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.trained import update_provenance
from c2t.models.wrappers import pmi_bigrams
from c2t.models.wrappers.pmi_bigrams import PmiBigrams
from c2t.storage.paths import PROVENANCE
from pipelines.pair.smollm2.card import write_card
from pipelines.pair.smollm2.fit import train_fit
from pipelines.pair.smollm2.questions import questions


class Setup(NamedTuple):
    """data: `train/` and the bench prompts. out: the pair's folder. minutes: of a head's training."""

    data: Path | None
    out: Path
    device: torch.device
    minutes: float


def sources(pair: Pair, data: Path | None) -> dict[str, Source]:
    """Return the questions; invented turns, which are nearest to what people ask, come every other time."""
    if data is None:
        raise InputError("--data is missing: the folder of train/, mt_bench/, humaneval/ and gsm8k/")
    asked, allowed = questions(data)
    given, turns = {name: pool(texts) for name, texts in asked.items()}, invented(pair, allowed.__contains__)
    return {name: source for part in given for name, source in ((part, given[part]), (f"invented, {part}", turns))}


def head_stage(name: str, setup: Setup) -> None:
    """Train the head of this kind further, and add a line to the card."""
    pair, part = load_pair("smollm2", draft=LOOKUP, device=setup.device), KINDS[name].part
    begin = setup.out / part if (setup.out / part / "config.json").exists() else None
    done = train(pair, setup.out, sources(pair, setup.data), DraftSettings(kind=name, minutes=setup.minutes), begin)
    provenance = json.loads((setup.out / PROVENANCE).read_text())
    line = {"written": done.written, "positions": done.progress.positions, "bench": {}}
    line["heldout"] = {"all": done.progress.agreement}
    rounds, logged = provenance.get("rounds", {}), provenance.get("logged", {})
    rounds[part] = [*rounds.get(part, []), line]
    update_provenance(setup.out, {"rounds": rounds, "logged": {part: "not logged"} | logged})
    write_card(setup.out)


def fit_stage(setup: Setup) -> None:
    """Train what conditions the Medusa-style head on the path, and count the pairs that do so without training, from
    the texts that the heads have learned from."""
    out, texts = setup.out / KINDS["medusa"].part, Library(setup.out / TEXTS, taps=False).learned
    if not texts:
        raise InputError(f"{setup.out}: there are no texts to learn from: run --stage medusa")
    pair = load_pair("smollm2", draft=LOOKUP, device=setup.device)
    embedding, lm_head = pair.target.embed_tokens, pair.target.lm_head
    head = load_head(out, embedding, lm_head).float().requires_grad_(False)
    tokens = torch.arange(len(lm_head.weight)) if head.tokens is None else head.tokens
    fit = train_fit(head, embedding.float(), tokens.to(setup.device), lm_head.weight[tokens].float(), texts)
    fit.cpu().save(out)
    if not (out / pmi_bigrams.FILE).exists():
        PmiBigrams.counted((text.answer for text in texts), embedding.num_embeddings).save(out)


STAGES: dict[str, Callable[[Setup], None]] = {
    **{name: partial(head_stage, name) for name in KINDS},
    "fit": fit_stage,
    "card": lambda setup: write_card(setup.out),
}
