"""Medusa's heads as they are published (arXiv 2401.10774): H of them read the target's feature, and head k predicts
the token k + 1 positions after the one that the target predicts there.

    h_k = x + SiLU(W x + b), `medusa_num_layers` times;  logits of head k = its own LM head (or the target's) of h_k

x is the feature of the token before the root, so a round costs no forward but these. Files:
`medusa_lm_head.safetensors` or `medusa_lm_head.pt` with `{head}.{layer}.linear.weight`, `.bias` and, for its own LM
head, `{head}.{layers}.weight`; `config.json` with `medusa_num_layers`. There are as many heads as in the file:
published configs name fewer.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from c2t.errors import InputError
from c2t.models.drafts.medusa import AtDepth, ByDepth
from c2t.models.drafts.session import BaseDraft, DraftSession, refuse_nan
from c2t.models.loading.weight_files import INDEX, read_weights
from c2t.models.packing.projection import Projection
from c2t.storage.checked import OPEN, from_json, read_file
from c2t.tree import Tree

SAFE, PICKLED = FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
MOST = 64  # largest number of heads of a file, and of layers of a head


class ResBlock(nn.Module):
    """Medusa's residual block."""

    def __init__(self, hidden: int):
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
        """Return x + SiLU(W x + b)."""
        return x + F.silu(self.linear(x))


class PublishedMedusaHeads(nn.ModuleList):
    """Heads with upstream's parameter names. hidden: width of the target's features. vocabulary: tokens of each head's
    own LM head; None: it has none."""

    tokens = None  # they can name every token of the target

    def __init__(self, heads: int, layers: int, hidden: int, vocabulary: int | None):
        self.layers, self.hidden, self.vocabulary = layers, hidden, vocabulary
        sizes = [] if vocabulary is None else [vocabulary]
        super().__init__(
            nn.Sequential(
                *(ResBlock(hidden) for _ in range(layers)), *(nn.Linear(hidden, v, bias=False) for v in sizes)
            )
            for _ in range(heads)
        )

    def states(self, features: Float[Tensor, "B H"]) -> Float[Tensor, "B D H"]:
        """Return each head's state, which its LM head reads."""
        return torch.stack([head[: self.layers](features) for head in self._heads()], 1)

    def lm_heads(self, shared: nn.Module) -> list[nn.Module]:
        """Return each head's LM head: its own, or the target's."""
        return [shared if self.vocabulary is None else head[self.layers] for head in self._heads()]

    def _heads(self) -> Iterator[nn.Sequential]:
        yield from self  # type: ignore[misc]


class PublishedMedusaDraft(BaseDraft):
    """Draft made of published heads, with one session per generation. lm_head: the target's, for heads without one."""

    reads_path = False

    def __init__(self, head: PublishedMedusaHeads, lm_head: nn.Module):
        self.head = head
        self.lm_heads = [Projection(layer) for layer in head.lm_heads(lm_head)]

    @property
    def hidden_size(self) -> int:
        return self.head.hidden

    def session(self) -> "PublishedMedusaSession":
        """Return a new session for one generation."""
        return PublishedMedusaSession(self)


@DraftSession.register  # without keys and values: only the last feature counts
class PublishedMedusaSession:
    """Draft session that holds the feature before each row's root. passes: as in `DraftSession`; the heads of a
    round count as one."""

    def __init__(self, draft: PublishedMedusaDraft):
        self.draft, self.dtype = draft, next(draft.head.parameters()).dtype
        self.passes: Int[Tensor, " B"] | None = None

    def observe(self, tokens: Int[Tensor, "B n"], features: Float[Tensor, "B n-1 H"], count: Int[Tensor, " B"]) -> None:
        """See `DraftSession.observe`."""
        self._begin(features.gather(1, (count - 1)[:, None, None].expand(-1, 1, features.shape[2]))[:, 0])

    def _begin(self, feature: Float[Tensor, "B H"]) -> None:
        self.feature, self.passes = feature, torch.zeros(len(feature), dtype=torch.long, device=feature.device)
        self.ahead: ByDepth | None = None

    def expand(self, tree: Tree, slots: Int[Tensor, "B F"]) -> AtDepth:
        """See `c2t.protocols.Draft.expand`; all slots of a depth have the distribution of that depth's head, and below
        the last head all tokens are equal."""
        if self.ahead is None:
            self.passes = self.passes + tree.alive[:, 0]
            # a packed target's features are in float32 whatever its dtype
            states = self.draft.head.states(self.feature.to(self.dtype))
            parts = [lm_head(states[:, [k]]).to(states.device) for k, lm_head in enumerate(self.draft.lm_heads)]
            below = (0, 0, 0, 1)
            self.ahead = ByDepth(F.pad(torch.cat(parts, 1), below), F.pad(states, below), None)
        depth = tree.depth.gather(1, slots.clamp(min=0)) + 1
        return AtDepth(self.ahead, depth.clamp(max=len(self.draft.lm_heads)))

    def rewind(self, back: Int[Tensor, " B"]) -> None:
        """See `DraftSession.rewind`; it knows nothing but what it observed last."""

    def fork(self, back: Int[Tensor, " B"]) -> "PublishedMedusaSession":
        """See `DraftSession.fork`."""
        fork = copy.copy(self)
        fork._begin(self.feature.expand(len(back), -1))
        return fork

    def refuse_nan(self) -> None:
        """See `DraftSession.refuse_nan`."""
        if self.ahead is not None:
            refuse_nan(self.ahead.log_norm.isnan().any())

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order; they observe next, which says all that there is to know."""

    def join(self, other: "PublishedMedusaSession") -> None:
        """See `DraftSession.join`."""
        self._begin(torch.cat([self.feature, other.feature]))


@dataclass(frozen=True)
class _Config:
    """Entries of config.json that are read."""

    __pydantic_config__ = OPEN
    medusa_num_layers: Annotated[int, Field(ge=1, le=MOST)] = 1


def is_published(folder: Path) -> bool:
    """Return True for the folder of published Medusa heads."""
    return any((folder / name).is_file() or (folder / f"{name}{INDEX}").is_file() for name in FILES)


def load_heads(folder: Path, embed_tokens: nn.Embedding) -> PublishedMedusaHeads:
    """Load published heads onto the device and into the dtype of the target's embedding. InputError for heads of
    another target, and for missing, unexpected or unreadable weights."""
    vocabulary, hidden = embed_tokens.weight.shape
    config = folder / "config.json"
    layers = from_json(_Config, read_file(config), config).medusa_num_layers
    state = read_weights(folder, SAFE, PICKLED)
    count = 1 + max((int(name.split(".")[0]) for name in state if name.split(".")[0].isdecimal()), default=0)
    if count > MOST:
        raise InputError(f"{folder}: {count} heads; at most {MOST} are read")
    head_vocabulary = vocabulary if f"0.{layers}.weight" in state else None
    with torch.device("meta"):  # which takes no memory before the names are those of the file
        heads = PublishedMedusaHeads(count, layers, hidden, head_vocabulary)
    wanted = heads.state_dict()
    missing, unexpected = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or unexpected:
        what = f"missing weights {missing[:3]}, unexpected weights {unexpected[:3]}"
        raise InputError(f"{folder}: {what}: not Medusa's published heads of {layers} layers")
    for name, tensor in wanted.items():
        if state[name].shape != tensor.shape:
            raise InputError(
                f"{folder}: {name} is {tuple(state[name].shape)}, the target needs {tuple(tensor.shape)}; "
                "take the heads of this target"
            )
        if not state[name].is_floating_point():
            raise InputError(f"{folder}: {name} is stored as {state[name].dtype}; c2t reads fp32, fp16 or bf16")
    like = embed_tokens.weight
    heads.load_state_dict({name: tensor.to(like.device, like.dtype) for name, tensor in state.items()}, assign=True)
    return heads.requires_grad_(False).eval()
