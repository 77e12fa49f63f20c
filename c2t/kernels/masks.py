"""Masks of the tokens that a constraint allows after a path, one bit for each token of the target's vocabulary, and
logits without the others: in C on a CPU (masks.c), by torch elsewhere.

Functions in C that walk along a tree ask by a callback, because which nodes they reach depends on the logits. They ask
for the tokens that they would take: an answer takes less than a mask, whose code and tables are cold after a forward.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from c2t.kernels.compiled import changeable
from c2t.kernels.native import kernels
from c2t.kernels.pointer import pointer


class Mask:
    """A set of tokens of a vocabulary, one bit each; empty at first. words: the bits. address: of them, for C."""

    def __init__(self, vocabulary: int):
        bits = torch.zeros((vocabulary + 31) // 32, dtype=torch.int32, device="cpu")
        self.vocabulary, self.address = vocabulary, pointer(bits, torch.int32)
        self.words = bits.numpy().view(np.uint32)

    def __contains__(self, token: int) -> bool:
        return bool(self.words[token >> 5] >> np.uint32(token & 31) & np.uint32(1))

    @property
    def empty(self) -> bool:
        return not self.words.any()

    @property
    def only(self) -> int | None:
        """The token of a set of one; None for any other set."""
        if np.count_nonzero(self.words) != 1:
            return None
        index = int(self.words.argmax())
        word = int(self.words[index])
        return 32 * index + word.bit_length() - 1 if word.bit_count() == 1 else None

    def set_only(self, token: int) -> None:
        """Let the set be of this token."""
        self.words.fill(0)
        self.words[token >> 5] = 1 << (token & 31)

    def flags(self) -> Bool[Tensor, " V"]:
        """Return which tokens of the vocabulary the set has."""
        bits = np.unpackbits(self.words.view(np.uint8), count=self.vocabulary, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))


Tokens = tuple[int, ...]
Answer = Mask | Sequence[bool] | int | None
# Row, path after its root, tokens -> mask, or which of these tokens may follow, or the only one that may, for a walk;
# None for no constraint.
AskAfter = Callable[[int, Tokens, Tokens], Answer]
_LIST = ctypes.c_void_p, ctypes.c_long
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_long, *_LIST, *_LIST, ctypes.c_void_p, ctypes.c_void_p)


@contextmanager
def asked(ask_after: AskAfter | None) -> Iterator[int | None]:
    """Give the address of a function in C that calls `ask_after`, None for none, for the time of the block. An error
    in it, which cannot pass through C, is raised at the end."""
    if ask_after is None:
        yield None
        return
    errors: list[BaseException] = []

    def address(
        row: int, path: int | None, length: int, tokens: int | None, count: int, out: int | None, only: int | None
    ) -> int | None:
        try:
            answer = ask_after(row, _read(path, length), _read(tokens, count))
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
            return None
        if isinstance(answer, Mask):
            return answer.address
        if isinstance(answer, int):
            ctypes.c_int64.from_address(only).value = answer
        elif answer:
            ctypes.memmove(out, bytes(answer), count)
        return None

    function = _CALLBACK(address)
    yield ctypes.cast(function, ctypes.c_void_p).value
    if errors:
        raise errors[0]


def _read(address: int | None, count: int) -> Tokens:
    return tuple((ctypes.c_int64 * count).from_address(address)) if count else ()


def serves(logits: Float[Tensor, "*S w"]) -> bool:
    """Return True if `forbid` can change these logits: in float32 on a CPU with a compiler."""
    return changeable(logits) and kernels() is not None


def forbid(
    logits: Float[Tensor, "*S w"],
    ids: Int[Tensor, " v"] | None,
    oov_ids: Int[Tensor, "B E"] | None,
    row: Int[Tensor, " S"],
    masks: Sequence[Mask | None],
) -> None:
    """Set the logits of tokens outside of the masks to -inf, in place; where no token is left, all of them to 0.

    ids: the tokens that the logits are of; None for all. oov_ids: those of each text, after them. row: the text of each
    row of logits.
    """
    of_texts, more = (None, 0) if oov_ids is None else (pointer(oov_ids, torch.int64), oov_ids.shape[1])
    addresses = torch.tensor([0 if mask is None else mask.address for mask in masks], dtype=torch.int64, device="cpu")
    kernels().mask_rows(
        *(pointer(logits, torch.float32), len(row), logits.shape[-1] - more),
        *(None if ids is None else pointer(ids, torch.int64), of_texts, more),
        *(pointer(row.contiguous(), torch.int64), pointer(addresses, torch.int64), torch.get_num_threads()),
    )
