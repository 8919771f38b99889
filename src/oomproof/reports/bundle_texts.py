"""Reads a text for the bundle: unpacked, in bounded memory, the middle cut out when it is too long."""

from __future__ import annotations

from pathlib import Path

from oomproof.evidence.texts.text_stream import Stream
from oomproof.units import format_size


def read_capped(path: Path, cap: int) -> tuple[str, str | None]:
    """(the text, what was cut or could not be read). Raises OomproofError for what is no text.

    Cuts fall between lines: half a token would no longer look like one, and would pass the redaction."""
    stream = Stream(str(path))
    head_size, tail_size = cap // 4, cap - cap // 4
    head, tail, total = bytearray(), bytearray(), 0
    for block in stream.blocks():
        total += len(block)
        space = head_size - len(head)
        head += block[:space] if space > 0 else b""
        tail += block[max(0, space) :]
        if len(tail) > 2 * tail_size + (1 << 20):
            del tail[: len(tail) - tail_size]
    notes = list(stream.notes)
    encoding = _encoding(bytes(head[:4096]))
    if total <= cap:
        return _decoded(bytes(head + tail), encoding), "; ".join(notes) or None
    last = bytes(tail[-tail_size:])
    if encoding != "utf-8" and (total - len(last)) % 2:
        last = last[1:]  # UTF-16's pairs stay together
    first_text, last_text = _decoded(bytes(head), encoding), _decoded(last, encoding)
    first_text = first_text[: max(first_text.rfind(end) for end in "\n\r") + 1]
    begin = min((at for end in "\n\r" if (at := last_text.find(end)) >= 0), default=len(last_text))
    words = f"about {format_size(total - cap)} of {format_size(total)}"
    notes.append(f"{words} cut out of the middle")
    return f"{first_text}\n[… oomproof cut {words} here …]\n{last_text[begin + 1 :]}", "; ".join(notes)


def _encoding(first: bytes) -> str:
    if first.startswith(b"\xff\xfe"):
        return "utf-16-le"
    return "utf-16-be" if first.startswith(b"\xfe\xff") else "utf-8"


def _decoded(data: bytes, encoding: str) -> str:
    """As UTF-8; what is none of it is Latin-1, but for a character cut at either end."""
    if encoding != "utf-8":
        return data.decode(encoding, "replace").removeprefix("\ufeff")
    text = data.replace(b"\0", b"").decode("utf-8", "replace")
    return text if text.count("\ufffd") <= 4 else data.replace(b"\0", b"").decode("latin-1")
