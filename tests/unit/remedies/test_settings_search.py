"""Where a run's settings stand: one place or none, and the command line before any file."""

from __future__ import annotations

from pathlib import Path

from oomproof.remedies.fix_files import SettingsFile, find_settings, find_value, settings_files


def file(name: str, text: str, problem: str = "") -> SettingsFile:
    return SettingsFile(f"/p/{name}", name, text, problem)


YAML = file("t.yaml", "data:\n  num_workers: 16\nbatch_size: 64\ngrad:\n  accumulate_grad_batches: 2\n")


def test_each_setting_in_its_place() -> None:
    found = find_settings(["python", "t.py", "--config", "t.yaml"], "/p", [YAML])
    assert str(found.plan) == "workers=16 batch=64 accum=2" and not found.refused
    assert {name: str(place) for name, place in found.places.items()} == {
        "workers": "t.yaml:2", "batch": "t.yaml:3", "accum": "t.yaml:5",
    }  # fmt: skip


def test_persistent_workers_keep_one() -> None:
    """DataLoader(num_workers=0, persistent_workers=True) is a ValueError: the fix would break the script."""
    for text, least in [
        ("kwargs = {'num_workers': 1,\n 'persistent_workers': True}\n", 1),
        ("L(num_workers=4, prefetch_factor=2)\n", 1),
        ("L(num_workers=4, persistent_workers=workers > 0)\n", 0),
    ]:
        (knob,) = (
            knob
            for knob in find_settings(["python", "t.py"], "/p", [file("t.py", text)]).template.knobs
            if knob.kind == "workers"
        )
        assert knob.least == least, text


def test_a_file_that_nobody_could_look_into_is_told() -> None:
    found = find_settings(
        ["python", "t.py", "t.yaml"], "/p", [file("t.yaml", "", "it begins with a byte order mark")]
    )
    assert [(refusal.what, refusal.why) for refusal in found.refused] == [
        ("t.yaml", "it begins with a byte order mark")
    ]


def test_a_python_file_that_the_script_is_given_replaces_its_values(tmp_path: Path) -> None:
    """nanoGPT: python train.py config/train_shakespeare_char.py"""
    for name, batch in (("train.py", 12), ("small.py", 64)):
        (tmp_path / name).write_text(f"batch_size = {batch}\n")
    argv = ["python", "train.py", "small.py", "--device=cpu"]
    found = find_settings(argv, str(tmp_path), settings_files(argv, str(tmp_path), None))
    assert str(found.places["batch"]) == "small.py:1" and not found.refused


def test_the_command_line_counts_before_the_files() -> None:
    found = find_settings(["python", "t.py", "--batch-size", "8"], "/p", [YAML])
    assert found.plan.get("batch") == "8" and "batch" not in found.places and "workers" in found.places


def test_a_launch_script_before_the_settings_and_those_before_the_code() -> None:
    script, code = (
        file("run.sh", "python t.py --batch-size 32\n"),
        file("t.py", "batch_size = 1\nworkers = 4\n"),
    )
    found = find_settings(["sh", "run.sh"], "/p", [code, YAML, script])
    assert str(found.places["batch"]) == "run.sh:1" and str(found.places["workers"]) == "t.yaml:2"


def test_two_places_are_none_unless_one_is_chosen() -> None:
    code = file("t.py", "train = L(num_workers=16)\ntest = L(num_workers=16)\n")
    found = find_settings(["python", "t.py"], "/p", [code])
    assert not found.places
    (refusal,) = found.refused
    assert "t.py:1" in refusal.why and "t.py:2" in refusal.why and "--at t.py:1" in refusal.hint
    chosen = find_settings(["python", "t.py"], "/p", [code], ["t.py:2"])
    assert str(chosen.places["workers"]) == "t.py:2" and not chosen.refused


def test_two_places_of_one_line_cannot_be_told_apart() -> None:
    code = file("t.py", "train, test = L(num_workers=16), L(num_workers=16)\n")
    (refusal,) = find_settings(["python", "t.py"], "/p", [code]).refused
    assert "is set in 2 places" in refusal.why and "they share a line" in refusal.hint


def test_what_may_not_be_changed_is_told_once() -> None:
    link = file("t.yaml", YAML.text, "it is a link that leads out of /p")
    found = find_settings(["python", "t.py"], "/p", [link])
    assert not found.places and [refusal.what for refusal in found.refused] == ["t.yaml"]
    broken = find_settings(["python", "t.py"], "/p", [file("x.yaml", "a: [1"), YAML])
    assert broken.refused[0].what == "x.yaml" and "cannot be read" in broken.refused[0].why and broken.places


def test_words_and_nonsense_are_no_numbers() -> None:
    found = find_settings(
        ["python", "t.py"], "/p", [file("t.yaml", "batch_size: auto\nworkers: -1\naccum: 0\n")]
    )
    assert not found.places and not found.refused


def test_by_name_and_old_value() -> None:
    code = file("t.py", "generate(max_new_tokens=2048)\nother(max_new_tokens=16)\n")
    place, refusal = find_value([code], "max_new_tokens", "2048")
    assert refusal is None and place is not None and str(place) == "t.py:1"
    assert find_value([code], "max_new_tokens", "512") == (None, None)


def test_an_env_file_counts_only_for_a_program_that_reads_it(tmp_path: Path) -> None:
    """A folder with several programs: the .env of one is no setting of the others."""
    argv = ["python", "t.py"]
    (tmp_path / ".env").write_text("# mine\nNUM_WORKERS=16\n")
    for source, place in [
        ("num_workers = 8\n", "t.py:1"),
        ("num_workers = int(os.environ['NUM_WORKERS'])\n", ".env:2"),
        ("import settings\nnum_workers = settings.workers\n", ".env:2"),
        ("from dotenv import load_dotenv\n", ".env:2"),
    ]:
        (tmp_path / "t.py").write_text(source)
        (tmp_path / "settings.py").write_text("class All(BaseSettings): pass\n")
        found = find_settings(argv, str(tmp_path), settings_files(argv, str(tmp_path), None))
        assert str(found.places["workers"]) == place, source
    (tmp_path / "t.py").write_text("")
    (tmp_path / "run.sh").write_text("set -a; . .env\npython t.py\n")
    assert ".env" in [file.shown for file in settings_files(["sh", "run.sh"], str(tmp_path), None)]
