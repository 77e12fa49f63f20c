"""The JSON document that the page draws; `SCHEMA` describes it.

Columns of a round's candidates are base64 of little-endian int32 or float32: small, quick to read, and exactly the
numbers that the policy compared.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from c2t.classifier import CONDITIONAL, TreeClassifier
from c2t.decoding import Step, cut
from c2t.pieces import Pieces
from c2t.policies.c2t import C2T
from c2t.policies.spec import describe
from c2t.policies.threshold import JointThreshold
from c2t.protocols import Policy
from c2t.viewer.recording import Drafted, Path, complete, path_to

VERSION = 1

# Field -> its meaning. A round's candidates are numbered from 1, family by family; 0 is the root.
SCHEMA = {
    "version": "of this schema",
    "prompt": "the prompt as it was given",
    "pair": "name of the target and the draft",
    "temperature": "of the target's text",
    "texts": "token id -> its text",
    "policies": {
        "name": "the policy, in brief",
        "spec": "the policy with all settings",
        "threshold": "least confidence of a kept candidate; null: the policy has none, and beta cannot be moved",
        "limits": "width: candidates kept per level at most; levels; nodes: of a tree at most; N: nodes kept by rank",
        "classifier": "features, layers ([weight, bias] each), conditional; null: joint probability is the confidence",
        "first": "tokens and pieces of the prompt's own forward, which writes the first root",
        "rounds": {
            "position": "of the root in the text, prompt included",
            "tokens": "written by the round: accepted ones, then the target's own",
            "pieces": "their texts, which joined are the text; bytes wait for the token that makes them a character",
            "shown": "how many of them are in the text, which ends at max_new_tokens",
            "passes": "draft forwards",
            "parents": "column: the node above each family",
            "sizes": "column: the number of candidates in each family",
            "entropies": "column: nats, of the draft's distribution behind each family",
            "token": "column: the candidates' token ids",
            "log_prob": "column: the draft's own log-probability of each candidate",
            "target": "column: the target's log-probability; NaN where the target did not verify the parent",
            "kept": "numbers of the candidates that the target verified",
            "accepted": "numbers of the candidates that the target accepted, from the root down",
        },
    },
}


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return the description of a policy, without rounds."""
    limits = {"width": None, "levels": policy.levels, "nodes": None, "N": getattr(policy, "N", None)}
    threshold = None
    if isinstance(policy, (C2T, JointThreshold)):
        limits |= {"width": policy.W or policy.max_width, "nodes": policy.max_nodes}
        threshold = policy.beta if isinstance(policy, C2T) else policy.threshold
    return {
        "name": describe(policy, brief=True),
        "spec": describe(policy),
        "threshold": threshold,
        "limits": limits,
        "classifier": classifier_document(policy.classifier) if isinstance(policy, C2T) else None,
        "first": {"tokens": [], "pieces": [], "shown": 0},
        "rounds": [],
    }


def classifier_document(classifier: TreeClassifier) -> dict[str, Any]:
    """Return a classifier's weights and what they are multiplied with."""
    layers = [classifier.hidden, *classifier.further, classifier.output]
    return {
        "features": list(classifier.config.features),
        "layers": [[layer.weight.tolist(), layer.bias.tolist()] for layer in layers],
        "conditional": classifier.config.label == CONDITIONAL,
    }


class RoundWriter:
    """Writer of the rounds of one text, which cuts the text where plain decoding ends."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, eos: frozenset[int]):
        self.pieces = Pieces(tokenizer)
        self.max_new_tokens, self.eos = max_new_tokens, eos
        self.written: list[int] = []

    def first(self, step: Step) -> dict[str, Any]:
        """Return the token that the prompt's own forward has written."""
        [(_, tokens)] = step.by_row()
        return self._text(tokens)

    def round(self, step: Step, drafted: Drafted) -> dict[str, Any]:
        """Return one round of the document. The Step must hold the target's logits."""
        [(_, tokens)] = step.by_row()
        tree = step.tree
        families = complete(drafted, tree)
        number: dict[Path, int] = {(): 0}
        for path, family in families.items():
            for token in family.tokens:
                number[(*path, token)] = len(number)
        slots = torch.nonzero(tree.alive[0])[:, 0].tolist()
        place = {path_to(tree, slot): slot for slot in slots}
        kept = sorted(number[path] for path in place if path)
        accepted = [slot for slot in step.accepted.slots[0].tolist() if slot > 0]
        return {
            "position": int(step.position[0]),
            **self._text(tokens),
            "passes": int(step.draft_passes[0]),
            "parents": _column([number[path] for path in families], np.int32),
            "sizes": _column([len(family.tokens) for family in families.values()], np.int32),
            "entropies": _column([family.entropy for family in families.values()], np.float32),
            "token": _column([token for family in families.values() for token in family.tokens], np.int32),
            "log_prob": _column([value for family in families.values() for value in family.log_probs], np.float32),
            "target": _column(list(_by_target(families, place, step)), np.float32),
            "kept": kept,
            "accepted": [number[path_to(tree, slot)] for slot in accepted],
        }

    def _text(self, tokens: list[int]) -> dict[str, Any]:
        shown = cut(self.written + tokens, self.max_new_tokens, self.eos)[len(self.written) :]
        pieces = self.pieces(shown)
        if shown and (len(self.written + shown) == self.max_new_tokens or shown[-1] in self.eos):
            pieces[-1] += self.pieces.rest()
        self.written += tokens
        return {"tokens": tokens, "pieces": [*pieces, *self.pieces(tokens[len(shown) :])], "shown": len(shown)}


class TokenTexts:
    """Texts of single tokens, as they stand behind another one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.behind = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self.known: set[int] = set()

    def new(self, document: Mapping[str, Any]) -> dict[str, str]:
        """Return the texts of the tokens of a round that were not asked for before."""
        column = np.frombuffer(base64.b64decode(document.get("token", "")), np.int32).tolist()
        tokens = sorted({*column, *document["tokens"]} - self.known)
        self.known.update(tokens)
        before, *texts = self.tokenizer.batch_decode(
            [self.behind, *([*self.behind, token] for token in tokens)], clean_up_tokenization_spaces=False
        )
        return {str(token): text[len(before) :] for token, text in zip(tokens, texts, strict=True)}


def _by_target(families: Drafted, place: Mapping[Path, int], step: Step) -> Iterator[float]:
    """Yield the target's log-probability of each candidate, NaN where it did not verify the parent."""
    log_probs = step.extra["logits"][0].float().log_softmax(-1)
    for path, family in families.items():
        slot = place.get(path)
        yield from [float("nan")] * len(family.tokens) if slot is None else log_probs[slot, family.tokens].tolist()


def _column(values: list, kind: type) -> str:
    return base64.b64encode(np.asarray(values, np.dtype(kind).newbyteorder("<")).tobytes()).decode()
