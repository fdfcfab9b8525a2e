"""Who breaks things: one target at a time each, in random order, for a random while.

Call ``trouble`` from the main thread: nodes that it starts again die with the thread that started
them.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Collection
from functools import partial

from redis import Redis

from agentsite.nodes import Node, WorkerNode
from tests.cluster.site import Site
from tests.faults.history import FAULT, History

Mend = Callable[[], object]
AT_ONCE = 2  # faults
LASTS = (0.5, 7.0)  # seconds: shorter than a lease's life and the grace, and longer


def nothing() -> None:
    """What dies and is started again by somebody else needs no mending."""


def trouble(site: Site, chance: random.Random, seconds: float, history: History) -> None:
    """Break and mend for so long; in the end everything is mended, but not yet whole."""
    end = time.monotonic() + seconds
    broken: dict[str, tuple[float, Mend]] = {}
    while (now := time.monotonic()) < end:
        for target, (due, mend) in list(broken.items()):
            if due <= now:
                del broken[target]
                mend()
                history.note(FAULT, "mended", target)
        targets = _targets(site)
        free = sorted(target for target in targets if not _would_silence_people(target, broken))
        if len(broken) < AT_ONCE:
            target = chance.choice(free)
            fault, strike = chance.choice(targets[target])
            due = now + chance.uniform(*LASTS)
            history.note(FAULT, fault, target)
            broken[target] = due, strike()
        time.sleep(chance.uniform(0.2, 1.5))
    for _, mend in broken.values():
        mend()
    history.note(FAULT, "mended", "everything")


def _would_silence_people(target: str, broken: Collection[str]) -> bool:
    """What is broken already, and the last web node: nobody could do anything meanwhile."""
    web = target.startswith("web") and any(name.startswith("web") for name in broken)
    return web or target in broken


def _targets(site: Site) -> dict[str, list[tuple[str, Callable[[], Mend]]]]:
    """What there is to break, and how."""
    cluster, network = site.cluster, site.network
    redis, mariadb = cluster.redis, cluster.mariadb
    return {
        **{node.name: _node_faults(node) for node in cluster.web},
        **{node.name: _worker_faults(node) for node in cluster.workers},
        "redis": [
            ("redis killed", lambda: _do(redis.kill, redis.start)),
            ("redis frozen", lambda: _do(redis.freeze, redis.thaw)),
            ("redis flushed", lambda: _do(Redis.from_url(redis.url).flushall, nothing)),
            ("network cut", lambda: _do(network.cut, network.mend)),
            ("network silent", lambda: _do(network.hold, network.mend)),
            ("hints late", lambda: _do(partial(network.delay_hints, 3, times=3), network.mend)),
        ],
        "mariadb": [
            ("mariadb frozen", lambda: _do(mariadb.freeze, mariadb.thaw)),
            ("mariadb killed", lambda: _do(mariadb.kill, mariadb.start)),
            (
                "connections cut",
                lambda: _do(partial(mariadb.query, "KILL USER agentsite"), nothing),
            ),
        ],
    }


def _node_faults(node: Node) -> list[tuple[str, Callable[[], Mend]]]:
    kind = node.name.partition("-")[0]
    return [
        (f"{kind} killed", lambda: _do(node.kill, node.launch)),
        (f"{kind} frozen", lambda: _do(node.freeze, node.thaw)),
        (f"{kind} terminated", lambda: _do(node.child.ask_to_stop, partial(_again, node))),
    ]


def _worker_faults(node: WorkerNode) -> list[tuple[str, Callable[[], Mend]]]:
    def signal_runners(signum: signal.Signals) -> None:
        for pid in node.runners():
            os.kill(pid, signum)

    def freeze_supervisor() -> None:
        node.freeze()
        signal_runners(signal.SIGCONT)

    return [
        *_node_faults(node),
        ("runner killed", lambda: _do(partial(signal_runners, signal.SIGKILL), nothing)),
        ("runner frozen", lambda: _do(partial(signal_runners, signal.SIGSTOP), node.thaw)),
        ("supervisor frozen", lambda: _do(freeze_supervisor, node.thaw)),
    ]


def _do(strike: Callable[[], object], mend: Mend) -> Mend:
    strike()
    return mend


def _again(node: Node) -> None:
    node.kill()  # if it is still about to leave
    node.launch()
