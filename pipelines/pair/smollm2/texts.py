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
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from c2t.kernels.tree_attention import grouped_attention
from c2t.kv_cache import KVCache
from c2t.models.eagle3 import Eagle3Head
from c2t.models.gguf_target import END, install
from c2t.models.target import Target
from c2t.storage import paths
from pipelines.pair.smollm2.questions import BENCH, Left, first_turns, questions

BATCH = 64
SOURCES = ("gsm8k", "code", "invented", "instructions")
TEMPERATURES = (0.0, 0.7, 1.0)
QUESTION_TOKENS = 256  # at most, template included
ANSWER_TOKENS = 200  # at most; longer answers are cut
FEW = 12  # answers still being written when a shard is closed
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


def grouped(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **_) -> tuple[Tensor, None]:
    """Attention without copies of keys and values for each query head: stock SDPA makes them, and most of a step."""
    return grouped_attention(query, key, value, mask[:, 0], module.scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register("grouped", grouped)


def load_target() -> tuple[Target, PreTrainedTokenizerBase]:
    """Return the target in bf16 with EAGLE-3's layers tapped, and its tokenizer."""
    place = install(paths.root() / "checkpoints" / "local" / "smollm2" / "target")
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16, attn_implementation="grouped")
    target = Target(model.requires_grad_(False))
    target.tap(Eagle3Head.taps(target.config.num_hidden_layers))
    return target, AutoTokenizer.from_pretrained(place)


def draw(logits: Float[Tensor, "B V"], temperature: float) -> Int[Tensor, " B"]:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial((logits.float() / temperature).softmax(-1), 1)[:, 0]


@torch.inference_mode()
def write(target: Target, asked: list[list[int]], temperature: float, longest: int, few: int) -> Texts:
    """Let the target go on from each of `asked` until it ends the turn, `longest` tokens are written, or at most `few`
    of the texts are still being written. States are of all positions but each text's last one, whose are zero."""
    lengths = torch.tensor([len(ids) for ids in asked])
    padded = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in asked], batch_first=True, padding_value=END)
    positions = torch.arange(padded.shape[1]).expand_as(padded)
    cache = KVCache(target.config.num_hidden_layers, padded.shape[1] + longest)
    causal = torch.ones(padded.shape[1], padded.shape[1], dtype=torch.bool).tril().expand(len(asked), -1, -1)
    hidden = target.forward(padded, positions, causal, cache)
    taps = target.features(hidden)
    cache.keep(positions, lengths)
    texts = [list(ids) for ids in asked]
    features = [[hidden[row, :n]] for row, n in enumerate(lengths)]
    tapped = [[taps[row, :n]] for row, n in enumerate(lengths)]
    rows = torch.arange(len(asked))  # the texts that are still being written
    last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[2]))[:, 0]
    for step in range(longest):
        new = draw(target.lm_head(last), temperature)
        for row, token in zip(rows.tolist(), new.tolist(), strict=True):
            texts[row].append(token)
        going = new != END
        if step == longest - 1 or going.sum() <= few:
            break
        if not going.all():
            rows, new = rows[going], new[going]
            cache.select(going.nonzero()[:, 0])
        mask = torch.cat([cache.visible(), torch.ones(len(rows), 1, dtype=torch.bool)], 1)[:, None]
        hidden = target.forward(new[:, None], cache.lengths[:, None], mask, cache)
        taps = target.features(hidden)
        cache.keep(torch.zeros(len(rows), 1, dtype=torch.long), torch.ones(len(rows), dtype=torch.long))
        for place, row in enumerate(rows.tolist()):
            features[row].append(hidden[place])
            tapped[row].append(taps[place])
        last = hidden[:, 0]
    return Texts(
        torch.tensor([token for ids in texts for token in ids]),
        torch.tensor([len(ids) for ids in texts]),
        lengths,
        torch.cat([states for parts in features for states in (*parts, hidden.new_zeros(1, hidden.shape[-1]))]),
        torch.cat([states for parts in tapped for states in (*parts, taps.new_zeros(1, taps.shape[-1]))]),
    )


def invent(target: Target, tokenizer: PreTrainedTokenizerBase, left: Left, wanted: int) -> list[str]:
    """Let the target write users' turns from its empty template; those that end, and that no bench prompt asks."""
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
    before = tokenizer(empty.rsplit("<|im_end|>", 1)[0], add_special_tokens=False).input_ids
    found: list[str] = []
    while len(found) < wanted:
        written = write(target, [before] * BATCH, 1.0, INVENTED_TOKENS, FEW)
        for ids in written.ids.split(written.lengths.tolist()):
            turn = tokenizer.decode(ids[len(before) : -1]).strip()
            if ids[-1] == END and turn in left and turn not in found:
                found.append(turn)
    return found[:wanted]


class Shard(NamedTuple):
    """The parts of a shard; `turn`: how many of its source and temperature come before it."""

    source: str
    temperature: float
    turn: int


def shard_of(number: int) -> Shard:
    """All sources at one temperature, then all at the next."""
    source, temperature = number % len(SOURCES), number // len(SOURCES) % len(TEMPERATURES)
    return Shard(SOURCES[source], TEMPERATURES[temperature], number // len(SOURCES) // len(TEMPERATURES))


def asked_in(shard: Shard, known: dict[str, list[str]]) -> list[str]:
    """Return the shard's questions; each temperature goes through a source's from another place, again and again, but
    greedy text, which would be the same, once: then fewer, or none, are asked."""
    pool = known[shard.source]
    begin = TEMPERATURES.index(shard.temperature) * len(pool) // len(TEMPERATURES)
    places = range(shard.turn * BATCH, (shard.turn + 1) * BATCH)
    if shard.temperature == 0:
        places = range(places.start, min(places.stop, len(pool)))
    return [pool[(begin + place) % len(pool)] for place in places]


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
        "features": texts.features,
        "taps": texts.taps,
    }
    about = {name: str(value) for name, value in shard._asdict().items()} | {"seconds": f"{seconds:.1f}"}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path.with_suffix(".tmp"), about)
    path.with_suffix(".tmp").rename(path)


def written(path: Path) -> int:
    """Return how many tokens of a shard the target wrote."""
    with safe_open(path, "pt") as file:
        return int((file.get_tensor("lengths") - file.get_tensor("questions")).sum())


def write_bench(data: Path, out: Path) -> None:
    """Write the greedy answers to the first turns of the bench prompts, a shard a set: for judging only."""
    missing = [name for name in BENCH if not (out / f"{name}.safetensors").exists()]
    if not missing:
        return
    out.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load_target()
    for name in missing:
        since = time.monotonic()
        asked = [encode(tokenizer, turn) for turn in first_turns(data / name / "question.jsonl")]
        texts = write(target, asked, 0.0, BENCH_TOKENS, 0)
        save(texts, Shard(name, 0.0, 0), time.monotonic() - since, out / f"{name}.safetensors")
        print(f"{name}: {len(asked)} texts, {len(texts.ids)} positions", flush=True)


def write_until(tokens: int, data: Path, out: Path) -> int:
    """Write shards until the target has written so many tokens in all; return how many it has."""
    out.mkdir(parents=True, exist_ok=True)
    done = {path.name: written(path) for path in out.glob("*.safetensors")}
    total = sum(done.values())
    if total >= tokens:
        return total
    target, tokenizer = load_target()
    known, gone, left = questions(data)
    (out / "questions.json").write_text(json.dumps({"kept": {n: len(t) for n, t in known.items()}, "gone": gone}))
    for number in count():
        path, shard = out / f"{number:05d}.safetensors", shard_of(number)
        if path.name in done:
            continue
        torch.manual_seed(number)
        since = time.monotonic()
        turns = invent(target, tokenizer, left, BATCH) if shard.source == "invented" else asked_in(shard, known)
        asked = [ids for turn in turns if len(ids := encode(tokenizer, turn)) <= QUESTION_TOKENS]
        if not asked:
            continue
        texts = write(target, asked, shard.temperature, ANSWER_TOKENS, FEW)
        seconds = time.monotonic() - since
        save(texts, shard, seconds, path)
        total += (new := written(path))
        print(f"{path.stem} {shard}: {len(asked)} texts, {new} tokens, {seconds:.0f} s; {total} in all", flush=True)
        if total >= tokens:
            return total
