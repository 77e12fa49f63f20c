"""The entry of the command line. It handles signals before it imports torch, which takes seconds."""

import atexit
import os
import sys

from c2t import __version__
from c2t.output.signals import ENDED, Stopped, Stopping, end


def main() -> None:
    """Run a command of c2t and end the process with its exit code.

    After a signal the code is 128 + its number, and one line says what is on disk and how to go on.
    """
    stopping, code = Stopping(), 1  # of a programmer's error, after its traceback
    atexit.register(
        lambda: end(code)
    )  # registered first, so it runs last: at its end Python restores the default signal handlers
    if sys.argv[1:] == ["--version"]:  # the same answer as the command line's, without those imports
        sys.stdout.write(f"c2t {__version__}\n")
        end(0)
    sleep_soon()
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers reads it, too
    if sys.argv[1:] in ([], ["--help"]):
        from c2t.cli.overview import overview  # noqa: PLC0415 - see above

        app = overview()
    elif sys.argv[1] == "serve":  # which answers before other commands' imports are there
        from c2t.cli.program import program  # noqa: PLC0415 - see above
        from c2t.cli.serve import serve  # noqa: PLC0415 - see above

        app = program(serve)
    else:
        from c2t.cli.app import app  # noqa: PLC0415 - see above

    try:
        try:
            stopping.note = None
            app(prog_name="c2t")
        except SystemExit as done:
            code = done.code
            raise
        finally:
            stopping.note = ENDED
    except Stopped as stopped:
        end(128 + stopped.number, f"c2t: {stopped}")


def sleep_soon() -> None:
    """Let waiting OpenMP threads spin 1,000 times before they sleep, unless the environment sets another number.

    It must be called before torch is imported, which reads the setting. By default GCC's OpenMP spins 300,000 times, a
    few milliseconds. On a core that a busy process shares, smollm2 then generates 18 tokens/s; with 1,000 spins, 97.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


if __name__ == "__main__":
    main()
