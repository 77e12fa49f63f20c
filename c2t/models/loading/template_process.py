"""The guarded door to chat templates, which are code out of files: a process of their own renders them, within limits
of time and memory."""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from c2t.errors import InputError

# Names that no variable of a template may have: those of its own arguments and of the call that renders it.
TAKEN = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self"}
TAKEN |= {"conversations", "chat_template", "return_assistant_tokens_mask", "raise_exception", "strftime_now"}
SECONDS = 5.0  # processor time of one conversation; published templates take milliseconds


def rendered(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    now: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    opened: bool = True,
    continued: bool = False,
    variables: Mapping[str, str | float | bool] | None = None,
) -> str:
    """Return the text that the tokenizer's chat template makes of messages, up to where the next answer starts.

    now: the time (ISO 8601) for a template that asks for it, by default that of the clock. tools: functions for a
    template that reads them. opened: it begins a message for the answer; continued: it leaves the last one open.
    variables: further ones of the template, by names that are not TAKEN, nor a special token's.

    Raises InputError for whatever the template raises, and for one that takes too much time or memory, or makes too
    long a text.
    """
    try:
        template = tokenizer.get_chat_template(tools=tools)
    except ValueError as error:  # of several, none is the default
        raise InputError(f"the tokenizer has no chat template to take: {error}") from error
    special = tokenizer.special_tokens_map
    how = {"tools": tools and list(tools), "opened": opened, "continued": continued, "variables": variables}
    return _process(os.getpid()).render(
        {"messages": list(messages), "template": template, "special": special, "now": now, **how}
    )


class TemplateProcess:
    """The process that renders, started at the first use and again after a template has ended it. Threads take turns.

    seconds: processor time of one conversation at most; its other limits are those of `template_renderer`.
    """

    def __init__(self, seconds: float = SECONDS):
        self.seconds = seconds
        self.process: subprocess.Popen | None = None
        self.lock = threading.Lock()

    def render(self, request: dict[str, Any]) -> str:
        """Return the text. InputError where the template makes none."""
        with self.lock:
            try:
                answer = self._answer(json.dumps(request, default=str))
            except BaseException:
                _ended(self.process)  # half a line of its answer would be the next one's
                raise
        if "error" in answer:
            raise InputError(f"the chat template: {' '.join(answer['error'].split())[:300]}")
        return answer["text"]

    def _answer(self, line: str) -> dict[str, str]:
        process = self.process
        if process is None or process.poll() is not None:
            process = self._start()
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and its code says why
        if answer := process.stdout.readline():
            return json.loads(answer)
        code = process.wait()
        if code == -signal.SIGPROF:
            return {"error": f"it takes more than {self.seconds:g} seconds"}
        return {"error": f"the process that renders it has ended with code {code}"}

    def _start(self) -> subprocess.Popen:
        self.process = _started(self.seconds)
        weakref.finalize(self, _ended, self.process)  # at the latest when this process ends
        return self.process


@cache
def _process(_: int) -> TemplateProcess:
    """Return the one of this process, by its number: a fork must not share its parent's."""
    return TemplateProcess()


def _started(seconds: float) -> subprocess.Popen:
    program = Path(__file__).with_name("template_renderer.py")
    return subprocess.Popen(
        [sys.executable, "-P", str(program), str(seconds)],  # -P: the folder of the program holds other modules
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="ascii",
        # A thread of numpy's libraries would take address space, and torch is of no use to it.
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_TORCH": "0"},
        start_new_session=True,  # Ctrl-C is for the command, which may go on with the next turn
    )


def _ended(process: subprocess.Popen | None) -> None:
    if process is not None:
        process.kill()
        process.communicate()
