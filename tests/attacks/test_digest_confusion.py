"""Claiming the digest of another payload: by case, spelling, labels and duplicate keys."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import Client, InvalidArgument, NotFound, PayloadError, Request
from tests.toy_processors import AddOne, AddTwo

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 64


ONE, TWO = json.loads(AddOne.to_str()), json.loads(AddTwo.to_str())
DIGEST = hashlib.sha256(bytes.fromhex(ONE["callable"])).hexdigest()
OTHER = hashlib.sha256(bytes.fromhex(TWO["callable"])).hexdigest()


@pytest.fixture
def client(attacked: Any) -> Iterator[Client]:
    with Client(attacked.target) as connected:
        yield connected


@pytest.fixture
def registered(client: Client) -> Iterator[Client]:
    assert client.register(AddOne).digest == DIGEST
    yield client
    for digest in {ref.digest for ref in client.processors() if not ref.builtin}:
        client.delete(digest)


def added(client: Client, processor: str) -> float:
    result = client.apply(np.zeros((1, VOCAB), np.float32), [Request(processors=[(processor, {})])])
    (value,) = np.unique(result.logits)
    return float(value)


@pytest.mark.parametrize(
    "claim",
    [
        DIGEST.upper(),
        DIGEST.title(),
        f" {DIGEST}",
        f"{DIGEST}\n",
        f"{DIGEST}\0",
        f"0x{DIGEST}",
        f"sha256:{DIGEST}",
        DIGEST[:-1],
        DIGEST[:8],
        DIGEST + "0",
        DIGEST.translate({ord("0") + i: 0xFF10 + i for i in range(10)}),  # full-width digits
        DIGEST.translate({ord("0") + i: 0x0660 + i for i in range(10)}),  # Arabic-Indic digits
        DIGEST.translate({ord("a"): 0x0430, ord("c"): 0x0441, ord("e"): 0x0435}),  # Cyrillic
        DIGEST[0] + "\u0301" + DIGEST[1:],
        "\u200b" + DIGEST,
        hashlib.sha256(AddOne.to_str().encode()).hexdigest(),
        hashlib.sha256(ONE["callable"].encode()).hexdigest(),
    ],
)
def test_a_digest_has_one_spelling(registered: Client, claim: str) -> None:
    assert claim != DIGEST
    for call in (registered.processor, registered.delete):
        with pytest.raises(NotFound):
            call(claim)
    assert added(registered, DIGEST) == 1


@pytest.mark.parametrize("spelling", [str.upper, lambda digits: " ".join([digits[:2], digits[2:]])])
def test_the_digest_does_not_depend_on_the_hexadecimal_spelling(registered: Client, spelling: Any) -> None:
    assert registered.register(json.dumps({**ONE, "callable": spelling(ONE["callable"])})).digest == DIGEST
    assert len([ref for ref in registered.processors() if not ref.builtin]) == 1


@pytest.mark.parametrize("key", ["digest", "sha256", "name", "owner", "callable\0", "Callable"])
def test_a_digest_claimed_in_the_payload_is_ignored(registered: Client, key: str) -> None:
    forged = json.dumps({**TWO, key: DIGEST})
    assert registered.register(forged).digest == OTHER
    assert (added(registered, DIGEST), added(registered, forged), added(registered, OTHER)) == (1, 2, 2)


def test_a_duplicate_key_is_read_one_way(registered: Client) -> None:
    """The digested bytes are those that are loaded, and those that json.loads returns, which SGLang uses."""
    one, two = ONE["callable"], TWO["callable"]
    labels = json.dumps({"python": ONE["python"], "dill": ONE["dill"]})[1:]
    for first, last, digest, value in ((one, two, OTHER, 2), (two, one, DIGEST, 1)):
        twice = f'{{"callable": "{first}", "callable": "{last}", {labels}'
        assert json.loads(twice)["callable"] == last
        assert registered.register(twice).digest == digest
        assert added(registered, twice) == value


@pytest.mark.parametrize("label", ["python", "dill"])
@pytest.mark.parametrize("value", ["x" * 65, "x" * (1 << 20), 3, None, ["3.11"], {"a": 1}])
def test_invalid_version_labels(registered: Client, label: str, value: Any) -> None:
    with pytest.raises(PayloadError):
        registered.register(json.dumps({**TWO, label: value}))


@pytest.mark.parametrize("name", [DIGEST, OTHER, DIGEST.upper(), "thinking_budget", "no_repeat_ngram"])
def test_a_name_cannot_be_a_digest_or_a_built_in(registered: Client, name: str) -> None:
    with pytest.raises(InvalidArgument):
        registered.register(AddTwo, name=name)
    assert added(registered, DIGEST) == 1


@pytest.mark.parametrize(
    "data",
    [
        ONE["callable"][:-1],
        ONE["callable"] + "0",
        ONE["callable"][:-2],
        ONE["callable"].translate({ord("0") + i: 0xFF10 + i for i in range(10)}),
        "0x" + ONE["callable"],
        "",
    ],
)
def test_invalid_hexadecimal_digits(registered: Client, data: str) -> None:
    with pytest.raises(PayloadError):
        registered.register(json.dumps({**ONE, "callable": data}))
