"""C2T's classifier for SGLang: `register` is the entry point of the group `sglang.srt.plugins`."""

import importlib
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from c2t_sglang.network import ClassifierError, Network
from c2t_sglang.rerank import KNOWN, reranked

MODULE, FUNCTION = "sglang.srt.speculative.eagle_utils", "organize_draft_results"
HOOKS = "sglang.srt.plugins.hook_registry"
CLASSIFIER = "C2T_CLASSIFIER"  # names the folder of a classifier
PARAMETERS = ["score_list", "token_list", "parents_list", "num_draft_token"]

logger = logging.getLogger("sglang.c2t")


class Rerank:
    """Hook around `organize_draft_results` that hands on the classifier's scores instead of the joint probabilities.

    Its shapes depend on topk and the number of steps only, so it runs inside the draft's CUDA graph.
    """

    def __init__(self, network: Network):
        self.network = network
        self.device = None

    def __call__(
        self,
        original: Callable[..., Any],
        score_list: Sequence[Tensor],
        token_list: Sequence[Tensor],
        parents_list: Sequence[Tensor],
        num_draft_token: int,
    ) -> Any:
        device = score_list[0].device
        if device != self.device:  # at the first call, which warms up and is not captured
            self.network, self.device = self.network.to(device), device
            logger.info("c2t-sglang: C2T chooses the candidates (%s)", ", ".join(self.network.features))
        if score_list[0].shape[-1] > 1:  # of a chain nothing can be chosen
            score_list = reranked(self.network, score_list, parents_list)
        return original(score_list, token_list, parents_list, num_draft_token)


def register() -> None:
    """Register the hook. Where that cannot be done, one line in the log says why, and SGLang stays as it is. SGLang
    calls this in each of its processes."""
    folder = os.environ.get(CLASSIFIER)
    if not folder:
        logger.warning("c2t-sglang: not used: set %s to the folder of a classifier", CLASSIFIER)
        return
    try:
        network = Network.load(folder, KNOWN)
        function = getattr(importlib.import_module(MODULE), FUNCTION, None)
        hooks = importlib.import_module(HOOKS)
    except (ClassifierError, ImportError) as error:
        logger.error("c2t-sglang: not used, SGLang ranks by itself: %s", " ".join(str(error).split()))
        return
    found = list(inspect.signature(function).parameters) if function else "missing"
    if found != PARAMETERS:
        logger.error(
            "c2t-sglang: not used, SGLang ranks by itself: %s of this SGLang is %s instead of %s (tried: 0.5.23)",
            FUNCTION,
            found,
            PARAMETERS,
        )
        return
    hooks.HookRegistry.register(f"{MODULE}.{FUNCTION}", Rerank(network), hooks.HookType.AROUND)
    logger.info("c2t-sglang: loaded: EAGLE trees will be chosen by the classifier %s", folder)
