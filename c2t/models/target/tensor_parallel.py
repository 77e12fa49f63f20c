"""A target that is larger than one device, split over the processes of torchrun by transformers' tensor parallelism.

Every process runs the same loop, with its part of the target and a whole draft. The trees are the first process's, so
that all of them verify the same tokens, whatever a draft's last bit is elsewhere; the target's logits are the same
everywhere, because each sum over the processes is made once.
"""

import os
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig
from transformers.distributed import DistributedConfig

from c2t.errors import InputError
from c2t.protocols import Draft, Root
from c2t.tree import Tree

HOW = "torchrun --nproc-per-node 2 -m c2t generate --tp"


def rank_and_world() -> tuple[int, int]:
    """Return this process's number, from 0, and how many there are. InputError outside of torchrun."""
    rank, world = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not (rank.isdecimal() and world.isdecimal()):
        raise InputError(f"--tp splits the target over the processes of torchrun: {HOW}")
    return int(rank), int(world)


def local_device(name: str | torch.device | None) -> str:
    """Return the device of this process: on a machine with GPUs one for each of its processes."""
    if str(name) == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"


def distributed_config(source: str, trust_remote_code: bool) -> DistributedConfig:
    """Return how transformers shall split the target. InputError for a number of processes that does not divide its
    heads, and for a model without a plan of its parts."""
    _, world = rank_and_world()
    config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code).get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if heads % world or config.num_attention_heads % world:
        least = " and ".join(map(str, dict.fromkeys((config.num_attention_heads, heads))))
        raise InputError(f"{world} processes do not divide the {least} heads of {source}: start as many as divide both")
    if not getattr(config, "base_model_tp_plan", None):
        raise InputError(f"transformers has no plan to split a {config.model_type}: decode it with --device-map auto")
    return DistributedConfig(tp_size=world)


def gather_shared(model: Any) -> None:
    """Give every process the whole embedding and LM head, which the draft uses too. The layers stay split."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(embedding.weight, DTensor):
        weight = embedding.weight.full_tensor()
        model.set_input_embeddings(nn.Embedding.from_pretrained(weight, padding_idx=embedding.padding_idx))
    if isinstance(head.weight, DTensor):
        rows, columns = head.weight.shape
        whole = nn.Linear(columns, rows, bias=False, device="meta")
        whole.weight = nn.Parameter(head.weight.full_tensor(), requires_grad=False)
        model.set_output_embeddings(whole)


def from_first_process(value: Any) -> Any:
    """Return the first process's value; every process calls it."""
    sent = [value]
    dist.broadcast_object_list(sent, src=0)
    return sent[0]


class FirstProcessTrees:
    """Policy whose trees are those that the first process builds by another policy."""

    def __init__(self, policy: Any):
        self.policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def __call__(self, draft: Draft, root: Root) -> Tree:
        """Return the first process's tree. Every process drafts, for its own draft's state."""
        tree = self.policy(draft, root)
        return _moved(from_first_process(_moved(tree, "cpu")), tree.token.device)


def _moved(value: Any, device: str | torch.device) -> Any:
    """Return a tensor, or a dataclass of tensors, on another device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _moved(getattr(value, field.name), device) for field in fields(value)})
    return value
