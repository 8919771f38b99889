"""What the job was doing (load, train, eval, generate or save): from bars, headings and the frames of stacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Frame = tuple[str, str, str]  # file, function, code

_WORDS = (
    ("load", re.compile(
        r"(?i)^_*(?:create|build|make|init|setup|set_up|prepare|read|get|load)_\w*(?:model"
        r"|data|loader|tokenizer|checkpoint|weights)"
    )),
    ("generate", re.compile(
        r"(?i)generat(?:e|ing)(?!_(?:anchor|mask|propos|batch|data|grid|label|target"
        r"|split))|beam_search|_sample$|^transcribe|^chat$"
    )),
    ("save", re.compile(
        r"(?:^|(?<!_and)_)(?:[Ss]ave|[Dd]ump)(?:_|$)|[Ss]aving|(?i:write_(?:checkpoint"
        r"|model))|^[Ss]ummoning"
    )),
    ("eval", re.compile(
        r"(?i)(?:^|[^a-z])(?:eval|val|valid|test|infer|predict)(?:[^a-z]|$)|evaluat"
        r"|validat|testing|inference|predicti|sanity[ _]check"
    )),
    ("train", re.compile(r"(?i)train(?!ed)|(?:^|_)fit(?:_|$)|backward|fine_?tune|optimi[sz]er?_step|epoch")),
    ("load", re.compile(
        r"(?i)(?<![a-z])load|initiali[sz]e|^prepare|download|tokeniz|pre_?process"
        r"|^map$|^from_|warm_?up|^caching|materializing"
    )),
)  # fmt: skip
_LOADERS = re.compile(r"(?i)data_?loader|_loader$|load_batch")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def of_words(name: str) -> str:
    """The phase in a function's name, or in a description with "_" for its blanks; "" where it shows none."""
    if not name.islower():
        name = _HUMP.sub("_", name)  # DumpModels
    if _LOADERS.search(name):
        return ""  # a batch taken from a loader belongs to the loop that takes it
    return next((phase for phase, pattern in _WORDS if pattern.search(name)), "")


def of_script(path: str) -> str:
    return of_words(path.replace("\\", "/").rpartition("/")[2].partition(".")[0]) or "unknown"


# -- lines ----------------------------------------------------------------------------------------------

_PREPARING = re.compile(
    r"(?i)^\W*(?:load|prepar|download|fetch|tokeniz|scann|cach|pre-?process|pars"
    r"|read|build|creat|initiali[sz]|quantiz|materializ|map\b|filter\b|generating \w+ split)"
)  # fmt: skip
_EVAL = r"(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|inference)"
_SCORE = r"(?![(.]|[ _-]?(?:loss|acc|score|set|split|size|samples)|\s*[=/_]|\s*:\s*-?\d+\.\d)"
_EVAL_LOOP = re.compile(
    rf"(?i)^[^\w\n]{{0,20}}{_EVAL}\b{_SCORE}|[(\[]\s?{_EVAL}\s?[)\]]"
    rf"|\bepoch\W{{0,4}}\d{{1,6}}(?:/\d{{1,6}})?[^\w\n]{{1,6}}{_EVAL}\b{_SCORE}"
)
_LOSS = re.compile(r"(?i)\b(?:train_)?loss(?:es)?\b|\blr\b|grad_norm|learning[_ ]rate")
_LOSS_SAID = re.compile(r"(?i)(?:\b|_)(?<!val_)(?<!eval_)loss['\"]?\s{0,3}[:=]?\s{0,3}-?\d")
_EPOCH = re.compile(r"(?i)(?:\b|(?<=____))epochs?\b[^\w\n]{0,4}\d")
_BAR = re.compile(r"^\s*\[?([A-Za-z][^|%\d]{1,60}?)[:\s]*(?:\[?\d|$)")
_HEADING = re.compile(
    r"\*{3,} ?Running (\w+)|^\W*((?i:evaluating|predicting|loading|saving|training"
    r"|validating|testing|generating)\b(?=[ :.])|Saving|(?i:(?:start|begin)\w* (?:to )?(?:train"
    r"|eval|valid|test)\w*)|Validation|Evaluation)\b(?! ?finished| complete| done)"
)
_MADE_READY = re.compile(
    r"(?i)^\W*(?:load|prepar|build|creat|read|initiali[sz]|download|tokeniz)(?:e"
    r"|ing)?\b[^.!?\n]{0,40}\b(?:model|data|dataset|vocab|tokenizer|weights?|checkpoint"
    r"|shards|features)"
)
_BEFORE = re.compile(r"(?:\[[\w .:/-]{1,60}\]\s?|[-=>#*~|]{1,40}\s?|\s|INFO[ :-]{1,3}){1,8}")
_OVER = re.compile(r"(?i)\b(?:done|finished|completed?|ok|ready)\W{0,4}$|\btook \d")


# Ultralytics' rows; LightGBM and XGBoost, which tell the scores of all sets in each round
_TRAIN_LOOP = re.compile(
    r"^\s*(?:\d{1,6}/\d{1,6}\s+\d[\d.]{0,8}G\s|\[\d{1,7}\]\s+(?:train|valid|eval|test)\S{0,40}(?:'s |-)\w{1,40}:)"
)


def of_bar(text: str) -> str:
    """The phase in a progress line's own words."""
    head = _BAR.match(text)
    words = head[1].replace("DataLoader", "") if head else ""
    if _PREPARING.match(text) or "shards" in words:
        return "load"
    if _EVAL_LOOP.search(text[:200]):
        return "eval"
    if words and (phase := of_words(words.replace(" ", "_"))):
        return phase
    trains = _TRAIN_LOOP.match(text) or tells_loss(text) or _EPOCH.search(text[:200])
    return "train" if trains else "unknown"


def tells_loss(text: str) -> bool:
    return bool(_LOSS.search(text))


def of_heading(text: str) -> str:
    """The phase that a line announces; "" where it shows none."""
    line = text[:200]
    if _TRAIN_LOOP.match(line):
        return "train"
    if "%|" in text:  # a bar in bytes is no sign of progress, and yet it says what is fetched
        return "load" if _PREPARING.match(line) and "B/s" in text and "100%|" not in text else ""
    before = _BEFORE.match(line)
    line = line[before.end() :] if before else line
    if _OVER.search(line):
        return ""
    if _MADE_READY.match(line):
        return "load"
    if match := _HEADING.search(text[:200]) or _HEADING.search(line):
        return of_words((match[1] or match[2]).lower().replace(" ", "_"))
    if _EVAL_LOOP.search(text[:200]):
        return "eval"
    return "train" if _LOSS_SAID.search(text[:200]) or _EPOCH.search(text[:200]) else ""


# -- frames ---------------------------------------------------------------------------------------------

_CALLS = (
    ("generate", re.compile(r"\.generate\(")),
    ("save", re.compile(r"\btorch\.save\(|(?<![a-z])save_(?:checkpoint|pretrained|weights)\w*\(")),
    ("load", re.compile(
        r"\btorch\.load\(|load_state_dict\(|from_pretrained\(|load_checkpoint\(|\bmodel\s?=[^=\n]{0,60}\.(?:to"
        r"|cuda)\("
    )),
    ("train", re.compile(r"\.backward\(|\boptimi[sz]er\w{0,20}\.step\(|\bscaler\.step\(|train(?:ing)?_step\w*\(")),
    ("eval", re.compile(
        r"\b(?:validation|eval|prediction)_step\(|\b(?:self|trainer)\.(?:evaluate"
        r"|validate|predict|test)\("
    )),
)  # fmt: skip
_TOP = ("<module>", "main", "run")
_IMPORT = re.compile(r"^(?:from\s+\S+\s+import|import)\s")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python\d")
# Library plumbing whose names say nothing of the phase
_PLUMBING = re.compile(
    r"/(?:torch/(?:nn|autograd/function|utils/_contextlib|amp|distributed|multiprocessing"
    r"|_dynamo|_inductor)|runpy|threading|multiprocessing/|importlib|lib/python3[.\d]*/\w+\.py$"
    r"|click/|typer/|hydra/|fire/)|-packages/(?:jax|flax|gradio|sklearn/utils"
    r"|wandb|absl)/"
)
_TRAINING_FILES = re.compile(
    r"torch/(?:_?tensor|autograd/__init__|autograd/graph)\.py$|torch/optim/|deepspeed/(?:runtime|ops)/"
)
_TRAINING_FUNCTIONS = re.compile(r"backward|^step$|_step$|grad")
_MOVES = ("to", "cuda", "_apply", "convert", "half", "float")
# A batch being fetched: what reads a file here serves the loop around it
_FETCH = ("__getitem__", "_worker_loop", "__next__", "_next_data", "collate_fn")


def of_frames(frames: Iterable[Frame]) -> str:
    """Outermost first: the innermost that shows a phase decides. Where only file names speak, the script's does."""
    listed = _before_a_fetch(frames)
    if phase := _of_functions(listed):
        return phase
    scripts = (of_script(file) for file, _, _ in listed if not _LIBRARY.search(file))
    return next((phase for phase in scripts if phase != "unknown"), "unknown")


def of_functions(frames: Iterable[Frame]) -> str:
    """By what functions are called and call alone; "" where they show none."""
    return _of_functions(_before_a_fetch(frames))


def _before_a_fetch(frames: Iterable[Frame]) -> list[Frame]:
    listed = [
        (file.replace("\\", "/"), name.replace(".<locals>", "").rpartition(".")[2][:120], code)
        for file, name, code in frames
    ]
    at = next((index for index, (_, name, _) in enumerate(listed) if name in _FETCH), len(listed))
    return listed[:at]


def _of_functions(frames: Sequence[Frame]) -> str:
    for index in range(len(frames) - 1, -1, -1):
        file, function, code = frames[index]
        if file.endswith("nn/modules/module.py") and function in _MOVES:
            outer = _of_functions(
                [frame for frame in frames[:index] if not frame[0].endswith("nn/modules/module.py")]
            )
            return "load" if outer in ("", "load", "train") else outer
        if _TRAINING_FILES.search(file) and _TRAINING_FUNCTIONS.search(function):
            return "train"
        if (function == "<module>" and _IMPORT.match(code)) or (
            function == "__init__" and not _LIBRARY.search(file)
        ):
            return "load"
        if file.endswith(("torch/serialization.py", "torch/storage.py")) and "load" in function:
            return "load"
        if not _PLUMBING.search(file) and (phase := of_call(code) or of_words(function)):
            return phase
        if (
            function in _TOP
            and "(" in code
            and (phase := of_words(code.partition("(")[0].rpartition(".")[2].strip()))
        ):
            return phase
    return ""


def of_call(code: str) -> str:
    """The phase in what one line of a program calls; "" where it shows none."""
    return next((phase for phase, pattern in _CALLS if pattern.search(code)), "")


def trains(frames: Iterable[Frame]) -> bool:
    """Whether any of them, not only the innermost, is of training."""
    return any(of_words(name.rpartition(".")[2]) == "train" for _, name, _ in frames)


_FAULTHANDLER = re.compile(
    r'^\W{0,40}File "(?P<file>[^"\n]{1,400})", line \d+ in (?P<function>[\w<>.]{1,120})'
)


def of_stack(lines: Iterable[str]) -> str:
    """faulthandler's lines below a fatal signal, innermost frame first."""
    python: list[Frame] = []
    died = False  # the thread that follows is the one that did
    for line in lines:
        if match := _FAULTHANDLER.match(line):
            python.insert(0, (match["file"], match["function"], ""))
        elif "torch::autograd::" in line:
            return "train"
        elif "most recent call first" in line:
            if died:
                break  # the others' threads
            python.clear()
            died = "Current thread" in line
    return of_frames(python) if python else "unknown"
