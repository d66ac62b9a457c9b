"""Supervised rooms: durable, interruptible conversations on Pykka and Redis."""

from .actors.agent import Agent
from .actors.backoff import Backoff
from .actors.cycle import Cycle, ThreadCycle
from .protocol.client import AsyncClient
from .protocol.errors import (
    AgentError,
    AskTimeout,
    Conflict,
    CycleEnded,
    DeadLettered,
    Discarded,
    GreenroomError,
    Interrupted,
    InvalidBody,
    InvalidName,
    InvalidRequest,
    MessageProcessing,
    NoReply,
    NotFound,
    QueueFull,
    RedisEmptied,
    RedisError,
    RedisRefused,
    RedisUnavailable,
    Reject,
    Superseded,
    UnknownMode,
)
from .protocol.records import (
    AgentStatus,
    DeadLetter,
    Hold,
    Kind,
    Message,
    Mode,
    Outcome,
    Output,
    Phase,
    Receipt,
    RoomStatus,
)
from .protocol.sync_client import Client
from .supervisors.supervisor import BudgetSpent
from .supervisors.system import ActorSystem

__version__ = "0.1.0"

__all__ = [
    "ActorSystem",
    "Agent",
    "AgentError",
    "AgentStatus",
    "AskTimeout",
    "AsyncClient",
    "Backoff",
    "BudgetSpent",
    "Client",
    "Conflict",
    "Cycle",
    "CycleEnded",
    "DeadLetter",
    "DeadLettered",
    "Discarded",
    "GreenroomError",
    "Hold",
    "Interrupted",
    "InvalidBody",
    "InvalidName",
    "InvalidRequest",
    "Kind",
    "Message",
    "MessageProcessing",
    "Mode",
    "NoReply",
    "NotFound",
    "Outcome",
    "Output",
    "Phase",
    "QueueFull",
    "Receipt",
    "RedisEmptied",
    "RedisError",
    "RedisRefused",
    "RedisUnavailable",
    "Reject",
    "RoomStatus",
    "Superseded",
    "ThreadCycle",
    "UnknownMode",
    "__version__",
]
