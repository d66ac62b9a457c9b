"""Supervised rooms: durable, interruptible conversations on Pykka and Redis.

What can be imported from here stands in ``public``; it is loaded when it is first asked for, so that a probe need not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":  # what Python itself looks for
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    public = import_module(".public", __name__)
    names = {each: getattr(public, each) for each in public.__all__}
    globals().update(names, __all__=[*names, "__version__"])
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
