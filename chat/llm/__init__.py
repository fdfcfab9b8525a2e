"""Models by name. The executor sees ``protocol`` only; what a name means stands in this table.

To add a kind of model, write a class with the shape of ``StepModel`` and add its line.
"""

from __future__ import annotations

from collections.abc import Callable
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

    Call it once before the event loop starts: the first one imports the model library.
    """
    return MODELS.get(name, MODELS["*"])(name)


def is_demo(name: str) -> bool:
    return MODELS.get(name) is _demo


async def close_models() -> None:
    """Close what models hold open on the running loop."""
    import sys

    if "chat.llm.provider" in sys.modules:
        from .provider import close_clients

        await close_clients()
