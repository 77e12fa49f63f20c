"""Build the embedded pairs from their corpus, stage by stage; a finished stage is skipped, a stopped one resumes."""

import dataclasses
import functools
import hashlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import typer
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from c2t.models.drafts.eagle import Head
from c2t.models.drafts.medusa import MedusaHead
from c2t.models.loading.eagle_checkpoint import load_head
from pipelines.pair import corpus
from pipelines.pair.card import log, write_card
from pipelines.pair.recipes import HEADS, ROOT, SEPARATOR, PairRecipe
from pipelines.pair.report import report, table
from pipelines.pair.target_texts import write_texts
from pipelines.pair.tokenizer import save_tokenizer
from pipelines.pair.train_head import (
    FeatureRows,
    HeadSettings,
    agreement,
    save_draft,
    target_features,
    train_head,
)
from pipelines.pair.train_lm import LMSettings, Packing, Progress, train_lm

CORPUS = ROOT / "data" / "corpus" / "tiny.jsonl.xz"
PROMPTS = ROOT / "data" / "prompts" / "tiny"
SEED = 0
TEXT_LENGTH = 256
HELD_BACK = 64
REPORT_PROMPTS = 20  # prompts of each domain and category
BLOCKS = "heads."  # a Medusa-style head's own weights, which begin as the identity


def stored_target(recipe: PairRecipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the target as the runtime does: the stored bf16 weights, computing in float32."""
    target = AutoModelForCausalLM.from_pretrained(recipe.out / "target", dtype=torch.float32, trust_remote_code=False)
    return target.eval().requires_grad_(False), tokenizer_of(recipe)


def tokenizer_of(recipe: PairRecipe) -> PreTrainedTokenizerBase:
    """Load the stored tokenizer."""
    return AutoTokenizer.from_pretrained(recipe.out / "target", trust_remote_code=False)


def documents_of(recipe: PairRecipe) -> list[corpus.Document]:
    """Return the documents of the recipe's domains."""
    return [document for document in corpus.load(CORPUS) if document.domain in recipe.domains]


def encoded(
    recipe: PairRecipe, tokenizer: PreTrainedTokenizerBase, keep: Callable[[corpus.Document], bool]
) -> list[list[int]]:
    """Return the token ids of the documents that `keep` accepts."""
    return [tokenizer(d.text, verbose=False).input_ids for d in documents_of(recipe) if keep(d)]


def save_lm(model: PreTrainedModel, folder: Path) -> None:
    """Write a language model in bf16."""
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="12MB")


def new_head(recipe: PairRecipe, kind: str, target: PreTrainedModel) -> Head:
    """Return an untrained head on the target's embedding."""
    torch.manual_seed(SEED)
    head = HEADS[kind].make(recipe.head)
    for name, module in head.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith(BLOCKS):
            nn.init.normal_(module.weight, std=0.02)
    head.embed_tokens = target.get_input_embeddings()
    return head


def summary(run: Progress, settings: Any) -> dict:
    """Return the record of a training: settings, steps, seconds, parameters and last losses."""
    parameters = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    done = {"steps": run.step, "seconds": round(run.seconds), "parameters": parameters}
    lines = log(run.folder)
    return dataclasses.asdict(settings) | done | {"last": lines[-1] if lines else {}}


def corpus_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Return the corpus's hash and size."""
    return {"sha256": hashlib.sha256(CORPUS.read_bytes()).hexdigest(), "documents": len(documents_of(recipe))}


def tokenizer_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Train the tokenizer."""
    documents = documents_of(recipe)
    save_tokenizer((d.text for d in documents if d.trained), recipe.out / "target", recipe.vocabulary)
    tokenizer = tokenizer_of(recipe)
    count = {"trained": 0, "heldout": 0}
    for document in documents:
        count["trained" if document.trained else "heldout"] += len(tokenizer(document.text, verbose=False).input_ids)
    return {"tokens": count}


def target_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Train the target."""
    torch.manual_seed(SEED)
    settings = LMSettings(minutes=minutes, seed=SEED)
    tokenizer = tokenizer_of(recipe)
    train = Packing(encoded(recipe, tokenizer, lambda d: d.trained), settings)
    held = Packing(encoded(recipe, tokenizer, lambda d: not d.trained), settings)
    run = train_lm(AutoModelForCausalLM.from_config(recipe.target), train, held, recipe.build / "target")
    save_lm(run.model, recipe.out / "target")
    return summary(run, settings) | {"tokens_per_epoch": train.tokens}


def texts_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Generate the target's own texts, and compute the features that heads learn from.

    The texts do not begin with files of the prompts: the heads never see these as beginnings of the target's own text.
    """
    target, tokenizer = stored_target(recipe)
    documents = encoded(recipe, tokenizer, lambda d: d.split == "train")
    texts = write_texts(target, documents, SEPARATOR, recipe.text_rows, TEXT_LENGTH, seed=SEED)
    torch.save(texts, recipe.build / "texts.pt")
    settings = LMSettings(rows=1, length=TEXT_LENGTH, seed=SEED)
    packed = Packing(encoded(recipe, tokenizer, lambda d: d.trained), settings)
    ids = torch.cat([*(packed.batch(step) for step in range(packed.steps_per_epoch)), texts])
    torch.save({"ids": ids, "features": target_features(target, ids)}, recipe.build / "features.pt")
    return {"written_tokens": texts.numel(), "tokens": ids.numel()}


def head_stage(name: str, recipe: PairRecipe, minutes: float | None) -> dict:
    """Train the draft head of this name."""
    target, _ = stored_target(recipe)
    saved = torch.load(recipe.build / "features.pt", mmap=True, weights_only=True)
    head, trained = new_head(recipe, name, target), HEADS[name]
    data = FeatureRows(saved["ids"], saved["features"], HELD_BACK)
    settings = HeadSettings(trained.steps, learning_rate=trained.learning_rate, seed=SEED, minutes=minutes)
    if trained.start:
        begin_from(trained.start, head, recipe, target)
    run = train_head(head, target.lm_head, trained.loss, data, settings, recipe.build / name)
    save_draft(run.model, recipe.out / name)
    return summary(run, settings) | {"agreement": agreement(run.model, target.lm_head, data, data.held)}


def begin_from(name: str, head: Head, recipe: PairRecipe, target: PreTrainedModel) -> None:
    """Give a head the weights of the pair's one of this name. A Medusa-style head keeps its blocks, which
    alone learn."""
    weights = load_head(recipe.out / name, target.get_input_embeddings(), target.lm_head).state_dict()
    blocks = {key: weight for key, weight in head.state_dict().items() if key.startswith(BLOCKS)}
    head.load_state_dict(weights | blocks)
    if isinstance(head, MedusaHead):
        head.requires_grad_(False).heads.requires_grad_(True)


def draft_lm_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Train the draft that is a language model of its own."""
    torch.manual_seed(SEED)
    tokenizer = tokenizer_of(recipe)
    settings = LMSettings(minutes=minutes, seed=SEED, epochs=2, learning_rate=4e-3)
    texts = torch.load(recipe.build / "texts.pt", weights_only=True)
    train = Packing(encoded(recipe, tokenizer, lambda d: d.trained) + texts[:-HELD_BACK].tolist(), settings)
    held = Packing(texts[-HELD_BACK:].tolist(), settings)
    run = train_lm(AutoModelForCausalLM.from_config(recipe.draft_lm), train, held, recipe.build / "draft_lm")
    save_lm(run.model, recipe.out / "draft_lm")
    tokenizer.save_pretrained(str(recipe.out / "draft_lm"))
    return summary(run, settings) | {"tokens_per_epoch": train.tokens}


def report_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Measure and print the pair's regime."""
    lines = report(recipe.out / "target", PROMPTS, REPORT_PROMPTS)
    typer.echo(table(lines))
    return {"lines": lines}


def card_stage(recipe: PairRecipe, minutes: float | None) -> dict:
    """Write the model card."""
    return write_card(recipe.out, recipe.build, CORPUS)


STAGES: dict[str, Callable[[PairRecipe, float | None], dict]] = {
    "corpus": corpus_stage,
    "tokenizer": tokenizer_stage,
    "target": target_stage,
    "texts": texts_stage,
    **{name: functools.partial(head_stage, name) for name in HEADS},
    "draft_lm": draft_lm_stage,
    "report": report_stage,
    "card": card_stage,
}


def stages_of(recipe: PairRecipe) -> list[str]:
    """Return the stages that make this pair, in order; report and card exist for the embedded pair only."""
    unused = {name for name in HEADS if name not in recipe.heads} | (set() if recipe.draft_lm else {"draft_lm"})
    return [name for name in STAGES if name not in unused | (set() if recipe.embedded else {"report", "card"})]


def build(recipe: PairRecipe, stages: list[str], minutes: float | None = None) -> None:
    """Run these stages; of several, skip those that are finished."""
    recipe.build.mkdir(parents=True, exist_ok=True)
    for name in stages:
        record = recipe.build / f"{name}.json"
        if record.exists() and len(stages) > 1:
            typer.echo(f"{name}: finished before")
            continue
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        versions["transformers"] = transformers.__version__
        result = STAGES[name](recipe, minutes or recipe.minutes.get(name)) | {"versions": versions, "seed": SEED}
        record.write_text(json.dumps(result, indent=1) + "\n")
        typer.echo(f"{name}: {json.dumps({k: v for k, v in result.items() if k != 'lines'})}")
