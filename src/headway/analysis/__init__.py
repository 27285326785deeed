"""Look inside models and runs: attention step by step and as maps, input gradients, sampler steps, training curves.

    headway.analysis.attention_steps(Q, K, V, mask)       attention on matrices of your own
    headway.analysis.text_attention_steps(model, text)    one head of a model

Names are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that holds it.
_PUBLIC = {
    "attention_steps": "headway.analysis.worked_attention",
    "weighted_sum": "headway.analysis.worked_attention",
    "text_attention_steps": "headway.analysis.layer_attention",
    "text_attention": "headway.analysis.attention",
    "word_attention": "headway.analysis.token_attention",
    "example_masks": "headway.analysis.mask_gallery",
    "score_scaling": "headway.analysis.dot_product_scaling",
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.analysis.attention import text_attention as text_attention
    from headway.analysis.dot_product_scaling import score_scaling as score_scaling
    from headway.analysis.layer_attention import text_attention_steps as text_attention_steps
    from headway.analysis.mask_gallery import example_masks as example_masks
    from headway.analysis.token_attention import word_attention as word_attention
    from headway.analysis.worked_attention import attention_steps as attention_steps
    from headway.analysis.worked_attention import weighted_sum as weighted_sum
else:

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'headway.analysis' has no attribute {name!r}; it has: {', '.join(__all__)}")
