"""The directory layouts of Hugging Face transformers, one file per architecture; layout.py explains the tables.

`LAYOUTS` lists, for each Headway model class, the layouts it may be saved in. The first one that fits its config is
used; a model that none fits is saved as `headway-…`.
"""

from headway.models.hf.bert import BERT_CLASSIFIER, BERT_ENCODER, BERT_MASKED_LM, BERT_SPAN_READER, BERT_TAGGER
from headway.models.hf.gpt2 import GPT1, GPT2
from headway.models.hf.layout import Layout, TensorMapping
from headway.models.hf.llama import LLAMA
from headway.models.hf.marian import MARIAN, PEGASUS

LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "GPT": (GPT2, GPT1, LLAMA),
    "BERT": (BERT_ENCODER,),
    "Transformer": (MARIAN, PEGASUS),
    "MaskedLM": (BERT_MASKED_LM,),
    "Classifier": (BERT_CLASSIFIER,),
    "Tagger": (BERT_TAGGER,),
    "SpanReader": (BERT_SPAN_READER,),
}

__all__ = ["LAYOUTS", "Layout", "TensorMapping"]
