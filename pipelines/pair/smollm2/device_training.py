"""Training of smollm2's heads on a device for a number of seconds, from ids: the target's states are computed on the
way, which takes about as long as what a head learns from them, and no room."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from c2t.models.eagle import Head
from c2t.models.eagle3 import Eagle3Head, default_taps
from c2t.models.eagle_checkpoint import TOKENS, load_head
from c2t.models.pairs import DRAFTS
from pipelines.pair.smollm2.block import block_losses, block_states, new_block
from pipelines.pair.smollm2.build import take_weights
from pipelines.pair.smollm2.device_llama import DeviceLlama
from pipelines.pair.smollm2.heads import HEADS, Given, HeadRecipe, save_draft
from pipelines.pair.smollm2.losses import Losses
from pipelines.pair.smollm2.rounds import (
    FALLING,
    LOG,
    WARMUP,
    agreed_at,
    compared_tokens,
    compute,
    frequent,
    optimisers_of,
    trained_of,
)
from pipelines.pair.smollm2.shards import Rows, Text, judged_ids

# Positions of a batch, padding included: some 130 texts. Their logits over 8,192 tokens take 1 GB, of which a step
# holds up to twenty.
POSITIONS = 32_768
LEARNING_RATE = 1e-3  # twice that of batches of 12 texts; not tuned
JUDGED_SHARE = 4  # of a batch that is judged: logits are of all tokens then, six times as many
ROOTS = 32  # blocks of a text that are judged at once


def all_block_losses(head: Head, lm_head: Float[Tensor, "v H"], rows: Rows) -> Losses:
    """Return `block_losses` as other heads' losses are."""
    found = block_losses(head, lm_head, rows)
    return Losses(found["cross_entropy"], {name: value.detach() for name, value in found.items()})


def block_first_states(head: Head, rows: Rows) -> Float[Tensor, "m H"]:
    """Return the states of the first masks behind the roots of all judged slots."""
    roots = torch.arange(1, rows.judged.shape[1] + 1, device=rows.ids.device).expand(len(rows.ids), -1)
    first = [block_states(head, rows, some)[:, :, 1] for some in roots.split(ROOTS, 1)]
    return torch.cat(first, 1)[rows.judged]


RECIPES = HEADS | {
    "block": HeadRecipe(
        DRAFTS["block"][0],
        "block drafter: all depths from one forward",
        "taps",
        lambda given: new_block(given.target),
        all_block_losses,
        block_first_states,
    )
}


class Learning(NamedTuple):
    """Texts that heads learn from and are judged on. target: in float32 on the CPU, what they are made of. pair: folder
    of the heads that they begin from. out: folder of those that they become."""

    llama: DeviceLlama
    target: LlamaForCausalLM
    learned: list[Text]
    held: list[Text]
    bench: list[Text]
    pair: Path
    out: Path


def begun(name: str, learning: Learning) -> tuple[Head, Int[Tensor, " v"]]:
    """Return a head as it is stored in the pair, new if it is not there, and the tokens that it drafts from. A
    Medusa-style one has the layer of the EAGLE-1 head that was trained here, or else of the pair's."""
    target, recipe = learning.target, RECIPES[name]
    stored = learning.pair / recipe.part
    tokens = frequent(learning.learned, target.config.vocab_size)
    if (stored / TOKENS).exists():
        tokens = load_file(stored / TOKENS)["tokens"].long()
    given = Given(target, tokens, learning.learned, None)
    if name == "medusa":
        layers = [folder / HEADS["eagle"].part for folder in (learning.out, learning.pair)]
        place = next((layer for layer in layers if layer.exists()), layers[-1])
        given = given._replace(eagle=load_head(place, target.get_input_embeddings()))
    head = recipe.make(given)
    if (stored / "config.json").exists():
        take_weights(head, stored, target)
    head.embed_tokens = learning.llama.embed()
    return head.to(learning.llama.device), tokens


def batches_of(texts: list[Text], positions: int, seed: int) -> list[list[Text]]:
    """Return the texts in batches of similar length and at most so many positions, in an order of the seed's own."""
    rng = random.Random(seed)
    batches, longest = list[list[Text]](), 0
    for text in sorted(texts, key=lambda text: len(text.ids) + rng.random() * 30):
        longest = max(longest, len(text.ids))
        if not batches or (len(batches[-1]) + 1) * longest > positions:
            batches.append([])
            longest = len(text.ids)
        batches[-1].append(text)
    rng.shuffle(batches)
    return batches


def rows_on(llama: DeviceLlama, texts: list[Text], inputs: str, questions: bool) -> Rows:
    """Return what `shards.rows_of` does for texts with states, which are computed here."""
    ids, judged = (part.to(llama.device) for part in judged_ids(texts, questions))
    layers = default_taps(llama.config.num_hidden_layers) if inputs == "taps" else ()
    features, taps = (states[:, :-1] for states in llama.read(ids, layers))
    return Rows(ids, taps if inputs == "taps" else features, features, judged)


def agreement(head: Head, recipe: HeadRecipe, llama: DeviceLlama, texts: list[Text]) -> dict[str, float]:
    """Return what `rounds.agreement` does for texts with states."""
    same, count = Counter[str](), Counter[str]()
    for source in sorted({text.source for text in texts}):
        for batch in batches_of([text for text in texts if text.source == source], POSITIONS // JUDGED_SHARE, 0):
            agreed = agreed_at(head, recipe, llama.lm_head, rows_on(llama, batch, recipe.inputs, questions=False))
            same[source] += int(agreed.sum())
            count[source] += len(agreed)
    return {source: round(same[source] / count[source], 4) for source in count}


def rate(step: int, spent: float) -> float:
    """Return the learning rate when this share of the time is spent: warmed up, constant, and falling to a hundredth
    over the last part."""
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * max(min(1.0, (1 - spent) / FALLING), 0.01)


def train(name: str, seconds: float, learning: Learning) -> dict:
    """Train a head for so many seconds, save it, and return what it has reached."""
    recipe, llama = RECIPES[name], learning.llama
    torch.manual_seed(0)
    head, tokens = begun(name, learning)
    before = judged(head, recipe, learning)
    print(f"{name}: {before}", flush=True)
    *_, last = steps(head, recipe, seconds, learning, learning.out / f"{name}.jsonl")
    save_draft(head, learning.out / recipe.part, tokens.cpu())
    after = judged(head, recipe, learning)
    print(f"{name}: {after}", flush=True)
    return {"before": before, "after": after, **last, "device": device_name(llama.device)}


def judged(head: Head, recipe: HeadRecipe, learning: Learning) -> dict[str, dict[str, float]]:
    """Return the agreement on the held-out and on the bench's texts."""
    texts = {"heldout": learning.held, "bench": learning.bench}
    return {kind: agreement(head, recipe, learning.llama, some) for kind, some in texts.items()}


def steps(head: Head, recipe: HeadRecipe, seconds: float, learning: Learning, log: Path) -> Iterator[dict]:
    """Make steps until the time is over; yield what is logged, every LOG of them."""
    llama, trained = learning.llama, list(trained_of(head).values())
    optimisers = optimisers_of(trained)
    most = frequent(learning.learned, len(llama.lm_head))
    batches: list[list[Text]] = []
    recent: list[dict[str, Tensor]] = []
    step, positions, begin = 0, 0, time.monotonic()
    spent = 0.0
    while spent < seconds:
        batches = batches or batches_of(learning.learned, POSITIONS, step)
        batch = batches.pop()
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            group["lr"] = rate(step, spent / seconds)
        # Questions teach as answers do: what is learned is the next state after a token that is given.
        rows = rows_on(llama, batch, recipe.inputs, questions=True)
        tokens = head.tokens if isinstance(head, Eagle3Head) else compared_tokens(most, batch, len(llama.lm_head))
        with compute(llama.device):
            losses = recipe.losses(head, llama.lm_head[tokens.to(llama.device)], rows)
        losses.total.backward()
        nn.utils.clip_grad_norm_(trained, 0.5)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step, positions = step + 1, positions + sum(len(text.ids) - text.question for text in batch)
        recent.append(losses.shown)  # reading them here would make the device wait for the next step's launch
        spent = time.monotonic() - begin
        if step % LOG == 0 or spent >= seconds:
            line = {"step": step, "seconds": round(spent, 1), "positions": positions}
            line |= {name: round(float(torch.stack([one[name] for one in recent]).mean()), 5) for name in recent[0]}
            recent = []
            with log.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(", ".join(f"{name} {value}" for name, value in line.items()), flush=True)
            yield line


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
