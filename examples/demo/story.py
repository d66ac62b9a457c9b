"""The demo's story, step by step."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import AsyncExitStack
from functools import partial

from redis.asyncio import Redis

from greenroom import AsyncClient

from .account import settle
from .process import DemoFailed
from .record import follow
from .stage import AGENT, PATIENCE_S, Stage

FIRST_POST, POST_WHILE_DOWN, POST_MEANWHILE = 150, 70, 20


async def tell(stage: Stage) -> bool:
    """Run every step; answer whether the account holds. However it ends, its processes have ended too.

    Raises:
        DemoFailed: a step did not go as it must.
    """
    async with AsyncExitStack() as stack:
        stack.callback(stage.record.close)
        stack.push_async_callback(asyncio.to_thread, stage.server.stop)
        await start_redis(stage, stack)
        await start_supervisor(stage, stack)
        await feed(stage)
        interrupted = await interrupt(stage)
        room, kept = await stop(stage, other_than=interrupted)
        cycles = await kill_supervisor(stage)
        await kill_redis(stage)
        await restart_supervisor(stage, cycles)
        await show_stopped(stage, room, kept)
        await play(stage, room, kept)
        await finish(stage)
        return await give_account(stage)
    raise AssertionError("not reached: nothing on the stack swallows an exception")


async def start_redis(stage: Stage, stack: AsyncExitStack) -> None:
    stage.heading("Start Redis, embedded, with an append-only file, and a recorder beside it")
    await asyncio.to_thread(stage.server.start)
    url = stage.server.url
    stage.client = await stack.enter_async_context(AsyncClient(AGENT, redis=url, timeout=PATIENCE_S, by="demo"))
    # With a socket timeout, redis-py would wait in asyncio.wait_for, which Python 3.11 lets swallow a Ctrl-C.
    stage.redis = await stack.enter_async_context(Redis.from_url(url, protocol=2, socket_timeout=None))
    reader = await stack.enter_async_context(AsyncClient(AGENT, redis=url, timeout=PATIENCE_S))
    followers = [asyncio.create_task(follow(stage.record, reader, room)) for room in stage.rooms]

    async def end_followers() -> None:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)

    stack.push_async_callback(end_followers)
    stage.say(f"{url}, process {stage.server.pid}, in {stage.folder}")
    stage.say("The recorder sees what customers see, and writes all of it, and all that is sent, to a file.")


async def start_supervisor(stage: Stage, stack: AsyncExitStack) -> None:
    stage.heading("Start a supervisor, which runs the agent for every room that has work")
    stack.push_async_callback(stage.supervisor.clean_up)
    stage.say(f"$ {shlex.join(stage.supervisor.command(stage.server.url))}")
    await stage.supervisor.start(stage.server.url)
    stage.say(f"It works, as process {stage.supervisor.pid}.")


async def feed(stage: Stage) -> None:
    stage.heading(f"{len(stage.rooms)} customers write, each in a room of their own")
    await stage.post(FIRST_POST)
    await stage.expect(lambda: bool(stage.record.ended), "a first answer")
    message = min(stage.record.ended)
    room = next(sent.room for sent in stage.record.sent if sent.message == message)
    stage.say(f"{FIRST_POST} messages are in. A room answers one at a time and in order, the rooms run side by side.")
    stage.say("The first answer:")
    stage.say_exchange(room, message)


async def interrupt(stage: Stage) -> str:
    """Answer the room."""
    stage.heading("Interrupt an answer half-way")
    tried = set[int]()
    while True:
        room, message = await stage.half_way(tried=tried)
        verb = partial(stage.client.interrupt, room, message=message, reason="asked something else")
        receipt = await stage.signal(room, verb)
        if receipt.outcome == "applied":
            break
        stage.say(f"{room} had finished its answer when the interrupt came: no effect. Try another.")
    await stage.expect(lambda: message in stage.record.ended, "the end of the interrupted answer")
    stage.say(f'{room} was saying "{stage.speech(room, message)} …" and says no more of it, now or later.')
    stage.say_receipt(receipt)
    later = next(sent.message for sent in stage.record.sent if sent.room == room and sent.message > message)
    await stage.expect(lambda: later in stage.record.ended, "the answer to the next message")
    stage.say("The next message runs:")
    stage.say_exchange(room, later)
    return room


async def stop(stage: Stage, *, other_than: str) -> tuple[str, int]:
    """Answer the room, and the message that it keeps."""
    stage.heading("Stop another room in the middle of an answer")
    tried = set[int]()
    while True:
        room, _ = await stage.half_way(tried=tried, other_than=other_than)
        receipt = await stage.signal(room, partial(stage.client.stop, room, reason="customer is on the phone"))
        message = receipt.message
        if message is not None:
            await stage.expect(partial(stage.was_stopped, room, message), "the end of the stopped answer")
            if stage.speech(room, message):
                break
        stage.say(f"{room} was between two answers when the stop came. Let it play, and try another.")
        await stage.signal(room, partial(stage.client.play, room))
    status = await stage.client.status(room)
    stage.say(f'{room} was saying "{stage.speech(room, message)} …" and says no more.')
    stage.say_receipt(receipt)
    stage.say(f"The message is kept, first of {status.waiting} that wait. Nothing runs in this room until somebody says play.")
    return room, message


async def kill_supervisor(stage: Stage) -> int:
    """Answer how many cycles died with it."""
    stage.heading("Kill the supervisor in the middle of its work (kill -9)")
    await stage.until_busy(3)
    await stage.supervisor.kill()
    cycles = int(await stage.ask_redis("ZCARD", stage.keys.processing))
    stage.say(f"{cycles} rooms were in the middle of an answer. Redis knows which, and on what message.")
    before = len(stage.record.sent)
    await stage.post(POST_WHILE_DOWN)
    stage.say(f"{len(stage.record.sent) - before} more messages are accepted, with nobody there to answer them.")
    return cycles


async def kill_redis(stage: Stage) -> None:
    stage.heading("Kill Redis as well (kill -9), and start it again on the same file")
    await asyncio.to_thread(stage.server.kill)
    before = len(stage.record.sent)
    sending = asyncio.create_task(stage.post(max(stage.unposted, POST_MEANWHILE)))
    await asyncio.sleep(0)  # the first of them is on its way to a server that is not there
    try:
        await asyncio.to_thread(stage.server.start)
        await sending
    finally:
        sending.cancel()
    stage.say(f"It is back as process {stage.server.pid}, with all that it had confirmed.")
    stage.say(f"{len(stage.record.sent) - before} messages that were sent meanwhile waited in the client, and are in now.")


async def restart_supervisor(stage: Stage, cycles: int) -> None:
    stage.heading("Start the supervisor again, under the same name")
    await stage.supervisor.start(stage.server.url)
    await stage.expect(lambda: len(stage.cut_off()) >= cycles, "the replay of what was in processing")
    room, cut = max(stage.cut_off(), key=lambda found: len(stage.speech(found[0], found[1].message, found[1].ticket)))
    await stage.expect(lambda: cut.message in stage.record.ended, "the answer to a replayed message")
    stage.say(f"Process {stage.supervisor.pid} has its rooms back at once. The {len(stage.cut_off())} answers run again.")
    said = stage.speech(room, cut.message, cut.ticket)
    stage.say(f'{room} was saying "{said} …" when the supervisor was killed. Now in full:')
    stage.say_exchange(room, cut.message)


async def show_stopped(stage: Stage, room: str, kept: int) -> None:
    stage.heading(f"Two kills later {room} is still stopped, and redis-cli says by whom and why")
    stage.say_cli("HGETALL", stage.keys.room(room))
    stage.say_cli("XLEN", stage.keys.messages(room))
    status = await stage.client.status(room)
    if status.hold is None or status.processing != kept or status.ticket is not None:
        raise DemoFailed(f"room {room} is not stopped with message {kept} kept: {status}")


async def play(stage: Stage, room: str, kept: int) -> None:
    stage.heading("Play: the kept message comes first")
    before = len(stage.record.outputs[room])
    stage.say_receipt(await stage.signal(room, partial(stage.client.play, room)))
    await stage.expect(lambda: kept in stage.record.ended, "the answer to the kept message")
    if stage.record.outputs[room][before].message != kept:
        raise DemoFailed(f"room {room} did not begin with message {kept}, which the stop had kept")
    stage.say_exchange(room, kept)


async def finish(stage: Stage) -> None:
    stage.heading("Wait until every queue is empty, then end the supervisor (SIGTERM)")
    stage.say(f"{len(stage.record.open_messages())} messages are open.")
    finished = await stage.record.wait_for(lambda: not stage.record.open_messages())
    code = await stage.supervisor.stop()
    stage.say("All is answered." if finished else "Not all is answered, and nothing happens any more.")
    stage.say(f"The supervisor has left, with exit code {code}.")
    if code != 0:
        raise DemoFailed(f"the supervisor's exit code is {code} and not 0")


async def give_account(stage: Stage) -> bool:
    stage.heading("The account, from Redis and from the record outside it")
    account = settle(stage.record, await stage.snapshot())
    stage.say("\n".join(account.lines()))
    for finding in account.wrong:
        stage.say(f"WRONG: {finding}")
    stage.say("It does not hold." if account.wrong else "Nothing lost, nothing twice, nothing late, all in order.")
    return not account.wrong
