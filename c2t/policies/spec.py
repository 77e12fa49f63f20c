"""Policies by name with their settings in text, as the command line has them: `eagle2:K=10,levels=6,N=60`."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from c2t.classifier import TreeClassifier
from c2t.errors import InputError
from c2t.policies import POLICIES
from c2t.policies.budget import Budget
from c2t.policies.hierarchical import Hierarchical
from c2t.policies.medusa_tree import Accuracies
from c2t.policies.round_costs import RoundCosts
from c2t.storage.paths import is_name

# Settings that a brief description always names; others only where they are not the default.
SHAPE = ("N", "beta", "threshold", "length", "config")
OF = "of="  # precedes the inner policy of a wrapper policy
RENAMED = {"rehearsed": "hierarchical"}  # files and scripts may still have the old name
# Inner policy of a wrapper policy that names none.
INNER = {
    Budget: "c2t:beta=0.05,K=6,W=6,levels=6",
    Hierarchical: "threshold:threshold=0.1,K=6,W=6,levels=3",
}


def split(text: str) -> list[str]:
    """Split `a:x=1,y=2,b` into `a:x=1,y=2` and `b`: a bare `key=value` belongs to the policy before it, and so does
    `of=POLICY`."""
    specs: list[str] = []
    for piece in text.split(","):
        if specs and "=" in piece.partition(":")[0]:
            specs[-1] += f",{piece}"
        else:
            specs.append(piece.strip())
    return specs


def tried_by(command: str) -> str:
    """Return the policies that a command tries by default: the settings that every policy lists for it."""
    specs = ((name, settings) for name, policy in POLICIES.items() for settings in getattr(policy, command))
    return ",".join(f"{name}:{settings}" if settings else name for name, settings in specs)


def parse(
    spec: str,
    classifier: Callable[..., TreeClassifier],
    acceptance: Callable[[float], tuple[float, ...]] | None = None,
    costs: Callable[..., RoundCosts] | None = None,
    **defaults: Any,
) -> Any:
    """Make the policy that a text describes. InputError lists the names that exist.

    classifier: `classifier()` is called for policies that need one only, `classifier(name)` where a setting names one.
    acceptance: `acceptance(draft temperature)` returns the rates measured on the pair.
    costs: `costs(policy)` returns those of a budget without a number of nodes, `costs(policy, file)` those in a file.
    defaults: used for settings that the policy has and the text leaves out.

    A wrapper policy names its inner one last: `budget:nodes=64,of=c2t:beta=0.1,K=6`.
    """
    check_names(spec)
    name, policy, settings, of = _parts(spec)
    inner: dict[str, Any] = {}
    if of is not None:
        inner["policy"] = parse(of, classifier, acceptance, costs, **defaults)
    if policy is Budget:
        return _budget(settings, inner["policy"], costs)
    settable = {field.name: field for field in fields(policy) if field.name not in ("classifier", "policy")}
    values = inner | {key: value for key, value in defaults.items() if key in settable and value is not None}
    for key, value in settings:
        values[key] = classifier(value) if _names_network(settable[key], value) else _value(name, settable[key], value)
    if any(field.name == "classifier" for field in fields(policy)):
        values["classifier"] = classifier()
    if acceptance and "acceptance" in settable and "acceptance" not in values:
        values["acceptance"] = acceptance(values.get("temperature", settable["temperature"].default))
    missing = [field.name for field in fields(policy) if field.default is MISSING and field.name not in values]
    if missing:
        raise InputError(f"{name} needs {', '.join(missing)}: {name}:{missing[0]}=...")
    return policy(**values)


def check_names(spec: str) -> None:
    """Raise InputError for a policy or a setting that does not exist; values are not read."""
    name, policy, settings, of = _parts(spec)
    names = ("nodes", "costs") if policy is Budget else [field.name for field in fields(policy)]
    settable = [other for other in names if other not in ("classifier", "policy")]
    for key, _ in settings:
        if key not in settable:
            more = ["of=POLICY, which comes last"] if of is not None else []
            raise InputError(f"{name} has no setting {key!r}; known: {', '.join([*settable, *more]) or 'none'}")
    if of is not None:
        check_names(of)


def check_own(spec: str, source: Path) -> None:
    """Raise InputError for a policy's text out of a file (`source`) that names a file or a Hub id: it would be read or
    downloaded though no user has named it. Networks by NAME are in c2t's own folders."""
    name, policy, settings, of = _parts(spec)
    settable = {field.name: field for field in fields(policy)}
    for key, value in settings:
        network = key in settable and _names_network(settable[key], value)
        file = (policy is Budget and key == "costs") or (key in settable and settable[key].type is Accuracies)
        if file or (network and not is_name(value)):
            raise InputError(f"{source}: {name}'s {key} is {value!r}, which only you can name: give --policy {spec}")
    if of is not None:
        check_own(of, source)


def _parts(spec: str) -> tuple[str, Any, list[tuple[str, str]], str | None]:
    """Return a policy's name, its class, its settings as written, and the text of its inner policy (None: not a
    wrapper policy)."""
    name, _, settings = spec.partition(":")
    name = RENAMED.get(name, name)
    if name not in POLICIES:
        raise InputError(f"no policy is called {name!r}; known: {', '.join(POLICIES)}")
    policy, of = POLICIES[name], None
    if policy in INNER:
        settings, _, of = settings.partition(OF)
        of = of.strip() or INNER[policy]
    pairs = (setting.partition("=") for setting in filter(None, settings.split(",")))
    return name, policy, [(key.strip(), value.strip()) for key, _, value in pairs], of


def _names_network(field: Field, value: str) -> bool:
    return TreeClassifier in get_args(field.type) and value.lower() != "none"


def describe(policy: Any, brief: bool = False) -> str:
    """Return the text that `parse` reads back, in the brief form without settings of minor interest at their defaults;
    the classifier itself is left out."""
    name = name_of(policy)
    if isinstance(policy, Budget):
        nodes = f"nodes={policy.nodes}," if policy.nodes else ""
        return f"{name}:{nodes}{OF}{describe(policy.policy, brief)}"
    hidden = ("classifier", "policy", "acceptance", "accuracies") if brief else ("classifier", "policy")
    values = {
        field.name: getattr(policy, field.name)
        for field in fields(policy)
        if field.name not in hidden
        and not (brief and field.name not in SHAPE and getattr(policy, field.name) == field.default)
    }
    texts = [f"{key}={_text(value)}" for key, value in values.items()]
    if type(policy) in INNER:
        texts.append(f"{OF}{describe(policy.policy, brief)}")
    return name + ":" * bool(texts) + ",".join(texts)


def label_of(policy: Any) -> str:
    """Return the brief description of a policy, or the repr of one that has no name on the command line."""
    inner = getattr(policy, "policy", policy)
    return describe(policy, brief=True) if {type(policy), type(inner)} <= set(POLICIES.values()) else repr(policy)


def summary_of(policy: type) -> str:
    """Return what a policy does: the first sentence of its docstring, without marks of code."""
    text = " ".join((inspect.getdoc(policy) or "").split()).replace("`", "")
    return re.split(r"(?<=\.) (?=\S)", text)[0]


def settings_of(policy: Any) -> list[str]:
    """Return a policy's settings with their defaults, as they are written in text; those of a pair or a run, which no
    text needs to give, are left out."""
    given = [field for field in fields(policy) if field.name not in ("classifier", "acceptance", "policy")]
    texts = [field.name if field.default is MISSING else f"{field.name}={_text(field.default)}" for field in given]
    return [*texts, *[f"{OF}POLICY"] * (policy in INNER)]


def name_of(policy: Any) -> str:
    """Return the name that a policy's class is listed by."""
    return next(name for name, kind in POLICIES.items() if type(policy) is kind)


def _budget(settings: list[tuple[str, str]], inner: Any, costs: Callable[..., RoundCosts] | None) -> Budget:
    """Return the budget over a policy: of so many nodes, or by measured costs."""
    values = dict(settings)
    nodes = _value("budget", Budget.__dataclass_fields__["nodes"], values.pop("nodes", "none"))
    if nodes is not None and not values:
        return Budget(inner, nodes)
    if not costs:
        raise InputError("budget needs nodes: budget:nodes=64; without them it takes costs measured on this machine")
    Budget(inner, nodes=1)  # raises for an unsuitable policy before anything is measured
    return Budget(inner, nodes, costs(inner, *values.values()))


def _value(policy: str, field: Field, text: str) -> Any:
    """Read a setting: the field's words (none, true, trained, ...), its kind of number, any text, numbers joined by x
    (4x2x2), or the content of a file."""
    if field.type is Accuracies:
        return Accuracies.read(text)
    kinds = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
    words = {str(word).lower(): word for kind in kinds for word in _words(kind)}
    if text.lower() in words or str in kinds:
        return words.get(text.lower(), text)
    sequence = get_origin(field.type) is tuple
    numbers = [kind for kind in (get_args(field.type) if sequence else kinds) if kind in (int, float)]
    try:
        return tuple(map(numbers[0], text.split("x"))) if sequence else numbers[0](text)
    except (ValueError, IndexError) as error:
        what = ["a number" if kind is float else "a whole number" for kind in numbers]
        raise InputError(f"{policy}: {field.name} = {text!r} must be {' or '.join([*what, *words])}") from error


def _words(kind: Any) -> tuple:
    return get_args(kind) if get_origin(kind) is Literal else {NoneType: (None,), bool: (True, False)}.get(kind, ())


def _text(value: Any) -> str:
    if isinstance(value, TreeClassifier | Accuracies):
        return value.name
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(getattr(value, "__name__", value))
