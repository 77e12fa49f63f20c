"""A library in the stead of OpenVINO GenAI's: the next token depends on the whole text, and the settings of the last
call are there to be read."""

import time
from types import SimpleNamespace

VOCABULARY = 8
__version__ = "0"


class GenerationConfig:
    pass


class Tensor:
    def __init__(self, array):
        assert array.dtype == "int64"
        self.rows = array.tolist()


def draft_model(folder, device, **options):
    return (folder, device, options)


class LLMPipeline:
    def __init__(self, folder, device, **options):
        self.made = (folder, device, options)

    def generate(self, ids, config):
        [text], self.config, start = ids.rows, config, time.perf_counter()
        new = [sum(text) % VOCABULARY]
        first = time.perf_counter() - start
        while len(new) < config.max_new_tokens and new[-1] not in config.stop_token_ids:
            new.append(sum(text + new) % VOCABULARY)
        metrics = SimpleNamespace(get_ttft=lambda: SimpleNamespace(mean=1e3 * first))
        return SimpleNamespace(tokens=[new], perf_metrics=metrics)
