"""Build the embedded pair from Python sources, stage by stage; a finished stage is skipped, a stopped one resumes.

python -m pipelines.build_tiny_pair [--stage NAME]
"""

import dataclasses
import functools
import hashlib
import json
import platform
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from torch import nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from c2t.models.eagle import EagleHead
from c2t.models.eagle_checkpoint import save_head
from pipelines import corpus
from pipelines.prompts import write_prompts
from pipelines.target_texts import write_texts
from pipelines.tiny_card import write_card
from pipelines.tiny_report import report, table
from pipelines.tokenizer import VOCAB, save_tokenizer
from pipelines.train_head import (
    FeatureRows,
    HeadSettings,
    agreement,
    distillation_loss,
    target_features,
    train_head,
    upstream_loss,
)
from pipelines.train_lm import LMSettings, Packing, Progress, train_lm

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "data" / "corpus" / "tiny.jsonl.xz"
PROMPTS = ROOT / "data" / "prompts"
OUT = ROOT / "checkpoints" / "tiny"
BUILD = ROOT / "build" / "tiny"
SEED = 0
SEPARATOR = 0
TEXT_ROWS = 2304
TEXT_LENGTH = 256
HELD_BACK = 64
REPORT_PROMPTS = 20  # of each domain and category

LLAMA: dict[str, Any] = {
    "vocab_size": VOCAB, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "head_dim": 64,
    "bos_token_id": SEPARATOR, "eos_token_id": SEPARATOR, "pad_token_id": SEPARATOR,
}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 576, "num_attention_heads": 4, "num_key_value_heads": 2}
TARGET = LlamaConfig(**LLAMA, **WIDE, num_hidden_layers=8, tie_word_embeddings=False)
HEAD = LlamaConfig(**LLAMA, **WIDE, num_hidden_layers=1, tie_word_embeddings=False)
DRAFT_LM = LlamaConfig(
    **LLAMA, hidden_size=128, intermediate_size=288, num_attention_heads=2, num_key_value_heads=2,
    num_hidden_layers=2, tie_word_embeddings=True,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HeadRecipe:
    loss: Callable[..., torch.Tensor]
    learning_rate: float
    steps: int
    start: str | None = None  # the head whose trained weights it goes on from


HEADS = {
    "draft": HeadRecipe(upstream_loss, 5e-3, 9000),
    "draft_distilled": HeadRecipe(distillation_loss, 2e-3, 2400, start="draft"),
}


def stored_target() -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """As the runtime loads it: the stored bf16 weights, computing in float32."""
    target = LlamaForCausalLM.from_pretrained(OUT / "target", dtype=torch.float32).eval().requires_grad_(False)
    return target, AutoTokenizer.from_pretrained(OUT / "target")


def encoded(tokenizer: PreTrainedTokenizerBase, keep: Callable[[corpus.Document], bool]) -> list[list[int]]:
    return [tokenizer(d.text, verbose=False).input_ids for d in corpus.load(CORPUS) if keep(d)]


def save_lm(model: LlamaForCausalLM, folder: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="12MB")


def save_draft(head: EagleHead, folder: Path) -> None:
    """In bf16 and without the embedding, which is the target's."""
    stored = EagleHead(head.config, bias=head.bias)
    stored.load_state_dict({name: w for name, w in head.state_dict().items() if name != "embed_tokens.weight"})
    save_head(stored.to(torch.bfloat16), folder)


def new_head(target: LlamaForCausalLM) -> EagleHead:
    torch.manual_seed(SEED)
    head = EagleHead(HEAD, bias=True)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    head.embed_tokens = target.model.embed_tokens
    return head


def summary(run: Progress, settings: Any) -> dict:
    parameters = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    return dataclasses.asdict(settings) | {"steps": run.step, "seconds": round(run.seconds), "parameters": parameters}


def corpus_stage(minutes: float | None) -> dict:
    if not CORPUS.exists():
        corpus.freeze(CORPUS)
    return {"sha256": hashlib.sha256(CORPUS.read_bytes()).hexdigest(), "documents": len(corpus.load(CORPUS))}


def tokenizer_stage(minutes: float | None) -> dict:
    documents = corpus.load(CORPUS)
    save_tokenizer((d.text for d in documents if d.trained), OUT / "target")
    tokenizer = AutoTokenizer.from_pretrained(OUT / "target")
    count = {"trained": 0, "heldout": 0}
    for document in documents:
        count["trained" if document.trained else "heldout"] += len(tokenizer(document.text, verbose=False).input_ids)
    return {"tokens": count, "prompts": write_prompts(documents, tokenizer, PROMPTS)}


def target_stage(minutes: float | None) -> dict:
    torch.manual_seed(SEED)
    settings = LMSettings(minutes=minutes, seed=SEED)
    tokenizer = AutoTokenizer.from_pretrained(OUT / "target")
    train = Packing(encoded(tokenizer, lambda d: d.trained), settings)
    held = Packing(encoded(tokenizer, lambda d: not d.trained), settings)
    run = train_lm(LlamaForCausalLM(TARGET), train, held, BUILD / "target")
    save_lm(run.model, OUT / "target")
    return summary(run, settings) | {"tokens_per_epoch": train.tokens}


def texts_stage(minutes: float | None) -> dict:
    """Not from the files of the prompts: these stay unseen by the heads as beginnings of the target's own text."""
    target, tokenizer = stored_target()
    documents = encoded(tokenizer, lambda d: d.split == "train")
    texts, written = write_texts(target, documents, SEPARATOR, TEXT_ROWS, TEXT_LENGTH, seed=SEED)
    torch.save(texts, BUILD / "texts.pt")
    settings = LMSettings(rows=1, length=TEXT_LENGTH, seed=SEED)
    packed = Packing(encoded(tokenizer, lambda d: d.trained), settings)
    rows = torch.cat([packed.batch(step) for step in range(packed.steps_per_epoch)])
    features = torch.cat([target_features(target, rows), written])
    torch.save({"ids": torch.cat([rows, texts]), "features": features}, BUILD / "features.pt")
    return {"written_tokens": texts.numel(), "tokens": rows.numel() + texts.numel()}


def head_stage(name: str, minutes: float | None) -> dict:
    target, _ = stored_target()
    saved = torch.load(BUILD / "features.pt", mmap=True, weights_only=True)
    data = FeatureRows(saved["ids"], saved["features"], HELD_BACK)
    recipe = HEADS[name]
    settings = HeadSettings(recipe.steps, learning_rate=recipe.learning_rate, seed=SEED, minutes=minutes)
    head = new_head(target)
    if recipe.start:
        head.load_state_dict(torch.load(BUILD / recipe.start / "state.pt", weights_only=True)["model"])
    run = train_head(head, target.lm_head, recipe.loss, data, settings, BUILD / name)
    save_draft(run.model, OUT / name)
    same = agreement(run.model, target.lm_head, data.ids[data.held], data.features[data.held])
    return summary(run, settings) | {"agreement": same}


def draft_lm_stage(minutes: float | None) -> dict:
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(OUT / "target")
    settings = LMSettings(minutes=minutes, seed=SEED, epochs=2, learning_rate=4e-3)
    texts = torch.load(BUILD / "texts.pt", weights_only=True)
    train = Packing(encoded(tokenizer, lambda d: d.trained) + texts[:-HELD_BACK].tolist(), settings)
    held = Packing(texts[-HELD_BACK:].tolist(), settings)
    run = train_lm(LlamaForCausalLM(DRAFT_LM), train, held, BUILD / "draft_lm")
    save_lm(run.model, OUT / "draft_lm")
    tokenizer.save_pretrained(str(OUT / "draft_lm"))
    return summary(run, settings) | {"tokens_per_epoch": train.tokens}


def report_stage(minutes: float | None) -> dict:
    lines = report(OUT / "target", PROMPTS, REPORT_PROMPTS)
    typer.echo(table(lines))
    return {"lines": lines}


def card_stage(minutes: float | None) -> dict:
    return write_card(OUT, BUILD, CORPUS)


STAGES: dict[str, Callable[[float | None], dict]] = {
    "corpus": corpus_stage,
    "tokenizer": tokenizer_stage,
    "target": target_stage,
    "texts": texts_stage,
    **{name: functools.partial(head_stage, name) for name in HEADS},
    "draft_lm": draft_lm_stage,
    "report": report_stage,
    "card": card_stage,
}
Stage = StrEnum("Stage", {name: name for name in (*STAGES, "all")})


def main(
    stage: Annotated[Stage, typer.Option(help="One stage, or all that are not finished.")] = Stage["all"],
    minutes: Annotated[float | None, typer.Option(help="Time limit of each training; schedules fit into it.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
) -> None:
    """Intermediate state is in build/tiny; delete a stage's file there to make the stage again."""
    if threads:
        torch.set_num_threads(threads)
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in STAGES if stage == "all" else [stage.value]:
        record = BUILD / f"{name}.json"
        if record.exists() and stage == "all":
            typer.echo(f"{name}: finished before")
            continue
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        versions["transformers"] = transformers.__version__
        result = STAGES[name](minutes) | {"versions": versions, "seed": SEED}
        record.write_text(json.dumps(result, indent=1) + "\n")
        typer.echo(f"{name}: {json.dumps({k: v for k, v in result.items() if k != 'lines'})}")


if __name__ == "__main__":
    typer.run(main)
