"""What users import from ``greenroom`` itself."""

from .actors.agent import Agent
from .actors.backoff import Backoff
from .actors.cycle import Cycle, ThreadCycle
from .actors.interruption import Interruption
from .actors.steps import idempotent
from .protocol.audit import SignalEntry
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
    NewerVersion,
    NoReply,
    NotFound,
    NotReplicated,
    OutcomeUnknown,
    QueueFull,
    RedisEmptied,
    RedisError,
    RedisRefused,
    RedisUnavailable,
    Reject,
    RelayRuns,
    ReplyLost,
    Superseded,
    UnknownMode,
)
from .protocol.fleet import WorkerStatus
from .protocol.pipeline import Durability
from .protocol.records import (
    AgentStatus,
    DeadLetter,
    Event,
    EventKind,
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
from .protocol.relays import RelayStatus
from .protocol.retention import Retention
from .protocol.room_handles import AsyncRoomHandle, RoomHandle
from .protocol.sync_client import Client
from .supervisors.child import ChildInfo, ChildSpec
from .supervisors.named import NamedRef
from .supervisors.relay import Relay
from .supervisors.restart import Restart, RestartPolicy
from .supervisors.supervisor import BudgetSpent, Strategy, Supervisor
from .supervisors.system import ActorSystem
from .supervisors.watched import watch

__all__ = [
    "ActorSystem",
    "Agent",
    "AgentError",
    "AgentStatus",
    "AskTimeout",
    "AsyncClient",
    "AsyncRoomHandle",
    "Backoff",
    "BudgetSpent",
    "ChildInfo",
    "ChildSpec",
    "Client",
    "Conflict",
    "Cycle",
    "CycleEnded",
    "DeadLetter",
    "DeadLettered",
    "Discarded",
    "Durability",
    "Event",
    "EventKind",
    "GreenroomError",
    "Hold",
    "Interrupted",
    "Interruption",
    "InvalidBody",
    "InvalidName",
    "InvalidRequest",
    "Kind",
    "Message",
    "MessageProcessing",
    "Mode",
    "NamedRef",
    "NewerVersion",
    "NoReply",
    "NotFound",
    "NotReplicated",
    "Outcome",
    "OutcomeUnknown",
    "Output",
    "Phase",
    "QueueFull",
    "Receipt",
    "RedisEmptied",
    "RedisError",
    "RedisRefused",
    "RedisUnavailable",
    "Reject",
    "Relay",
    "RelayRuns",
    "RelayStatus",
    "ReplyLost",
    "Restart",
    "RestartPolicy",
    "Retention",
    "RoomHandle",
    "RoomStatus",
    "SignalEntry",
    "Strategy",
    "Superseded",
    "Supervisor",
    "ThreadCycle",
    "UnknownMode",
    "WorkerStatus",
    "idempotent",
    "watch",
]
