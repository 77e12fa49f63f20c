"""What a classifier says of any (P, H, d), for the figures that look at it as a function."""

from types import SimpleNamespace

import numpy as np
import torch
from jaxtyping import Float

from c2t.classifier import TreeClassifier, features

ENTROPIES = (0.0, 10.0)  # the paper's range, nats
DEPTHS = 11  # 0..10


def confidence(
    classifier: TreeClassifier,
    joint_prob: Float[np.ndarray, "..."],
    entropy: Float[np.ndarray, "..."],
    depth: np.ndarray,
    sigmoid: bool = True,
) -> Float[np.ndarray, "..."]:
    """The network's output for nodes with these columns (broadcast), as a confidence or before the sigmoid."""
    joint_prob, entropy, depth = np.broadcast_arrays(joint_prob, entropy, depth)
    nodes = SimpleNamespace(
        log_joint=torch.tensor(joint_prob).log(), entropy=torch.tensor(entropy), depth=torch.tensor(depth)
    )
    device = next(classifier.parameters()).device
    with torch.inference_mode():
        logits = classifier.logits(features(nodes, classifier.config.features).to(device))
    return (logits.sigmoid() if sigmoid else logits).double().cpu().numpy()
