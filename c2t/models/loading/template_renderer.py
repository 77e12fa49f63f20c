"""The program that renders chat templates for `c2t.models.loading.template_process`: a line of JSON in, a line of JSON
out.

A template is code out of a file. jinja's sandbox keeps it from the machine, but not from loops and sizes without end,
and one step of it may take hours; so this process has limits, which the system enforces.
"""

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NamedTuple

from transformers.utils import chat_template_utils

MEMORY = 2**30  # bytes of the whole process, of which its modules take a quarter
LONGEST = 2**21  # characters of a conversation: twice those of the longest turn


def main(seconds: float) -> None:
    """Answer every line of the standard input: {"text": ...}, or {"error": ...}. seconds: of processor time, for each;
    one that takes more ends the process by SIGPROF."""
    if sys.platform == "linux":  # where the system enforces this limit
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard), hard))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # also in the middle of a step of Python
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            answer = {"text": render(**json.loads(line))}
        except MemoryError:
            answer = {"error": f"it asks for more than {MEMORY // 2**20:,} MiB of memory"}
        except Exception as error:  # noqa: BLE001  a template may raise any
            answer = {"error": str(error) or type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class Clock(NamedTuple):
    """A datetime class whose now is always the same."""

    moment: datetime

    def now(self) -> datetime:
        return self.moment


def render(
    messages: list[dict[str, Any]],
    template: str,
    special: dict[str, str],
    now: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    opened: bool = True,
    continued: bool = False,
    variables: dict[str, Any] | None = None,
) -> str:
    """Return the text of a conversation, as `apply_chat_template` of its tokenizer would. Arguments as of
    `c2t.models.loading.template_process.rendered`."""
    # What transformers' strftime_now asks; a function in the template's context does not get through to it.
    chat_template_utils.datetime = datetime if now is None else Clock(datetime.fromisoformat(now))
    [text], _ = chat_template_utils.render_jinja_template(
        [messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=opened,
        continue_final_message=continued,
        **((variables or {}) | special),
    )
    if len(text) > LONGEST:
        raise ValueError(f"it makes a text of {len(text):,} characters, and no target has room for {LONGEST:,}")
    return text


if __name__ == "__main__":
    main(float(sys.argv[1]))
