"""Rows of speculators (vllm-project/speculators 0.7.0): texts with the states that vLLM has computed for them.

`prepare_data.py` writes a dataset on disk whose columns are input_ids, loss_mask (1 for what heads learn: the
assistant's tokens; up to 0.7.0 of all turns, later of a row's last one) and seq_len. `data_generation_offline.py` adds
hidden_states/hs_N.safetensors for row N, counted over all files; a row whose request has failed has none. In it are
token_ids (n), equal to input_ids, and hidden_states (n, K, H), which vLLM's ExampleHiddenStatesConnector writes: state
k at a position is the residual stream there at the input of layer `--target-layer-ids`[k], by default 2, L / 2, L - 3
for L layers. The last one is that at L, after the last layer and before the final norm, which speculators' trainer
applies itself (`verifier_norm`).

No file says which layers these are, nor of which model. So a row's first tokens are run through the target, and each of
its states is taken for that of the layer it is nearest to.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from c2t.drafting.arrow_dataset import read_lists
from c2t.drafting.kinds import KINDS, HeadKind
from c2t.drafting.library import Corpus, held_out
from c2t.drafting.questions import MARK
from c2t.errors import InputError, one_line
from c2t.models.drafts.eagle3 import default_taps
from c2t.models.loading.load import Pair
from c2t.models.loading.template_process import rendered
from c2t.models.target.target import Target

# Tokens of a text, and of its answer: a longer row becomes several texts. A step's memory grows with their square.
LONGEST, ANSWER = 1024, 512
COMPARED = 64  # tokens of a row by which its layers are found
APART = 0.5  # relative distance of a state from that of the nearest layer, at most; another model's are about 1 apart
STATES = "hidden_states"
TYPES = ("F32", "F16", "BF16")


class StoredRow(NamedTuple):
    """One row: ids, the runs of them that heads learn, and the file of their states."""

    ids: Int[Tensor, " n"]
    runs: list[tuple[int, int]]
    file: Path


class StoredStates(NamedTuple):
    """Which of a position's states a kind of head needs. last: the number of the one after the last layer. taps: those
    of the tapped layers' inputs, none for a head that reads the target's last features."""

    target: Target
    last: int
    taps: list[int]

    @torch.no_grad()
    def features(self, states: Float[Tensor, "n K H"]) -> Float[Tensor, "n H"]:
        """Return the states after the final norm."""
        norm = self.target.model.base_model.norm
        weight = next(norm.parameters())
        return norm(states[:, self.last].to(weight.device, weight.dtype)).cpu()


@dataclass(frozen=True, eq=False)
class StoredText:
    """One text of a row, from its token `begin` on; see `c2t.drafting.library.Text`. States are read when they are
    used."""

    ids: Int[Tensor, " n"]
    question: int
    turn: str
    learned: bool
    file: Path
    begin: int
    stored: StoredStates

    @property
    def answer(self) -> Int[Tensor, " g"]:
        return self.ids[self.question :]

    @property
    def features(self) -> Float[Tensor, "m H"]:
        return self.stored.features(self._states)

    @property
    def inputs(self) -> Float[Tensor, "m D"]:
        taps = self.stored.taps
        return self._states[:, taps].flatten(1) if taps else self.features

    @cached_property
    def best(self) -> Int[Tensor, " g"]:
        target = self.stored.target
        states = self.features[self.question - 1 :].to(target.device)
        with torch.no_grad():
            return target.logits(states[None])[0].argmax(-1).cpu()

    @property
    def temperature(self) -> float:
        """0 for a text of most probable tokens; of others nothing is known."""
        return 0.0 if self.best.equal(self.answer.long()) else float("nan")

    @property
    def _states(self) -> Float[Tensor, "m K H"]:
        return states_at(self.file, self.begin, self.begin + len(self.ids) - 1)


class SpeculatorsRows(Corpus):
    """The rows of a folder as texts for a kind of head; their states stay in their files.

    InputError for a folder without such rows, for rows that do not fit the pair's target, and for states that this kind
    does not read.
    """

    def __init__(self, folder: Path, pair: Pair, kind: str):
        rows = list(rows_of_folder(folder, pair.target))
        if not rows:
            raise InputError(
                f"{folder}: no row has states that teach: data_generation_offline.py writes them to "
                f"{folder / STATES}, hs_0.safetensors for the first row"
            )
        layers = layers_of_states(rows[0], pair.target)
        stored = chosen(layers, kind, pair.target, folder)
        learned = learned_rows(rows)
        if all(learned) or not any(learned):
            raise InputError(f"{folder}: fewer than two conversations, to learn from and to judge by: give more rows")
        texts = [
            text for row, learns in zip(rows, learned, strict=True) for text in texts_of(row, learns, pair, stored)
        ]
        super().__init__(texts, str(folder.resolve()))


def rows_of_folder(folder: Path, target: Target) -> Iterator[StoredRow]:
    """Yield the rows that have states and teach something, each checked against the target; a warning says how many
    have no states."""
    without, number = 0, 0
    for number, (ids, mask) in enumerate(read_lists(folder, ("input_ids", "loss_mask")), 1):
        where, file = f"{folder}, row {number - 1}", folder / STATES / f"hs_{number - 1}.safetensors"
        if len(ids) != len(mask):
            raise InputError(f"{where}: {len(ids)} input_ids, but {len(mask)} of loss_mask")
        if not np.isin(mask, (0, 1)).all():
            raise InputError(f"{where}: loss_mask must be 0 or 1")
        vocabulary = len(target.lm_head.weight)
        if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
            raise InputError(f"{where}: input_ids must be from 0 to {vocabulary - 1}, the target's tokens")
        if not file.is_file():
            without += 1
        elif len(ids) > 2 and (runs := runs_of(mask)):
            row = StoredRow(torch.from_numpy(ids.astype(np.int32)), runs, file)
            check_states(row, target)
            yield row
    if 0 < without < number:
        warnings.warn(f"{folder}: {without} of {number} rows have no states, and are left out", stacklevel=2)


def runs_of(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return begin and end of each run of ones. The first token of a row, which follows nothing, is in none."""
    padded = np.concatenate([[0, 0], mask[1:].astype(np.int8), [0]])
    return [(int(begin), int(end)) for begin, end in np.flatnonzero(np.diff(padded)).reshape(-1, 2)]


def check_states(row: StoredRow, target: Target) -> None:
    """Raise InputError unless a row's file has states of the target's width for each of its tokens."""
    width = target.lm_head.weight.shape[1]
    with opened(row.file) as tensors:
        states = tensors.get_slice(STATES)
        shape, kind = states.get_shape(), states.get_dtype()
        ids = tensors.get_slice("token_ids")
        same = (ids.get_shape(), ids.get_dtype()) == ([len(row.ids)], "I64") and ids[:].equal(row.ids.long())
    if len(shape) != 3 or shape[0] != len(row.ids) or not shape[1] or kind not in TYPES:
        raise InputError(
            f"{row.file}: hidden_states are {shape} of {kind}; the row's must be [{len(row.ids)}, K, H] of numbers in "
            "16 or 32 bits"
        )
    if shape[2] != width:
        raise InputError(f"{row.file}: states of {shape[2]} numbers; the target's have {width}, so they are another's")
    if not same:
        raise InputError(f"{row.file}: token_ids are not the row's input_ids: the dataset was prepared again")


def states_at(file: Path, begin: int, end: int) -> Float[Tensor, "n K H"]:
    """Return a row's states at these positions. InputError for a damaged file, and for NaN and infinity."""
    with opened(file) as tensors:
        states = tensors.get_slice(STATES)[begin:end]
    if not states.isfinite().all():
        raise InputError(f"{file}: states contain NaN or infinity: delete the file to leave its row out")
    return states


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Context with the tensors of a file, none of which is read yet. InputError for a damaged one."""
    try:
        with safe_open(file, "pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: cannot be read ({one_line(error)}): delete it to leave its row out") from error


@torch.inference_mode()
def layers_of_states(row: StoredRow, target: Target) -> list[int]:
    """Return the layer at whose input each of a row's states was taken; the number of layers stands for the end of the
    last one. InputError for states that are near none of the target's."""
    tokens = row.ids[:COMPARED].long().to(target.device)
    before, layers = target.taps, range(target.num_layers + 1)
    target.tap(tuple(layers))
    try:
        _, true = target.session().read(tokens[None], torch.tensor([len(tokens)], device=target.device))
    finally:
        target.tap(before)
    true = true[0].float().cpu().unflatten(1, (len(layers), -1))
    stored = states_at(row.file, 0, len(tokens)).float()
    # Position by position: the first token's state may be a hundred times as large as all others.
    apart = torch.cdist(stored, true, compute_mode="donot_use_mm_for_euclid_dist") / true.norm(dim=-1)[:, None]
    least = apart.mean(0).min(-1)
    if not least.values.max() <= APART:
        number = int(least.values.argmax())
        raise InputError(
            f"{row.file}: state {number} of {stored.shape[1]} is none of the target's at the input of a layer or "
            "before its final norm: the states are of another model, or were taken elsewhere"
        )
    return least.indices.tolist()


def chosen(layers: list[int], kind: str, target: Target, folder: Path) -> StoredStates:
    """Return what a kind of head reads of states at the inputs of these layers. InputError if they are not all there,
    which names the kinds that the states serve."""
    count = target.num_layers
    needed = needed_by(KINDS[kind], count)
    if not set(needed) <= set(layers):
        serves = []
        for name, other in KINDS.items():
            with suppress(InputError):  # a target too shallow for it
                if set(needed_by(other, count)) <= set(layers):
                    serves.append(name)
        raise InputError(
            f"{folder}: the states are of layers {shown(layers)} and serve {', '.join(serves) or 'no kind of head'}; "
            f"{kind} needs {shown(needed)}: launch_vllm.py --target-layer-ids {shown(needed, ' ')}"
        )
    return StoredStates(target, layers.index(count), [layers.index(tap) for tap in needed[:-1]])


def needed_by(kind: HeadKind, count: int) -> tuple[int, ...]:
    """Return the layers whose inputs a kind of head reads of a target of `count` layers, and the end of the last."""
    return (*(default_taps(count) if kind.taps else ()), count)


def shown(layers: Sequence[int], between: str = ", ") -> str:
    return between.join(map(str, layers))


def learned_rows(rows: list[StoredRow]) -> list[bool]:
    """Return which rows are learned from; the others are for validation (see `held_out`).

    A row belongs to the conversation of another one if its question begins with that one's: later turns, or other
    answers. A text without a question is one of its own.
    """
    questions = [(row.ids[:begin] if (begin := row.runs[0][0]) > 1 else row.ids).numpy().tobytes() for row in rows]
    first, leader = {}, None
    for question in sorted(set(questions)):
        if leader is None or not question.startswith(leader):
            leader = question
        first[question] = leader.hex()
    out = held_out(first.values())
    return [first[question] not in out for question in questions]


def texts_of(row: StoredRow, learned: bool, pair: Pair, stored: StoredStates) -> Iterator[StoredText]:
    """Yield the texts of a row: for every ANSWER tokens of its runs one, with the tokens before them."""
    turn = "" if learned else question_in_words(pair, row.ids[: row.runs[0][0]].tolist())
    for run, end in row.runs:
        for answer in range(run, end, ANSWER):
            begin = max(0, answer + ANSWER - LONGEST)
            ids = row.ids[begin : min(answer + ANSWER, end)]
            if len(ids) > 2:
                yield StoredText(ids, answer - begin, turn, learned, row.file, begin, stored)


def question_in_words(pair: Pair, ids: list[int]) -> str:
    """Return the user's first turn of a rendered conversation; where the chat template is none of the pair's, all of
    it."""
    if pair.template:
        with suppress(InputError):  # an unusual template
            before, _, after = rendered(pair.tokenizer, [{"role": "user", "content": MARK}]).partition(MARK)
            text, end = pair.tokenizer.decode(ids), after.strip().partition("\n")[0]
            if before and end and before in text:
                return text.partition(before)[2].partition(end)[0].strip()
    return pair.tokenizer.decode(ids, skip_special_tokens=True)
