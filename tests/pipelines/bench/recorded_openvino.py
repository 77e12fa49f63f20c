"""A library in the stead of OpenVINO GenAI's and of its runtime: the next token depends on the whole text, and the
settings of the last call are there to be read."""

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


class Core:
    def compile_model(self, path, device, options):
        assert (path.rpartition("/")[2], device) == ("openvino_model.xml", "CPU")
        assert options["INFERENCE_NUM_THREADS"]
        return SimpleNamespace(create_infer_request=InferRequest)


class InferRequest:
    def __init__(self):
        self.reset_state()

    def reset_state(self):
        self.text = []

    def query_state(self):
        return [State(self)]

    def infer(self, inputs, share_inputs, share_outputs):
        assert share_inputs
        assert share_outputs
        [tokens], [positions] = inputs["input_ids"].tolist(), inputs["position_ids"].tolist()
        assert positions == [*range(len(self.text), len(self.text) + len(tokens))]
        self.text = [*self.text, *tokens]
        assert inputs["attention_mask"].tolist() == [[1] * len(self.text)]
        assert inputs["beam_idx"].tolist() == [0]


class State:
    def __init__(self, request):
        self.request = request

    @property
    def state(self):
        return self.request.text

    @state.setter
    def state(self, stored):
        self.request.text = stored
