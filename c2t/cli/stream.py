"""The text of one prompt on stdout, round by round as it is generated."""

import re
from collections.abc import Sequence

import typer
from rich.console import Console

from c2t.decoder import SpeculativeDecoder
from c2t.decoding import Step, cut
from c2t.errors import plain
from c2t.verification.texts import new_text

OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # controls but tab and line end: a terminal would obey them
ACCEPTED = "green"  # colour of tokens that the draft guessed; the target's own have none


class TextStream:
    """Prints what each Step adds to the text: the `watch` of `SpeculativeDecoder.generate` with one prompt.

    Accepted tokens are coloured if stdout is a terminal. before: text to print before the first token. stop,
    constrained: as `generate` has them. `end` prints what is left and ends the line. shown: the text so far.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        max_new_tokens: int,
        before: str = "",
        stop: Sequence[str] = (),
        constrained: bool = False,
    ):
        self.eos, self.max_new_tokens = decoder.eos, max_new_tokens
        console = Console()  # which knows NO_COLOR and FORCE_COLOR
        self.terminal = console.is_terminal
        self.coloured = console.color_system is not None and not console.no_color
        self.before = before
        self.tokens: list[int] = []
        self.shown = ""
        self.text = new_text(decoder.pair.tokenizer, stop, decoder.eos, constrained)

    def __call__(self, step: Step) -> None:
        """Print one round's tokens, up to where the text ends."""
        self._out(self.before)
        self.before = ""
        [(_, new)] = step.by_row()
        tokens = cut(new, self.max_new_tokens - len(self.tokens), self.eos)
        for index, token in enumerate(tokens):
            self._show(token, accepted=index < len(new) - 1)  # the last one is the target's

    def whole(self, tokens: list[int]) -> None:
        """Print a text that has ended, without colours."""
        self._out(self.before)
        for token in tokens:
            self._show(token, accepted=False)
        self.end()

    def end(self) -> None:
        """Print what has waited for further tokens, and end the line."""
        rest = self.text.end()
        self.shown += rest
        self._out(self._harmless(rest) + "\n")

    def _show(self, token: int, accepted: bool) -> None:
        if self.text.stopped:
            return
        self.tokens.append(token)
        text = self.text.add([token])
        self.shown += text
        if text:
            text = self._harmless(text)
            self._out(typer.style(text, fg=ACCEPTED) if accepted and self.coloured else text)

    def _harmless(self, text: str) -> str:
        return OBEYED.sub(lambda control: plain(control[0]), text) if self.terminal else text

    def _out(self, text: str) -> None:
        """Print text without a line end, unbuffered."""
        typer.echo(text, nl=False, color=self.coloured)
