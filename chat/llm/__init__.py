"""Models by name. The executor sees ``protocol`` only; what a name means stands in this table.

To add a kind of model, write a class with the shape of ``StepModel`` and add its line;
``docs/add-a-provider.md`` has a whole example.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module

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


# A name, or the beginning of names up to the colon, and the class that is made with the whole name.
# Its module is imported when the first model of it is asked for: some take seconds.
MODELS = {
    "demo": "demo.DemoModel",  # the scripted model, offline
    "demo-fast": "demo.DemoModel",  # the same without its pauses, for tests
    "*": "provider.ProviderModel",  # `provider:model`, any that Pydantic AI knows
}


@cache
def get_model(name: str) -> StepModel:
    """The model of that name. Raises ``ModelError`` (``unknown_model``) and says what would work.

    The first one imports the model library: see ``warm_up``.
    """
    prefix, colon, _ = name.partition(":")
    module, _, kind = (MODELS.get(prefix + colon) or MODELS["*"]).partition(".")
    model: StepModel = getattr(import_module(f".{module}", __name__), kind)(name)
    return model


def is_demo(name: str) -> bool:
    return MODELS.get(name) == MODELS["demo"]


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
