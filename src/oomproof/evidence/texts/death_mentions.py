"""What the sentences of a text may tell of a death, by loose words: a reader that learned decides which of it is a report."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oomproof.evidence.texts.prose_features import Features, speech, stems
from oomproof.evidence.texts.prose_parts import ProseParts
from oomproof.records import dataclass

_GPU = re.compile(
    r"(?ai)\bGPUs?\b|\bcuda\b|\b(?:[AVHTPL]\d{2,3}|A6000|[GR]TX ?\d{3,4}|[1-5]0[5-9]0(?: ?ti)?|titan|tesla)\b|显存|\bVRAM\b|videoram|nvidia"
)
_APPLE = re.compile(
    r"(?ai)\bmps\b|\bapple silicon\b|\bmac(?:book)?\b[^.\n]{0,20}\bm[1-4]\b|\bm[1-4] (?:max|ultra|pro)\b"
)
_SLURM = re.compile(r"(?ai)\bslurm|\bsbatch\b|\bsrun\b")
_CONTAINER = re.compile(
    r"(?ai)\bpods?\b|\bcontainers?\b|\bkubernetes\b|\bk8s\b|\bdocker\b|\bcgroups?\b|\bkubectl\b|\bkserve\b"
)
_HOST = re.compile(
    r"(?ai)\bRAM\b|\bswap\b|\bpandas\b|\bdask\b|\bspark\b|\b(?:CPU|host|system|main) memory\b|\bJVM\b|\bh5ad\b|\bheap\b|\bnumpy\b"
)
_XLA = re.compile(r"(?ai)\bjax\b|\bflax\b|\bxla\b|\bTPU\b")
_HEAP = re.compile(r"(?ai)\bjavascript heap\b|\bjava heap\b|OutOfMemoryError: Java|GC overhead")
_OF_THE_HOST = re.compile(
    r"(?ai)\bout of RAM\b|\b(?:CPU|host|system) (?:OOM|memory|out of)|unable to allocate|内存|bad[_ ]alloc"
)
_OF_THE_GPU = re.compile(r"(?i)显存|VRAM|cuda")

OUT_OF_MEMORY, OOM_KILL = "oom", "oomkill"
_WORDS: tuple[tuple[str, str, str], ...] = (
    (OUT_OF_MEMORY, "", r"(?ai)(?<![a-z])OOM(?:s|ed|ing)?(?![a-z])(?![- _]?(?:kill|score))|\bout[ -]?of[ -]?(?:\w+[ -])?(?:memor+y|VRAM|RAM)\b(?![ -]kill)|\b(?:ran|run|runs|running) out (?:of )?(?:\w+ )?(?:memory|RAM)|OutOfMemory|RESOURCE_?EXHAUSTED|\bmemory (?:error|overflow|exhaust\w*|issues?|problem|allocation (?:error|fail\w*))|memory ?error\b"
        r"|(?:not|n't|n’t) (?:have )?(?:enough|sufficient)(?: \w+)? (?:memory|RAM|VRAM)|\binsufficient (?:\w+ )?memory|\bunable to allocate|\b(?:can ?not|can't|failed to|could not) allocate|bad[_ ]alloc|内存(?:不足|溢出|不够|爆)|显存(?:不足|溢出|不够|爆)|爆显存|爆内存"),
    (OOM_KILL, "", r"(?ai)\bOOM[- _]?kill\w*|\boom[- _]?killer|\bout[- ]of[- ]memory[- ]kill\w*|\bkernel kill(?:s|ed|ing)?\b|\bkilled\b[^.!?\n]{0,40}\b(?:OOM|out[- ]of[- ]memory|memory)\b|OOMKilled|\boomd\b|\bearlyoom\b|evicted"),
    ("kill", "killed-unknown", r"(?ai)(?<!no process )\bkill(?:s|ed|ing)?\b|\bSIGKILL\b|\bsignal 9\b|\b137\b|杀死|杀掉|被杀|被 ?kill|\bterminated\b|-9\b"),
    ("die", "killed-unknown", r"(?ai)\b(?:kernel|session|runtime|notebook|colab|worker|process|server|pod|container|agent|node|actor|service)s?\b[^.!?\n]{0,40}\b(?:crash\w*|dies|died|dead|dying|die|restart\w*|disconnect\w*|lost|gone|down)\b|\b(?:crash\w*|restart\w*|freez\w*) (?:the |my |our |whole |entire )*(?:\w+ )?(?:kernel|session|notebook|system|computer|machine|server|pc|laptop|colab|instance|node|os|ubuntu|windows)\b"
        r"|\b(?:system|computer|machine|pc|laptop)\b[^.!?\n]{0,24}\b(?:crash\w*|reboot\w*|freez\w*|froze\w*|hangs?)\b"),
    ("crash", "killed-unknown", r"(?ai)\bcrash(?:es|ed|ing)?\b|崩溃|闪退"),
    ("segv", "segfault", r"(?ai)\bsegmentation fault\b|\bseg[- ]?fault\w*|\bSIGSEGV\b|段错误|\bsignal 11\b|exit code 139|core dumped|\baccess violation\b"),
    ("nan", "nan", r"(?ai)(?<![a-z])nans?(?![a-z])|\bloss\b[^.!?\n]{0,30}\binf\b"),
    ("disk", "disk-full", r"(?ai)\bno space left\b|\bdisk (?:is |was )?full\b|\b(?:out of|not enough|insufficient|low) (?:disk|storage)\b|\b(?:ran|run|runs|running) out of (?:disk |storage |hard drive )?space\b|\bdisk quota\b|磁盘空间|\bENOSPC\b"),
    ("bus", "bus-error", r"(?ai)\bbus error\b|\bSIGBUS\b"),
    ("shm", "shm-exhausted", r"(?ai)\bshared memory\b|/dev/shm|\bshm\b"),
    ("devassert", "device-assert", r"(?ai)\bdevice-side assert"),
    ("illegal", "illegal-access", r"(?ai)\billegal memory access\b|\bXid\b|an illegal instruction was"),
    ("nccl", "nccl", r"(?ai)\bNCCL\b|\bcollective operation timeout\b|\bgloo\b"),
    ("import", "import-error", r"(?ai)\bimport ?error\b|\bmodule ?not ?found ?error\b|\bno module named\b|\bcannot import\b|undefined symbol"),
    ("assert", "assert", r"(?ai)\bassertion\s?(?:error|failed)\b"),
    ("error", "other-error", r"(?ai)\b(?:key|value|type|index|attribute|runtime|name|shape|dimension|not ?implemented|internal|connection|syntax|file ?not ?found)\s?errors?\b|\b[A-Z]\w+(?:Error|Exception)\b|\berrors?\b|\bexceptions?\b|\bfails?\b|\bfailed\b|报错|错误"),
    ("intr", "interrupted", r"(?ai)\bctrl[ +-]?c\b|keyboard ?interrupt"),
    ("silent", "silent-end", r"(?ai)\b(?:stop(?:s|ped)?|exit(?:s|ed)?|dies|died|end(?:s|ed)?|terminat(?:es|ed)|crash(?:es|ed)?|quits?|shut ?down|disappear\w*|hangs?|close[sd]?)\b[^.!?\n]{0,60}\b(?:without|no)\b (?:\w+ ){0,2}(?:error|message|warning|exception|traceback|reason|log)|\bsilent(?:ly)? (?:crash|exit|stop|die|fail|kill|death)\w*|\b(?:crash|exit|stop|die|fail|kill)\w* silently"),
)  # fmt: skip
_PATTERNS = tuple((name, cause, re.compile(pattern)) for name, cause, pattern in _WORDS)
# Where both stand in one sentence, the second says no more than the first
_COVERED = {"kill": {OOM_KILL}, "crash": {"die"}}
_WEAK = {"crash", "die"}  # beside these "error" is heard as well
_SENTENCES = 120
_SENTENCE = 600  # characters
_MENTIONS = 6  # of one kind


@dataclass(frozen=True, slots=True)
class Mention:
    """A word of trouble in a sentence."""

    at: int  # the sentence's place in the text; 0 is the title where there is one
    line: int
    title: bool
    sentence: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cause that the text may tell of, with every mention of that kind."""

    kind: str
    cause: str
    mentions: tuple[Mention, ...]


def candidates(parts: ProseParts, whole: str) -> list[Candidate]:
    """``whole`` is all of the text: what a bare "out of memory" was about may stand anywhere in it."""
    spoken = [(parts.title[0], parts.title[1], True)] if parts.title[1] else []
    spoken += [(number, sentence, False) for number, sentence in parts.sentences]
    found: dict[str, list[Mention]] = {}
    causes: dict[str, str] = {}
    for at, (number, sentence, title) in enumerate(spoken[:_SENTENCES]):
        heard: set[str] = set()
        for kind, cause, pattern in _PATTERNS:
            match = pattern.search(sentence[:_SENTENCE])
            if match is None or heard & _COVERED.get(kind, set()) or (kind == "error" and heard - _WEAK):
                continue
            heard.add(kind)
            found.setdefault(kind, []).append(
                Mention(at, number, title, sentence, match.start(), match.end())
            )
            causes.setdefault(kind, cause or _cause(kind, sentence, parts.title[1], whole))
    return [Candidate(kind, causes[kind], tuple(mentions)) for kind, mentions in found.items()]


def _cause(kind: str, sentence: str, title: str, whole: str) -> str:
    """Whose memory it was, by the nearest word that says so."""
    if kind == OOM_KILL:
        if "systemd-oomd" in sentence:
            return "systemd-oomd"
        if _SLURM.search(whole):
            return "slurm-oom"
        return "oom-kill-memcg" if "OOMKilled" in sentence or _CONTAINER.search(whole) else "oom-kill-global"
    near = f"{sentence}\n{title}"
    if _OF_THE_HOST.search(sentence) and not _OF_THE_GPU.search(sentence):
        return "bad-alloc" if re.search(r"(?i)bad[_ ]alloc", sentence) else "python-memory-error"
    if _HEAP.search(sentence):
        return "heap-limit"
    if "RESOURCE" in sentence and _XLA.search(whole):
        return "jax-oom"
    for place in (near, whole):
        for owner, cause in ((_APPLE, "mps-oom"), (_GPU, "cuda-oom"), (_HOST, "python-memory-error")):
            if owner.search(place):
                return cause
    return "python-memory-error" if re.search(r"(?i)memory ?error", sentence) else "cuda-oom"


def features_of(candidate: Candidate, others: Sequence[Candidate]) -> tuple[Features, set[str]]:
    """(what is counted, the words around its mentions)."""
    kind, mentions = candidate.kind, candidate.mentions
    counted: Features = {f"t={kind}": 1.0, f"c={candidate.cause}": 1.0, "n": min(len(mentions), 4) / 4}
    counted["first"] = 1 - min(mentions[0].at, 10) / 10
    words: set[str] = set()
    for other in others:
        counted[f"o={other.kind}"] = counted[f"o={other.kind}&{kind}"] = 1.0
    for mention in mentions[:_MENTIONS]:
        place = "T" if mention.title else "P"
        counted[f"in{place}"] = counted[f"in{place}&{kind}"] = 1.0
        before = stems(mention.sentence[max(0, mention.start - 160) : mention.start])
        behind = stems(mention.sentence[mention.end : mention.end + 120])
        for speaks in speech(before + behind):
            counted[f"{place}&{speaks}"] = counted[f"{place}&{speaks}&{kind}"] = 1.0
        if start := stems(mention.sentence[:40])[:1]:
            counted[f"{place}^{start[0]}"] = 1.0
        words |= {f"a:{word}" for word in before[-8:]} | {f"l:{word}" for word in before[-3:]}
        words |= {f"b:{word}" for word in behind[:6]} | {f"b1:{word}" for word in behind[:1]}
        if before:
            words |= {f"l1:{before[-1]}", f"l2:{' '.join(before[-2:])}"}
        words.add(f"m:{' '.join(stems(mention.sentence[mention.start : mention.end])[:4])}")
    return counted, words
