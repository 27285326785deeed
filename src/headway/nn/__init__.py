"""Building blocks: attention, positions, norms, recurrent layers and caches. `headway.models` assembles them.

Shapes use one alphabet everywhere:
`B` batch · `T` target/query positions · `S` source/key positions · `D` model width · `H` heads · `G` key/value
heads · `K` width of one head · `F` feed-forward width · `V` vocabulary · `L` layers
"""

from headway.nn.attention import (
    ATTENTIONS,
    AttentionContext,
    CrossAttention,
    SelfAttention,
    dot_product_attention,
    fast_attention,
    flex_attention,
    use_attention,
)
from headway.nn.block import Block, Blocks
from headway.nn.embedding import Embedding
from headway.nn.feedforward import FeedForward, GatedFeedForward, make_feed_forward
from headway.nn.kv_cache import KVCache
from headway.nn.norm import LayerNorm, RMSNorm, make_norm
from headway.nn.positions import Positions, make_positions
from headway.nn.state import State

__all__ = [
    "ATTENTIONS",
    "AttentionContext",
    "Block",
    "Blocks",
    "CrossAttention",
    "Embedding",
    "FeedForward",
    "GatedFeedForward",
    "KVCache",
    "LayerNorm",
    "Positions",
    "RMSNorm",
    "SelfAttention",
    "State",
    "dot_product_attention",
    "fast_attention",
    "flex_attention",
    "make_feed_forward",
    "make_norm",
    "make_positions",
    "use_attention",
]
