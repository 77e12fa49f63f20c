"""Hierarchical speculation: the target, rounded to 4 bits, decodes ahead of the target itself, which then verifies.

TriForce (Sun et al. 2024) decodes in two stages: a small draft guesses, a cheaper form of the target verifies the
guesses and goes on, and the target verifies what that has generated. The cheaper form is the target with rounded
weights here, as in QuantSpec (Tiwari et al. 2025). All that is particular to it stands in this folder: the policy, and
the session with the 4-bit stage.
"""

from c2t.policies.hierarchical.policy import ONLY, Hierarchical

__all__ = ["ONLY", "Hierarchical"]
