"""Who has a slot of a cluster, by what its nodes say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, ResponseError

from greenroom.protocol.cluster import Address, Nodes

SLOT = 100
A, B, C = ("a", 1), ("b", 2), ("c", 3)


class Told(Nodes):
    """Nodes that answer what a test says, or not."""

    def __init__(self, *seeds: Address) -> None:
        super().__init__(list(seeds), SLOT)
        self.answers: dict[Address, list[Any]] = {}
        self.asked: list[Address] = []
        self.refusal: Exception = OSError("nobody there")

    async def _ask(self, address: Address) -> list[Any]:
        self.asked.append(address)
        if address not in self.answers:
            raise self.refusal
        return self.answers[address]

    def find(self) -> Address:
        self.asked = []
        return asyncio.run(self.discover_master("any"))


def row(first: int, last: int, *nodes: Address) -> list[Any]:
    return [first, last, *([host.encode() or None, port, b"id", []] for host, port in nodes)]


def test_the_slots_primary_is_the_first_node_of_its_row() -> None:
    nodes = Told(A)
    nodes.answers[A] = [row(0, 99, C), row(100, 200, B, A), row(201, 16383, A)]
    assert nodes.find() == B


def test_nodes_that_do_not_answer_or_are_cut_off_are_passed_over() -> None:
    nodes = Told(A, B, C)
    nodes.answers = {B: [], C: [row(0, 16383, B)]}
    assert nodes.find() == B
    assert nodes.asked == [A, B, C]


def test_nodes_are_learned_from_one_another_and_the_seeds_stay() -> None:
    nodes = Told(A)
    nodes.answers[A] = [row(0, 16383, B, C)]
    assert nodes.find() == B
    nodes.answers = {C: [row(0, 16383, C)]}
    assert nodes.find() == C
    assert set(nodes.asked) <= {A, C}


def test_who_was_the_primary_is_asked_last() -> None:
    """Just back, or cut off, it would believe to be it still."""
    nodes = Told(A)
    nodes.answers = {A: [row(0, 16383, A, B)], B: [row(0, 16383, B, A)]}
    assert nodes.find() == A
    assert nodes.find() == B
    assert nodes.asked == [B]


@pytest.mark.parametrize("host", ["", "?"])
def test_a_node_that_does_not_know_its_own_address_is_where_it_was_asked(host: str) -> None:
    nodes = Told(A)
    nodes.answers[A] = [row(0, 16383, (host, 1))]
    assert nodes.find() == A


@pytest.mark.parametrize("refusal", [AuthenticationError("invalid password"), ResponseError("cluster support disabled")])
def test_a_refusal_is_told_if_no_other_node_knows(refusal: Exception) -> None:
    nodes = Told(A, B)
    nodes.refusal = refusal
    with pytest.raises(type(refusal), match=str(refusal)):
        nodes.find()
    nodes.answers[B] = [row(0, 16383, B)]
    assert nodes.find() == B


def test_nobody_has_a_slot_that_no_node_names() -> None:
    nodes = Told(A)
    nodes.answers[A] = [row(0, 99, A)]
    with pytest.raises(MasterNotFoundError):
        nodes.find()
