"""``greenroom keys``: every key that exists for an agent, and what it is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from ..options import Embedded, Json, RedisUrl, option
from ..protocol.keyspace import KINDS, UNKNOWN, KeyFacts, KeyKind, Keyspace, agents_instead, no_such_agent
from ..rendering import show_json_rows, show_table
from ..supervisors.process import complain
from ..where import url_of
from .clients import store_of

EXAMPLES = ("key", "keys", "type", "size", "ttl", "what")
ALL = ("key", "type", "size", "ttl", "what")
Found = tuple[list[tuple[Any, ...]], bool, list[str] | None]  # rows, whether these are all, other agents if this one is none


def keys(
    agent: Annotated[str, typer.Argument(metavar="AGENT", envvar="GREENROOM_AGENT", show_default=False)],
    everything: Annotated[bool, option("--all", help="List each key, not one of each kind.")] = False,
    redis: RedisUrl = None,
    embedded: Embedded = None,
    as_json: Json = False,
) -> None:
    """Explain every key that exists for an agent: one of each kind, how many of these there are, and what it is.

    The size is in bytes for a string, else in entries. A ttl is in seconds.
    """
    url = url_of(redis, embedded)
    columns, find = (ALL, _each) if everything else (EXAMPLES, _kinds)
    rows, complete, others = asyncio.run(find(agent, url))
    show_json_rows(columns, rows) if as_json else show_table(columns, rows)
    if others is not None and not as_json:
        complain(no_such_agent(agent, others))
    if not complete:
        complain(
            "this user may not SCAN: of rooms, only those with work, a mode or state are listed; "
            "what remembers signals and requests is not"
        )


async def _kinds(agent: str, url: str) -> Found:
    """A row for each kind of which there are keys."""
    found: dict[KeyKind, tuple[str, int]] = {}
    async with store_of(agent, url) as store:
        keyspace, others = Keyspace(store), await agents_instead(store)
        async for page in keyspace.pages():
            for key in page:
                kind = keyspace.kind(key)
                example, count = found.get(kind, (key, 0))
                found[kind] = min(example, key), count + 1
        facts = {fact.kind: fact for fact in await keyspace.look([example for example, _ in found.values()])}
    shown = [kind for kind in (*KINDS, UNKNOWN) if kind in facts]
    rows = [(facts[kind].key, found[kind][1], *_more(facts[kind])) for kind in shown]
    return rows, keyspace.complete, others


async def _each(agent: str, url: str) -> Found:
    """A row for each key, those of a kind together."""
    facts: list[KeyFacts] = []
    async with store_of(agent, url) as store:
        keyspace, others = Keyspace(store), await agents_instead(store)
        async for page in keyspace.pages():
            facts += await keyspace.look(page)
    order = {kind: place for place, kind in enumerate((*KINDS, UNKNOWN))}
    facts.sort(key=lambda fact: (order[fact.kind], fact.key))
    return [(fact.key, *_more(fact)) for fact in facts], keyspace.complete, others


def _more(fact: KeyFacts) -> tuple[Any, ...]:
    wrong = f" (but it is a {fact.type}, not a {fact.kind.type})" if fact.kind.type not in ("", fact.type) else ""
    return (fact.type, fact.size, fact.ttl_s, fact.kind.what + wrong)
