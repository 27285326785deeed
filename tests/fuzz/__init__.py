"""Fuzzers: damaged files, hostile values, signals and kills. `make fuzz` runs them for an hour, CI for half a minute.

An area is a file here; each of its cases is a function of a seed, so a finding can be repeated:

    python -m tests.fuzz models --case 1234 --seed 1

A finding is an exception that is not a HeadwayError, a wrong result, a case over 10 s, a process over 1 GB, or a hang.
"""

AREAS = {  # name → where its class is
    "models": "tests.fuzz.models:Models",
    "configs": "tests.fuzz.configs:Configs",
    "tokenizers": "tests.fuzz.tokenizers:Tokenizers",
    "caches": "tests.fuzz.caches:Caches",
    "data_files": "tests.fuzz.data_files:DataFiles",
    "recipes": "tests.fuzz.recipes:Recipes",
    "scores": "tests.fuzz.scores:Scores",
    "commands": "tests.fuzz.commands:Commands",
    "processes": "tests.fuzz.commands:Processes",
    "runs": "tests.fuzz.runs:Runs",
    "kills": "tests.fuzz.kills:Kills",
    "loads": "tests.fuzz.loads:Loads",
    "disk_full": "tests.fuzz.disk_full:DiskFull",
    "writers": "tests.fuzz.writers:Writers",
    "signals": "tests.fuzz.signals:Signals",
}
