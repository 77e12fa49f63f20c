"""Work of fixed addresses and shapes, which a CUDA device replays without being told every kernel again."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor


class Graph:
    """`work` reads and writes tensors that stay where they are, and never waits for the device.

    On a CUDA device it is recorded at the first call and replayed from then on; elsewhere it is called. state: what it
    changes and reads again, such as counters, which the warm-up before the recording must not disturb.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, state: Sequence[Tensor] = ()):
        self.work, self.device, self.state = work, device, state
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.device.type != "cuda":
            self.work()
            return
        if self.graph is None:
            self._record()
        self.graph.replay()

    def _record(self) -> None:
        """Kernels compile and libraries set themselves up in calls before the recording, on a stream of their own."""
        before = [tensor.clone() for tensor in self.state]
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.work()
                for tensor, value in zip(self.state, before, strict=True):
                    tensor.copy_(value)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.work()
        self.graph = graph


class Flags:
    """Answers on their way from the device while it goes on working, one for each of so many steps."""

    device: Bool[Tensor, " S"]

    def __init__(self, steps: int, device: torch.device):
        self.device = torch.zeros(steps, dtype=torch.bool, device=device)
        self.host, self.events = self.device, None
        if device.type == "cuda":
            self.host = torch.zeros(steps, dtype=torch.bool, pin_memory=True)
            self.events = [torch.cuda.Event() for _ in range(steps)]

    def send(self, step: int) -> None:
        if self.events:
            self.host[step].copy_(self.device[step], non_blocking=True)
            self.events[step].record()

    def received(self, step: int) -> bool:
        if self.events:
            self.events[step].synchronize()
        return bool(self.host[step])
