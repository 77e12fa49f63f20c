"""The command that serves a pair over HTTP: serve."""

from typing import Annotated, Any

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.decoder import SpeculativeDecoder
from c2t.models.target.prefixes import LIMIT, Prefixes
from c2t.output.signals import Stopped
from c2t.policies.spec import describe
from c2t.study import acceptance

SERVER_PANEL = "Server"


def _server(help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=SERVER_PANEL, **more)


@o.with_models
def serve(
    models: o.Models,
    policy: o.ServedPolicy = None,
    classifier: o.Classifier = None,
    host: Annotated[str, _server("Address to listen on; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, _server("Port to listen on; 0 takes any that is free.", min=0, max=65535)] = 8000,
    max_rows: Annotated[int, _server("Decode so many requests together at most.", min=1)] = 16,
    max_tokens: Annotated[
        int, _server("Set room aside for so many tokens: prompts and new ones of all requests that run.", min=1)
    ] = 16384,
    max_waiting: Annotated[int, _server("Let so many requests wait; further ones are refused.", min=1)] = 1024,
    prefix_memory: Annotated[
        int, _server("MiB for prompts that were read, whose beginnings are not computed again.", min=0)
    ] = LIMIT // 2**20,
) -> None:
    """Serve completions and chat by OpenAI's API, until Ctrl-C.

    Requests come and go while others are being decoded; each gets the text that it would get alone.
    """
    from c2t.serving import server as serving  # noqa: PLC0415 - needs an extra
    from c2t.serving.loading import answering  # noqa: PLC0415 - needs an extra

    listener = serving.listen(host, port)
    with answering(listener):  # for loading takes a while
        terminal.say("loading the models; until they are there, every request is answered with 503", error=True)
        loaded = shared.load(models)
        spec = policy or shared.default_policy(loaded, classifier, for_server=True)
        terminal.say(f"{loaded.name} is loaded; preparing {spec}", error=True)
        rates = acceptance.lookup(loaded, 0.0, None)
        (chosen,) = shared.policies(loaded, classifier, [spec], rates, shared.costs(loaded))
        loaded.target.prefixes = Prefixes(prefix_memory * 2**20)
        decoder = SpeculativeDecoder(loaded, chosen)
        terminal.say("a first text, which compiles and packs what is not yet", error=True)
        decoder.warm_up()
    limits = {"max_rows": max_rows, "max_tokens": max_tokens, "max_waiting": max_waiting}
    server = serving.Server(decoder, listener, **limits)
    serving.log_to_stderr()
    terminal.say(f"{server.address}/v1 serves {loaded.name} with {describe(chosen, brief=True)}; Ctrl-C ends it")
    if not server.here:
        terminal.say(f"{host}: anyone who reaches this address can use it, without a password", error=True)
    try:
        server.run()
    except Stopped as stopped:
        stopped.add_note("the server is down, and no request is left")
        raise
