"""c2t: lossless tree speculative decoding, fast on CPUs; C2T and the constructions of four other papers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from c2t.classifier import TreeClassifier
    from c2t.decoder import Output, SpeculativeDecoder
    from c2t.errors import InputError
    from c2t.grammars.grammar import Grammar
    from c2t.models.loading.load import load_pair
    from c2t.output.tree_repr import show
    from c2t.policies import C2T, POLICIES, Budget, Chain, Eagle2, Hierarchical, JointThreshold, Plain

__version__ = "0.2.0"
__all__ = [
    "C2T",
    "POLICIES",
    "Budget",
    "Chain",
    "Eagle2",
    "Grammar",
    "Hierarchical",
    "InputError",
    "JointThreshold",
    "Output",
    "Plain",
    "SpeculativeDecoder",
    "TreeClassifier",
    "load_pair",
    "show",
]
# Imported at their first use: torch takes seconds, and the command line must handle signals before that.
NAMED = ("C2T", "POLICIES", "Budget", "Chain", "Eagle2", "Hierarchical", "JointThreshold", "Plain")
MODULES = dict.fromkeys(NAMED, "c2t.policies")
MODULES |= {"Output": "c2t.decoder", "SpeculativeDecoder": "c2t.decoder", "load_pair": "c2t.models.loading.load"}
MODULES |= {
    "show": "c2t.output.tree_repr",
    "InputError": "c2t.errors",
    "Grammar": "c2t.grammars.grammar",
    "TreeClassifier": "c2t.classifier",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'c2t' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)
