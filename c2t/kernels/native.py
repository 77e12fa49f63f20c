"""Functions in C and their structures, as csrc/c2t.h declares them. Python reads that file, so nothing is declared
twice, and a call with arguments of other types is refused."""

import ctypes
import re
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from c2t.kernels.compiled import SOURCES, library

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
NUMBER = re.compile(r"^ *#define (\w+) (\d+) *$", re.MULTILINE)
DIRECTIVE = re.compile(r"^ *#.*$", re.MULTILINE)
DECLARATION = re.compile(r"typedef struct \{([^}]*)\} (\w+);|(\w+) (\w+)\(([^()]*)\);")
VARIABLES = re.compile(r"(?:const )?(\w+) ([^;]+)")
VARIABLE = re.compile(r"((?:\*(?:const )?)*)(\w+)(?:\[(\w+)\])?")
TYPES = {
    "void": None,
    "char": ctypes.c_char,
    "int": ctypes.c_int,
    "long": ctypes.c_long,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "int64_t": ctypes.c_int64,
    "uint8_t": ctypes.c_uint8,
}


class Header:
    """A header's structures and the signatures of its functions: (type of the result, types of the arguments).

    Pointers to a structure are typed; others are addresses, which `c2t.kernels.pointer` gives. ValueError for what is
    neither a structure nor a prototype.
    """

    def __init__(self, text: str):
        text = COMMENT.sub("", text)
        self._types: dict[str, Any] = dict(TYPES)
        self.numbers = {name: int(number) for name, number in NUMBER.findall(text)}
        self.structs = SimpleNamespace()
        self.signatures: dict[str, tuple[Any, list[Any]]] = {}
        declarations = " ".join(DIRECTIVE.sub("", text).split())
        for fields, name, returned, function, arguments in DECLARATION.findall(declarations):
            if function:
                given = [] if arguments == "void" else arguments.split(", ")
                kinds = [kind for argument in given for _, kind in self._of(argument)]
                self.signatures[function] = self._types[returned], kinds
            else:
                members = [member for line in fields.strip(" ;").split("; ") for member in self._of(line)]
                self._types[name] = type(name, (ctypes.Structure,), {"_fields_": members})
                setattr(self.structs, name, self._types[name])
        if unread := DECLARATION.sub("", declarations).strip():
            raise ValueError(f"not a structure and not a prototype: {unread}")

    def _of(self, declaration: str) -> Iterator[tuple[str, Any]]:
        """Yield the variables of one declaration and their types."""
        base, variables = VARIABLES.fullmatch(declaration).groups()
        for variable in variables.split(", "):
            stars, name, length = VARIABLE.fullmatch(variable).groups()
            kind = self._types[base]
            if stars:
                kind = ctypes.POINTER(kind) if stars == "*" and hasattr(self.structs, base) else ctypes.c_void_p
            yield name, kind if length is None else kind * self.numbers[length]


HEADER = Header((SOURCES / "c2t.h").read_text(encoding="utf-8"))
structs = HEADER.structs


@cache
def kernels() -> ctypes.CDLL | None:
    """Return the functions in C, None where they cannot be compiled."""
    functions = library(SOURCES)
    for name, (returned, given) in HEADER.signatures.items() if functions else ():
        function = getattr(functions, name)
        function.restype, function.argtypes = returned, given
    return functions
