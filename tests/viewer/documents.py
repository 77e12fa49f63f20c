"""Documents of the viewer for its tests: decoded, and read back."""

import base64
import json
import re
from typing import Any

import numpy as np

from c2t.models.loading.load import Pair
from c2t.protocols import Policy
from c2t.sampling import Sampling
from c2t.viewer.view import Viewer

INTEGERS = ("parents", "sizes", "token")
PROMPT = "def add(a, b):"


def decoded(pair: Pair, *policies: Policy, prompt: str = PROMPT, new: int = 24, **more: Any) -> Viewer:
    """Return a viewer whose rounds have come."""
    sampling = Sampling(more.pop("temperature", 0.0))
    viewer = Viewer(pair, policies, prompt, max_new_tokens=new, sampling=sampling, chat=False, **more)
    for _ in viewer.events():
        pass
    return viewer


def columns(content: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return a round's columns, and for each candidate its `parent` and `log_joint`; place 0 is the root."""
    names = ("parents", "sizes", "entropies", "token", "log_prob", "target")
    kinds = {name: "<i4" if name in INTEGERS else "<f4" for name in names}
    found = {name: np.frombuffer(base64.b64decode(content[name]), kinds[name]) for name in names}
    for name in ("token", "log_prob", "target"):
        found[name] = np.concatenate([np.zeros(1, found[name].dtype), found[name]])
    found["parent"] = np.concatenate([[-1], np.repeat(found["parents"], found["sizes"])])
    found["log_joint"] = np.zeros(len(found["token"]), np.float32)
    for node in range(1, len(found["token"])):
        found["log_joint"][node] = found["log_joint"][found["parent"][node]] + found["log_prob"][node]
    return found


def embedded(html: str) -> str:
    """Return the text of the element that holds the document."""
    return re.findall(r'<script type="application/json" id="document">(.*?)</script>', html, re.DOTALL)[0]


def document(html: str) -> dict[str, Any]:
    """Return the document that a page holds."""
    return json.loads(embedded(html))
