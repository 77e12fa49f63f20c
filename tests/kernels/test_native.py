"""Python and C mean the same by what csrc/c2t.h declares."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from c2t.kernels import compiled
from c2t.kernels.native import HEADER, Header, kernels

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
OBJDUMP = shutil.which("objdump")
STRUCTS = vars(HEADER.structs)


def test_a_header_is_read() -> None:
    header = Header("""
        #define MOST 3 /* of { something }; */
        typedef struct {
            const float *bias; /* or NULL */
            double weights[MOST];
            long inputs, outputs;
        } matrix;
        typedef struct { const matrix *first; void *const *all; } layer;
        #pragma GCC visibility push(protected)
        void run(const layer *l, long count, float epsilon,
                 int64_t *found);
        long lanes(void);
        """)
    matrix, layer = header.structs.matrix, header.structs.layer
    fields = [("bias", ctypes.c_void_p), ("weights", ctypes.c_double * 3)]
    assert matrix._fields_ == [*fields, ("inputs", ctypes.c_long), ("outputs", ctypes.c_long)]
    assert layer._fields_ == [("first", ctypes.POINTER(matrix)), ("all", ctypes.c_void_p)]
    given = [ctypes.POINTER(layer), ctypes.c_long, ctypes.c_float, ctypes.c_void_p]
    assert header.signatures == {"run": (None, given), "lanes": (ctypes.c_long, [])}


@pytest.mark.parametrize(
    "line", ["static int one(void) { return 1; }", "extern int number;", "long f(int (*g)(long));"]
)
def test_what_it_does_not_read_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a structure and not a prototype"):
        Header(f"long lanes(void);\n{line}\n")


@needs_kernels
def test_structures_have_the_compilers_layout(tmp_path: Path) -> None:
    printed = "".join(
        f"P(sizeof({name})) {' '.join(f'P(offsetof({name}, {field}))' for field, _ in struct._fields_)}\n"
        for name, struct in STRUCTS.items()
    )
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text(
        "#include <c2t.h>\n#include <stddef.h>\n#include <stdio.h>\n"
        f'#define P(number) printf("%zu ", number);\nint main(void) {{\n{printed}}}\n'
    )
    subprocess.run([*compiled.compiler(), f"-I{compiled.SOURCES}", "-o", program, source], check=True)
    found = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    expected = [
        number
        for struct in STRUCTS.values()
        for number in (ctypes.sizeof(struct), *(getattr(struct, field).offset for field, _ in struct._fields_))
    ]
    assert list(map(int, found)) == expected


@needs_kernels
@pytest.mark.skipif(OBJDUMP is None, reason="no objdump here")
def test_a_function_of_another_library_is_not_called_instead(tmp_path: Path) -> None:
    """What the loader looks up may be found in any library of the process: a call from one of our files into another
    is none of it."""
    place = tmp_path / "c2t.so"
    place.write_bytes(compiled._compile([*compiled.compiler(), *compiled.FLAGS, "-O0"], compiled.SOURCES))
    looked_up = subprocess.run([OBJDUMP, "-R", place], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"\b[a-z_]+\b", looked_up))
    assert "malloc" in names
    assert not names & set(HEADER.signatures)
