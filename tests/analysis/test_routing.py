import torch

from headway.analysis.routing import attention_weights, dense_weights, plot, random_routing, render_text
from headway.nn import SelfAttention


def test_attention_is_one_matrix_whose_blocks_are_the_value_projection():
    for n, d in ((3, 4), (5, 2), (1, 3)):
        routing = random_routing(n, d, seed=n)
        torch.testing.assert_close(routing.matrix @ routing.x.flatten(), routing.output.flatten())
        torch.testing.assert_close(routing.matrix[:d, :d], routing.weights[0, 0] * routing.value)


def test_a_dense_layer_needs_weights_for_every_pair_of_numbers():
    assert dense_weights(3, 4) == torch.nn.Linear(12, 12, bias=False).weight.numel() == 144
    assert attention_weights(4) == SelfAttention(4, 1, bias=False).qkv.weight.numel() == 48
    text = render_text(3, 4)
    assert "D²N² = 4²·3²" in text
    assert "144" in text


def test_the_plot_is_written(tmp_path):
    assert plot(3, 4, tmp_path / "routing.png").stat().st_size > 10_000
