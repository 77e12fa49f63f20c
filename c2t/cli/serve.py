"""The command that serves a pair over HTTP: serve."""

import re
from typing import Annotated, Any

import typer

from c2t.cli import options as o
from c2t.cli import shared, terminal
from c2t.cli.speculative_config import OPTION, read_speculative_config
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.target.prefixes import LIMIT, Prefixes
from c2t.output.signals import Stopped
from c2t.policies.spec import describe
from c2t.study import acceptance

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
    ] = LIMIT // 2**20,
) -> None:
    """Serve completions and chat by OpenAI's API, until Ctrl-C.

    Requests come and go while others are being decoded; each gets the text that it would get alone.
    """
    from c2t.serving import server as serving  # noqa: PLC0415 - needs an extra
    from c2t.serving.loading import answering  # noqa: PLC0415 - needs an extra

    if speculative_config is not None:
        models, policy = _speculating(models, policy, speculative_config)
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
    server = serving.Server(
        decoder,
        listener,
        served_model_name,
        api_key,
        cors or (),
        max_rows=max_num_seqs,
        max_tokens=max_total_tokens,
        max_waiting=max_waiting,
    )
    serving.log_to_stderr()
    name = served_model_name or loaded.name
    terminal.say(f"{server.address}/v1 serves {name} with {describe(chosen, brief=True)}; Ctrl-C ends it")
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
