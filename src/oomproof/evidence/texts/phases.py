"""What the job was doing: load, train, eval, generate or save, from names, from bars and from headings."""

from __future__ import annotations

import re

_DATA = r"(?:model|net|network|data|dataset|image|csv|file|data_?loader|loader|optimi[sz]er|tokenizer|backbone|vocab|dictionary|features?|index|corpus|database|scene|env|environment|weights|module|engine|process_group|distributed|dist|config|args|kv_cache)s?"
# What is made or read before a loop begins, even "for train"
_MAKING = re.compile(
    rf"^_*(?:create|build|make|init|initiali[sz]e|setup|set_up|prepare|construct|configure|instantiate|read|parse|load)_(?:\w+_)?{_DATA}(?:_|$)"
    rf"|^_*get_(?:\w+_)?(?:model|dataset|data_?loader|loader|tokenizer|optimi[sz]er)s?(?:_|$)|^_*get_(?!\w*(?:batch|output|result))(?:\w+_)?data(?:_|$)|^_*(?:train|val|test|eval|predict)_data_?loaders?$"
    r"|^_*setup_|^generat(?:e|ing)_\w+_split|^_*load_(?:model|checkpoint|pretrained|weights|state_dict|data)|^_*get_(?:cfg|config|args)$"
    r"|^_*(?:build|create|instantiate)(?!_(?:target|graph|loss|mask|batch|input|anchor|proposal))(?:_|$)|^convert_\w{0,40}(?:features|examples)|^merge_from_",
    re.IGNORECASE,
)
_WORDS = (
    ("generate", re.compile(r"generat(?:e|ing)(?!_(?:anchor|mask|propos|batch|data|grid|label|target|split|noise|feature|id))|beam_search|greedy_search|_sample$|chat_completion|text_completion|decoding|^transcribe|^(?:stream_)?chat$|^p_sample|^ddim_sampl|^process_images|^sampling|^synthesi[sz]e|^translate(?:_batch)?$|^(?:txt|img)2img", re.IGNORECASE)),
    ("save", re.compile(r"(?:^|(?<!_and)_)(?:[Ss]ave|[Dd]ump)(?:_(?!obs|for_backward|context|evaluate|to_queue)|$)|[Ss]aving|save_checkpoint|save_pretrained|(?i:(?:write|store|export|persist)_(?:checkpoint|ckpt|model|weights|state))(?:_|$)|^summoning_")),
    ("eval", re.compile(r"(?:^|[^a-z])(?:eval|val|valid|test|infer|predict|score)(?:[^a-z]|$)|evaluat|validat(?!\w*_(?:arg|config|param|data|input|kwarg|env|model|python|json|schema|type|repo|assign))|[Tt]esting|inference|prediction|estimate_loss|sanity[ _]check|tester|(?:compute|calc|calculate)_metrics?|predicting", re.IGNORECASE)),
    ("train", re.compile(r"train(?!ed|ing_func)|(?:^|_)fit(?:_|$)|backward|finetune|fine_tune|_learn$|^learn$|optimi[sz]er?_step|^optimi[sz](?:e|ing)(?:_|$)|(?:compute|apply)_grad|^collect_rollouts|^closure$|epoch", re.IGNORECASE)),
    ("load", re.compile(r"(?<!up)(?<!pay)(?<!off)(?<!over)(?<!work)(?<!un)load|initiali[sz]e|^prepare|build_model|create_model|download|tokeniz|(?<!forward_)pre_?process|^map$|^_map_single$|^from_|^setup|^creating|^building|^constructing|warm_?up|^pipeline$|materializing|^cache_images", re.IGNORECASE)),
)  # fmt: skip
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BOTH = re.compile(r"train_?(?:and|n|&)?_?(?:eval|test|val(?:id)?)", re.IGNORECASE)
_LOADERS = re.compile(r"data_?loader|dataloader|_loader$|load_batch|downloader", re.IGNORECASE)
_SCRIPTS = (
    ("load", re.compile(r"^(?:download|pre-?process|prepare|tokenize)", re.IGNORECASE)),
    ("generate", re.compile(r"generat|chat|completion|sample|infer", re.IGNORECASE)),
    ("eval", re.compile(r"(?:^|[^a-z])(?:eval|test|valid|predict)", re.IGNORECASE)),
    ("train", re.compile(r"train|finetune|run_(?:clm|mlm|glue)", re.IGNORECASE)),
    ("load", re.compile(r"(?:^|_)(?:pre-?process|prepare|tokenize|download|data_?aug|augment|process_data|data_process|make_data|build_(?:data|vocab|index))", re.IGNORECASE)),
)  # fmt: skip
OF_GRADIENTS = re.compile(
    r"_grad_|gradients/|Backward\d' returned nan|is_training=true|Backprop|BackwardData|BackwardFilter|\bp?jit\(\w{0,60}train_step\)"
)  # names of kernels


# what a server says once it has answered, or failed to
GENERATED = re.compile(r"^Output generated in \d|\btokens/s\b")


# what a server says below it
NOT_LOADED = re.compile(r"\bfailed to load model\b|\berror loading model\b|\bmodel loading error\b")


def of_words(name: str) -> str:
    """The phase in a function's name, or in a description with "_" for its blanks; "" where it shows none."""
    if not name.islower():
        name = _HUMP.sub("_", name)  # DumpModels
    if _MAKING.search(name):
        return "load"
    if _BOTH.search(name):
        return ""  # the lines that it printed tell which
    if _LOADERS.search(name):
        return ""  # a batch taken from a loader belongs to the loop that takes it
    return next((phase for phase, pattern in _WORDS if pattern.search(name)), "")


def of_script(path: str) -> str:
    name = path.replace("\\", "/").rpartition("/")[2]
    return next((phase for phase, pattern in _SCRIPTS if pattern.search(name)), "unknown")


# -- exceptions -----------------------------------------------------------------------------------------

_AT_START = re.compile(
    r"^(?:omegaconf|hydra|yaml|argparse|huggingface_hub)\.|^(?:ModuleNotFound|Import|Config\w*|Parser|Scanner)Error\b"
    r"|Error\(s\) in loading state_dict|[Uu]nable to load weights|Can't load (?:the )?(?:tokenizer|config|model)|(?:[Uu]nable|[Ff]ailed) to (?:load|warm ?up|initiali[sz]e) (?:the )?(?:model|tokenizer)\b"
    r"|does not appear to have a file named|\bEADDRINUSE\b|[Aa]ddress already in use|unrecognized arguments: |\berror: execve\(\): "
    r"|abruptly died during map operation|unable to mmap \d+ bytes from file <(?!/dev/shm|/?torch_)|[Nn]o CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA"
)


AT_SAVING = re.compile(
    r"Failed to clone\(\) tensor with name|after returning from state_dict\(\) call|Error while serializing|[Ff]ailed to save |[Uu]nable to save |inline_container\.cc:\d+\] \. unexpected pos|\[Op:SaveV2\]|\bSaveV2\b"
)


_DURING = re.compile(
    r"(?i)\b(?:error|exception|failed|failure)s? (?:during|while|in|when) (?:the )?(?P<what>evaluat\w+|validat\w+|testing|train\w+|loading|saving|generat\w+|preprocess\w+)\b"
)


_HEAD = 300  # characters of an error's line that may name a loop


def of_error(text: str) -> str:
    """Errors in settings, imports and what is read first belong to the start, where nothing else shows a phase."""
    if during := _DURING.search(text[:400]):
        return of_words(during["what"]) or "unknown"
    if AT_SAVING.search(text):
        return "save"
    return "load" if _AT_START.search(text) else of_rounds(text[:_HEAD]) or "unknown"


# -- lines ----------------------------------------------------------------------------------------------

# datasets, TRL, ultralytics, vLLM: "Tokenizing train dataset", "train: Scanning …" prepare, whatever they prepare for
_PREPARING = re.compile(
    r"(?i)^\W*(?:(?:train|val|test): )?(?:loading|tokenizing|generating \w+ (?:split|examples)|generating \w{0,30}(?:_indices|_index|dataset|features|graph|vocab|cache)|scanning|caching|pre-?processing|computing (?:features|embeddings|statistics)"
    r"|preparing|downloading|fetching|resolving|map\b|filter\b|extracting (?:prompt|data|archive|features?)|quantizing|packing|truncating|applying chat"
    r"|adding eos|converting|grouping texts|running tokenizer|formatting|reading|parsing|building|creating|initiali[sz]ing"
    r"|constructing|setting up|materializing|capturing cuda|casting|flattening the|unpacking)\b"
)
_EVAL = (
    r"(?:val|valid|validation|validating|validate|eval|evaluation|evaluating|evaluate|test|testing|inference)"
)
_SCORE = (  # "val loss 0.31", "test=0.5": what an evaluation found, printed by the loop around it
    r"(?![(.]|[ _-]?(?:\w{0,12}loss|acc|score|set|split|size|samples|examples|metric|f1|auc|mse|mae|ppl|perplexity|err|epoch_)|\s*[=/_]|\s*:\s*-?\d+\.\d)"
)
_EVAL_LOOP = re.compile(
    rf"(?i)^[^\w\n]{{0,20}}{_EVAL}\b{_SCORE}|[(\[]\s?{_EVAL}\s?[)\]]"
    rf"|\bepoch\W{{0,4}}\d{{1,6}}(?:/\d{{1,6}})?[^\w\n]{{1,6}}{_EVAL}\b{_SCORE}|\bTesting net\b|^\s*Class\s{{1,20}}Images\b"
)
# ultralytics' row; kohya's and old transformers' bars
_TRAIN_LOOP = re.compile(r"^\s*\d{1,6}/\d{1,6}\s+\d[\d.]{0,8}G\s|^[\W\d]{0,12}(?:[Ss]teps|[Ii]teration)\b")
_LOSS = re.compile(r"(?i)\b(?:train_)?loss(?:es)?\b|\blr\b|grad_(?:norm|stats)|learning[_ ]rate")
_SCORES = re.compile(
    r"(?i)\b(?:val|valid|validation|eval|evaluation|test|testing)[ _-](?:loss|acc|accuracy|error)\b"
)
_EPOCH = re.compile(r"(?i)(?:\b|(?<=____))epochs?\b[^\w\n]{0,4}\d")
_BAR = re.compile(r"^\s*\[?([A-Za-z][^|%\d]{1,60}?)[:\s]*(?:\[?\d|$)")


def of_bar(text: str) -> str:
    """The phase in a progress line's own words."""
    head = _BAR.match(text)
    words = head[1].replace("DataLoader", "") if head else ""
    if _PREPARING.match(text) or re.search(
        r"(?i)\bloading|downloading|materializ|\bmap\b|tokeniz|shards", words
    ):
        return "load"
    if _EVAL_LOOP.search(text[:200]):
        return "eval"
    if _SCORES.search(words) and _EPOCH.search(text[:200]):
        return "train"  # what the evaluation of an epoch came to, told by the loop around it
    if words and (phase := of_words(words.replace(" ", "_"))):
        return phase
    trains = _TRAIN_LOOP.search(text[:80]) or tells_loss(text) or _EPOCH.search(text[:200])
    return "train" if trains else of_rounds(text[:200]) or "unknown"


def tells_loss(text: str) -> bool:
    return bool(_LOSS.search(text))


# What stands before a line's own words: "[LightGBM] [Info] ", "> ", "=== "
_BEFORE = re.compile(r"(?:\[[\w .:/-]{1,60}\]\s?|[-=>#*~|]{1,40}\s?|\s|INFO[ :-]{1,3}){1,8}")
_HEADING = re.compile(
    r"\*{3,} ?Running (?P<running>\w+)|^(?:\[\w\])?\W*(?P<verb>(?i:evaluating|predicting|loading|saving|training)\b(?=[ :.])|Evaluating|Validating|Testing|Generating|Training|Optimizing|Saving|Loading|(?i:start(?:ing|ed)? (?:to )?(?:train|eval|valid|test)\w*)|Full evaluation"
    r"|(?i:begin(?:ning)? (?:train|eval)\w*)|(?i:train(?:ing)?[_ ]step(?= begins))|(?:Running )?(?:Validation|Evaluation|Inference)(?! (?:loss|acc|results?|score|metric|time|speed|set|split|data|size|samples))|TRAIN THE MODEL|Summoning checkpoint)\b(?! ?finished| complete| done)(?! ?args| ?arguments)",
)
_MADE_READY = re.compile(
    r"(?i)^\W*(?:(?:start|begin|now) )?(?:load|prepar|build|creat|read|initiali[sz]|construct|pre-?process|download|tokeniz|pars|generat|convert|fetch|cach|extract|set(?:ting)? up)(?:e|ing)?\b"
    r"[^.!?\n]{0,40}\b(?:model|net|network|data|dataset|vocab|vocabulary|tokenizer|weights?|checkpoint|features?|embeddings?|index|samples|examples|corpus|texts?|docs|documents|config|environment|env|engine|pipeline|parallel|labels|annotations?|dictionary|training (?:net|set|data)|test set|file|image|camera|state|layer|DB|database|genome)s?\b"
)
# Lines that only one kind of loop prints
_ROUNDS = (
    ("train", re.compile(r"^\s*\[\d{1,7}\]\s+(?:train|valid|eval|test)\S{0,40}(?:'s |-)\w{1,40}:")),  # LightGBM, XGBoost
    ("train", re.compile(r"^\s*\d{1,7}:\s+learn: [\d.-]+|\bavg(?: loss)?, [\d.]+ rate, ")),  # CatBoost, Darknet
    ("train", re.compile(r"^\W*(?:train|rollout)/\s+\||\bepisodic_return\b|^\W*Ep(?:isode)?\W{0,3}\d{1,9}\b|(?:\b|_)timesteps?\W{1,3}\d{1,12}\b.{0,80}reward", re.IGNORECASE)),  # reinforcement learning
    ("train", re.compile(r"^\[train: \d+, \d+ / \d+\]|^tick \d+\s+kimg \d")),  # pytracking, StyleGAN
    ("train", re.compile(r"\bcurrent learner \w|\bbest estimator \S{1,40} best error=|^Trial \d{1,7} finished with value:")),  # searches
    ("eval", re.compile(r"^\[(?:val|test): \d+, \d+ / \d+\]")),
    ("train", re.compile(r"'train_runtime'|^`?Trainer\.fit`? stopped|^\W*TRAINING SUMMARY|^\s*epoch\s.{0,60}loss\b|^E {2,8}# {2,}|\d{1,6}epoch:train:|^Fitting \d+ folds for|^\[CV\] END", re.IGNORECASE)),
    ("train", re.compile(r"^Iteration \d+(?: \([^)\n]{0,60}\))?, (?:loss|lr) = |^Solving \w|^\W*(?:开始|正在)训练")),  # caffe
    ("eval", re.compile(r"^(?:Iteration \d+, )?Testing net\b|^(?:Test|Val|Valid|Eval|Validation):? +\[ *\d+ */|\bInference done \d+/\d+|^evaluated on\b|^\W*'?eval(?:uation)?/\w{1,40}'?:")),
    ("eval", re.compile(r"^(?:\d{1,4}: )?Running (?:loglikelihood|per image evaluation|inference|evaluation|validation)|^Accumulating evaluation|^Evaluate (?:annotation|on)\b|\b(?:Iter|Epoch)\((?:val|test)\)", re.IGNORECASE)),
    ("generate", re.compile(r"^got prompt$|\bAdded request (?:chat|cmpl)-|\bReceived request (?:chat|cmpl)-|\bbatch\{batch_size=\d{1,6}\}:(?:prefill|decode)\b|\bError while invoking session \S{1,60}, invocation |^!!! Exception during processing|^Setting `?pad_token_id`? to `?eos_token_id`?\b|Avg prompt throughput: |^Prompt executed in")),  # ComfyUI, vLLM
    ("load", re.compile(r"^layer\s+filters\s+size\s+input\b|^\s*\d{1,4}\s+(?:conv|max|route|upsample|shortcut|detection|yolo|CUDA Error: )\s*\S|^Creating Layer \S|^Top shape: \d|^Memory required for data: \d|\] Dictionary: \d+ types$|^llm_load_\w+: |^print_info: |^load_tensors: |\b(?:srv|main) {1,4}load_model: |^llama_\w*: failed to (?:load|initialize)|\bEngineCore failed to start\b|\bWaiting for shard to be ready\b|\bEngine core initialization failed\b|^llama_(?:model_load|new_context_with_model|kv_cache|init_from|context)\w*: |Starting to load model |Capturing (?:the model for )?CUDA graph|^\W*(?:开始|正在)加载")),
)  # fmt: skip
_LOSS_SAID = re.compile(  # "loss 0.3", "dloss: 0.3", "loss_rec = 0.3", "- train_losses - first: 0.3"
    r"(?i)(?:(?<!-)\b[a-z]?|_)loss(?:[ _][a-z]{1,2})?['\"]?\s{0,3}[:=]?\s{0,3}-?\d|(?:\b[a-z]?|_)loss[_/ ]?[a-z\d]{1,12}\s{0,3}[:=]\s{0,3}-?\d|\btrain(?:ing)?[_ ]losses\b.{0,80}?\d"
)
_EPOCH_BEGINS = re.compile(r"(?i)(?<![-\w])epoch\b[^\w\n]{0,4}\d")  # no --epochs of a command
_LOSS_OF_EVAL = re.compile(
    r"(?i)\b(?:val|valid|validation|eval|evaluation|test|dev)\w{0,8}[ _/-]{0,2}\w{0,10}[ _]?loss"
)
_BYTES = re.compile(r"\d[kKMGT]i?B?/[\d.]{1,8}[kKMGT]")
_OVER = re.compile(r"(?i)\b(?:done|finished|complete|completed|ok|ready)\W{0,4}$|\btook \d")
_KEY = re.compile(r"\s*[a-z_]{1,40}:\s*$")  # of a configuration, with its values below it
_SENTENCE = re.compile(r"[a-z)`]\. [A-Z]|[a-z]{3}\.$")


def of_heading(text: str) -> str:
    """The phase that a line announces or that only such a phase prints; "" where it shows none."""
    line = text[:200]
    if phase := of_rounds(line):
        return phase
    if "%|" in text:  # a bar in bytes is no sign of progress, and yet it says what is fetched
        return "load" if _PREPARING.match(line) and _BYTES.search(text) and "100%|" not in text else ""
    before = _BEFORE.match(line)
    line = line[before.end() :] if before else line
    if _OVER.search(line) or (len(line) > 60 and _SENTENCE.search(line)):
        return ""
    if _MADE_READY.match(line):
        return "load"
    if match := _HEADING.search(text[:200]) or _HEADING.search(line):
        word = (match["running"] or match["verb"]).lower()
        return "load" if _PREPARING.match(line) else of_words(word.replace(" ", "_"))
    return _of_loop(text[:200])


def of_rounds(line: str) -> str:
    """By lines that only one kind of loop, or only loading, prints."""
    return next((phase for phase, pattern in _ROUNDS if pattern.search(line)), "")


def _of_loop(line: str) -> str:
    if _KEY.match(line):
        return ""
    if _EVAL_LOOP.search(line):
        return "eval"
    said = _LOSS_SAID.search(line) and not _LOSS_OF_EVAL.search(line)
    return "train" if said or _EPOCH_BEGINS.search(line) else ""
