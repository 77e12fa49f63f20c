"""A target and an EAGLE head of given shapes with random weights, after prefixes of given lengths: their output means
nothing, but they take as long as real ones."""

from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from c2t.classifier import ClassifierConfig, TreeClassifier
from c2t.cuda_graphs.draft import DraftGraph, StaticDraft
from c2t.cuda_graphs.target import StaticTarget
from c2t.kernels.features import FEATURES
from c2t.kernels.network import Network
from c2t.models.drafts.eagle import EagleHead
from c2t.models.drafts.head_draft import EagleDraft
from c2t.models.target.target import Target
from c2t.protocols import Policy
from c2t.tree import Tree

PROMPT = 8  # tokens really read; the rest of a prefix is zeros


class Shapes(NamedTuple):
    """Sizes of the models, and the sizes at which they are measured."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    layers: int
    vocabulary: int
    dtype: torch.dtype
    prefixes: tuple[int, ...]
    verified: tuple[int, ...]  # tokens of a tree, one row; after longer prefixes the first two only
    ragged: dict[int, tuple[int, ...]]  # rows -> mean tokens of their trees
    ranked: dict[int, tuple[int, ...]]  # vocabulary -> rows of logits
    room: int  # slots for a tree

    @property
    def config(self) -> LlamaConfig:
        """Config of the target."""
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_hidden_layers=self.layers,
            vocab_size=self.vocabulary,
            max_position_embeddings=max(self.prefixes) + self.room,
        )


FULL = Shapes(
    *("LLaMA-2 7B", 4096, 11008, 32, 32, 32000, torch.bfloat16, (512, 4096)),
    verified=(1, 60, 16, 64, 65, 128, 256, 300),
    ragged={4: (16, 32, 60), 16: (16, 32, 60)},
    ranked={32000: (1, 15, 64), 128256: (1, 15, 64)},
    room=320,
)
TINY = Shapes(
    *("tiny", 64, 96, 4, 2, 320, torch.float32, (24,)),
    verified=(1, 12),
    ragged={2: (6,)},
    ranked={320: (1, 5)},
    room=160,
)


def random_target(shapes: Shapes, device: torch.device) -> Target:
    """Return a target with random weights."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(shapes.config, dtype=shapes.dtype, attn_implementation="sdpa")
    return Target(model.requires_grad_(False))


def random_head(shapes: Shapes, target: Target) -> EagleDraft:
    """Return an EAGLE head with random weights for this target."""
    config = shapes.config
    config.num_hidden_layers = 1
    with torch.device(target.device):
        head = EagleHead(config).to(shapes.dtype).requires_grad_(False)
    head.embed_tokens = target.embed_tokens
    return EagleDraft(head, target.lm_head)


def with_prefixes(target: Target, rows: int, prefix: int, shapes: Shapes) -> StaticTarget:
    """Return the target with a graph and with prefixes in its memory."""
    static = StaticTarget(target, rows, prefix, shapes.room)
    tokens = torch.zeros(rows, PROMPT, dtype=torch.long, device=target.device)
    static.session().prefill(tokens, torch.full((rows,), PROMPT, device=target.device))
    static.cache.lengths.fill_(prefix)
    return static


def phase_of(draft: EagleDraft, policy: Policy, rows: int, prefix: int) -> DraftGraph:
    """Return a draft phase of fixed shapes whose head has read prefixes."""
    static = StaticDraft(draft, policy, rows, prefix + 2 * policy.levels)
    like = next(draft.head.parameters())
    tokens = torch.zeros(rows, PROMPT + 1, dtype=torch.long, device=like.device)
    features = torch.randn(rows, PROMPT, draft.head.config.hidden_size, device=like.device, dtype=like.dtype)
    static.session().observe(tokens, features, torch.full((rows,), PROMPT, device=like.device))
    static.phase.cache.lengths.fill_(prefix)
    return static.phase


def classifier_until(depth: int, device: torch.device) -> TreeClassifier:
    """Return a classifier that trusts every node down to this depth and none below it, so that a draft phase runs a
    known number of levels. It costs as much as any network of its size."""
    model = TreeClassifier(ClassifierConfig()).requires_grad_(False)
    for weight in model.parameters():
        weight.zero_()
    model.hidden.weight[0, 2] = 1  # the first unit is the depth
    model.output.weight[0, 0], model.output.bias[0] = -1, depth + 0.5
    return model.to(device)


def random_network(device: torch.device, hidden: int = 48) -> Network:
    """Return a random network of the paper's features."""
    features = tuple(FEATURES[name] for name in ("joint_prob", "entropy", "depth"))
    weights = torch.randn(hidden, 3), torch.randn(hidden), torch.randn(hidden) / 7, torch.zeros(1)
    return Network(features, *(weight.to(device) for weight in weights))


def random_trees(nodes: int, rows: int, seed: int = 0, reach: int | None = None) -> Tree:
    """Return trees whose nodes have parents sampled uniformly among the nodes before them. reach: among so many of
    them, the last ones, which makes the trees deep."""
    generator = torch.Generator().manual_seed(seed)
    before = torch.arange(nodes)
    choices = before.clamp(max=reach or nodes)
    parent = (torch.rand(rows, nodes, generator=generator, dtype=torch.float64) * choices).long() + before - choices
    parent[:, 0] = -1
    depth = torch.full_like(parent, -1)
    for slot in range(1, nodes):
        depth[:, slot] = depth.gather(1, parent[:, slot, None])[:, 0] + 1
    root = Tree.root(torch.zeros(rows, dtype=torch.long)).columns()
    columns = {name: column.expand(rows, nodes).contiguous() for name, column in root.items()}
    return Tree(**{**columns, "parent": parent, "depth": depth}, capped=torch.zeros(rows, dtype=torch.long))


def ragged_trees(rows: int, mean: int, device: torch.device) -> Tree:
    """Return random trees of 1 to 2 mean - 1 slots, `mean` on average."""
    size = torch.linspace(1, 2 * mean - 1, rows).round().long() if rows > 1 else torch.tensor([mean])
    tree = random_trees(int(size.max()), rows).heavy_first()
    alive = torch.arange(tree.size) < size[:, None]
    columns = {**tree.columns(), "alive": alive, "capped": tree.capped}
    return Tree(**{name: column.to(device) for name, column in columns.items()})
