"""The mock interview in a terminal: its tree, its rubric, its summary."""

import subprocess
import sys

import pytest

from normlab import cli, interview
from normlab.interview import mock

BANK = interview.questions()
BOOK = {item["id"]: item for item in BANK}


def paths(name="answer", taken=()):
    """All ways through the tree, as lists of (step, grade)."""
    for grade, following in mock.TREE[name].items():
        way = (*taken, (name, grade))
        yield from [way] if following is None else paths(following, way)


def test_the_tree_is_a_tree_that_depends_on_every_grade():
    ways = list(paths())
    assert set(mock.TREE["answer"]) == {str(points) for points in range(len(mock.POINTS) + 1)}
    assert all(set(grades) == {"right", "wrong"} for name, grades in mock.TREE.items() if name != "answer")
    assert {step for way in ways for step, _ in way} == set(mock.TREE)
    assert all(len({step for step, _ in way}) == len(way) <= 5 for way in ways)  # no step twice
    assert len({mock.TREE["answer"][grade] for grade in "0 2 3".split()}) == 3
    assert all(mock.TREE[name]["wrong"] is None for name in mock.TREE if name != "answer")


class Script:
    """Answers to the prompts of a round, and a clock that runs a minute for each reading."""

    def __init__(self, *grades: str):
        self.grades, self.said, self.now = list(grades), [], 0.0

    def read(self, prompt: str) -> str:
        self.said.append(prompt)
        self.now += 60
        return self.grades.pop(0) if "[y/n]" in prompt else ""

    def ask(self, question):
        found = mock.ask(question, self.read, self.said.append, lambda: self.now)
        assert self.grades == []
        return found


@pytest.mark.parametrize("way", list(paths()), ids=lambda way: "-".join(grade for _, grade in way))
def test_a_round_follows_the_tree(way):
    question = BOOK["ln-vs-rms"]
    (_, points), *rest = way
    yes = ["y"] * int(points) + ["n"] * (3 - int(points))
    script = Script(*yes, *("y" if grade == "right" else "n" for _, grade in rest))
    found = script.ask(question)
    assert found.points == int(points) and found.seconds == 60
    assert found.missed == [step for step, grade in rest if grade == "wrong"]
    assert found.to_revise == (points != "3" or bool(found.missed))
    text = " ".join(" ".join(script.said).split())
    for name in mock.TREE:
        asked = " ".join(mock.plain(mock.step(question, name)[0]).split())
        assert (asked in text) == (name in {step for step, _ in way}), name


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_every_question_has_a_rubric_and_every_step(item):
    points = mock.rubric(item)
    assert len({text for _, text in points}) == len(points) == 3
    assert all(pair["answer"] in points[1][1] for pair in item["wrong"])
    steps = [mock.step(item, name) for name in mock.TREE]
    assert len({asked for asked, _ in steps}) == len(steps)
    assert all(answer.strip() for _, answer in steps)


def test_an_unknown_step_is_named():
    with pytest.raises(ValueError, match="step must be one of answer, again, mistake, first, second, got 'third'"):
        mock.step(BANK[0], "third")


def test_what_fits():
    assert mock.fitting(BANK) == BANK
    found = mock.fitting(BANK, tier="must", level="L1", minutes=2)
    assert found and all((q["tier"], q["level"]) == ("must", "L1") and q["minutes"] <= 2 for q in found)
    assert {q["id"] for q in BANK if q["tier"] == "must" and q["level"] == "L1" and q["minutes"] < 3} == {q["id"] for q in found}


def test_the_summary_says_what_to_revise_and_where():
    good, weak = mock.Round(BANK[0], 3, 10.0), mock.Round(BANK[1], 2, 10.0, ["mistake"])
    assert mock.summary([]) == "No question was answered."
    assert mock.summary([good]) == "1 answered, 3 of 3 points.\nNothing to revise among these."
    text = mock.summary([good, weak])
    assert text.startswith("2 answered, 5 of 6 points.\nTo revise:")
    assert f"book/interview/must.html#question-{BANK[1]['id']}" in text and BANK[0]["id"] not in text
    assert "2 of 3, missed: mistake" in text and all(claim in text for claim in BANK[1]["claims"])


def run(*arguments: str, said: str = "") -> subprocess.CompletedProcess:
    program = "import sys; from normlab import cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "interview", *arguments]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=60)


def test_the_command_in_a_terminal():
    good = "\ny\ny\ny\n\ny\n\ny\n"
    done = run("--tier", "must", "--level", "L1", "--seed", "1", "--questions", "2", said=2 * good)
    assert done.returncode == 0 and done.stderr == ""
    assert "2 answered, 6 of 6 points." in done.stdout and "{claim}" not in done.stdout
    assert done.stdout == run("--tier", "must", "--level", "L1", "--seed", "1", "--questions", "2", said=2 * good).stdout
    broken_off = run("--seed", "1", said="\nmaybe\ny\n")
    assert broken_off.returncode == 0 and "No question was answered." in broken_off.stdout


def test_what_the_command_refuses(capsys):
    assert cli.main(["interview", "--level", "L1", "--minutes", "0"]) == 2
    assert "no question fits" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        cli.main(["interview", "--questions", "0"])
    assert stopped.value.code == 2 and "--questions must be at least 1, got 0" in capsys.readouterr().err


def test_the_interview_needs_no_torch():
    program = "import sys; from normlab.interview import mock; mock.summary([]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "yaml"} & set(done.stdout.split())
