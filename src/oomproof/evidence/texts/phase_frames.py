"""What the job was doing, from stacks: Python's frames, faulthandler's, and those of native code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from oomproof.evidence.texts.phases import of_script, of_words

Frame = tuple[str, str, str]  # file, function, code

_DEVICE = re.compile(r"nn/modules/module\.py$")
_MOVES = ("to", "cuda", "_apply", "convert", "half", "float")
_CODE = (
    ("generate", re.compile(r"\.generate\(")),
    ("load", re.compile(r"from_pretrained\(|load_state_dict\(|torch\.load\(|deepspeed\.initialize\(|\bpipeline\(|load_checkpoint\(|init_process_group\(|PRNGKey\(|load_dataset\(|\bread(?:_\w{1,20})?\(|\bDMatrix\(|\bDataset\(.{0,80}\)\.construct\(|\b(?:loadmat|loadtxt|genfromtxt|imread|open_dataset|get_dummies|fit_transform)\(|\.toarray\(\)|(?:yaml|json|pickle|np|numpy|joblib|nib|nibabel|librosa|torchaudio|dill)\.\w{0,8}load\(|parse_args\(|\bopen\(\w*(?:cfg|config|args)|(?:model|net|network)\b[^=\n]{0,40}\.(?:to|cuda)\(|set_device\(|= (?:\w+\.)?\w*Trainer\(")),
    ("eval", re.compile(r"\b(?:evaluate|validate|validation|eval|test)\(|\.predict\(")),
    ("train", re.compile(r"train(?!ed)\w*\(|\.backward\(|optimizer\.step\(|\.fit\(|scaler\.step\(|(?:sess|session)\.run\(.{0,60}(?:train|optim)|^(?:train_?)?loss(?:es)? \+?= ")),
)  # fmt: skip
# What a line calls is nearer to the death than the function that it stands in
_CALLS = (
    ("generate", re.compile(r"\.generate\(|\bpipe(?:line)?\([^)\n]{0,40}\bprompt")),
    ("save", re.compile(r"\btorch\.save\(|(?<![a-z])save_(?:checkpoint|pretrained|weights|file)\w{0,20}\(|\b(?:c?[Pp]ickle|dill|joblib)\.dump\(|\bnp\.save\w{0,12}\(")),
    ("load", re.compile(r"\bwandb\.init\(|\btorch\.load\(|\bload_state_dict\(|\bfrom_pretrained\(|\bload_checkpoint\(|\b(?:model|net|network)\s?=\s?[^=\n]{0,60}\b(?:model|net|network)\.(?:to|cuda|half)\(")),
    ("train", re.compile(r"\.backward\(|\brun_backward\(|\boptimi[sz]er\w{0,20}\.step\(|\bscaler\.step\(|(?<![a-zA-Z])train(?:ing)?_step(?:_\w{1,20})?\(|\bopt_state\w{0,20}\b|\bin (?:enumerate\(|tqdm\(){0,2}train\w{0,12}_?loader")),
    ("eval", re.compile(r"\bin (?:enumerate\(|tqdm\(){0,2}(?:val|valid|test|eval)\w{0,12}_?loader|\b(?:validation|eval|evaluation|prediction)_step\(|\brun_(?:validation|evaluation)\(|\b(?:self|trainer)\.(?:evaluate|validate|predict|test)\(")),
)  # fmt: skip
_SETTINGS_READ = re.compile(r"(?:yaml|json)\.\w{0,8}load\(|parse_args\(|\bopen\([\w.]*(?:cfg|config|args)")
_TOP = ("<module>", "main", "run", "wrapper")
_IMPORT = re.compile(r"^(?:from\s+\S+\s+import|import)\s")
# Library plumbing whose names say nothing of the phase ("test" in unittest, "eval" in eval_jaxpr, "predict" in gradio)
_PLUMBING = re.compile(
    r"/(?:torch/(?:nn|autograd/function|utils/_contextlib|amp|distributed|multiprocessing|_dynamo|_inductor|_functorch)|runpy|threading|queue|multiprocessing/|importlib|lib/python3[.\d]*/\w+\.py$|click/|typer/|hydra/|fire/)"
    r"|-packages/(?:jax|jaxlib|flax|gradio|pydantic|sklearn/utils|wandb|captum|absl|omegaconf|blobfile|matplotlib|h5py|mmgp)/|^h5py/"
)
_TRAINING_FILES = re.compile(
    r"torch/(?:_tensor|tensor|autograd/__init__|autograd/graph)\.py$|torch/optim/|deepspeed/runtime/|deepspeed/ops/\w+/|apex/optimizers/|bitsandbytes/optim/"
)
_TRAINING_FUNCTIONS = re.compile(r"backward|^step$|_step$|grad")
_FILES = (  # where the file says it, whatever the function
    ("generate", re.compile(r"diffusers/pipelines/"), re.compile(r"^__call__$")),
    ("generate", re.compile(r"(?:samplers?|sampling|ddim|ddpm|k_diffusion\S{0,40})\.py$"), re.compile(r"sampl")),
    ("load", re.compile(r"torch/(?:serialization|storage)\.py$"), re.compile(r"load|restore|deserial|validate_cuda")),
    ("load", re.compile(r"keras/applications/|/torchvision/models/|/timm/models/"), re.compile(r"^[A-Z]\w*$|^_?(?:create|build|make)_|^_(?:resnet|vgg|densenet|efficientnet)$")),
    ("generate", re.compile(r"vllm/|sglang/"), re.compile(r"^execute_model$|^forward_(?:batch_generation|extend|decode)$|^event_loop_\w+$|^get_next_batch_to_run$|^prepare_for_(?:extend|decode)$")),
)  # fmt: skip
# An engine tries its model out before it serves: the frames inside look like serving
_TRIES = re.compile(
    r"^(?:profile_run|_dummy_run|determine_(?:num_)?available_\w+|capture_model|_?initialize_kv_caches?|get_kv_cache_configs?|_?check_enough_kv_cache_memory|init_worker|init_device)$"
)
_WARMS = re.compile(r"_*warm_?up$")
_CHECKS = re.compile(r"_*(?:validat(?:e|or)|test)_*$")
_SERVES = re.compile(r"-packages/gradio/|/comfy(?:ui)?/", re.IGNORECASE)
_NEAR = 3  # frames
_OWN_PREDICT = re.compile(r"(?:predict|infer|score)(?!\w*_step)")
# What a thing's making is: its own code's, a model library's
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python\d")
_MAKES = re.compile(
    r"/torch/nn/|/models?/|modeling_|/diffusers/|/vllm/|/deepspeed/runtime/engine|/torchvision/|/timm/|/transformers/|/trl/"
)
_MADE = ("__init__", "_init_", "init", "new_init")  # markdown eats underscores
_RUNS_WHOLE = re.compile(r"cli\.py$")  # a command line made an object: Lightning's trains inside its making
# A batch being fetched: what reads a file here serves the loop around it
_FETCH = ("__getitem__", "_worker_loop", "__next__", "_next_data", "collate_fn")


def of_frames(frames: Iterable[Frame]) -> str:
    """Outermost first: the innermost that shows a phase decides. Where only file names speak, the script's does."""
    listed = _cleaned(frames)
    if phase := _of_known(listed):
        return phase
    for file, _, _ in listed:
        if not _LIBRARY.search(file) and (phase := of_script(file)) != "unknown":
            return phase
    return "generate" if any(_SERVES.search(file) for file, _, _ in listed) else "unknown"


def of_functions(frames: Iterable[Frame]) -> str:
    """By what functions are called and call alone; "" where they show none."""
    return _of_known(_cleaned(frames))


def _cleaned(frames: Iterable[Frame]) -> list[Frame]:
    return _before_a_fetch([(file.replace("\\", "/"), _bare(name), code) for file, name, code in frames])


def _of_known(frames: Sequence[Frame]) -> str:
    return "load" if any(_TRIES.match(name) for _, name, _ in frames) else _of_functions(frames)


def trains(frames: Iterable[Frame]) -> bool:
    """Whether any of them, not only the innermost, is of training."""
    return any(of_words(_bare(name)) == "train" for _, name, _ in frames)


def _bare(qualified: str) -> str:
    return qualified.replace(".<locals>", "").rpartition(".")[2][:120]  # IPython says Module.to


def _before_a_fetch(frames: list[Frame]) -> list[Frame]:
    at = next((index for index, (_, name, _) in enumerate(frames) if name in _FETCH), len(frames))
    return frames[:at]


def _of_functions(frames: Sequence[Frame]) -> str:
    for index in range(len(frames) - 1, -1, -1):
        file, function, code = frames[index]
        if _DEVICE.search(file) and function in _MOVES:
            # moving parameters: loading, unless an evaluation moves them
            outer = _of_functions([frame for frame in frames[:index] if not _DEVICE.search(frame[0])])
            return "load" if outer in ("", "load", "train") else outer
        if _TRAINING_FILES.search(file) and _TRAINING_FUNCTIONS.search(function):
            return "train"
        if function == "<module>" and _IMPORT.match(code):
            return _of_functions(frames[:index]) or "load"
        if function in _MADE and (
            _MAKES.search(file) or not (_LIBRARY.search(file) or _RUNS_WHOLE.search(file))
        ):
            return "load"
        if phase := _of_file(file, function):
            return phase
        if _PLUMBING.search(file):
            continue
        if phase := _of_own_code(frames, index):
            if phase == "eval" and _CHECKS.match(function) and _inside_a_making(frames, index):
                return "load"  # what was given is checked
            if _WARMS.match(function) and (outer := _of_functions(frames[:index])) == "eval":
                return outer  # the first image of a prediction
            return phase
        if function in _TOP and (named_phase := _of_code(code)):
            return named_phase
        if _SETTINGS_READ.search(code):
            return "load"
    return ""


def _of_own_code(frames: Sequence[Frame], index: int) -> str:
    _, function, code = frames[index]
    called, named = of_call(code), of_words(function)
    # a model whose forward calls its own predict: the loop around it tells what that is for
    if any(name == "forward" for _, name, _ in frames[max(0, index - _NEAR) : index + 1]):
        called = "" if called == "eval" and _OWN_PREDICT.search(code) else called
        named = "" if named == "eval" and _OWN_PREDICT.search(function) else named
    return called or named


def _inside_a_making(frames: Sequence[Frame], index: int) -> bool:
    return any(
        name in _MADE and not _RUNS_WHOLE.search(file)
        for file, name, _ in frames[max(0, index - _NEAR) : index]
    )


def _of_file(file: str, function: str) -> str:
    return next((phase for phase, where, what in _FILES if what.search(function) and where.search(file)), "")


def of_call(code: str) -> str:
    """The phase in what one line of a program calls; "" where it shows none."""
    return next((phase for phase, pattern in _CALLS if pattern.search(code)), "")


def _of_code(code: str) -> str:
    return next((phase for phase, pattern in _CODE if pattern.search(code)), "")


# -- stacks that are printed below the word of the death -------------------------------------------------

_FAULTHANDLER = re.compile(
    r'^\W{0,40}File "(?P<file>[^"\n]{1,400})", line \d+ in (?P<function>[\w<>.]{1,120})'
)
_NATIVE = (
    ("eval", re.compile(r"caffe::Solver<.{0,20}>::Test")),
    ("save", re.compile(r"caffe::Solver<.{0,20}>::Snapshot")),
    ("load", re.compile(r"caffe::(?:Solver|Net)<.{0,20}>::(?:Init|Net|Solver|CopyTrained|Restore)")),
    ("train", re.compile(r"caffe::Solver<.{0,20}>::S(?:tep|olve)|torch::autograd::Engine::|torch::autograd::\w*Backward|\w_backward_\w*cuda|\btrain\(\)$")),
)  # fmt: skip
_STACK_LINE = re.compile(r"^\s*(?:@ +0x[0-9a-f]|#\d+ |frame #\d+|\[bt\] )")


def of_stack(lines: Iterable[str]) -> str:
    """The lines that follow a fatal signal or a failed check, innermost frame first."""
    python: list[Frame] = []
    died = False  # the thread that follows is the one that did
    for line in lines:
        if match := _FAULTHANDLER.match(line):
            python.insert(0, (match["file"], match["function"], ""))
        elif _STACK_LINE.match(line) and (phase := _of_native(line.strip())):
            return phase
        elif "most recent call first" in line:
            if died:
                break  # the others' threads
            python.clear()
            died = "Current thread" in line
    return of_frames(python) if python else "unknown"


def _of_native(line: str) -> str:
    return next((phase for phase, pattern in _NATIVE if pattern.search(line)), "")
