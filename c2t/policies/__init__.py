"""Tree constructions, one family per file, each a frozen dataclass with one `__call__(draft, root) -> Tree`.

To add one, write its file and list it here; the command line and the tests over every policy then use it. Its class
lists the settings that commands try by default: `bench` (of `c2t bench --policies all`), `sweep` (of `c2t sweep`, with
alternatives separated by |) and `tune` (of `c2t tune`). An empty string is the policy with its defaults.
"""

from c2t.policies.budget import Budget
from c2t.policies.c2t import C2T
from c2t.policies.caddtree import CaDDTree
from c2t.policies.chain import Chain, DyJoint, DyMax
from c2t.policies.confidence_chain import ConfidenceChain
from c2t.policies.configured import MCSD, SampledChain, SpecInfer
from c2t.policies.ddd import DDD
from c2t.policies.dyspec import DySpec, DySpecThreshold
from c2t.policies.eagle2 import Eagle2
from c2t.policies.entropy_tree import EntropyTree
from c2t.policies.hierarchical import Hierarchical
from c2t.policies.mcsd_plus import MCSDPlus
from c2t.policies.medusa_tree import MedusaTree
from c2t.policies.opt_tree import OptTree
from c2t.policies.plain import Plain
from c2t.policies.sequoia import Sequoia
from c2t.policies.static import Eagle1
from c2t.policies.talon import Talon
from c2t.policies.threshold import JointThreshold

POLICIES = {
    "plain": Plain,
    "chain": Chain,
    "confidence-chain": ConfidenceChain,
    "dymax": DyMax,
    "dyjoint": DyJoint,
    "eagle1": Eagle1,
    "static": MedusaTree,
    "eagle2": Eagle2,
    "c2t": C2T,
    "threshold": JointThreshold,
    "opttree": OptTree,
    "caddtree": CaDDTree,
    "talon": Talon,
    "ddd": DDD,
    "entropy": EntropyTree,
    "sampled-chain": SampledChain,
    "specinfer": SpecInfer,
    "mcsd": MCSD,
    "mcsd+": MCSDPlus,
    "sequoia": Sequoia,
    "dyspec": DySpec,
    "dyspec-threshold": DySpecThreshold,
    "budget": Budget,
    "hierarchical": Hierarchical,
}

__all__ = ["POLICIES", *sorted(policy.__name__ for policy in POLICIES.values())]
