"""A crash page read back: its figures by the places where they stand, as a reader sees them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from typing import Any


def plain(markup: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", markup)).strip()


@dataclass(frozen=True)
class Page:
    markup: str

    @property
    def sentence(self) -> str:
        return plain(self._one(r"<h1>(.*?)</h1>"))

    @property
    def title(self) -> str:
        return plain(self._one(r"<title>(.*?)</title>"))

    @property
    def pairs(self) -> dict[str, str]:
        """Why, next and the facts in the head."""
        found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", self.markup, re.S)
        return {plain(name): plain(value) for name, value in found}

    @property
    def badge(self) -> str:
        return plain(self._one(r'<span class="badge">(.*?)</span>'))

    @property
    def probability(self) -> str:
        return plain(self._one(r'</span> <span class="note">(.*?)</span>|<p><span class="note">(.*?)</span>'))

    def section(self, title: str) -> str:
        return self._one(rf"<section[^>]*><h2>{title}</h2>(.*?)</section>")

    def rows(self, title: str) -> list[list[str]]:
        """Of the section's tables, without their heads."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.section(title), re.S)
        cells = [[plain(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)] for row in rows]
        return [row for row in cells if row]

    def items(self, title: str) -> list[str]:
        """Of the section's lists; of one item its parts stand apart."""
        items = re.findall(r"<li>(.*?)</li>", self.section(title), re.S)
        return [plain(re.sub(r"</div>|<div|<span class=\"basis\"", r"\n\g<0>", item)) for item in items]

    @property
    def samples(self) -> dict[str, Any]:
        found = self._one(r'<script type="application/json" id="samples">(.*?)</script>')
        return dict(json.loads(found)) if found else {}

    @property
    def chart(self) -> str:
        return self._one(r'<figure id="chart"(.*?)</figure>')

    def _one(self, pattern: str) -> str:
        found = re.search(pattern, self.markup, re.S)
        return next((group for group in found.groups() if group is not None), "") if found else ""
