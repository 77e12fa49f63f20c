"""c2t: tree speculative decoding whose trees are shaped by a learned classifier."""

from c2t.classifier import TreeClassifier
from c2t.decoder import Output, SpeculativeDecoder
from c2t.errors import InputError
from c2t.policies import C2T, POLICIES, Eagle2, Plain

__version__ = "0.1.0"
__all__ = ["C2T", "POLICIES", "Eagle2", "InputError", "Output", "Plain", "SpeculativeDecoder", "TreeClassifier"]
