"""What a person tells of a death, in a title or in a sentence, where no program's own words do."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from oomproof.causes import cause_of
from oomproof.evidence.texts.line_cleaner import clean, unquoted
from oomproof.evidence.texts.log_tail import SYSTEM
from oomproof.evidence.texts.quoted_source import only_mentions

Lines = Sequence[tuple[int, str]] | deque[tuple[int, str]]
TITLE = "# "  # as issues are written


class ToldName(NamedTuple):
    """How people name a failure. ``example`` is a sentence of a post that must be understood."""

    cause: str
    says: str
    pattern: re.Pattern[str]
    example: str
    # only where the text is about it: "OOM" alone may be a GPU's or the host's
    about: re.Pattern[str] | None = None
    kill: bool = False  # what manuals explain as often as people report it


# A change's subject, a request: what it speaks of did not happen here
_CHANGE = re.compile(
    r"(?ai)^\W*(?:\[[^\]\n]{1,40}\] ?|\([^)\n]{1,40}\) ?|[\w./-]{1,30}(?:\([\w./-]{1,30}\))?!?: ?){0,3}(?:indicat|expos|surfac(?:e|ing)|throttl|prefer |incorporat|attempt |migrat|mov(?:e|ing) |renam|replac|rewrit|rework|extend|drop |deprecat|cap |clamp|guard |validat|wrap |switch|simplif|optimi[sz]|reus|stor(?:e|ing)|unload|try (?!to )|kill |provid|warn |tell |display|emit|consider |ensure|includ|explain|clarif|mention|error early|catch|decreas|increas|bump|updat|adjust|rais(?:e|ing)|lower|chang|us(?:e|ing) |mak(?:e|ing)|set |remov|refactor|report|retry|skip|log |print|introduc"
    r"|implement|revert|merge|release|document|detect|free |clear|limit |add|fix|handl|avoid|prevent|support|allow|enabl|disabl|improv|better|auto\b|automatic|think about|gracefully|propagat|return |auto-|interpret|generate |reduc|temporar)"
    r"|\bfeature request\b|\bRFC\b|\bRFE\b|\bproposal\b|\brecovery?\b|\bhints? (?:on|for|about)\b"
)
_FULL_GPU = re.compile(
    r"(?ai)(?:\[[^\]\n]{1,40}\] ?|[\w./-]{1,30}: ){0,3}(?:[\w.]{0,40}error: ?)?(?:(?:CUDA|GPU|MPS|HIP|VRAM)[ -](?:OOM|out[ -]of[ -]memory)|out of memory error on GPU)\b"
)
_WANTS = re.compile(
    r"(?ai)\W*(?:\[[^\]\n]{1,40}\] ?){0,3}(?:specify|clearer|better|improve|explain|document|mention|clarify|show|report|detect|warn|tell|allow|support|add|handle|avoid|prevent|distinguish|surface|expose|feature request)\b"
)
# Somebody changes a program: what the text names is what the change is about
_PULL = re.compile(
    r"(?i)\bthis (?:PR|pull request|change|patch|commit|MR)\b|\bwhy are these changes needed\b|^Signed-off-by: |^```diff|^\W{0,5}(?:what does this PR do|changes made|test plan|motivation and context)\b"
    r"|\bwe should (?:have|add|make|raise|catch|show)\b|\bthis would allow\b",
    re.MULTILINE,
)
_GPU = re.compile(
    r"(?ai)\bGPUs?\b|\bcuda\b|\b(?:[AVHTPL]\d{2,3}|A6000|[GR]TX ?\d{3,4}|[1-5]0[5-9]0(?: ?ti)?|titan|tesla|4090|3090)\b|显存|loss\.backward|\bVRAM\b"
)
_SLURM = re.compile(r"(?ai)\bslurm|\bsbatch\b|\bsrun\b")
_CONTAINER = re.compile(
    r"(?ai)\bpods?\b|\bcontainers?\b|\bkubernetes\b|\bk8s\b|\bdocker\b|\bcgroups?\b|\bkubectl\b"
)
_OOM_KILL = re.compile(
    r"(?ai)(?<!without being )(?<!instead of being )(?<!not being )(?<!not )\bOOM[- _]?kill(?:ed|s|ing)?\b|\bthe kernel kill(?:s|ed)\b|\boom[- _]?killer\b|\bout[- ]of[- ]memory[- ]kill\w{0,4}\b|\bkilled\b[^.!?\n]{0,24}\b(?:due to|because of|by) (?:the )?(?:OOM|out[- ]of[- ]memory)\b"
)
_OOM_KILLED = "the post tells of an OOM kill"
_OOM = re.compile(
    r"(?ai)(?<![a-z])OOM(?![a-z]|[- _]?kill| score)|\bOutOfMemory(?:Error|Exception)?\b|\bout[ -]of[ -]memory\b(?![ -]kill)"
)


NAMES = (
    ToldName("cuda-oom", "the post tells of a GPU out of memory", re.compile(
        r"(?ai)\b(?:CUDA|GPU|HIP|NPU|XPU|VRAM)s?\b[^.!?\n]{0,24}\b(?:out[ -]?of[ -]?(?:the )?memory|OOM)\b|\bout of (?:GPU|CUDA|video|graphics|device|v) ?(?:memory|RAM)\b|(?:\bnot|n['’]t) have enough (?:memory (?:in|on) (?:the |my )?GPU|(?:GPU|video) memory|VRAM)\b|\b(?:CUDA|GPU|VRAM) memory (?:error|overflow|exhausted)"
        r"|显存(?:不足|溢出|不够|爆)|爆显存"),
        "When the loop comes to epoch 2, loss.backward() shows CUDA out of memory on my card."),
    ToldName("python-memory-error", "the post tells of a host out of memory", re.compile(
        r"(?ai)\b(?:CPU|host|system)\b[^.!?\n]{0,12}\b(?:OOM|out of memory)\b(?![- _]?kill)|\bout of (?:CPU|host|system) (?:memory|RAM)\b|\bout of RAM\b"),
        "I see CPU OOM errors during the partitioning, on a machine with two GPUs."),
    ToldName("cuda-oom", "the post tells of an out of memory on a GPU machine", re.compile(
        r"(?ai)(?<![a-z])OOM(?![a-z]|[- _]?kill| score)|\bout[ -]of[ -]memor+y\b(?![ -]kill)|\br[au]n(?:s|ning)? out memory\b|(?<!cpu )\bmemory errors?\b"),
        "I get an OOM in loss.backward() on my V100.", about=_GPU),
    ToldName("mps-oom", "the post tells of an out of memory on Apple's GPU", _OOM,
        "On my MacBook with the mps backend I am hitting an OOM.", about=re.compile(r"(?ai)\bmps\b")),
    ToldName("systemd-oomd", "the post tells of systemd-oomd's kill", re.compile(r"(?ai)\bsystemd-oomd\b[^.!?\n]{0,40}\bkill(?:s|ed|ing)\b"),
        "My desktop is slow, then systemd-oomd killed the whole session.", kill=True),
    ToldName("slurm-oom", _OOM_KILLED, _OOM_KILL, "I run it with sbatch, and I get jobs OOM killed.", about=_SLURM, kill=True),
    ToldName("oom-kill-memcg", _OOM_KILLED, re.compile(r"\bOOMKilled\b"), "Our controller often gets OOMKilled when it starts.", kill=True),
    ToldName("oom-kill-memcg", _OOM_KILLED, _OOM_KILL, "We set a limit, and the container started to be OOMkilled.", about=_CONTAINER, kill=True),
    ToldName("oom-kill-global", _OOM_KILLED, _OOM_KILL, "My screen hangs, followed by the kernel's oom killer killing off all of it.", kill=True),
    ToldName("jax-oom", "the post tells of XLA out of memory", re.compile(r"\bRESOURCE_EXHAUSTED\b"),
        "I run the Flax example and get RESOURCE_EXHAUSTED.", about=re.compile(r"(?ai)\bjax\b|\bflax\b|\bxla\b|\bTPU\b")),
    ToldName("device-assert", "the post tells of an assertion inside a GPU kernel", re.compile(
        r"(?ai)\bdevice-side assert|\bAssertion `[^`\n]{0,120}(?:index|sizes?\[|n_classes|num_embeddings|input_val)[^`\n]{0,120}` failed"),
        "I get Assertion `index >= -sizes[i] && index < sizes[i]` failed in my second epoch."),
    ToldName("segfault", "the post tells of a segmentation fault", re.compile(
        r"(?ai)\bsegmentation faults?\b|\bsegfault(?:s|ed|ing)?\b|\bSIGSEGV\b|段错误"),
        "I have met a 'Segmentation fault' when I ran the script."),
    ToldName("abort", "the post tells of a failed check in native code", re.compile(r"\bCheck failed: \S|\bcore dumped\b[^.!?\n]{0,40}\bCheck failed\b"),
        "My server dies and dumps core with Check failed: erased == 1."),
    ToldName("illegal-access", "the post tells of an illegal memory access on a GPU", re.compile(r"(?ai)\billegal memory access\b"),
        "I keep getting an illegal memory access after some steps."),
    ToldName("nccl", "the post tells of a collective that timed out", re.compile(r"\bNCCL (?:timed? ?out|timeouts?|errors?)\b|\bcollective operation timeout\b"),
        "We get an NCCL timeout after the first epoch."),
    ToldName("nan", "the post tells of a loss that is no number", re.compile(
        r"(?ai)\bloss(?:es)?\b[^.!?\n]{0,30}?(?<![a-z])(?:nan|inf)(?![a-z])|(?<![a-z])nan(?![a-z])[^.!?\n]{0,20}\bloss(?:es)?\b|(?:\bget(?:ting)?|\bgot|\bencounter\w*) (?:an? |the |weird )*nan\b|^nan (?:encounter|occur|appear|value)"),
        "The loss becomes NaN in the second epoch and I cannot go on with my training."),
    ToldName("dataloader-killed", "the post tells of a DataLoader worker that was killed", re.compile(
        r"(?ai)\bdata ?loader\b[^.!?\n]{0,20} (?:(?:is|are|was|were|gets?|got|being|been) )?killed\b(?! by signal)"),
        "When I run it, the data loader worker is always killed after a while."),
    ToldName("disk-full", "the post tells of a full disk", re.compile(
        r"(?ai)\bno space left\b(?! (?:for|to)\b)|\bdisk (?:is |was )?full\b|\b(?:out of|not enough|insufficient) (?:disk|storage)(?: space)?\b|\b(?:ran|run|runs|running) out of (?:disk |storage )?space\b|\bdisk quota exceeded\b|\b100% disk (?:usage|utili[sz]ation)\b|\bdisk (?:usage|utili[sz]ation) (?:reached|hit|at|is) (?:9\d|100) ?%|磁盘空间不足|存储空间不足"),
        "The training stopped because I ran out of disk space."),
    ToldName("shm-exhausted", "the post tells of too little shared memory", re.compile(r"(?ai)\b(?:out of|insufficient|not enough) shared memory\b|共享内存不足"),
        "I get out of shared memory when I use eight workers."),
    ToldName("bus-error", "the post tells of a bus error", re.compile(r"(?ai)\bbus error\b|\bSIGBUS\b"), "I got a bus error in my second epoch."),
    ToldName("python-memory-error", "the post tells of memory that the host refused", re.compile(r"(?ai)(?<!of )\bmemory ?errors?\b(?! (?:correct|rate|check))"),
        "I run it, and while training the model it is giving a memory error."),
    ToldName("bad-alloc", "the post tells of native code that could not allocate memory", re.compile(r"\bbad_alloc\b|\bbad alloc(?:ation)?\b"),
        "When I add one more vector to the index, I get the error 'std::bad_alloc'."),
    ToldName("import-error", "the post tells of a failed import", re.compile(r"(?ai)\bimport ?error\b|\bmodule ?not ?found ?error\b|\bno module named\b"),
        "I installed it, but I get an import error."),
    ToldName("assert", "the post tells of a failed assertion", re.compile(r"(?ai)\bassertion ?error\b|\bassertion failed\b"), "I get an assertion error at the first batch."),
    ToldName("other-error", "the post tells of an exception", re.compile(
        r"(?ai)\b(?:key|value|type|index|attribute|runtime|name|shape|dimension|not ?implemented) ?error\b"),
        "I run the train script and then a keyerror of loss happens."),
    ToldName("killed-unknown", "the post tells of a process that was killed", re.compile(
        r"(?ai)\b(?:gets?|got|was|were|been|being|is|are|be|appears?) (?:\w+ )?killed\b(?! by signal)|\bsystem (?:has )?killed (?:the|my|it)\b|^why (?:is it |was it )?killed\b"
        r"|[\"'`“]killed[\"'`”]|(?-i:\bKILLED\b)|(?-i:[\])} ]Killed[.\"'`”])|(?<!no )\b(?:process|training|train|script|program|job|run) (?:\w+ )?killed\b|^killed (?:when|while|during|error|after|at|in|on|without)\b|\w (?<!no process )killed\W{0,3}$"
        r"|\b(?:exit\w{0,4}|crash\w{0,4}|error|returned|code|status)\b[^.!?\n]{0,16}\b137\b|\b137 exit code\b|\bkill(?:s|ed|ing) (?:my|our) (?:\w+ )?(?:process|job|training|script|run|program|python|session)\b|被 ?(?:系统)? ?(?:杀死|杀掉|kill)"),
        "Loading checkpoint shards gets killed at 0%, and I have enough memory on my GPU."),
    ToldName("killed-unknown", "the post tells of a notebook's kernel that died", re.compile(
        r"(?ai)\b(?:session|kernel|runtime|notebook|colab)\b[^.!?\n]{0,20}\bcrash(?:ed|es|ing)?\b|\bkernel (?:appears to have |\w{1,8} )?(?:dies|died|dead|dying|to die)\b|\bkill(?:s|ed) (?:\w+ ){0,2}(?:kernel|session|notebook)\b|\bcrash(?:es|ed|ing)? (?:the |my |our )?(?:\w+ )?(?:kernel|session|notebook|system|computer|machine|server)\b|\bkernel (?:\w{1,8} )?restart(?:s|ed|ing)?\b|\brestarts? the kernel\b|\bnotebook (?:dies|died|restarted)\b"),
        "I try to train it on Colab, but the session keeps crashing."),
    ToldName("interrupted", "the post tells of a run that was interrupted by hand", re.compile(
        r"(?ai)\b(?:pressed|hit|entered|typed|used) (?:\w+ )?[\"'“]?(?:ctrl|control)[ +-]?c\b"),
        "After 5 epochs I entered Ctrl C by mistake and training stopped."),
    ToldName("killed-unknown", "the post tells of a crash when the memory was full", re.compile(
        r"(?ai)\b(?:(?:fill|consum|eat|us|tak|exhaust|blew|blow)\w* (?:up )?(?:all )?(?:of )?(?:the |my |our )?(?:\w+ )?(?:memory|RAM)|(?:memory|RAM)\b[^.!?\n]{0,40}\b(?:runs? full|gets? full|fills? up|is full|blows? up))\b[^!?\n]{0,160}\b(?:crash\w*|dies|killed|overflow)\b"
        r"|\bcrash\w*\b[^!?\n]{0,160}\b(?:consum|eat|exhaust)\w* (?:up )?all (?:of )?(?:the |my |our )?(?:\w+ )?(?:memory|RAM)\b"),
        "For larger data the memory of my machine runs full and it crashes before the first epoch."),
    ToldName("silent-end", "the post tells of an end without a word", re.compile(
        r"(?ai)\b(?:stop(?:s|ped)?|exit(?:s|ed)?|dies|died|end(?:s|ed)?|terminat(?:es|ed)|crash(?:es|ed)?|quits?|shut ?down|disappear\w*)\b[^.!?\n]{0,40}\bwithout (?:any |an? |showing )*(?:error|message|warning|exception|traceback|reason)"),
        "My training stops in epoch 3 without an error message."),
)  # fmt: skip

# Where nothing says whose memory it was: a person's word, and only if no other sentence names a death
BARE = (
    ToldName("python-memory-error", "the post tells of an out of memory on a machine's RAM", _OOM,
        "After an hour I get an OOM, all 32 GB of RAM are full.",
        about=re.compile(r"(?ai)\bRAM\b|\bswap\b|\bdask\b|\bpandas\b|\bspark\b|\b(?:CPU|host|system) (?:memory|RAM)\b|\bon (?:the )?CPU\b|\bserver\b|\blaptop\b|\bJenkins\b|\bjava\b|\.h5ad\b|\b(?:read|load)\w* (?:\w+ ){0,4}(?:in)?to memory\b|\bmy (?:machine|computer|PC)\b|\bxarray\b|\bMemoryError\b")),
    ToldName("cuda-oom", "the post tells of an out of memory, most often a GPU's", _OOM,
        "I keep getting an error message in the last phase saying out of memory."),
)  # fmt: skip
_JOURNAL = re.compile(r"\S{3,9} [ \d]?\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}\[\d+\]: ")
_FIRST_PERSON = re.compile(r"\b(?:I|[Mm]y|[Ww]e|[Oo]ur)\b|\bi (?:get|got|met|run|ran|have)\b")
_TITLE_REQUESTS = re.compile(r"(?ai)\b(?:if|in case|fall ?back|handling|should|could|would|support)\b")
_TITLE_TELLS = re.compile(
    r"(?ai)\b(?:errors?|crash\w*|fail\w*|when|while|during|after|at the|keeps?|get(?:s|ting)?|got)\b"
)
_HAPPENS = re.compile(
    r"(?ai)\b(?:get|gets|got|getting|met|meets?|meeting|encounter\w*|fac(?:e|es|ed|ing)|hits?|hitting|found|leads? to|caus(?:es|ing)|complain(?:s|ed|ing)?|reached|sees?|saw|shows?|showed|display\w*|appear\w*|reports?|reported|rais(?:e|es|ed)|throws?|threw|gives?|gave|giving"
    r"|says?|said|occurr?(?:ed|s|ing)?|occour|happen\w*|crash\w*|dies|died|fails?|failed|failing|results? in|started|starts|follow(?:s|ed)|quits?|stops|stopped|run(?:s|ning)? (?:out|into)|ran (?:out|into)|exits?|exited|ends?|ended|killed|kills|segfault\w*"
    r"|becomes?|became|turns?|turned|goes|went|there (?:is|was)|keeps?|have|had)\b|发生|出现|报错|提示|遇到|被杀|被kill|显示"
)
_HAPPENED = re.compile(
    r"(?ai)\b(?:occurr?ed|crash(?:ed|es)|fail(?:ed|s)|die[sd]|kills?|got|became|stopped|encountered)\b"
)  # a title that reports by itself
# an if, a rule, advice, a wish, what was mended
_SUPPOSED = re.compile(
    r"(?ai)\b(?:if(?! (?:I|we)\b)|unless|whether|in case|to avoid|avoid\w*|prevent\w*|may(?! I\b)|might|could|would|should|can (?:cause|lead|result|happen)|will (?:cause|lead|help)|when you|you (?:get|run|see|may|can)|(?<!\bI )(?<!\bwe )(?<!\bthen )try|please (?:reduce|set|use)"
    r"|no longer|the output (?:includes|shows)|means|work-?around|fixed|fixes|resolved|solved|without(?! (?:any |an? )?(?:errors?|messages?|warnings?|reason|OOM|logs?|trace)\b)|instead|handle[ds]?|detect\w*|so that|not be|never|does(?:n't| not)(?! (?:work|run|fit)\b)|did(?:n't| not)|isn't|wasn't|no OOM|not OOM|yesterday|last (?:week|month|year|night)|earlier|back then|so (?:we|I) (?:use|set|had|have|switched))\b"
)
_PERSON = re.compile(
    r"(?m)\bI\b|(?:^|[ ,.])(?:i|im|i'm|i've) (?:am|was|have|had|get|got|try|tried|want|use|used|run|ran|met|meet|think|guess|don't|dont|can't|cant|cannot|train|trained|see|saw|found|follow|installed|just|already|also|use)\b|\b(?:[Mm]y|[Ww]e|[Oo]ur)\b|(?i:\bhelp\b|\bthanks?\b|thank you|any ideas?|describe the (?:bug|problem|issue)|to reproduce\b|expected behaviou?r|how (?:to|can|do|could) (?:i |we )?(?:solve|fix|resolve)|^\W{0,3}why (?:did|does|is|was|killed))|🐛|请问|我|您好|你好|有人|怎么|为什么|什么原因|如何|大佬|!\[\w|<img |(?i:^\W{0,5}(?:system info|environment info|your current environment|what happened\b(?! \+)|steps to reproduce|current behavio)|训练)"
)
# titles of requests, changes and manuals
_ASKS = re.compile(
    r"(?ai)\b(?:feat\w*|fix(?:e[sd])?\b|docs?\b|FAQ|missing|enable|disable|add(?:s|ed)?\b|support\w*|reduc\w*|improv\w*|avoid\w*|prevent\w*|handl\w*|request|guide|troubleshoot\w*|minimal|question|"
    r"how(?! (?:to|can|do|could|should) (?:i |we |you )?(?:solve|fix|resolve|overcome|deal))|allow|option|hints?|interpret|better|show|reading|understand\w*|policy|limit of|test(?:s|ing)? (?:for|of))\b|^.{0,40}:\s*$"
)
# The kernel lists its tasks when it is out of memory, and at no other time
TABLE = ToldName(
    "oom-kill-global",
    "rows of the kernel's list of tasks, which it prints when it is out of memory",
    re.compile("$^"),
    "",
)
_TASK_ROW = re.compile(
    r"\[ {0,8}\d{1,8}\] {1,8}\d{1,8} {1,8}\d{1,8}(?: {1,12}\d{1,16}){4,8} {1,16}-?\d{1,4} \S"
)
_ROWS = 3
ACCOUNT = ToldName(
    "oom-kill-global",
    "the kernel's account of its memory, which it prints when it is out of it",
    re.compile("$^"),
    "",
)
_ACCOUNTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\bFree swap {1,4}= {0,4}\d+kB", r"\b\d+ pages RAM$", r"\bNode \d+ (?:DMA|DMA32|Normal): \d+\*4kB",
        r"\bSwap cache stats: add", r"\b\d+ total pagecache pages", r"\blowmem_reserve\[\]: ",
    )
)  # fmt: skip
_KERNEL_STAMP = re.compile(r"\s{0,4}\[\s{0,10}\d{1,10}\.\d{6}\] ")
_ASKED_FOR = re.compile(r"page allocation (?:failure|stall)|[Ss]ysRq|Show Memory")
# the report says itself whom it was about
_KILL_LINE = re.compile(r"\b[Kk]ill(?:ed)? process \d|\boom-kill:constraint")
# A manual's sentence: what happens to any process
_GENERAL = re.compile(
    r"(?ai)\b(?:an?|any|every|each|which|other|important|certain|random|some) (?:\w{1,12} )?(?:process|program|container|pod|task|job|application|service)(?:es|s)?\b|\bwill (?:be )?kill|\bcalled\b|\breferred\b|\bchecks?\b|\bscores?\b"
)
_OURS = re.compile(r"(?ai)\b(?:I|we|my|our|me|us|it|the|this|these|all|kernel)\b")
_TRACE = re.compile(
    r'^\s*File "[^"\n]{1,400}", line \d|^[│|> ]{1,6}❱|^-{1,4}> ?\d{1,6} |^File \S{1,300}:\d+, in ',
    re.MULTILINE,
)
_LOG = re.compile(
    r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\d%\||^\w{3} [ \d]\d \d\d:\d\d:\d\d \S|\bkernel: |^\[ *\d+\.\d+\]|^\[[^\]\n]{4,40}\d\d:\d\d:\d\d",
    re.MULTILINE,
)
_SENTENCES = re.compile(r"(?<=[.!?])\s+|[。！？；]\s*")
_LINE = 800  # characters of a paragraph
_PROSE = re.compile(
    r"^ {0,3}(?:[A-Za-z一-鿿#*@>`'\"“(✗~-]|\d+[.)] )"
)  # no frame, table, stamp or code block's indent


def sentences(lines: Lines) -> Iterator[tuple[int, str, bool]]:
    """(line, sentence, whether it is the title) of what people wrote, in order."""
    title = True
    fenced = False
    for at, (number, raw) in enumerate(lines):
        line = unquoted(raw)
        if line.startswith("```"):
            fenced = not fenced and line.count("```") == 1
        if fenced or not line.strip():
            continue
        text = clean(line[:_LINE]).text
        # "# OOM at validation", or the first line, alone in its paragraph
        if title and (line.startswith(TITLE) or (at + 1 < len(lines) and not lines[at + 1][1].strip())):
            yield number, text.strip(), True
        elif _PROSE.match(text):
            for sentence in _SENTENCES.split(text.strip()):
                if not only_mentions(sentence):
                    yield number, sentence, False
        title = False


def told_death(lines: Lines, of_change: bool = False) -> tuple[int, str, ToldName] | None:
    """(line, sentence, what it names): the first report in a post. None where nobody reports anything."""
    if sum(bool(raw.strip()) for _, raw in lines) < 2:
        return None  # one sentence is no post
    whole = "\n".join(raw[:_LINE] for _, raw in lines)
    rows = [number for number, raw in lines if _TASK_ROW.search(raw[:400])]
    if len(rows) >= _ROWS and not _KILL_LINE.search(whole):
        return rows[0], "the kernel's list of tasks", TABLE
    if not _KILL_LINE.search(whole) and not _ASKED_FOR.search(whole) and (at := _account(lines)):
        return at, "the kernel's account of its memory", ACCOUNT
    person = _PERSON.search(whole) or _TRACE.search(whole) or _LOG.search(whole)
    silent: tuple[int, str, ToldName] | None = None
    change = of_change or _PULL.search(whole) is not None
    bare: tuple[int, str, ToldName] | None = None
    of_person = _PERSON.search(whole) is not None
    of_system = any(SYSTEM.search(raw[:200]) or _JOURNAL.match(raw[:200]) for _, raw in lines)
    spoken = {number for number, raw in lines if _FIRST_PERSON.search(raw[:_LINE])}
    raw_title = lines[0][1].startswith(TITLE)  # of an issue
    for number, sentence, title in sentences(lines):
        change = change or (title and _CHANGE.search(sentence) is not None)
        if title and _ASKS.search(sentence):
            continue
        happened = title and (_HAPPENED.search(sentence) or raw_title)
        if not (person or happened):
            continue
        if not title and not _HAPPENS.search(sentence):
            continue
        by_person = number in spoken and of_person if not title else of_person or raw_title
        if by_person and not (of_system or change or bare) and _tells_bare(sentence, title):
            name = next(name for name in BARE if name.about is None or name.about.search(whole))
            bare = number, sentence, name
        for name in NAMES:
            match = name.pattern.search(sentence)
            if match and (name.about is None or name.about.search(whole)):
                tells = person or (title and raw_title and (_tells(sentence) or names_a_full_gpu(sentence)))
                if not tells and (cause_of(name.cause).memory or name.kill):
                    break
                if change and (name.kill or cause_of(name.cause).memory or name.cause == "killed-unknown"):
                    break
                if not title and _SUPPOSED.search(f"{sentence[: match.start()]} {sentence[match.end() :]}"):
                    break
                if name.cause == "silent-end":  # unless another sentence says what it was
                    silent = silent or (number, sentence, name)
                elif not name.kill or title or (_OURS.search(sentence) and not _GENERAL.search(sentence)):
                    return number, sentence, name
                break
    return bare or silent


def _account(lines: Lines) -> int:
    """The first line of the kernel's account of its memory; 0 where fewer than four of its parts stand here."""
    found: dict[int, int] = {}
    for number, raw in lines:
        for index, part in enumerate(_ACCOUNTS):
            if ("kernel" in raw or _KERNEL_STAMP.match(raw)) and part.search(raw[:400]):
                found.setdefault(index, number)
    return min(found.values()) if len(found) >= 4 else 0


def names_a_full_gpu(title: str) -> bool:
    """ "CUDA out of memory …": whoever calls a post so has met it (57 of 57 in the labelled sets)."""
    return _FULL_GPU.match(title) is not None


def is_request(title: str) -> bool:
    """A title that wants a change: "Specify that exit code -9 is …", "Clearer log for …"."""
    return _WANTS.match(title) is not None and not _tells(title)


def _tells(title: str) -> bool:
    return _TITLE_TELLS.search(title) is not None and not _TITLE_REQUESTS.search(title)


def _tells_bare(sentence: str, title: bool) -> bool:
    match = _OOM.search(sentence)
    if match is None or (title and not _tells(sentence)):
        return False
    return title or not _SUPPOSED.search(f"{sentence[: match.start()]} {sentence[match.end() :]}")
