"""Lines of text with a style for each part: drawn in colour by the screen, as they are by `top -1`."""

from __future__ import annotations

from oomproof.printable import PLAIN, one_line

Part = tuple[str, str]  # text, and what it stands for: a key of STYLES or empty
Line = list[Part]

# what a part stands for → how a terminal shows it; nothing is told by colour alone
STYLES = {
    "": "",
    "title": "bold",
    "dim": "bright_black",
    "runs": "green",
    "unmanaged": "bright_black",
    "reserved": "cyan",
    "free": "bright_black",
    "mark": "bold yellow",
    "warn": "yellow",
    "bad": "bold red",
    "selected": "reverse",
    "limit": "red",
    "card": "magenta",
}


def plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


def length(line: Line) -> int:
    return sum(len(text) for text, _ in line)


def fitted(line: Line, width: int) -> Line:
    """Printable, on one line, and no longer than that."""
    parts: Line = []
    left = width
    for text, style in line:
        text = one_line(text)
        if len(text) > left:
            parts.append((text[: max(0, left - 1)] + "…" if left > 0 else "", style))
            return parts
        parts.append((text, style))
        left -= len(text)
    return parts


def as_ascii(text: str) -> str:
    """For a terminal or pipe that takes no more."""
    return text.translate(PLAIN).encode("ascii", "replace").decode()
