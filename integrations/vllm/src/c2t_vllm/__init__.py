"""C2T's classifier for vLLM: `register` is the entry point of the group `vllm.general_plugins`."""

import importlib
import inspect
import logging
import os
from types import ModuleType

from c2t_vllm.estimator import C2TAcceptanceEstimator, with_network
from c2t_vllm.network import ClassifierError, Network

SPECULATOR = "vllm.v1.worker.gpu.spec_decode.speculator"
REPLACED = "OnlineAcceptanceEstimator"
CLASSIFIER = "C2T_CLASSIFIER"  # names the folder of a classifier
METHODS = ("__init__", "predict", "step")

logger = logging.getLogger("vllm.c2t")


def register() -> None:
    """Replace vLLM's acceptance estimator. Where that cannot be done, one line in the log says why, and vLLM stays as
    it is. vLLM calls this in each of its processes, possibly more than once."""
    folder = os.environ.get(CLASSIFIER)
    if not folder:
        logger.warning("c2t-vllm: not used: set %s to the folder of a classifier", CLASSIFIER)
        return
    try:
        network = Network.load(folder)
        speculator = importlib.import_module(SPECULATOR)
    except (ClassifierError, ImportError) as error:
        logger.error("c2t-vllm: not used, vLLM keeps its own estimator: %s", " ".join(str(error).split()))
        return
    if lacks := incompatible(speculator):
        logger.error("c2t-vllm: not used, vLLM keeps its own estimator: %s", lacks)
        return
    setattr(speculator, REPLACED, with_network(network))
    logger.info("c2t-vllm: loaded: adaptive verification will use the classifier %s", folder)


def incompatible(speculator: ModuleType) -> str:
    """Return what this vLLM lacks for the replacement, "" if nothing."""
    theirs = getattr(speculator, REPLACED, None)
    if theirs is None:
        return f"{SPECULATOR} of this vLLM has no {REPLACED} (tried: 0.32, 0.33)"
    for name in METHODS:
        method = getattr(theirs, name, None)
        found = list(inspect.signature(method).parameters) if method else "missing"
        expected = list(inspect.signature(getattr(C2TAcceptanceEstimator, name)).parameters)
        if found != expected:
            return f"{REPLACED}.{name} of this vLLM is {found} instead of {expected} (tried: 0.32, 0.33)"
    return ""
