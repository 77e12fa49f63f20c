"""Modules of EAGLE heads that were read before their packed and fused forms: `c2t.models.target.stock`'s list for c2t's
own, which are made of Llama's."""

from dataclasses import replace
from typing import Any

from torch import nn

from c2t.models.drafts.eagle import EagleHead, Head
from c2t.models.drafts.eagle3 import Eagle3Head, MidLayer
from c2t.models.target import stock
from c2t.models.target.stock import LINEAR, STOCK, StockModule

_FORWARDS = (EagleHead.forward, Eagle3Head.forward, MidLayer.forward)  # as they were read; MedusaHead has EagleHead's
LLAMA = STOCK["llama"]
FIRST_LAYER = replace(LLAMA.layer, parts={**LLAMA.layer.parts, "input_layernorm": stock.IDENTITY})
MIDLAYER = {  # its forward is c2t's own
    "self_attn": LLAMA.attention,
    "mlp": LLAMA.mlp,
    **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), LLAMA.norm),
}


def decoder_layers(head: Head) -> list[nn.Module]:
    """Return the layers of an EAGLE head that is made of Llama's, all as they were read; none for other heads, and for
    one that was changed in anything."""
    if not _is_own(head) or not stock.has_stock_functions(LLAMA, head.config):
        return []
    parts: list[tuple[Any, StockModule]] = [(head.rotary, LLAMA.rotary)]
    parts += [(head.fc, LINEAR)] if hasattr(head, "fc") else []
    if isinstance(head, Eagle3Head):
        layers = [head.midlayer, *head.layers.values()]
        if not _is_own(head.midlayer):
            return []
        parts += [(getattr(head.midlayer, name), kind) for name, kind in MIDLAYER.items()]
        parts += [(head.norm, LLAMA.norm), *((layer, LLAMA.layer) for layer in layers[1:])]
    else:
        layers = list(head.layers)
        parts += [(layer, LLAMA.layer if number else FIRST_LAYER) for number, layer in enumerate(layers)]
    return layers if all(stock.is_stock_module(module, kind, head.config) for module, kind in parts) else []


def _is_own(module: nn.Module) -> bool:
    return type(module).forward in _FORWARDS and stock.is_untouched(module)
