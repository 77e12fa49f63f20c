"""The target: any stock causal LM of transformers, verifying a tree in one forward.

The stock attention gets a 4-D mask and explicit positions; the cache is ours. It works with families whose attention is
softmax over one growing cache, with sinks or without; sliding windows go into the mask.
"""

import copy
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
from c2t.caches.ragged import Ragged, SlotLogits, end_to_end, stretches
from c2t.errors import InputError
from c2t.kernels.llama_layer import PackedMatrix
from c2t.kernels.tree_mask import TreeMask
from c2t.models.packing.projection import Projection
from c2t.models.packing.versions import Version, Versions
from c2t.models.target.attention import TREE_ATTENTION, check_heads, tree_arguments
from c2t.models.target.layers import layers_of
from c2t.models.target.offloaded import device_of
from c2t.models.target.packed_llama import PackedLlama
from c2t.models.target.positions import positions_of, within
from c2t.models.target.prefixes import Beginning, Prefixes, joined, uncached, unpadded
from c2t.models.target.row_attention import RowAttention
from c2t.models.target.stock import attends_by_softmax, is_transformers_own, makes_own_masks
from c2t.models.target.taps import Tap
from c2t.tree import Tree

# Tested: tree forward = forward of every path.
FAMILIES = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
    *("gpt_oss", "gemma3_text", "phi3", "olmo2", "gpt2"),
)


ATTENTION = ("sdpa", "eager", TREE_ATTENTION)


class Verified(NamedTuple):
    """Result of one target forward: logits of the next token after every slot, and the features that the draft reads.

    Features are the post-final-norm hidden states, which the LM head reads too, unless `Target.tap` chose others; those
    of slots that are not real mean nothing.
    """

    logits: SlotLogits
    features: Float[Tensor, "B m D"]


def check_attention(model: PreTrainedModel) -> None:
    """Raise InputError for attention that takes no mask of a tree, or whose masks are not transformers' own: a tree's
    forward brings its own."""
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
    """Raise InputError unless a model's logits are what its LM head makes of its base model's states, which is all that
    a tree's forward runs. Models of transformers' own classes pass; others are run on a few tokens."""
    if is_transformers_own(model):
        return
    head: Any = model.get_output_embeddings()
    tokens = torch.arange(min(4, model.config.get_text_config(decoder=True).vocab_size), device=model.device)[None]
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
    """Causal LM and the facts about it that the runtime needs. rounded: layers and LM head are computed in 8 bits;
    int4: in 4 then, except for the largest logits.

    InputError for a family that is not in FAMILIES, for attention that takes no mask of a tree, for a model that does
    more than its layers and its LM head (`check_forward`), and for what cannot be rounded here.
    """

    def __init__(self, model: PreTrainedModel, rounded: bool = False, int4: bool = False):
        check_family(model.config.model_type)
        check_attention(model)
        check_forward(model)
        if getattr(model.config, "final_logit_softcapping", None) is not None:
            raise InputError("final_logit_softcapping of the target is not supported")
        if rounded and (why := PackedLlama.why_not_rounded(model)):
            raise InputError(f"the target cannot be computed in int8: {why}; choose another dtype")
        model.eval()
        self.rounded, self.int4 = rounded, int4
        self.model: Any = model  # not what eval() returns: the model may be a weak proxy
        self.lm_head = model.get_output_embeddings()
        self.embed_tokens: nn.Embedding = model.get_input_embeddings()
        self.config = model.config.get_text_config(decoder=True)
        self._project = Projection(self.lm_head, rounded, int4)
        self.tapped: dict[int, Tensor | None] = {}  # inputs of the tapped layers in the last forward
        self._hooks: list[RemovableHandle] = []
        self._versions = Versions()
        self._packed: tuple[Version, PackedLlama] | None = None
        self.prefixes: Prefixes | None = None  # beginnings of prompts, where a server or a conversation caches them

    @property
    def version(self) -> Version | None:
        """Version of the weights that the packed form is made of; None if the model has no such form. InputError if
        one in int8 has none any more."""
        if self.has_tree_attention or self.is_split or not PackedLlama.serves(self.model):
            if self.rounded:
                raise InputError(
                    "the target's layers were changed, and are not what runs in int8 any more: load it again"
                )
            return None
        return self._versions.of(*PackedLlama.made_of(self.model))

    @property
    def packed(self) -> PackedLlama | None:
        """The model's packed form for decoding on a CPU; None if it has none. InputError: see `version`."""
        return self.packed_of(self.version)

    def packed_of(self, version: Version | None) -> PackedLlama | None:
        """Return the packed form of weights of this version, made again if it was of others."""
        if version is None:
            return None
        if self._packed is None or self._packed[0] != version:
            self._packed = version, PackedLlama(self.model, self.rounded, self.int4)
            self._forget()
        return self._packed[1]

    @property
    def packed_lm_head(self) -> PackedMatrix | None:
        """The packed copy of the LM head's weights as they are now; None if it has none."""
        return self._project.packed()

    @cached_property
    def quantized(self) -> "Target":
        """The same model in 4 bits, except for the largest logits, for `c2t.policies.hierarchical`. InputError for one
        that cannot be rounded here."""
        if why := PackedLlama.why_not_rounded(self.model):
            raise InputError(f"the target cannot draft in 4 bits: {why}; choose another policy")
        other = copy.copy(self)  # the constructor would change the caller's model
        other.rounded = other.int4 = True
        other._project, other._packed = Projection(self.lm_head, rounded=True, int4=True), None
        other.tapped, other._hooks, other.prefixes = {}, [], None
        return other

    def sharing_weights(self) -> "Target":
        """Return a target with these tensors, but with its own modules and settings."""
        other = object.__new__(Target)
        tensors = chain(self.model.parameters(), self.model.buffers())
        # Hooks of tapped layers hold the target that they report to.
        copies = {id(self): other, **{id(tensor): tensor for tensor in tensors}}
        other.__init__(copy.deepcopy(self.model, copies), self.rounded, self.int4)  # type: ignore[misc]
        other.tapped = dict.fromkeys(self.tapped)
        return other

    @property
    def is_split(self) -> bool:
        """True if each process of a run has a part of the weights (`c2t.models.target.tensor_parallel`)."""
        return (getattr(self.model, "tp_size", None) or 1) > 1

    @property
    def num_layers(self) -> int:
        """Layers that the model runs, each with keys and values. InputError: see `layers_of`."""
        return len(layers_of(self.model))

    @property
    def max_positions(self) -> int:
        """Positions that a text may have; see `positions_of`."""
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
        """Verify trees with c2t's own kernel, which skips the empty blocks of a tree's mask, instead of SDPA with a
        dense mask. Raises InputError for head dimensions that it has no blocks for, and for attention with sinks."""
        if self.model.config.model_type == "gpt_oss":
            raise InputError("tree attention has no sinks, which gpt_oss needs; decode without it")
        if self.rounded:
            raise InputError("tree attention and CUDA graphs run transformers' layers, not int8: choose another dtype")
        check_heads(self.config)
        if not self.has_tree_attention and not attends_by_softmax(self.model):
            raise InputError("the model's attention is not transformers' own function: decode without tree attention")
        self.model.set_attn_implementation(TREE_ATTENTION)

    @property
    def has_tree_attention(self) -> bool:
        return self.model.config._attn_implementation == TREE_ATTENTION

    def tap(self, layers: tuple[int, ...]) -> None:
        """Take the inputs of these layers, side by side, as features (EAGLE-3); the number of layers stands for the
        input of the final norm. None of them: the post-norm state. InputError for a family without such layers."""
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
        """Forget prompts that other weights have read, or of which a draft read other features."""
        if self.prefixes is not None:
            self.prefixes.clear()

    def features(self, hidden: Float[Tensor, "B n H"]) -> Float[Tensor, "B n D"]:
        """Return the features that the draft reads. Call it right after the forward that returned `hidden`."""
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
        """Append n tokens to the cache and return their post-norm states; `mask` says which of the t slots each of them
        sees."""
        if isinstance(mask, TreeMask):
            masks = tree_arguments(mask)
        else:
            masks = {"attention_mask": self._masks(mask, positions, cache)}
        hidden = self.model.base_model(
            input_ids=tokens,
            position_ids=within(positions, self.config),  # past whose end a text's last tree may reach
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
        """Run R tokens of rows of different sizes, which the cache has slots for, and return their post-norm states.
        Each sees its row's committed slots, and of the row's n new ones those that `sees` marks. tree: what they are,
        for tree attention."""
        with RowAttention(self.model, positions, sees, rows, cache, tree) as attention:
            hidden = self.model.base_model(
                input_ids=tokens[None],
                position_ids=within(positions, self.config)[None],  # past whose end a text's last tree may reach
                past_key_values=cache,
                use_cache=True,
                **attention,
            ).last_hidden_state[0]
        return hidden.to(self.device)  # where layers are spread over devices, the last one is elsewhere

    def logits(self, hidden: Float[Tensor, "B n H"]) -> Float[Tensor, "B n V"]:
        """Return the LM head's logits for these states."""
        return self._project(hidden).to(self.device)

    def _masks(self, mask: Tensor, positions: Tensor, cache: KVCache) -> Tensor | dict[str, Tensor]:
        """Return the 4-D mask as the model's attention takes it, cut at the sliding window if there is one: a mask for
        each kind of layer where a model mixes kinds."""
        kinds = set(getattr(self.config, "layer_types", None) or ())
        window = getattr(self.config, "sliding_window", None)
        full = self._as_taken(mask[:, None])
        if window is None or kinds == {"full_attention"}:
            return full
        stored = cache.positions(positions)
        sliding = self._as_taken((mask & (positions[:, :, None] - stored[:, None] < window))[:, None])
        return {"full_attention": full, "sliding_attention": sliding} if len(kinds) > 1 else sliding

    def _as_taken(self, mask: Bool[Tensor, "B 1 n t"]) -> Tensor:
        """Return a mask as it is, except for eager attention, which would add True to the scores as a 1."""
        if self.model.config._attn_implementation != "eager":
            return mask
        dtype = self.model.dtype
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


class TargetSession:
    """One generation of B rows; the cache holds the committed prefix without the root.

    A forward computes the real slots of all rows, packed, so that it costs what the trees hold. On a CPU a
    Llama runs in its packed form: sums in float32 whatever the weights' dtype, and every token's logits are the same
    bits in a tree and in plain decoding.
    """

    def __init__(self, target: Target):
        self.version = target.version
        self._take(target)
        self.cache = KVPool(target.num_layers)

    def _take(self, target: Target) -> None:
        """Go on with this target: with layers of the session's version, and the LM head as it is now."""
        self.target, self.packed = target, target.packed_of(self.version)
        self._lm_head = None if self.packed is None else target.packed_lm_head

    @cached_property
    def quantized(self) -> "TargetSession":
        """A session of the target's int4 form that goes on in this one's cache. InputError where there is none."""
        session, target = copy.copy(self), self.target.quantized
        if self.version is None and target.rounded:  # a stand-in for it, of any other kind, needs no packed form
            raise InputError(
                "the target cannot draft in 4 bits: its layers have hooks or were changed; choose another policy"
            )
        target.tapped = dict.fromkeys(self.target.taps)  # which a packed form fills without hooks
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
        """Append the real ones of n slots of each row to the cache and return their post-norm states. Each sees its
        row's committed prefix, and the row's new slots that `sees` marks. tree: what they are, if it is a tree."""
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
        """Read the next count[r] tokens of row r's text and commit them; return their post-norm states, and the
        features that the draft reads. After a row's last token both mean nothing."""
        hidden, features = zip(*(self._read(part, real) for real, part in stretches(count, tokens)), strict=True)
        return end_to_end(hidden), end_to_end(features)

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

    def prefill(self, tokens: Int[Tensor, "B P"], lengths: Int[Tensor, " B"]) -> Verified:
        """Run prompts, padded on the right; return logits after each row's last token only, as if it were the row's
        only slot, and features of all tokens. What is cached of a prompt (`Target.prefixes`) is not computed again."""
        # Only where a token's bits do not depend on the rest of the batch: else texts might change.
        prefixes = None if self.packed is None else self.target.prefixes
        prompts = [] if prefixes is None else unpadded(tokens, lengths)
        cached = [prefixes.longest(prompt) for prompt in prompts]
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
        return Verified(SlotLogits(self.logits(last), number), features)

    def verify(self, tree: Tree) -> Verified:
        """Run one forward over the trees; nothing is committed until `commit`."""
        real = tree.alive
        if self.packed is None and self.target.has_tree_attention:  # queries are a row's first slots, without holes
            real = real.flip(1).cummax(1).values.flip(1)
        rows = Ragged.of(real)
        hidden = self.forward(tree.token, tree.positions(self.cache.lengths), tree.ancestors(), rows, tree)
        features = rows.back(self.target.features(hidden[None])[0])
        return Verified(SlotLogits(self.logits(hidden), rows.place), features)

    def logits(self, hidden: Float[Tensor, "R H"]) -> Float[Tensor, "R V"]:
        """Return the LM head's logits for these states."""
        return self.target.logits(hidden[None])[0] if self._lm_head is None else self._lm_head(hidden)

    def peek(self, token: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Return the next token's logits after a root; nothing is committed."""
        logits = self.verify(Tree.root(token)).logits.values
        self.cache.drop()
        return logits

    def commit(self, slots: Int[Tensor, "B m"], count: Int[Tensor, " B"]) -> None:
        """Keep the accepted path of the tree just verified: slots[r, :count[r]], root first."""
        self.cache.keep(slots, count)

    def select(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows of the batch, in this order."""
        self.cache.select(rows)

    def join(self, other: "TargetSession") -> None:
        """Append the rows of another session of the same target; neither has a tree to commit."""
        self.cache.join(other.cache)


def check_logits(logits: Float[Tensor, "B V"], who: str) -> None:
    """Raise InputError if a row of logits has NaN or +inf, or only -inf: a broken checkpoint or too narrow a dtype."""
    check_finite(logits.amax(-1).tolist(), who)


def check_finite(largest: list[float], who: str) -> None:
    """Raise InputError unless the largest logit of each row is finite: NaN counts as the largest."""
    if not all(map(isfinite, largest)):  # also where all are -inf or one is +inf
        raise InputError(
            f"the {who}'s logits contain NaN or infinity; check its checkpoint, or load it in a wider dtype"
        )
