"""Checks of a policy: whether a target supports it, and which rules may verify its trees (`c2t.verify`).
`on_device` puts its networks where the target is."""

import copy
from typing import Any

import torch

from c2t.classifier import TreeClassifier
from c2t.errors import InputError, check_kind
from c2t.grammars.constraint import Constraint
from c2t.protocols import Policy, check_is_policy

# Kind of a policy's candidates -> rules that may verify them, the default first. Ranked candidates are the draft's most
# probable tokens, sampled ones are sampled from its distribution, and target-initialised ones grow under several tokens
# of the target.
RULES = {
    "ranked": ("target-only",),
    "sampled": ("residual", "target-only"),
    "target-initialised": ("longest-fork",),
}


def check_policy(policy: Policy, vocabulary: int, positions: int) -> None:
    """Raise InputError unless this is a policy whose K fits the vocabulary, and whose levels fit the positions."""
    check_is_policy(policy)
    name = "K" if hasattr(policy, "K") else "W"
    k = getattr(policy, name, 1)
    if k > vocabulary:
        raise InputError(
            f"{name} = {k} is more than the pair's vocabulary of {vocabulary} tokens; choose a smaller {name}"
        )
    if policy.levels >= positions:
        most = f"the target has {positions} positions, so at most {positions - 1} fit"
        raise InputError(f"{type(policy).__name__}: trees of {policy.levels} levels; {most}")


def check_compatible(policy: Policy, target: Any) -> None:
    """Raise InputError unless this target supports the policy: by `check_policy`, and by the policy's own
    `check_target`, if it has one."""
    check_policy(policy, target.config.vocab_size, target.max_positions)
    if hasattr(policy, "check_target"):
        policy.check_target(target)


def on_device(policy: Any, device: torch.device) -> Any:
    """Return the policy, or a copy with copies of its networks where these are on another device."""
    changed: dict[str, Any] = {}
    for name, value in getattr(policy, "__dict__", {}).items():
        if isinstance(value, TreeClassifier) and value.output.weight.device != device:
            changed[name] = copy.deepcopy(value).to(device)
        elif name == "policy" and (inner := on_device(value, device)) is not value:
            changed[name] = inner
    if not changed:
        return policy
    moved = copy.copy(policy)
    vars(moved).update(changed)  # not by `replace`, which would check the fields and warn of them again
    return moved


def live_only(policy: Policy) -> bool:
    """Return True for a policy whose trees need the running target, which a replay does not have."""
    return getattr(policy, "live_only", False)


def check_rule(policy: Policy, rule: str | None) -> str:
    """Return the verification rule to use; InputError for an unknown rule, and for one that does not fit the policy."""
    check_is_policy(policy)
    check_kind("rule", rule, str | None, "the name of a verification rule")
    name = type(policy).__name__
    if policy.proposal not in RULES:
        raise InputError(f"{name}'s proposal is {policy.proposal!r}; known: {', '.join(RULES)}")
    sound = RULES[policy.proposal]
    rule = sound[0] if rule is None else rule
    names = list(dict.fromkeys(rule for rules in RULES.values() for rule in rules))
    if rule not in names:
        raise InputError(f"no verification rule is called {rule!r}; known: {', '.join(names)}")
    if rule == "residual" and policy.proposal == "ranked":
        raise InputError(f"{name} ranks its candidates: the residual rule would change the text's law; use target-only")
    if rule not in sound:
        raise InputError(
            f"{name} has {policy.proposal} candidates, which cannot be verified by the rule {rule}; use {sound[0]}"
        )
    return rule


def check_constraint(policy: Policy, constraint: Any) -> None:
    """Raise InputError unless this is a constraint, and trees of the policy can be verified under one."""
    check_kind("constraint", constraint, Constraint, "a constraint, such as Grammar.json_schema(...)")
    if policy.proposal == "target-initialised":
        raise InputError(f"{type(policy).__name__} has forks, which a constraint does not reach: take another policy")
