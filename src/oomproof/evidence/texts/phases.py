"""What the job was doing: load, train, eval, generate or save, from frames, from bars and from headings."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORDS = (
    ("generate", re.compile(r"generat(?:e|ing)|beam_search|greedy_search|_sample$|chat_completion|text_completion|[Dd]ecoding")),
    ("save", re.compile(r"(?:^|_)(?:save|dump)(?:_|$)|[Ss]aving|save_checkpoint|save_pretrained|write_checkpoint")),
    ("eval", re.compile(r"(?:^|[^a-z])(?:eval|val|valid|test|infer|predict|score)(?:[^a-z]|$)|evaluat|validat|[Tt]esting|inference|prediction|[Ss]anity [Cc]heck|tester|compute_metrics|predicting", re.IGNORECASE)),
    ("train", re.compile(r"train(?!ed)|^fit$|_fit$|^fit_|backward|finetune|fine_tune|_learn$|optimi[sz]er?_step|epoch", re.IGNORECASE)),
    ("load", re.compile(r"load|initiali[sz]e|^prepare|build_model|create_model|download|tokeniz|preprocess|^map$|_map$|^from_|^setup|^creating|^building|^constructing|warm_?up|^pipeline$|materializing", re.IGNORECASE)),
)  # fmt: skip
_LOADERS = re.compile(r"data_?loader|dataloader|_loader$|load_batch|downloader", re.IGNORECASE)
_DEVICE = re.compile(r"nn/modules/module\.py$")
_CODE_GENERATE = re.compile(r"\.generate\(")
_CODE_LOAD = re.compile(
    r"from_pretrained\(|load_state_dict\(|torch\.load\(|deepspeed\.initialize\(|\bpipeline\(|load_checkpoint\("
)
_CODE_EVAL = re.compile(r"\b(?:evaluate|validate|validation|eval|test)\(|\.predict\(")
_CODE_TRAIN = re.compile(r"train(?!ed)\w*\(|\.backward\(|optimizer\.step\(|\.fit\(|scaler\.step\(")
_SCRIPTS = (
    ("generate", re.compile(r"generat|chat|completion|sample|infer", re.IGNORECASE)),
    ("eval", re.compile(r"(?:^|[^a-z])(?:eval|test|valid|predict)", re.IGNORECASE)),
    ("train", re.compile(r"train|finetune|run_(?:clm|mlm|glue)", re.IGNORECASE)),
)
# Library plumbing whose names say nothing of the phase ("test" in unittest, "train" in train_mem)
_PLUMBING = re.compile(
    r"/(?:torch/(?:nn|autograd/function|utils/_contextlib|amp|distributed|multiprocessing|_dynamo)|runpy|threading|queue|multiprocessing/|importlib|lib/python3[.\d]*/\w+\.py$|click/|typer/|hydra/|fire/)"
)
_TRAINING_FILES = re.compile(
    r"torch/(?:_tensor|tensor|autograd/__init__|autograd/graph)\.py$|torch/optim/|deepspeed/runtime/"
)
_TRAINING_FUNCTIONS = re.compile(r"backward|^step$|_step$|grad")
OF_GRADIENTS = re.compile(r"_grad_|gradients/|Backprop|BackwardData|BackwardFilter")  # names of kernels


def of_frames(frames: Iterable[tuple[str, str, str]]) -> str:
    """Frames as (file, function, code), outermost first: the innermost that shows a phase decides.
    Where only file names speak, the script's name does."""
    listed = list(frames)
    for file, qualified, code in reversed(listed):
        function = qualified.replace(".<locals>", "").rpartition(".")[2]  # IPython says Module.to
        if _DEVICE.search(file) and function in ("to", "cuda", "_apply", "convert", "half", "float"):
            # moving parameters: loading, unless a training step moves them
            outer = of_frames(frame for frame in listed if not _DEVICE.search(frame[0]))
            return "load" if outer in ("unknown", "load", "train") else outer
        if _TRAINING_FILES.search(file) and _TRAINING_FUNCTIONS.search(function):
            return "train"
        if _PLUMBING.search(file):
            continue
        if phase := _of_words(function):
            return phase
        for phase, pattern in (
            ("generate", _CODE_GENERATE),
            ("load", _CODE_LOAD),
            ("eval", _CODE_EVAL),
            ("train", _CODE_TRAIN),
        ):
            if pattern.search(code) and function in ("<module>", "main", "run", "wrapper"):
                return phase
    for file, _, _ in listed:
        if "site-packages" not in file and (phase := of_script(file)) != "unknown":
            return phase
    return "unknown"


def _of_words(name: str) -> str:
    if _LOADERS.search(name):
        return ""
    return next((phase for phase, pattern in _WORDS if pattern.search(name)), "")


def of_script(path: str) -> str:
    name = path.rpartition("/")[2]
    return next((phase for phase, pattern in _SCRIPTS if pattern.search(name)), "unknown")


_BAR = re.compile(r"^\s*\[?([A-Za-z][^|%\d]{1,60}?)[:\s]*(?:\[?\d|$)")
_HEADING = re.compile(
    r"\*{3,} ?Running (?P<running>\w+)|^(?:\[\w\])?\W*(?P<verb>(?:Creating|Building|Initiali[sz]ing|Constructing) (?:the )?(?:model|network|dataset)|(?i:evaluating|loading|saving|training)\b(?=[ :.])|Evaluating|Validating|Testing|Generating|Training|Saving|Loading|Start(?:ing|ed)? (?:to )?(?:train|eval|valid|test)\w*|Full evaluation"
    r"|Begin(?:ning)? (?:train|eval)\w*|Validation|TRAIN THE MODEL)\b(?! ?finished| complete| done)(?! ?args| ?arguments)",
)


def of_bar(text: str) -> str:
    """The phase in a progress line's own words."""
    head = _BAR.match(text)
    words = head[1].replace("DataLoader", "") if head else ""
    if words and (phase := _of_words(words.replace(" ", "_"))):
        return phase
    if words and re.search(r"(?i)loading|downloading|materializ|map|tokeniz|shards", words):
        return "load"
    return (
        "train" if re.search(r"(?i)\b(?:train_)?loss\b|\blr\b|grad_norm|learning_rate", text) else "unknown"
    )


def of_heading(text: str) -> str:
    match = _HEADING.search(text[:200])
    if not match or "%|" in text:
        return ""
    word = (match["running"] or match["verb"]).lower()
    return _of_words(word.replace(" ", "_"))
