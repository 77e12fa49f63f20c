"""Hierarchical speculation: the target with int4 weights decodes some rounds, which the target itself then verifies.

TriForce (Sun et al. 2024) decodes in two stages: a cheaper form of the target verifies the trees of a small draft for
some rounds, and the target verifies the tokens that they have generated. Here the cheaper form is the target with int4
weights, as in QuantSpec (Tiwari et al. 2025). This folder holds the policy, and the session with the int4 stage.
"""

from c2t.policies.hierarchical.policy import Hierarchical

__all__ = ["Hierarchical"]
