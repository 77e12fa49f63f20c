"""The target writes many texts at once on a device, each at its own temperature; on a GPU a step is one CUDA graph."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from c2t.cuda_graphs.graph import recording
from c2t.models.gguf_target import END
from pipelines.pair.smollm2.device_llama import DeviceLlama, causal

SLOTS = 64  # a step's attention reads a multiple of so many slots of the cache, up to the longest text's end
READ_AT_ONCE = 256  # questions, which bounds the memory that reading them takes
CHECKED = 16  # steps between looks at how many texts go on: a look waits for the device
# No draw of an exponential is smaller than half of what float32 tells from 1: a zero would be chosen for sure.
SMALLEST = 2.0**-25


class Writer:
    """Room for `rows` texts of up to `capacity` tokens. All that a step changes stays at its place, so that graphs can
    hold it: `ids`, `lengths` (tokens of each text), `going` (which texts are still being written), and the cache."""

    def __init__(self, llama: DeviceLlama, rows: int, capacity: int):
        capacity = -(-capacity // SLOTS) * SLOTS
        device, shape = llama.device, (2, rows, llama.kv_heads, capacity, llama.head_dim)
        self.llama, self.capacity = llama, capacity
        self.cache = [torch.zeros(shape, dtype=llama.dtype, device=device) for _ in llama.layers]
        self.ids = torch.zeros(rows, capacity, dtype=torch.long, device=device)
        self.lengths = torch.ones(rows, dtype=torch.long, device=device)
        self.going = torch.zeros(rows, dtype=torch.bool, device=device)
        self.temperatures = torch.zeros(rows, 1, device=device)
        self.rows, self.places = torch.arange(rows, device=device), torch.arange(capacity, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}  # by slots; None: these have been read once
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @torch.no_grad()
    def write(
        self, asked: Sequence[list[int]], temperatures: Sequence[float], longest: int, few: int
    ) -> list[list[int]]:
        """Return the texts: each of `asked` and how the target goes on from it, until it ends the turn, `longest`
        tokens are written, or at most `few` of the texts are still being written, which is looked at now and then."""
        self._begin(asked, temperatures)
        begin = max(map(len, asked))
        assert begin + longest <= self.capacity
        for step in range(longest):
            self._advance(-(-(begin + step) // SLOTS) * SLOTS)
            if step % CHECKED == CHECKED - 1 and int(self.going.sum()) <= few:
                break
        ids, lengths = (part[: len(asked)].tolist() for part in (self.ids, self.lengths))
        return [text[:length] for text, length in zip(ids, lengths, strict=True)]

    def _begin(self, asked: Sequence[list[int]], temperatures: Sequence[float]) -> None:
        """Read the questions; rows without one are idle."""
        count, device = len(asked), self.llama.device
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in asked], batch_first=True)
        self.ids[:count, : padded.shape[1]] = padded.to(device)
        self.lengths.fill_(1)
        self.lengths[:count] = torch.tensor([len(ids) for ids in asked], device=device)
        self.temperatures[:count, 0] = torch.tensor(temperatures, device=device)
        self.going.copy_(self.rows < count)
        for begin in range(0, count, READ_AT_ONCE):
            part = slice(begin, min(begin + READ_AT_ONCE, count))
            self._read(part, max(map(len, asked[part])))

    def _read(self, part: slice, longest: int) -> None:
        """Fill the cache of some rows with their questions."""

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B n heads D"]:
            keys, values = self.cache[number]
            keys[part, :, :longest] = key.transpose(1, 2)
            values[part, :, :longest] = value.transpose(1, 2)
            return causal(number, query, key, value)

        tokens = self.ids[part, :longest]
        for _ in self.llama.states(tokens, self.places[:longest].expand_as(tokens), attend):
            pass

    def _advance(self, slots: int) -> None:
        """Write a token in every row that goes on: in the device's usual way when so many slots are read for the first
        time, which prepares what a graph cannot, and by a graph from the second time on."""
        if self.pool is None or slots not in self.graphs:
            self._step(slots)
            self.graphs[slots] = None
            return
        if self.graphs[slots] is None:
            graph = torch.cuda.CUDAGraph()
            with recording(graph, pool=self.pool):  # which records, and computes nothing
                self._step(slots)
            self.graphs[slots] = graph
        self.graphs[slots].replay()

    def _step(self, slots: int) -> None:
        """Read each row's last token, and write the next one behind it where the text goes on."""
        at = self.lengths - 1
        unseen = (self.places[:slots] > at[:, None])[:, None, None]
        mask = torch.zeros(unseen.shape, dtype=self.llama.dtype, device=at.device).masked_fill(unseen, float("-inf"))

        def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B heads D"]:
            keys, values = self.cache[number]
            keys[self.rows, :, at], values[self.rows, :, at] = key, value
            # Heads that share keys stand side by side, as if they were queries of one head: no key is repeated.
            query = query.unflatten(1, (self.llama.kv_heads, -1))
            return F.scaled_dot_product_attention(query, keys[:, :, :slots], values[:, :, :slots], mask).flatten(1, 2)

        *_, hidden = self.llama.states(self.ids.gather(1, at[:, None])[:, 0], at, attend)
        new = draw(self.llama.logits(hidden), self.temperatures)
        self.ids.scatter_(1, self.lengths[:, None], new[:, None])  # behind an ended text nobody reads it
        self.lengths.add_(self.going)
        self.going.logical_and_(new != END)


def draw(logits: Float[Tensor, "B V"], temperatures: Float[Tensor, "B 1"]) -> Int[Tensor, " B"]:
    """Return a token of each row at its temperature, the most probable one at 0: the largest logit, to which Gumbel
    noise of the temperature's size is added. Changes `logits`, which are as large as all else of a step together."""
    noise = torch.empty_like(logits).exponential_().clamp_(min=SMALLEST).log_()
    return logits.addcmul_(temperatures, noise, value=-1).argmax(-1)
