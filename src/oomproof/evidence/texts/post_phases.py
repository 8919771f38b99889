"""When it died, in the words of the person who tells of it: "only when validation starts", "while saving the model"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from oomproof.evidence.texts import phases
from oomproof.evidence.texts.post_deaths import Lines, sentences


class ToldPhase(NamedTuple):
    """``words`` name what was being done, after "when", "I try to", "OOM in"; ``idioms`` tell it by themselves."""

    phase: str
    words: str
    idioms: re.Pattern[str]
    example: str


# "training set", "test data": what is used, not what is done
_THING = r"(?![ -]?(?:sets?|splits?|data|datasets?|size|loss|samples?|scripts? of)\b)(?!\.(?:sh|py|ipynb)\b|[_/-]\w)"
# Where several fit, the part of a training wins over the training
WHEN = (
    ToldPhase("save", r"(?:saving|save[sd]?(?! as\b| (?:\w+ )?(?:memory|v?ram|space|time))|dumping|writing (?:the |a )?checkpoint|checkpointing|exporting)", re.compile(
        r"(?ai)\b(?:not|cannot|can't|(?:how|unable|fails?|failed|trying|try) to) save\b|\b(?:model|trainer)\.save\w*\b|\bsave_(?:pretrained|checkpoint|model|state)\b|保存"),
        "Every time I train a model it crashes when saving the checkpoint"),
    ToldPhase("eval", rf"(?:(?:predict(?:ing|ions?|s)?|(?<!cross )(?<!cross-)validat(?:ion|ing|e|es)|evaluat(?:ion|ing|e|es|ed)|evalu?ation|evalution|testing|inferenc(?:e|ing)|infer|inferring|compute_metrics|computing (?:the )?(?:\w+ )?(?:metrics?|scores?)|(?:test|eval|val)(?: time| phase| step| set|ing)?){_THING})", re.compile(
        r"(?ai)\bto the (?:\w+ )?(?:validation|evaluation)\b|\btrainer\.(?:evaluate|predict|test|validate)\b|\b(?:during|before|after|running) (?:the )?sanity check|\btraining (?:\w+ ){1,3}(?:validation|evaluation)\b|(?<![a-z])(?:eval(?:uate|uation)?|predict|test)(?:失败|报错|时)|验证|评估|测试|推理"),
        "first 5 epochs finish, but when the validation step kicks in, I get the exception"),
    ToldPhase("generate", r"(?:generating|generation|generates?|(?:unconditional )?sampling|decod(?:e|ing)|synthesi[sz]ing)", re.compile(
        r"(?ai)\bgeneration (?:runs?|image)\b|\b(?:txt|text|img|image)2(?:img|image|video)|\bgenerate(?:_\w{1,20}|\()|`generate`|\bVAE ?Decode\b|\bKSampler\b"),
        "I get this error while generating an image of 1024x1024"),
    ToldPhase("load", r"(?:load(?:ing|s)?|pre-?process(?:ing)?|tokeni[sz](?:e|ing|ation)|reading|building|downloading|partitioning|instantiat(?:e|ion|ing)|initiali[sz](?:e|ing|ation)|start-?up|import(?:ing)?|convert(?:ing)?)", re.compile(
        r"(?ai)\b(?:doesn't|does not|can't|cannot|fails to|failed to|unable to|won't) load\b|\bbefore (?:the )?(?:first )?(?:training|epoch)\b|\b(?:while|when|during) (?:\w+ )?(?:creat|encod|cach|index)ing (?:\w+ )?(?:\w*dataset|data|corpus|vocab\w*|features|index)|\b(?:at )?a point pre-training\b|加载|预处理"),
        "it runs out of memory while loading the checkpoint"),
    ToldPhase("train", rf"(?:(?:train(?:ing)?|fine-?tun(?:e|ing)|back-?prop\w*|epochs? \d+|\d{{1,4}}(?:st|nd|rd|th) epoch|(?:first|second|last) epoch|re-?training|pre-?training|learning){_THING})", re.compile(
        r"(?ai)\bto (?:the )?(?:\w+ )?epoch\b|\b(?:hours?|days?|minutes?) of training\b|\btraining loss\b|\bloss\.backward\b|\btrainer\.(?:train|fit)\b|\bfit(?:_\w{1,20})?\(|\bfit (?:method|function)\b|\btraining mode\b|\d ?% of (?:the )?training\b|\bcompare_models\b|\bI(?:'m| am| was) training\b|\bwhen(?:ever)? (?:I|we|you) (?:\w+ )?train(?:ed)?\b(?!\.\w)|\bI train\b.{0,60}\bbut I (?:meet|met|get|got)\b"
        r"|\bback-?propagat\w+|\btraining process\b|\b(?:the|my|a) training code\b|\b(?:after|for|about|first|exceeds?|around|than) (?:about |the first |\w+ing )?(?:\d+k?|some|several|multiple|few|a few) ?(?:successful )?(?:epochs?|iters?|iterations?|steps?|batch(?:es)?)\b|\bafter (?:the )?(?:initial|first|second|last|each|every|\d+) epochs?\b"
        r"|\bworker\.train\b|\bafter training for\b|\d ?(?:steps?|epochs?|iters?|iterations?|步|轮)(?:之?后|时)|\b(?:required|needed|enough|requirements?|consumption|usage|memory|GPUs?) (?:to|for|of|in) (?:the )?(?:pre-?)?train(?:ing)?\b|训练"),
        "when the code runs to epoch 2, loss.backward() shows the error"),
)  # fmt: skip
_SOME = r"(?:[\w.'’`-]{1,16}[ `]{1,2}){0,4}?`?"
_WRONG = r"(?:out of memory|OOM\w*|errors?|\w{2,12}Error|killed|crash\w*|fail\w*|memory|stuck|hangs?|faults?|segfaults?|nan|problems?|issues?|questions?|troubles?|exception)"
_NAMED = "|".join(f"(?P<{when.phase}>{when.words})" for when in WHEN)
_CONTEXTS = (  # in the order of what they tell
    rf"\b(?:when(?:ever)?|while|durr?ing|at|in|on|upon|once|as soon as|the moment)\b[ `'\"]{_SOME}(?:{_NAMED})\b",
    rf"\b(?:run(?:ning)?|ran|do(?:ing)?|did|try(?:ing)?|tried|want(?:ed)?|attempt(?:ing|ed)?|start(?:ed|ing|s)?|perform(?:ing)?|execut(?:e|ing)|cannot|can't|cant|can not|unable)\b {_SOME}(?:{_NAMED})\b",
    rf"\b{_WRONG}\b (?:[\w.'’`-]{{1,16}} ){{0,2}}?(?:for|with|of|from|by) {_SOME}(?:{_NAMED})\b",
    rf"\b{_WRONG} (?:{_NAMED})\b",
    rf"\b(?:{_NAMED})\b`? {_SOME}(?:out of memory|OOM|errors?|killed|crash\w*|fail\w*|stuck|hang\w*|freezes|stop(?:s|ped)|quit\w*|die[sd]|segfault\w*|broken?|runs? out|ran out|terminat\w*|abort\w*)\b",
)
_CONTEXT = tuple(re.compile(f"(?ai){context}") for context in _CONTEXTS)
_DOING = _CONTEXT[1]
_SELF = re.compile(
    rf"(?ai)\b(?:I|we)(?:'m| am| was| are| were) (?:\w+ )?(?:{_NAMED})\b"
)  # beside a sentence of trouble
_TROUBLE = re.compile(
    r"(?ai)\b(?:errors?|\w+Errors?|problems?|issues?|crash\w*|OOM|memory|killed|faults?|exception|fails?|failed|dies|died|stuck|hangs?|stops|freezes|quit|broken?|no space|r[au]n(?:s|ning)? out|nan|timeout|generate|txt2img|img2img|bad_alloc|I (?:get|got|met|see|saw) (?:this|it|the following))\b|^\W*(?:\w{1,12},?\s{1,3})?(?:when|while|during) |报错|错误|杀死|killed|OOM|存储空间|发生|出现|问题|不了|无法|失败|不行"
)
_CLAUSES = re.compile(r"(?ai)(?:[,;]\s*|\s)(?:but|however|although|though|whereas|yet)\b|;")
_WORKS = re.compile(
    r"(?ai)\b(?:fine|well|ok|okay|normal|normally|works?|worked|successful\w*|no (?:problem|issue|error)s?|without (?:any )?(?:problem|issue|error)s?)\b"
)
_SCRIPT = re.compile(r"(?<![\w.])[\w./-]{1,80}\.(?:py|sh|ipynb)\b")
_AFTER = 6  # lines below the failure that still speak of it
_BELOW_A_TITLE = 10  # lines, where the title alone names it


def phase_told(lines: Lines, failed_at: int) -> str:
    """The phase that the title and the sentences up to a failure put it in; "" where they tell none, or two."""
    told: set[str] = set()
    scripts: set[str] = set()
    until = failed_at + (_BELOW_A_TITLE if failed_at == lines[0][0] else _AFTER)
    before = ""
    spoken = list(sentences(lines))
    troubled = {number for number, sentence, _ in spoken if _TROUBLE.search(sentence)}
    for number, sentence, title in spoken:
        if number > until:
            break
        trouble = title or _TROUBLE.search(sentence)
        if trouble and not title:  # "I want to test one image. I get this error:"
            told |= set(_told_by(_DOING, before))
        elif number in troubled:
            told |= set(_told_by(_SELF, sentence))
        before = sentence if not title else ""
        if trouble:
            for clause in _CLAUSES.split(sentence):
                if not _WORKS.search(clause):
                    told |= set(_told_in(clause))
                    scripts |= {phases.of_script(name) for name in _SCRIPT.findall(clause)} - {"unknown"}
    # train.py also loads and evaluates: its name alone tells nothing
    parts = told - {"train"} or told or scripts - {"train"}
    if parts == {"eval", "generate"}:
        return "generate"  # an inference that generates
    return parts.pop() if len(parts) == 1 else ""


def _told_in(clause: str) -> Iterator[str]:
    for when in WHEN:
        if when.idioms.search(clause):
            yield when.phase
    for context in _CONTEXT:
        yield from _told_by(context, clause)


def _told_by(context: re.Pattern[str], clause: str) -> Iterator[str]:
    return (match.lastgroup or "" for match in context.finditer(clause))
