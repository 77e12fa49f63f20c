"""c2t in transformers' own generate: `model.generate(..., custom_generate=TreeDecoding(...))`."""

from c2t.hf.constraint_processor import ConstraintProcessor
from c2t.hf.tree_decoding import TreeDecoding

__all__ = ["ConstraintProcessor", "TreeDecoding"]
