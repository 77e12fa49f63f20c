"""Work on fixed addresses and shapes, which a CUDA device replays without a launch from Python for every kernel."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from c2t.errors import InputError


class Graph:
    """Function `work`, recorded as a CUDA graph. It reads and writes tensors that stay where they are, and never waits
    for the device.

    On a CUDA device it is recorded at the first call and replayed from then on; elsewhere it is called. state: tensors
    that it both changes and reads, such as counters, which the warm-up before the recording must not disturb.
    InputError where memory does not suffice.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, state: Sequence[Tensor] = ()):
        self.work, self.device, self.state = work, device, state
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        try:
            if self.device.type != "cuda":
                self.work()
                return
            if self.graph is None:
                self._record()
        except torch.OutOfMemoryError as error:
            raise InputError("no memory to record a graph: choose fewer tokens and prompts, or no graphs") from error
        self.graph.replay()

    def _record(self) -> None:
        """Record the work after two calls on another stream, in which kernels compile and libraries set themselves
        up."""
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
        with recording(graph):
            self.work()
        self.graph = graph


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """Record what is called into a graph; options: of `torch.cuda.graph`. Python's garbage collector is
    off until then: freeing an older graph, say, would break the recording off."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        if collects:
            gc.enable()


class Flags:
    """Booleans on their way from the device while it goes on working, one for each step."""

    device: Bool[Tensor, " S"]

    def __init__(self, steps: int, device: torch.device):
        self.device = torch.zeros(steps, dtype=torch.bool, device=device)
        self.host, self.events = self.device, None
        if device.type == "cuda":
            self.host = torch.zeros(steps, dtype=torch.bool, pin_memory=True)
            self.events = [torch.cuda.Event() for _ in range(steps)]

    def send(self, step: int) -> None:
        """Start to copy the flag of this step to the host."""
        if self.events:
            self.host[step].copy_(self.device[step], non_blocking=True)
            self.events[step].record()

    def received(self, step: int) -> bool:
        """Wait for the flag of this step and return it."""
        if self.events:
            self.events[step].synchronize()
        return bool(self.host[step])
