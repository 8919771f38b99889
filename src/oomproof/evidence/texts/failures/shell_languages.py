"""A shell's word on how a process ended, in the languages it speaks, put into English."""

from __future__ import annotations

import re

# glibc's translations of strsignal, as bash prints them. A word that its language also uses for an ordinary end
# ("Abandon", "中止") counts only behind a pid or before a core dump; "Beendet", "Terminado", "Complété" never do.
_PLAIN = {
    "已杀死": "Killed", "段错误": "Segmentation fault", "总线错误": "Bus error", "已砍掉": "Killed",
    "程式記憶體區段錯誤": "Segmentation fault", "記憶體區段錯誤": "Segmentation fault", "匯流排錯誤": "Bus error",
    "強制終了": "Killed", "セグメンテーション違反です": "Segmentation fault", "セグメンテーションフォルト": "Segmentation fault",
    "バスエラー": "Bus error", "죽었음": "Killed", "세그멘테이션 오류": "Segmentation fault", "세그먼트 오류": "Segmentation fault",
    "세그멘테이션 결함": "Segmentation fault", "버스 오류": "Bus error",
    "Getötet": "Killed", "Speicherzugriffsfehler": "Segmentation fault", "Bus-Zugriffsfehler": "Bus error",
    "Processus arrêté": "Killed", "Tué": "Killed", "Erreur de segmentation": "Segmentation fault", "Erreur de bus": "Bus error",
    "Erreur du bus": "Bus error", "Terminado (killed)": "Killed", "Violación de segmento": "Segmentation fault",
    "Error en el bus": "Bus error", "Ucciso": "Killed", "Errore di segmentazione": "Segmentation fault", "Errore di bus": "Bus error",
    "Morto": "Killed", "Falha de segmentação": "Segmentation fault", "Erro de barramento": "Bus error",
    "Убито": "Killed", "Вбито": "Killed", "Ошибка сегментирования": "Segmentation fault", "Помилка адресування": "Segmentation fault",
    "Ошибка шины": "Bus error", "Unicestwiony": "Killed", "Naruszenie ochrony pamięci": "Segmentation fault",
    "Süreç durduruldu": "Killed", "Parçalama arızası": "Segmentation fault", "Dödad": "Killed", "Segmenteringsfel": "Segmentation fault",
    "Geëlimineerd": "Killed", "Segmentatiefout": "Segmentation fault",
}  # fmt: skip
_DOUBTFUL = {
    "已放弃": "Aborted", "已中止": "Aborted", "中止": "Aborted", "已终止": "Terminated", "放棄": "Aborted", "アボートしました": "Aborted",
    "중지됨": "Aborted", "중단됨": "Aborted", "종료됨": "Terminated", "Abgebrochen": "Aborted", "Abandon": "Aborted", "Abortado": "Aborted",
    "Annullato": "Aborted", "Аварийный останов": "Aborted", "Аварийное завершение": "Aborted", "Przerwane": "Aborted",
}  # fmt: skip
_WORDS = _PLAIN | _DOUBTFUL
# "./run.sh: 行 5: 1234 已杀死", "run.sh: ligne 5 : 1234 Tué", "[1]+  1234 Убито"
_LINE = r"(?:line|行|第|列|줄|Zeile|ligne|línea|linha|riga|строка|рядок|regel|rad|linia|satır) ?\d{1,6}(?: ?[行列줄])? ?[:：]\s+"
_SAID = re.compile(
    rf"^(?P<head>\S{{1,200}}\s?[:：] ?(?={_LINE}))?(?:{_LINE})?(?P<job>\[\d+\]\s*[-+]?\s+)?(?P<pid>\d{{2,9}} )?"
    rf"(?P<word>{'|'.join(map(re.escape, sorted(_WORDS, key=len, reverse=True)))})"
    r"(?P<dump> ?[(（][^()（）]{2,40}[)）])?(?P<rest>\s.{0,3500}|)$"
)

# Strings one of which stands in every such line, so that other lines cost little. Those beyond ASCII are looked
# for only in lines beyond ASCII.
FOREIGN = tuple(word for word in _WORDS if not word.isascii())
PLAIN = ("Speicher", "Erreur d", "Errore di ", "Ucciso", "Morto", "Unicestwiony", "Segmentatiefout", "Segmenteringsfel",
         "Terminado (killed)", "core dump")  # fmt: skip
_BEYOND_ASCII = (*PLAIN, *FOREIGN)


def in_english(text: str) -> str:
    """The line as an English shell prints it; unchanged where it is no shell's word."""
    anchors = PLAIN if text.isascii() else _BEYOND_ASCII
    said = _SAID.match(text) if any(anchor in text for anchor in anchors) else None
    if said is None:
        return text
    marked = said["pid"] or said["dump"]
    if said["word"] in _DOUBTFUL and not marked:
        return text
    before = f"{said['head'].rstrip(' :：')}: line 1: " if said["head"] and said["pid"] else said["job"] or ""
    dump = " (core dumped)" if said["dump"] else ""
    return f"{before}{said['pid'] or ''}{_WORDS[said['word']]}{dump}{said['rest']}"
