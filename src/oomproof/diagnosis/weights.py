"""The starting weight of every claim a rule can make, each with its reason. Relative odds, in one place."""

from __future__ import annotations

from typing import NamedTuple


class Weight(NamedTuple):
    odds: float
    reason: str


# A direct witness outweighs any number of guesses together, hence the distance between 1000 and the rest.
WEIGHTS: dict[str, Weight] = {
    "finished": Weight(1000, "exit code 0 is the job's own word"),
    "running": Weight(1000, "the keeper lives and there is no exit status"),
    "oom.kernel-log": Weight(1000, "the kernel's log names a process of ours and whose limit it was"),
    "oom.own-limit": Weight(1000, "the job's cgroup counted a kill and its own limit's failure"),
    "oom.own-limit.v1": Weight(500, "a kill was counted and the limit was reached, the machine had room; v1 "
                               "counts reached limits also where reclaim then helped"),
    "oom.own-limit.tight": Weight(70, "a kill was counted, the limit reached, the machine was short too"),
    "oom.machine.tight": Weight(30, "the same case, the other reading"),
    "oom.above": Weight(70, "a kill was counted, the job's own limit was not it, the machine had room"),
    "oom.machine": Weight(70, "a kill was counted, the job's own limit was not it, the machine was short"),
    "oom.above.unlikely": Weight(20, "the less likely of the two when only the machine's room decides"),
    "oom.tolerated": Weight(30, "a worker was killed for memory, then the job failed with an error that does "
                            "not speak of a lost worker"),
    "oom.vmstat.tight": Weight(60, "somebody was OOM-killed, we died of SIGKILL, memory was short"),
    "oom.vmstat.unknown": Weight(30, "the same, and nobody knows how much memory was left"),
    "oom.vmstat.ample": Weight(5, "the same, but memory was ample: the kill counted may be anybody's"),
    "systemd-oomd": Weight(900, "systemd-oomd marks the cgroups it kills"),
    "guard.deed": Weight(800, "our own record of the signal, and the job ended within the grace time"),
    "guard.asked": Weight(800, "our own record of the request, and the job ended cleanly after it"),
    "guard.asked-then-failed": Weight(60, "asked to stop, and it ended with an error of its own"),
    "guard.and-kernel": Weight(40, "we acted, but the kernel's counter moved too: the counter decides"),
    "user.deed": Weight(800, "the record of oomproof stop, and the job ended within the grace time"),
    "keeper.sigterm": Weight(300, "the keeper was asked to end and passed it on"),
    "killed.ample": Weight(100, "SIGKILL, no OOM kill counted, ample memory: a person or a scheduler"),
    "killed.tight": Weight(30, "SIGKILL, no kernel OOM kill counted, memory short: a daemon is as likely"),
    "killed.daemon": Weight(15, "earlyoom and systemd-oomd act on short memory and leave no kernel trace"),
    "killed.unknown": Weight(25, "SIGKILL, and neither counters nor samples to judge it by"),
    "signal.other": Weight(100, "ended by a signal that people and schedulers send"),
    "interrupted": Weight(500, "SIGINT or KeyboardInterrupt: Ctrl-C"),
    "segfault": Weight(500, "SIGSEGV is the kernel's word for it"),
    "gpf": Weight(600, "the kernel's log calls it a general protection fault"),
    "xid": Weight(2000, "the driver names a process of ours; the program's own error is what it saw of it"),
    "abort": Weight(400, "SIGABRT is the job's own abort()"),
    "abort.told": Weight(500, "SIGABRT, and the output says why it aborted"),
    "bus.shm": Weight(500, "SIGBUS with /dev/shm full: a page of shared memory could not be had"),
    "bus.shm-said": Weight(200, "PyTorch says bus error and shared memory, the sample does not show it full"),
    "bus.other": Weight(300, "SIGBUS with room in /dev/shm: a file cut short under a mapping, or hardware"),
    "bus.unlikely": Weight(20, "the other reading of a SIGBUS"),
    "error.final": Weight(400, "the last traceback's exception, and the job exited with an error"),
    "worker.told": Weight(4000, "the job's own process found its loader worker dead; what it then stumbled over is "
                          "a race: a broken connection as often as PyTorch's own words"),
    "error.later": Weight(150, "a second traceback, unchained, stands below the one taken for the root: it was caught"),
    "error.text": Weight(60, "the words stand in the output, but no traceback carries them"),
    "error.before-crash": Weight(600, "an exception ended it, and the interpreter crashed while it went down"),
    "engine.said": Weight(700, "who killed it says so in its output: a scheduler, an engine, a daemon"),
    "error.plain": Weight(20, "a non-zero exit code and no words that say why"),
    "machine-down": Weight(900, "the boot id changed and nobody wrote an exit status"),
    "machine-down.orderly": Weight(950, "the same, and a shutdown was on record"),
    "guard-lost": Weight(300, "the keeper is gone, the machine is not, and nobody saw the end"),
    "nothing": Weight(1, "so that there is always a verdict"),
}  # fmt: skip

# How far one finding in a text of unknown origin is to be believed, by how the text tells it. Shares, not odds:
# what is left goes to the other causes. Set from published texts that nothing was tuned on (docs/accuracy.md).
TRUST: dict[str, Weight] = {
    "text.system.sure": Weight(0.985, "the kernel's or a guard's own line, with its victim"),
    "text.system.named": Weight(0.95, "a guard's or an engine's own line that names its deed"),
    "text.system.likely": Weight(0.85, "an engine's line that allows another reading"),
    "text.system.weak": Weight(0.65, "a number or a word of an engine, no more"),
    "text.traceback": Weight(0.97, "the exception that ends a whole traceback, of a kind that says what it was"),
    "text.traceback.weak": Weight(0.85, "the same, in words that several causes share"),
    "text.exception": Weight(0.95, "an exception's line without its traceback"),
    "text.exception.weak": Weight(0.8, "the same, in words that several causes share"),
    "text.unnamed": Weight(0.88, "an exception whose words name no cause we know: it may name one all the same"),
    "text.line": Weight(0.93, "a library's own line, worded as it prints it when it fails"),
    "text.line.weak": Weight(0.75, "a line that a library also prints where it goes on, or that prose also has"),
    "text.summary": Weight(0.93, "a launcher's or a shell's word on how a process ended"),
    "text.summary.weak": Weight(0.7, "an exit code without more"),
    "text.wrapper": Weight(0.8, "only the repetition of an error that stands elsewhere"),
    "text.quoted": Weight(0.75, "an exception inside a sentence: quoted, perhaps from another run"),
    "text.cut": Weight(0.65, "a traceback whose exception is cut off: whatever it was, it raised"),
    "text.end": Weight(0.6, "one of the last lines complains in words nobody taught us"),
    "text.loss": Weight(0.8, "the last loss that was printed is no number, and no line says that this ended it"),
    "text.nothing.finished": Weight(0.95, "no word of a death, and the run says that it finished"),
    "text.nothing": Weight(0.85, "no word of a death"),
    "text.nothing.alarmed": Weight(0.6, "no known word of a death, but the text speaks of trouble"),
    "text.joined": Weight(0.6, "a second witness of the same death takes away this share of the doubt"),
    "text.rivals": Weight(0.9, "another failure of its own stands in the same text"),
    "text.sigkill-was-memory": Weight(0.6, "a SIGKILL whose sender nothing names: the odds that the kernel sent it, "
                                      "against all others"),
}  # fmt: skip


def trust(name: str) -> float:
    return TRUST[name].odds


def odds(name: str) -> float:
    return WEIGHTS[name].odds
