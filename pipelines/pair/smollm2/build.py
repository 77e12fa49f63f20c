"""Build the pair smollm2 around a target that exists: its own texts, and heads that learn from them.

Every stage can be stopped and resumed at any time: texts shard by shard, training from a checkpoint of the last two
minutes, in rounds each of which ends with a usable head and a line of the card.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from c2t.errors import InputError
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.models.loading.eagle_checkpoint import load_head
from c2t.models.target.gguf_target import install
from c2t.models.wrappers import pmi_bigrams
from c2t.storage import paths
from pipelines.pair.smollm2 import earlier, rounds
from pipelines.pair.smollm2.card import write_card
from pipelines.pair.smollm2.fit import count_pairs, train_fit
from pipelines.pair.smollm2.heads import HEADS, Given, new_eagle
from pipelines.pair.smollm2.shards import Text
from pipelines.pair.smollm2.texts import count_written, write_bench, write_until
from pipelines.pair.train_head import save_draft

WRITTEN = 2_500_000  # tokens
# Positions learned from at the end of each round.
ROUNDS = tuple(int(1e6 * millions) for millions in (1, 2, 3, 4.5, 6, 8, 10, 12, 16, 20, 24, 26, 29, 30))


class Setup(NamedTuple):
    """work: texts, checkpoints and logs (5 GB a million tokens). data: `train/` and the bench prompts. out: the pair.
    device: where heads are trained."""

    work: Path
    data: Path | None
    out: Path
    device: torch.device

    def prompts(self) -> Path:
        """Return `data`; InputError if it is not given."""
        if self.data is None:
            raise InputError("--data is missing: the folder of train/, mt_bench/, humaneval/ and gsm8k/")
        return self.data


def target_folder() -> Path:
    return install(paths.root() / "checkpoints" / "local" / "smollm2" / "target")


def texts_stage(setup: Setup) -> None:
    """Generate the target's own texts, other ones than the pair has learned from already."""
    before = earlier.begin(setup.work, setup.out)
    write_until(WRITTEN, setup.prompts(), setup.work / "texts", before.shards)


def bench_stage(setup: Setup) -> None:
    """Write the greedy answers to the bench prompts."""
    write_bench(setup.prompts(), setup.work / "bench")


def read_target(texts: list[Text]) -> tuple[LlamaForCausalLM, Int[Tensor, " v"]]:
    """Return the target, and its most frequent tokens; InputError if there are no texts."""
    if not texts:
        raise InputError("there are no texts to learn from; write some with --stage texts")
    target = AutoModelForCausalLM.from_pretrained(
        target_folder(), dtype=torch.float32, trust_remote_code=False
    ).requires_grad_(False)
    return target, rounds.frequent(texts, target.config.vocab_size)


def given_to_heads(setup: Setup) -> Given:
    """Return what heads may begin from; InputError if there are no texts. The EAGLE-1 head is that of this work folder,
    or else that of the pair."""
    texts = rounds.training_texts(setup.work / "texts")
    given = Given(*read_target(texts), texts, None)
    part = HEADS["eagle"].part
    state, stored, eagle = setup.work / part / "state.pt", setup.out / part, new_eagle(given)
    if state.exists():
        eagle.load_state_dict(torch.load(state, map_location="cpu", weights_only=True)["model"], strict=False)
    elif (stored / "config.json").exists():
        take_weights(eagle, stored, given.target)
    else:
        return given
    return given._replace(eagle=eagle)


def head_stage(name: str, setup: Setup) -> None:
    """Train the head of this name on the texts that are there; it resumes from its checkpoint, or from the pair's."""
    recipe, source, folder = HEADS[name], setup.work / "texts", setup.work / HEADS[name].part
    before, given = earlier.begin(setup.work, setup.out), given_to_heads(setup)
    target = given.target
    if not rounds.rounds(folder):
        rounds.write_records(before.rounds.get(recipe.part, []), folder)
    lm_head = target.lm_head.weight.to(setup.device)
    head = recipe.make(given)
    if recipe.part in before.rounds and not (folder / "state.pt").exists():
        take_weights(head, setup.out / recipe.part, target)
    head.to(setup.device)
    for positions in ROUNDS:
        if positions <= rounds.round_begin(folder):
            continue
        rounds.train_until(positions, head, recipe, lm_head, source, folder)
        mean = rounds.take_mean(positions, head, recipe, lm_head, source, folder)
        save_draft(head, setup.out / recipe.part, given.tokens)
        written = before.written + count_written(source)
        bench = setup.work / "bench"
        rounds.finish_round(head, recipe, lm_head, written, positions, source, bench, folder, mean)
        write_card(setup.out, setup.work)


def take_weights(head: Head, stored: Path, target: LlamaForCausalLM) -> None:
    """Give a head the weights that it learns, as they are stored in the pair; an EAGLE-3 head its tokens, too."""
    there = load_head(stored, target.get_input_embeddings(), target.lm_head)
    if isinstance(head, Eagle3Head):
        head.d2t.copy_(there.d2t)
        head.t2d.copy_(there.t2d)
        head.take_rows(target.lm_head)
    for name, weight in head.named_parameters():
        if weight.requires_grad and not name.startswith("embed_tokens"):
            weight.data.copy_(there.get_parameter(name))


def fit_stage(setup: Setup) -> None:
    """Train what conditions the Medusa-style head on the path, in a folder whose name says after how many positions the
    head stood: another head's is another one. Count the pairs that do so without training, unless they are there: a new
    folder may have fewer texts than they were counted in."""
    part = HEADS["medusa"].part
    source, out = setup.work / "texts", setup.out / part
    if not (out / "config.json").exists():
        raise InputError(f"{out} is missing: train the head that is to be conditioned, by --stage medusa")
    before = earlier.begin(setup.work, setup.out)
    target, _ = read_target(rounds.training_texts(source))
    head = load_head(out, target.get_input_embeddings(), target.lm_head).requires_grad_(False)
    tokens = torch.arange(len(target.lm_head.weight)) if head.tokens is None else head.tokens
    records = rounds.rounds(setup.work / part) or before.rounds.get(part, [])
    positions = max((record["positions"] for record in records), default=0)
    embedding = target.get_input_embeddings()
    fit = train_fit(
        head.to(setup.device),
        embedding.to(setup.device),
        tokens.to(setup.device),
        target.lm_head.weight[tokens].to(setup.device),
        source,
        setup.work / f"fit_{part}_{positions}",
    )
    fit.cpu().save(out)
    if not (out / pmi_bigrams.FILE).exists():
        count_pairs(source, embedding.num_embeddings).save(out)


def card_stage(setup: Setup) -> None:
    """Write the card of the heads that are there."""
    write_card(setup.out, setup.work)


STAGES: dict[str, Callable[[Setup], None]] = {
    "texts": texts_stage,
    "bench": bench_stage,
    **{name: partial(head_stage, name) for name in HEADS},
    "fit": fit_stage,
    "card": card_stage,
}
