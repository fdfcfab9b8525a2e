"""Models by name. The executor sees ``protocol`` only; what a name means stands in this table.

To add a kind of model, write a class with the shape of ``StepModel`` and add its line.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache

from .demo import DemoModel
from .protocol import (
    ModelError,
    ReasoningDelta,
    StepCompleted,
    StepEvent,
    StepModel,
    StepStream,
    TextDelta,
    ToolCallArgs,
    ToolCallEnded,
    ToolCallStarted,
    ToolSpec,
    Usage,
    text_of,
)

__all__ = [
    "ModelError",
    "ReasoningDelta",
    "StepCompleted",
    "StepEvent",
    "StepModel",
    "StepStream",
    "TextDelta",
    "ToolCallArgs",
    "ToolCallEnded",
    "ToolCallStarted",
    "ToolSpec",
    "Usage",
    "close_models",
    "get_model",
    "is_demo",
    "text_of",
    "warm_up",
]


def _demo(name: str) -> StepModel:
    return DemoModel(name)


def _provider(name: str) -> StepModel:
    from .provider import ProviderModel  # brings the model library, which takes two seconds

    return ProviderModel(name)


MODELS: dict[str, Callable[[str], StepModel]] = {
    "demo": _demo,  # the scripted model, offline
    "demo-fast": _demo,  # the same without its pauses, for tests
    "*": _provider,  # `provider:model`, any that Pydantic AI knows
}


@cache
def get_model(name: str) -> StepModel:
    """The model of that name. Raises ``ModelError`` (``unknown_model``) and says what would work.

    The first one imports the model library: see ``warm_up``.
    """
    return MODELS.get(name, MODELS["*"])(name)


def is_demo(name: str) -> bool:
    return MODELS.get(name) is _demo


def warm_up(name: str) -> None:
    """Import what the first step would import: seconds in which no event loop should stand still.

    Sends nothing. Raises ``ModelError`` for a name that no provider has; a missing key is for the
    runs to say.
    """
    import pydantic_ai.messages  # noqa: F401 - the demo's history is made of them too

    model = get_model(name)
    with suppress(ModelError):
        model.check()


async def close_models() -> None:
    """Close what models hold open on the running loop."""
    import sys

    if "chat.llm.provider" in sys.modules:
        from .provider import close_clients

        await close_clients()
