"""Random trees of supervisors and random failures, compared with a model: what is started and stopped, in which order, how
often, and who gives up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pykka
from hypothesis import given, settings
from hypothesis import strategies as st

from greenroom import Backoff, BudgetSpent, ChildSpec, RestartPolicy, Strategy, Supervisor
from greenroom.actors.loop import LoopThread
from greenroom.supervisors.watched import prepare
from supervised import LIMIT_S, Behaviour, Ending, Journal, LoopChild, ThreadChild

AT_ONCE = Backoff(first=timedelta(0), most=timedelta(0))
LONG = timedelta(hours=1)  # no restart is ever forgotten


@dataclass(eq=False)
class Node:
    """A leaf has a kind of actor; a supervisor has children, and has ``spent`` so much of its intensity in its present life."""

    kind: type[Behaviour] | None = None
    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int = 0
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    name: str = ""
    spent: int = 0
    runs: bool = False
    lives: int = 0  # of the real supervisor

    def leaves(self) -> list[Node]:
        return [self] if self.kind is not None else [leaf for child in self.children for leaf in child.leaves()]


KINDS: list[type[Behaviour]] = [ThreadChild, LoopChild]
LEAF = st.sampled_from(KINDS).map(lambda kind: Node(kind=kind))


def supervisors(children: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(
        lambda strategy, intensity, below: Node(strategy=strategy, intensity=intensity, children=below),
        st.sampled_from(Strategy),
        st.integers(0, 2),
        st.lists(children, min_size=1, max_size=3),
    )


TREE = supervisors(LEAF | supervisors(LEAF | supervisors(LEAF)))
FAILURES = st.lists(st.tuples(st.integers(0, 26), st.sampled_from(["exception", "exit", "stop"])), max_size=6)


# The model: what is to be in the journal. -------------------------------------------------------------------------


def start(node: Node) -> list[str]:
    """All leaves below, in order; the supervisors there begin a new life."""
    node.spent, node.runs = 0, True
    return [f"+{node.name}"] if node.kind is not None else [entry for child in node.children for entry in start(child)]


def stop(nodes: list[Node]) -> list[str]:
    """The leaves below that run, the last one first."""
    running = [leaf for node in nodes for leaf in node.leaves() if leaf.runs]
    for leaf in running:
        leaf.runs = False
    return [f"-{leaf.name}" for leaf in reversed(running)]


def fail(node: Node) -> list[str]:
    """What a failure leads to. When the root's budget is spent nothing runs any more."""
    node.runs = False
    above = node.parent
    if above is None:
        return []
    above.spent += 1
    if above.spent > above.intensity:
        return stop(above.children) + fail(above)
    first = above.children.index(node)
    groups = {
        Strategy.ONE_FOR_ONE: above.children[first : first + 1],
        Strategy.REST_FOR_ONE: above.children[first:],
        Strategy.ONE_FOR_ALL: above.children,
    }
    group = groups[above.strategy]
    return stop(group) + [entry for child in group for entry in start(child)]


# The real tree. ---------------------------------------------------------------------------------------------------


def adopt(node: Node, name: str) -> None:
    node.name = name
    for number, child in enumerate(node.children):
        child.parent = node
        adopt(child, f"{name}{number}")


def maker(node: Node, loop: LoopThread, journal: Journal) -> Callable[[], Any]:
    if node.kind is None:
        return lambda: supervisor(node, loop, journal)
    kind, args = node.kind, (loop,) if node.kind is LoopChild else ()
    return lambda: kind(*args, name=node.name, journal=journal)


def supervisor(node: Node, loop: LoopThread, journal: Journal) -> Supervisor:
    node.lives += 1
    specs = [
        ChildSpec(child.name, maker(child, loop, journal), shutdown=timedelta(seconds=LIMIT_S) if child.kind else None)
        for child in node.children
    ]
    return Supervisor(specs, strategy=node.strategy, policy=RestartPolicy(node.intensity, LONG, AT_ONCE))


def find(root: pykka.ActorRef[Any], node: Node, tree: Node) -> pykka.ActorRef[Any]:
    """The actor of a leaf, by the names from the root down."""
    path = [node]
    while path[0].parent is not tree and path[0].parent is not None:
        path.insert(0, path[0].parent)
    ref = root
    for step in path:
        ref = ref.proxy().whereis(step.name).get(timeout=LIMIT_S)
    return ref


def end(ref: pykka.ActorRef[Any], how: str) -> None:
    if how == "stop":
        ref.stop(block=False)
    else:
        ref.tell(ValueError("fails") if how == "exception" else SystemExit(1))


@settings(max_examples=400)
@given(tree=TREE, failures=FAILURES)
def test_a_tree_does_what_its_model_says(tree: Node, failures: list[tuple[int, str]]) -> None:
    """row 43: order of start and stop, never more restarts than the intensity, a spent budget always escalates"""
    adopt(tree, "n")
    before = set(threading.enumerate())
    loop, journal = LoopThread("test-leaves"), Journal()
    loop.start()
    try:
        check(tree, failures, loop, journal)
    finally:
        pykka.ActorRegistry.stop_all(timeout=LIMIT_S)
        loop.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"{thread} is left"


def check(tree: Node, failures: list[tuple[int, str]], loop: LoopThread, journal: Journal) -> None:
    expected = start(tree)
    ending = Ending()
    root, begin = prepare(supervisor(tree, loop, journal), lambda: None, ending)
    begin()
    journal.wait_length(len(expected))
    for number, how in failures:
        leaf = tree.leaves()[number % len(tree.leaves())]
        end(find(root, leaf, tree), how)
        expected += [f"{'-' if how == 'stop' else '!'}{leaf.name}", *fail(leaf)]
        journal.wait_length(len(expected))
        assert journal.entries == expected
        if not tree.runs:
            assert isinstance(ending.wait(), BudgetSpent)
            break
        assert root.is_alive()
    if tree.runs:
        expected += stop([tree])
        assert root.stop(timeout=LIMIT_S)
        assert ending.wait() is None
    assert journal.entries == expected
    assert pykka.ActorRegistry.get_all() == []
