"""A text that is written token by token, in parts that can be shown as they come."""

from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"  # what a tokenizer writes for bytes that are no whole character yet


class Pieces:
    """Splitter of a text into its tokens' parts, which joined are the text: bytes wait for the token that makes them a
    character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.context: list[int] = []  # tokens whose text is out; some tokenizers write a first token without its space
        self.waiting: list[int] = []

    def __call__(self, tokens: list[int]) -> list[str]:
        """Return the part of the text that each of the next tokens adds."""
        found = []
        for token in tokens:
            self.waiting.append(token)
            text = self.rest()
            part = text.endswith(INCOMPLETE) and len(self.waiting) < 4  # a character of UTF-8 has at most four bytes
            if part or not text:  # a special token has no text, and nothing could be written behind it
                found.append("")
            else:
                self.context, self.waiting = self.waiting, []
                found.append(text)
        return found

    def rest(self) -> str:
        """Return the text of the tokens that still wait, at the end of the text."""
        return self._decode(self.context + self.waiting)[len(self._decode(self.context)) :]

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.batch_decode([tokens], skip_special_tokens=True)[0]
