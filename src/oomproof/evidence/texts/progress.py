"""The last sign of progress in a training log: bars, trainers' lines and plain counters."""

from __future__ import annotations

import re

from oomproof.evidence.texts import phases
from oomproof.evidence.texts.finding import Progress
from oomproof.records import replace

# A line with none of these holds no sign. Cheap to test, so that only such lines meet the expressions.
ANCHORS = (
    "%|",
    "it/s",
    "s/it",
    "tep",
    "poch",
    "iter",
    "Iter",
    "atch",
    "━",
    "[=",
    "=>",
    "it [",
    "/step",
    "Train: ",
    "[train: ",
    "] eta",
    "]  eta",
)

_INT = r"(\d{1,12})"
_TQDM = re.compile(rf"{_INT}%\|[^|\n]{{0,400}}\|\s*{_INT}/{_INT}")
_TQDM_SHORT = re.compile(rf"{_INT}/{_INT} \[\d+:\d\d")
_TQDM_NO_TOTAL = re.compile(rf"\b{_INT}/\? \[\d+:\d\d")
_TQDM_OPEN = re.compile(rf"(?<!\d){_INT}it \[\d+:\d\d")
_RICH = re.compile(rf"━.{{0,200}}?\s{_INT}/{_INT} ")
_KERAS = re.compile(rf"^\s*{_INT}/(\d{{1,12}}|Unknown) (?:\[[=>.]|━)")
_BRACKETS = re.compile(  # Epoch: [3][ 117/5005], Epoch [3/10], Step [100/600], Epoch[10](2500/2500), Epoch(train) [1][50/7330], Train: [3/90][50/1251], Train: 3 [50/1251
    rf"(?:[Ee]poch(?:\(\w+\))?|\bTrain):?\s*\[?\s*{_INT}(?:/(\d+))?\s*\]?[,:]?\s*(?:[Ss]tep|[Ii]ter(?:ation)?|[Bb]atch)?\s*[:\[(]+\s*{_INT}\s*/\s*{_INT}"
)
_OF = re.compile(
    rf"\b(?:[Gg]lobal[_ ]?[Ss]tep|[Ss]tep|[Ii]ter(?:ation)?|[Bb]atch|[Uu]pdate|micro_step)s?\b(?:\(\w{{1,10}}\))?['\"]?[\s:=#\[]{{0,6}}{_INT}\s*(?:/|of)\s*{_INT}"
)
_STEP = re.compile(
    rf"\b(?:[Gg]lobal[_ ]?[Ss]tep|[Ss]teps?|STEP|[Ii]ter(?:ation)?|training_iteration|[Bb]atch|BATCH|num_updates|micro_step)\b['\"]?\s*[:=#\[]*\s*{_INT}\b(?!\.\d|%|x\d)"
)
_STEPS_MADE = re.compile(rf"(?i)^\W{{0,4}}after {_INT} (?:training )?(?:step|iteration)(?:\(s\)|s)?\b")
_EPOCH = re.compile(
    r"(?:\b|(?<=____))[Ee](?:poch|pochs)\b['\"]?[\s:=#\[]{0,6}(\d{1,9}(?:\.\d{1,6})?)(?:\s*/\s*(\d{1,9}))?"
)
_NEXT = 1000  # steps from one line of a counter without an end to the next
_PAST = 2  # steps by which a bar may run past its total, which it then no longer tells
# a bar around the bars of the steps: it moves once an epoch
_OF_EPOCHS = re.compile(r"(?i)\W{0,8}(?:train(?:ing)? )?epochs?\W{0,8}")
_EPOCH_ALONE = re.compile(r"(?i)\W{0,12}(?:train(?:ing)?\W{1,3})?epoch\W{0,4}\d")  # "=== Epoch 3/30"
_MOST_EPOCHS = 200  # more are the steps of one, whose bar is called so
# tqdm's "[00:59<01:22", rich's "0:00:59 • 0:01:22"
_ELAPSED = re.compile(r"(?:\[(?=[\d:]{4,10}<)|\s(?=[\d:]{4,10} • ))(?:(\d{1,4}):)?(\d{1,2}):(\d\d)\b")
_TRACKING = re.compile(rf"\[(?:train|val): {_INT}, {_INT} / {_INT}\]")  # [train: 35, 950 / 1000]
# torchvision's: Test:  [  10/ 79]  eta: 0:00:21
_METERS = re.compile(rf"\[ *{_INT} ?/ ?{_INT}\][,;:]? {{1,2}}eta\b")
_FAIRSEQ = re.compile(rf"epoch {_INT}:\s+{_INT} / {_INT}")
_SETTINGS = re.compile(
    r"(?i)batch[ _-]?size|num_epochs|max_steps|total (?:train|optimization)|save_steps|eval_steps|logging_steps|warmup|per_device|num[ _]epochs|steps_per|accumulation|--epochs?\b|\bepochs['\"]?\s{0,3}[:=]\s{0,3}\d{1,9},?$"
)
_BEST = re.compile(r"(?i)\bbest\b.{0,40}\bepoch\b")  # looks back
_FINISHED = re.compile(
    r"(?i)(?:training|fine-?tuning) (?:is )?(?:complete|finished|done)|finished training|train_runtime|`?trainer\.fit`? stopped: `?max_(?:epochs|steps)|total training time|training took"
    r"|successfully (?:trained|finished|completed|installed)|\b(?:workflows?|pipeline|jobs?|runs?|script|experiments?|processing|everything|training|tasks?) (?:completed|finished|done) successfully|epochs completed in|done training|training completed|training ended|\bend(?:ed)?(?: of)? training\b\W{0,6}$|(?:^|[:\]-] )(?:finished|done|completed) after \d{1,12} (?:iterations|steps|epochs)\b|early stopp(?:ing|ed) (?:at|after|triggered)|^epoch \d{1,6}: early stopping$"
)


_NO_SIGN = re.compile(r"-{2,}[>\w]")  # IPython's arrow at a line of code, a command's options
# A clock's words: a trainer's hooks also print them when an exception ended it
_CLOCK = re.compile(r"(?i)\b(?:total training time|overall training speed|training took)")


def is_clock(text: str) -> bool:
    return bool(_CLOCK.search(text[:200]))


def is_finish(text: str) -> bool:
    return bool(_FINISHED.search(text[:400]))


def read_sign(text: str) -> Progress | None:
    """One line's sign, None where it holds none. Settings ("batch size: 8", "max_steps 100") are no signs."""
    if bars := list(_TQDM.finditer(text)):
        last = bars[-1]  # bars drawn over one another: the last is the newest
        if _OF_EPOCHS.fullmatch(text[: last.start()]) and 1 < int(last[3]) <= _MOST_EPOCHS:
            done, epochs = int(last[2]), int(last[3])
            bar = _sign(text, None, None, float(min(done + 1, epochs)))
            return replace(bar, epochs=epochs, phase="train" if bar.phase == "unknown" else bar.phase)
        return _sign(text, int(last[2]), int(last[3]), _epoch(text[: last.start()]))
    if match := _FAIRSEQ.search(text) or _TRACKING.search(text):
        return _sign(text, int(match[2]), int(match[3]), float(match[1]))
    if match := _BRACKETS.search(text):
        sign = _sign(text, int(match[3]), int(match[4]), float(match[1]))
        sign = replace(sign, epochs=int(match[2])) if match[2] else sign
        return _from_nought(sign) if _METERS.search(text) else sign
    if match := _METERS.search(text):
        return _from_nought(_sign(text, int(match[1]), int(match[2]), _epoch(text[: match.start()])))
    if match := _TQDM_SHORT.search(text) or _RICH.search(text):
        return _sign(text, int(match[1]), int(match[2]), _epoch(text[: match.start()]))
    if match := _TQDM_NO_TOTAL.search(text):
        return _sign(text, int(match[1]), None, _epoch(text[: match.start()]))
    if match := _KERAS.search(text):
        return _sign(text, int(match[1]), None if match[2] == "Unknown" else int(match[2]), None)
    if _SETTINGS.search(text) or _BEST.search(text):
        return None
    if match := _OF.search(text):
        return _sign(text, int(match[1]), int(match[2]), _epoch(text))
    if match := _last(_TQDM_OPEN, text) or _STEP.search(text) or _STEPS_MADE.match(text):
        return _sign(text, int(match[1]), None, _epoch(text))
    if (epoch := _epoch(text)) is not None:
        return _sign(text, None, None, epoch)
    return None


def _from_nought(sign: Progress) -> Progress:
    """Such meters count from 0: of 230 steps, 229 is the last."""
    last = sign.step is not None and sign.step + 1 == sign.total
    return replace(sign, step=sign.total) if last else sign


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Bars drawn over one another on one line: the last is the newest."""
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def _epoch(text: str) -> float | None:
    match = _EPOCH.search(text)
    return float(match[1]) if match else None


def _sign(text: str, step: int | None, total: int | None, epoch: float | None) -> Progress:
    planned = _EPOCH.search(text) if epoch is not None else None
    epochs = int(planned[2]) if planned and planned[2] else None
    uptime = None
    if clock := _last(_ELAPSED, text):
        uptime = int(clock[1] or 0) * 3600.0 + int(clock[2]) * 60 + int(clock[3])
    return Progress(
        step, total, epoch, phases.of_bar(text), 0, text.strip()[:300], epochs=epochs, uptime=uptime
    )


def _is_torn(sign: Progress, before: Progress) -> bool:
    """The head of the bar before, cut by the text's end: "Epoch 1/3" of 30."""
    return sign.step is None and "%|" in before.text and before.text.startswith(sign.text)


def _whole_again(sign: Progress, before: Progress) -> Progress:
    """A bar that the text's end cut behind its step ("473/112" of 1122) has the total and the clock of the one before."""
    if "%|" not in sign.text or sign.uptime is not None or before.bar is None or sign.total is None:
        return sign
    total = sign.total
    if sign.text.endswith(f"/{total}") and str(before.bar[1]).startswith(str(total)):
        total = before.bar[1]
    return replace(sign, total=total, uptime=before.uptime) if total == before.bar[1] else sign


def _bar(sign: Progress, before: tuple[int, int] | None) -> tuple[int, int] | None:
    """A bar's last step may be told in words alone: the bar goes to stderr, the words come later."""
    if sign.step is None:
        return before
    if sign.total is not None:
        return sign.step, sign.total
    past = _PAST if _TQDM_OPEN.search(sign.text) else 0  # another counter's steps are not its own
    return (before[1], before[1]) if before is not None and 0 <= sign.step - before[1] <= past else before


class ProgressTracker:
    """Follows the signs; counts those that show that the run went on, so that an error before them was survived."""

    def __init__(self) -> None:
        self.last = Progress()
        self.seen = 0  # signs at all
        self.trained = False  # a sign of training was among them
        self.advances = 0  # signs beyond all that stood before the last mark
        self.finishes = 0  # lines that say that a run has finished
        self.anew = False  # the first sign below the last mark is of a beginning
        self._tag = ""  # who failed at the last mark
        self._fresh = False  # no sign yet below the last mark
        self._pace = 0  # steps from the sign before to the last one, of the same bar
        self._furthest: dict[int, int] = {}  # total of a bar -> furthest step
        self._epoch = -1.0
        self._marked: dict[int, int] = {}
        self._marked_epoch = -1.0
        self._phases: dict[int, str] = {}  # total of a bar -> phase that one of its lines told
        # total of a bar -> line of its first step, its last step
        self._rounds: dict[int, tuple[int, int]] = {}
        self._epoch_line = 0  # the last line that told the epoch alone

    def mark(self, tag: str = "") -> None:
        """Something failed here: only what goes beyond now is an advance, and not of another rank or process."""
        self._tag = tag
        self._marked = dict(self._furthest)
        self._marked_epoch = self._epoch
        self._fresh, self.anew = True, False

    @property
    def complete(self) -> bool:
        """Whether the last sign is the last of its own count."""
        last = self.last
        if last.epochs is not None and last.epoch is not None and last.epoch + 1 < last.epochs:
            return False
        if last.bar is not None and not last.counted_out:
            return False
        return last.epochs is not None or (last.bar is not None and last.training_step is not None)

    @property
    def bar_began(self) -> int:
        """The line in which the last bar stood at its first step."""
        bar = self.last.bar
        return self._rounds.get(bar[1], (0, 0))[0] if bar is not None else 0

    def epoch_of_bare_bar(self) -> int:
        """The line that told the epoch of a bar without words; 0 where another bar could be its loop's."""
        only = self.last.total is not None and [*filter(None, self._furthest)] == [self.last.total]
        return self._epoch_line if only else 0

    def look(self, number: int, text: str, tag: str = "") -> None:
        sign = read_sign(text) if not _NO_SIGN.match(text) else None
        if sign is None or _is_torn(sign, self.last):
            return
        if self._fresh:
            first = sign.step if sign.step is not None else sign.epoch or 0.0
            self._fresh, self.anew = False, self.seen == 0 or first <= 1
        self.seen += 1
        sign = _whole_again(sign, self.last)
        finished = sign.step is not None and sign.step == sign.total
        phase = "unknown" if finished and sign.phase == "load" else self._phase(sign)
        self.trained = self.trained or phase == "train"
        # a sign that says no phase (or is over) does not speak for another loop
        before, step, total = self.last, sign.step, sign.total
        loading = sign.phase == "load"
        if step is None:
            step, total = before.step if sign.epoch == before.epoch else None, before.total
            loading = before.loading
        elif loading and before.training_step is not None:  # the training before it got as far as it got
            step, total, loading = before.step, before.total, False
        epoch = sign.epoch if sign.epoch is not None else self._known_epoch()
        self.last = replace(
            sign,
            stride=self._steady(sign),
            line=number,
            phase=phase,
            step=step,
            total=total,
            epoch=epoch,
            loading=loading,
            epochs=sign.epochs or before.epochs,
            bar=_bar(sign, before.bar),
            uptime=sign.uptime if sign.step is not None else before.uptime,
        )
        if sign.step is None and sign.epoch is not None:
            self._epoch_line = number if _EPOCH_ALONE.match(text) else 0
        elif sign.step is not None and sign.total is not None:
            self._in_round(number, sign.step, sign.total)
        if tag and self._tag and tag != self._tag:
            return
        if sign.epoch is not None:
            if sign.epoch <= 1 and self._epoch > sign.epoch + 1:  # a next fold, trial or run
                self._epoch = sign.epoch
                self._marked_epoch = min(self._marked_epoch, sign.epoch)
            if sign.epoch > self._marked_epoch >= 0 or sign.epoch > self._epoch >= 0:
                self.advances += 1
            self._epoch = max(self._epoch, sign.epoch)
        if sign.step is not None:
            self._step(sign.step, sign.total or 0)

    def _steady(self, sign: Progress) -> int:
        """How many steps lie between two signs of a loop that tells every tenth, say; 1 where they come at no steady pace."""
        bar = self.last.bar
        if sign.step is None or sign.total is None:
            return self.last.stride
        before, self._pace = self._pace, 0
        if bar is None or bar[1] != sign.total:
            return 1
        self._pace = sign.step - bar[0]
        steady = self._pace == before > 1 and sign.step % before in (0, 1, before - 1)
        return before if steady and sign.uptime is None and "%|" not in sign.text else 1

    def _phase(self, sign: Progress) -> str:
        """A bar without words is the loop's whose loss was printed beside it."""
        if len(self._phases) >= 64:
            self._phases.clear()
        if sign.total is not None:
            first = not any(self._furthest)  # an evaluation's bar comes after another one
            if sign.phase == "unknown" and first and phases.tells_loss(self.last.text):
                return self.last.phase
            if sign.phase == "unknown":
                return self._phases.get(sign.total, "unknown")
            self._phases[sign.total] = sign.phase
        elif self.last.total is not None and phases.tells_loss(sign.text):
            self._phases.setdefault(self.last.total, sign.phase)
        elif sign.phase == "unknown" and self._counts_on(sign):
            return self.last.phase
        return sign.phase

    def _counts_on(self, sign: Progress) -> bool:
        """A counter without an end, whose line before told the loss: "step 100 learning rate 0.1", "step: 101"."""
        last = self.last
        if sign.step is None or last.step is None or last.total is not None or _TQDM_OPEN.search(sign.text):
            return False
        return last.phase == "train" and last.step <= sign.step <= last.step + _NEXT

    def _step(self, step: int, total: int) -> None:
        known = self._furthest.get(total)
        if known is not None and (step <= 1 < known - step or known - step > total / 2 > 0):
            self._marked.pop(total, None)  # the same loop begins anew: a next epoch, trial or attempt
            known = step
        before = self._marked.get(total)
        # two steps into a bar that did not exist before, or past the old end of one that did
        if (before is None and step >= 2 and known is not None and step > known) or (
            before is not None and step > before
        ):
            self.advances += 1
        if known is None and len(self._furthest) >= 64:
            self._furthest.clear()
        self._furthest[total] = step

    def _in_round(self, number: int, step: int, total: int) -> None:
        began, before = self._rounds.get(total, (number, 0))
        if len(self._rounds) >= 64:
            self._rounds.clear()
        self._rounds[total] = (began if step >= before else number, step)

    def _known_epoch(self) -> float | None:
        return self._epoch if self._epoch >= 0 else None
