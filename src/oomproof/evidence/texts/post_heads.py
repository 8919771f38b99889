"""What a page puts around a post's title: where it stands, its state, its labels, who asked when. And whether it is a change."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from oomproof.evidence.texts.post_deaths import TITLE, is_request
from oomproof.evidence.texts.prose_parts import is_spoken

Line = tuple[int, str]

# "owner/name · issue #12 · open", "Issue #12", "Skip to content", an address: above a title
_PLACE = re.compile(
    r"[\w.-]{1,80}/[\w.-]{1,80} (?:·|\||-|—) (?:issue|pull request|discussion)\b.{0,80}$|(?:issue|pull request|PR|discussion|question|ticket|bug) #?\d+\b.{0,60}$"
    r"|skip to (?:main )?content$|https?://\S{4,400}$|(?:from|to|cc|date|sent|message-id|reply-to|list|newsgroups): \S.{0,200}$",
    re.IGNORECASE,
)
# … and what only counts beside such a line
_BESIDE = re.compile(
    r"(?:labels?|tags?|assignees|milestone|status|state|author|by): ?.{0,200}$|(?:open|opened|closed|merged|solved|answered)$", re.IGNORECASE
)  # fmt: skip
# Below a title
_ASKED = re.compile(
    r"asked .{1,40}(?: ago|today|yesterday|\d{4})$|modified .{1,40}(?: ago|today|yesterday)$|viewed [\d.,]+[km]? times?$|(?:open|closed|merged)$"
    r"|\S{1,40} opened (?:this issue )?(?:on )?.{1,40}$|\[turn \d+ by [^\]\n]{1,80}\]$",
    re.IGNORECASE,
)
_SUBJECT = re.compile(r"(?:title|subject): (?=\S)", re.IGNORECASE)
_ABOVE, _BELOW = 12, 6  # lines
_LINE = 1000  # characters
# Somebody changes a program: what its title names is what the change is about
_CHANGE = re.compile(
    r"· (?:pull request #|review(?: thread)? ·)|^(?:pull request|PR) #?\d|^Signed-off-by: \S|^diff --git |^(?:Fixes|Closes|Resolves):? (?:#\d|https?://)|\A# [^\n]{4,180} \(#\d{1,7}\)$"
    r"|^#{0,4} ?\W{0,3}(?:what (?:does )?this (?:PR|pull request|patch|MR)\b|why are these changes needed|how (?:was|has) this (?:been )?tested|type of change\b|changes made\b|test plan\b)",
    re.IGNORECASE | re.MULTILINE,
)


def split_head(lines: Sequence[Line]) -> tuple[tuple[str, ...], list[Line]]:
    """What a page prints above a post's title, and the post, which then begins with it. Of a log nothing is above."""
    head: list[str] = []
    placed = False
    for _, raw in lines[:_ABOVE]:
        text = raw.strip()
        if text and not _PLACE.match(text) and not (placed and _BESIDE.match(text)):
            break
        placed = placed or bool(text)
        head.append(text)
    if not placed:
        head.clear()
    rest = list(lines[len(head) :])
    if rest and (subject := _SUBJECT.match(rest[0][1])):
        rest[0] = (rest[0][0], f"{TITLE}{rest[0][1][subject.end() :]}")
    for index in range(1, min(_BELOW, len(rest))):
        number, raw = rest[index]
        if raw.strip() and not _ASKED.match(raw.strip()):
            break
        rest[index] = (number, "")
    return tuple(filter(None, head)), rest


# "fix(x): …", "Fix the …", "Refine error message of …"
_CONVENTIONAL = re.compile(
    r"(?i)# (?:\[[^\]\n]{1,40}\]:? ?){0,3}(?:feat|fix|docs?|chore|refactor|tests?|perf|build|ci|style|revert)(?:\([^()\n]{1,40}\))?!?: \S|# (?:\[[^\]\n]{1,40}\]:? ?){0,3}(?:fix(?:e[sd])?|refine|clarify|document|refactor|bump|revert|backport|reword) (?!me\b|this\b|it\b|please\b)\w"
)


def is_change(head: Iterable[str], lines: Collection[Line]) -> bool:
    """A change that is proposed or under review, by its page's head or by what reviews look like."""
    title = next(iter(lines), (0, ""))[1]
    text = "\n".join((*head, *(raw[:200] for _, raw in lines)))
    return _CONVENTIONAL.match(title[:200]) is not None or _CHANGE.search(text) is not None


def spoken_lines(lines: Iterable[Line]) -> set[int]:
    """Of a change: its title and what people say of it, which names deaths without having one."""
    return {number for number, raw in lines if raw.startswith(TITLE) or is_spoken(raw[:_LINE])}


def asks(title: str) -> bool:
    """A title that wants something changed, and reports nothing."""
    return title.startswith(TITLE) and is_request(title[len(TITLE) :])
