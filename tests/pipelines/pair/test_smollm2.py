"""smollm2's texts are what the target would write alone, its rows judge answers only, its heads learn and resume."""

import json
from collections import Counter
from functools import partial
from itertools import cycle, pairwise, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from c2t.errors import InputError
from c2t.models.drafts.eagle import Head
from c2t.models.loading.eagle_checkpoint import load_head, save_head
from c2t.models.target.gguf_target import END
from c2t.models.target.target import Target
from c2t.models.wrappers import pmi_bigrams
from c2t.models.wrappers.path_correction import PathCorrection
from c2t.models.wrappers.pmi_bigrams import PmiBigrams
from pipelines.pair import train_head
from pipelines.pair.smollm2 import build, earlier, fit, heads, losses, rounds, shards, texts
from pipelines.pair.smollm2.questions import RUN, BenchFilter, code_tasks, functions
from tests.rounding import assert_same_sums

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
ASKED = [[5, 6, 7], [8, 9, 10, 11, 12], [13], [14, 15]]


@pytest.fixture(scope="module")
def target() -> Target:
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=48, num_hidden_layers=7, eos_token_id=END, initializer_range=0.3)
    loaded = Target(LlamaForCausalLM(config).double().requires_grad_(False))
    loaded.tap((2, 3, 4))
    return loaded


def test_greedy_texts_are_those_of_generate(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 12, 0)
    alone = LlamaForCausalLM(target.model.config).double()
    alone.load_state_dict(target.model.state_dict())
    alone.set_attn_implementation("sdpa")
    alone.generation_config.eos_token_id = END
    for ids, asked in zip(found.ids.split(found.lengths.tolist()), ASKED, strict=True):
        wanted = alone.generate(torch.tensor([asked]), max_new_tokens=12, do_sample=False)[0]
        assert ids.tolist() == wanted.tolist()
    assert found.questions.tolist() == [len(asked) for asked in ASKED]


def test_states_are_those_of_one_forward_over_the_text(target: Target) -> None:
    found = texts.write(target, ASKED, 1.0, 12, 0)
    per_text = (found.ids, found.features, found.taps)
    assert len(set(found.lengths.tolist())) > 1  # texts end at different places, so rows left the batch
    for ids, features, taps in zip(*(part.split(found.lengths.tolist()) for part in per_text), strict=True):
        mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()[None, None]
        out = target.model.model(ids[None], output_hidden_states=True, attention_mask=mask)
        assert_same_sums(features[:-1], out.last_hidden_state[0, :-1])
        wanted = torch.cat([out.hidden_states[layer][0, :-1] for layer in (2, 3, 4)], -1)
        assert_same_sums(taps[:-1], wanted)


def test_writing_stops_when_few_go_on(target: Target) -> None:
    found = texts.write(target, ASKED, 0.0, 50, 4)
    assert (found.lengths - found.questions).tolist() == [1] * 4


def test_shards_take_turns_and_greedy_questions_are_asked_once() -> None:
    made = [texts.shard_of(number) for number in range(30)]
    assert {shard[:2] for shard in made[:15]} == set(product(texts.SOURCES, texts.TEMPERATURES))
    assert [shard.turn for shard in made] == [0] * 15 + [1] * 15
    later = [texts.shard_of(texts.LATER + number) for number in range(15)]
    assert {shard[:2] for shard in later} == set(product(texts.LATER_SOURCES, texts.TEMPERATURES))
    codes = [texts.shard_of(number)[1:] for number in range(600) if texts.shard_of(number).source == "code"]
    assert len(set(codes)) == len(codes)  # no shard's tasks and temperature come again
    known = {"code": [str(number) for number in range(100)]}
    turns = [texts.questions_of(texts.Shard("code", 0.0, turn), known) for turn in range(3)]
    assert turns[0] + turns[1] == known["code"]
    assert turns[2] == []
    assert len(texts.questions_of(texts.Shard("code", 1.0, 2), known)) == texts.BATCH


def test_bench_questions_are_left_out() -> None:
    bench = "If Ann has 3 apples and Bob has 4 more than Ann, how many apples has Bob?"
    left = BenchFilter([bench])
    assert bench.upper().replace(",", " --") not in left
    assert "apples and Bob has 4 more than Ann" not in left  # a part
    assert f"Tell me. {bench} Say why." not in left
    run = " ".join(bench.split()[:RUN])
    assert f"{run} or so he says to nobody in particular today" not in left
    assert f"{' '.join(bench.split()[: RUN - 1])} or so he says" in left
    assert "" not in left


@pytest.mark.slow
def test_code_tasks_come_from_docstrings(tmp_path: Path) -> None:
    said = "Return what is asked, " * 5
    path = tmp_path / "module.py"
    path.write_text(
        f'def short():\n    """No."""\n\ndef asked(a, *, b=1):\n    """{said}\n\n    More.\n    """\n    return a\n'
    )
    assert functions(path) == [f'def asked(a, *, b=1):\n    """{said.strip()}\n\n    More.\n    """\n']
    assert len(code_tasks()) > 1000


def text_of(ids: list[int], question: int, source: str = "code") -> shards.Text:
    states = torch.randn(len(ids) - 1, SIZES["hidden_size"])
    taps = torch.randn(len(ids) - 1, 3 * SIZES["hidden_size"])
    return shards.Text(torch.tensor(ids, dtype=torch.int32), question, states, taps, source, 0.0)


def test_rows_judge_the_answers_positions_only() -> None:
    rows = shards.rows_of([text_of([3, 4, 5, 6, 7, END], 3), text_of([3, 4, END], 1)], "taps", questions=False)
    # Slot j predicts state j + 1, from which token j + 2 is drawn: the answer's tokens begin at place `question`.
    assert rows.judged.tolist() == [[False, True, True, True], [True, False, False, False]]
    learned = shards.rows_of([text_of(list(range(30)), 26), text_of([3, 4, END], 1)], "features", questions=True)
    assert learned.judged.sum(1).tolist() == [5, 1]  # one more than the first answer has
    assert rows.ids.shape == (2, 6)
    assert rows.features.shape == (2, 5, SIZES["hidden_size"])
    assert rows.inputs.shape == (2, 5, 3 * SIZES["hidden_size"])


def test_a_question_is_held_out_with_all_its_answers() -> None:
    held = [number for number in range(500) if text_of([number, 1, 2], 2).held]
    assert 5 <= len(held) <= 60
    assert all(text_of([number, 1, 9, 9], 2).held for number in held)


def in_float32(target: Target) -> LlamaForCausalLM:
    """A copy of the target, as training has it."""
    model = LlamaForCausalLM(target.model.config).requires_grad_(False)
    model.load_state_dict(target.model.state_dict())
    return model


@pytest.fixture
def loaded(target: Target, monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    """The target as the stages load it."""
    model = in_float32(target)
    monkeypatch.setattr(build.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(build, "target_folder", lambda: None)
    monkeypatch.setattr(rounds, "FREQUENT", 40)
    return model


def keep_texts(target: Target, folder: Path, number: int = 0) -> build.Setup:
    """Write texts of the target to learn from and to judge by, in shards of this number; return the places."""
    written = texts.write(target, [[count % 40 + 3, count // 40 + 3, 7] for count in range(96)], 0.0, 24, 0)
    for part, source in (("texts", "code"), ("bench", "gsm8k")):
        (folder / part).mkdir()
        texts.save(written, texts.Shard(source, 0.0, 0), 1.0, folder / part / f"{number:05}.safetensors")
    (folder / "texts" / "questions.json").write_text(json.dumps({"kept": {"code": 96}, "gone": {"code": 1}}))
    return build.Setup(folder, None, folder, torch.device("cpu"))


def given(target: Target, eagle: Head | None = None) -> heads.Given:
    return heads.Given(in_float32(target), torch.arange(40), some_texts(), eagle)


def new_head(name: str, target: Target, eagle: Head | None = None) -> Head:
    if name == "medusa" and eagle is None:
        eagle = new_head("eagle", target)
    return heads.HEADS[name].make(given(target, eagle))


def keep_eagle(target: Target, folder: Path, shift: float = 0.0) -> Head:
    """Return an EAGLE-1 head of which the folder has a checkpoint."""
    eagle = new_head("eagle", target)
    with torch.no_grad():
        eagle.layers[0].mlp.up_proj.weight.add_(shift)
    eagle.embed_tokens = None
    (folder / "draft").mkdir(exist_ok=True)
    torch.save({"model": eagle.state_dict()}, folder / "draft" / "state.pt")
    return eagle


def held_out() -> torch.Tensor:
    """Ids of a text that is held out."""
    return next(text.ids for number in range(500) if (text := text_of([number, 1, 2], 2)).held)


def some_texts() -> list[shards.Text]:
    return [text_of([3, 4, 5, 6, 7, 8, 9], 3), text_of([9, 8, 7, 6], 2), text_of([1, 3, 3, 4, 5, 7, 5, 9], 2)]


@pytest.mark.parametrize("name", heads.HEADS)
def test_padding_changes_no_loss(name: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch's losses are its texts' ones, weighted by the positions that each depth has."""
    monkeypatch.setattr(losses, "NOISE", 0.0)
    monkeypatch.setattr(losses, "JUDGED", 1.0)
    recipe, head, texts = heads.HEADS[name], new_head(name, target), some_texts()
    lm_head = in_float32(target).lm_head.weight[:40]
    together = recipe.losses(head, lm_head, shards.rows_of(texts, recipe.inputs, questions=False)).figures
    alone = [
        recipe.losses(head, lm_head, shards.rows_of([text], recipe.inputs, questions=False)).figures for text in texts
    ]
    for key, value in together.items():
        depth = int(key[-1]) if key[-2] == "_" else 0  # the l1 of smooth_l1 is none
        parts = [(len(text.ids) - text.question - depth, shown[key]) for text, shown in zip(texts, alone, strict=True)]
        parts = [(count, part.item()) for count, part in parts if count > 0]
        wanted = sum(count * part for count, part in parts) / sum(count for count, _ in parts)
        assert_same_sums(value.float(), wanted)


def test_answers_are_predicted_as_by_the_whole_head(target: Target) -> None:
    head, rows = new_head("eagle", target), shards.rows_of(some_texts(), "features", questions=False)
    whole = head(rows.inputs[:, :-1], rows.ids[:, 1:-1])
    assert_same_sums(next(losses.eagle_states(head, rows)), whole[rows.judged])


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_unrolled_levels_are_those_of_drafting(name: str, target: Target) -> None:
    """A session drafts the true path, level after level, from the true states before it."""
    head, levels = new_head(name, target), 3
    rows = shards.rows_of(some_texts(), heads.HEADS[name].inputs, questions=False)
    states = list(getattr(losses, f"{name}_states")(head, rows, levels=levels))
    row, slot = rows.judged.nonzero(as_tuple=True)
    for at, (r, j) in enumerate(zip(row.tolist(), slot.tolist(), strict=True)):
        ids = F.pad(rows.ids[r : r + 1], (0, levels))
        read = head.read(rows.inputs[r : r + 1, : j + 1])
        for level in range(levels):
            whole = head(read, ids[:, 1 : read.shape[1] + 1])
            assert_same_sums(states[level][at], whole[0, -1])
            read = torch.cat([read, whole[:, -1:]], 1)


def test_deeper_guesses_come_from_earlier_positions(target: Target) -> None:
    """A head that knows the state k positions ahead agrees everywhere at depth k."""
    rows = shards.rows_of(some_texts(), "features", questions=False)
    lm_head, true = in_float32(target).lm_head.weight, rows.features[:, 1:][rows.judged]
    states = [true.roll(-depth, 0) for depth in range(3)]
    found = losses.by_depth(states, lambda hidden: hidden @ lm_head.T, lm_head, rows, torch.arange(len(true)))
    assert [found.figures[f"agreement{suffix}"].item() for suffix in ("", "_1", "_2")] == [1.0] * 3
    wrong = losses.by_depth([true] * 2, lambda hidden: hidden @ lm_head.T, lm_head, rows, torch.arange(len(true)))
    assert wrong.figures["agreement_1"] < 1
    parts = found.figures["cross_entropy"], found.figures["cross_entropy_1"], found.figures["cross_entropy_2"]
    assert_same_sums(found.total, sum(losses.DEEPER**k * part.item() for k, part in enumerate(parts)), 8)


def test_frequent_tokens_are_those_of_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "FREQUENT", 3)
    assert rounds.frequent([text_of([8, 8, 5, 5, 1, 7], 2), text_of([7, 7, 3, 0, 0], 0)], 9).tolist() == [0, 5, 7]


def test_a_step_compares_frequent_tokens_its_own_and_some_others() -> None:
    batch = [text_of([3, 4, 9_000, 46, 47], 2), text_of([3, 9_001], 1)]
    torch.manual_seed(0)
    first, second = (rounds.compared_tokens(torch.arange(100), batch, 10_000) for _ in range(2))
    for found in (first, second):
        assert found.equal(found.unique())
        assert {*range(100), 9_000, 9_001} < set(found.tolist())
        assert 100 + rounds.SAMPLED // 2 < len(found) <= 102 + rounds.SAMPLED
    assert set(first.tolist()) != set(second.tolist())


@pytest.mark.parametrize("agreements", [(0.5, 0.6), (0.5, 0.5)], ids=["better", "not better"])
def test_a_round_ends_with_its_mean_if_held_out_answers_agree_more(
    agreements: tuple[float, float], target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so, too, if it was stopped when the checkpoint was the mean already."""
    head, lm_head, recipe = new_head("eagle", target), in_float32(target).lm_head.weight, heads.HEADS["eagle"]
    began, ended = ({name: torch.randn_like(p) for name, p in rounds.trained_of(head).items()} for _ in range(2))
    save_file(began, rounds.left_weights(tmp_path, 10))
    save_file(ended, rounds.last_step(tmp_path, 20))
    rounds.write_records([{"positions": 10}], tmp_path)
    torch.save({"model": head.state_dict(), "step": 7}, tmp_path / "state.pt")
    monkeypatch.setattr(rounds, "read_texts", lambda _: [text._replace(ids=held_out()) for text in some_texts()])
    for _ in range(2):
        found = iter(agreements)
        monkeypatch.setattr(rounds, "agreement", lambda *_, found=found: {"gsm8k": next(found)})
        better = rounds.take_mean(20, head, recipe, lm_head, tmp_path / "texts", tmp_path)
        assert better == (agreements[1] > agreements[0])
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        assert state["step"] == 7
        for name, weight in rounds.trained_of(head).items():
            assert_same_sums(weight.data, (began[name] + ended[name]) / 2 if better else ended[name], 3)
            assert state["model"][name].equal(weight.data)


def test_eagle3_learns_nothing_where_the_next_token_is_not_its_own(target: Target) -> None:
    head, rows = (
        new_head("eagle3", target),
        shards.rows_of([text_of([3, 4, 45, 46, 47], 2)], "taps", questions=False),
    )
    assert losses.eagle3_losses(head, head.lm_head.weight, rows).total == 0


def test_eagle3_begins_with_what_eagle_knows(target: Target) -> None:
    """fc guesses the post-norm state, and the attention reads it and the token as EAGLE-1's does."""
    width, eagle = SIZES["hidden_size"], new_head("eagle", target)
    torch.manual_seed(1)
    known, unit = torch.randn(3 * width, width), partial(F.rms_norm, normalized_shape=(width,))
    texts = [text._replace(features=unit(text.taps @ known)) for text in some_texts() * 20]
    with torch.no_grad():
        eagle.embed_tokens.weight.copy_(unit(eagle.embed_tokens.weight))  # norms of the sizes that they are fitted to
        head = heads.new_eagle3(given(target, eagle)._replace(texts=texts))
        taps, features = (torch.cat([getattr(text, name) for text in texts]) for name in ("taps", "features"))
        assert F.mse_loss(head.fc(taps), features) < 0.2 * features.var()
        embedded, state = eagle.embed_tokens(torch.arange(5)), features[:5]
        ours = torch.cat([head.midlayer.input_layernorm(embedded), head.midlayer.hidden_norm(state)], -1)
        theirs = eagle.fc(torch.cat([embedded, state], -1))
        for name in ("q_proj", "k_proj", "v_proj"):
            found, wanted = (
                layer.self_attn.get_submodule(name)(read)
                for layer, read in ((head.midlayer, ours), (eagle.layers[0], theirs))
            )
            assert_same_sums(found, wanted)
        for part in ("mlp", "post_attention_layernorm", "self_attn.o_proj"):
            for name, weight in eagle.layers[0].get_submodule(part).named_parameters():
                assert head.midlayer.get_submodule(part).get_parameter(name).equal(weight), (part, name)
        assert_same_sums(head.readable(features), features)


def test_an_eagle3_head_keeps_its_tokens_when_others_are_frequent_by_now(target: Target, tmp_path: Path) -> None:
    source, work, lm_head = tmp_path / "texts", tmp_path / "work", in_float32(target).lm_head.weight
    source.mkdir()
    asked = [[number + 3, 7] for number in range(24)]
    texts.save(texts.write(target, asked, 0.0, 8, 0), texts.Shard("code", 0.0, 0), 1.0, source / "00000.safetensors")
    for positions, tokens in ((50, torch.arange(40)), (100, torch.arange(4, 44))):
        head = heads.new_eagle3(given(target)._replace(tokens=tokens))
        rounds.train_until(positions, head, heads.HEADS["eagle3"], lm_head, source, work)
        assert head.tokens.equal(torch.arange(40))
        assert head.lm_head.weight.equal(lm_head[:40])


def test_medusa_has_the_layer_of_eagle_and_leaves_it_alone(target: Target, tmp_path: Path) -> None:
    eagle = keep_eagle(target, tmp_path, shift=1.0)
    medusa = new_head("medusa", target, eagle)
    for name, tensor in eagle.state_dict().items():
        assert medusa.state_dict()[name].equal(tensor), name
    learns = {name for name, weight in medusa.named_parameters() if weight.requires_grad}
    assert learns == {f"heads.{block}.{part}" for block in range(heads.MEDUSA_HEADS) for part in ("weight", "bias")}
    with pytest.raises(InputError, match="no EAGLE-1 head"):
        heads.new_medusa(given(target))


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SAMPLED": 2, "LEARNING_RATE": 1e-2, "LOG": 10}.items():
        monkeypatch.setattr(rounds, name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", heads.HEADS)
def test_a_head_learns_resumes_and_is_saved_with_a_card(
    name: str, target: Target, loaded: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds, the second from the first one's checkpoint; a round that is finished is not done again."""
    places, recipe = keep_texts(target, tmp_path), heads.HEADS[name]
    monkeypatch.setattr(rounds, "mean_agreement", lambda *_: 0.0)  # so few texts would not say the same everywhere
    if name == "medusa":
        monkeypatch.setattr(build, "ROUNDS", (10_000,))
        build.STAGES["eagle"](places)
    for last in (10_000, 20_000):
        assert rounds.round_begin(tmp_path / recipe.part) == last - 10_000
        monkeypatch.setattr(build, "ROUNDS", (10_000, last))
        build.STAGES[name](places)
    first, second = rounds.rounds(tmp_path / recipe.part)
    assert 0 <= second["heldout"]["code"] <= 1
    log = [line.split(",") for line in (tmp_path / recipe.part / "log.csv").read_text().splitlines()]
    steps = [int(line[0]) for line in log[1:]]
    if name == "medusa":  # this target's tokens two places ahead are hardly ever guessed
        blocks = [column for column, title in enumerate(log[0]) if title.startswith("cross_entropy_")]
        begin, end = (sum(float(line[column]) for column in blocks) for line in (log[1], log[-2]))  # of LOG steps each
        assert end < 0.99 * begin
    else:
        assert second["bench"]["gsm8k"] > first["bench"]["gsm8k"] > 1 / 48
    assert steps == sorted(set(steps))  # the second round goes on with the first one's steps
    saved = load_head(tmp_path / recipe.part, loaded.model.embed_tokens, loaded.lm_head)
    trained = torch.load(tmp_path / recipe.part / "state.pt", weights_only=True)["model"]
    weight = "heads.0.weight" if name == "medusa" else "fc.weight"
    assert torch.equal(saved.get_parameter(weight), trained[weight].bfloat16().float())
    if name == "medusa":  # the layer of the EAGLE-1 head goes on, and this head's checkpoint has the one before
        keep_eagle(target, tmp_path, shift=1.0)
        monkeypatch.setattr(build, "ROUNDS", (30_000,))
        with pytest.raises(InputError, match="has been trained further"):
            build.STAGES[name](places)
    figures = f"| {second['heldout']['code']:.3f} | {second['bench']['gsm8k']:.3f} |"
    card = (tmp_path / "README.md").read_text()
    assert f"| 20,000 {figures}" in card
    assert f"`{recipe.part}/`" in card


@pytest.mark.slow
@pytest.mark.usefixtures("few_steps")
def test_a_round_that_was_stopped_at_its_end_ends_with_the_same_mean(
    target: Target, loaded: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, folder, name, agreements = keep_texts(target, tmp_path), tmp_path / "draft", "fc.weight", cycle((0.0, 1.0))
    monkeypatch.setattr(rounds, "mean_agreement", lambda *_: next(agreements))  # the mean is always better
    monkeypatch.setattr(build, "ROUNDS", (5_000,))
    build.STAGES["eagle"](places)
    began = load_file(rounds.left_weights(folder, 5_000))[name]
    monkeypatch.setattr(build, "ROUNDS", (5_000, 10_000))
    with monkeypatch.context() as stopped:
        stopped.setattr(rounds, "finish_round", lambda *_: next(iter(())))
        with pytest.raises(StopIteration):
            build.STAGES["eagle"](places)
    mean = (began + load_file(rounds.last_step(folder, 10_000))[name]) / 2
    build.STAGES["eagle"](places)
    assert [each["mean"] for each in rounds.rounds(folder)] == [False, True]
    assert not mean.equal(began)
    assert load_file(rounds.left_weights(folder, 10_000))[name].equal(mean)
    assert torch.load(folder / "state.pt", weights_only=True)["model"][name].equal(mean)
    saved = load_head(folder, loaded.model.embed_tokens, loaded.lm_head)
    assert saved.get_parameter(name).equal(mean.bfloat16().float())
    assert [path.name for path in folder.glob("*_*.safetensors")] == ["left_10000.safetensors"]
    assert "| 10,000, mean |" in (tmp_path / "README.md").read_text()


def test_a_head_goes_on_from_the_pair_where_its_texts_are_gone(
    target: Target, loaded: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new work folder begins with the stored weights, counts on, and asks other questions."""
    work, out = tmp_path / "work", tmp_path / "pair"
    monkeypatch.setattr(rounds, "LEARNING_RATE", 0.0)
    head = new_head("eagle", target)
    train_head.save_draft(head, out / "draft", torch.arange(40))
    train_head.save_draft(new_head("medusa", target, head), out / "draft_medusa", torch.arange(40))
    record = {"written": 1000, "positions": 10_000, "heldout": {"code": 0.5}, "bench": {"gsm8k": 0.5}}
    known = {"shards": 7, "answers": {"code": 96}, "tokens": {"code": 1000}}
    known |= {"rounds": {"draft": [record], "draft_medusa": [record]}, "logged": {"draft_medusa": "step 9"}}
    (out / "provenance.json").write_text(json.dumps(known))
    begun = earlier.begin(work, out)
    assert (begun.shards, begun.written, begun.rounds) == (7, 1000, known["rounds"])
    places = keep_texts(target, work, number=8)._replace(out=out)
    for _ in range(2):  # the second time everything is finished, and the pair's record is its own
        monkeypatch.setattr(build, "ROUNDS", (10_000, 11_000))
        build.STAGES["eagle"](places)
        found = json.loads((out / "provenance.json").read_text())
        new = texts.count_written(work / "texts")
        assert found["shards"] == 9
        assert found["answers"] == {"code": 96 + 96}
        assert found["tokens"] == {"code": 1000 + new}
        first, second = found["rounds"]["draft"]
        assert first == record
        assert (second["written"], second["positions"]) == (1000 + new, 11_000)
        assert "`draft_medusa` (last logged step: step 9)" in (out / "README.md").read_text()  # was not trained here
    saved = load_head(out / "draft", loaded.model.embed_tokens, loaded.lm_head)
    assert torch.equal(saved.fc.weight, head.fc.weight.bfloat16().float())  # nothing was learned at a rate of 0
    log = (work / "draft" / "log.csv").read_text().splitlines()
    assert 0 < int(float(log[-1].split(",")[2])) - 11_000 < 1000


@pytest.mark.slow
def test_a_fit_learns_what_the_marginals_leave_out(
    target: Target, loaded: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the texts themselves, which is enough to see it; the head's blocks are still the identity."""
    places = keep_texts(target, tmp_path)
    monkeypatch.setattr(fit, "EPOCHS", 30)
    save_head(keep_eagle(target, tmp_path), tmp_path / "draft")
    head = new_head("medusa", target, keep_eagle(target, tmp_path))
    with pytest.raises(InputError, match="--stage medusa"):
        build.STAGES["fit"](places)
    tokens = rounds.frequent(rounds.training_texts(tmp_path / "texts"), 48)
    train_head.save_draft(head, tmp_path / "draft_medusa", tokens)
    build.STAGES["fit"](places)
    pairs = tmp_path / "draft_medusa" / pmi_bigrams.FILE
    counted = pairs.read_bytes()
    pairs.write_bytes(b"counted in more texts")
    build.STAGES["fit"](places)
    assert pairs.read_bytes() == b"counted in more texts"
    pairs.write_bytes(counted)
    rows = shards.rows_of(rounds.training_texts(tmp_path / "texts"), "features", questions=False)
    guess = fit.guesses(head, rows, loaded.lm_head.weight[tokens], tokens)
    untrained = fit.new_fit(head, loaded.model.embed_tokens, tokens)
    learned = PathCorrection.load(tmp_path / "draft_medusa", loaded.model.embed_tokens, tokens)
    assert fit.cross_entropy(learned, guess) < 0.8 * fit.cross_entropy(untrained, guess)
    counted = PmiBigrams.load(tmp_path / "draft_medusa", 48, torch.device("cpu"))
    answers = [text.ids[text.question :].tolist() for text in rounds.training_texts(tmp_path / "texts")]
    pairs = Counter(pair for answer in answers for pair in pairwise(answer))
    assert dict(zip(counted.pairs.tolist(), counted.counts.tolist(), strict=True)) == {
        first * 48 + second: count for (first, second), count in pairs.items()
    }


def test_a_stage_without_texts_or_data_says_what_is_missing(tmp_path: Path) -> None:
    places = build.Setup(tmp_path, None, tmp_path, torch.device("cpu"))
    for stage, said in (("eagle", "no texts to learn from"), ("texts", "--data is missing"), ("card", "has finished")):
        with pytest.raises(InputError, match=said):
            build.STAGES[stage](places)
