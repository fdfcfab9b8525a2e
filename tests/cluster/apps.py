"""What a node of the shared cluster has beside a real one: tools to break it with."""

import dataclasses

from django.apps import AppConfig


class MoreTools(AppConfig):
    """Offers the tools of ``fakes/tools.py`` to the master."""

    name = "tests.cluster"
    label = "more_tools"

    def ready(self) -> None:
        from chat.agents import AGENTS, MASTER
        from chat.tools import TOOLS
        from tests.fakes.tools import FAKES

        TOOLS.update({tool.name: tool for tool in FAKES})
        master = AGENTS[MASTER]
        names = (*master.tools, *(tool.name for tool in FAKES))
        AGENTS[MASTER] = dataclasses.replace(master, tools=names)
