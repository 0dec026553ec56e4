"""Recipe 9: tests of a processor. `pytest test_end_sentence.py`"""

import pytest
from end_sentence import EndSentence
from story_engine import generate

from logitport import Client, InvalidArgument
from logitport_testing import ToyModel, check, simulate


def test_a_period_comes_in_time():
    result = simulate([(EndSentence, {"max_ids": 3, "period": 5})], ToyModel(), steps=8)
    assert [step.processors[0].forced for step in result.steps] == [None, None, None, 5] * 2


def test_wrong_parameters_are_refused():
    with pytest.raises(InvalidArgument, match="max_ids"):
        simulate([(EndSentence, {"max_ids": 0})], ToyModel(), steps=1)


def test_all_laws_hold():
    check(EndSentence, params=[{"max_ids": 1}, {"max_ids": 3, "period": 5}])


def test_a_real_server(logitport_server):
    with Client(logitport_server.target) as client:
        assert "who. The king" in generate(client, [(EndSentence, {"max_ids": 6})])
