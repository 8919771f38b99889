"""When it died, in the words of the person who tells of it: "only when validation starts", "while saving the model"."""

from __future__ import annotations

import re
from typing import NamedTuple

from oomproof.evidence.texts.post_deaths import Lines, sentences


class ToldPhase(NamedTuple):
    phase: str
    pattern: re.Pattern[str]
    example: str


_AT = r"\b(?:when(?:ever)?|while|during|at|in|on|upon|once|as soon as|before|the moment)\b[ `'\"](?:[\w.'`-]{1,16}[ `]{1,2}){0,4}?`?"
_WORKS = r"(?![^.!?\n]{0,30}\b(?:fine|well|ok|okay|normal|normally|works?)\b)"
# Where several fit, the part of a training wins over the training
WHEN = (
    ToldPhase("save", re.compile(
        rf"(?i){_AT}(?:saving|save[sd]?|dumping|writing (?:the |a )?checkpoint|checkpointing)\b|\b(?:not|cannot|can't|(?:how|unable|fails?|failed|trying|try) to) save\b|\b(?:model|trainer)\.save\w*\b|\bsave_(?:pretrained|checkpoint|model|state)\b|保存"),
        "Every time I train a model it crashes when saving the checkpoint"),
    ToldPhase("eval", re.compile(
        rf"(?i){_AT}(?:predict(?:ing|ion|s)?|validat(?:ion|ing|e|es)|evaluat(?:ion|ing|e|es)|testing|compute_metrics|computing (?:the )?(?:\w+ )?(?:metrics?|scores?)|(?:test|eval|val)(?: time| phase| step| set|ing)?)\b(?!\.sh){_WORKS}|\bto the (?:\w+ )?(?:validation|evaluation)\b|\btrainer\.(?:evaluate|predict|test|validate)\b|(?<![a-z])(?:eval(?:uate|uation)?|predict|test)(?:失败|报错|时)|验证|评估"),
        "first 5 epochs finish, but when the validation step kicks in, I get the exception"),
    ToldPhase("generate", re.compile(
        rf"(?i){_AT}(?:generating|generation|generates?|(?:unconditional )?sampling|decoding)\b|\bgeneration (?:runs?|image)\b|\b(?:txt|text|img)2img\b|\b(?:can ?not|can't|cant|trying to|tried to|try to|unable to) generate\b|\bgenerate(?:_\w{{1,20}}|\(\))|`generate`"),
        "I get this error while generating an image of 1024x1024"),
    ToldPhase("load", re.compile(
        rf"(?i){_AT}(?:load(?:ing|s)?|pre-?process(?:ing)?|tokeni[sz](?:ing|ation)|reading|building|downloading|instantiat(?:ion|ing)|initiali[sz](?:ing|ation)|start-?up|import(?:ing)?|convert(?:ing)?)\b"
        r"|\b(?:loading|importing|reading|preprocessing) .{0,40}(?:gets? killed|fails|crashes|is killed|killed)|\b(?:doesn't|does not|can't|cannot|fails to|failed to|unable to|won't) load\b|\bbefore (?:the )?(?:first )?(?:training|epoch)\b|\b(?:at )?a point pre-training\b|加载|预处理"),
        "it runs out of memory while loading the checkpoint"),
    ToldPhase("train", re.compile(
        rf"(?i){_AT}(?<!resuming )(?<!resume )(?<!resume the )(?<!resuming the )(?<!before )(?<!before the )(?:train(?:ing)?|fine-?tun(?:e|ing)|back-?prop\w*|epochs? \d+|\d{{1,4}}(?:st|nd|rd|th) epoch|re-?training)\b(?!\.py|\.sh|_|-){_WORKS}|\bto (?:the )?(?:\w+ )?epoch\b|^(?:the )?train(?:ing)? (?:process |code |script )?(?:gets |get |is |was )?(?:killed|freezes|stuck|hangs)\b|\btrain(?:ing)? (?:\w+ ){{0,5}}(?:gets?|is|was|fails?) .{{0,2}}(?:killed|fails?|after)\b|\btrain(?:ing)?\b[^.!?\n]{{0,30}}\bgets? .?killed|\btrain(?:ing)? fails?\b|\bafter (?:the )?(?:initial|first|second|last) epoch\b|\b(?:hours?|days?|minutes?) of training\b|\btraining (?:loss|stops?|stopped|crash\w*|fails?|failed|died|dies|hangs?|has died|is killed|was killed)\b"
        r"|\bloss\.backward\b|\btrainer\.(?:train|fit)\b|\bI(?:'m| am| was) (?:trying to )?train(?:ing)?\b|\bI try to train\b|\bI train\b.{0,60}\bbut I (?:meet|met|get|got)\b|\bback-?propagat\w+|\btraining process\b|\bduring (?:the |my )?(?:training|learning)\b|\b(?:the|my|a) training code\b|\b(?:after|for|about|first|exceeds?|around|than) (?:about |the first |\w+ing )?(?:\d+k?|some|several|multiple|few|a few) ?(?:successful )?(?:epochs?|iters?|iterations?|steps?|batch(?:es)?)\b|\bworker\.train\b|\b(?:required|needed|enough|requirements?|consumption|usage|memory|GPUs?) (?:to|for|of|in) (?:the )?(?:pre-?)?train(?:ing)?\b|训练"),
        "when the code runs to epoch 2, loss.backward() shows the error"),
)  # fmt: skip
_TROUBLE = re.compile(
    r"(?i)\b(?:errors?|\w+Errors?|problems?|issues?|crash\w*|OOM|memory|killed|faults?|exception|fails?|failed|dies|died|stuck|hangs?|stops|quit|no space|nan|timeout|generate|txt2img|img2img)\b|报错|错误|杀死|killed|OOM|存储空间|发生|出现|问题"
)
_AFTER = 3  # lines below the failure that still speak of it
_BELOW_A_TITLE = 10  # lines, where the title alone names it


def phase_told(lines: Lines, failed_at: int) -> str:
    """The phase that the title and the sentences up to a failure put it in; "" where they tell none, or two."""
    told: set[str] = set()
    until = failed_at + (_BELOW_A_TITLE if failed_at == lines[0][0] else _AFTER)
    for number, sentence, title in sentences(lines):
        if number > until:
            break
        if title or _TROUBLE.search(sentence):
            told |= {when.phase for when in WHEN if when.pattern.search(sentence)}
    parts = told - {"train"} or told
    return parts.pop() if len(parts) == 1 else ""
