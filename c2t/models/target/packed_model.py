"""Llama on a CPU as `c2t.kernels.decoder_layers` runs it: decoder layers, and a target made of them.

transformers' modules keep the weights; these are snapshots of them for decoding. `c2t.models.target.stock` lists what
the modules have to be."""

from collections.abc import Iterable
from itertools import chain

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from c2t.caches.pool import KVPool
from c2t.caches.ragged import Ragged
from c2t.kernels.decoder_layers import Kind, PackedLayers, PackedNorm, Sight, packable, rounds, works
from c2t.kernels.layer_buffers import LayerBuffers
from c2t.models.target.layers import layers_of
from c2t.models.target.rotations import Rotations
from c2t.models.target.stock import is_stock


class Decoder:
    """Decoder layers one after the other, and the rotations of their positions; `serves` says which can be packed.
    rounded: in 8 bits, where they can be; int4: in 4 then."""

    @staticmethod
    def serves(layers: Iterable[nn.Module], rotary: nn.Module) -> bool:
        """Return True if the kernels can run the layers, whose modules were found to be those that they compute: of one
        shape, with rotary frequencies that do not depend on the text's length."""
        layers = list(layers)
        if not layers or not Rotations.serves(rotary):
            return False
        packs = all(packable(layer, layer.self_attn.head_dim) for layer in layers)
        return packs and len({layer.mlp.down_proj.weight.shape for layer in layers}) == 1

    def __init__(self, layers: Iterable[nn.Module], rotary: nn.Module, rounded: bool = False, int4: bool = False):
        layers = list(layers)
        config, dim = layers[0].self_attn.config, layers[0].self_attn.head_dim
        heads = config.num_attention_heads, config.num_key_value_heads
        self.layers = PackedLayers(layers, *heads, dim, rounded, int4)
        self.rotations = Rotations(rotary, dim)

    def __call__(
        self,
        x: Float[Tensor, "R H"],
        positions: Int[Tensor, " R"],
        slots: Int[Tensor, " R"],
        sight: Sight,
        buffers: LayerBuffers,
        tapped: dict[int, Tensor | None],
        end: int,
        begin: int = 0,
        read: Float[Tensor, "R O"] | None = None,
    ) -> Float[Tensor, "R H"]:
        """Append R tokens to the cache, replace their states by the last layer's outputs, and return these; see
        `PackedLayers` for what the arguments mean. end: more than any of the positions."""
        self.layers(x, self.rotations.below(end), positions, buffers, slots, sight, tapped, begin, read)
        return x


class PackedModel:
    """A target of the Llama family; `serves` says which models have this form. rounded: in 8 bits; `why_not_rounded`
    says which models can be."""

    @staticmethod
    def serves(model: PreTrainedModel) -> bool:
        """Return True for a Llama of transformers' own modules on a CPU, in bf16 or float32, whose dimensions the
        kernels can run."""
        return is_stock(model) and Decoder.serves(layers_of(model), model.base_model.rotary_emb)

    @staticmethod
    def made_of(model: PreTrainedModel) -> tuple[Iterable[Tensor], float]:
        """Return all that a packed form holds copies of: tensors, and the norms' epsilon."""
        base = model.base_model
        return chain(model.parameters(), (base.rotary_emb.inv_freq,)), float(base.config.rms_norm_eps)

    @classmethod
    def why_not_rounded(cls, model: PreTrainedModel) -> str | None:
        """Return what keeps a model from being computed in 8 bits here; None if nothing does."""
        if Kind.INT8 not in works():
            return "c2t's kernels in C and a processor with AVX-512 VNNI (avx512_vnni) do that, and one is missing here"
        if not cls.serves(model):
            return (
                "c2t's kernels run Llamas of certain shapes, of transformers' own modules, and not this "
                f"{model.config.model_type}"
            )
        linears = [part for part in model.base_model.layers.modules() if isinstance(part, nn.Linear)]
        head = model.get_output_embeddings()
        if type(head) is not nn.Linear:
            return f"its LM head is a {type(head).__name__}, and would have to be a plain linear layer"
        sizes = {linear.in_features for linear in (*linears, head)}
        odd = [str(size) for size in sorted(sizes) if not rounds(size)]
        return f"some of its matrices have {', '.join(odd)} inputs, no multiple of {Kind.INT8.inputs}" if odd else None

    def __init__(self, model: PreTrainedModel, rounded: bool = False, int4: bool = False):
        base = model.base_model
        self._base = base
        self.decoder = Decoder(layers_of(model), base.rotary_emb, rounded, int4)
        self.norm = PackedNorm(base.norm)

    def __call__(
        self,
        tokens: Int[Tensor, " R"],
        positions: Int[Tensor, " R"],
        mask: Bool[Tensor, "R n"],
        rows: Ragged,
        cache: KVPool,
        tapped: dict[int, Tensor | None],
    ) -> Float[Tensor, "R H"]:
        """Append R tokens to the cache and return their post-norm states; see `PackedLayers`. Each sees its row's
        committed slots, and of the row's n new ones those in the mask."""
        cache.append(rows)
        first, prefix = (column.index_select(0, rows.row) for column in (cache.first, cache.lengths))
        sight = Sight(first, prefix, mask, cache.longest)
        embedded, layers = self._base.embed_tokens(tokens).float(), self.decoder.layers
        buffers = cache.layers(embedded.new_empty(0, dtype=layers.cached), layers.kv_heads, layers.dim)
        end = cache.longest + max(rows.spans)
        return self.norm(self.decoder(embedded, positions, cache.token_slots, sight, buffers, tapped, end))
