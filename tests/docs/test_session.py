"""What the runner of the pages finds, on pages with planted mistakes."""

import pytest

from tests.docs.blocks import read_blocks, unattached_marks
from tests.docs.commands import SHORT_TRAINING, Printed, run_command, shortened, split_pipeline, split_redirection
from tests.docs.session import Session, what_is_missing


@pytest.fixture
def failures(tmp_path, monkeypatch):
    """Run a page, and return what it reports."""
    monkeypatch.chdir(tmp_path)

    def run(text):
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        return Session(tmp_path / "page.md").run().failures

    return run


NO_STATEMENT = "page.md:3: `# →` follows no statement of the block"
COST = "$ headway cost gpt2 lstm --seq-len 8 --json > cost.json\n$ head -c 1 cost.json\n"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("```python\nx = 0.881\nprint(x)  # → 0.88\n```\n", []),
        ("```python\nx = 0.86\nprint(x)  # → 0.88\n```\n", ["page.md:3: expected 0.88, got 0.86"]),
        ("```python\nx = 0.86\nx  # → 0.88\n```\n", ["page.md:3: expected 0.88, got 0.86"]),
        ("```python\nx = 0.86  # → 0.88\n```\n", ["page.md:2: expected 0.88, got 0.86"]),
        ("```python\nimport torch\ntorch.ones(2)  # → [1, 1]\n```\n", []),
        ("```python\nprint('a\\nb')\n# → a\n# → c\n```\n", ["page.md:4: expected 'c', got 'b'"]),
        ("```python\nfor i in (1, 2):\n    print(i)\n# → 1\n# → 2\n```\n", []),
        ("```python\nfor i in (1, 2):\n    print(i)  # → 1\n    i\n```\n", [NO_STATEMENT]),
        ("```python\nx = 1\n```\n\n```python\nprint(x + 1)  # → 2\n```\n", []),  # one session per page
        ("# A\n\n```python\n\nx = 1\nx.y\n```\n", ["page.md:6: AttributeError: 'int' object has no attribute 'y'"]),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", ["page.md:6: expected 2, got 1"]),
        ("<!-- tolerance: 1 -->\n```python\nprint(1)\n```\n\n```text\n2\n```\n", []),
        ("<!-- output: depends on the run -->\n```python\nprint(1)  # → 2\n```\n", []),
        ("<!-- docs-check: needs a GPU -->\n```python\n1 / 0\n```\n", []),
        ("```console\n$ echo 0.86\n0.88\n```\n", ["page.md:3: expected 0.88, got 0.86"]),
        ("```console\n$ echo a \\\n    b\na b\n$ echo c\nd\n```\n", ["page.md:6: expected 'd', got 'c'"]),
        (f"```console\n{COST}{{\n```\n", []),
        ("```console\n$ headway models gpt2 | head -1 | cut -c 1\n…\n```\n", []),
        ("1. a list\n\n   ```console\n   $ echo 1\n   2\n   ```\n", ["page.md:5: expected 2, got 1"]),
    ],
)  # fmt: skip
def test_a_mistake_is_found_with_its_line(failures, page, expected):
    assert failures(page) == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("headway cost gpt3", "page.md:2: `headway cost gpt3` ended with exit code 2"),
        ("false", "page.md:2: `false` ended with exit code 1"),
        ("pip install torch", "pip is not run: mark the block with <!-- docs-check: REASON -->"),
        ("headway cost gpt2 > /dev/null\nError: no", "ended with exit code 0"),  # the page expects an error
    ],
)
def test_a_command_that_fails_is_named(failures, command, message):
    (failure,) = failures(f"```console\n$ {command}\n```\n")
    assert message in failure


def test_an_error_on_the_page_is_expected(failures):
    assert failures("```console\n$ headway cost gpt9\nError: …'gpt9'…\n…\n```\n") == []


def test_marks_and_their_blocks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- tolerance: 0.1 -->\n<!-- output: a -->\n\n```python\n1\n```\n")
    assert read_blocks(page)[0].marks == {"tolerance": "0.1", "output": "a"}
    assert unattached_marks(page) == []
    page.write_text("<!-- output: a -->\ntext\n```python\n1\n```\n")
    assert [line.number for line in unattached_marks(page)] == [1]


def test_pipelines_and_redirections():
    assert split_pipeline("cat a | headway translate b") == ["cat a", "headway translate b"]
    assert split_pipeline("headway generate a 'x | y'  # a | b") == ["headway generate a 'x | y'  # a | b"]
    assert split_pipeline("head -3 a | cut -f1 > b") == ["head -3 a | cut -f1 > b"]
    assert split_redirection("headway data a > b.txt") == ("headway data a", "b.txt")
    assert split_redirection("echo a > b.txt") == ("echo a > b.txt", None)


def test_environment_variables_last_as_long_as_in_a_shell(monkeypatch):
    monkeypatch.delenv("PAGE_VALUE", raising=False)
    printed = Printed()
    assert run_command("PAGE_VALUE=a printenv PAGE_VALUE", printed) == 0
    assert run_command("printenv PAGE_VALUE", printed) == 1
    assert printed.out == b"a\n"


def test_training_is_shortened_where_output_is_not_compared():
    assert shortened("headway train demo  # a minute") == f"headway train demo {SHORT_TRAINING}"
    assert shortened("headway train demo --print-config") == "headway train demo --print-config"
    assert "--params 50k --tokens 3k" in shortened("headway compare gpt lstm --tokens 5M")
    assert shortened("python a.py") == "python a.py"


def test_what_a_machine_lacks(monkeypatch):
    monkeypatch.delenv("HEADWAY_DATA", raising=False)
    assert what_is_missing("takes two minutes") is None
    assert what_is_missing("needs the package pytest") is None
    assert what_is_missing("needs the package not-there") == "needs the package not-there; it is not installed"
    assert what_is_missing("needs the data set multi30k") == "needs the data set multi30k; HEADWAY_DATA is not set"
    assert what_is_missing("installs packages") == "installs packages"
