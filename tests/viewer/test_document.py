"""The document is what happened: the same decoding, every candidate, the target's own probabilities."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from c2t.classifier import TreeClassifier
from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.policies import C2T, ConfidenceChain, Eagle2, Plain
from c2t.sampling import Sampling
from c2t.viewer.document import SCHEMA, RoundWriter, TokenTexts, policy_document
from c2t.viewer.recording import RecordingPolicy
from c2t.viewer.view import Viewer
from tests.every_policy import EVERY_POLICY
from tests.marks import slow_except
from tests.policies.plain_trees import ROOT, tables
from tests.policies.test_confidence_chain import ConfidentDraft
from tests.rounding import ROUNDINGS, assert_within, growth, half_a_digit
from tests.viewer.documents import PROMPT, columns, decoded


def shape(schema: Any, content: Any) -> Any:
    """Return the fields of a document in the form of SCHEMA, whose leaves are sentences."""
    if isinstance(schema, str):
        return ""
    content = content[0] if isinstance(content, list) else content
    return {key: shape(schema.get(key, ""), value) for key, value in content.items()}


def leaves_emptied(schema: Any) -> Any:
    return "" if isinstance(schema, str) else {key: leaves_emptied(value) for key, value in schema.items()}


def test_the_schema_names_every_field(small_pair: Pair) -> None:
    assert shape(SCHEMA, decoded(small_pair, Eagle2(K=3, levels=2, N=6)).document) == leaves_emptied(SCHEMA)


@pytest.mark.parametrize("name", slow_except(EVERY_POLICY, "plain", "c2t", "eagle2", "mcsd+", "specinfer"))
def test_watching_changes_nothing_and_every_verified_node_is_there(small_pair: Pair, name: str) -> None:
    policy = EVERY_POLICY[name].policy
    output = SpeculativeDecoder(small_pair, policy).generate(PROMPT, 24, 0.7, seed=0, chat=False)
    viewer = decoded(small_pair, policy, temperature=0.7)
    [shown] = viewer.document["policies"]
    parts = [shown["first"], *shown["rounds"]]
    assert [token for part in parts for token in part["tokens"][: part["shown"]]] == output.sequences[0]
    text = "".join(piece for part in parts for piece in part["pieces"][: part["shown"]])
    assert text == output.text[: len(text)]
    assert set(output.text[len(text) :]) <= {"\ufffd"}, "bytes at the end that are no character"
    assert [len(one["kept"]) + 1 for one in shown["rounds"]] == output.total.verified
    assert [len(one["accepted"]) for one in shown["rounds"]] == output.total.accepted
    assert [one["passes"] for one in shown["rounds"]] == output.total.passes
    for one in shown["rounds"]:
        found = columns(one)
        assert [found["token"][node] for node in one["accepted"]] == one["tokens"][:-1]
        assert {found["parent"][node] for node in one["kept"]} <= {0, *one["kept"]}, "a tree"
        assert {str(token) for token in found["token"][1:]} <= viewer.document["texts"].keys()


def test_pruned_candidates_are_all_that_were_drafted_and_fell_below_beta(small_pair: Pair) -> None:
    policy = C2T(TreeClassifier(), beta=0.5, K=4, W=None)
    [shown] = decoded(small_pair, policy).document["policies"]
    pruned = 0
    for one in shown["rounds"]:
        found = columns(one)
        assert set(found["sizes"]) == {4}, "K candidates each"
        assert sorted(found["parents"]) == sorted({0, *found["parents"]}), "each family once"
        entropy = np.concatenate([[np.nan], np.repeat(found["entropies"], 4)])
        depth = np.full(len(entropy), -1)
        for node in range(1, len(depth)):
            depth[node] = depth[found["parent"][node]] + 1
        x = torch.tensor(np.stack([np.exp(found["log_joint"]), entropy, depth], 1)[1:], dtype=torch.float32)
        confidence = torch.sigmoid(policy.classifier.logits(x))
        clear = (confidence - policy.beta).abs() > 1e-5
        kept = torch.zeros(len(depth) - 1, dtype=torch.bool)
        kept[[node - 1 for node in one["kept"]]] = True
        assert torch.equal(kept[clear], (confidence >= policy.beta)[clear])
        pruned += int((~kept).sum())
    assert pruned


def test_entropy_is_known_where_the_policy_does_without_it(small_pair: Pair) -> None:
    [shown] = decoded(small_pair, Eagle2(K=3, levels=2, N=6)).document["policies"]
    entropies = columns(shown["rounds"][0])["entropies"]
    assert ((entropies > 0) & (entropies < math.log(small_pair.target.config.vocab_size))).all()


def test_a_policy_that_is_watched_reads_the_confidence_of_the_draft() -> None:
    policy, draft = ConfidenceChain(slope=0.1, length=5), ConfidentDraft(tables(0))
    recording = RecordingPolicy(policy)
    assert torch.equal(recording(draft, ROOT).token, policy(draft, ROOT).token)
    assert recording.rounds[0]


def test_the_target_probability_is_that_of_a_plain_forward(small_pair: Pair) -> None:
    viewer = decoded(small_pair, Eagle2(K=3, levels=3, N=8))
    [shown] = viewer.document["policies"]
    text = [*viewer.ids, *shown["first"]["tokens"]]
    for one in shown["rounds"]:
        found = columns(one)
        assert one["position"] == len(text) - 1
        for node in (0, *one["accepted"]):
            below = np.flatnonzero(found["parent"] == node)
            path: list[int] = []
            while node > 0:
                path.insert(0, int(found["token"][node]))
                node = found["parent"][node]
            with torch.inference_mode():
                logits = small_pair.target.model(torch.tensor([text + path])).logits[0, -1]
            expected = logits.log_softmax(-1)[found["token"][below]].numpy()
            bound = half_a_digit(4) + growth(ROUNDINGS) * np.abs(expected).max()
            assert_within(found["target"][below], expected, bound)
        verified = {0, *one["kept"]}
        assert np.isnan(found["target"][1:]).tolist() == [parent not in verified for parent in found["parent"][1:]]
        text += one["tokens"]


def test_events_are_the_document(small_pair: Pair) -> None:
    settings = {"max_new_tokens": 12, "sampling": Sampling(), "chat": False}
    viewer = Viewer(small_pair, [Eagle2(K=3, levels=2, N=6)], PROMPT, **settings)
    events = list(viewer.events())
    assert [event["round"] for event in events[1:]] == viewer.document["policies"][0]["rounds"]
    texts = [text for event in events for text in event["texts"]]
    assert sorted(texts) == sorted(viewer.document["texts"]), "each text once"


def test_a_token_keeps_its_blank(small_pair: Pair) -> None:
    tokens = small_pair.tokenizer.encode(" number", add_special_tokens=False)
    texts = TokenTexts(small_pair.tokenizer).new({"tokens": tokens})
    assert texts[str(tokens[0])].startswith(" ")


def test_only_policies_with_a_threshold_can_be_pruned_again(small_pair: Pair) -> None:
    assert policy_document(Eagle2())["threshold"] is None
    assert policy_document(Plain())["classifier"] is None
    shown = policy_document(C2T(TreeClassifier(), beta=0.3, W=None))
    assert (shown["threshold"], shown["limits"]["width"], shown["limits"]["nodes"]) == (0.3, 64, 1024)
    weights = [weight for layer in shown["classifier"]["layers"] for part in layer for weight in np.ravel(part)]
    assert len(weights) == 241


def test_only_trees_of_the_most_probable_paths_say_so() -> None:
    ranked = {name for name, case in EVERY_POLICY.items() if policy_document(case.policy)["limits"]["N"]}
    assert {name.partition(" ")[0] for name in ranked} == {"eagle2", "opttree", "ddd"}
    assert policy_document(Eagle2(reranked=False))["limits"]["N"] is None


def test_refuses_what_generate_refuses(small_pair: Pair) -> None:
    for wrong, said in (
        ({"new": 0}, "must be at least 1"),
        ({"prompt": ""}, "empty prompt"),
        ({"rule": "residual"}, "Eagle2 ranks its candidates"),
    ):
        with pytest.raises(InputError, match=said):
            decoded(small_pair, Eagle2(), **wrong)


def test_the_last_piece_has_the_bytes_that_no_token_completes(small_pair: Pair) -> None:
    tokens = small_pair.tokenizer.encode("\u20ac\u20ac", add_special_tokens=False)
    writer = RoundWriter(small_pair.tokenizer, len(tokens) - 1, frozenset())
    zero, ids = torch.tensor([0]), torch.tensor([tokens])
    found = writer.first(Step(zero, zero, None, None, ids, torch.tensor([len(tokens)]), zero))
    whole = small_pair.tokenizer.decode(tokens[:-1])
    assert whole == "\u20ac\ufffd"
    assert "".join(found["pieces"][: found["shown"]]) == whole
