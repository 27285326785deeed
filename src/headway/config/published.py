"""Published models: year, size as printed, training tokens. `headway models` prints them beside the exact counts.

Models that Headway cannot build are here too, with the feature that it lacks.
"""

from typing import NamedTuple


class PublishedModel(NamedTuple):
    year: int
    source: str
    printed: str = ""  # the number of parameters as the paper prints it
    tokens: float | None = None  # of training, where published


class UnbuildableModel(NamedTuple):
    """A model without a preset."""

    published: PublishedModel
    n_layers: str
    d_model: int
    n_heads: int
    reason: str

    def error(self, name: str) -> str:
        return f"{name} cannot be built: Headway lacks {self.reason}"


_GPT3 = "Brown et al. 2020, Table 2.1"
_LLAMA1 = "Touvron et al. 2023a, Table 2"
_LLAMA2 = "Touvron et al. 2023b, Table 1"
_LLAMA3 = "Grattafiori et al. 2024, Table 3"
_TURC = "Turc et al. 2019"
_T5 = "Raffel et al. 2020, §3.7"

PUBLISHED: dict[str, PublishedModel] = {
    "transformer-base": PublishedModel(2017, "Vaswani et al. 2017, Table 3", "65M"),
    "transformer-big": PublishedModel(2017, "Vaswani et al. 2017, Table 3", "213M"),
    "gpt1": PublishedModel(2018, "Radford et al. 2018, §4.1; size as released", "117M"),
    "bert-base": PublishedModel(2018, "Devlin et al. 2019, §3", "110M"),
    "bert-large": PublishedModel(2018, "Devlin et al. 2019, §3", "340M"),
    "bert-tiny": PublishedModel(2019, _TURC, "4.4M"),
    "bert-small": PublishedModel(2019, _TURC, "29.1M"),
    "bert-medium": PublishedModel(2019, _TURC, "41.7M"),
    "gpt2": PublishedModel(2019, "Radford et al. 2019, Table 2", "117M"),
    "gpt2-medium": PublishedModel(2019, "Radford et al. 2019, Table 2", "345M"),
    "gpt2-large": PublishedModel(2019, "Radford et al. 2019, Table 2", "762M"),
    "gpt2-xl": PublishedModel(2019, "Radford et al. 2019, Table 2", "1542M"),
    "gpt3-small": PublishedModel(2020, _GPT3, "125M", 300e9),
    "gpt3-medium": PublishedModel(2020, _GPT3, "350M", 300e9),
    "gpt3-large": PublishedModel(2020, _GPT3, "760M", 300e9),
    "gpt3-xl": PublishedModel(2020, _GPT3, "1.3B", 300e9),
    "gpt3-2.7b": PublishedModel(2020, _GPT3, "2.7B", 300e9),
    "gpt3-6.7b": PublishedModel(2020, _GPT3, "6.7B", 300e9),
    "gpt3-13b": PublishedModel(2020, _GPT3, "13.0B", 300e9),
    "gpt3-175b": PublishedModel(2020, _GPT3, "175B", 300e9),
    "llama-7b": PublishedModel(2023, _LLAMA1, "6.7B", 1.0e12),
    "llama-13b": PublishedModel(2023, _LLAMA1, "13.0B", 1.0e12),
    "llama-33b": PublishedModel(2023, _LLAMA1, "32.5B", 1.4e12),
    "llama-65b": PublishedModel(2023, _LLAMA1, "65.2B", 1.4e12),
    "llama-2-7b": PublishedModel(2023, _LLAMA2, "7B", 2.0e12),
    "llama-2-13b": PublishedModel(2023, _LLAMA2, "13B", 2.0e12),
    "llama-2-70b": PublishedModel(2023, _LLAMA2, "70B", 2.0e12),
    "llama-3-8b": PublishedModel(2024, _LLAMA3, "8B", 15e12),
    "llama-3-70b": PublishedModel(2024, _LLAMA3, "70B", 15e12),
    "llama-3-405b": PublishedModel(2024, _LLAMA3, "405B", 15.6e12),
}

_T5_REASON = "bucketed relative position biases"
NOT_BUILDABLE: dict[str, UnbuildableModel] = {
    "t5-small": UnbuildableModel(PublishedModel(2019, _T5, "60M", 1e12), "6+6", 512, 8, _T5_REASON),
    "t5-base": UnbuildableModel(PublishedModel(2019, _T5, "220M", 1e12), "12+12", 768, 12, _T5_REASON),
    "t5-large": UnbuildableModel(PublishedModel(2019, _T5, "770M", 1e12), "24+24", 1024, 16, _T5_REASON),
    "t5-3b": UnbuildableModel(PublishedModel(2019, _T5, "2.8B", 1e12), "24+24", 1024, 32, _T5_REASON),
    "t5-11b": UnbuildableModel(PublishedModel(2019, _T5, "11B", 1e12), "24+24", 1024, 128, _T5_REASON),
    "lamda-137b": UnbuildableModel(
        PublishedModel(2022, "Thoppilan et al. 2022, §3; tokens: Hoffmann et al. 2022, Table 1", "137B", 168e9),
        "64",
        8192,
        128,
        "bucketed relative position biases, gated GELU",
    ),
    "chinchilla-70b": UnbuildableModel(
        PublishedModel(2022, "Hoffmann et al. 2022, Table 4", "70B", 1.4e12),
        "80",
        8192,
        64,
        "Transformer-XL's relative positions",
    ),
    "palm-540b": UnbuildableModel(
        PublishedModel(2022, "Chowdhery et al. 2022, Table 1", "540B", 780e9),
        "118",
        18_432,
        48,
        "attention and feed-forward in parallel",
    ),
}
