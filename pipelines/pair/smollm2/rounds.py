"""Train a head of smollm2 on the target's own texts in rounds, each of which ends with a usable head; resumable at any
time."""

import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from c2t.errors import InputError
from c2t.kernels.decoder_layers import bf16_is_faster
from c2t.models.drafts.eagle import Head
from c2t.models.drafts.eagle3 import Eagle3Head
from c2t.storage.atomic import new_file
from pipelines.pair.smollm2.heads import FREQUENT, HeadRecipe
from pipelines.pair.smollm2.losses import index_in_text
from pipelines.pair.smollm2.shards import Rows, Text, epoch, read_texts, rows_of
from pipelines.pair.train_lm import Progress, optimisers_of

ROWS = 12
# Sampled tokens that a step compares besides the frequent ones and those of its texts. A head for which only frequent
# ones were compared agreed at 0.27 where MT-bench's answers have a rare token, at 0.62 elsewhere, and guessed rare ones
# where the target says frequent ones. The number was not tuned: half of FREQUENT.
SAMPLED = 4096
LEARNING_RATE = 5e-4
WARMUP = 40  # steps
FALLING = 0.3  # share of a round in which the learning rate falls
LOG = 50  # steps
CHECKPOINT = 120  # seconds


def training_texts(source: Path) -> list[Text]:
    """Return the texts that heads may learn from."""
    return [text for text in read_texts(source) if not text.held]


def frequent(texts: list[Text], vocabulary: int) -> Int[Tensor, " v"]:
    """Return the FREQUENT tokens that the target wrote most often, in the order of their ids."""
    counts = torch.cat([text.ids[text.question :] for text in texts]).bincount(minlength=vocabulary)
    return counts.sort(descending=True, stable=True).indices[:FREQUENT].sort().values


def compared_tokens(frequent: Int[Tensor, " v"], batch: list[Text], vocabulary: int) -> Int[Tensor, " c"]:
    """Return the tokens whose logits a step compares: frequent ones, those of its texts, and SAMPLED others. Both sides
    are renormalised over them, so they are equal where the whole distributions are, whichever tokens are compared."""
    chosen = torch.zeros(vocabulary, dtype=torch.bool)
    for tokens in (frequent, *(text.ids.long() for text in batch), torch.randint(vocabulary, (SAMPLED,))):
        chosen[tokens] = True
    return chosen.nonzero()[:, 0]


def compute(device: torch.device) -> torch.autocast:
    """Return the context for the matrix products: bf16 on a GPU and on CPUs that are faster by it, else float32."""
    fast = device.type != "cpu" or bf16_is_faster()
    return torch.autocast(device.type, torch.bfloat16, enabled=fast)


@torch.no_grad()
def agreement(head: Head, recipe: HeadRecipe, lm_head: Float[Tensor, "V H"], held: list[Text]) -> dict[str, float]:
    """Return the share of the answers' positions with the same most probable token of all, `recipe.ahead` tokens after
    the next one, by source of the question."""
    by_source = defaultdict(list)
    for text in held:
        by_source[text.source].append(text)
    shares = {}
    for source, texts in sorted(by_source.items()):
        same, count = 0, 0
        for batch in epoch(texts, ROWS, 0):
            agreed = agreed_at(head, recipe, lm_head, rows_of(batch, recipe.inputs, questions=False).to(lm_head.device))
            same += int(agreed.sum())
            count += len(agreed)
        shares[source] = round(same / count, 4)
    return shares


@torch.no_grad()
def agreed_at(head: Head, recipe: HeadRecipe, lm_head: Float[Tensor, "V H"], rows: Rows) -> Bool[Tensor, " m"]:
    """Return at which of the judged positions head and target have the same most probable token of all, `recipe.ahead`
    tokens after the next one; a text's first positions, which have no such guess, are left out."""
    later = (index_in_text(rows) >= recipe.ahead).nonzero()[:, 0]
    with compute(lm_head.device):
        states = recipe.states(head, rows)[later - recipe.ahead]
        guess = head.logits(states[None], lambda hidden: hidden @ lm_head.T)[0].argmax(-1)
        true = (rows.features[:, 1:][rows.judged][later] @ lm_head.T).argmax(-1)
    return guess == true


def rate(step: int, positions: int, begin: int, end: int) -> float:
    """Return the learning rate of a round from `begin` to `end` positions: warmed up, constant, and falling to a
    hundredth over the last part, so that the round ends with a head to be used; the next one starts from it."""
    falling = min(1.0, (end - positions) / (end - begin) / FALLING)
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * max(falling, 0.01)


def trained_of(head: Head) -> dict[str, nn.Parameter]:
    """Return the parameters that a head learns."""
    named = head.named_parameters()
    return {name: p for name, p in named if p.requires_grad and not name.startswith("embed_tokens")}


def train_until(
    positions: int, head: Head, recipe: HeadRecipe, lm_head: Float[Tensor, "V H"], source: Path, folder: Path
) -> None:
    """Resume from the folder's checkpoint until the head has learned from so many positions of answers. Repeated ones
    count again; those of the questions, from which it learns as well, do not. Each epoch takes in new shards."""
    embedding = head.embed_tokens
    trained = list(trained_of(head).values())
    matrices, others = [p for p in trained if p.ndim == 2], [p for p in trained if p.ndim != 2]
    optimisers = optimisers_of(matrices, others, LEARNING_RATE)
    head.embed_tokens = None  # not part of the checkpoints
    # Not an EAGLE-3 head's LM head: its tokens stay those of the checkpoint, whatever is frequent in the texts by now.
    shared = [name for name, p in head.named_parameters() if not p.requires_grad and not name.startswith("lm_head")]
    given = {name: head.get_parameter(name).detach().clone() for name in shared}
    run = Progress(head, optimisers, folder, CHECKPOINT)
    if not all(head.get_parameter(name).equal(p) for name, p in given.items()):
        raise InputError(f"{folder}: the layer that it shares has been trained further; move it away to start again")
    begin = round_begin(folder)
    learned = max(begin, seen_before(folder, run.step))
    batches: list[list[Text]] = []
    recent: list[dict[str, float]] = []
    trains = learned < positions  # else the round was stopped after its last step, and the checkpoint may be its mean
    while learned < positions:
        if not batches:
            texts = training_texts(source)
            batches = epoch(texts, ROWS, run.step)
            most = frequent(texts, len(lm_head))
        run.set_rate(learning_rate := rate(run.step, learned, begin, positions))
        torch.manual_seed(run.step)
        batch = batches.pop()
        tokens = head.tokens if isinstance(head, Eagle3Head) else compared_tokens(most, batch, len(lm_head))
        # Questions teach as answers do: what is learned is the next state after a token that is given.
        rows = rows_of(batch, recipe.inputs, questions=True).to(lm_head.device)
        head.embed_tokens = embedding
        with compute(lm_head.device):
            losses = recipe.losses(head, lm_head[tokens.to(lm_head.device)], rows)
        head.embed_tokens = None
        losses.total.backward()
        nn.utils.clip_grad_norm_(trained, 0.5)
        run.advance()
        learned += sum(len(text.ids) - text.question for text in batch)
        recent.append({name: float(value) for name, value in losses.figures.items()})
        if run.step % LOG == 0 or learned >= positions:
            figures = {name: sum(losses[name] for losses in recent) / len(recent) for name in recent[0]}
            recent = []
            run.log(positions=learned, **figures, lr=learning_rate)
            print(
                f"{run.step}: {learned} positions, " + ", ".join(f"{n} {v:.3f}" for n, v in figures.items()), flush=True
            )
    ended = last_step(folder, positions)
    if trains or not ended.exists():
        save_file(weights_of(head), ended)
    run.save()
    head.embed_tokens = embedding


def take_mean(
    positions: int, head: Head, recipe: HeadRecipe, lm_head: Float[Tensor, "V H"], source: Path, folder: Path
) -> bool:
    """Give a head the mean of the weights that its round up to `positions` began with and of those of the round's last
    step, here and in the folder's checkpoint, if its `mean_agreement` is higher so; return True if it is. Medusa's
    blocks are judged by the first one. Both weights come from files, so that a round
    that was stopped here ends in the same way."""
    began, held = left_weights(folder, round_begin(folder)), [text for text in read_texts(source) if text.held]
    if not began.exists() or not held:
        return False
    first, last = load_file(began), load_file(last_step(folder, positions))
    give_weights(head, last)
    alone = mean_agreement(head, recipe, lm_head, held)
    give_weights(head, {name: (first[name] + last[name]) / 2 for name in last})
    better = mean_agreement(head, recipe, lm_head, held) > alone
    if not better:
        give_weights(head, last)
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    state["model"] |= weights_of(head)
    with new_file(folder / "state.pt") as path:
        torch.save(state, path)
    return better


def left_weights(folder: Path, positions: int) -> Path:
    """Return the file of the weights that the round up to so many positions has left, its mean or not."""
    return folder / f"left_{positions}.safetensors"


def last_step(folder: Path, positions: int) -> Path:
    """Return the file of the weights that the last step of the round up to so many positions has made."""
    return folder / f"last_step_{positions}.safetensors"


def weights_of(head: Head) -> dict[str, Tensor]:
    """Return the weights that a head learns, on the CPU."""
    return {name: parameter.detach().cpu() for name, parameter in trained_of(head).items()}


@torch.no_grad()
def give_weights(head: Head, weights: dict[str, Tensor]) -> None:
    """Set the weights that a head learns."""
    for name, parameter in trained_of(head).items():
        parameter.copy_(weights[name])


def mean_agreement(head: Head, recipe: HeadRecipe, lm_head: Float[Tensor, "V H"], held: list[Text]) -> float:
    """Return the `agreement` as a mean over the sources of questions."""
    return fmean(agreement(head, recipe, lm_head, held).values())


def seen_before(folder: Path, step: int) -> int:
    """Return how many positions the logged steps up to `step` have learned from."""
    if not (folder / "log.csv").exists():
        return 0
    with (folder / "log.csv").open() as file:
        lines = [(int(line["step"]), int(float(line["positions"]))) for line in csv.DictReader(file)]
    return max((positions for at, positions in lines if at <= step), default=0)


def rounds(folder: Path) -> list[dict]:
    """Return the records of the rounds that are finished."""
    path = folder / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_records(records: list[dict], folder: Path) -> None:
    """Write the records of rounds that were finished before this folder was made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def round_begin(folder: Path) -> int:
    """Return after how many positions the last finished round ended."""
    return max((record["positions"] for record in rounds(folder)), default=0)


def finish_round(
    head: Head,
    recipe: HeadRecipe,
    lm_head: Tensor,
    written: int,
    positions: int,
    source: Path,
    bench: Path,
    folder: Path,
    mean: bool,
) -> None:
    """Append the head's agreement to the folder's `rounds.jsonl`, and store its weights for the next round's mean.
    mean: see `take_mean`."""
    done = left_weights(folder, round_begin(folder)), last_step(folder, positions)
    save_file(weights_of(head), left_weights(folder, positions))
    held = [text for text in read_texts(source) if text.held]
    line = {
        "written": written,
        "positions": positions,
        "mean": mean,
        "heldout": agreement(head, recipe, lm_head, held),
        "bench": agreement(head, recipe, lm_head, list(read_texts(bench))),
    }
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    for path in done:
        path.unlink(missing_ok=True)
    print(line, flush=True)
