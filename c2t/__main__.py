"""The entry of the command line, which hears signals before the imports that take seconds."""

import atexit
import os
import sys

from c2t import __version__
from c2t.output.signals import ENDED, Stopped, Stopping, end


def main() -> None:
    """Run a command of c2t and end the process with its exit code; after a signal with 128 + its number, and one line
    that says what is on disk and how to go on."""
    stopping, code = Stopping(), 1  # of a programmer's error, after its traceback
    atexit.register(lambda: end(code))  # the last of them, for Python itself then forgets how to hear signals
    if sys.argv[1:] == ["--version"]:  # as the command line below answers, but without those imports
        sys.stdout.write(f"c2t {__version__}\n")
        end(0)
    sleep_soon()
    if sys.argv[1:] in ([], ["--help"]):
        from c2t.cli.overview import overview  # noqa: PLC0415 - see above

        app = overview()
    else:
        from c2t.cli.app import app  # noqa: PLC0415 - see above

    try:
        try:
            stopping.at_once = None
            app(prog_name="c2t")
        except SystemExit as done:
            code = done.code
            raise
        finally:
            stopping.at_once = ENDED
    except Stopped as stopped:
        end(128 + stopped.number, f"c2t: {stopped}")


def sleep_soon() -> None:
    """Let OpenMP's threads look 1,000 times for what they wait for before they sleep, unless the environment says how
    long they look. It is read when torch is loaded.

    By itself GCC's OpenMP looks 300,000 times, for milliseconds, in which a thread keeps its core from others that
    share it: beside a busy thread smollm2 generates 18 tokens a second so, and 97 with 1,000.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


if __name__ == "__main__":
    main()
