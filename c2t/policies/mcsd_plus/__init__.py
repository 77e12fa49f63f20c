"""MCSD+ (Lu et al., "Improving Multi-candidate Speculative Decoding"): forks that start from the target's own tokens.

Not exact: of W tokens that the target may generate next, it accepts the one whose fork the draft continues best. This
folder holds the policy, and the target's side of its rounds: a session and the rule that accepts a fork.
"""

from c2t.policies.mcsd_plus.forks import Forks, ForkSession, longest_fork
from c2t.policies.mcsd_plus.policy import MCSDPlus, topology

__all__ = ["ForkSession", "Forks", "MCSDPlus", "longest_fork", "topology"]
