"""The table of samplers: complete, free of torch, and the one source of flags, `--list-samplers` and the docs."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli import app
from headway.cli.sampler_options import COMMON_FLAGS, flag_help, list_samplers, samplers_markdown
from headway.errors import ConfigError
from headway.generation.sampling_params import DEFAULT_TEMPERATURE
from headway.sampling import FLAT_NAMES, ORDER_PRESETS, SAMPLER_SPECS, SAMPLERS
from headway.sampling.specs import GROUPS, SHARED_PARAMETERS, flat_name

DOCS = Path(__file__).parents[2] / "docs" / "decoding.md"


def flags():
    """The options of `headway generate` between --greedy and --sampler-preset: those that set samplers."""
    options = app.parser.commands["generate"].params
    names = [option.name for option in options]
    return {option.name: option for option in options[names.index("greedy") + 1 : names.index("sampler_preset")]}


def test_every_entry_has_a_function_and_a_group():
    assert list(SAMPLERS) == list(SAMPLER_SPECS) == ORDER_PRESETS["default"]
    assert {spec.group for spec in SAMPLER_SPECS.values()} == set(GROUPS)
    for name, sampler in SAMPLERS.items():
        accepted = inspect.signature(sampler.function).parameters
        assert list(accepted)[1 : 1 + len(sampler.parameters)] == list(sampler.parameters), name


@pytest.mark.parametrize("module", ["headway.sampling.specs", "headway.sampling.stop_strings", "headway.cli.generate"])
def test_the_table_and_the_flags_import_no_torch(module):
    check = f"import sys, {module}; assert not {{'torch', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_flat_names_are_unique_and_lead_to_their_parameter():
    assert FLAT_NAMES["top_k"] == ("top_k", "k")
    assert FLAT_NAMES["dry_multiplier"] == ("dry", "multiplier")
    assert FLAT_NAMES["repetition_window"] == ("repetition_penalty", "window")
    assert FLAT_NAMES["mirostat_v2_tau"] == ("mirostat_v2", "tau")
    assert len(FLAT_NAMES) == sum(len(spec.parameters) for spec in SAMPLER_SPECS.values())
    assert all(flat_name(sampler, parameter) == flat for flat, (sampler, parameter) in FLAT_NAMES.items())


def test_every_default_off_and_usual_value_is_in_range():
    for spec in SAMPLER_SPECS.values():
        for name, parameter in spec.parameters.items():
            for value in (parameter.default, parameter.off):
                assert value is None or parameter.check(name, value) == value
            for number in re.findall(r"\d[\d.e-]*", parameter.usual):
                assert parameter.check(name, float(number)) == float(number)


def test_flags_are_exactly_the_table():
    expected = {flat for flat, (sampler, name) in FLAT_NAMES.items() if SAMPLER_SPECS[sampler].parameters[name].flag}
    assert set(flags()) == expected | set(SHARED_PARAMETERS)
    assert set(FLAT_NAMES) - expected == {
        "min_new_tokens_eos_ids",
        "xtc_protected",
        *(flat for flat in FLAT_NAMES if flat.endswith("_min_keep")),
    }


def test_every_flag_is_its_flat_name_and_its_help_has_one_form():
    form = re.compile(r"(?P<help>[A-Z].+) \(.+\)\.( Off: \S+\.)?( Default: \S+\.)?( Usual: .+\.)?")
    for flat, option in flags().items():
        sampler, name = FLAT_NAMES.get(flat, ("", flat))
        parameter = SAMPLER_SPECS[sampler].parameters[name] if sampler else SHARED_PARAMETERS[name]
        assert option.opts[0] == "--" + flat.replace("_", "-")
        if flat in COMMON_FLAGS:  # short in --help; --help-samplers has the whole text
            assert option.help == COMMON_FLAGS[flat]
            continue
        assert option.help.endswith(flag_help(parameter))
        assert form.fullmatch(flag_help(parameter)), flag_help(parameter)
        if parameter.off is not None:
            assert f"Off: {parameter.off:g}." in option.help


def test_the_default_temperature_is_in_the_help():
    assert f"uses {DEFAULT_TEMPERATURE:g} by default" in SAMPLER_SPECS["temperature"].summary


def test_list_samplers_prints_every_flat_name(capsys):
    list_samplers(json=False)
    out = capsys.readouterr().out
    listed = set(re.findall(r"^ +(\w+): ", out, re.MULTILINE))
    assert listed == {flat for flat in FLAT_NAMES if not flat.endswith("_min_keep")} | set(SHARED_PARAMETERS)
    assert all(re.search(rf"^{name} ", out, re.MULTILINE) for name in SAMPLERS)


def test_the_docs_have_the_tables_of_samplers():
    tables = DOCS.read_text(encoding="utf-8").split("<!-- samplers -->\n")[1].split("<!-- /samplers -->")[0]
    assert tables == samplers_markdown(), "replace the part between the markers by samplers_markdown()"


def test_switches_turn_a_sampler_on():
    assert SAMPLER_SPECS["xtc"].switches == ["probability"]
    assert SAMPLER_SPECS["dynamic_temperature"].switches == ["low", "high"]
    for spec in SAMPLER_SPECS.values():
        if spec.group != "mirostat":
            assert spec.is_off({name: rows[0] for name, rows in spec.parse({}).items()}), spec.name
    with pytest.raises(ConfigError, match=r"xtc has no parameter 'treshold'. Did you mean 'threshold'"):
        SAMPLER_SPECS["xtc"].parse({"treshold": 0.1})
