"""Texts that explain how things die in place of reporting a death: articles, glossaries, manuals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Each is a way to explain; who explains uses several of them, who reports hardly one
_SIGNS = (
    # it says what it is
    r"\bin this (?:article|post|guide|tutorial|section|lesson|chapter)\b|\bthis (?:article|guide|tutorial|help file|recipe|lesson|page|runbook|playbook) (?:\w+ ){0,2}(?:shows?|explains?|documents?|delves?|dives?|covers?|describes?|will|helps?|walks?|is)"
    r"|\b\d{1,2} min(?:ute)? read\b|\btroubleshooting guide\b|\berror guide\b|^TL;?DR\b|\bfrequently asked\b|\b(?:R )?Documentation \||\btechnical summary\b|\blet(?:['’]s| me| us) (?:get|look|dive|see|walk|break|explore|start|trace)\b|\bhere['’]s (?:how|what|why) (?:to|you)?|\b(?:you['’]?ll|you will|what you) (?:will )?learn\b|\bwe['’]?(?:ll| will) (?:look|see|explore|cover|walk|dive|break|learn)\b",
    # what words mean
    r"\b(?:is|are) (?:referred to as|called an?|essentially|simply) |\bstands for\b|\b(?:means|indicates?|signif(?:y|ies)|tells you|signals) (?:that |the |your |a |an |it )|\b\d{3} = \d{3} ?\+|\b\d{3} (?:is|means) \d{3} ?\+|\bwhat (?:is|are|does|do) [^?\n]{2,80}\??$|^what (?:it|this|that) (?:is|means)\b|\b(?:is|are) when an? ",
    # the headings of lessons
    r"^\W{0,6}(?:\d{1,2}[.)] )?(?:introduction|overview|symptoms?(?: (?:&|and) .{0,20})?|(?:common|likely|possible|potential|typical|root|most common) (?:causes?|symptoms|reasons|fixes|errors)\b(?! \(first).{0,30}|causes?(?: (?:and|&|→) .{0,20})?|step[ -]by[ -]step\b.{0,20}|step (?:\d|one|two|three)\b(?!.{0,60}\d\.\d).{0,60}"
    r"|quick ?(?:start|fix)\b.{0,30}|prevention|how (?:it|to|does|do) .{0,60}|why (?:this|does|do|is|it) .{0,60}|understanding .{0,80}|diagnos(?:ing|e|is)\b.{0,60}|conclusion|key takeaways|explanation|analogy|best practices.{0,30}|example errors?|exact error message|problem description|the (?:error|problem|fix|solution)|recommended (?:diagnosis|fix|solution)|solutions?|troubleshooting\b.{0,80}|what (?:it|this|does|is) .{0,60}|confirm\w* .{0,40}|(?:identifying|interpreting|analy[sz]ing|monitoring|preventing|reading|detecting|resolving|configuring) .{0,80}|key (?:components|fields|concepts|points|metrics) .{0,60}|sample (?:logs?|output)|field \| description.{0,20}|.{0,40}\bexplained:?)\W{0,3}$",
    # whoever reads it
    r"\byour (?:own )?(?:job|process|program|container|pod|code|model|data|dataset|server|machine|application|app|script|system|training|GPU|GPUs|kernel|cluster|node|notebook|workload|RAM|memory|application|production|database)(?:['’]s)?\b|\byou (?:can|may|might|will|should|need|see|have|set|are|run|use|call|train|load|must|probably|specify|try|could)\b|\byou['’](?:re|ve|ll|d)\b",
    # what is so in general
    r"(?<!^)\b(?:typically|usually|commonly|most (?:often|commonly|likely)|almost always|in most cases|generally|often|frequently|sometimes)\b|\b(?:may|might|can) (?:be|also|cause|lead|result|happen|occur|appear|see|still|stem)\b|\bfew (?:errors|things) are\b|\bcommon (?:problem|issue|error|cause|reason)\b",
    # any process, any day
    r"\b(?:when|if|whenever|once) (?:an?|any|the|your|every) (?:\w+[ -]){0,2}(?:process|program|container|job|server|system|pod|kernel|script|user|application|host|machine|node|GPU|model|assertion|Linux)\b|\bif you(?:['’]re| are| see| have| want| get| set)?\b|\b(?:kills?|terminates?|picks?|chooses?|selects?) (?:the|a|one or more) (?:\w+ ){0,2}process(?:es)?\b|\bprocesses that\b",
)  # fmt: skip
# enough by itself
_NAMES_ITSELF = re.compile(r"(?i)\b(?:in )?this (?:article|guide|tutorial|lesson|chapter|runbook|playbook)\b")
_ASKED_OFTEN = re.compile(
    r"(?i)\W{0,4}(?:frequently asked questions?|faqs?|常见问题(?:解答)?)\b[^.!?\n]{0,40}$"
)
_QUESTION = re.compile(r"\W{0,4}Q\d{0,3}[:.)] \S")
_EXPLAINS = tuple(re.compile(f"(?i){sign}") for sign in _SIGNS)
# Whoever says "I" or "my" reports; so does who is answered, and who fills in a form
_REPORTS = re.compile(
    r"\b(?:I|I'm|I’m|I've|I’ve|I'd|[Mm]y)\b(?![-_.:/=(\w])"
    r"|^\S{1,40} commented\b|· (?:comment|description) ·|^\W{0,6}(?i:steps to reproduce|to reproduce|expected behaviou?r|actual behaviou?r|describe the bug|what happened|system info|environment info|current behaviou?r|your environment)\b"
    r"|(?i:\b(?:any help|any ideas?|please help|help me|has anyone|does anyone|same (?:issue|problem|error) here|me too|thanks? (?:in advance|for))\b)"
)
_AUTHOR = re.compile(r"\bI (?:refer|recommend|suggest|prefer|like to|call|wrote|'ll show|will show|['’]ll)\b")
_LOG_LINE = re.compile(
    r"^\W{0,2}\d{4}-\d\d-\d\d[ T]\d\d:\d\d|\d%\||^\w{3} [ \d]\d \d\d:\d\d:\d\d \S|^<?\d{0,2}>?\[ *\d+\.\d+\]|^\[[^\]\n]{4,40}\d\d:\d\d:\d\d|^\s+File \"[^\"\n]{1,400}\", line \d"
)
# A program explains its own warnings, too
_PROGRAM = re.compile(
    r"^\s*(?:\[|\(|<|W\d{4}|[EIWF]\d{4} |(?:\w+\.){0,6}\w*(?:Error|Exception|Warning)\b|(?i:warning|error|info|note)\b)"
)
_LINE = 1200
_SAYS_SO, _HEADINGS, _LESSONS = 0, 2, 3  # places in the table above; what only lessons have comes first
_WAYS = 3  # ways to explain; who says so, or writes two headings, counts twice
_TIMES = 4  # or so often, each way three times at most
_PROSE = 4  # times as much of it as of a log


def explains(lines: Iterable[tuple[int, str]]) -> bool:
    """``lines`` of a whole text."""
    told = [raw[:_LINE] for _, raw in lines if raw.strip()]
    if told and (_ASKED_OFTEN.match(told[0]) or sum(map(bool, map(_QUESTION.match, told))) > 1):
        return True  # its questions say "my"
    # a program that explains its error says so again in each run
    prose = [line for line in dict.fromkeys(told) if not _PROGRAM.match(line)]
    found = [sum(1 for line in prose if sign.search(line)) for sign in _EXPLAINS]
    if not any(map(_NAMES_ITSELF.search, prose)) and not _enough(found):
        return False
    if any(_REPORTS.search(_AUTHOR.sub("", line)) for line in told):
        return False
    return sum(1 for line in told if _LOG_LINE.search(line)) * _PROSE <= len(told)


def _enough(found: Sequence[int]) -> bool:
    """``found``: lines with each sign. A program's warnings, too, say "you" and "usually"."""
    ways = sum(map(bool, found)) + (found[_HEADINGS] > 1) + (found[_SAYS_SO] > 0)
    return any(found[:_LESSONS]) and (ways >= _WAYS or sum(min(count, 3) for count in found) >= _TIMES)
