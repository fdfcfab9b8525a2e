"""A sub-agent that weighs options and proposes a plan."""

from .base import Agent

AGENT = Agent(
    name="strategist",
    description="Weighs options and proposes a plan with its risks.",
    instructions="""\
You are given one task by the assistant. Name the options, weigh them against each other, propose
one as a plan of a few steps, and name its risks. Your last message is your result: it is sent to
the assistant as it is. Answer in the language of the task.""",
    tools=("check_inbox", "ask_user"),
)
