"""Published numbers with their sources, quoted by tests."""

# Parameter counts, equal to those of the transformers classes of these shapes (see tests/models/test_sizes.py).
SIZES = {
    "gpt1": 116_534_784,  # of the released weights; Radford et al. 2018 print none
    "gpt2": 124_439_808,  # Radford et al. 2019, Table 2 prints 117M
    "gpt2-medium": 354_823_168,  # … 345M
    "gpt2-large": 774_030_080,  # … 762M
    "gpt2-xl": 1_557_611_200,  # … 1542M
    "bert-base": 109_482_240,  # Devlin et al. 2019, §3 prints 110M
    "bert-large": 335_141_888,  # … 340M
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "transformer-base": 63_082_496,  # Vaswani et al. 2017, Table 3 prints 65M
}

# Brown et al. 2020, Table 2.1: n_params as printed. The shapes agree with it within 4 %, except XL (printed 1.3B): its
# 24 heads of 128 are 1.5 times its width of 2048, which makes 1.517B.
GPT3_PRINTED = {
    "gpt3-small": 125e6,
    "gpt3-medium": 350e6,
    "gpt3-large": 760e6,
    "gpt3-xl": 1.517e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13.0e9,
    "gpt3-175b": 175.0e9,
}
