"""`oomproof top` on a terminal, by textual: keys, resizing, questions. What is drawn comes from `top_layout`, what is read
from a thread of its own, so that drawing never waits."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Click, Resize
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from oomproof.live.job_chart import JobDetail, read_detail
from oomproof.live.job_table import ORDERS, arranged
from oomproof.live.live_reader import CardsAgain, LiveReader
from oomproof.live.live_snapshot import WAITING, JobState, LiveSnapshot
from oomproof.live.top_layout import Choice, Layout, chosen_job, lay_out
from oomproof.own_command import OWN_COMMAND
from oomproof.printable import printable
from oomproof.records import dataclass, replace
from oomproof.reports.table_text import Line

PAUSE, PAUSE_CARD, SAVE, STOP, WHY = "pause", "pause with the card", "save", "stop", "why"


@dataclass(frozen=True, slots=True)
class VerbCall:
    """The words to type, or why not."""

    words: tuple[str, ...] = ()
    problem: str = ""

    @property
    def text(self) -> str:
        return f"oomproof {' '.join(self.words)}"


def call_of(action: str, job: JobState | None) -> VerbCall:
    """Which command an action on a job is."""
    if job is None:
        return VerbCall(problem="there is no job to act on")
    if not job.managed and job.paused_by and action in (PAUSE, PAUSE_CARD):
        return VerbCall(("resume", str(job.pid)))
    if not job.managed:
        return VerbCall(problem=f"{job.name} was not started by oomproof; watch it: oomproof adopt {job.pid}")
    if not job.mine:
        return VerbCall(problem=f"{job.name} is not a run of yours")
    if action == WHY:
        return VerbCall(("why", job.id))
    if action == STOP:
        return VerbCall(("stop", job.id))
    if job.state == WAITING:
        return VerbCall(problem=f"{job.name} was not started yet; x takes it out of the queue")
    if action == SAVE:
        return VerbCall(("save", job.id))
    if job.paused_by and not (action == PAUSE_CARD and not job.gpu_given_back):
        return VerbCall(("resume", job.id))
    return VerbCall(("pause", "--gpu", job.id) if action == PAUSE_CARD else ("pause", job.id))


def run_verb(call: VerbCall, columns: int = 80) -> tuple[int, str]:
    """(its status, what it printed, for so many columns). Waits for it: call it from a thread."""
    try:
        done = subprocess.run(
            [*OWN_COMMAND, *call.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": str(columns)},
            start_new_session=True,  # a stop that was begun is finished, also when the screen is closed
            check=False,
        )
    except OSError as error:
        return 1, f"cannot start {call.text}: {error.strerror}"
    return done.returncode, printable(done.stdout.decode("utf-8", "replace")).strip()


def outcome(call: VerbCall, text: str) -> str:
    """Of what a verb printed, the line that says what happened: the first, or the last of those that take several steps."""
    lines = [line.removeprefix("oomproof: ").strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "done"
    return lines[-1] if call.words[0] in ("stop", "save") else lines[0]


HELP = """\
Up, Down, j, k   select a job (or click on it)
p    pause it, or resume it            oomproof pause, resume
P    pause it and give the card back   oomproof pause --gpu
s    save a checkpoint and continue    oomproof save
x    stop it, after a question         oomproof stop
w    what is known of it               oomproof why
o    order: memory, growth, time to full, newest, name
/    filter by name, command or state; Esc shows all
q    quit; the jobs stay as they are

"""
_EXPLAINED = (  # each a paragraph that the screen breaks as wide as it is
    "Bars are in GiB. Runs are jobs started by `oomproof run`, shared pages counted once. Reserved is memory a run has "
    "yet to take. Below the margin the guard warns, below the floor it acts.",
    '"full in" is the range of `oomproof trend`, right 4 times in 5; of a run of minutes, only what its last samples bring.',
    "* is a run with --protect: newer runs give way first.",
    "Unmanaged jobs are only looked at (p resumes one that a guard has paused); to guard one: oomproof adopt PID",
)
HELP += "\n".join(_EXPLAINED) + "\n"

# what a part stands for → how a terminal shows it; nothing is told by colour alone
_STYLES = {
    name: Style.parse(style)
    for name, style in {
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
    }.items()
}
_SHORT = 5.0  # seconds that a message stays
_WIDEST = 110  # columns of a text on top of the screen


class LinesView(Widget):
    """Shows lines as they are; only those that changed are sent to the terminal."""

    DEFAULT_CSS = "LinesView { width: 100%; height: 100%; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        before, self._lines = self._lines, lines
        for y in range(max(len(before), len(lines))):
            if before[y : y + 1] != lines[y : y + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        parts = self._lines[y] if y < len(self._lines) else []
        strip = Strip([Segment(text, _STYLES[style]) for text, style in parts])
        return strip.adjust_cell_length(self.size.width)


class TextScreen(ModalScreen[None]):
    """A longer text, to scroll in: help, or what a verb printed."""

    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen > VerticalScroll { width: 94%; max-width: 110; height: auto; max-height: 90%; border: round $foreground;
        padding: 0 1; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,w", "dismiss", "close")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "Esc closes"
            yield Static(self._text, markup=False)


class Question(ModalScreen[bool]):
    """Yes or no; no is what every other key means."""

    DEFAULT_CSS = """
    Question { align: center middle; }
    Question > Static { width: auto; max-width: 90%; height: auto; border: round $foreground; padding: 0 1;
        background: $background; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(f"{self._text}\n\ny: yes   any other key: no", markup=False)

    def on_key(self, event: object) -> None:
        key = getattr(event, "key", "")
        self.dismiss(key in ("y", "Y"))


class TopApp(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: transparent; overflow: hidden; }
    #filter { dock: bottom; height: 1; border: none; padding: 0; display: none; }
    #filter.asked { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("down,j", "select(1)", "next"),
        Binding("up,k", "select(-1)", "previous"),
        Binding("pagedown", "select(10)", "further"),
        Binding("pageup", "select(-10)", "back"),
        Binding("p", f"act('{PAUSE}')", "pause"),
        Binding("P", f"act('{PAUSE_CARD}')", "pause with the card"),
        Binding("s", f"act('{SAVE}')", "save"),
        Binding("x", f"act('{STOP}')", "stop"),
        Binding("w", f"act('{WHY}')", "why"),
        Binding("o", "order", "order"),
        Binding("slash", "filter", "filter"),
        Binding("escape", "show_all", "all"),
        Binding("question_mark,h,f1", "help", "help"),
    ]

    def __init__(
        self,
        every: float = 2.0,
        make_reader: Callable[[], LiveReader] | None = None,
        act: Callable[[VerbCall, int], tuple[int, str]] = run_verb,
    ) -> None:
        """``make_reader`` is called in the thread that reads."""
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self._every = every
        self._make_reader = make_reader or (lambda: LiveReader(CardsAgain()))
        self._run_verb = act
        self._snapshot: LiveSnapshot | None = None
        self._detail: JobDetail | None = None
        self._choice = Choice()
        self._rows: dict[int, str] = {}
        self._wake = threading.Event()
        self._leaving = threading.Event()
        self._view = LinesView()

    def compose(self) -> ComposeResult:
        yield self._view
        yield Input(placeholder="name, command or state", id="filter", compact=True)

    def on_mount(self) -> None:
        self._view.show([[("reading…", "dim")]])
        self._view.can_focus = True
        self._view.focus()
        threading.Thread(target=self._watch, name="reader", daemon=True).start()

    def on_unmount(self) -> None:
        self._leaving.set()
        self._wake.set()

    # --- reading, in its own thread ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        reader = self._make_reader()
        try:
            while not self._leaving.is_set():
                self._wake.clear()
                self._read(reader)
                self._wake.wait(self._every)
        finally:
            reader.close()

    def _read(self, reader: LiveReader) -> None:
        try:
            snapshot = reader.read()
            job = chosen_job(arranged(snapshot.jobs, self._choice.order, self._choice.wanted), self._choice)
            detail = read_detail(reader, job) if job is not None else None
        except Exception as error:  # a machine we did not think of: said, and tried again
            if os.environ.get("OOMPROOF_DEBUG"):
                raise
            text = f"cannot read: {type(error).__name__}: {error}"
            self._tell(lambda: self._say(text))
            return
        self._tell(lambda: self._take(snapshot, detail))

    def _tell(self, what: Callable[[], None]) -> None:
        """In the screen's thread; nothing where it is closing."""
        if not self._leaving.is_set():
            try:
                self.call_from_thread(what)
            except RuntimeError:
                pass

    def _take(self, snapshot: LiveSnapshot, detail: JobDetail | None) -> None:
        self._snapshot, self._detail = snapshot, detail
        self._draw()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        if self._snapshot is None:
            return
        width, height = self.size
        layout: Layout = lay_out(self._snapshot, self._detail, self._choice, width, height)
        self._rows = layout.rows
        self._choice = replace(self._choice, offset=layout.offset)
        self._view.show(layout.lines)

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self._draw)

    def on_click(self, event: Click) -> None:
        if chosen := self._rows.get(event.screen_y):
            self._choose(selected=chosen)

    # --- choosing ---------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[JobState]:
        jobs = self._snapshot.jobs if self._snapshot is not None else ()
        return arranged(jobs, self._choice.order, self._choice.wanted)

    def _job(self) -> JobState | None:
        return chosen_job(self._jobs(), self._choice)

    def _choose(self, **changes: Any) -> None:
        self._choice = replace(self._choice, **changes)
        self._draw()
        if "message" not in changes:
            self._wake.set()  # the selected job is another one

    def action_select(self, by: int) -> None:
        jobs, job = self._jobs(), self._job()
        if job is not None:
            at = max(0, min(len(jobs) - 1, jobs.index(job) + by))
            self._choose(selected=jobs[at].id)

    def action_order(self) -> None:
        names = list(ORDERS)
        self._choose(order=names[(names.index(self._choice.order) + 1) % len(names)])

    def action_show_all(self) -> None:
        self._close_filter()
        self._choose(wanted="")

    def action_filter(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.value = self._choice.wanted
        asked.add_class("asked")
        asked.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(wanted=event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("asked")
        self._view.focus()

    def action_help(self) -> None:
        self.push_screen(TextScreen("oomproof top", HELP))

    # --- acting -----------------------------------------------------------------------------------------------------

    def action_act(self, action: str) -> None:
        job = self._job()
        call = call_of(action, job)
        if call.problem or job is None:
            self._say(call.problem)
        elif action == STOP:
            size = "" if job.use is None else " It is asked to save first where it listens."
            self.push_screen(
                Question(f"stop {job.name}?{size}\n  {call.text}"),
                lambda yes: self._start(call, job.name) if yes else None,
            )
        else:
            self._start(call, job.name)

    def _start(self, call: VerbCall, name: str) -> None:
        self._say(f"{call.words[0]} {name}…", lasting=True)
        threading.Thread(target=self._do, args=(call,), name="action", daemon=True).start()

    def _do(self, call: VerbCall) -> None:
        status, text = self._run_verb(call, max(40, min(_WIDEST, self.size.width * 9 // 10) - 6))
        self._tell(lambda: self._done(call, status, text))

    def _done(self, call: VerbCall, status: int, text: str) -> None:
        if call.words[0] == "why" or (status and "\n" in text):
            self._say("")
            self.push_screen(TextScreen(call.text, text or "nothing was printed"))
        else:
            self._say(outcome(call, text))
        self._wake.set()

    def _say(self, text: str, lasting: bool = False) -> None:
        self._choose(message=text)
        if text and not lasting:
            self.set_timer(_SHORT, lambda: self._unsay(text))

    def _unsay(self, text: str) -> None:
        if self._choice.message == text:
            self._choose(message="")
