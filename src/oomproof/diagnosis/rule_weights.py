"""How claims are weighed: odds relative to each other, each with its reason; only the judge makes probabilities of them."""

from __future__ import annotations


class Weight(float):
    """A rule's odds for one of its claims, or a share of belief. The scale, by the claims that mark it:

    1000 and more  a direct witness: it outweighs any number of guesses together
     800 to 950    a record of the action, or a mark that only one program leaves
     300 to 700    the kernel's, the program's or its killer's own word for it
     100 to 150    the only reading left, with nothing against it
      15 to 70     one of several readings of the same facts
       1           so that there is always a verdict
    """

    reason: str

    def __new__(cls, odds: float, reason: str) -> Weight:
        weight = super().__new__(cls, odds)
        weight.reason = reason
        return weight


# How far one finding in a text of unknown origin is to be believed, by how the text tells it. Shares, not odds:
# what is left goes to the other causes. Set from published texts that nothing was tuned on (docs/accuracy.md).
TRUST: dict[str, Weight] = {
    "text.system.sure": Weight(0.985, "the kernel's or a guard's own line, with its victim"),
    "text.system.named": Weight(0.95, "a guard's or an engine's own line that names its action"),
    "text.system.likely": Weight(0.85, "an engine's line that allows another reading"),
    "text.system.weak": Weight(0.65, "a number or a word of an engine, no more"),
    "text.traceback": Weight(0.97, "the exception that ends a whole traceback, of a kind that says what it was"),
    "text.traceback.weak": Weight(0.85, "the same, in words that several causes share"),
    "text.exception": Weight(0.95, "an exception's line without its traceback"),
    "text.exception.weak": Weight(0.8, "the same, in words that several causes share"),
    "text.unnamed": Weight(0.88, "an exception whose words name no cause we know: it may name one all the same"),
    "text.line": Weight(0.93, "a library's own line, worded as it prints it when it fails"),
    "text.line.weak": Weight(0.75, "a line that a library also prints where it continues, or that prose also has"),
    "text.summary": Weight(0.93, "a launcher's or a shell's word on how a process ended"),
    "text.summary.weak": Weight(0.7, "an exit code without more"),
    "text.wrapper": Weight(0.8, "only the repetition of an error that stands elsewhere"),
    "text.quoted": Weight(0.75, "an exception inside a sentence: quoted, perhaps from another run"),
    "text.cut": Weight(0.65, "a traceback whose exception is cut off: whatever it was, it raised"),
    "text.end": Weight(0.6, "one of the last lines complains in words nobody taught us"),
    "text.loss": Weight(0.8, "the last loss that was printed is not a number, and no line says that this ended it"),
    "text.nothing.finished": Weight(0.95, "no word of a death, and the run says that it finished"),
    "text.nothing": Weight(0.85, "no word of a death"),
    "text.nothing.alarmed": Weight(0.6, "no known word of a death, but the text speaks of trouble"),
    "text.silent": Weight(0.85, "a training log that stops before its own end, and nobody writes it any more"),
    "text.open": Weight(0.97, "a process has the log open for writing"),
    "text.lively": Weight(0.6, "the log changed minutes ago: a running job, or a fresh copy"),
    "text.nothing.endless": Weight(0.6, "it counts steps without an end: whether there were more nobody can say"),
    "text.joined": Weight(0.6, "a second witness of the same death takes away this share of the doubt"),
    "text.rivals": Weight(0.9, "another failure of its own stands in the same text"),
    "text.sigkill-was-memory": Weight(0.6, "a SIGKILL whose sender nothing names: the odds that the kernel sent it, "
                                      "against all others"),
}  # fmt: skip


def trust(name: str) -> float:
    return TRUST[name]
