"""Kinds of heads that c2t does not read are refused by their names, in every form in which they are published."""

from pathlib import Path

import pytest
import torch
from torch import nn

from c2t.errors import InputError
from c2t.models.loading.eagle_checkpoint import load_head
from tests.eagle3_reference import SPECULATORS, Math, deepspec, file, flat, speculators, weights
from tests.eagle_reference import CONFIG, head_state, write_head
from tests.toys import VOCABULARY

HIDDEN = {"mask_hidden": torch.zeros(1, 1, 96)}
P_EAGLE = "P-EAGLE .* does not read"
MTP, MLA = "multi-token prediction, which c2t does not read", "latent attention"


def refused(folder: Path, config: dict, state: dict, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_head(write_head(folder, config, state), nn.Embedding(VOCABULARY, 32))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "names", "message"),
    [
        (
            flat(architectures=["PEagleDraftModel"], mask_token_id=3),
            SPECULATORS,
            f"PEagleDraftModel stands for {P_EAGLE}",
        ),
        (flat(parallel_drafting=True, mask_token_id=3), {}, f"parallel_drafting = True stands for {P_EAGLE}"),
        (flat(mask_token_id=3, parallel_drafting=False), {}, f"mask_hidden stands for {P_EAGLE}"),
        (flat(mask_token_id=3), {"prefix": "model."}, f"mask_hidden stands for {P_EAGLE}"),
        (speculators(speculators_model_type="peagle", mask_token_id=3), SPECULATORS, f"peagle stands for {P_EAGLE}"),
        (
            speculators(architectures=["PEagleSpeculator"], speculators_model_type="peagle", mask_token_id=3),
            SPECULATORS,
            f"PEagleSpeculator stands for {P_EAGLE}",
        ),
    ],
    ids=["SpecForge", "AWS", "by its tensor", "with a prefix", "speculators", "speculators' class"],
)
def test_p_eagle_is_refused_in_every_form(config: dict, names: dict, message: str, tmp_path: Path) -> None:
    """Its files have all tensors of an EAGLE-3 head, and one more."""
    refused(tmp_path, config, file(weights(Math()) | HIDDEN, **names), message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"architectures": ["Qwen3NextMTP"]}, f"Qwen3NextMTP stands for .*{MTP}"),
        (CONFIG | {"architectures": ["DeepSeekMTPModel"]}, MTP),
        (CONFIG | {"architectures": ["MiMoMTPModel"]}, MTP),
        (CONFIG | {"num_nextn_predict_layers": 1}, f"num_nextn_predict_layers = 1 stands for .*{MTP}"),
        (CONFIG | {"mtp_num_hidden_layers": 1}, MTP),
        (speculators(speculators_model_type="mtp"), f"mtp stands for .*{MTP}"),
        (CONFIG | {"architectures": ["Gemma4AssistantForCausalLM"]}, "the target's own keys and values"),
        (CONFIG | {"architectures": None, "model_type": "muse_glimmer_assistant"}, "the target's own keys and values"),
        (CONFIG | {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, f"Eagle3DeepseekV2ForCausalLM .*{MLA}"),
        (flat(architectures=["KimiK2Eagle3"], draft_vocab_size=None), MLA),
        (flat(kv_lora_rank=512), f"kv_lora_rank = 512 .*{MLA}"),
        (deepspec(architectures=["Gemma4Eagle3Model"]), "a head of Gemma 4's layers"),
        (CONFIG | {"architectures": ["Gemma4DSparkModel"]}, "a head of Gemma 4's layers"),
        (CONFIG | {"architectures": ["DFlashLagunaForCausalLM"]}, "another family's layers"),
        (CONFIG | {"architectures": ["MiMoV2DFlashModel"]}, "another family's layers"),
        (
            CONFIG | {"architectures": ["OrthrusDraftModel"]},
            r"\['OrthrusDraftModel'\] is no kind of head that c2t knows",
        ),
        (CONFIG | {"architectures": [3]}, r"\[3\] is no kind of head"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_kinds_are_refused_by_their_names(config: dict, message: str, tmp_path: Path) -> None:
    refused(tmp_path, config, head_state(CONFIG), message)
