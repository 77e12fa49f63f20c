"""A library in the stead of ONNX Runtime GenAI, with the rounds and counts that its profile of forwards shows: the next
token depends on the whole text. The forwards that it would run are there to be read."""

import json
from typing import Any

from tests.pipelines.bench.counting_llama import following

EOS: int | None = None  # of the model's own config
__version__ = "0"
READY, STALE = "logits are there", "last token is not run"
ANCHOR, ALONE = "last token is run with the next draft", "last token is run when it is out: the draft was one token"


class Config:
    def __init__(self, folder: str):
        self.folder = folder

    def overlay(self, text: str) -> None:
        self.options = json.loads(text)


class Model:
    def __init__(self, config: Config):
        self.config = config


class GeneratorParams:
    def __init__(self, _model: Model):
        self.search: dict[str, Any] = {}
        self.speculation: dict[str, Any] = {}

    def set_search_options(self, **options: Any) -> None:
        assert not options["do_sample"]
        self.search = options

    def set_speculative_options(self, **options: Any) -> None:
        self.speculation = options


class Generator:
    last: "Generator"

    def __init__(self, _model: Model, params: GeneratorParams):
        self.params, self.text, self.pending, self.state = params, [], [], READY
        self.forwards = self.passes = self.misses = 0
        self.parts: list[int] = []  # lengths of what was appended
        Generator.last = self

    def append_tokens(self, tokens: list[int]) -> None:
        self.text = [*self.text, *tokens]
        assert len(self.text) <= self.params.search["max_length"]
        self.parts.append(len(tokens))

    def rewind_to(self, length: int) -> None:
        self.text = self.text[:length]

    def is_done(self) -> bool:
        return len(self.text) == self.params.search["max_length"] or self.text[-1] == EOS

    def get_next_tokens(self) -> list[int]:
        return self.text[-1:]

    def get_speculative_stats(self) -> dict[str, int]:
        return {"target_forward_passes": self.passes, "standard_fallback_steps": self.misses}

    def generate_next_token(self) -> None:
        if not self.pending:
            self._round()
        self.text.append(self.pending.pop(0))
        if self.state == ALONE and not self.pending and not self.is_done():
            self._pass()
            self.state = READY

    def _round(self) -> None:
        self.forwards += self.state == STALE
        if draft := self._draft():
            self._pass()
            text = list(self.text)
            for token in [*draft, None]:
                text.append(following(text))
                if text[-1] != token:
                    break
            self.pending, self.state = text[len(self.text) :], ALONE if len(draft) == 1 else ANCHOR
            return
        if self.state == ANCHOR:
            self._pass()
        self.misses += bool(self.params.speculation)
        self.pending, self.state = [following(self.text)], STALE

    def _pass(self) -> None:
        self.passes += 1
        self.forwards += 1

    def _draft(self) -> list[int]:
        options = self.params.speculation
        size = options.get("ngram_size", 0) - 1
        count = min(options.get("max_draft_tokens", 4), self.params.search["max_length"] - len(self.text))
        for start in range(len(self.text) - size - 1, -1, -1) if options else ():
            if self.text[start : start + size] == self.text[len(self.text) - size :]:
                return self.text[start + size :][:count]
        return []
