"""The EAGLE-3 head: it reads some of the target's hidden states and may have its own, reduced vocabulary.

    g = fc(concat(h_low, h_mid, h_high));  a = g + attention(concat(norm(embed(x)), norm(g)));  y = a + mlp(norm(a))

Where the target's states are not known yet, y takes the place of g; logits = lm_head(norm(y)) over the draft's
vocabulary. Published heads differ from this in what `Eagle3Variant` lists.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer, Qwen3MLP

from c2t.caches.padded import KVCache
from c2t.errors import InputError
from c2t.models.drafts.eagle import Head, in_words
from c2t.models.target.offloaded import check_in_memory


@dataclass(frozen=True)
class Eagle3Variant:
    """Form of an EAGLE-3 head, in what published ones differ; the defaults are SafeAILab's.

    taps: number of the target's states that the head reads; 0: the post-norm state after the last layer, and no fc.
    inputs: the layers whose inputs these states are, the number of layers standing for the output of the last one
    before the final norm. layer_ids: the same in a config that does not say whether it counts inputs or outputs.
    Without both of them: a low, a middle and a high layer. target_layers: of the target that it was trained for, None
    where its config does not say.
    norm_before_fc: all states are normed as one. fc_norm: each is normed by itself. norm_before_residual: the layer
    adds to norm(g), not to g. norm_output: norm(y), not y, takes the place of g. windows: positions that a token sees
    in each layer, its own included; 0: all. Without them it sees all in every layer. layout: of its config.json.
    """

    taps: int = 3
    inputs: tuple[int, ...] | None = None
    layer_ids: tuple[int, ...] | None = None
    target_layers: int | None = None
    fc_bias: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    windows: tuple[int, ...] = ()
    layout: str = field(default="flat", compare=False)

    @property
    def reads(self) -> str:
        """The target's states that it reads, in words."""
        if not self.taps:
            return "the target's last state"
        if self.inputs is not None:
            return f"the inputs of layers {', '.join(map(str, self.inputs))}"
        if self.layer_ids is not None:
            return f"layers {', '.join(map(str, self.layer_ids))} as its config counts them"
        return "a low, a middle and a high layer"


class Eagle3Head(Head):
    """EAGLE-3 head with upstream's modules and parameter names. target_width: size of one hidden state of the target.

    config: a Qwen3Config for layers with norms of queries and keys. d2t: target token = draft token + d2t[draft token];
    both maps are absent where the vocabularies are equal. target_rows: the LM head is made of the target's rows, which
    are not trained and not stored (`take_rows`); upstream has no such heads.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(
        self,
        config: LlamaConfig | Qwen3Config,
        draft_vocab_size: int,
        target_width: int | None = None,
        target_rows: bool = False,
        variant: Eagle3Variant = Eagle3Variant(),
    ):
        super().__init__(config)
        self.shares_lm_head, self.variant, self.num_layers = target_rows, variant, config.num_hidden_layers
        hidden = config.hidden_size
        self.target_width = target_width or hidden
        read = variant.taps * self.target_width
        if variant.taps:
            self.fc = nn.Linear(read, hidden, bias=variant.fc_bias)
        if variant.norm_before_fc:
            self.input_norm = LlamaRMSNorm(read, eps=config.rms_norm_eps)
        if variant.fc_norm:
            norms = (LlamaRMSNorm(self.target_width, eps=config.rms_norm_eps) for _ in range(variant.taps))
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = MidLayer(config, variant.norm_before_residual)
        layer = Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer
        # Upstream counts them from 1: the first layer is `midlayer`.
        self.layers = nn.ModuleDict({str(n): layer(config, n) for n in range(1, config.num_hidden_layers)})
        self.norm = LlamaRMSNorm(hidden, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, draft_vocab_size, bias=False)
        if draft_vocab_size != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.long))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))

    @property
    def summary(self) -> str:
        """See `Head.summary`."""
        variant = self.variant
        return f"EAGLE-3 ({variant.layout}), reads {variant.reads}, {in_words(variant.windows)}"

    @property
    def tokens(self) -> Int[Tensor, " v"] | None:
        """See `Head`."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t if hasattr(self, "d2t") else None

    def take_rows(self, lm_head: nn.Module) -> None:
        """Set the rows of the LM head to the target's for the same tokens; they are not trained."""
        check_in_memory(lm_head, "LM head")
        rows: Tensor = lm_head.weight
        self.lm_head.weight = nn.Parameter(
            rows.detach()[self.tokens.to(rows.device)] if self.tokens is not None else rows.detach(),
            requires_grad=False,
        )

    def taps(self, target_layers: int) -> tuple[int, ...]:
        """See `Head.taps`; InputError for another target's head, for layers that the target does not have, and for ids
        of which it is not clear whether they count inputs or outputs."""
        variant = self.variant
        if variant.target_layers not in (None, target_layers):
            raise InputError(
                f"num_target_layers = {variant.target_layers}, and the target has {target_layers} layers: take the "
                "head of this target"
            )
        if not variant.taps:
            return ()
        if variant.inputs is not None:
            return check_taps(variant.inputs, target_layers)
        if variant.layer_ids is not None:
            return check_taps(inputs_of(variant.layer_ids, target_layers), target_layers)
        return default_taps(target_layers)

    def read(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B H"]:
        """See `Head.read`: norms, if the head has any here, and fc."""
        features = self.normalised(features.to(self.norm.weight.dtype))
        return self.fc(features) if self.variant.taps else features

    def normalised(self, features: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return what fc reads."""
        if self.variant.norm_before_fc:
            features = self.input_norm(features)
        if self.variant.fc_norm:
            states = features.chunk(self.variant.taps, -1)
            features = torch.cat([norm(state) for norm, state in zip(self.fc_norm, states, strict=True)], -1)
        return features

    def forward(
        self,
        features: Float[Tensor, "B n H"],
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"] | None = None,
        mask: Bool[Tensor, "B 1 n t"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B n H"]:
        """See `EagleHead.forward`; features are what `read` returned, or earlier outputs of the head."""
        embedded, rotation = self.embed_tokens(tokens).to(features.dtype), self.rotation(features, positions)
        masks = self._masks(tokens, positions, mask, cache)
        hidden = self.midlayer(embedded, features, rotation, masks[0], cache)
        for layer, mask in zip(self.layers.values(), masks[1:], strict=True):
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
        return self.norm(hidden) if self.variant.norm_output else hidden

    def _masks(
        self,
        tokens: Int[Tensor, "B n"],
        positions: Int[Tensor, "B n"] | None,
        mask: Bool[Tensor, "B 1 n t"] | None,
        cache: KVCache | None,
    ) -> list[Bool[Tensor, "_ 1 n t"] | None]:
        """Return the mask of each layer, cut at its window by the positions of keys, those of trees included."""
        windows = self.variant.windows or (0,) * self.num_layers
        if not any(windows):
            return [mask] * self.num_layers
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        keys = positions if cache is None else cache.positions(positions)
        back = (positions[:, :, None] - keys[:, None])[:, None]
        seen = back >= 0 if mask is None else mask
        return [seen & (back < window) if window else mask for window in windows]

    def logits(self, hidden: Float[Tensor, "B n H"], lm_head: Callable[[Tensor], Tensor]) -> Float[Tensor, "B n V"]:
        """Return logits over the target's vocabulary, -inf for tokens that the draft does not have; `lm_head` is not
        used."""
        logits, tokens = self.lm_head(self.readable(hidden)), self.tokens
        if tokens is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        full[..., tokens] = logits
        return full

    def readable(self, hidden: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
        """See `Head.readable`."""
        return hidden if self.variant.norm_output else self.norm(hidden)


class MidLayer(nn.Module):
    """Llama or Qwen3 layer whose attention reads the token and the state side by side, at twice the width."""

    def __init__(self, config: LlamaConfig | Qwen3Config, norm_before_residual: bool):
        super().__init__()
        self.norm_before_residual = norm_before_residual
        hidden, qwen3 = config.hidden_size, isinstance(config, Qwen3Config)
        self.self_attn = (Qwen3Attention if qwen3 else LlamaAttention)(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            setattr(self.self_attn, name, nn.Linear(2 * hidden, narrow.out_features, bias=config.attention_bias))
        self.mlp = (Qwen3MLP if qwen3 else LlamaMLP)(config)
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (
            LlamaRMSNorm(hidden, eps=config.rms_norm_eps) for _ in range(3)
        )

    def forward(self, embedded: Tensor, state: Tensor, rotation, mask: Tensor | None, cache: KVCache | None) -> Tensor:
        """Return the next state (B, n, H) from the embedded token and the state before it."""
        normed = self.hidden_norm(state)
        read = torch.cat([self.input_layernorm(embedded), normed], -1)
        attended, _ = self.self_attn(read, position_embeddings=rotation, attention_mask=mask, past_key_values=cache)
        hidden = (normed if self.norm_before_residual else state) + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


def default_taps(target_layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs a head reads by default: a low, a middle and a high one. InputError for a
    target too shallow to have three."""
    low, middle, high = 2, target_layers // 2, target_layers - 3
    if not low < middle < high:
        raise InputError(f"the head reads three layers; a target of {target_layers} has too few layers: 7 are needed")
    return low, middle, high


def inputs_of(layer_ids: tuple[int, ...], target_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs are meant by the `eagle_aux_hidden_state_layer_ids` of a flat config.

    Engines differ: vLLM takes the ids as inputs of layers; SGLang, for most models, as outputs. As inputs are known
    those that name the end of the last layer, and the default three; as outputs (the input of the next layer) those
    that start with 1, as SpecForge counts. InputError for all others.
    """
    if layer_ids[-1] == target_layers or (target_layers >= 7 and layer_ids == default_taps(target_layers)):
        return layer_ids
    if layer_ids[0] == 1:
        return tuple(layer + 1 for layer in layer_ids)
    shown = ",".join(map(str, layer_ids))
    raise InputError(
        f"eagle_aux_hidden_state_layer_ids = {shown} may count inputs (vLLM) or outputs of layers (SGLang), and its "
        f"config does not say which: name the inputs after the draft, as +taps={shown} or with each one more"
    )


def check_taps(layers: tuple[int, ...], target_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs are tapped; InputError unless they rise from 0 to `target_layers`, which is the
    output of the last layer."""
    rising = all(low < high for low, high in pairwise(layers))
    if not layers or not rising or layers[0] < 0 or layers[-1] > target_layers:
        raise InputError(
            f"taps = {','.join(map(str, layers))}: a target of {target_layers} layers has the states 0 to "
            f"{target_layers} (inputs of layers; the last one is the output of all), which must rise"
        )
    return layers
