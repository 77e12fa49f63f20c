"""The pair's regime: the target's entropy on its own text, the drafts' agreement with it, and EAGLE-2's tau."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from c2t.costs.statistics import total
from c2t.models.loading.load import Pair, load_pair
from c2t.models.loading.names import parts
from c2t.policies.eagle2 import Eagle2
from c2t.replay.lockstep import Continuation
from c2t.replay.prompts import read_prompts
from c2t.sampling import Sampling
from c2t.study.evaluate import continuations, evaluate, share_of_loops

NEW_TOKENS = 96
TEMPERATURES = (0.0, 0.4, 0.8)
ENTROPY_AT = 0.8
POLICY = Eagle2(K=10, levels=6, N=60)


def entropy(logits: Float[Tensor, "n V"], temperature: float) -> Float[Tensor, " n"]:
    """Return the entropy in nats of each distribution at this temperature."""
    return torch.special.entr((logits / temperature).softmax(-1)).sum(-1)


def proposals(pair: Pair, text: Continuation) -> Int[Tensor, " n"]:
    """Return the draft's most probable token after each token but the first, one token ahead of the target."""
    tokens = text.tokens[None, : text.features.shape[0]]
    if pair.draft.language_models:
        return pair.draft.language_models[0](input_ids=tokens).logits[0, 1:].argmax(-1)
    hidden = pair.draft.head(pair.draft.head.read(text.features[None, :-1]), tokens[:, 1:])
    return pair.draft.head.logits(hidden, pair.target.lm_head)[0].argmax(-1)


def agreement(pair: Pair, texts: list[Continuation], choices: list[Int[Tensor, " n"]]) -> float:
    """Return the share of the generated positions where the draft's most probable next token is the target's
    (`choices`)."""
    same = []
    for text, choice in zip(texts, choices, strict=True):
        same.append((proposals(pair, text) == choice[1:])[text.prompt - 1 : text.end - 2].float())
    return float(torch.cat(same).mean())


@torch.inference_mode()
def measure(pairs: dict[str, Pair], path: Path, category: str, temperature: float, limit: int) -> dict[str, Any]:
    """Return one line of the report: all drafts on the same texts of one prompt file and category."""
    any_pair = pairs["eagle"]  # its features are what the LM head reads; EAGLE-3's are others
    prompts = [p.turns[0] for p in read_prompts(path) if p.category == category][:limit]
    ids = any_pair.tokenizer(prompts).input_ids
    sampling = Sampling(temperature, seed=0)
    texts = continuations(any_pair, ids, NEW_TOKENS, POLICY.levels, sampling)
    logits = [any_pair.target.lm_head(t.features) for t in texts]
    written = torch.cat([rows[t.prompt - 1 : t.end - 1] for rows, t in zip(logits, texts, strict=True)])
    line: dict[str, Any] = {"domain": path.stem, "category": category, "T": temperature, "texts": len(texts)}
    line["entropy"] = float(entropy(written, ENTROPY_AT).mean())
    line["looping"] = share_of_loops(texts)
    for name, pair in pairs.items():
        # The same tokens with this draft's features.
        texts_of_pair = continuations(pair, ids, NEW_TOKENS, POLICY.levels, sampling)
        line[f"agreement {name}"] = agreement(pair, texts_of_pair, [rows.argmax(-1) for rows in logits])
        counted = evaluate(pair, POLICY, ids, max_new_tokens=NEW_TOKENS, sampling=sampling, texts=texts_of_pair)
        line[f"tau {name}"] = total(counted).tau
    return line


def report(target: Path, prompts: Path, limit: int) -> list[dict[str, Any]]:
    """Return a line per domain, category and temperature of the text, with every draft that is there."""
    there = [name for name, part in parts().items() if (target.parent / part).is_dir()]
    pairs = {name: load_pair("tiny", draft=name, dtype=torch.float32) for name in there}
    cases = [
        (path, c, t) for path in sorted(prompts.glob("*.jsonl")) for c in ("known", "heldout") for t in TEMPERATURES
    ]
    return [measure(pairs, path, category, temperature, limit) for path, category, temperature in cases]


def table(lines: list[dict[str, Any]]) -> str:
    """Return the lines as a Markdown table."""
    cells = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in line.values()] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in [list(lines[0]), ["---"] * len(lines[0]), *cells])
