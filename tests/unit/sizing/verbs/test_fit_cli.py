"""`oomproof fit`: what cannot be answered is one line with a hint, before anything is run."""

from __future__ import annotations

import pytest

from oomproof.cli.main import main
from oomproof.sizing import script_sizing


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no command to fit"),
        (["--", "python", "t.py", "--lr", "1"], "nothing of the command can change"),
        (["--", "python", "t.py", "--config=conf/run.yaml"], "; conf/run.yaml is not edited: a value in it"),
        (["--", "python", "t.py", "{seq}"], "nothing says what {seq} may be"),
        (["--knob", "seq=1,2", "--", "python", "t.py", "{batch}"], "the command does not use {seq}"),
        (
            ["--knob", "batch=7,5,3", "--effective", "64", "--", "python", "t.py", "{batch}", "{accum}"],
            "no micro-batch",
        ),
        (["--effective", "64", "--", "python", "t.py", "{accum}"], "--effective needs a batch"),
        (["--knob", "batch=4..64", "--", "python", "t.py", "{batch}"], "begins with the smaller value"),
        (
            ["--order", "lr", "--gpu", "8G", "--ram", "8G", "--", "python", "t.py", "{batch}"],
            "--order names lr",
        ),
        (["--gpu", "much", "--ram", "8G", "--", "python", "t.py", "{batch}"], "cannot read 'much' as a size"),
    ],
)
def test_bad_questions(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(*given: object, **options: object) -> None:
        pytest.fail("nothing may be run for this")

    monkeypatch.setattr(script_sizing, "size_command", ran)
    assert main(["fit", *words]) == 2
    told = capsys.readouterr().err
    assert says in told and "hint: " in told
