"""The target's own texts, with the states that heads learn from: one shard of BATCH texts a file, resumable.

Shards are made in order; which questions, temperature and random numbers a shard has follows from its number alone.
"""

import json
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from c2t.models.drafts.eagle3 import default_taps
from c2t.models.target.default_dtype import default_dtype
from c2t.models.target.gguf_target import END, install
from c2t.models.target.target import Target
from c2t.storage import paths
from c2t.verification.target_verifier import pad
from pipelines.pair.smollm2.questions import BENCH, BenchFilter, first_turns, questions

BATCH = 64
# Invented turns are nearest to what people ask, and have no end.
SOURCES = ("gsm8k", "invented", "code", "instructions", "invented")
# From this shard on: each instruction had been answered several times, and the head knew sums better than talk. Code
# keeps its place among as many, so that no greedy task is asked twice.
LATER, LATER_SOURCES = 436, ("invented", "invented", "code", "invented", "invented")
TEMPERATURES = (0.0, 0.7, 1.0)
QUESTION_TOKENS = 256  # at most, template included
ANSWER_TOKENS = 200  # at most; longer answers are cut
FEW = 12  # unfinished answers when a shard is closed
INVENTED_TOKENS = 96
BENCH_TOKENS = 128


class Texts(NamedTuple):
    """Texts side by side: ids of all, each text's length and the length of its question; states of all positions.

    features: post-norm states. taps: the inputs of EAGLE-3's three layers.
    """

    ids: Int[Tensor, " n"]
    lengths: Int[Tensor, " B"]
    questions: Int[Tensor, " B"]
    features: Float[Tensor, "n H"]
    taps: Float[Tensor, "n D"]


def load_target() -> tuple[Target, PreTrainedTokenizerBase]:
    """Return the target with EAGLE-3's layers tapped, and its tokenizer."""
    folder = install(paths.root() / "checkpoints" / "local" / "smollm2" / "target")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=default_dtype(str(folder)), trust_remote_code=False)
    target = Target(model.requires_grad_(False))
    target.tap(default_taps(target.config.num_hidden_layers))
    return target, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def sample(logits: Float[Tensor, "B V"], temperature: float) -> Int[Tensor, " B"]:
    if temperature == 0:
        return logits.argmax(-1)
    # The inverse of the distribution function: `multinomial` takes a random number for each token of the vocabulary.
    below = (logits.float() / temperature).softmax(-1).cumsum(-1)
    token = torch.searchsorted(below, torch.rand(len(below), 1) * below[:, -1:], right=True)
    return token[:, 0].clamp(max=below.shape[1] - 1)


@torch.inference_mode()
def write(target: Target, prompts: list[list[int]], temperature: float, longest: int, few: int) -> Texts:
    """Let the target continue each of `prompts` until it ends the turn, `longest` tokens are generated, or at most
    `few` of the texts are unfinished. States are of all positions but each text's last one, whose are zero."""
    session = target.session()
    tokens, lengths = pad(prompts, target.device)
    features, tapped = (
        [[row[:n]] for row, n in zip(states, lengths, strict=True)] for states in session.read(tokens, lengths)
    )
    texts = [list(ids) for ids in prompts]
    rows = torch.arange(len(prompts))  # the texts that are unfinished
    last = torch.stack([states[0][-1] for states in features])
    for step in range(longest):
        new = sample(target.logits(last[:, None])[:, 0], temperature)
        for row, token in zip(rows.tolist(), new.tolist(), strict=True):
            texts[row].append(token)
        unfinished = new != END
        if step == longest - 1 or unfinished.sum() <= few:
            break
        if not unfinished.all():
            rows, new = rows[unfinished], new[unfinished]
            session.select(unfinished.nonzero()[:, 0])
        last, taps = (states[:, 0] for states in session.read(new[:, None], torch.ones_like(new)))
        for index, row in enumerate(rows.tolist()):
            features[row].append(last[index : index + 1])
            tapped[row].append(taps[index : index + 1])
    return Texts(
        torch.tensor([token for ids in texts for token in ids]),
        torch.tensor([len(ids) for ids in texts]),
        torch.tensor([len(ids) for ids in prompts]),
        joined(features),
        joined(tapped),
    )


def joined(texts: list[list[Tensor]]) -> Float[Tensor, "n D"]:
    """Return the states of all texts one after the other, with a row of zeros after each."""
    return torch.cat([torch.cat([*parts, parts[0].new_zeros(1, parts[0].shape[1])]) for parts in texts])


def invent(target: Target, tokenizer: PreTrainedTokenizerBase, allowed: BenchFilter, wanted: int) -> list[str]:
    """Let the target generate users' turns from its empty template; return those that end and that the bench lacks."""
    before = empty_turn(tokenizer)
    turns: list[str] = []
    while len(turns) < wanted:
        written = write(target, [before] * BATCH, 1.0, INVENTED_TOKENS, FEW)
        for ids in written.ids.split(written.lengths.tolist()):
            turn = tokenizer.decode(ids[len(before) : -1]).strip()
            if ids[-1] == END and turn in allowed and turn not in turns:
                turns.append(turn)
    return turns[:wanted]


def empty_turn(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of the template up to where the user's turn begins."""
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    return tokenizer(empty.rsplit("<|im_end|>", 1)[0], add_special_tokens=False).input_ids


class Shard(NamedTuple):
    """The parts of a shard; `turn`: how many of its source and temperature come before it."""

    source: str
    temperature: float
    turn: int


def shard_of(number: int) -> Shard:
    """Return the parts of a shard: all sources at one temperature, then all at the next."""
    sources = SOURCES if number < LATER else LATER_SOURCES
    temperature = number // len(sources) % len(TEMPERATURES)
    return Shard(sources[number % len(sources)], TEMPERATURES[temperature], number // len(sources) // len(TEMPERATURES))


def questions_of(shard: Shard, pools: dict[str, list[str]]) -> list[str]:
    """Return the shard's questions. Each temperature starts elsewhere in a source and repeats it; greedy texts, which
    would be the same again, end with the source."""
    pool = pools[shard.source]
    begin = TEMPERATURES.index(shard.temperature) * len(pool) // len(TEMPERATURES)
    numbers = range(shard.turn * BATCH, (shard.turn + 1) * BATCH)
    if shard.temperature == 0:
        numbers = range(numbers.start, min(numbers.stop, len(pool)))
    return [pool[(begin + number) % len(pool)] for number in numbers]


def encode(tokenizer: PreTrainedTokenizerBase, turn: str) -> list[int]:
    """Return the ids of a user's turn in the chat template, up to where the answer begins."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": turn}], add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text, add_special_tokens=False).input_ids


def save(texts: Texts, shard: Shard, seconds: float, path: Path) -> None:
    tensors = {
        "ids": texts.ids.to(torch.uint16),
        "lengths": texts.lengths.int(),
        "questions": texts.questions.int(),
        "features": texts.features.bfloat16(),
        "taps": texts.taps.bfloat16(),
    }
    about = {name: str(value) for name, value in shard._asdict().items()} | {"seconds": f"{seconds:.1f}"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path.with_suffix(".tmp"), about)
    path.with_suffix(".tmp").rename(path)


def written(path: Path) -> int:
    """Return how many tokens of a shard the target generated."""
    with safe_open(path, "pt") as file:
        return int((file.get_tensor("lengths") - file.get_tensor("questions")).sum())


def next_shard(folder: Path, first: int) -> int:
    """Return the number after that of the last shard in a folder; `first` if there is none."""
    return max((int(path.stem) + 1 for path in folder.glob("*.safetensors")), default=first)


def count_written(folder: Path) -> int:
    """Return how many tokens the target generated in all shards of a folder."""
    return sum(written(path) for path in folder.glob("*.safetensors"))


def write_bench(data: Path, out: Path) -> None:
    """Write the greedy answers to the first turns of the bench prompts, a shard a set: for evaluation only."""
    missing = [name for name in BENCH if not (out / f"{name}.safetensors").exists()]
    if not missing:
        return
    out.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load_target()
    for name in missing:
        since = time.monotonic()
        prompts = [encode(tokenizer, turn) for turn in first_turns(data / name / "question.jsonl")]
        texts = write(target, prompts, 0.0, BENCH_TOKENS, 0)
        save(texts, Shard(name, 0.0, 0), time.monotonic() - since, out / f"{name}.safetensors")
        print(f"{name}: {len(prompts)} texts, {len(texts.ids)} positions", flush=True)


def write_until(tokens: int, data: Path, out: Path, first: int) -> None:
    """Write shards from number `first` on until the folder's shards have so many generated tokens."""
    out.mkdir(parents=True, exist_ok=True)
    if count_written(out) >= tokens:
        return
    target, tokenizer = load_target()
    pools, gone, allowed = questions(data)
    (out / "questions.json").write_text(json.dumps({"kept": {n: len(t) for n, t in pools.items()}, "gone": gone}))
    for number in count(first):
        path, shard = out / f"{number:05d}.safetensors", shard_of(number)
        if path.exists():
            continue
        torch.manual_seed(number)
        since = time.monotonic()
        turns = invent(target, tokenizer, allowed, BATCH) if shard.source == "invented" else questions_of(shard, pools)
        prompts = [ids for turn in turns if len(ids := encode(tokenizer, turn)) <= QUESTION_TOKENS]
        if not prompts:
            continue
        texts = write(target, prompts, shard.temperature, ANSWER_TOKENS, FEW)
        seconds = time.monotonic() - since
        save(texts, shard, seconds, path)
        total = count_written(out)
        print(f"{path.stem} {shard}: {written(path)} tokens, {seconds:.0f} s; {total} in all", flush=True)
        if total >= tokens:
            return
