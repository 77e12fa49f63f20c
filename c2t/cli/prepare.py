"""Models, costs and compiled kernels of `c2t serve`, whose port answers at the same time. The imports take seconds."""

from c2t.cli import shared, terminal
from c2t.cli.options import Models
from c2t.decoder import SpeculativeDecoder
from c2t.models.target.prefixes import Prefixes
from c2t.policies.spec import describe
from c2t.study import acceptance


def prepare(
    models: Models, policy: str | None, classifier: str | None, prefix_memory: int
) -> tuple[SpeculativeDecoder, str]:
    """Return a decoder that is warm, with a cache of so many bytes for prefixes, and its policy in a few words."""
    loaded = shared.load(models, specs=[policy] if policy else ())
    spec = policy or shared.default_policy(loaded, classifier, for_server=True)
    terminal.say(f"{loaded.name} is loaded; preparing {spec}", error=True)
    rates = acceptance.lookup(loaded, 0.0, None)
    (chosen,) = shared.policies(loaded, classifier, [spec], rates, shared.costs(loaded))
    loaded.target.prefixes = Prefixes(prefix_memory)
    decoder = SpeculativeDecoder(loaded, chosen)
    terminal.say("a first text, which compiles and packs what is not yet", error=True)
    decoder.warm_up()
    return decoder, describe(chosen, brief=True)
