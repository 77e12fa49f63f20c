"""Decoding by a folder on the Hub: `model.generate(..., custom_generate="user/repo", trust_remote_code=True)`. The
folder's generate.py, which `c2t.hf.export` writes, calls this."""

import base64
import copy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from transformers import GenerationMixin, PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from c2t.classifier import FILES, TreeClassifier
from c2t.errors import InputError, refusing
from c2t.hf.tree_decoding import TreeDecoding
from c2t.policies.spec import parse


def generate(
    model: PreTrainedModel,
    *,
    draft: str,
    policy: str,
    classifier: tuple[str, ...] | None,
    seed: int | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
    **arguments: Any,
) -> Any:
    """Generate with trees: `model.generate(**arguments)` with the settings of a folder, which a caller may override.

    policy: as on c2t's command line. classifier: as `packed` returns it. Raises InputError for what trees cannot serve.
    """
    if stop_strings is not None:  # generate looks for the tokenizer of callables in vain
        if tokenizer is None:
            raise InputError("stop_strings: give the tokenizer too, as tokenizer=...")
        stop = StopStringCriteria(tokenizer, stop_strings)
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or []), stop])
    decoding = copy.copy(_decoding(draft, policy, classifier))
    decoding.seed = seed
    return GenerationMixin.generate(model, **arguments, custom_generate=decoding)


@cache  # so that the head is loaded once, for all seeds
def _decoding(draft: str, policy: str, classifier: tuple[str, ...] | None) -> TreeDecoding:
    return TreeDecoding(draft, policy=parse(policy, lambda name=None: _classifier(classifier, name)))


def _classifier(packed_classifier: tuple[str, ...] | None, name: str | None) -> TreeClassifier:
    if name is not None:
        return TreeClassifier.from_pretrained(name)
    if packed_classifier is None:
        raise InputError("this folder has no classifier: choose a policy without one, such as policy='eagle2'")
    return unpacked(packed_classifier)


def packed(classifier: TreeClassifier) -> tuple[str, ...]:
    """Return a classifier's files as text."""
    with tempfile.TemporaryDirectory() as folder:
        classifier.save_pretrained(folder)
        return tuple(base64.b64encode((Path(folder) / name).read_bytes()).decode() for name in FILES)


def unpacked(files: tuple[str, ...]) -> TreeClassifier:
    """Return the classifier of these texts; InputError for damaged ones."""
    with refusing("the classifier in this folder is damaged; export the folder again"):
        contents = {name: base64.b64decode(text, validate=True) for name, text in zip(FILES, files, strict=True)}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            (Path(folder) / name).write_bytes(content)
        return TreeClassifier.from_pretrained(Path(folder))
