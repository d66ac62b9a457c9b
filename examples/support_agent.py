"""A support agent that answers word by word, as a language model does, and remembers each conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from greenroom import Agent, Cycle, Message

WORD_S = 0.03  # what a model takes for a word

# Topic, what gives it away in a customer's message (the first that fits), and the answer.
TOPICS: dict[str, tuple[str, str]] = {
    "the refund": (
        "refund|money|charged|cancel|reembolso|voucher|points|discount",
        "We have sent the money back, and your bank shows it within three working days.",
    ),
    "the invoice": (
        "invoice|receipt|vat |rechnung|facture|tva|factura|buchhaltung|領収書",
        "The invoice is on its way to your address, with every item and the tax on it.",
    ),
    "the repair": (
        "broken|crack|crash|repair|warranty|chip|noise|defekt|wackelt|cassé|gwaranc|não liga|blink|przestał",
        "That is covered by your warranty, and our workshop takes it in free of charge.",
    ),
    "your account": (
        "password|log in|login|code|account|two-factor|e-mail|phone number",
        "I have sent you a fresh code, please enter it within the next ten minutes.",
    ),
    "the delivery": (
        "deliver|courier|parcel|package|tracking|customs|arriv|livr|colis|liefer|paket|envío|entrega|kurier|配送|届",
        "Your parcel left our depot this morning and the courier has it on today's round.",
    ),
    "your order": (
        "",
        "I have your order open in front of me, and I will look after it until it is right.",
    ),
}


class Support(Agent):
    """Answers one message of a customer at a time; ``cycle.state`` is what it remembers of the conversation."""

    async def respond(self, message: Message, cycle: Cycle) -> AsyncIterator[str]:
        topic, answer = choose(str(message.body))
        before = cycle.state.get("topic", topic)
        cycle.state["topic"] = topic  # kept with the whole answer, forgotten if it is interrupted or stopped
        cycle.state["questions"] = cycle.state.get("questions", 0) + 1
        if topic != before:
            answer = f"From {before} to {topic}: {answer}"
        for word in answer.split():
            await asyncio.sleep(WORD_S)  # stands for the model: `async for word in model.stream(…)`
            yield f"{word} "  # the customer sees it at once


def choose(text: str) -> tuple[str, str]:
    """The topic of a customer's message, and the answer."""
    lowered = text.lower()
    return next((topic, answer) for topic, (signs, answer) in TOPICS.items() if any(s in lowered for s in signs.split("|")))
