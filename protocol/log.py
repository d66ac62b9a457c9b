"""One structlog logger over the standard library's ``greenroom`` logger: the host's logging configuration decides."""

from __future__ import annotations

import logging
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

_RENDER = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)


def _render(logger: WrappedLogger, name: str, event: EventDict) -> tuple[tuple[str], dict[str, Any]]:
    """One ``event=… key=value`` line, and a ``stack`` in lines below it; exceptions go to the standard library, which knows how
    to print them.
    """
    exc_info, stack = event.pop("exc_info", None), event.pop("stack", [])
    line = {key: str(value) if isinstance(value, BaseException) else value for key, value in event.items()}
    return ("\n".join((str(_RENDER(logger, name, line)), *stack)),), {"exc_info": exc_info}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("greenroom"),
    processors=[structlog.stdlib.filter_by_level, _render],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=True,
)
