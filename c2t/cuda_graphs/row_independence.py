"""A check before anything is recorded: a row of a matrix product depends on itself, not on where it stands or on what
the others are."""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from c2t.cuda_graphs.graph import Graph
from c2t.errors import InputError


@torch.inference_mode()
def check_rows(model: nn.Module, rows: int) -> None:
    """Raise InputError that names the first linear layer, of each shape of weights, whose product of so many rows lets
    a row's bits depend on its place or on the others."""
    shapes: dict[tuple, tuple[str, nn.Module]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            kind = type(module), module.weight.shape, module.weight.dtype, module.bias is None
            shapes.setdefault(kind, (name, module))
    for name, module in shapes.values():
        if not are_independent(module, rows):
            shape = " x ".join(map(str, module.weight.shape))
            raise InputError(
                f"on this device a row of {name} ({shape}, {module.weight.dtype}) depends on the other {rows - 1} "
                "rows, so trees would not have plain decoding's bits; decode without graphs (graph_tokens = 0)"
            )


def are_independent(linear: nn.Module, rows: int) -> bool:
    """Return whether so many equal rows give equal rows, mixed rows in another order the same rows in that order, and
    a row among copies what it gives among others. The product is recorded, since libraries may choose other kernels
    where they record."""
    weight: Tensor = linear.weight  # type: ignore[assignment]
    generator = torch.Generator("cpu").manual_seed(0)
    width = weight.shape[0] if isinstance(linear, Conv1D) else weight.shape[1]
    given = torch.randn(rows, width, generator=generator, device="cpu", dtype=torch.float32).to(weight)
    order = torch.randperm(rows, generator=generator, device="cpu").to(weight.device)
    x, out = torch.zeros_like(given), [given]

    def work() -> None:
        out[0] = linear(x)

    graph = Graph(work, weight.device)

    def product(rows: Tensor) -> Tensor:
        x.copy_(rows)
        graph()
        return out[0].clone()

    try:
        mixed = product(given)
        copies_agree = product(given[:1].expand_as(x)).equal(mixed[:1].expand_as(mixed))
        return copies_agree and product(given[order]).equal(mixed[order])
    except torch.OutOfMemoryError as error:
        raise InputError("no memory to check the products of graphs: choose fewer prompts, or no graphs") from error
