"""One Transformer layer: attention, then a feed-forward network, each with a norm and a residual connection."""

from collections.abc import Callable, Iterator

from torch import Tensor, nn

from headway.nn.attention import AttentionContext, CrossAttention, SelfAttention
from headway.nn.feedforward import FeedForward, GatedFeedForward
from headway.nn.kv_cache import LayerCache


class Block(nn.Module):
    """norm_order "pre":  x + f(norm(x))   Radford et al. 2019, §2.3; trains without warm-up (Xiong et al. 2020)
    norm_order "post": norm(x + f(x))   Vaswani et al. 2017, §3.1

    `residual` False leaves "x +" out: an ablation, which hardly trains in deep stacks (He et al. 2016).
    Dropout applies to the output of each f, before the residual is added (Vaswani et al. 2017, §5.4).
    """

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: FeedForward | GatedFeedForward,
        norm: Callable[[], nn.Module],
        *,
        norm_order: str,
        dropout: float,
        residual: bool = True,
        cross_attention: CrossAttention | None = None,
    ):
        super().__init__()
        self.attention, self.norm1 = attention, norm()
        if cross_attention is not None:
            self.cross_attention, self.cross_norm = cross_attention, norm()
        self.feed_forward, self.norm2 = feed_forward, norm()
        self.dropout = nn.Dropout(dropout)
        self.norm_first, self.residual = norm_order == "pre", residual

    def forward(
        self,
        x: Tensor,  # (B, T, D)
        ctx: AttentionContext,
        cache: LayerCache | None = None,
        source: tuple[Tensor, Tensor, Tensor | None] | None = None,  # keys, values (B, G, S, K); mask (B, 1, 1, S)
    ) -> Tensor:
        x = self._residual(x, self.norm1, lambda x: self.attention(x, ctx, cache))
        if source is not None:
            x = self._residual(x, self.cross_norm, lambda x: self.cross_attention(x, *source))
        return self._residual(x, self.norm2, self.feed_forward)

    def _residual(self, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if not self.residual:
            return self.dropout(f(norm(x))) if self.norm_first else norm(self.dropout(f(x)))
        if self.norm_first:
            return x + self.dropout(f(norm(x)))
        return norm(x + self.dropout(f(x)))


class Blocks(nn.ModuleList):
    """An `nn.ModuleList` whose items are typed as `Block`."""

    def __iter__(self) -> Iterator[Block]:
        return super().__iter__()  # type: ignore[return-value]
