"""What the job was doing: from a traceback's frames, from a stack, and from headings."""

from __future__ import annotations

import pytest

from oomproof.evidence.texts import phases
from oomproof.evidence.texts.phase_frames import of_frames, of_stack
from oomproof.evidence.texts.root_failure import root
from oomproof.evidence.texts.training_parser import TrainingParser

LIBRARY = "/venv/lib/python3.11/site-packages"


def phase_of(text: str) -> str:
    parser = TrainingParser("-")
    for number, line in enumerate(text.splitlines(), 1):
        parser.feed(number, line)
    found = root(parser.finish())
    assert found is not None
    return found.job.phase


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        ([("train.py", "<module>", "from apex import amp")], "load"),
        ([("run.py", "train", "import extra"), ("extra.py", "<module>", "import none")], "train"),
        ([("train.py", "train", "x"), (r"C:\\p\\data.py", "create_dataloader", "x")], "load"),
        ([("train.py", "training", "s = Scene()"), ("scene/__init__.py", "__init__", "x")], "load"),
        ([("run.py", "evaluate", "x"), ("run.py", "settings", "yaml.safe_load(open(p))")], "load"),
        ([("train.py", "main", "key = jax.random.PRNGKey(0)")], "load"),
        ([("run.py", "train_epoch", "x"), ("d.py", "__getitem__", "x"), ("d.py", "load_image", "x")], "train"),
        ([("run.py", "train_epoch", "x"), ("rpn.py", "generate_proposals", "x")], "train"),
        ([("run.py", "fit", "x"), (f"{LIBRARY}/sklearn/base.py", "_validate_data", "x")], "train"),
        ([("run.py", "train", "x"), ("run.py", "upload", "x")], "train"),
        ([("run.py", "main", "x"), ("env.py", "__init__", "cfg.validate()"), ("cfg.py", "_validate", "x")], "load"),
        ([("run.py", "fit", "x"), ("run.py", "validate", "x")], "eval"),
        ([("run.py", "main", "x"), ("run.py", "loadTrainData", "x")], "load"),
        ([("run.py", "TrainOneEpoch", "x"), ("net.py", "forward", "x")], "train"),
        ([("run.py", "trainLoop", "x"), ("run.py", "storeModel", "x")], "save"),
        ([("run.py", "<module>", "x"), (f"{LIBRARY}/diffusers/pipelines/p.py", "__call__", "x")], "generate"),
        ([("s.py", "<module>", "x"), (f"{LIBRARY}/vllm/w.py", "profile_run", "x"), (f"{LIBRARY}/vllm/r.py", "execute_model", "x")], "load"),
        ([("run.py", "train", "hook()"), ("hooks.py", "after_train_epoch", "self._save_checkpoint(runner)")], "save"),
        ([("run.py", "main", "step()"), ("run.py", "step", "loss.backward()")], "train"),
        ([("run.py", "<module>", "x = update(params, grads, opt_state)")], "train"),
        ([("run.py", "work", "for i, batch in enumerate(val_loader):")], "eval"),
        ([("run.py", "work", "for batch in tqdm(train_dataloader):")], "train"),
        ([("tuner.py", "_training_function", "run_sft(args)")], "unknown"),
        ([("run.py", "<module>", "x"), ("run.py", "get_data", "a[0]")], "load"),
        ([("aug.py", "main", "x"), ("aug.py", "process_and_save_features", "np.concatenate(a)")], "unknown"),
        ([("utils/preprocess.py", "<module>", "main()"), ("utils/preprocess.py", "main", "a[1]")], "load"),
        ([("run.py", "<module>", "net()"), (f"{LIBRARY}/keras/applications/e.py", "EfficientNetB0", "x")], "load"),
        ([("t.py", "_do_train", "x"), ("nn/tasks.py", "forward", "return self.predict(x)"), ("nn/tasks.py", "predict", "x"), ("nn/tasks.py", "_predict_once", "x = m(x)")], "train"),
        ([("p.py", "stream_inference", "x"), ("nn/backend.py", "warmup", "self.forward(im)")], "eval"),
        ([("s.py", "serve", "x"), ("s.py", "warmup", "x")], "load"),
        ([("t.py", "<module>", "losses = estimate_loss()"), ("t.py", "estimate_loss", "model(x)")], "eval"),
        ([("t.py", "main", "x"), ("t.py", "DumpModels", "x")], "save"),
        ([("t.py", "train", "x"), ("agent.py", "_save_obs", "x")], "train"),
        ([("t.py", "train", "x"), (f"{LIBRARY}/wandb/sdk/lib/sock.py", "load_settings", "x")], "train"),
        ([("run.py", "<module>", "work()"), ("run.py", "work", "a / b")], "unknown"),
        ([("solve.py", "<module>", "pickle.dump(result, file)")], "save"),
        (
            [
                ("export.py", "restore_key", "key = pickle.load(file)"),
                ("/env/lib/python3.10/site-packages/torch/storage.py", "_load_from_bytes", "return torch.load(x)"),
                ("/env/lib/python3.10/site-packages/torch/serialization.py", "validate_cuda_device", "raise RuntimeError("),
            ],
            "load",
        ),
    ],
)  # fmt: skip
def test_frames(frames: list[tuple[str, str, str]], phase: str) -> None:
    assert of_frames(frames) == phase


def test_a_stack_of_the_thread_that_died() -> None:
    lines = [
        "Thread 0x01 (most recent call first):",
        '  File "/p/load.py", line 3 in load_all',
        "Current thread 0x02 (most recent call first):",
        '  File "/p/net.py", line 20 in forward',
        '  File "/p/a.py", line 50 in train_step',
        "Thread 0x03 (most recent call first):",
        '  File "/p/b.py", line 5 in evaluate',
    ]
    assert of_stack(lines) == "train"


@pytest.mark.parametrize(("solver", "phase"), [("Test", "eval"), ("Step", "train"), ("Init", "load")])
def test_a_native_stack(solver: str, phase: str) -> None:
    text = (
        "F0101 10:00:00.000000  77 m.cpp:9] Check failed: error == cudaSuccess (30 vs. 0)  unknown error\n"
        "*** Check failure stack trace: ***\n"
        f"    @     0x7f01  caffe::Solver<>::{solver}()\n    @     0x7f02  caffe::Solver<>::Solve()\nAborted (core dumped)\n"
    )
    assert phase_of(text) == phase


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Start training for 3 epochs", "train"),
        ("\t Started Training", "train"),
        ("INFO:root:[19,  2150/ 2562] - train_losses - first: 2.697 - second: 0.1", "train"),
        ("[7/200]: dloss: 0.12, gloss: 0.33", "train"),
        ("loss_rec = 0.31, psnr 20", "train"),
        ("loss function: mse", ""),
        ("[12]\ttrain-rmse:0.5\teval-rmse:0.6", "train"),
        ("3:\tlearn: 0.69\ttest: 0.68", "train"),
        ("|    train/   |      |", "train"),
        ("Evaluation", "eval"),
        ("Test: [ 10/391]  Time 0.1", "eval"),
        ("Summoning checkpoint.", "save"),
        ("got prompt", "generate"),
        ("Preparing data ...", "load"),
        ("Downloading:  10%|█         | 3M/30M [00:01<00:09]", "load"),
        ("Loading data... done", ""),
        ("Training such a network is simple. Read on, and try it out on your own machine.", ""),
        ("hello", ""),
    ],
)
def test_headings(line: str, phase: str) -> None:
    assert phases.of_heading(line) == phase


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("ModuleNotFoundError: No module named 'x'", "load"),
        ("omegaconf.errors.ConfigAttributeError: Key 'a' is not in struct", "load"),
        ("Epoch 3\nModuleNotFoundError: No module named 'x'", "train"),
        ("ValueError: bad", "unknown"),
    ],
)
def test_errors_that_come_at_the_start(text: str, phase: str) -> None:
    assert phase_of(text) == phase


def test_a_nan_found_at_scoring_was_made_in_training() -> None:
    frames = '  File "a.py", line 3, in train_model\n    x\n  File "a.py", line 9, in evaluate\n    x\n'
    header = "Traceback (most recent call last):\n"
    assert phase_of(f"{header}{frames}ValueError: Input contains NaN.") == "train"
    assert phase_of(f"{header}{frames}ValueError: bad") == "eval"


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("    return Variable._execution_engine.run_backward(  # the C++ engine\n           ^^^^^\nRuntimeError: CUDA error: out of memory", "train"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[64,9]\n  [[Node: pool]]\n  [[Node: gradients/cell_8/Norm_grad]]", "train"),
        ("RuntimeError: Function 'PowBackward0' returned nan values in its 0th output.", "train"),
        ("RuntimeError: One of the subprocesses has abruptly died during map operation.", "load"),
        ("Error during evaluation: 'Net' object has no attribute 'eval'\nValueError: Error during evaluation of the net", "eval"),
        ("llama_kv_cache_init: CUDA0 KV buffer size = 9 MiB\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 9.00 MiB on device 0: cudaMalloc failed: out of memory", "load"),
        ('SafetensorError: Error while serializing: IoError(Os { code: 28, message: "No space left on device" })', "save"),
    ],
)  # fmt: skip
def test_an_errors_own_lines_tell_the_phase(text: str, phase: str) -> None:
    assert phase_of(text) == phase


def test_a_key_of_a_configuration_announces_nothing() -> None:
    assert phases.of_heading("evaluation:") == ""
    assert phases.of_heading("Evaluating on 100 images") == "eval"


def test_a_loss_that_is_no_number_is_the_trainings() -> None:
    text = (
        "Epoch 0:   0%|    | 16/224174 [01:41<395:02:20,  0.16it/s, loss=1.0]\n"
        "[Data] Loading video: /d/a.mp4\n[Module] training_step -> loss: nan\n"
    )
    assert phase_of(text) == "train"


def test_a_wrapper_that_tells_nothing_does_not_hide_the_phase() -> None:
    text = (
        "Error executing job with overrides: []\n"
        'Traceback (most recent call last):\n  File "run.py", line 3, in main\n    net = build()\n'
        '  File "run.py", line 9, in build_model\n    x()\nValueError: bad width\n'
    )
    assert phase_of(text) == "load"


def test_a_script_that_downloads_or_prepares_loads_whatever_it_is_for() -> None:
    scripts = {
        "downloader_wp_test.py": "load",
        "prepare_train.py": "load",
        "train.py": "train",
        "test.py": "eval",
    }
    assert {name: phases.of_script(name) for name in scripts} == scripts


BAR = " {percent}%|███       | {step}/400 [00:{step:02}<01:21,  8.0it/s]"


def loop(*lines: str) -> str:
    return phase_of(
        "\n".join([*lines, "slurmstepd: error: *** JOB 42 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***"])
    )


def test_a_bare_bar_below_an_epoch_is_a_training() -> None:
    bars = [BAR.format(percent=step // 4, step=step) for step in range(10, 50, 10)]
    assert loop("Epoch 1/30", *bars) == "train"
    assert loop("Epoch 1/30", *bars, "Evaluating", *bars[:1]) == "eval"
    assert loop("Loaded the model of epoch: 30", *bars) == "unknown"
    other = bars[0].replace("/400", "/80")
    assert loop("Epoch 1/30", *bars, other) == "unknown", "which of the two loops trains nobody says"


def test_a_loop_that_saves_on_its_way_is_a_training() -> None:
    bars = [BAR.format(percent=step // 4, step=step) for step in range(10, 50, 10)]
    assert loop("Hello", *bars[:2], "Saving model to a.pt", *bars[2:]) == "train"
    assert loop("Hello", *bars[:2], "Saving model to a.pt") == "save"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Now loading dataset file music-ratings", "load"),
        ("Setting up style layer  2 : relu1_1", "load"),
        ("      #Test samples 1000", ""),
        ("      #Val samples 300", ""),
        ("Test samples: accuracy 0.9", ""),
        ("Testing", "eval"),
        ("0: Running validation on dev set", "eval"),
        ("train_step begins...", "train"),
    ],
)
def test_what_a_line_announces(line: str, phase: str) -> None:
    assert phases.of_heading(line) == phase


def test_a_model_that_could_not_be_made_ready() -> None:
    assert phases.of_error("Unable to warmup model: out of memory") == "load"
    assert phases.of_error("Failed to load the model: no such file") == "load"
    assert phases.of_error("Failed to load batch 3") == "unknown"


def test_a_heading_says_more_than_a_scripts_name() -> None:
    cut = 'Traceback (most recent call last):\n  File "train.py", line 527, in <module>\n    main()\n'
    assert phase_of(f"0: TRAIN [0][10/16] Loss 10.5\n0: Running validation on dev set\n{cut}") == "eval"
    assert phase_of(f"Hello\n{cut}") == "train"


def test_what_a_loop_gives_is_not_what_it_is_given() -> None:
    assert phases.of_words("get_train_data") == "load"
    assert phases.of_words("get_output_data") != "load"


def test_a_notebooks_frames_as_they_are_copied() -> None:
    link = "](https://localhost:8080/#)"
    text = (
        "OutOfMemoryError                 Traceback (most recent call last)\n"
        f"[<ipython-input-7-2c9b0f02eea8>{link} in <cell line: 3>()\n      1 x = 1\n----> 3 evaluate(model)\n\n"
        f"[<ipython-input-6-2c9b0f02eea8>{link} in evaluate(model)\n     11 \n---> 12     model(batch)\n\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert phase_of(text) == "eval"
