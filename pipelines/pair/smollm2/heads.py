"""Train smollm2's EAGLE-1 head on the target's own texts, by upstream's loss; stops and goes on at any time."""

import copy
import csv
import json
import math
from collections import defaultdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.models.eagle import EagleHead
from c2t.models.eagle_checkpoint import save_head
from pipelines.pair.smollm2.shards import Rows, Text, epoch, read_texts, rows_of
from pipelines.pair.train_head import frequent_tokens, noisy
from pipelines.pair.train_lm import Progress

ROWS = 12
JUDGED = 0.3  # share of the answers' positions whose logits are compared
# Logits are compared over so many tokens, the most frequent ones of the texts: 0.99 and more of what the target writes,
# at a sixth of the cost, which would be most of a step's.
FREQUENT = 8192
# Faster on CPUs with tiles for it, at half of float32's speed on others.
BF16 = torch.cpu._is_amx_tile_supported()
LEARNING_RATE = 1e-3
WARMUP = 40  # steps
NOISE = 0.2  # upstream's
FALLING = 0.3  # share of a round in which the learning rate falls
LOG = 50  # steps
CHECKPOINT = 120  # seconds


def new_head(target: LlamaForCausalLM) -> EagleHead:
    """Return a head on the target's embedding that passes half of the feature on."""
    config = target.config.to_dict() | {"num_hidden_layers": 1}
    torch.manual_seed(0)
    head = EagleHead(LlamaConfig(**config))
    nn.init.zeros_(head.fc.bias)
    with torch.no_grad():
        head.fc.weight[:, target.config.hidden_size :] += 0.5 * torch.eye(target.config.hidden_size)
    head.embed_tokens = target.get_input_embeddings()
    return head


def predicted(head: EagleHead, rows: Rows, noise: float) -> Float[Tensor, "m H"]:
    """Return the head's predictions at the answers' positions; the others, questions and padding, are keys and values
    only, and do not go through the MLP, which is most of the head."""
    features = noisy(rows.states[:, :-1], noise)
    hidden = head.fc(torch.cat([head.embed_tokens(rows.ids[:, 1:-1]), features], -1))
    layer = head.layers[0]
    attended, _ = layer.self_attn(hidden, position_embeddings=head.rotation(hidden, None), attention_mask=None)
    hidden = (hidden + attended)[rows.answer]
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def losses(head: EagleHead, lm_head: Float[Tensor, "V H"], rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Return upstream's two losses on the answers, and the agreement: SmoothL1 on the features, soft cross-entropy of
    the logits, share of equal most probable tokens. The last two are of a random JUDGED share of the positions and
    over the tokens of `lm_head`."""
    with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
        guess = predicted(head, rows, NOISE).float()
        true = rows.states[:, 1:][rows.answer]
        chosen = torch.randperm(len(true))[: math.ceil(JUDGED * len(true))]
        logits = (guess[chosen] @ lm_head.T).float()
        with torch.no_grad():
            wanted = (true[chosen] @ lm_head.T).float().softmax(-1)
    same = (logits.argmax(-1) == wanted.argmax(-1)).float().mean()
    return F.smooth_l1_loss(guess, true), F.cross_entropy(logits, wanted), same


@torch.no_grad()
def agreement(head: EagleHead, lm_head: Float[Tensor, "V H"], held: list[Text]) -> dict[str, float]:
    """Return the share of the answers' positions with the same most probable token of all, by source of the
    question."""
    by_source = defaultdict(list)
    for text in held:
        by_source[text.source].append(text)
    found = {}
    for source, texts in sorted(by_source.items()):
        same, count = 0.0, 0
        for batch in epoch(texts, ROWS, 0):
            rows = rows_of(batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=BF16):
                guess, true = (
                    (states @ lm_head.T).argmax(-1)
                    for states in (predicted(head, rows, 0.0), rows.states[:, 1:][rows.answer])
                )
            same += float((guess == true).sum())
            count += len(true)
        found[source] = round(same / count, 4)
    return found


def rate(step: int, positions: int, begin: int, end: int) -> float:
    """Return the learning rate of a round from `begin` to `end` positions: warmed up, constant, and falling to a
    hundredth over the last part, so that the round ends with a head to be used; the next one starts from it."""
    falling = min(1.0, (end - positions) / (end - begin) / FALLING)
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * max(falling, 0.01)


def save_draft(head: EagleHead, folder: Path) -> None:
    """Save in bf16 and without the embedding, which is the target's."""
    stored = copy.deepcopy(head)
    stored.embed_tokens = None
    save_head(stored.to(torch.bfloat16), folder)


def train_until(positions: int, head: EagleHead, lm_head: Float[Tensor, "V H"], source: Path, folder: Path) -> None:
    """Go on from the folder's checkpoint until the head has learned from so many positions of answers, repeated ones
    counted again; the log has them. Each epoch takes in the shards that were written meanwhile."""
    embedding = head.embed_tokens
    trained = [p for name, p in head.named_parameters() if not name.startswith("embed_tokens")]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    head.embed_tokens = None  # no part of the checkpoints
    run = Progress(head, [optimiser], folder, CHECKPOINT)
    learned = seen_before(folder, run.step)
    begin = round_begin(folder)
    batches: list[list[Text]] = []
    recent = []
    while learned < positions:
        if not batches:
            texts = [text for text in read_texts(source, "features") if not text.held]
            batches = epoch(texts, ROWS, run.step)
            written = torch.cat([text.ids[text.question :] for text in texts])
            frequent = lm_head[frequent_tokens(written, FREQUENT, len(lm_head))]
        run.set_rate(learning_rate := rate(run.step, learned, begin, positions))
        torch.manual_seed(run.step)
        rows = rows_of(batches.pop())
        head.embed_tokens = embedding
        regression, entropy, same = losses(head, frequent, rows)
        head.embed_tokens = None
        (regression + 0.1 * entropy).backward()
        nn.utils.clip_grad_norm_(trained, 0.5)
        run.advance()
        learned += int(rows.answer.sum())
        recent.append((float(regression.detach()), float(entropy.detach()), float(same)))
        if run.step % LOG == 0 or learned >= positions:
            l1, ce, agreed = (sum(values) / len(recent) for values in zip(*recent, strict=True))
            recent = []
            run.log(positions=learned, smooth_l1=l1, cross_entropy=ce, agreement=agreed, lr=learning_rate)
            print(f"{run.step}: {learned} positions, l1 {l1:.4f}, ce {ce:.3f}, agreement {agreed:.3f}", flush=True)
    run.save()
    head.embed_tokens = embedding


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


def round_begin(folder: Path) -> int:
    """Return after how many positions the last finished round ended."""
    return max((record["positions"] for record in rounds(folder)), default=0)


def finish_round(
    head: EagleHead, lm_head: Tensor, written: int, positions: int, source: Path, bench: Path, folder: Path
):
    """Append what the head has reached to the folder's `rounds.jsonl`."""
    held = [text for text in read_texts(source, "features") if text.held]
    line = {
        "written": written,
        "positions": positions,
        "heldout": agreement(head, lm_head, held),
        "bench": agreement(head, lm_head, list(read_texts(bench, "features"))),
    }
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)
