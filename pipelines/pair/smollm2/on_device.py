"""Write texts of smollm2's target on one device and train heads on them, each for a number of seconds.

    python -m pipelines.pair.smollm2.on_device --data FOLDER --out FOLDER --write-seconds 100 --train eagle3:150

What `pipelines.pair smollm2` does over hours on a CPU, and resumably, a large GPU does in minutes and at one go. Files
in OUT: `texts/` and `bench/` (ids), the heads' folders, a log of each (`eagle3.jsonl`), and `report.json`.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from c2t.errors import InputError
from c2t.models.gguf_target import home
from c2t.storage import paths
from pipelines import terminal
from pipelines.pair.smollm2.device_llama import DeviceLlama
from pipelines.pair.smollm2.device_texts import counted, read_ids, write_bench, write_texts
from pipelines.pair.smollm2.device_training import RECIPES, Learning, train


def wanted(spec: str) -> tuple[str, float]:
    """Return head and seconds of `NAME:SECONDS`; InputError for what is not."""
    name, _, seconds = spec.partition(":")
    if name not in RECIPES or not seconds.replace(".", "", 1).isdigit() or not float(seconds):
        raise InputError(f"--train {spec}: must be NAME:SECONDS, with one of {', '.join(RECIPES)}")
    return name, float(seconds)


def prepare(device: torch.device) -> torch.dtype:
    """Set up the device; return the dtype of the target's products there."""
    if device.type == "cpu":
        return torch.float32
    torch.set_float32_matmul_precision("high")  # of float32, which only the LM head's products are in
    torch.backends.cuda.enable_cudnn_sdp(False)  # which plans anew for every length
    return torch.bfloat16


def main(
    data: Annotated[Path, typer.Option(help="Folder of train/, mt_bench/, humaneval/ and gsm8k/.")],
    out: Annotated[Path, typer.Option(help="Folder of all that is made.")],
    write_seconds: Annotated[float, typer.Option(help="How long texts are written; 0: those in TEXTS are enough.")],
    train_heads: Annotated[
        list[str] | None, typer.Option("--train", help="NAME:SECONDS, in this order; again for each head.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Folder of texts, more of which are written.", show_default="OUT/texts")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="The target.", show_default="where it is installed")] = None,
    pair: Annotated[Path | None, typer.Option(help="Heads to begin from.", show_default="checkpoints/smollm2")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where.")] = "cuda",
    seed: Annotated[int, typer.Option(help="Another one writes other texts.")] = 0,
) -> None:
    heads = [wanted(spec) for spec in train_heads or []]
    place, begin = torch.device(device), time.monotonic()
    dtype = prepare(place)
    model = AutoModelForCausalLM.from_pretrained(target or home(), dtype=torch.float32, trust_remote_code=False)
    model.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(target or home(), trust_remote_code=False)
    llama, texts = DeviceLlama(model, place, dtype), texts or out / "texts"
    report: dict = {}

    def tell(**more: dict | float) -> None:
        report.update(more, seconds=round(time.monotonic() - begin, 1))
        (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        print(f"{report['seconds']} s: {', '.join(more)}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    write_bench(llama, tokenizer, data, out / "bench")
    tell(bench=counted(bench := list(read_ids(out / "bench"))))
    if write_seconds:
        write_texts(write_seconds, llama, tokenizer, data, texts, seed)
    found = list(read_ids(texts))
    tell(texts=counted(found), heldout=counted(held := [text for text in found if text.held]))
    learned = [text for text in found if not text.held]
    if heads and not (learned and held):
        raise InputError(f"{texts}: there are too few texts to learn from and to be judged on; write for longer")
    learning = Learning(llama, model, learned, held, bench, pair or paths.root() / "checkpoints" / "smollm2", out)
    for name, seconds in heads:
        tell(**{name: train(name, seconds, learning)})


if __name__ == "__main__":
    with terminal.errors_in_one_line("pipelines.pair.smollm2.on_device"):
        typer.run(main)
