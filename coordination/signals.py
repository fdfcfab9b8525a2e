"""What coordination tells the product, inside the transaction it happens in.

``coordination`` never imports ``chat``: the product listens. A receiver runs with the session's row
locked; an exception in it undoes the transition, as it must.
"""

from __future__ import annotations

from django.dispatch import Signal

# A run holds its agent's lane: its turn has begun or is next. Arguments: session, run, has_waited
# (False where the lane was free when the run was born).
run_ready = Signal()

# A step ended before it was saved, and the run goes on elsewhere. Arguments: session, run, items
# (events.OpenItems: what the step had logged).
step_broken = Signal()

# The log of a turn ends, and this run of its tree has not settled yet: what it has left open is to
# be closed in the log. Arguments: session, run, root (which says how the turn ended).
left_open = Signal()

# A run ended, in whatever way. Arguments: session, run, items.
run_ended = Signal()
