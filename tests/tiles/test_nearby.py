"""Messages through shared memory: whole, in order, in memory that is used again, and missed when lost."""

from __future__ import annotations

import os

import pytest
from crew import Crew
from nearby_case import apart, leave, talk

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared on Linux only")


@pytest.fixture(scope="module")
def crew(tmp_path_factory):
    crew = Crew(3, tmp_path_factory.mktemp("nearby"))
    yield crew
    crew.stop()


@pytest.mark.parametrize("size", [2, 3])
def test_messages_arrive_whole_and_their_memory_serves_again(crew, size):
    few, many = (crew(size, talk, num_rounds) for num_rounds in (80, 240))
    assert all(not one["wrong"] for one in (*few, *many))
    # Who is ahead has more of them under way: at most two of a kind of each of the four sizes.
    assert all(one["blocks"] <= 16 for one in many)


def test_what_a_process_said_can_be_read_after_it_has_gone(crew):
    for heard, said in crew(3, leave)[:2]:
        assert heard == [7.0]
        assert said.startswith("tile group: lost tile 2, the step cannot be finished")


def test_ranks_that_are_not_all_on_one_machine_use_the_network(crew):
    assert crew(3, apart) == [False] * 3
