"""Words that have no place on a command line are answered with the command that was meant."""

import pytest

from headway.cli.unexpected_words import COMMANDS
from tests.cli.running import run
from tests.cli.test_help import HEADWAY


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("sample runs/demo", "no command 'sample'; did you mean headway generate?"),
        ("evaluate runs/demo", "no command 'evaluate'; did you mean headway eval?"),
        ("curves runs/demo", "no command 'curves'; did you mean headway show curves?"),
        ("generat runs/demo", "No such command 'generat'. Did you mean 'generate'?"),
        ("GENERATE runs/demo", "No such command 'GENERATE'. Did you mean 'generate'?"),
        ("show atention runs/demo", "No such command 'atention'. Did you mean 'attention'?"),
        ("check resum demo", "No such command 'resum'. Did you mean 'resume'?"),
        ("tokenizer trian my.txt", "No such command 'trian'. Did you mean 'train'?"),
        ("atention runs/demo", "no command 'atention'; did you mean headway show attention?"),
        ("show genrate runs/demo", "no command 'genrate'; did you mean headway generate?"),
        ("show tokenizer my-bpe", "no command 'tokenizer'; did you mean headway tokenizer?"),
        ("frobnicate", "No such command 'frobnicate'; headway --help lists the commands"),
        ("show frobnicate", "No such command 'frobnicate'; headway show --help lists the commands"),
        ("generate runs/demo Once upon a time", 'quote the prompt: headway generate runs/demo "Once upon a time"'),
        ("generate runs/demo Once it cost '$5'", "quote the prompt: headway generate runs/demo 'Once it cost $5'"),
        ("show attention runs/demo The cat is in", 'quote the text: headway show attention runs/demo "The cat is in"'),
        ("train demo --set data.path my.txt", "--set takes NAME=VALUE without spaces: --set data.path=my.txt"),
        ("train demo --set train.steps = 20", "--set takes NAME=VALUE without spaces: --set train.steps=20"),
        ("train demo --set train.steps= 20", "--set takes NAME=VALUE without spaces: --set train.steps=20"),
        ("train demo --set train.steps =20", "--set takes NAME=VALUE without spaces: --set train.steps=20"),
        ("train demo --set train.steps=20 words", "unexpected 'words': headway train takes only RECIPE"),
        ("generate runs/demo --temperature hot", "'--temperature': 'hot' is not a number"),
        ("generate runs/demo --top-k=2.5", "'--top-k': '2.5' is not a whole number"),
        ("show curves runs/demo --x foo", "'foo' is not one of 'step', 'seconds', 'tokens'.\n"),
        (
            "show curves runs/demo --x stpe",
            "'stpe' is not one of 'step', 'seconds', 'tokens'. Did you mean 'step'?",
        ),
        ("show curves runs/demo --theme=drak", "'drak' is not one of 'light', 'dark'. Did you mean 'dark'?"),
        ("eval runs/demo --split tset", "'tset' is not one of 'valid', 'test'. Did you mean 'test'?"),
    ],
)
def test_the_answer_is_the_command_that_was_meant(command, answer, capsys):
    code, out, err = run(command, capsys)
    assert (code, out) == (2, "")
    assert answer in err
    assert "Value error" not in err


def test_the_names_of_other_tools_lead_to_commands_that_exist():
    assert {*COMMANDS.values()} <= {*HEADWAY.commands}
    assert not {*COMMANDS} & {*HEADWAY.commands}
