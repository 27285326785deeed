"""Predicted memory is near what a process really takes."""

import json
import subprocess
import sys

import pytest
import torch

from headway.config import TrainConfig, model_config
from headway.costs import count_parameters, training_memory
from headway.training.memory_measurement import peak_increase

# In a process of its own: what this one has allocated and freed before would hide the increase.
SCRIPT = """
import json, sys, torch
from headway.config import TrainConfig, model_config
from headway.training.memory_measurement import measure_training_memory

torch.set_num_threads(1)
name, settings, train, batch_size, seq_len = json.loads(sys.argv[1])
config, train = model_config(name, settings), TrainConfig(**train)
device = torch.device("cpu")
print(measure_training_memory(config, train, batch_size=batch_size, seq_len=seq_len, device=device))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_training_memory_is_within_15_percent():
    case = json.dumps(["gpt-mini", {"context": 512}, {}, 4, 512])
    result = subprocess.run([sys.executable, "-c", SCRIPT, case], capture_output=True, text=True, check=True)
    config = model_config("gpt-mini", {"context": 512})
    predicted = training_memory(
        config, count_parameters(config), TrainConfig(), batch_size=4, seq_len=512, device_type="cpu"
    )
    assert predicted.total == pytest.approx(int(result.stdout), rel=0.15)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_that_of_the_call():
    increase = peak_increase(lambda: torch.full((64, 1024, 1024), 1.0), torch.device("cpu"))
    assert increase == pytest.approx(2**28, rel=0.02)
