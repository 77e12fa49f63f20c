"""The target: a stock causal LM of transformers, which verifies a tree in one forward.

The stock attention gets a 4-D mask, explicit positions, and a cache of c2t. This works for families with softmax
attention over one growing cache, with or without sinks. Sliding windows become part of the mask.
"""

import copy
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from c2t.caches.padded import KVCache
from c2t.caches.pool import KVPool
from c2t.caches.ragged import Ragged, SlotLogits, chunks, concatenated
from c2t.errors import InputError
from c2t.kernels.decoder_layers import PackedMatrix, Stored
from c2t.kernels.tree_mask import TreeMask
from c2t.models.packing.projection import Projection
from c2t.models.packing.versions import Version, Versions
from c2t.models.target.attention import TREE_ATTENTION, check_heads, tree_arguments
from c2t.models.target.layers import layers_of
from c2t.models.target.masks import mask_arguments
from c2t.models.target.offloaded import device_of
from c2t.models.target.packed_model import PackedModel
from c2t.models.target.positions import positions_of, within
from c2t.models.target.prefixes import Beginning, Prefixes, joined, uncached, unpadded
from c2t.models.target.row_attention import RowAttention
from c2t.models.target.stock import attends_by_softmax, is_transformers_own, makes_own_masks
from c2t.models.target.taps import Tap
from c2t.tree import Tree

# Families for which tests compare a tree's forward with the forward of each path.
FAMILIES = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "smollm3"),
    *("gpt_oss", "gemma3_text", "phi3", "olmo2", "olmo3", "gpt2"),
)


ATTENTION = ("sdpa", "eager", TREE_ATTENTION)


class Verified(NamedTuple):
    """Result of one target forward: logits of the next token after every slot, and features for the draft.

    Features are the hidden states after the final norm, unless `Target.tap` chose others. Those of slots that are not
    real are meaningless. hidden: the states after the final norm, where a prefill was asked for them. cached: how many
    tokens of each prompt were not computed again, if any.
    """

    logits: SlotLogits
    features: Float[Tensor, "B m D"]
    hidden: Float[Tensor, "B n H"] | None = None
    cached: Sequence[int] = ()


def check_attention(model: PreTrainedModel) -> None:
    """Raise InputError unless the model's attention takes a tree mask, and transformers itself makes its masks."""
    name = model.config._attn_implementation
    if name not in ATTENTION:
        raise InputError(
            f"attention by {name} takes no mask of a tree: load the model with attn_implementation one of "
            f"{', '.join(ATTENTION)}"
        )
    if not makes_own_masks(name):
        raise InputError(f"the masks of {name} are not made by transformers' own function, and trees bring their own")


@torch.no_grad()
def check_forward(model: PreTrainedModel) -> None:
    """Raise InputError unless a model's logits are its LM head of its base model's states: a tree's forward runs no
    more.

    Models of transformers' own classes pass; others are run on a few tokens.
    """
    if is_transformers_own(model):
        return
    head: Any = model.get_output_embeddings()
    device = device_of(model.get_input_embeddings())
    tokens = torch.arange(min(4, model.config.get_text_config(decoder=True).vocab_size), device=device)[None]
    states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    logits, expected = model(input_ids=tokens, use_cache=False).logits, head(states)
    if not logits.float().equal(expected.to(logits.device).float()):
        raise InputError(
            f"the forward of {model.__class__.__name__} does more than its layers and its LM head, which trees would "
            "pass over: load the model without that"
        )


def check_family(family: str, where: str = "") -> None:
    """Raise InputError for a model of a family that is not in FAMILIES; the message begins with `where`."""
    if family not in FAMILIES:
        raise InputError(f"{where}{family} models are not supported; known: {', '.join(FAMILIES)}")


class Target:
    """A causal LM, and the facts about it that decoding needs.

    rounded: compute layers and LM head in int8. int4: with `rounded`, in int4 except for the largest logits. stored:
    with `rounded`, finds the numbers that the weights came as, of a file in few bits, and none is rounded.

    Raises InputError for a family not in FAMILIES, for attention that takes no tree mask, and for a model that cannot
    be rounded here. Also raises it for one that runs more than its layers and its LM head (`check_forward`).
    """

    def __init__(self, model: PreTrainedModel, rounded: bool = False, int4: bool = False, stored: Stored | None = None):
        check_family(model.config.model_type)
        check_attention(model)
        check_forward(model)
        if getattr(model.config, "final_logit_softcapping", None) is not None:
            raise InputError("final_logit_softcapping of the target is not supported")
        self.rounded, self.int4 = rounded, int4
        if rounded and (why := PackedModel.why_not_rounded(model)):
            raise InputError(f"the target cannot be computed in {self.rounded_to}: {why}; choose another dtype")
        model.eval()
        self.model: Any = model  # not the result of eval(): the model may be a weak proxy
        self.lm_head = model.get_output_embeddings()
        self.embed_tokens: nn.Embedding = model.get_input_embeddings()
        self.config = model.config.get_text_config(decoder=True)
        self.stored = stored
        self._project = Projection(self.lm_head, rounded, int4, stored)
        self.tapped: dict[int, Tensor | None] = {}  # inputs of the tapped layers in the last forward
        self._hooks: list[RemovableHandle] = []
        self._versions = Versions()
        self._packed: tuple[Version, PackedModel] | None = None
        self.prefixes: Prefixes | None = None  # cached beginnings of prompts, for a server or a conversation
        self._loaded = self.version if stored else None

    @property
    def rounded_to(self) -> str:
        """Name of the type that the weights are rounded to: int8, int4 or ""."""
        return ("int4" if self.int4 else "int8") if self.rounded else ""

    @property
    def version(self) -> Version | None:
        """Version of the weights of the packed form; None if the model has no packed form. InputError if a rounded
        target has lost it."""
        if self.has_tree_attention or self.is_split or not PackedModel.serves(self.model):
            if self.rounded:
                raise InputError(
                    f"the target's layers were changed, and are not what runs in {self.rounded_to} any more: load it "
                    "again"
                )
            return None
        tensors, numbers = PackedModel.made_of(self.model)
        return self._versions.of(tensors, *numbers)

    @property
    def packed(self) -> PackedModel | None:
        """The model's packed form for decoding on a CPU; None if it has none. InputError: see `version`."""
        return self.packed_of(self.version)

    def packed_of(self, version: Version | None) -> PackedModel | None:
        """Return the packed form of the weights of this version, repacked if they have changed."""
        if version is None:
            return None
        if self._packed is None or self._packed[0] != version:
            if self.stored and version != self._loaded:
                raise InputError("the target's weights were changed, and are not those of its file: load it again")
            self._packed = version, PackedModel(self.model, self.rounded, self.int4, self.stored)
            self._forget()
        return self._packed[1]

    @property
    def packed_lm_head(self) -> PackedMatrix | None:
        """Packed copy of the LM head's current weights; None if it has none."""
        return self._project.packed()

    @cached_property
    def quantized(self) -> "Target":
        """The same model in int4, except for the largest logits, for `c2t.policies.hierarchical`. InputError if it
        cannot be rounded here."""
        why = PackedModel.why_not_rounded(self.model) or ("it is in 4 bits itself" if self.int4 else None)
        if why:
            raise InputError(f"the target cannot draft in 4 bits: {why}; choose another policy")
        other = copy.copy(self)  # the constructor would change the caller's model
        other.rounded = other.int4 = True
        other.stored = None
        other._project, other._packed = Projection(self.lm_head, rounded=True, int4=True), None
        other.tapped, other._hooks, other.prefixes = {}, [], None
        return other

    def sharing_weights(self) -> "Target":
        """Return a target with the same tensors, but with separate modules and settings."""
        other = object.__new__(Target)
        tensors = chain(self.model.parameters(), self.model.buffers())
        # Hooks of tapped layers refer to their target, so it is replaced in the copy.
        copies = {id(self): other, **{id(tensor): tensor for tensor in tensors}}
        other.__init__(copy.deepcopy(self.model, copies), self.rounded, self.int4, self.stored)  # type: ignore[misc]
        other.tapped = dict.fromkeys(self.tapped)
        return other

    @property
    def is_split(self) -> bool:
        """True if the weights are split over processes (`c2t.models.target.tensor_parallel`)."""
        return (getattr(self.model, "tp_size", None) or 1) > 1

    @property
    def num_layers(self) -> int:
        """Number of layers, each with keys and values. InputError: see `layers_of`."""
        return len(layers_of(self.model))

    @property
    def max_positions(self) -> int:
        """Maximum number of positions of a text; see `positions_of`."""
        return positions_of(self.config)

    @property
    def eos(self) -> frozenset[int]:
        """Tokens that end a text, by the checkpoint's generation config."""
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    @property
    def device(self) -> torch.device:
        return device_of(self.embed_tokens)

    def session(self) -> "TargetSession":
        """Return a new session for one generation."""
        return TargetSession(self)

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers that `tap` chose."""
        return tuple(self.tapped)

    def use_tree_attention(self) -> None:
        """Verify trees with c2t's kernel, which skips empty blocks of the tree mask, instead of SDPA with a dense mask.

        Raises InputError for head dimensions that the kernel has no blocks for, and for attention with sinks.
        """
        if self.model.config.model_type == "gpt_oss":
            raise InputError("tree attention has no sinks, which gpt_oss needs; decode without it")
        if self.rounded:
            raise InputError(
                f"tree attention and CUDA graphs run transformers' layers, not {self.rounded_to}: choose another dtype"
            )
        check_heads(self.config)
        if not self.has_tree_attention and not attends_by_softmax(self.model):
            raise InputError("the model's attention is not transformers' own function: decode without tree attention")
        self.model.set_attn_implementation(TREE_ATTENTION)

    @property
    def has_tree_attention(self) -> bool:
        return self.model.config._attn_implementation == TREE_ATTENTION

    def tap(self, layers: tuple[int, ...]) -> None:
        """Use the inputs of these layers, concatenated, as features (EAGLE-3). InputError for a family without layers.

        The index after the last layer is the input of the final norm. Without layers, features are the states after
        the final norm.
        """
        for hook in self._hooks:
            hook.remove()
        base = self.model.base_model
        if layers and not (hasattr(base, "layers") and hasattr(base, "norm")):
            raise InputError(f"{self.model.config.model_type} has no layers that an EAGLE-3 head could read")
        modules = [*base.layers, base.norm] if layers else []
        self.tapped = {index: None for index in layers}
        self._forget()
        self._hooks = [modules[index].register_forward_pre_hook(Tap(self, index), with_kwargs=True) for index in layers]

    def _forget(self) -> None:
        """Clear cached prompts, because weights or features have changed."""
        if self.prefixes is not None:
            self.prefixes.clear()

    def features(self, hidden: Float[Tensor, "B n H"]) -> Float[Tensor, "B n D"]:
        """Return the draft's features. Call it right after the forward that returned `hidden`."""
        if not self.tapped:
            return hidden
        return torch.cat([state.to(self.device) for state in self.tapped.values()], -1)

    def forward(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        mask: Bool[Tensor, "B n t"] | TreeMask,
        cache: KVCache,
    ) -> Float[Tensor, "B n H"]:
        """Append n tokens to the cache and return their states after the final norm. mask: slots that each token
        attends to."""
        if isinstance(mask, TreeMask):
            masks = tree_arguments(mask)
        else:
            distance = lambda: positions[:, :, None] - cache.positions(positions)[:, None]  # noqa: E731
            masks = {"attention_mask": mask_arguments(self.model, mask, distance)}
        hidden = self.model.base_model(
            input_ids=tokens,
            position_ids=within(positions, self.config),  # a text's last tree may extend past its last position
            past_key_values=cache,
            use_cache=True,
            **masks,
        ).last_hidden_state
        return hidden.to(self.device)  # where layers are spread over devices, the last one is elsewhere

    def forward_rows(
        self,
        tokens: Int[Tensor, " R"],
        positions: Int[Tensor, " R"],
        sees: Bool[Tensor, "R n"],
        rows: Ragged,
        cache: KVPool,
        tree: Tree | None = None,
    ) -> Float[Tensor, "R H"]:
        """Run R tokens of a packed batch, whose slots the cache has assigned; return their states after the final norm.

        Each token attends to its row's committed slots, and to those of the row's n new ones that `sees` marks. tree:
        the trees, for tree attention.
        """
        with RowAttention(self.model, positions, sees, rows, cache, tree) as attention:
            hidden = self.model.base_model(
                input_ids=tokens[None],
                # A text's last tree may extend past its last position.
                position_ids=within(positions, self.config)[None],
                past_key_values=cache,
                use_cache=True,
                **attention,
            ).last_hidden_state[0]
        return hidden.to(self.device)  # where layers are spread over devices, the last one is elsewhere

    def logits(self, hidden: Float[Tensor, "B n H"]) -> Float[Tensor, "B n V"]:
        """Return the LM head's logits for these states."""
        return self._project(hidden).to(self.device)


class TargetSession:
    """One generation of B rows; the cache holds the committed prefix without the root.

    A forward computes the real slots of all rows as one packed batch. On a CPU most families run in their packed form:
    it sums in float32 for every dtype of weights. A token's logits then have the same bits in a tree and in plain
    decoding.
    """

    def __init__(self, target: Target):
        self.version = target.version
        self._take(target)
        self.cache = KVPool(target.num_layers)

    def _take(self, target: Target) -> None:
        """Use this target: its layers of the session's version, and its current LM head."""
        self.target, self.packed = target, target.packed_of(self.version)
        self._lm_head = None if self.packed is None else target.packed_lm_head

    @cached_property
    def quantized(self) -> "TargetSession":
        """A session of the target's int4 form over the same cache. InputError if the target has none."""
        session, target = copy.copy(self), self.target.quantized
        if self.version is None and target.rounded:  # tests stand an unrounded model in for the int4 form
            raise InputError(
                "the target cannot draft in 4 bits: its layers have hooks or were changed; choose another policy"
            )
        target.tapped = dict.fromkeys(self.target.taps)  # the packed form fills it without hooks
        session._take(target)
        return session

    def forward(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"],
        sees: Bool[Tensor, "B n n"],
        rows: Ragged,
        tree: Tree | None = None,
    ) -> Float[Tensor, "R H"]:
        """Append the real ones of n slots of each row to the cache; return their states after the final norm.

        Each slot attends to its row's committed prefix, and to the row's new slots that `sees` marks. tree: the trees,
        if the slots are nodes of trees.
        """
        tokens, positions, sees = map(rows.take, (tokens, positions, sees))
        if self.packed is not None:
            return self.packed(tokens, positions, sees, rows, self.cache, self.target.tapped)
        self.cache.append(rows)
        return self.target.forward_rows(tokens, positions, sees, rows, self.cache, tree)

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """Committed tokens of each row, without the root."""
        return self.cache.lengths

    def read(
        self, tokens: Int[Tensor, "B n"], count: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B n H"], Float[Tensor, "B n D"]]:
        """Run the next count[r] tokens of row r's text and commit them; return their states after the final norm, and
        the draft's features. Both are meaningless after a row's last token."""
        hidden, features = zip(*(self._read(part, real) for real, part in chunks(count, tokens)), strict=True)
        return concatenated(hidden), concatenated(features)

    def _read(
        self, tokens: Int[Tensor, "B n"], count: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, "B n H"], Float[Tensor, "B n D"]]:
        """Do `read` in one forward."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        causal = (steps[:, None] >= steps).expand(len(tokens), -1, -1)
        start = torch.zeros_like(count) if self.cache.lengths is None else self.cache.lengths
        rows = Ragged.of(steps < count[:, None])
        hidden = self.forward(tokens, start[:, None] + steps, causal, rows)
        self.cache.keep(steps.expand_as(tokens), count)
        return rows.back(hidden), rows.back(self.target.features(hidden[None])[0])

    def prefill(self, tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"], whole: Collection[int] = ()) -> Verified:
        """Run prompts, padded on the right; return features of all tokens, and logits after each row's last token, as
        the row's only slot. A beginning of a prompt that is cached (`Target.prefixes`) is not computed again.

        whole: rows of which all tokens are computed nevertheless; `hidden` then has their states.
        """
        # Only the packed form: its results do not depend on the rest of the batch, so texts cannot change.
        prefixes = None if self.packed is None else self.target.prefixes
        prompts = [] if prefixes is None else unpadded(tokens, lengths)
        cached = [None if row in whole else prefixes.longest(prompt) for row, prompt in enumerate(prompts)]
        if any(cached):
            self.cache.begin([beginning.caches if beginning else () for beginning in cached], tokens.device)
        rest, count = uncached(cached, tokens, lengths)
        hidden, features = self.read(rest, count)
        features = joined(cached, features, count)
        last = hidden[torch.arange(len(count), device=count.device), count - 1]
        for row, prompt in enumerate(prompts):
            caches = [self.cache.prefix(layer, row) for layer in range(len(self.cache.buffers))]
            prefixes.keep(prompt, Beginning(caches, features[row, : len(prompt)]))
        number = torch.arange(len(last), device=last.device)[:, None]
        taken = (lengths - count).tolist() if any(cached) else ()
        return Verified(SlotLogits(self.logits(last), number), features, hidden if whole else None, taken)

    def verify(self, tree: Tree) -> Verified:
        """Run one forward over the trees; nothing is committed until `commit`."""
        real = tree.alive
        if self.packed is None and self.target.has_tree_attention:  # its kernel takes a row's first slots, without gaps
            real = real.flip(1).cummax(1).values.flip(1)
        rows = Ragged.of(real)
        hidden = self.forward(tree.token, tree.positions(self.cache.lengths), tree.ancestors(), rows, tree)
        features = rows.back(self.target.features(hidden[None])[0])
        return Verified(SlotLogits(self.logits(hidden), rows.packed_index), features)

    def logits(self, hidden: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        """Return the LM head's logits for these states."""
        return self.target.logits(hidden[None])[0] if self._lm_head is None else self._lm_head(hidden)

    def peek(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Return the next token's logits after a root; nothing is committed."""
        logits = self.verify(Tree.root(token)).logits.values
        self.cache.drop()
        return logits

    def commit(self, slots: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """Commit the accepted path of the tree just verified: slots[r, :count[r]], root first."""
        self.cache.keep(slots, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def join(self, other: "TargetSession") -> None:
        """Append the rows of another session of the same target; neither may have an uncommitted tree."""
        self.cache.join(other.cache)


def check_logits(logits: Float[Tensor, "B V"], who: str) -> None:
    """Raise InputError if a row of logits has NaN or +inf, or only -inf: the checkpoint is broken or the dtype too
    narrow."""
    check_finite(logits.amax(-1).tolist(), who)


def check_finite(largest: list[float], who: str) -> None:
    """Raise InputError unless the largest logit of each row is finite; NaN counts as the largest."""
    if not all(map(isfinite, largest)):  # also where all are -inf or one is +inf
        raise InputError(
            f"the {who}'s logits contain NaN or infinity; check its checkpoint, or load it in a wider dtype"
        )
