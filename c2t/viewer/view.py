"""Decode a prompt and return its rounds as documents."""

from collections.abc import Iterator, Sequence
from typing import Any

from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.loading.load import Pair
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.verification.compatibility import check_rule
from c2t.verification.prompt_ids import check_length
from c2t.verification.target_verifier import generate
from c2t.viewer.document import VERSION, RoundWriter, TokenTexts, policy_document
from c2t.viewer.recording import RecordingPolicy


class Viewer:
    """One prompt, decoded by each policy in turn.

    document: the result so far, which `events` fills in. Raises InputError for prompts and settings that `generate`
    refuses.
    """

    def __init__(
        self,
        pair: Pair,
        policies: Sequence[Policy],
        prompt: str,
        *,
        max_new_tokens: int,
        sampling: Sampling,
        chat: bool = True,
        rule: str | None = None,
    ):
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens = {max_new_tokens} must be at least 1")
        decoders = [SpeculativeDecoder(pair, policy) for policy in policies]  # which check the policies
        for policy in policies:
            check_rule(policy, rule)
        self.pair, self.policies, self.eos = pair, policies, decoders[0].eos
        [self.ids] = decoders[0].encode(prompt, chat)
        check_length(len(self.ids), max_new_tokens, pair.target.max_positions, "the prompt")
        self.max_new_tokens, self.sampling, self.rule = max_new_tokens, sampling, rule
        self.texts = TokenTexts(pair.tokenizer)
        self.document: dict[str, Any] = {
            "version": VERSION,
            "prompt": prompt,
            "pair": pair.name,
            "temperature": sampling.temperature,
            "texts": {},
            "policies": [policy_document(policy) for policy in policies],
        }

    def events(self) -> Iterator[dict[str, Any]]:
        """Decode; yield each round as it comes, with the number of its policy and texts of tokens that are new."""
        for number, policy in enumerate(self.policies):
            described = self.document["policies"][number]
            for name, content in self._rounds(policy):
                texts = self.texts.new(content)
                self.document["texts"].update(texts)
                if name == "first":
                    described["first"] = content
                else:
                    described["rounds"].append(content)
                yield {"policy": number, name: content, "texts": texts}

    def _rounds(self, policy: Policy) -> Iterator[tuple[str, dict[str, Any]]]:
        recording = RecordingPolicy(policy)
        writer = RoundWriter(self.pair.tokenizer, self.max_new_tokens, self.eos)
        steps = generate(
            self.pair.target,
            self.pair.draft,
            recording,
            [self.ids],
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            eos=self.eos,
            rule=self.rule,
            record=("logits",),
        )
        yield "first", writer.first(next(steps))
        for step in steps:
            yield "round", writer.round(step, recording.rounds[-1])
