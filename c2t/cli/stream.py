"""The text of one prompt on stdout, round by round as it is written."""

import re
from collections.abc import Sequence

import typer
from rich.console import Console

from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step, cut
from c2t.errors import plain

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # controls but tab and line end: a terminal would obey them
ACCEPTED = "green"  # colour of tokens that the draft guessed; the target's own have none
INCOMPLETE = "\ufffd"  # what a tokenizer writes for bytes that are no whole character yet


class TextStream:
    """Prints what each Step adds to the text: the `watch` of `SpeculativeDecoder.generate` with one prompt.

    Accepted tokens are coloured if stdout is a terminal. before: text to print ahead of the first token. `end` prints
    what is left and ends the line.
    """

    def __init__(self, decoder: SpeculativeDecoder, max_new_tokens: int, before: str = ""):
        self.tokenizer, self.eos, self.max_new_tokens = decoder.pair.tokenizer, decoder.eos, max_new_tokens
        console = Console()  # which knows NO_COLOR and FORCE_COLOR
        self.terminal = console.is_terminal
        self.coloured = console.color_system is not None and not console.no_color
        self.before = before
        self.tokens: list[int] = []
        self.context = self.shown = (
            0  # tokens up to `shown` are on the screen; those from `context` on shape what follows
        )

    def __call__(self, step: Step) -> None:
        """Print one round's tokens, up to where the text ends."""
        self._out(self.before)
        self.before = ""
        [(_, new)] = step.by_row()
        kept = cut(self.tokens + new, self.max_new_tokens, self.eos)[len(self.tokens) :]
        for place, token in enumerate(kept):
            self.tokens.append(token)
            self._show(accepted=place < len(new) - 1)  # the last one is the target's own

    def end(self) -> None:
        """Print bytes that no further token has made a character, and end the line."""
        self._out(self._new() + "\n")

    def _show(self, accepted: bool) -> None:
        text = self._new()
        if text and not text.endswith(INCOMPLETE):
            self._out(typer.style(text, fg=ACCEPTED) if accepted and self.coloured else text)
            self.context, self.shown = self.shown, len(self.tokens)

    def _new(self) -> str:
        """Return the text of the tokens that are not on the screen yet.

        They are decoded behind the tokens that were shown last, since some tokenizers write the first token of a text
        without its space; only behind those, since the whole text each time would take time that grows with its square.
        """
        return self._decode(self.tokens[self.context :])[len(self._decode(self.tokens[self.context : self.shown])) :]

    def _decode(self, tokens: Sequence[int]) -> str:
        text = self.tokenizer.batch_decode([tokens], skip_special_tokens=True)[0]
        return OBEYED.sub(lambda control: plain(control[0]), text) if self.terminal else text

    def _out(self, text: str) -> None:
        """Print text without a line end, at once."""
        typer.echo(text, nl=False, color=self.coloured)
