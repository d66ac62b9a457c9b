"""What an agent says is posted to a chat over HTTP, in order and at least once; the chat recognises what it has already.

It needs a Redis (GREENROOM_REDIS_URL, else the local one), and brings a chat of its own: a server on the loopback.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from greenroom import ActorSystem, Agent, Backoff, Client, Cycle, Message, Output, Reject, Relay

AGENT, RELAY = "relay-to-http", "chat"


class Support(Agent):
    """Answers word by word; of a story it never finds the end."""

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        for word in ("Once ", "upon ", "a ", "time "):
            yield word
        if message.body == "Tell me a story":
            await asyncio.Event().wait()


def post(port: int, room: str, output: Output) -> None:
    """What the relay calls, in a thread. It returns when the chat has the output, and raises when it has not."""
    said = {"room": room, "message": output.message, "kind": output.kind, "seq": output.seq, "body": output.body}
    headers = {"Content-Type": "application/json", "Idempotency-Key": f"{room}/{output.id}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/outputs", json.dumps(said), headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status in (429, 503) or status >= 500:
        raise ConnectionError(f"the chat answers {status}")  # later, then: the relay tries again
    if status >= 400:
        raise Reject(f"the chat answers {status}")  # never: the relay goes on with the next


class Chat(ThreadingHTTPServer):
    """Shows what is posted. It is busy at first, and has forgotten to answer once: so it gets one output twice."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Posted)
        self.posts = 0
        self.known: set[str] = set()
        self.closed = {room: threading.Event() for room in ("42", "43")}  # their last output is here


class Posted(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        chat = self.server
        chat.posts += 1
        if chat.posts == 1:
            say("chat: too busy")
            self.send_error(503)
            return
        if key in chat.known:
            say("chat: that is here already")
        else:
            say(f"chat: room {said['room']}: {said['kind']} {said['body'] or ''}".rstrip())
        chat.known.add(key)
        if chat.posts == 3:
            self.close_connection = True  # it has the output, and its answer is lost
            return
        self.send_response(204)
        self.end_headers()
        if said["kind"] != "chunk":
            chat.closed[said["room"]].set()

    def log_message(self, *_: object) -> None:
        pass


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")  # in one piece: two threads' prints may end up on one line
    sys.stdout.flush()


def main() -> None:
    logging.getLogger("greenroom").setLevel(logging.ERROR)  # it warns of each post that failed; these fail on purpose
    redis = os.environ.get("GREENROOM_REDIS_URL", "redis://127.0.0.1:6379/0")
    retry = Backoff(first=timedelta(milliseconds=100), most=timedelta(seconds=30))
    chat = Chat()
    threading.Thread(target=chat.serve_forever, daemon=True).start()
    with Client(AGENT, redis=redis) as client:
        relay = Relay(AGENT, partial(post, chat.server_port), redis=redis, name=RELAY, retry=retry)
        with ActorSystem(Support, agent=AGENT, redis=redis), relay:
            client.send("42", "Tell me how stories begin")
            chat.closed["42"].wait(30)
            client.send("43", "Tell me a story")
            for output in client.outputs("43", follow=True):
                if output.body == "time ":
                    client.interrupt("43", reason="bedtime")  # what of it is not posted yet is not posted any more
                    break
            chat.closed["43"].wait(30)
        client.forget_relay(RELAY)  # for good: nothing is to be kept for it
    chat.shutdown()


if __name__ == "__main__":
    main()
