"""The campaign on damaged files: what it calls wrong, and that its cases can be run again."""

import os
import random

import pytest
import torch

from tests.hostile import campaign
from tests.hostile.campaign import Ending, finding
from tests.hostile.mutations import damage_bytes, damage_json

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a case is a forked process")


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (Ending(0, "text", "", 1), ""),
        (Ending(2, "", "warning: x\nc2t: y\n", 1), ""),
        (Ending(1, "", "Traceback (most recent call last):\n", 1), "traceback"),
        (Ending(1, "", "", 1), "exit code 1"),
        (Ending(-11, "", "", 1), "exit code -11"),
        (Ending(-9, "", "", campaign.SECONDS + 1), "still running"),
        (Ending(2, "", "c2t: x\nc2t: y\n", 1), "2 lines"),
        (Ending(2, "", "x\n", 1), "0 lines"),
        (Ending(2, "", "c2t: x\nmore\n", 1), "1 lines"),
        (Ending(0, "", "c2t: x\n", 1), "success with an error line"),
    ],
)
def test_what_is_a_finding(ended: Ending, wrong: str) -> None:
    assert finding(ended, sealed=False).startswith(wrong)
    assert bool(finding(ended, sealed=False)) == bool(wrong)


def test_damage_with_a_checksum_must_be_noticed() -> None:
    assert finding(Ending(0, "", "", 1), sealed=True)
    assert not finding(Ending(2, "", "c2t: x\n", 1), sealed=True)


def test_damage_that_changes_nothing_need_not_be_noticed() -> None:
    before = b'{"a": 1, "sha256": "x"}'
    assert campaign.harmless(before, b'{"a":  1,\n "sha256": "x"}')
    assert campaign.harmless(before, b'{"a": 2}')
    assert not campaign.harmless(before, b'{"a": 2, "sha256": "x"}')
    assert not campaign.harmless(before, b'{"a": 2, "sha25')
    assert not campaign.harmless(b"\x00\x01", b"\x00\x03")


def test_damage_is_decided_by_its_number() -> None:
    data, text = bytes(range(256)), '{"a": [1, {"b": 2}], "c": "d"}'
    for number in range(50):
        assert damage_bytes(data, random.Random(number)) == damage_bytes(data, random.Random(number))
        assert damage_json(text, random.Random(number)) == damage_json(text, random.Random(number))
    assert len({damage_bytes(data, random.Random(number)) for number in range(50)}) > 25
    assert len({damage_json(text, random.Random(number)) for number in range(50)}) > 25


@pytest.mark.slow
def test_commands_on_damaged_files_end_as_they_should() -> None:
    if torch.get_num_threads() > 1:
        pytest.skip("a forked process cannot use its parent's threads")
    with campaign.pristine_home() as home:
        tried = [campaign.try_case(number, home) for number in range(12)]
    assert [case for case in tried if case.wrong] == []
    assert {case.ended.code for case in tried} >= {0, 2}  # and those of signals, which come by the clock
