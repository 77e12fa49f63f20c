"""The command that serves a pair over HTTP: serve. It imports what takes time once its port answers."""

import re
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from c2t.cli import options as o
from c2t.cli import terminal
from c2t.cli.speculative_config import OPTION, read_speculative_config
from c2t.errors import InputError
from c2t.output.signals import Stopped, ending_at_once
from c2t.serving.loading import answering, listen

SERVER_PANEL = "Server"


def _server(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SERVER_PANEL, **more)


def an_origin(text: str) -> str:
    """Read an option that is the origin of web pages; wrong usage for none."""
    if text != "*" and not re.fullmatch(r"https?://[^/\s]+", text):
        raise typer.BadParameter(f"{text!r} is no origin: give one as http://localhost:3000, or *")
    return text


@o.with_models
def serve(
    models: o.Models,
    policy: o.ServedPolicy = None,
    classifier: o.Classifier = None,
    host: Annotated[str, _server("Address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, _server("Port to listen on; 0 takes any that is free.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[
        str | None,
        _server("Serve the model under this name.", parser=o.a_word, metavar="NAME", show_default="the pair's"),
    ] = None,
    api_key: Annotated[
        str | None,
        _server(
            "Refuse requests without this key. Other users of the machine do not see it in the variable.",
            parser=o.a_word,
            metavar="KEY",
            envvar="C2T_API_KEY",
            show_envvar=True,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        _server("Let web pages of this origin call it, * of any; may be repeated.", parser=an_origin, metavar="ORIGIN"),
    ] = None,
    max_num_seqs: Annotated[
        int, _server("Decode so many requests together at most.", "--max-num-seqs", "--max-rows", min=1)
    ] = 16,
    max_total_tokens: Annotated[
        int,
        _server(
            "Set room aside for so many tokens: prompts and new ones of all requests that run.",
            "--max-total-tokens",
            "--max-tokens",
            min=1,
        ),
    ] = 16384,
    max_waiting: Annotated[int, _server("Let so many requests wait; further ones are refused.", min=1)] = 1024,
    speculative_config: Annotated[
        str | None,
        _server("Take draft and depth from vLLM's JSON: method, model, num_speculative_tokens.", metavar="JSON"),
    ] = None,
    prefix_memory: Annotated[
        int, _server("MiB for prompts that were read, whose beginnings are not computed again.", min=0)
    ] = 256,
) -> None:
    """Serve completions and chat by OpenAI's API, until Ctrl-C.

    Requests come and go while others are being decoded; each gets the text that it would get alone.
    """
    import uvicorn  # noqa: F401, PLC0415 - a missing extra is said before a port is open

    if speculative_config is not None:
        models, policy = _speculating(models, policy, speculative_config)
    with listen(host, port) as listener:
        terminal.say("loading the models; until they are there, every request is answered with 503", error=True)
        with ExitStack() as loading:
            with ending_at_once():  # before the first answer, after which a signal may come
                loading.enter_context(answering(listener))
                from c2t.cli.prepare import prepare  # noqa: PLC0415 - takes seconds, in which the port answers
                from c2t.serving.server import Server, log_to_stderr  # noqa: PLC0415 - likewise

            decoder, described = prepare(models, policy, classifier, prefix_memory * 2**20)
        server = Server(
            decoder,
            listener,
            served_model_name,
            api_key,
            cors or (),
            max_rows=max_num_seqs,
            max_tokens=max_total_tokens,
            max_waiting=max_waiting,
        )
        log_to_stderr()
        name = served_model_name or decoder.pair.name
        terminal.say(f"{server.address}/v1 serves {name} with {described}; Ctrl-C ends it")
        if not server.here and api_key is None:
            terminal.say(f"{host}: anyone who reaches this address can use it, without a password", error=True)
        try:
            server.run()
        except Stopped as stopped:
            stopped.add_note("the server is down, and no request is left")
            raise


def _speculating(models: o.Models, policy: str | None, config: str) -> tuple[o.Models, str | None]:
    """Return models and policy with what a --speculative-config says of them."""
    draft, spec = read_speculative_config(config)
    for option, taken in (("--draft", models.draft), ("--policy", policy if spec else None)):
        if taken is not None:
            raise InputError(f"{option} and {OPTION} say the same: give one of them")
    return models._replace(draft=draft), spec or policy
