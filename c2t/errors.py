"""The exception for users' errors, and checks that raise it. It imports no other module of c2t."""

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_type_hints

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode's categories of controls, formats, surrogates and line ends


class InputError(ValueError):
    """Wrong input: a path, a name, a file or a setting.

    The message is one line that says what is wrong and what would be right. The command line prints it and exits with
    code 2. Any other exception is a programmer's error and shows its traceback.
    """

    def __init__(self, message: str):
        super().__init__(plain(message))


def go_on(error: BaseException, line: str) -> None:
    """Add to an error what is safe and how to go on: to the line of an InputError, to another as a note."""
    if isinstance(error, InputError):
        error.args = (f"{error}; {plain(line)}",)
    else:
        error.add_note(line)


def plain(text: str) -> str:
    """Return a text in one line that is safe on a terminal; use it for names and labels from files.

    Control characters and lone surrogates become Python's escapes.
    """
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in UNSEEN else character
        for character in text
    )


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, without its further lines: with the second if the first ends with
    a colon."""
    if isinstance(error, KeyError):  # whose message is the key alone
        return f"no entry {error}"
    said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    first, *further = (line.strip() for line in said.splitlines())
    return f"{first} {further[0]}" if first.endswith(":") and further else first


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raise InputError, with `what` and the reason, for any error of a library that reads a user's file.

    A panic of a library in Rust counts as such an error.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what} ({one_line(error)})") from error


def counted(number: int) -> str:
    """Return a number for a message; one of more than 15 digits is shortened."""
    return f"{number:,}" if abs(number) < 10**15 else "more than 10^15"


def installed_by(extra: str = "") -> str:
    """Return the command that installs c2t with an extra: from a clone, since no package index has it."""
    target = f"'.[{extra}]'" if extra else "."
    return f"pip install {target} in a clone of c2t"


def short_repr(value: object) -> str:
    """Return a value for a message, without the middle of a long one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> None:
    """Raise InputError unless a value is a whole number, from `least` to `most`. True is no number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} = {short_repr(value)} must be a whole number")
    if least is not None and int(value) < least:
        raise InputError(f"{name} = {short_repr(value)} must be at least {least}")
    if most is not None and int(value) > most:
        raise InputError(f"{name} = {short_repr(value)} must be at most {most}")


def check_number(name: str, value: Any) -> None:
    """Raise InputError unless a value is a real number. True is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} = {short_repr(value)} must be a number")


def check_truth(name: str, value: Any) -> None:
    """Raise InputError unless a value is True or False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise InputError(f"{name} = {short_repr(value)} must be True or False")


def check_kind(name: str, value: Any, kind: Any, right: str) -> None:
    """Raise InputError unless a value is of a type (or a union of types). right: the correct value, in words."""
    if not isinstance(value, kind):
        raise InputError(f"{name} = {short_repr(value)} must be {right}")


def whole(settings: object, *names: str, least: int | None = None, most: int | None = None) -> None:
    """Raise InputError unless each named field of a settings object is a whole number, from `least` to `most`."""
    for name in names:
        check_whole(f"{type(settings).__name__}: {name}", getattr(settings, name), least, most)


def at_least_one(settings: object, *names: str) -> None:
    """Raise InputError unless each named field of settings is a whole number of at least 1, or None where it is off."""
    whole(settings, *(name for name in names if not _is_off(settings, name)), least=1)


def from_zero(settings: object, *names: str) -> None:
    """Raise InputError unless each named field of settings is a whole number of at least 0, or None where it is off."""
    whole(settings, *(name for name in names if not _is_off(settings, name)), least=0)


def _is_off(settings: Any, name: str) -> bool:
    """Return True for None in a field whose type has it."""
    return getattr(settings, name) is None and NoneType in get_args(get_type_hints(type(settings))[name])


def probability(settings: object, *names: str) -> None:
    """Raise InputError unless each named field of a settings object is in (0, 1]."""
    for name in names:
        value = getattr(settings, name)
        check_number(f"{type(settings).__name__}: {name}", value)
        if not 0 < value <= 1:
            raise InputError(f"{type(settings).__name__}: {name} = {value} must be a number above 0 and at most 1")
