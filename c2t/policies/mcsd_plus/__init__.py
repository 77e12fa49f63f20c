"""MCSD+ (Lu et al., "Improving Multi-candidate Speculative Decoding"): forks that start from the target's own tokens.

Not exact: of W tokens that the target might write next, the one whose fork the draft continues best is kept. All that
is particular to it stands in this folder: the policy, and the target's side of its rounds, which is a session and the
rule by which a fork is accepted.
"""

from c2t.policies.mcsd_plus.forks import Forks, ForkSession, longest_fork
from c2t.policies.mcsd_plus.policy import MCSDPlus, topology

__all__ = ["ForkSession", "Forks", "MCSDPlus", "longest_fork", "topology"]
