"""Replicas of c2t's server, on one machine or many, by Ray Serve; see README.md beside this file.

serve run deployment:application pair=smollm2 policy=eagle2:N=8,K=4,levels=3 replicas=2
"""

from collections.abc import Mapping

from fastapi import FastAPI
from ray import serve

from c2t import load_pair
from c2t.batching import BatchDecoder
from c2t.cli.shared import default_policy
from c2t.costs.policy_text import policy_for
from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.serving.app import make_app
from c2t.serving.front import AsyncFront
from c2t.serving.metrics import Metrics

ARGUMENTS = ("pair", "draft", "policy", "device", "replicas", "rows", "waiting", "cpus", "gpus")


def application(arguments: Mapping[str, str]) -> serve.Application:
    """Return the application that `serve run` starts. Each replica loads its own pair and decodes its own batch.

    arguments: pair, draft, policy, device as of `c2t serve`; replicas; rows, waiting: a replica's requests; cpus, gpus
    of a replica. InputError for others.
    """
    if unknown := [name for name in arguments if name not in ARGUMENTS]:
        raise InputError(f"no argument is called {unknown[0]!r}; known: {', '.join(ARGUMENTS)}")
    pair, rows, waiting = arguments.get("pair"), int(arguments.get("rows", 16)), int(arguments.get("waiting", 64))

    def replica() -> FastAPI:
        loaded = load_pair(pair, draft=arguments.get("draft"), device=arguments.get("device"))
        policy = policy_for(loaded, arguments.get("policy") or default_policy(loaded, None, for_server=True))
        metrics = Metrics()
        front = AsyncFront(BatchDecoder(loaded, policy, max_rows=rows, max_waiting=waiting), metrics)
        metrics.watch(front)
        return make_app(SpeculativeDecoder(loaded, policy), front, metrics)

    resources = {"num_cpus": float(arguments.get("cpus", 1)), "num_gpus": float(arguments.get("gpus", 0))}
    return serve.deployment(
        serve.ingress(replica)(),
        name="c2t",
        num_replicas=int(arguments.get("replicas", 1)),
        max_ongoing_requests=rows + waiting,
        ray_actor_options=resources,
    ).bind()
