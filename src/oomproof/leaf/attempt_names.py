"""The names of a run's and an attempt's files: what the keeper and the agent, which load only the leaf, write and `recording/` reads.

From the first release on, a name is never changed.
"""

from __future__ import annotations

# In the run's folder, each held for as long as its process lives:
KEEPER_LOCK = "keeper.lock"
GUARD_LOCK = "guard.lock"

# In the attempt's:
STARTED = "started.json"  # by the keeper: pids, boot, limit backend, counters
EXIT = "exit.json"  # by the keeper: the wait status
RESERVED_EXIT = ".exit.json"  # made at the start, so that a full disk has space for it
KEEPER_EVENTS = "keeper.jsonl"
KEEPER_ERRORS = "keeper.err"
SPARE = "spare"  # in the runtime folder: RUN/ATTEMPT/, for started.json and exit.json that the run's disk did not take
SPARE_OF = "attempt_folder"  # in those two: whose they are
OUTPUT = "output.log"
OUTPUT_BEFORE = "output.prev.log"  # past the cap: the part before that
OUTPUT_FIRST = "output.first.log"  # ... and the first one
OUTPUT_PLACES = "output.at"  # how far files that the job writes to itself were read
PAUSED = "paused.json"  # there while the job is meant to be paused: by whom, the guard or `oomproof pause`
GPU_PAUSED = "gpu_paused.json"  # ... while its GPU memory is given back: of which processes

# In the agent's folder, after "PID-":
NOW = "now.txt"  # phase and step
LISTENS = "listens.txt"  # to which request, and who
ALLOCATOR = "allocator.json"
TENSORS = "tensors.json"
FAULT = "fault.txt"  # stacks, by faulthandler
UNSENT = "unsent.jsonl"  # why it ended, where nobody read the socket in time
CENSUS_ON = "census.on"  # there while a census may be asked for
CENSUS_REQUEST = "census.ask"
STACK_REQUEST = "stack.ask"
SPILL = "spill.json"  # what --spill pinned, and the sums of what was spilled
# ... and by itself:
TRACE_REQUEST = "trace.json"  # by the run: {"headroom": bytes, "t": when}
# by a guard: somebody else on the card is short of what is reserved here and unused
RELEASE_REQUEST = "release.ask"
SPILL_CLAIM = "spill.pid"  # the process that has --spill's memory: pid and start
