"""Seconds of a draft phase of the embedded pair, against the straightforward version: the head as a module of stock
transformers layers, the LM head as torch's linear layer, and torch's own log-softmax, top-k and entropy, without
gradients. Beside them the phase with the text's n-grams. All run in turn, in one process, on the same texts; the trees
are made by the same code.

    python -m pipelines.bench draft [POLICIES] [--threads N]

A phase is one round's work of the draft: it observes three tokens and drafts a tree. Seconds are medians over rounds.
"""

import statistics
import time
from typing import Annotated

import torch
import typer
from torch import Tensor

from c2t.classifier import TreeClassifier
from c2t.models.eagle_draft import EagleSession
from c2t.models.ngrams import NgramDraft
from c2t.models.pairs import Pair, load_pair
from c2t.policies.spec import parse
from c2t.prompts import conversation, default_prompts, read_prompts, spread
from c2t.protocols import NextTokenDistributions, Policy, Root
from c2t.ragged import Ragged
from c2t.replay.lockstep import Continuation, write_continuations
from c2t.sampling import Sampling
from c2t.storage.provenance import hardware

POLICIES = "eagle2,c2t:beta=0.3,c2t:beta=0.1,threshold:threshold=0.005,entropy"
PROMPTS, NEW_TOKENS, STEP = 8, 36, 3


class Modules(EagleSession):
    """Draft session of the straightforward version."""

    def _rows(self, hidden: Tensor, rows: Ragged) -> NextTokenDistributions:
        return PlainRows(self._logits(hidden))

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, mask: Tensor, rows: Ragged) -> Tensor:
        return self.draft.head(features, tokens, positions, mask[:, None], self.cache)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.draft.lm_head.linear(hidden)


class PlainRows(NextTokenDistributions):
    """Distributions computed by torch's own log-softmax and top-k."""

    def topk_entropy(self, k: int, m: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """See `NextTokenDistributions.topk_entropy`."""
        log_probs = self.logits.log_softmax(-1)
        top = log_probs.topk(k)
        entropy = torch.full_like(log_probs[..., 0], float("nan"))
        if m != 0:
            values = log_probs.topk(m).values if m else log_probs
            entropy = torch.special.entr(values.exp()).sum(-1)
        return top.indices, top.values, entropy


def main(
    policies: Annotated[str, typer.Argument(help="Comma-separated.")] = POLICIES,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 1,
) -> None:
    """Compare what a draft phase costs with the same written in stock torch and transformers layers."""
    torch.set_num_threads(threads)
    pair = load_pair("tiny", dtype=torch.float32)
    texts = texts_of(pair)
    print(f"{hardware()}, {threads} thread(s), {len(texts)} texts, milliseconds a draft phase")
    print(f"{'policy':28} {'modules':>8} {'c2t':>8}  c2t / modules, +ngrams / c2t (quartiles of the rounds' ratios)")
    for name in policies.split(","):
        policy = parse(name, lambda name="tiny": TreeClassifier.from_pretrained(name))
        plain, ours, ngrams = compare(pair, policy, texts)
        before, after = (1e3 * statistics.median(seconds) for seconds in (plain, ours))
        print(f"{name:28} {before:8.2f} {after:8.2f}  {ratio(ours, plain)}, {ratio(ngrams, ours)}")


def ratio(seconds: list[float], base: list[float]) -> str:
    """Return median and quartiles of the rounds' ratios, as text."""
    low, middle, high = statistics.quantiles([one / other for one, other in zip(seconds, base, strict=True)], n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def texts_of(pair: Pair) -> list[Continuation]:
    """Return texts of the target, with its features of all their tokens."""
    prompts = spread([prompt for file in default_prompts(pair.name, "bench") for prompt in read_prompts(file)], PROMPTS)
    ids = [conversation(pair.tokenizer, pair.template, prompt.turns[:1]) for prompt in prompts]
    return write_continuations(pair.target, ids, max_new_tokens=NEW_TOKENS, beyond=0, sampling=Sampling(0.4))


def compare(pair: Pair, policy: Policy, texts: list[Continuation]) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of every phase by the straightforward version, by c2t's, and by c2t's with n-grams."""
    plain, ours, ngrams = [], [], []
    for text in texts:
        tokens, features = text.tokens[None], text.features[None]
        sessions = [
            (Modules(pair.draft), plain, torch.no_grad),
            (pair.draft.session(), ours, torch.inference_mode),
            (NgramDraft(pair.draft).session(), ngrams, torch.inference_mode),
        ]
        ends = range(text.prompt, len(text.tokens), STEP)
        for start, end in zip([0, *ends], ends, strict=False):
            count = torch.tensor([end - start])
            for session, seconds, mode in sessions:
                with mode():
                    begun = time.perf_counter()
                    session.observe(tokens[:, start : end + 1], features[:, start:end], count)
                    policy(session, Root(tokens[:, end], tokens[:, end]))
                if start:  # the first phase reads the prompt
                    seconds.append(time.perf_counter() - begun)
            sessions.append(sessions.pop(0))  # the second one finds some of the weights in the cache
    return plain, ours, ngrams
