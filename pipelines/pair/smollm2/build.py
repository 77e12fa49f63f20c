"""Build the pair smollm2 around a target that exists: its own texts, and an EAGLE-1 head that learns from them.

    nohup nice -n 19 python -m pipelines.pair.smollm2.build --work FOLDER > LOG 2>&1 &

In rounds of more text and more training; each ends with a head that can be used and a line of the card. Stopped at any
time, it goes on where it was: texts shard by shard, training from a checkpoint of the last two minutes.
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import AutoModelForCausalLM

from c2t.models.gguf_target import install
from c2t.storage import paths
from pipelines.pair.smollm2 import heads
from pipelines.pair.smollm2.card import write_card
from pipelines.pair.smollm2.texts import write_bench, write_until

# Tokens that the target has written, and positions that the head has learned from, both counted from the beginning.
ROUNDS = (
    (100_000, 1_000_000),
    (250_000, 3_000_000),
    (500_000, 6_000_000),
    (1_000_000, 12_000_000),
    (2_000_000, 24_000_000),
)


def round_of(written: int, positions: int, data: Path, work: Path, out: Path) -> None:
    total = write_until(written, data, work / "texts")
    place = install(paths.root() / "checkpoints" / "local" / "smollm2" / "target")
    target = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).requires_grad_(False)
    head, lm_head = heads.new_head(target), target.lm_head.weight
    heads.train_until(positions, head, lm_head, work / "texts", work / "draft")
    heads.finish_round(head, lm_head, total, positions, work / "texts", work / "bench", work / "draft")
    heads.save_draft(head, out / "draft")
    write_card(out, work)


def main(
    work: Annotated[Path, typer.Option(help="Folder of texts, checkpoints and logs (5 GB a million tokens).")],
    data: Annotated[Path, typer.Option(help="Folder of train/ and of the bench prompts.")],
    out: Annotated[Path, typer.Option(help="Folder of the pair.")] = paths.root() / "checkpoints" / "smollm2",
    threads: Annotated[int, typer.Option(help="CPU threads; more than one pays only where the cores are free.")] = 1,
) -> None:
    torch.set_num_threads(threads)
    write_bench(data, work / "bench")
    for written, positions in ROUNDS:
        if positions > heads.round_begin(work / "draft"):
            round_of(written, positions, data, work, out)


if __name__ == "__main__":
    typer.run(main)
