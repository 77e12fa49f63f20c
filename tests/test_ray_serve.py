"""integrations/ray_serve: two replicas of the server behind Ray's proxy write what one decoder writes."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from c2t.decoder import SpeculativeDecoder
from c2t.errors import InputError
from c2t.models.loading.load import load_pair
from c2t.policies import Eagle2

ROOT = Path(__file__).parents[1]
PROMPTS = ["def add(a, b):", "The sum of", "class Tree:", "import numpy"]
CODE = """if True:
    import json, sys
    from concurrent.futures import ThreadPoolExecutor

    import ray
    from openai import OpenAI
    from ray import serve

    from deployment import application

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": int(sys.argv[2])})
    serve.run(application({"pair": "tiny", "policy": "eagle2:K=3,levels=3,N=8", "replicas": "2", "cpus": "0.5"}))
    ai = OpenAI(base_url=f"http://127.0.0.1:{sys.argv[2]}/v1", api_key="none", max_retries=0)

    def write(prompt):
        fields = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0}
        whole = ai.completions.create(**fields).choices[0].text
        stream = "".join(chunk.choices[0].text for chunk in ai.completions.create(**fields, stream=True))
        return [whole, stream]

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(write, json.loads(sys.argv[1])))
    replicas = serve.status().applications["default"].deployments["c2t"].replica_states
    print(json.dumps([texts, sum(replicas.values())]))
    serve.shutdown()
"""


@pytest.fixture
def deployment(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the file, with a stand-in for Ray, whose applications are the functions that replicas run."""
    serve: Any = ModuleType("ray.serve")
    serve.Application, serve.ingress = object, lambda replica: lambda: replica
    serve.deployment = lambda replica, **_: SimpleNamespace(bind=lambda: replica)
    ray: Any = ModuleType("ray")
    ray.serve = serve
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    return runpy.run_path(str(ROOT / "integrations" / "ray_serve" / "deployment.py"))["application"].__globals__


@pytest.mark.parametrize(
    ("given", "policy"), [({}, Eagle2(K=3, levels=3, N=8)), ({"policy": "eagle2:N=4"}, Eagle2(N=4))]
)
def test_the_default_policy_is_the_servers(deployment: dict[str, Any], given: dict[str, str], policy: Eagle2) -> None:
    asked = []
    deployment["default_policy"] = lambda *_, for_server: asked.append(for_server) or "eagle2:K=3,levels=3,N=8"
    deployment["make_app"] = lambda decoder, front, metrics: decoder
    assert deployment["application"]({"pair": "tiny", **given})().policy == policy
    assert asked == [True] * (not given)


def test_an_unknown_argument_is_refused(deployment: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no argument is called 'replica'; known: pair, draft, policy"):
        deployment["application"]({"pair": "tiny", "replica": "2"})


@pytest.mark.slow
def test_two_replicas_write_the_same_texts() -> None:
    pytest.importorskip("ray.serve")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(PROMPTS), "8765"],
        cwd=ROOT / "integrations" / "ray_serve",
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    texts, replicas = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("[["))
    )  # Ray talks too
    decoder = SpeculativeDecoder(load_pair("tiny"), Eagle2(K=3, levels=3, N=8))
    assert texts == [[decoder.generate(prompt, 12, chat=False).text] * 2 for prompt in PROMPTS]
    assert replicas == 2
