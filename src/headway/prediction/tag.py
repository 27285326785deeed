"""Tag the words of sentences: named entities, or any other tag per word.

    [tagged] = headway.tag(model, ["Peter Blackburn visits Rome."])
    tagged.tags                                # ['B-PER', 'I-PER', 'O', 'B-LOC', 'O']
    tagged.entities[0].text                    # 'Peter Blackburn'

Tags in BIO or BIOES are decoded so that they form a valid sequence (viterbi.py).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headway.data.tag_schemes import entity_spans, mark_entities
from headway.data.words import Word, split_words
from headway.models.base import Model
from headway.models.heads import Tagger
from headway.prediction.batching import DEFAULT_BATCH_SIZE, OnProgress, as_texts
from headway.prediction.heads import require_head
from headway.prediction.viterbi import TagRules, decode_tags
from headway.prediction.word_scores import word_log_probs


@dataclass(frozen=True)
class Entity:
    """An entity of a text; `start` and `end` are characters of the text, `end` is exclusive."""

    type: str
    text: str
    start: int
    end: int
    score: float  # the mean probability of the tags of its words


@dataclass(frozen=True)
class TaggedText:
    """A text with a tag for every word."""

    text: str
    words: list[Word]
    tags: list[str]
    probabilities: list[float]  # of each word's tag, on its own
    entities: list[Entity]  # empty if the tags do not mark entities

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "text": self.text,
            "words": [word.text for word in self.words],
            "offsets": [[word.start, word.end] for word in self.words],
            "tags": self.tags,
            "probabilities": self.probabilities,
            "entities": [asdict(entity) for entity in self.entities],
        }


def tag(
    model: Model,
    sentences: Sequence[str | Sequence[str]],
    *,
    constrained: bool = True,
    context: int | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
) -> list[TaggedText]:
    """Tag sentences. A sentence is a text, which `headway.data.words.split_words` splits, or a list of words.

    With `constrained`, tags in BIO or BIOES form a valid sequence, the most probable one; otherwise each word gets its
    most probable tag. Sentences longer than `context` tokens (default: the model's) are read in overlapping windows.
    """
    tagger = require_head(model, Tagger, "tag")
    sentences = as_texts(sentences, _is_sentence, "tag", "sentences")
    texts, words = _split(sentences)
    labels = tagger.config.labels
    rules = TagRules.of(labels) if constrained else None
    log_probs = word_log_probs(
        tagger,
        [[word.text for word in sentence] for sentence in words],
        context=context,
        batch_size=batch_size,
        on_progress=on_progress,
    )
    has_entities = mark_entities(labels)
    results = []
    for text, sentence, scores in zip(texts, words, log_probs, strict=True):
        ids = decode_tags(scores, rules)
        tags = [labels[id] for id in ids]
        probabilities = np.exp(scores[np.arange(len(ids)), ids]).tolist()
        entities = _entities(text, sentence, tags, probabilities) if has_entities else []
        results.append(TaggedText(text, sentence, tags, probabilities, entities))
    return results


def _is_sentence(sentence: object) -> bool:
    if isinstance(sentence, str):
        return True
    return isinstance(sentence, Iterable) and all(isinstance(word, str) for word in sentence)


def _split(sentences: Sequence[str | Sequence[str]]) -> tuple[list[str], list[list[Word]]]:
    """The texts, and the words of each; given words are joined by spaces."""
    texts, words = [], []
    for sentence in sentences:
        if isinstance(sentence, str):
            texts.append(sentence)
            words.append(split_words(sentence))
        else:
            texts.append(" ".join(sentence))
            ends = np.cumsum([len(word) + 1 for word in sentence]) - 1
            words.append([Word(word, int(end) - len(word), int(end)) for word, end in zip(sentence, ends, strict=True)])
    return texts, words


def _entities(text: str, words: list[Word], tags: list[str], probabilities: list[float]) -> list[Entity]:
    entities = []
    for type, first, last in entity_spans(tags):
        start, end = words[first].start, words[last].end
        score = float(np.mean(probabilities[first : last + 1]))
        entities.append(Entity(type, text[start:end], start, end, score))
    return entities
